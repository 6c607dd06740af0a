//! Empties the trash of one pool and namespace behind the answers. Each image is removed by itself: the removal of a large
//! one takes hours, and one may fail, while others come and go.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};

use crate::cluster::Access;
use crate::error::{Error, Result, chain};
use crate::metrics::METRICS;

use crate::backend::rbd::trash::{Attempt, Fate, Trash, by_image};

/// How long an entry that is watched, or could not be removed, is left alone.
const RETRY: Duration = Duration::from_secs(30);
/// How long an entry whose snapshots have clones is left alone, unless something else goes, which may be the clone.
const PARK: Duration = Duration::from_secs(600);
/// Waits before the worker gives up until the next request, which brings a key again.
const WAITS: u32 = 40;

/// What is known of each pool and namespace since the start. No entry: it was never looked at, or given up until the next
/// request.
pub(super) type Places = HashMap<Spot, Place>;

/// A pool and namespace of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    cluster: String,
    pool: String,
    namespace: String,
}

pub(super) struct Place {
    state: State,
    /// Ids of images that wait for a clone to go, and are not tried until one may have gone.
    parked: BTreeSet<String>,
    /// How often a clone may have gone: an image that was tried meanwhile is tried again.
    freed: u64,
    looked: Instant,
    /// Wakes the worker where something came in.
    news: Arc<Notify>,
}

/// Why a place is looked at.
#[derive(Clone, Copy)]
pub(super) enum Why<'a> {
    /// A request brings a key.
    Request,
    /// The image of this id came in.
    CameIn(&'a str),
    /// A clone may have gone.
    Freed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Without a worker.
    Clean,
    Working,
    /// Something came in since its worker last looked.
    Dirty,
}

impl Default for Place {
    fn default() -> Self {
        let (parked, looked) = (BTreeSet::new(), Instant::now());
        Self { state: State::Clean, parked, freed: 0, looked, news: Arc::default() }
    }
}

impl Place {
    fn free(&mut self) {
        self.freed += 1;
        if !self.parked.is_empty() {
            self.parked.clear();
            self.state = State::Dirty;
        }
    }

    /// Whether it has to be looked at.
    fn is_due(&mut self, why: Why<'_>) -> bool {
        match why {
            Why::CameIn(id) => drop(self.parked.remove(id)),
            Why::Request if self.parked.is_empty() || self.looked.elapsed() < PARK => return false,
            Why::Request | Why::Freed => {
                let waited = !self.parked.is_empty();
                self.parked.clear();
                self.freed += 1;
                return waited;
            }
        }
        true
    }
}

impl Trash {
    /// Sees to it that the intents in this pool are carried out, with this key, behind the answer.
    pub(super) fn resume(self: &Arc<Self>, access: &Access, pool: &str, why: Why<'_>) {
        let (cluster, namespace) = (access.cluster.clone(), access.namespace.clone());
        let spot = Spot { cluster, pool: pool.to_owned(), namespace };
        if let Some(news) = self.needs_worker(&spot, why) {
            let (trash, access) = (self.clone(), Arc::new(access.clone()));
            self.ops.background(async move { Worker::new(trash, access, spot, news).work().await });
        }
    }

    /// What the worker that has to be started for it waits for. None where none has to be.
    fn needs_worker(&self, spot: &Spot, why: Why<'_>) -> Option<Arc<Notify>> {
        let mut places = self.places();
        let known = places.contains_key(spot);
        let place = places.entry(spot.clone()).or_default();
        if known && !place.is_due(why) {
            return None;
        }
        let idle = place.state == State::Clean;
        place.state = State::Dirty;
        place.news.notify_one();
        idle.then(|| place.news.clone())
    }

