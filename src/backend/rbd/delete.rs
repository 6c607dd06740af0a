//! DeleteVolume: what has to be proved before an image goes, and before "not there" is believed.

use crate::backend::Image;
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use super::cli::Cli;
use super::find::journal_object;
use super::json::{Info, Snapshot, Watcher};
use super::meta::{self, Meta};
use super::{Rbd, settled_watchers};

impl Rbd {
    pub(super) async fn delete_volume(&self, id: &VolumeId, secrets: &Secrets) -> Result<()> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &id.pool).await?;
        let default = cli.image(&pool, &id.default_image());
        let (deleted, published) =
            tokio::join!(self.delete_image(&cli, &default, id), self.published_keys(&cli, &pool, id));
        let deleted = deleted?;
        // Ours of the default name has no journal; ceph-csi's has (its uuids are random), and so has a prefixed one.
        if !deleted || id.uuid.get_version_num() != 5 {
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
        if !deleted && let Some(name) = self.recorded_name(cli, pool, id.uuid).await? {
            deleted = self.delete_image(cli, &cli.image(pool, &name), id).await?;
        }
        if !deleted {
            self.pools.prove(cli, &id.pool, pool).await?;
        }
        let object = journal_object(id.uuid);
        if let Some(name) = cli.omap_get(pool, &object, "csi.volname").await? {
            let directory = format!("csi.volumes.{}", self.instance);
            let key = format!("csi.volume.{}", String::from_utf8_lossy(&name));
            cli.omap_remove(pool, &directory, &key).await?;
        }
        self.forget_name(cli, pool, id.uuid).await?;
        cli.remove_object(pool, &object).await
    }

    /// False where there is nothing of that name. `rbd trash mv` succeeds on an image that is mapped and in use, so
    /// all that speaks against it is asked first.
    async fn delete_image(&self, cli: &Cli<'_>, image: &Image, id: &VolumeId) -> Result<bool> {
        // Not side by side: `rbd image-meta list` watches the image itself while it runs.
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image))?;
        let image_id = info.as_ref().map(|info| info.id.clone());
        if let Some(info) = info {
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
            self.without_snapshots(cli, image, &info).await?;
        }
        self.trash.discard(cli, image, image_id).await
    }

    async fn without_snapshots(&self, cli: &Cli<'_>, image: &Image, info: &Info) -> Result<()> {
        if info.snapshot_count == 0 {
            return Ok(());
        }
        let snapshots =
            cli.snapshots(image).await?.unwrap_or_default().into_iter().filter(Snapshot::is_of_a_user);
        let names: Vec<String> = snapshots.map(|snapshot| snapshot.name).collect();
        if names.is_empty() {
            return Ok(());
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
