//! Images on their way out: an intent is written, the image moved to the trash, and the trash emptied behind the
//! answer. Only what an intent of ours names is ever removed: pools are shared with other clusters, other drivers and
//! administrators who rescue things.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::Result;
use crate::host::Host;
use crate::metrics::METRICS;
use crate::ops::Ops;

use super::cli::{Cli, Removal};
use super::find::id_object;

/// An intent is the key `del.<image id>.<seconds since 1970>`: each attempt has one of its own, so that tidying up after
/// an old attempt never takes away the intent of a new one.
const INTENT: &str = "del.";
/// Until then an intent whose image still has its name may be one whose move is to come, in a twin too.
const STALE: Duration = Duration::from_secs(3600);
/// How long an entry that cannot go yet (watched, or its snapshots have clones) is left alone.
const RETRY: Duration = Duration::from_secs(30);
/// Waits before the worker gives up until the next request, which brings a key again.
const WAITS: u32 = 40;

pub(super) struct Trash {
    host: Arc<dyn Host>,
    /// The omap object, one in each pool and namespace, that holds the intents.
    index: String,
    deadline: Duration,
    ops: Ops,
    /// What is known of each pool and namespace since the start.
    places: Mutex<HashMap<String, Place>>,
}

/// No entry: it was never looked at, or given up until the next request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Clean,
    Working,
    /// Something came in since its worker last looked.
    Dirty,
}

impl Trash {
    pub(super) fn new(host: Arc<dyn Host>, instance: &str, deadline: Duration, ops: Ops) -> Self {
        Self { host, index: format!("csi.rbd.index.{instance}"), deadline, ops, places: Mutex::default() }
    }

    /// The object of a pool that holds what the driver has to remember there.
    pub(super) fn index(&self) -> &str {
        &self.index
    }

    /// Moves an image, or the half that a killed command left of one, to the trash. False where there is nothing.
    pub(super) async fn discard(
        self: &Arc<Self>,
        cli: &Cli<'_>,
        image: &Image,
        image_id: Option<String>,
    ) -> Result<bool> {
        let half_made = image_id.is_none();
        let image_id = match image_id {
            Some(id) => Some(id),
            None => self.half_made_id(cli, image).await?,
        };
        let Some(id) = image_id else { return cli.trash_move(image).await };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        cli.omap_set(&image.pool, &self.index, &format!("{INTENT}{id}.{now}"), &image.name).await?;
        let moved = cli.trash_move(image).await;
        // Also where it failed: what it has done may be all of it.
        self.resume(cli.access, &image.pool, Place::Dirty);
        if !moved? && half_made && self.half_made_id(cli, image).await?.as_ref() == Some(&id) {
            // Killed before the image came into the directory: its name alone is taken, and nothing lists it.
            cli.remove_object(&image.pool, &id_object(image)).await?;
        }
        Ok(true)
    }

    /// Takes up what an earlier run left in this pool, once: the first request since brings a key.
    pub(super) fn take_up(self: &Arc<Self>, access: &Access, pool: &str) {
        self.resume(access, pool, Place::Clean);
    }

    /// Sees to it that the intents in this pool are carried out, with this key, behind the answer.
    fn resume(self: &Arc<Self>, access: &Access, pool: &str, why: Place) {
        let key = format!("{}/{pool}/{}", access.cluster, access.namespace);
        let mut places = self.places();
        match (places.get(&key), why) {
            (Some(_), Place::Clean) => return,
            (Some(Place::Working | Place::Dirty), _) => {
                places.insert(key, Place::Dirty);
                return;
            }
            _ => places.insert(key.clone(), Place::Working),
        };
        let (trash, access, pool) = (self.clone(), access.clone(), pool.to_owned());
        self.ops.background(async move { trash.work(&key, &access, &pool).await });
    }

    async fn work(&self, key: &str, access: &Access, pool: &str) {
        for _ in 0..WAITS {
            match self.empty(key, access, pool).await {
                Ok(0) => return,
                Ok(left) => tracing::info!(pool, left, "images in the trash that cannot be removed yet"),
                Err(error) => tracing::warn!(pool, "emptying the trash: {}", crate::error::chain(&error)),
            }
            tokio::time::sleep(RETRY).await;
        }
        tracing::warn!(pool, "the trash is left alone until the next request for this pool");
        self.places().remove(key);
    }

    /// Rounds until nothing new has come in; answers how many have to wait. 0: this place is clean.
    async fn empty(&self, key: &str, access: &Access, pool: &str) -> Result<usize> {
        loop {
            self.places().insert(key.to_owned(), Place::Working);
            let left = self.round(access, pool).await?;
            let mut places = self.places();
            match places.get(key) {
                Some(Place::Dirty) => {}
                _ if left > 0 => return Ok(left),
                _ => {
                    places.insert(key.to_owned(), Place::Clean);
                    return Ok(0);
                }
            }
        }
    }

