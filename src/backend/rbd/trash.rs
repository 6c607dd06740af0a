//! Images on their way out: an intent is written, the image moved to the trash, and the trash emptied behind the
//! answer. Only what an intent of ours names is ever removed: pools are shared with other clusters, other drivers and
//! administrators who rescue things.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::ops::Ops;

use super::cli::{Cli, errno, explain};
use super::id_object;

const INTENT: &str = "del.";
/// How long an entry that cannot go yet (watched, or its snapshots have clones) is left alone.
const RETRY: Duration = Duration::from_secs(30);
/// Rounds without an end before the worker waits for the next request, which brings a key again.
const ROUNDS: u32 = 40;

pub(super) struct Trash {
    host: Arc<dyn Host>,
    /// The omap object, one in each pool and namespace, that holds the intents.
    index: String,
    deadline: Duration,
    ops: Ops,
    /// The pools that are worked on, and whether something came in since their worker last looked.
    workers: Mutex<HashMap<String, bool>>,
}

impl Trash {
    pub(super) fn new(host: Arc<dyn Host>, instance: &str, deadline: Duration, ops: Ops) -> Self {
        Self { host, index: format!("csi.rbd.index.{instance}"), deadline, ops, workers: Mutex::default() }
    }

    /// Moves an image, or the half that a killed command left of one, to the trash. False where there is nothing.
    pub(super) async fn discard(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        image_id: Option<String>,
    ) -> Result<bool> {
        let image_id = match image_id {
            Some(id) => Some(id),
            None => self.half_made_id(cli, image).await?,
        };
        if let Some(id) = &image_id {
            let since = humantime::format_rfc3339_seconds(SystemTime::now());
            cli.omap_set(
                &image.pool,
                &self.index,
                &format!("{INTENT}{id}"),
                &format!("{since} {}", image.name),
            )
            .await?;
        }
        if cli.trash_move(image).await? {
            return Ok(true);
        }
        if image_id.is_some() {
            // Killed before the image came into the directory: its name alone is taken, and nothing lists it.
            cli.remove_object(&image.pool, &id_object(image)).await?;
        }
        Ok(image_id.is_some())
    }

    /// Sees to it that the intents in this pool are carried out, with this key, behind the answer.
    pub(super) fn resume(self: &Arc<Self>, access: &Access, pool: &str) {
        let key = format!("{}/{pool}/{}", access.cluster, access.namespace);
        if self.workers().insert(key.clone(), true).is_none() {
            let (trash, access, pool) = (self.clone(), access.clone(), pool.to_owned());
            self.ops.background(async move { trash.work(&key, &access, &pool).await });
        }
    }

    async fn work(&self, key: &str, access: &Access, pool: &str) {
        for _ in 0..ROUNDS {
            self.workers().insert(key.to_owned(), false);
            match self.round(access, pool).await {
                Ok(0) => {}
                Ok(left) => {
                    tracing::info!(pool, left, "images in the trash that cannot be removed yet");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(pool, "emptying the trash: {}", crate::error::chain(&error));
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            let mut workers = self.workers();
            if workers.get(key) == Some(&false) {
                workers.remove(key);
                return;
            }
        }
        self.workers().remove(key);
    }

    /// Removes what the intents name; answers how many have to wait.
    async fn round(&self, access: &Access, pool: &str) -> Result<usize> {
        let cli = Cli { host: self.host.as_ref(), access, deadline: self.deadline };
        let keys = cli.omap_keys(pool, &self.index).await?;
        let ids: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix(INTENT)).collect();
        let mut removals = Vec::new();
        for id in ids {
            removals.push(self.remove(&cli, pool, id));
        }
        let gone = futures_util::future::join_all(removals).await;
        gone.into_iter().try_fold(0, |left, gone| Ok(left + usize::from(!gone?)))
    }

    /// True when the image and its intent are gone. librbd refuses a second remover, so that a twin does no harm.
    async fn remove(&self, cli: &Cli<'_>, pool: &str, id: &str) -> Result<bool> {
        let removed = cli.trash_remove(pool, id).await;
        match removed.map_err(|error| (error.exit(), error)) {
            // Not in the trash: gone, or its move is still to come.
            Ok(false) if self.is_young(cli, pool, id).await? => return Ok(false),
            Ok(_) => {}
            Err((Some(errno::NOTEMPTY | errno::BUSY), _)) => return Ok(false),
            Err((_, error)) => {
                return Err(explain(&format!("removing image {id} from the trash of {pool}"), error));
            }
        }
        cli.omap_remove(pool, &self.index, &format!("{INTENT}{id}")).await?;
        Ok(true)
    }

    async fn is_young(&self, cli: &Cli<'_>, pool: &str, id: &str) -> Result<bool> {
        let Some(value) = cli.omap_get(pool, &self.index, &format!("{INTENT}{id}")).await? else {
            return Ok(false);
        };
        let value = String::from_utf8_lossy(&value).into_owned();
        let since = value.split(' ').next().and_then(|time| humantime::parse_rfc3339(time).ok());
        let since = since.ok_or_else(|| {
            Error::broken(format!("intent {INTENT}{id} in {pool}/{} has no time: {value:?}", self.index))
        })?;
        Ok(SystemTime::now().duration_since(since).unwrap_or_default() < self.deadline * 2)
    }

    /// The id of an image that cannot be opened: from its id object, else from the directory of the pool (a killed
    /// `trash mv` takes the object first).
    async fn half_made_id(&self, cli: &Cli<'_>, image: &Image) -> Result<Option<String>> {
        let in_directory = format!("name_{}", image.name);
        let object = id_object(image);
        let (own, listed) = tokio::try_join!(
            cli.object(&image.pool, &object),
            cli.omap_get(&image.pool, "rbd_directory", &in_directory)
        )?;
        Ok(own.or(listed).as_deref().and_then(length_prefixed))
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A string as Ceph encodes it: four bytes of length, little endian, then the text.
fn length_prefixed(bytes: &[u8]) -> Option<String> {
    let (length, text) = bytes.split_first_chunk::<4>()?;
    let text = text.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    String::from_utf8(text.to_vec()).ok().filter(|text| !text.is_empty())
}
