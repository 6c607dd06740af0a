//! GetSnapshot and ListSnapshots: one, or those of one volume, from the images themselves; all, from the indexes.

use crate::backend::{Listing, Page, Places, Snapshot};
use crate::cluster::{Access, Listed, Secrets};
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::pool::index::{index_object, indexed, page_of};
use crate::backend::rbd::snapshot::{Taken, look_at, noted, told};
use crate::backend::rbd::trash::tombstone::{csi_uuid, tombstones};

impl Rbd {
    pub(crate) async fn get_snapshot(&self, id: &SnapshotId, secrets: &Secrets) -> Result<Snapshot> {
        let access = self.clusters.access(&id.own.cluster, secrets)?;
        let cli = self.cli(&access);
        let found = match id.source_volume() {
            None => self.find_ceph_csi_snapshot(&cli, id).await?,
            Some(source) => match self.snapshot_image(&cli, id).await? {
                Some((image, snapshot)) => {
                    let meta = noted(&cli, &image).await?.unwrap_or_default();
                    let reached_from = self.reached_from(&meta, source.uuid, &Places::default())?;
                    Some(Snapshot { reached_from, ..told(&source, id.own.uuid, &snapshot, &meta)? })
                }
                None => None,
            },
        };
        if let Some(snapshot) = found {
            return Ok(snapshot);
        }
        let pool = self.pools.name(&cli, &id.own.pool).await?;
        self.pools.prove(&cli, &id.own.pool, &pool).await?;
        Err(Error::NotFound(format!(
            "snapshot {id} does not exist: no image of its own, nor its volume, nor what is left of that, has it"
        )))
    }

    /// Those on the volume, and on what is left of earlier ones of its name.
    pub(crate) async fn snapshots_of_volume(
        &self,
        source: &VolumeId,
        page: &Page,
        secrets: &Secrets,
    ) -> Result<Listing<Snapshot>> {
        let access = self.clusters.access(&source.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &source.pool).await?;
        let (living, left) =
            tokio::try_join!(self.source(&cli, &pool, source), tombstones(&cli, &pool, source.uuid))?;
        let mut found: Vec<Taken> = living.into_iter().collect();
        for tombstone in left {
            found.extend(look_at(&cli, tombstone).await?);
        }
        let all = found
            .iter()
            .flat_map(|Taken { snapshots, meta, .. }| snapshots.iter().map(move |one| (one, meta)));
        let ours = all.filter(|(snapshot, _)| snapshot.is_of_a_user());
        let ours = ours.filter_map(|(snapshot, meta)| Some((csi_uuid(&snapshot.name)?, snapshot, meta)));
        let told: Result<Vec<Snapshot>> =
            ours.map(|(uuid, snapshot, meta)| told(source, uuid, snapshot, meta)).collect();
        Ok(page_of(told?, page))
    }

    /// Those of all clusters and pools that the configuration names a credential for.
    pub(crate) async fn all_snapshots(&self, page: &Page, secrets: &Secrets) -> Result<Listing<Snapshot>> {
        let mut all = Vec::new();
        for Listed { access, pools } in self.clusters.listed_with(secrets)? {
            all.extend(self.snapshots_of_cluster(&access, pools).await?);
        }
        Ok(page_of(all, page))
    }

    /// No pools named: all of them, but for those that the user may not read.
    async fn snapshots_of_cluster(&self, access: &Access, named: Vec<String>) -> Result<Vec<Snapshot>> {
        let cli = self.cli(access);
        let any = named.is_empty();
        let pools = if any { self.pools.names(&cli).await? } else { named };
        let index = index_object(&self.instance);
        let looks = pools.iter().map(|pool| async {
            let keys = match cli.omap_keys(pool, &index).await {
                Err(Error::Denied(_)) if any => return Ok(Vec::new()),
                keys => keys?,
            };
            Ok(indexed(&keys, &access.cluster, self.pools.id(&cli, pool).await?))
        });
        let found: Vec<Vec<Snapshot>> = futures_util::future::try_join_all(looks).await?;
        Ok(found.into_iter().flatten().collect())
    }
}
