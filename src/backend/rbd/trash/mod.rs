//! Images on their way out: an intent is written, the image moved to the trash, and the trash emptied behind the
//! answer. Only what an intent of ours names is ever removed: pools are shared with other clusters, other drivers and
//! administrators who rescue things.

pub(crate) mod tombstone;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::Result;
use crate::host::Host;
use crate::metrics::METRICS;
use crate::ops::Ops;

use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::cli::{Cli, Removal};
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::trash::tombstone::{is_abandoned, volume_of};
use crate::backend::rbd::volume::id_object;

/// An intent is the key `del.<image id>.<seconds since 1970>`: each attempt has one of its own, so that tidying up after
/// an old attempt never takes away the intent of a new one.
const INTENT: &str = "del.";
/// Until then an intent whose image still has its name may be one whose move is to come, in a twin too.
const STALE: Duration = Duration::from_secs(3600);
/// How long an entry that is watched is left alone.
const RETRY: Duration = Duration::from_secs(30);
/// How long an entry whose snapshots have clones is left alone, unless something else goes, which may be the clone.
const PARK: Duration = Duration::from_secs(600);
/// Waits before the worker gives up until the next request, which brings a key again.
const WAITS: u32 = 40;

pub(crate) struct Trash {
    host: Arc<dyn Host>,
    /// The omap object, one in each pool and namespace, that holds the intents.
    index: String,
    deadline: Duration,
    ops: Ops,
    /// What is known of each pool and namespace since the start. No entry: it was never looked at, or given up until
    /// the next request.
    places: Mutex<HashMap<Spot, Place>>,
}

/// A pool and namespace of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Spot {
    cluster: String,
    pool: String,
    namespace: String,
}

struct Place {
    state: State,
    /// Ids of images that wait for a clone to go, and are not tried until one may have gone.
    parked: BTreeSet<String>,
    looked: Instant,
}

/// Why a place is looked at.
#[derive(Clone, Copy)]
enum Why<'a> {
    /// A request brings a key.
    Request,
    /// The image of this id came in.
    NewVolume(&'a str),
    /// A clone may have gone.
    Freed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Clean,
    Working,
    /// Something came in since its worker last looked.
    Dirty,
}

/// What a round has done, or could not do.
#[derive(Default)]
struct Round {
    removed: bool,
    /// Something has changed so that another round is due at once.
    again: bool,
    watched: usize,
    parked: BTreeSet<String>,
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
        self.resume(cli.access, &image.pool, Why::NewVolume(&id));
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

    /// Sees to it that the intents in this pool are carried out, with this key, behind the answer.
    fn resume(self: &Arc<Self>, access: &Access, pool: &str, why: Why<'_>) {
        let (cluster, namespace) = (access.cluster.clone(), access.namespace.clone());
        let spot = Spot { cluster, pool: pool.to_owned(), namespace };
        if self.is_due(&spot, why) {
            let (trash, access) = (self.clone(), access.clone());
            self.ops.background(async move { trash.work(&spot, &access).await });
        }
    }

    /// Whether a worker has to be started for it.
    fn is_due(&self, spot: &Spot, why: Why<'_>) -> bool {
        let mut places = self.places();
        let Some(place) = places.get_mut(spot) else {
            let place = Place { state: State::Working, parked: BTreeSet::new(), looked: Instant::now() };
            places.insert(spot.clone(), place);
            return true;
        };
        match why {
            Why::Request if place.parked.is_empty() || place.looked.elapsed() < PARK => return false,
            Why::NewVolume(id) => drop(place.parked.remove(id)),
            Why::Request | Why::Freed => place.parked.clear(),
        }
        let idle = place.state == State::Clean;
        place.state = if idle { State::Working } else { State::Dirty };
        idle
    }

    async fn work(self: &Arc<Self>, spot: &Spot, access: &Access) {
        let pool = &spot.pool;
        for _ in 0..WAITS {
            match self.empty(spot, access).await {
                Ok(0) => return,
                Ok(left) => tracing::info!(pool, left, "images in the trash that somebody watches"),
                Err(error) => tracing::warn!(pool, "emptying the trash: {}", crate::error::chain(&error)),
            }
            tokio::time::sleep(RETRY).await;
        }
        tracing::warn!(pool, "the trash is left alone until the next request for this pool");
        self.places().remove(spot);
    }

