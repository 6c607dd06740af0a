//! What ceph-csi makes otherwise than this driver: a snapshot is an image of its own, with one snapshot on it that has
//! its name; a clone of a volume lives on an image between, whose name ends in `-temp`.

use crate::backend::{self, Image};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::{Pool, SnapshotId, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::{self, Entry, lossy, recorded, trailing_uuid};
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Snapshot, Watcher};
use crate::backend::rbd::meta;
use crate::backend::rbd::snapshot::noted;
use crate::backend::rbd::watchers::settled_watchers;

impl Rbd {
    /// The image that a snapshot of ceph-csi is, and the snapshot on it that restores start from.
    pub(crate) async fn ceph_csi_snapshot_image(
        &self,
        cli: &Cli<'_>,
        id: &SnapshotId,
    ) -> Result<Option<(Image, Snapshot)>> {
        let pool = self.pools.name(cli, &id.own.pool).await?;
        let image = cli.image(&pool, &default_image(id));
        if let Some(found) = with_its_snapshot(cli, image).await? {
            return Ok(Some(found));
        }
        match recorded(cli, &pool, Entry::Snapshot, id.own.uuid).await? {
            Some(name) => with_its_snapshot(cli, cli.image(&pool, &name)).await,
            None => Ok(None),
        }
    }

    /// None where there is none.
    pub(crate) async fn find_ceph_csi_snapshot(
        &self,
        cli: &Cli<'_>,
        id: &SnapshotId,
    ) -> Result<Option<backend::Snapshot>> {
        let Some((image, snapshot)) = self.ceph_csi_snapshot_image(cli, id).await? else { return Ok(None) };
        let (source, meta) = tokio::try_join!(self.ceph_csi_source(cli, id, &image), noted(cli, &image))?;
        let size = snapshot.size.saturating_sub(meta::header(&meta.unwrap_or_default()));
        let created = snapshot.taken().ok_or_else(|| {
            let (name, time) = (&snapshot.name, &snapshot.timestamp);
            Error::broken(format!(
                "snapshot {name} was taken at {time:?}, which is no time that this driver reads"
            ))
        })?;
        let reached_from = Vec::new();
        Ok(Some(backend::Snapshot { id: id.clone(), source, size, created, reached_from }))
    }

    /// The order lets a call go on where a kill ended the one before: the snapshot, the image, what was written of them.
    /// Volumes restored from it live on: they keep the snapshot in the trash of the image, and the image in the trash of
    /// the pool, until they are gone.
    pub(crate) async fn delete_ceph_csi_snapshot(&self, id: &SnapshotId, secrets: &Secrets) -> Result<()> {
        let access = self.clusters.access(&id.own.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &id.own.pool).await?;
        let mut deleted = self.delete_snapshot_image(&cli, &cli.image(&pool, &default_image(id))).await?;
        if !deleted && let Some(name) = recorded(&cli, &pool, Entry::Snapshot, id.own.uuid).await? {
            deleted = self.delete_snapshot_image(&cli, &cli.image(&pool, &name)).await?;
        }
        if !deleted {
            self.pools.prove(&cli, &id.own.pool, &pool).await?;
        }
        self.forget(&cli, &pool, Entry::Snapshot, id.own.uuid).await?;
        self.trash.take_up(&access, &pool);
        Ok(())
    }

    /// The image between a clone that ceph-csi made and the source of the clone. It is the clone's alone, and goes with it.
    pub(crate) async fn delete_temporary(
        &self,
        cli: &Cli<'_>,
        clone: &Image,
        clone_id: &VolumeId,
    ) -> Result<()> {
        let image = cli.image(&clone.pool, &format!("{}-temp", clone.name));
        // One look that opens nothing: volumes that are no clones have none.
        if self.trash.half_made_id(cli, &image).await?.is_none() {
            return Ok(());
        }
        without_others(cli, &image, &clone.name).await?;
        cli.remove_snapshot(&image, &clone.name).await?;
        self.delete_image(cli, &image, clone_id).await.map(drop)
    }

    /// False where there is nothing of that name.
    async fn delete_snapshot_image(&self, cli: &Cli<'_>, image: &Image) -> Result<bool> {
        let info = cli.info(image).await?;
        if let Some(info) = &info {
            let mirrors = info.mirrors(cli.access.mirror_daemons);
            let unwatched = |watchers: &[Watcher]| meta::only_mirrors(&[], watchers, mirrors);
            let watchers = settled_watchers(cli, image, unwatched).await?.unwrap_or_default();
            if !unwatched(&watchers) {
                let named = meta::named(&[], &watchers);
                return Err(Error::Precondition(format!(
                    "image {image} is in use by {named}: unmap it there, or wait until it is flattened"
                )));
            }
            without_others(cli, image, &image.name).await?;
            cli.remove_snapshot(image, &image.name).await?;
        }
        self.trash.discard(cli, image, info.map(|info| info.id)).await
    }

    /// The volume that ceph-csi took the snapshot of: its journal names the image, the image its parent. Of a snapshot
    /// that was flattened and whose journal is lost nobody knows it: it then stands for itself, as CSI wants some id.
    async fn ceph_csi_source(&self, cli: &Cli<'_>, id: &SnapshotId, image: &Image) -> Result<VolumeId> {
        let object = Entry::Snapshot.object(id.own.uuid);
        let (recorded, info) =
            tokio::try_join!(cli.omap_get(&image.pool, &object, journal::SOURCE), cli.info(image))?;
        let parent = info.and_then(|info: Info| info.parent);
        let name = recorded.map(|name| lossy(&name)).or_else(|| Some(parent.as_ref()?.image.clone()));
        let Some(uuid) = name.as_deref().and_then(trailing_uuid) else { return Ok(id.own.clone()) };
        // A snapshot class may name another pool than that of the volumes.
        let pool = match parent.filter(|parent| trailing_uuid(&parent.image) == Some(uuid)) {
            Some(parent) => Pool::Id(self.pools.id(cli, &parent.pool).await?),
            None => id.own.pool.clone(),
        };
        Ok(VolumeId { cluster: id.own.cluster.clone(), pool, uuid })
    }
}

fn default_image(id: &SnapshotId) -> String {
    format!("csi-snap-{}", id.own.uuid)
}

/// ceph-csi was killed before it made the snapshot, or is deleting it, where only the image is there.
async fn with_its_snapshot(cli: &Cli<'_>, image: Image) -> Result<Option<(Image, Snapshot)>> {
    let snapshots = cli.snapshots(&image).await?.unwrap_or_default();
    let own = snapshots.into_iter().find(|one| one.is_of_a_user() && one.name == image.name);
    Ok(own.map(|snapshot| (image, snapshot)))
}

/// Refuses where somebody made snapshots of an image that only ceph-csi should know.
async fn without_others(cli: &Cli<'_>, image: &Image, own: &str) -> Result<()> {
    let snapshots = cli.snapshots(image).await?.unwrap_or_default();
    let others: Vec<&str> = snapshots
        .iter()
        .filter(|snapshot| snapshot.is_of_a_user() && snapshot.name != own)
        .map(|snapshot| snapshot.name.as_str())
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(Error::Precondition(format!(
        "image {image} has snapshots {others:?}, which ceph-csi did not make: remove them first (rbd snap rm)"
    )))
}
