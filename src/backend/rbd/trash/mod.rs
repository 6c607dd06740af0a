//! Images on their way out: an intent is written, the image moved to the trash, and the trash emptied behind the
//! answer. Only what an intent of ours names is ever removed: pools are shared with other clusters, other drivers and
//! administrators who rescue things.

pub(crate) mod tombstone;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::Result;
use crate::host::Host;
use crate::ops::Ops;

use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::cli::{Cli, Removal};
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::trash::tombstone::{is_abandoned, volume_of};
use crate::backend::rbd::trash::worker::{Places, Why};
use crate::backend::rbd::volume::id_object;

/// An intent is the key `del.<image id>.<seconds since 1970>`: each attempt has one of its own, so that tidying up after
/// an old attempt never takes away the intent of a new one.
const INTENT: &str = "del.";
/// Until then an intent whose image still has its name may be one whose move is to come, in a twin too.
const STALE: Duration = Duration::from_secs(3600);

pub(crate) struct Trash {
    host: Arc<dyn Host>,
    /// The omap object, one in each pool and namespace, that holds the intents.
    index: String,
    deadline: Duration,
    ops: Ops,
    places: Mutex<Places>,
}

/// What became of one image.
enum Fate {
    Gone,
    /// It has its name still: its move is still to come.
    Named,
    /// It came back as a tombstone.
    Surfaced,
    Watched,
    Parked,
}

impl Trash {
    pub(crate) fn new(host: Arc<dyn Host>, instance: &str, deadline: Duration, ops: Ops) -> Self {
        Self { host, index: index_object(instance), deadline, ops, places: Mutex::default() }
    }

    /// Moves an image, or the half that a killed command left of one, to the trash. False where there is nothing.
    pub(crate) async fn discard(
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
        self.resume(cli.access, &image.pool, Why::CameIn(&id));
        if !moved? && half_made && self.half_made_id(cli, image).await?.as_ref() == Some(&id) {
            // Killed before the image came into the directory: its name alone is taken, and nothing lists it.
            cli.remove_object(&image.pool, &id_object(image)).await?;
        }
        Ok(true)
    }

    /// Takes up what an earlier run left in this pool, once: the first request since brings a key. And now and then what
    /// waits for a clone.
    pub(crate) fn take_up(self: &Arc<Self>, access: &Access, pool: &str) {
        self.resume(access, pool, Why::Request);
    }

    /// The same in the foreground, each image once: where nothing runs behind the answers.
    pub(crate) async fn sweep(&self, cli: &Cli<'_>, pool: &str) -> Result<()> {
        for (id, attempts) in by_image(cli.omap_keys(pool, &self.index).await?) {
            if matches!(self.remove(cli, pool, &id, attempts).await?, Fate::Watched) {
                tracing::warn!(
                    pool,
                    image_id = id,
                    "an image stays in the trash for now: somebody watches it"
                );
            }
        }
        Ok(())
    }

    fn cli<'a>(&'a self, access: &'a Access) -> Cli<'a> {
        Cli { host: self.host.as_ref(), access, deadline: self.deadline }
    }

    /// librbd refuses a second remover, so that a twin does no harm.
    async fn remove(&self, cli: &Cli<'_>, pool: &str, id: &str, attempts: Vec<Attempt>) -> Result<Fate> {
        let mut removal = cli.trash_remove(pool, id).await?;
        // Gone, or its move is still to come? `trash mv` fills the trash before it takes the name away: what has no
        // name now, and then is not in the trash, is gone.
        let named = removal == Removal::Absent && self.is_named(cli, pool, id, &attempts).await?;
        if removal == Removal::Absent && !named {
            removal = cli.trash_remove(pool, id).await?;
        }
        match removal {
            Removal::Watched => return Ok(Fate::Watched),
            Removal::HasSnapshots => return self.with_snapshots(cli, pool, id, &attempts).await,
            Removal::Removed | Removal::Absent => {}
        }
        for attempt in attempts.iter().filter(|attempt| !named || attempt.is_stale()) {
            cli.omap_remove(pool, &self.index, &attempt.key).await?;
        }
        Ok(if named { Fate::Named } else { Fate::Gone })
    }

