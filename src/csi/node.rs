//! The Node service. Each handler parses, locks, does and answers.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::note_volume;
use super::proto::node_server;
use super::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest,
    NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use super::wire::{self, health, offers};
use crate::backend::{Ailment, Offer};
use crate::node::{Node, lock};
use crate::ops::{Operation, Ops};

pub(crate) struct NodeService {
    pub(crate) node: Arc<Node>,
    pub(crate) ops: Ops,
}

#[tonic::async_trait]
impl node_server::Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let operation = operation("NodeStageVolume", &request.volume_id, wire::fingerprint(&request));
        let (node, stage) = (self.node.clone(), wire::node::stage(request)?);
        self.ops.run(operation, async move { node.stage(&stage).await }).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let volume = wire::handle(&request.volume_id)?;
        let staging = wire::path("staging_target_path", &request.staging_target_path)?;
        let operation = operation("NodeUnstageVolume", &volume, wire::fingerprint(&request));
        let node = self.node.clone();
        self.ops.run(operation, async move { node.unstage(&volume, &staging).await }).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let operation = beside_copies("NodePublishVolume", &request.volume_id, wire::fingerprint(&request));
        let (node, publish) = (self.node.clone(), wire::node::publish(request)?);
        self.ops.run(operation, async move { node.publish(&publish).await }).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let volume = wire::handle(&request.volume_id)?;
        let target = wire::path("target_path", &request.target_path)?;
        let operation = beside_copies("NodeUnpublishVolume", &volume, wire::fingerprint(&request));
        let node = self.node.clone();
        self.ops.run(operation, async move { node.unpublish(&target).await }).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        offers::need(self.node.offers(Offer::Expansion), "NodeExpandVolume")?;
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let operation = operation("NodeExpandVolume", &request.volume_id, wire::fingerprint(&request));
        let (node, expand) = (self.node.clone(), wire::node::expand(request)?);
        let size = self.ops.run(operation, async move { node.expand(&expand).await }).await?;
        Ok(Response::new(wire::node::expanded(size)))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let volume = wire::handle(&request.volume_id)?;
        let path = wire::volume_path(&request.volume_path)?;
        let usage = self.node.usage(&volume, &path).await?;
        Ok(Response::new(wire::node::usage(&usage, self.known_ailments(&volume).as_deref())))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let volume = wire::handle(&request.volume_id)?;
        let ailments = self.node.health(&volume)?;
        let volume_health = Some(health::of_volume(volume, ailments));
        Ok(Response::new(NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Ok(Response::new(health::of_storage(self.node.storage_health())))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(offers::node(self.node.offers(Offer::Expansion))))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node = &self.node;
        Ok(Response::new(wire::node::info(node.id(), node.max_volumes(), node.place().await?)))
    }
}

impl NodeService {
    /// None where the health cannot be told: how full a volume is stays worth an answer.
    fn known_ailments(&self, volume: &str) -> Option<Vec<Ailment>> {
        let health = self.node.health(volume);
        health.inspect_err(|error| tracing::debug!("the health of the volume is not known: {error}")).ok()
    }
}

/// A staged volume shown to a pod, or no more: one at a time, and side by side with those that only read the volume, of
/// which a copy may take its time.
fn beside_copies(method: &'static str, volume: &str, fingerprint: u64) -> Operation {
    let Operation { target, .. } = operation(method, volume, fingerprint);
    let sources = vec![target.clone()];
    Operation { sources, ..Operation::of(method, format!("{target} at its pods"), fingerprint) }
}

pub(super) fn operation(method: &'static str, volume: &str, fingerprint: u64) -> Operation {
    Operation::of(method, lock(volume), fingerprint)
}