    /// A parent may be in another pool than its clone.
    fn wake_others(self: &Arc<Self>, spot: &Spot, access: &Access) {
        let is_other = |other: &&Spot| *other != spot && other.cluster == spot.cluster;
        let others: Vec<String> =
            self.places().keys().filter(is_other).map(|spot| spot.pool.clone()).collect();
        for pool in others {
            self.resume(access, &pool, Why::Freed);
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker {
    trash: Arc<Trash>,
    access: Arc<Access>,
    spot: Spot,
    news: Arc<Notify>,
    /// One for each image that is removed just now, or waits for a slot of the host's.
    removals: JoinSet<Result<Fate>>,
    tasks: HashMap<Id, String>,
    /// By image id.
    at_work: HashMap<String, AtWork>,
    /// Ids of images that are watched or could not be removed.
    left: BTreeSet<String>,
    /// When those are tried again.
    retry: Option<tokio::time::Instant>,
    waits: u32,
}

/// An image that is being removed.
struct AtWork {
    /// `Place::freed` when it was begun.
    freed: u64,
    intents: Vec<String>,
    /// It was looked at since: its move may have been made.
    seen: bool,
    /// There are more intents of it since.
    more: bool,
}

impl Worker {
    fn new(trash: Arc<Trash>, access: Arc<Access>, spot: Spot, news: Arc<Notify>) -> Self {
        let (removals, tasks, at_work) = (JoinSet::new(), HashMap::new(), HashMap::new());
        let (left, retry) = (BTreeSet::new(), None);
        Self { trash, access, spot, news, removals, tasks, at_work, left, retry, waits: 0 }
    }

    /// Until nothing is left but what waits for clones.
    async fn work(mut self) {
        loop {
            if self.is_dirty() {
                self.take_in().await;
            } else if self.removals.is_empty() && self.is_over() {
                return;
            }
            let retry = self.retry;
            tokio::select! {
                Some(ended) = self.removals.join_next_with_id() => self.ended(ended),
                () = self.news.notified() => {}
                () = tokio::time::sleep_until(retry.unwrap_or_else(tokio::time::Instant::now)), if retry.is_some() => {
                    self.try_again();
                }
            }
        }
    }

    fn is_dirty(&self) -> bool {
        self.trash.places().get(&self.spot).is_some_and(|place| place.state == State::Dirty)
    }

    /// Begins to remove what came in. Not what is parked, left alone or at work.
    async fn take_in(&mut self) {
        let Some((parked, freed)) = self.look() else { return };
        let cli = self.trash.cli(&self.access);
        let keys = match cli.omap_keys(&self.spot.pool, &self.trash.index).await {
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(pool = self.spot.pool, "looking at the trash: {}", chain(&error));
                return self.wait();
            }
        };
        for (id, attempts) in by_image(keys) {
            if let Some(image) = self.at_work.get_mut(&id) {
                image.seen = true;
                image.more |= attempts.iter().any(|attempt| !image.intents.contains(&attempt.key));
            } else if !parked.contains(&id) && !self.left.contains(&id) {
                self.begin(id, attempts, freed);
            }
        }
        self.count();
    }

    fn look(&self) -> Option<(BTreeSet<String>, u64)> {
        let mut places = self.trash.places();
        let place = places.get_mut(&self.spot)?;
        (place.state, place.looked) = (State::Working, Instant::now());
        Some((place.parked.clone(), place.freed))
    }

    /// As a task of its own, which goes on while this worker waits for something else.
    fn begin(&mut self, id: String, attempts: Vec<Attempt>, freed: u64) {
        let intents = attempts.iter().map(|attempt| attempt.key.clone()).collect();
        let (trash, access) = (self.trash.clone(), self.access.clone());
        let (pool, image_id) = (self.spot.pool.clone(), id.clone());
        let removal = async move { trash.remove(&trash.cli(&access), &pool, &image_id, attempts).await };
        let task = self.removals.spawn(removal);
        self.tasks.insert(task.id(), id.clone());
        self.at_work.insert(id, AtWork { freed, intents, seen: false, more: false });
    }

    fn ended(&mut self, ended: Result<(Id, Result<Fate>), JoinError>) {
        let (task, fate) = match ended {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(Error::internal("removing an image from the trash", error))),
        };
        let Some((id, image)) = self.tasks.remove(&task).and_then(|id| self.at_work.remove_entry(&id)) else {
            return;
        };
        if image.more || image.seen && matches!(fate, Ok(Fate::Named)) {
            self.set_dirty();
        }
        match fate {
            Ok(Fate::Gone) => self.free(),
            Ok(Fate::Named) => {}
            Ok(Fate::Surfaced) => self.set_dirty(),
            Ok(Fate::Parked) => self.park(id, image.freed),
            Ok(Fate::Watched) => self.leave(id, "somebody watches it"),
            Err(error) => self.leave(id, &chain(&error)),
        }
        self.count();
    }

    /// It may have been a clone that others wait for.
    fn free(&self) {
        if let Some(place) = self.trash.places().get_mut(&self.spot) {
            place.free();
        }
        self.trash.wake_others(&self.spot, &self.access);
    }

    /// `freed`: when it was begun. A clone that went since may have been its own.
    fn park(&self, id: String, freed: u64) {
        let mut places = self.trash.places();
        let Some(place) = places.get_mut(&self.spot) else { return };
        if place.freed == freed {
            place.parked.insert(id);
        } else {
            place.state = State::Dirty;
        }
    }

    fn leave(&mut self, id: String, why: &str) {
        let pool = &self.spot.pool;
        tracing::warn!(pool, image_id = id, "an image stays in the trash for now: {why}");
        self.left.insert(id);
        self.wait();
    }

    fn wait(&mut self) {
        self.retry.get_or_insert_with(|| tokio::time::Instant::now() + RETRY);
    }

    fn try_again(&mut self) {
        self.retry = None;
        self.waits += 1;
        self.left.clear();
        self.set_dirty();
    }

    fn set_dirty(&self) {
        if let Some(place) = self.trash.places().get_mut(&self.spot) {
            place.state = State::Dirty;
        }
    }

    /// Where nothing is at work.
    fn is_over(&self) -> bool {
        let mut places = self.trash.places();
        match places.get_mut(&self.spot) {
            Some(place) if place.state == State::Dirty => return false,
            Some(place) if self.retry.is_none() => place.state = State::Clean,
            Some(_) if self.waits < WAITS => return false,
            Some(_) | None => {
                tracing::warn!(
                    pool = self.spot.pool,
                    "the trash is left alone until the next request for this pool"
                );
                places.remove(&self.spot);
            }
        }
        true
    }

    fn count(&self) {
        let parked = self.trash.places().get(&self.spot).map_or(0, |place| place.parked.len());
        let waiting = self.at_work.len() + self.left.len() + parked;
        let Spot { cluster, pool, namespace } = &self.spot;
        METRICS.in_trash(cluster, pool, namespace, waiting);
    }
}