    /// Rounds until nothing new has come in; answers how many are watched. 0: this place is clean, or what is left waits
    /// for clones.
    async fn empty(self: &Arc<Self>, spot: &Spot, access: &Access) -> Result<usize> {
        loop {
            let parked = self.begin(spot);
            let round = self.round(access, &spot.pool, &parked).await?;
            if round.removed {
                self.wake_others(spot, access);
            }
            if let Some(watched) = self.end(spot, round) {
                return Ok(watched);
            }
        }
    }

    fn begin(&self, spot: &Spot) -> BTreeSet<String> {
        let mut places = self.places();
        let Some(place) = places.get_mut(spot) else { return BTreeSet::new() };
        (place.state, place.looked) = (State::Working, Instant::now());
        place.parked.clone()
    }

    /// None: another round is due, for something new, or because a clone may have gone that others wait for.
    fn end(&self, spot: &Spot, round: Round) -> Option<usize> {
        let mut places = self.places();
        let place = places.get_mut(spot)?;
        place.parked.extend(round.parked);
        let freed = round.removed && !place.parked.is_empty();
        if freed {
            place.parked.clear();
        }
        if freed || round.again || place.state == State::Dirty {
            return None;
        }
        if round.watched == 0 {
            place.state = State::Clean;
        }
        Some(round.watched)
    }

    /// A parent may be in another pool than its clone.
    fn wake_others(self: &Arc<Self>, spot: &Spot, access: &Access) {
        let mut others = Vec::new();
        for (other, place) in self.places().iter() {
            if other != spot && other.cluster == spot.cluster && !place.parked.is_empty() {
                others.push(other.pool.clone());
            }
        }
        for pool in others {
            self.resume(access, &pool, Why::Freed);
        }
    }

    /// Removes what the intents name, but for what is parked.
    async fn round(&self, access: &Access, pool: &str, parked: &BTreeSet<String>) -> Result<Round> {
        let cli = Cli { host: self.host.as_ref(), access, deadline: self.deadline };
        let keys = cli.omap_keys(pool, &self.index).await?;
        let mut removals = Vec::new();
        for (id, attempts) in by_image(&keys).into_iter().filter(|(id, _)| !parked.contains(*id)) {
            let cli = &cli;
            removals.push(async move { (id, self.remove(cli, pool, id, attempts).await) });
        }
        let mut round = Round::default();
        for (id, fate) in futures_util::future::join_all(removals).await {
            match fate? {
                Fate::Gone => round.removed = true,
                Fate::Named => {}
                Fate::Surfaced => round.again = true,
                Fate::Watched => round.watched += 1,
                Fate::Parked => drop(round.parked.insert(id.to_owned())),
            }
        }
        let left = parked.len() + round.parked.len() + round.watched;
        METRICS.in_trash(&access.cluster, pool, &access.namespace, left);
        Ok(round)
    }

    /// librbd refuses a second remover, so that a twin does no harm.
    async fn remove(&self, cli: &Cli<'_>, pool: &str, id: &str, attempts: Vec<Attempt<'_>>) -> Result<Fate> {
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
            cli.omap_remove(pool, &self.index, attempt.key).await?;
        }
        Ok(if named { Fate::Named } else { Fate::Gone })
    }

    /// Snapshots of users were taken while the image was moved here, and bring it back. Others wait for their clones.
    async fn with_snapshots(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &str,
        attempts: &[Attempt<'_>],
    ) -> Result<Fate> {
        let Some(mut snapshots) = cli.snapshots_of_trashed(pool, id).await? else {
            return Ok(Fate::Surfaced);
        };
        snapshots.retain(Snapshot::is_of_a_user);
        if snapshots.is_empty() {
            return Ok(Fate::Parked);
        }
        for attempt in attempts {
            let name = cli.omap_get(pool, &self.index, attempt.key).await?.unwrap_or_default();
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
    pub(crate) async fn half_made_id(&self, cli: &Cli<'_>, image: &Image) -> Result<Option<String>> {
        let in_directory = format!("name_{}", image.name);
        let object = id_object(image);
        let (own, listed) = tokio::try_join!(
            cli.object(&image.pool, &object),
            cli.omap_get(&image.pool, "rbd_directory", &in_directory)
        )?;
        Ok(own.or(listed).as_deref().and_then(length_prefixed))
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Spot, Place>> {
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
