//! What has to be known of a snapshot before it is cloned. A snapshot never changes, so many requests share one look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use crate::backend::{Image, Source};
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Parent};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::volume::create::NewVolume;

/// The image may be flattened meanwhile, or become a tombstone: then the clone fails, and it is looked for anew.
const FRESH: Duration = Duration::from_secs(30);
/// More parents than Linux takes: whoever has so many has enough.
const MOST_PARENTS: usize = 16;

/// What is cloned.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) image: Image,
    pub(crate) snapshot: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Parents of the image.
    pub(crate) depth: usize,
    /// Of the image.
    pub(crate) meta: Meta,
}

impl Facts {
    /// Bytes that no pod sees.
    pub(crate) fn header(&self) -> u64 {
        meta::header(&self.meta)
    }
}

#[derive(Default)]
pub(crate) struct Sources {
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    since: Instant,
    facts: Arc<OnceCell<Facts>>,
}

impl Sources {
    /// Those that are known; else all who ask wait for the one who looks. A look that fails is not kept.
    async fn get(&self, key: String, look: impl Future<Output = Result<Facts>>) -> Result<Facts> {
        let facts = {
            let mut known = self.lock();
            known.retain(|_, known| known.since.elapsed() < FRESH);
            let new = || Known { since: Instant::now(), facts: Arc::default() };
            known.entry(key).or_insert_with(new).facts.clone()
        };
        facts.get_or_try_init(|| look).await.cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rbd {
    /// `NotFound` where there is no such snapshot.
    pub(crate) async fn facts(&self, cli: &Cli<'_>, id: &SnapshotId) -> Result<Facts> {
        self.sources.get(key(cli, id), self.look_for(cli, id)).await
    }

    pub(crate) fn forget_facts(&self, cli: &Cli<'_>, id: &SnapshotId) {
        self.sources.lock().remove(&key(cli, id));
    }

    async fn look_for(&self, cli: &Cli<'_>, id: &SnapshotId) -> Result<Facts> {
        let absent = || Error::NotFound(format!("snapshot {id} does not exist"));
        let (image, snapshot) = self.snapshot_image(cli, id).await?.ok_or_else(absent)?;
        let (info, meta) = tokio::try_join!(cli.info(&image), cli.meta(&image))?;
        let (info, meta) = info.zip(meta).ok_or_else(absent)?;
        let depth = depth(cli, &info).await?;
        if depth > usize::from(self.limits.soft_depth) {
            // An earlier run may have been cut off.
            self.flattens.start(cli.access, &image);
        }
        Ok(Facts { image, snapshot: snapshot.name, size: snapshot.size, depth, meta })
    }

    /// Who we are where the source is: a volume that ceph-csi migrated names the same cluster by another id.
    pub(crate) fn source_access(&self, new: &NewVolume<'_>, source: &Source) -> Result<Access> {
        let VolumeId { cluster, .. } = match source {
            Source::Snapshot(id) => &id.own,
            Source::Volume(id) => id,
        };
        if *cluster == new.plan.cluster {
            return Ok(new.cli.access.clone());
        }
        let access = self.clusters.access(cluster, &new.request.secrets)?;
        if access.monitors == new.cli.access.monitors {
            return Ok(access);
        }
        Err(Error::Invalid(format!(
            "the source of volume {:?} is in cluster {cluster:?}, and the volume is to be in {:?}: a clone is made in \
             the cluster of its source",
            new.request.name, new.plan.cluster
        )))
    }
}

fn key(cli: &Cli<'_>, id: &SnapshotId) -> String {
    format!("{}/{id}", cli.access.namespace)
}

/// How many parents an image has, those in the trash too: walked by id, as names change.
pub(crate) async fn depth(cli: &Cli<'_>, info: &Info) -> Result<usize> {
    let (mut depth, mut parent) = (0, info.parent.clone());
    while let Some(next) = parent
        && depth < MOST_PARENTS
    {
        depth += 1;
        let access = access_to(cli, &next);
        let cli = Cli { host: cli.host, access: &access, deadline: cli.deadline };
        parent = cli.info_of_trashed(&next.pool, &next.id).await?.and_then(|info| info.parent);
    }
    Ok(depth)
}

/// The same user in the namespace of a parent.
pub(crate) fn access_to(cli: &Cli<'_>, parent: &Parent) -> Access {
    let mut access = cli.access.clone();
    access.namespace.clone_from(&parent.pool_namespace);
    access
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(depth: usize) -> Facts {
        let image = Image { pool: "p".to_owned(), namespace: String::new(), name: "i".to_owned() };
        Facts { image, snapshot: "s".to_owned(), size: 1, depth, meta: Meta::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn many_requests_share_one_look_and_a_failed_one_is_not_kept() {
        let sources = Sources::default();
        let fails = async { Err(Error::NotFound("no".to_owned())) };
        assert!(sources.get("a".to_owned(), fails).await.is_err());
        let slow = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(facts(1))
        };
        let second = async { panic!("a second look") };
        let (first, second) =
            tokio::join!(sources.get("a".to_owned(), slow), sources.get("a".to_owned(), second));
        assert_eq!((first.expect("facts").depth, second.expect("facts").depth), (1, 1));
    }
}