    /// Snapshots of users were taken while the image was moved here, and bring it back. Others wait for their clones.
    async fn with_snapshots(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &str,
        attempts: &[Attempt],
    ) -> Result<Fate> {
        let Some(mut snapshots) = cli.snapshots_of_trashed(pool, id).await? else {
            return Ok(Fate::Surfaced);
        };
        snapshots.retain(Snapshot::is_of_a_user);
        if snapshots.is_empty() {
            return Ok(Fate::Parked);
        }
        for attempt in attempts {
            let name = cli.omap_get(pool, &self.index, &attempt.key).await?.unwrap_or_default();
            if let Some(uuid) = volume_of(&String::from_utf8_lossy(&name))
                && self.surface(cli, pool, uuid, id).await?
            {
                return Ok(Fate::Surfaced);
            }
        }
        snapshots.retain(|snapshot| is_abandoned(snapshot, self.deadline));
        for snapshot in snapshots {
            cli.remove_snapshot_of_trashed(pool, id, &snapshot.name).await?;
        }
        Ok(Fate::Watched)
    }

    /// Whether the image still has the name under which it was to be deleted.
    async fn is_named(&self, cli: &Cli<'_>, pool: &str, id: &str, attempts: &[Attempt]) -> Result<bool> {
        for attempt in attempts {
            let Some(name) = cli.omap_get(pool, &self.index, &attempt.key).await? else { continue };
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
    pub(crate) async fn half_made_id(&self, cli: &Cli<'_>, image: &Image) -> Result<Option<String>> {
        let in_directory = format!("name_{}", image.name);
        let object = id_object(image);
        let (own, listed) = tokio::try_join!(
            cli.object(&image.pool, &object),
            cli.omap_get(&image.pool, "rbd_directory", &in_directory)
        )?;
        Ok(own.or(listed).as_deref().and_then(length_prefixed))
    }
}

/// One intent.
pub(crate) struct Attempt {
    pub(crate) key: String,
    pub(crate) since: SystemTime,
}

impl Attempt {
    pub(crate) fn is_stale(&self) -> bool {
        SystemTime::now().duration_since(self.since).is_ok_and(|age| age > STALE)
    }
}

/// The ids of the images that the keys of an index have intents for.
pub(crate) fn intended(keys: Vec<String>) -> BTreeSet<String> {
    by_image(keys).into_keys().collect()
}

/// The intents among the keys of an index, by the image that they name.
pub(crate) fn by_image(keys: Vec<String>) -> BTreeMap<String, Vec<Attempt>> {
    let mut images: BTreeMap<String, Vec<Attempt>> = BTreeMap::new();
    for key in keys {
        let intent = key.strip_prefix(INTENT).and_then(|intent| intent.split_once('.'));
        if let Some((id, Ok(seconds))) = intent.map(|(id, seconds)| (id.to_owned(), seconds.parse())) {
            let since = UNIX_EPOCH + Duration::from_secs(seconds);
            images.entry(id).or_default().push(Attempt { key, since });
        }
    }
    images
}

/// A string as Ceph encodes it: four bytes of length, little endian, then the text.
pub(crate) fn length_prefixed(bytes: &[u8]) -> Option<String> {
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
        let images = by_image(keys.to_vec());
        assert_eq!(images.keys().collect::<Vec<_>>(), ["12ab"]);
        assert_eq!(images["12ab"].iter().map(|attempt| attempt.key.clone()).collect::<Vec<_>>(), &keys[..2]);
    }

    #[test]
    fn a_name_in_ceph_s_encoding_is_read() {
        assert_eq!(length_prefixed(b"\x04\0\0\x0012ab").as_deref(), Some("12ab"));
        assert_eq!(length_prefixed(b"\x05\0\0\x0012ab"), None);
        assert_eq!(length_prefixed(b"\x01"), None);
    }
}
