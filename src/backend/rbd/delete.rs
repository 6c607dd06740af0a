//! DeleteVolume: what has to be proved before an image goes, and before "not there" is believed.

use crate::backend::Image;
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use super::cli::Cli;
use super::json::{Info, Watcher};
use super::meta::{self, Meta};
use super::{Rbd, journal_object};

impl Rbd {
    pub(super) async fn delete_volume(&self, id: &VolumeId, secrets: &Secrets) -> Result<()> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &id.pool).await?;
        let default = cli.image(&pool, &id.default_image());
        let mut deleted = self.delete_image(&cli, &default, id).await?;
        if !deleted && let Some(name) = self.recorded_name(&cli, &pool, id.uuid).await? {
            deleted = self.delete_image(&cli, &cli.image(&pool, &name), id).await?;
        }
        if !deleted {
            self.pools.prove(&cli, &id.pool, &pool).await?;
        }
        self.forget_journal(&cli, &pool, id, deleted).await?;
        self.trash.resume(&access, &pool);
        Ok(())
    }

    /// False where there is nothing of that name. `rbd trash mv` succeeds on an image that is mapped and in use, so
    /// all that speaks against it is asked first.
    async fn delete_image(&self, cli: &Cli<'_>, image: &Image, id: &VolumeId) -> Result<bool> {
        let (info, watchers, meta) = tokio::try_join!(cli.info(image), cli.watchers(image), cli.meta(image))?;
        let image_id = info.as_ref().map(|info| info.id.clone());
        if let Some(info) = info {
            let watchers = watchers.unwrap_or_default();
            unused(image, id, &watchers, cli.access.mirror_daemons, &meta.unwrap_or_default())?;
            self.without_snapshots(cli, image, &info).await?;
        }
        self.trash.discard(cli, image, image_id).await
    }

    async fn without_snapshots(&self, cli: &Cli<'_>, image: &Image, info: &Info) -> Result<()> {
        if info.snapshot_count == 0 {
            return Ok(());
        }
        let names: Vec<String> =
            cli.snapshots(image).await?.into_iter().map(|snapshot| snapshot.name).collect();
        Err(Error::Precondition(format!(
            "image {image} has snapshots {names:?}: remove them first (rbd snap rm)"
        )))
    }

    /// The keys that ceph-csi, or a volumeNamePrefix, left about the volume. Ours of version 5 and default name have none.
    async fn forget_journal(&self, cli: &Cli<'_>, pool: &str, id: &VolumeId, deleted: bool) -> Result<()> {
        let default_of_ours = id.uuid.get_version_num() == 5 && deleted;
        let object = journal_object(id.uuid);
        if default_of_ours && self.recorded_name(cli, pool, id.uuid).await?.is_none() {
            return Ok(());
        }
        if let Some(name) = cli.omap_get(pool, &object, "csi.volname").await? {
            let (directory, name) =
                (format!("csi.volumes.{}", self.instance), String::from_utf8_lossy(&name).into_owned());
            cli.omap_remove(pool, &directory, &format!("csi.volume.{name}")).await?;
        }
        cli.remove_object(pool, &object).await
    }
}

/// Read-only maps hold no watch (krbd since Linux 5.5), so the records of ControllerPublishVolume count too.
fn unused(
    image: &Image,
    id: &VolumeId,
    watchers: &[Watcher],
    mirror_daemons: usize,
    meta: &Meta,
) -> Result<()> {
    if watchers.len() > mirror_daemons {
        let clients = meta::clients(meta, &id.to_string());
        let named = |watcher: &Watcher| {
            let node = clients.iter().find(|(_, address)| *address == watcher.address);
            node.map_or_else(
                || watcher.address.clone(),
                |(node, address)| format!("{address} (node {node:?})"),
            )
        };
        let named: Vec<String> = watchers.iter().map(named).collect();
        return Err(Error::Precondition(format!(
            "image {image} is in use by {}: unmap it there",
            named.join(", ")
        )));
    }
    if let Some(record) = meta::published(meta, id.uuid).first() {
        return Err(Error::Precondition(format!(
            "volume {id} is published on node {:?}: unpublish it there",
            record.node
        )));
    }
    Ok(())
}
