//! ControllerPublishVolume and ControllerUnpublishVolume: which node was given a volume, kept on the image itself.

use crate::backend::Publish;
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::meta::{self, Published};
use crate::backend::rbd::volume::clone::marker::Job;
use crate::backend::rbd::volume::not_found;

impl Rbd {
    /// PVs of older StorageClasses name no secret: without a credential in the cluster configuration nothing is noted then, and NodeStageVolume is the guard.
    pub(crate) async fn publish_volume(&self, request: &Publish) -> Result<()> {
        let id = &request.id;
        let Some(access) = self.clusters.access_if_any(&id.cluster, &request.secrets)? else { return Ok(()) };
        let cli = self.cli(&access);
        let (image, meta) =
            self.find_meta(&cli, id).await?.ok_or_else(|| not_found(id, &id.default_image()))?;
        self.flattens.stop(&image);
        if id.uuid.get_version_num() == 5 && meta::created_by(&meta, id.uuid).is_none() {
            let (access, image) = (access.clone(), image.clone());
            self.markers.add(Job { access, image, uuid: id.uuid, labels: None });
        }
        let wanted = published(request);
        let others = meta::published(&meta, id.uuid);
        let clash = |other: &&Published| {
            other.node != request.node
                && !(other.multi_node && wanted.multi_node)
                && !(other.read_only && wanted.read_only)
        };
        if let Some(other) = others.iter().find(clash) {
            return Err(Error::Precondition(format!(
                "volume {id} is published on node {:?}: it has to leave there first",
                other.node
            )));
        }
        let there = others.iter().find(|other| other.node == request.node);
        if let Some(there) = there.filter(|there| there.read_only != wanted.read_only) {
            let how = if there.read_only { "read-only" } else { "read-write" };
            return Err(Error::Conflict(format!(
                "volume {id} is published on node {:?} already, {how}: unpublish it there first",
                there.node
            )));
        }
        if there != Some(&wanted) {
            cli.set_meta(&image, &wanted.key(), &wanted.value(id.uuid)).await?;
        }
        // Also on a repeated call: the one before may have been killed in between, or came before the credential.
        self.note_published(&cli, &image.pool, id, &request.node).await
    }

    pub(crate) async fn unpublish_volume(
        &self,
        id: &VolumeId,
        node: Option<&str>,
        secrets: &Secrets,
    ) -> Result<()> {
        let Some(access) = self.clusters.access_if_any(&id.cluster, secrets)? else { return Ok(()) };
        let cli = self.cli(&access);
        let Some((image, meta)) = self.find_meta(&cli, id).await? else {
            let pool = self.pools.name(&cli, &id.pool).await?;
            self.forget_published(&cli, &pool, id, node).await?;
            return self.pools.prove(&cli, &id.pool, &pool).await;
        };
        self.prove_released(&cli, &image, id, &meta, node).await?;
        let volume = id.to_string();
        let of_node = |other: &str| node.is_none_or(|node| node == other);
        let clients = meta::clients(&meta, &volume).into_iter().filter(|(node, _)| of_node(node));
        let records = meta::published(&meta, id.uuid).into_iter().filter(|record| of_node(&record.node));
        let keys = clients
            .map(|(node, _)| meta::client_key(&volume, node))
            .chain(records.map(|record| record.key()));
        for key in keys.collect::<Vec<String>>() {
            cli.remove_meta(&image, &key).await?;
        }
        self.forget_published(&cli, &image.pool, id, node).await
    }
}

fn published(request: &Publish) -> Published {
    let (read_only, multi_node) = (request.mode.read_only() || request.read_only, request.mode.multi_node());
    Published { node: request.node.clone(), read_only, multi_node }
}
