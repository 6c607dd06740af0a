//! How long a chain of clones may become, and how many snapshots an image may have. What is too long or too many is cut
//! by flattening clones that nobody uses: one at once, behind the answers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Error, Result, chain};
use crate::host::{Host, Slot};
use crate::metrics::METRICS;
use crate::ops::Ops;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Child, Info, Snapshot};
use crate::backend::rbd::meta;

/// Linux takes 510; some are left for what is under way at once, and for administrators.
const MOST_SNAPSHOTS: usize = 500;

/// The flattening that nobody waits for.
pub(crate) struct Flattens {
    host: Arc<dyn Host>,
    deadline: Duration,
    ops: Ops,
    /// By what they are about.
    running: Mutex<HashMap<String, CancellationToken>>,
    turn: Semaphore,
}

impl Rbd {
    /// For CreateVolume, which waits for it.
    pub(crate) async fn flatten_unused(&self, cli: &Cli<'_>, image: &Image) -> Result<()> {
        if let Some(watcher) = cli.watchers(image).await?.unwrap_or_default().first() {
            return Err(Error::Busy(format!(
                "image {image} has to be flattened, and {} has it open: ask again",
                watcher.address
            )));
        }
        tracing::info!(%image, parents = self.limits.hard_depth, "flattening a clone that has more parents than this");
        let Err(error) = cli.flatten(image, Slot::Long).await else { return Ok(()) };
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
        Self { host, deadline, ops, running: Mutex::default(), turn: Semaphore::new(1) }
    }

    /// Flattens the image behind the answer, if nobody uses it. A shutdown cuts it, and so does a node that is to have it.
    pub(crate) fn start(self: &Arc<Self>, access: &Access, image: &Image) {
        let (flattens, access, image) = (self.clone(), access.clone(), image.clone());
        self.run(image.to_string(), async move {
            let cli = flattens.cli(&access);
            match flattens.flatten(&cli, &image).await {
                Ok(true) => tracing::info!(%image, "flattened: it has no parents any more"),
                Ok(false) => tracing::debug!(%image, "not flattened: it is in use, or no finished clone"),
                Err(error) => tracing::warn!(%image, "flattening: {}", chain(&error)),
            }
        });
    }

    /// Before somebody uses the image. What it had come to is kept; its watch may last 30 s more.
    pub(crate) fn stop(&self, image: &Image) {
        if let Some(token) = self.lock().get(&image.to_string()) {
            tracing::info!(%image, "its flattening is cut off: it is about to be used");
            token.cancel();
        }
    }

    /// Flattens clones that keep deleted snapshots of the image, until it has at most so many.
    fn start_trimming(self: &Arc<Self>, access: &Access, image: &Image, most: usize) {
        let (flattens, access, image) = (self.clone(), access.clone(), image.clone());
        self.run(format!("snapshots of {image}"), async move {
            let cli = flattens.cli(&access);
            match flattens.trim(&cli, &image, most).await {
                Ok(left) => {
                    tracing::info!(%image, snapshots = left, "clones of deleted snapshots were flattened");
                }
                Err(error) => tracing::warn!(%image, "flattening its clones: {}", chain(&error)),
            }
        });
    }

    fn run(self: &Arc<Self>, what: String, work: impl Future<Output = ()> + Send + 'static) {
        let token = CancellationToken::new();
        match self.lock().entry(what.clone()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => drop(place.insert(token.clone())),
        }
        METRICS.flattening.inc();
        let flattens = self.clone();
        self.ops.background(async move {
            let _ = token.run_until_cancelled(work).await;
            flattens.lock().remove(&what);
            METRICS.flattening.dec();
        });
    }

    async fn trim(&self, cli: &Cli<'_>, image: &Image, most: usize) -> Result<usize> {
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
                && self.flatten(cli, &clone).await?
            {
                snapshots = cli.snapshots(image).await?.unwrap_or_default();
            }
        }
        Ok(snapshots.len())
    }

    /// False where somebody uses it, or it has no parent, or is not proved to be a whole clone of ours.
    async fn flatten(&self, cli: &Cli<'_>, image: &Image) -> Result<bool> {
        // Never closed.
        let _turn = self.turn.acquire().await.ok();
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image))?;
        let Some((info, meta)) = info.zip(meta).filter(|(info, _)| info.parent.is_some()) else {
            return Ok(false);
        };
        if !is_marked(image, &info, &meta) || !cli.watchers(image).await?.unwrap_or_default().is_empty() {
            return Ok(false);
        }
        cli.flatten(image, Slot::Trash).await.map(|()| true)
    }

    fn cli<'a>(&'a self, access: &'a Access) -> Cli<'a> {
        Cli { host: self.host.as_ref(), access, deadline: self.deadline }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the marker a clone that has lost its parent would be taken for a half-made one.
fn is_marked(image: &Image, info: &Info, meta: &meta::Meta) -> bool {
    let named = meta::created_for(meta).filter(|uuid| image.name.contains(&uuid.to_string()));
    let made = named.and_then(|uuid| meta::created_by(meta, uuid));
    made.is_some_and(|made| made.source.is_some() && made.is_of(&info.id))
}

fn image_of(child: &Child) -> Image {
    let Child { pool, pool_namespace, image, .. } = child.clone();
    Image { pool, namespace: pool_namespace, name: image }
}