    /// Removes what the intents name; answers how many have to wait.
    async fn round(&self, access: &Access, pool: &str) -> Result<usize> {
        let cli = Cli { host: self.host.as_ref(), access, deadline: self.deadline };
        let keys = cli.omap_keys(pool, &self.index).await?;
        let mut removals = Vec::new();
        for (id, attempts) in by_image(&keys) {
            removals.push(self.remove(&cli, pool, id, attempts));
        }
        let gone = futures_util::future::join_all(removals).await;
        let left = gone.iter().filter(|gone| !matches!(gone, Ok(true))).count();
        METRICS.in_trash(&access.cluster, pool, &access.namespace, left);
        gone.into_iter().try_fold(0, |left, gone| Ok(left + usize::from(!gone?)))
    }

    /// False when the image has to wait. librbd refuses a second remover, so that a twin does no harm.
    async fn remove(&self, cli: &Cli<'_>, pool: &str, id: &str, attempts: Vec<Attempt<'_>>) -> Result<bool> {
        let mut removal = cli.trash_remove(pool, id).await?;
        // Gone, or its move is still to come? `trash mv` fills the trash before it takes the name away: what has no
        // name now, and then is not in the trash, is gone.
        let named = removal == Removal::Absent && self.is_named(cli, pool, id, &attempts).await?;
        if removal == Removal::Absent && !named {
            removal = cli.trash_remove(pool, id).await?;
        }
        if removal == Removal::Waits {
            return Ok(false);
        }
        for attempt in attempts.iter().filter(|attempt| !named || attempt.is_stale()) {
            cli.omap_remove(pool, &self.index, attempt.key).await?;
        }
        Ok(true)
    }

    /// Whether the image still has the name under which it was to be deleted.
    async fn is_named(&self, cli: &Cli<'_>, pool: &str, id: &str, attempts: &[Attempt<'_>]) -> Result<bool> {
        for attempt in attempts {
            let Some(name) = cli.omap_get(pool, &self.index, attempt.key).await? else { continue };
            let image = cli.image(pool, &String::from_utf8_lossy(&name));
            let own = cli.object(pool, &id_object(&image)).await?;
            if own.as_deref().and_then(length_prefixed).as_deref() == Some(id) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The id of an image that cannot be opened: from its id object, else from the directory of the pool (a killed
    /// `trash mv` takes the object first).
    pub(super) async fn half_made_id(&self, cli: &Cli<'_>, image: &Image) -> Result<Option<String>> {
        let in_directory = format!("name_{}", image.name);
        let object = id_object(image);
        let (own, listed) = tokio::try_join!(
            cli.object(&image.pool, &object),
            cli.omap_get(&image.pool, "rbd_directory", &in_directory)
        )?;
        Ok(own.or(listed).as_deref().and_then(length_prefixed))
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One intent.
struct Attempt<'a> {
    key: &'a str,
    since: SystemTime,
}

impl Attempt<'_> {
    fn is_stale(&self) -> bool {
        SystemTime::now().duration_since(self.since).is_ok_and(|age| age > STALE)
    }
}

/// The intents among the keys of an index, by the image that they name.
fn by_image(keys: &[String]) -> BTreeMap<&str, Vec<Attempt<'_>>> {
    let mut images: BTreeMap<&str, Vec<Attempt>> = BTreeMap::new();
    for key in keys {
        let intent = key.strip_prefix(INTENT).and_then(|intent| intent.split_once('.'));
        if let Some((id, Ok(seconds))) = intent.map(|(id, seconds)| (id, seconds.parse())) {
            let since = UNIX_EPOCH + Duration::from_secs(seconds);
            images.entry(id).or_default().push(Attempt { key, since });
        }
    }
    images
}

/// A string as Ceph encodes it: four bytes of length, little endian, then the text.
fn length_prefixed(bytes: &[u8]) -> Option<String> {
    let (length, text) = bytes.split_first_chunk::<4>()?;
    let text = text.get(..usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    String::from_utf8(text.to_vec()).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intents_of_ours_name_an_image() {
        let keys = ["del.12ab.1795269600", "del.12ab.1795269700", "del.12ab", "del.x.y", "snap.1", ""]
            .map(str::to_owned);
        let images = by_image(&keys);
        assert_eq!(images.keys().collect::<Vec<_>>(), [&"12ab"]);
        assert_eq!(images["12ab"].iter().map(|attempt| attempt.key).collect::<Vec<_>>(), &keys[..2]);
    }

    #[test]
    fn a_name_in_ceph_s_encoding_is_read() {
        assert_eq!(length_prefixed(b"\x04\0\0\x0012ab").as_deref(), Some("12ab"));
        assert_eq!(length_prefixed(b"\x05\0\0\x0012ab"), None);
        assert_eq!(length_prefixed(b"\x01"), None);
    }
}
