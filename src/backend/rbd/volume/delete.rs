//! DeleteVolume: what has to be proved before an image goes, and before "not there" is believed.

use crate::backend::Image;
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Watcher};
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::trash::tombstone::{TEMPORARY, is_csi, kept};
use crate::backend::rbd::volume::clone::verify::Family;
use crate::backend::rbd::watchers::settled_watchers;

impl Rbd {
    pub(crate) async fn delete_volume(&self, id: &VolumeId, secrets: &Secrets) -> Result<()> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &id.pool).await?;
        let default = cli.image(&pool, &id.default_image());
        let object = Entry::Volume.object(id.uuid);
        let (deleted, published, journalled) = tokio::join!(
            self.delete_image(&cli, &default, id),
            self.published_keys(&cli, &pool, id),
            cli.object_time(&pool, &object)
        );
        let deleted = deleted?;
        // Ours of the default name has no journal, unless ceph-csi was to have it; ceph-csi's has (its uuids are random), and
        // so has a prefixed one.
        if !deleted || journalled?.is_some() || id.uuid.get_version_num() != 5 {
            self.delete_journalled(&cli, id, &pool, deleted).await?;
        }
        // None, unless ControllerUnpublishVolume was killed just before its end and never repeated.
        self.forget_keys(&cli, &pool, &published?).await?;
        self.trash.take_up(&access, &pool);
        Ok(())
    }

    async fn delete_journalled(
        &self,
        cli: &Cli<'_>,
        id: &VolumeId,
        pool: &str,
        mut deleted: bool,
    ) -> Result<()> {
        let mut image = cli.image(pool, &id.default_image());
        if !deleted && let Some(name) = self.recorded_name(cli, pool, id.uuid).await? {
            image = cli.image(pool, &name);
            deleted = self.delete_image(cli, &image, id).await?;
        }
        self.delete_temporary(cli, &image, id).await?;
        if !deleted {
            self.pools.prove(cli, &id.pool, pool).await?;
            // An earlier call may have ended before it saw that a twin took a snapshot meanwhile.
            self.trash.surface_all(cli, pool, id.uuid).await?;
        }
        self.forget_noted_name(cli, pool, id.uuid).await?;
        self.forget(cli, pool, Entry::Volume, id.uuid).await
    }

    /// False where there is nothing of that name. `rbd trash mv` succeeds on an image that is mapped and in use, so
    /// all that speaks against it is asked first.
    pub(crate) async fn delete_image(&self, cli: &Cli<'_>, image: &Image, id: &VolumeId) -> Result<bool> {
        // Not side by side: `rbd image-meta list` watches the image itself while it runs.
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image))?;
        let image_id = info.as_ref().map(|info| info.id.clone());
        self.flattens.stop(image);
        if let Some(info) = &info {
            let (meta, volume) = (meta.unwrap_or_default(), id.to_string());
            let clients = meta::clients(&meta, &volume);
            let mirrors = info.mirrors(cli.access.mirror_daemons);
            let unwatched = |watchers: &[Watcher]| meta::only_mirrors(&clients, watchers, mirrors);
            let watchers = settled_watchers(cli, image, unwatched).await?.unwrap_or_default();
            if !unwatched(&watchers) {
                let named = meta::named(&clients, &watchers);
                return Err(Error::Precondition(format!(
                    "image {image} is in use by {named}: unmap it there"
                )));
            }
            unpublished(id, &meta)?;
            if self.has_csi_snapshots(cli, image, info).await? {
                self.entomb(cli, image, id.uuid, &info.id).await?;
                return Ok(true);
            }
            // A clone that its parent knows needs its snapshot's name no more, and nothing tells of that one afterwards. What
            // its parent does not know would lose it.
            let known = self.is_known_to_parent(cli, info).await?;
            if known {
                self.without_temporary_snapshot(cli, info, id.uuid).await?;
            }
            let deleted = self.trash.dispose(cli, image, id.uuid, image_id).await?;
            if !known {
                self.without_temporary_snapshot(cli, info, id.uuid).await?;
            }
            return Ok(deleted);
        }
        self.trash.dispose(cli, image, id.uuid, image_id).await
    }

    async fn is_known_to_parent(&self, cli: &Cli<'_>, info: &Info) -> Result<bool> {
        let Some(parent) = info.parent.as_ref().filter(|parent| parent.snapshot.starts_with(TEMPORARY))
        else {
            return Ok(false);
        };
        Ok(Family::of(cli, parent).await?.is_some_and(|family| family.has(&info.id)))
    }

    /// Those of an administrator, a mirror or a group are not ours to hide under another name.
    async fn has_csi_snapshots(&self, cli: &Cli<'_>, image: &Image, info: &Info) -> Result<bool> {
        if info.snapshot_count == 0 {
            return Ok(false);
        }
        let snapshots = cli.snapshots(image).await?.unwrap_or_default();
        let snapshots = kept(cli, image, snapshots, self.deadline).await?;
        let foreign = snapshots.iter().filter(|snapshot| !is_csi(snapshot));
        let names: Vec<&str> = foreign.map(|snapshot| snapshot.name.as_str()).collect();
        if names.is_empty() {
            return Ok(!snapshots.is_empty());
        }
        Err(Error::Precondition(format!(
            "image {image} has snapshots {names:?}: remove them first (rbd snap rm)"
        )))
    }
}

/// Read-only maps hold no watch (krbd since Linux 5.5), so the records of ControllerPublishVolume count too.
fn unpublished(id: &VolumeId, meta: &Meta) -> Result<()> {
    match meta::published(meta, id.uuid).first() {
        Some(record) => {
            let node = &record.node;
            Err(Error::Precondition(format!("volume {id} is published on node {node:?}: unpublish it there")))
        }
        None => Ok(()),
    }
}
