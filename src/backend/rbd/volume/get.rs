//! ControllerGetVolume and ControllerGetVolumeHealth: one image, and what can be told of it when it cannot be opened.

use std::time::Duration;

use crate::backend::{Ailment, Image, VolumeState};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::meta;
use crate::backend::rbd::pool::health;
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::pool::records::Records;
use crate::backend::rbd::volume::list::{context, told};
use crate::backend::rbd::volume::not_found;

/// How long something is waited for that may never answer.
const SILENCE: Duration = Duration::from_secs(5);

impl Rbd {
    pub(crate) async fn volume_state(&self, id: &VolumeId, secrets: &Secrets) -> Result<VolumeState> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        let pool = self.pools.name(&cli, &id.pool).await?;
        let health = self.pool_health(&cli, &pool).await;
        let look = self.look_at(&cli, id, &pool, &health);
        if !health::may_hang(&health) {
            return look.await;
        }
        if let Ok(looked) = tokio::time::timeout(SILENCE, look).await {
            return looked;
        }
        match tokio::time::timeout(SILENCE, self.unopened(&cli, id, &pool, health.clone())).await {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(error @ Error::NotFound(_))) => Err(error),
            // Nothing answers; why, is known already.
            Ok(Err(_)) | Err(_) => Ok(state(id, &cli.image(&pool, &id.default_image()), Vec::new(), health)),
        }
    }

    async fn look_at(
        &self,
        cli: &Cli<'_>,
        id: &VolumeId,
        pool: &str,
        health: &[Ailment],
    ) -> Result<VolumeState> {
        let Some((image, info)) = self.find_info(cli, id).await? else {
            let image = self.name_of(cli, id, pool).await?;
            return Ok(state(id, &image, Vec::new(), vec![health::unreadable(&image)]));
        };
        let wanted = |key: &str| meta::published_node(key).is_some() || meta::says_size(key);
        let meta = cli.some_meta(&image.pool, &info.id, wanted).await?;
        let nodes = meta::published(&meta, id.uuid).into_iter().map(|record| record.node).collect();
        let mut state = state(id, &image, nodes, health.to_vec());
        state.volume.size = info.size.saturating_sub(meta::header(&meta));
        if let Some(data_pool) = info.data_pool {
            state.health.extend(self.pool_health(cli, &data_pool).await);
            state.volume.context.insert("dataPool".to_owned(), data_pool);
        }
        Ok(state)
    }

    /// By single objects alone: `rbd` opens no image in a namespace of a pool that is full, not even to look (seen).
    async fn unopened(
        &self,
        cli: &Cli<'_>,
        id: &VolumeId,
        pool: &str,
        health: Vec<Ailment>,
    ) -> Result<VolumeState> {
        let image = self.name_of(cli, id, pool).await?;
        let records = Records::read(&cli.omap_keys(pool, &index_object(&self.instance)).await?);
        Ok(state(id, &image, records.nodes(id.uuid), health))
    }

    /// The image whose name is taken. `NotFound` where it is proved that there is none.
    async fn name_of(&self, cli: &Cli<'_>, id: &VolumeId, pool: &str) -> Result<Image> {
        let recorded = self.recorded_name(cli, pool, id.uuid).await?;
        for name in [Some(id.default_image()), recorded].into_iter().flatten() {
            let image = cli.image(pool, &name);
            if self.trash.half_made_id(cli, &image).await?.is_some() {
                return Ok(image);
            }
        }
        self.pools.prove(cli, &id.pool, pool).await?;
        Err(not_found(id, &id.default_image()))
    }
}

fn state(id: &VolumeId, image: &Image, nodes: Vec<String>, health: Vec<Ailment>) -> VolumeState {
    VolumeState { volume: told(id.clone(), 0, context(&id.cluster, image)), nodes, health }
}
