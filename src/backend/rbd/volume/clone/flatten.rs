//! How long a chain of clones may become, and how many snapshots an image may have. What is too long or too many is cut
//! by flattening clones that nobody uses: one at once, behind the answers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Error, Result, chain};
use crate::host::{Host, Slot};
use crate::metrics::METRICS;
use crate::ops::Ops;
use crate::request;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Child, Info, Snapshot};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::watchers::settled_watchers;

/// Linux takes 510; some are left for what is under way at once, and for administrators.
const MOST_SNAPSHOTS: usize = 500;

/// How often a flatten looks whether its image was given to a node.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// What is being flattened, by whomever, and what waits for it.
pub(crate) struct Flattens {
    host: Arc<dyn Host>,
    deadline: Duration,
    ops: Ops,
    /// By image.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// Images with too many snapshots.
    trimming: Mutex<HashSet<String>>,
    turn: Semaphore,
}

/// An image whose flattening runs or waits, until this is dropped.
pub(crate) struct UnderWay {
    flattens: Arc<Flattens>,
    image: String,
    token: CancellationToken,
}

impl Rbd {
    /// For CreateVolume, which waits for it.
    pub(crate) async fn flatten_unused(&self, cli: &Cli<'_>, image: &Image, uuid: Uuid) -> Result<()> {
        let in_use =
            |by: &str| Error::Busy(format!("image {image} has to be flattened, and {by}: ask again"));
        let Some(under_way) = self.flattens.enter(image) else {
            return Err(in_use("that is being done already"));
        };
        if let Some(user) = user(cli, image, uuid).await? {
            return Err(in_use(&user));
        }
        tracing::info!(%image, parents = self.limits.hard_depth, "flattening a clone that has more parents than this");
        let work = flatten_while_unpublished(cli, image, uuid, Slot::Long);
        let error = match under_way.token.run_until_cancelled(work).await {
            Some(Ok(None)) => return Ok(()),
            Some(Ok(Some(user))) => return Err(in_use(&user)),
            None => return Err(in_use("it is about to be used")),
            Some(Err(error)) => error,
        };
        // A twin may have done it meanwhile.
        let flat = cli.info(image).await.ok().flatten().is_some_and(|info| info.parent.is_none());
        if flat { Ok(()) } else { Err(error) }
    }

    /// Refuses one more snapshot of an image that has as many as it can; those in the trash of the image count too. Long
    /// before that it begins to flatten the clones that keep them there.
    pub(crate) async fn room_for_snapshot(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        snapshots: &[Snapshot],
    ) -> Result<()> {
        if snapshots.len() >= self.limits.max_snapshots.into() {
            self.flattens.start_trimming(cli.access, image, self.limits.min_snapshots.into());
        }
        if snapshots.len() < MOST_SNAPSHOTS {
            return Ok(());
        }
        let clones = cli.children(image).await?.unwrap_or_default().len();
        let trashed = snapshots.iter().filter(|snapshot| !snapshot.is_of_a_user()).count();
        Err(Error::NoSpace(format!(
            "image {image} has {} snapshots, {MOST_SNAPSHOTS} are the most: delete some; {trashed} of them are deleted \
             already and kept by its {clones} clones, of which those that nobody uses are being flattened",
            snapshots.len()
        )))
    }
}

impl Flattens {
    pub(crate) fn new(host: Arc<dyn Host>, deadline: Duration, ops: Ops) -> Self {
        let (running, trimming, turn) = (Mutex::default(), Mutex::default(), Semaphore::new(1));
        Self { host, deadline, ops, running, trimming, turn }
    }

    /// Flattens the image behind the answer, if nobody uses it. A shutdown cuts it, and so does a node that is to have it.
    pub(crate) fn start(self: &Arc<Self>, access: &Access, image: &Image) {
        let Some(under_way) = self.enter(image) else { return };
        let (flattens, access, image) = (self.clone(), access.clone(), image.clone());
        self.ops.background(request::carried(async move {
            if let Err(error) = flattens.flatten(&flattens.cli(&access), &image, under_way).await {
                tracing::warn!(%image, "flattening: {}", chain(&error));
            }
        }));
    }

    /// Before somebody uses the image. What it had come to is kept; its watch may last 30 s more.
    pub(crate) fn stop(&self, image: &Image) {
        if let Some(token) = self.lock().get(&image.to_string()) {
            tracing::info!(%image, "its flattening is cut off: it is about to be used");
            token.cancel();
        }
    }

    /// None where it runs or waits already. From here on it can be stopped.
    fn enter(self: &Arc<Self>, image: &Image) -> Option<UnderWay> {
        let (image, token) = (image.to_string(), CancellationToken::new());
        match self.lock().entry(image.clone()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => drop(place.insert(token.clone())),
        }
        METRICS.flattening.inc();
        Some(UnderWay { flattens: self.clone(), image, token })
    }

