//! The Node service. Each handler parses, locks, does and answers.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::proto::node_server;
use super::proto::node_service_capability::rpc::Type as RpcType;
use super::proto::node_service_capability::{Rpc, Type};
use super::proto::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use super::{note_volume, wire};
use crate::id::VolumeId;
use crate::node::Node;
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
        let (node, stage) = (self.node.clone(), wire::stage(request)?);
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
        let operation = operation("NodePublishVolume", &request.volume_id, wire::fingerprint(&request));
        let (node, publish) = (self.node.clone(), wire::publish(&request)?);
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
        let operation = operation("NodeUnpublishVolume", &volume, wire::fingerprint(&request));
        let node = self.node.clone();
        self.ops.run(operation, async move { node.unpublish(&target).await }).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
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
        Ok(Response::new(wire::usage(&usage)))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let rpcs = [RpcType::StageUnstageVolume, RpcType::GetVolumeStats, RpcType::SingleNodeMultiWriter];
        let capability =
            |rpc: RpcType| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: rpcs.map(capability).into() }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        Ok(Response::new(NodeGetInfoResponse { node_id: self.node.id().to_owned(), ..Default::default() }))
    }
}

/// One lock for each volume, the same for both services of one process.
fn operation(method: &'static str, volume: &str, fingerprint: u64) -> Operation {
    let target = VolumeId::parse(volume).map_or_else(|_| volume.to_owned(), |id| id.uuid.to_string());
    Operation { method, target, fingerprint }
}
