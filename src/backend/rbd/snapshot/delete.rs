//! DeleteSnapshot: the name is given up, the snapshot removed, and with the last one what is left of a deleted volume.

use crate::backend::Image;
use crate::cluster::Secrets;
use crate::error::Result;
use crate::id::{SnapshotId, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::pool::index::{index_object, key_prefix, snapshot_key};
use crate::backend::rbd::snapshot::{Held, Taken, look_at, told};
use crate::backend::rbd::trash::tombstone::is_tombstone;

impl Rbd {
    pub(crate) async fn remove_snapshot(&self, id: &SnapshotId, secrets: &Secrets) -> Result<()> {
        let Some(source) = id.source_volume() else {
            return self.delete_ceph_csi_snapshot(id, secrets).await;
        };
        let access = self.clusters.access(&id.own.cluster, secrets)?;
        let cli = &self.cli(&access);
        let pool = self.pools.name(cli, &id.own.pool).await?;
        let (given_up, held) = tokio::join!(self.give_up_claim(cli, &pool, id), self.snapshot_image(cli, id));
        given_up?;
        let held = held?;
        let left = match &held {
            Some((image, snapshot)) => self.remove_from(cli, image, snapshot).await?,
            None => None,
        };
        match held.as_ref().zip(left) {
            Some(((_, snapshot), Taken { meta, .. })) => {
                let key = snapshot_key(&told(&source, id.own.uuid, snapshot, &meta)?);
                self.forget_keys(cli, &pool, &[key]).await?;
            }
            None => self.remove_all(cli, &pool, id, &source, held).await?,
        }
        self.trash.take_up(&access, &pool);
        Ok(())
    }

    /// What is left, where that was all: the image is a volume still, and nobody has made a tombstone of it meanwhile.
    async fn remove_from(&self, cli: &Cli<'_>, image: &Image, snapshot: &Snapshot) -> Result<Option<Taken>> {
        cli.remove_snapshot(image, &snapshot.name).await?;
        if is_tombstone(&image.name) { Ok(None) } else { look_at(cli, image.clone()).await }
    }

    /// Where nothing is found, an earlier call may have come so far that only a tombstone or a key is left.
    async fn remove_all(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        id: &SnapshotId,
        source: &VolumeId,
        held: Option<Held>,
    ) -> Result<()> {
        let mut held = if held.is_some() { self.snapshot_image(cli, id).await? } else { None };
        while let Some((image, snapshot)) = held {
            self.remove_from(cli, &image, &snapshot).await?;
            held = self.snapshot_image(cli, id).await?;
        }
        self.pools.prove(cli, &id.own.pool, pool).await?;
        self.bury_empty(cli, pool, source.uuid).await?;
        let prefix = key_prefix(id.own.uuid, source.uuid);
        let mut keys = cli.omap_keys(pool, &index_object(&self.instance)).await?;
        keys.retain(|key| key.starts_with(&prefix));
        self.forget_keys(cli, pool, &keys).await
    }
}