    /// Flattens clones that keep deleted snapshots of the image, until it has at most so many.
    fn start_trimming(self: &Arc<Self>, access: &Access, image: &Image, most: usize) {
        let what = image.to_string();
        if !self.trimming.lock().unwrap_or_else(PoisonError::into_inner).insert(what.clone()) {
            return;
        }
        let (flattens, access, image) = (self.clone(), access.clone(), image.clone());
        self.ops.background(request::carried(async move {
            match flattens.trim(&flattens.cli(&access), &image, most).await {
                Ok(left) => {
                    tracing::info!(%image, snapshots = left, "clones of deleted snapshots were flattened");
                }
                Err(error) => tracing::warn!(%image, "flattening its clones: {}", chain(&error)),
            }
            flattens.trimming.lock().unwrap_or_else(PoisonError::into_inner).remove(&what);
        }));
    }

    async fn trim(self: &Arc<Self>, cli: &Cli<'_>, image: &Image, most: usize) -> Result<usize> {
        let children = cli.children(image).await?.unwrap_or_default();
        let mut snapshots = cli.snapshots(image).await?.unwrap_or_default();
        for child in children.iter().filter(|child| !child.trash) {
            let kept: HashSet<&str> =
                snapshots.iter().filter(|one| !one.is_of_a_user()).map(|one| one.name.as_str()).collect();
            if snapshots.len() <= most || kept.is_empty() {
                break;
            }
            let clone = image_of(child);
            let parent = cli.info(&clone).await?.and_then(|info| info.parent);
            if parent.is_some_and(|parent| kept.contains(parent.snapshot.as_str()))
                && let Some(under_way) = self.enter(&clone)
                && self.flatten(cli, &clone, under_way).await?
            {
                snapshots = cli.snapshots(image).await?.unwrap_or_default();
            }
        }
        Ok(snapshots.len())
    }

    /// False where it was stopped, or not begun.
    async fn flatten(&self, cli: &Cli<'_>, image: &Image, under_way: UnderWay) -> Result<bool> {
        let work = self.flatten_in_turn(cli, image);
        under_way.token.run_until_cancelled(work).await.unwrap_or(Ok(false))
    }

    /// False where somebody uses it, or it has no parent, or is not proved to be a whole clone of ours.
    async fn flatten_in_turn(&self, cli: &Cli<'_>, image: &Image) -> Result<bool> {
        // Never closed.
        let _turn = self.turn.acquire().await.ok();
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image))?;
        let clone = info.zip(meta).filter(|(info, _)| info.parent.is_some());
        let Some(uuid) = clone.and_then(|(info, meta)| marked_for(image, &info, &meta)) else {
            tracing::debug!(%image, "not flattened: it is no finished clone");
            return Ok(false);
        };
        let user = match user(cli, image, uuid).await? {
            None => flatten_while_unpublished(cli, image, uuid, Slot::Trash).await?,
            user => user,
        };
        match &user {
            None => tracing::info!(%image, "flattened: it has no parents any more"),
            Some(user) => tracing::info!(%image, "not flattened: {user}"),
        }
        Ok(user.is_none())
    }

    fn cli<'a>(&'a self, access: &'a Access) -> Cli<'a> {
        Cli { host: self.host.as_ref(), access, deadline: self.deadline }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.flattens.lock().remove(&self.image);
        METRICS.flattening.dec();
    }
}

/// Says who uses the image. A map that only reads holds no watch (krbd since Linux 5.5), and a volume may be on its way
/// to a node: so the records of ControllerPublishVolume count too.
async fn user(cli: &Cli<'_>, image: &Image, uuid: Uuid) -> Result<Option<String>> {
    let meta = cli.meta(image).await?.unwrap_or_default();
    if let Some(user) = published(&meta, uuid) {
        return Ok(Some(user));
    }
    // Whoever writes metadata watches the image for a moment.
    let watchers = settled_watchers(cli, image, <[_]>::is_empty).await?.unwrap_or_default();
    Ok(watchers.first().map(|watcher| format!("{} has it open", watcher.address)))
}

/// Flattens, unless the image is given to a node meanwhile, by whichever replica: then it says so. Its own watch is
/// there all the while, so that those of others are not looked for.
async fn flatten_while_unpublished(
    cli: &Cli<'_>,
    image: &Image,
    uuid: Uuid,
    slot: Slot,
) -> Result<Option<String>> {
    tokio::select! {
        flattened = cli.flatten(image, slot) => flattened.map(|()| None),
        user = publishing(cli, image, uuid) => Ok(Some(user)),
    }
}

/// Ends when the image is published. A look that fails is made again: it proves nothing.
async fn publishing(cli: &Cli<'_>, image: &Image, uuid: Uuid) -> String {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let meta = cli.meta(image).await.ok().flatten();
        if let Some(user) = meta.and_then(|meta| published(&meta, uuid)) {
            return user;
        }
    }
}

fn published(meta: &Meta, uuid: Uuid) -> Option<String> {
    let records = meta::published(meta, uuid);
    records.first().map(|record| format!("it is published on node {:?}", record.node))
}

/// Whose whole clone it is. Without the marker a clone that has lost its parent would be taken for a half-made one.
fn marked_for(image: &Image, info: &Info, meta: &Meta) -> Option<Uuid> {
    let named = meta::created_for(meta).filter(|uuid| image.name.contains(&uuid.to_string()))?;
    let made = meta::created_by(meta, named)?;
    (made.source.is_some() && made.is_of(&info.id)).then_some(named)
}

fn image_of(child: &Child) -> Image {
    let Child { pool, pool_namespace, image, .. } = child.clone();
    Image { pool, namespace: pool_namespace, name: image }
}
