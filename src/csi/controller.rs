//! The Controller service. Each handler parses, locks, does and answers.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::proto::controller_server;
use super::proto::controller_service_capability::rpc::Type as RpcType;
use super::proto::controller_service_capability::{Rpc, Type};
use super::proto::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    validate_volume_capabilities_response::Confirmed,
};
use super::{note_volume, wire};
use crate::backend::{Backend, Publish};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::ops::{Operation, Ops};

pub(crate) struct Controller {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ops: Ops,
    /// The only node there is, when both services run in one process.
    pub(crate) only_node: Option<String>,
}

#[tonic::async_trait]
impl controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.name);
        let fingerprint = wire::fingerprint(&request);
        let create = wire::create_volume(request)?;
        let target = self.backend.volume_uuid(&create)?.to_string();
        let backend = self.backend.clone();
        let work = async move { backend.create(&create).await };
        let volume = self.ops.run(Operation { method: "CreateVolume", target, fingerprint }, work).await?;
        note_volume(&volume.id.to_string());
        Ok(Response::new(wire::created(volume)))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let Some(id) = wire::known_id(&request.volume_id)? else {
            // It cannot be told from a static volume, whose image is not ours to delete.
            tracing::info!(volume = request.volume_id, "no id of this driver: there is nothing to delete");
            return Ok(Response::new(DeleteVolumeResponse {}));
        };
        let fingerprint = wire::fingerprint(&request);
        let operation = Operation { method: "DeleteVolume", target: id.uuid.to_string(), fingerprint };
        let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
        self.ops.run(operation, async move { backend.delete(&id, &secrets).await }).await?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let fingerprint = wire::fingerprint(&request);
        let publish = wire::controller_publish(request)?;
        if let Some(publish) = publish.filter(|publish| !publish.secrets.is_empty()) {
            self.known_node(&publish)?;
            let target = publish.id.uuid.to_string();
            let backend = self.backend.clone();
            let work = async move { backend.publish(&publish).await };
            self.ops.run(Operation { method: "ControllerPublishVolume", target, fingerprint }, work).await?;
        }
        Ok(Response::new(ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let node = Some(request.node_id.clone()).filter(|node| !node.is_empty());
        let id = wire::known_id(&request.volume_id)?;
        // PVs of older StorageClasses name no secret: then nothing was noted, and NodeStageVolume is the guard.
        if let Some(id) = id.filter(|_| !request.secrets.is_empty()) {
            let fingerprint = wire::fingerprint(&request);
            let target = id.uuid.to_string();
            let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
            let work = async move { backend.unpublish(&id, node.as_deref(), &secrets).await };
            self.ops
                .run(Operation { method: "ControllerUnpublishVolume", target, fingerprint }, work)
                .await?;
        }
        Ok(Response::new(ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let capabilities = wire::capabilities(&request.volume_capabilities)?;
        let id = wire::existing_id(&request.volume_id)?;
        // csc and older COs send no secrets here: then the id can be judged by its form alone.
        if !request.secrets.is_empty() {
            self.backend.find(&id, &Secrets::new(request.secrets)).await?;
        }
        let response = match capabilities.iter().try_for_each(wire::supported) {
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    ..Default::default()
                }),
                message: String::new(),
            },
            Err(error) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() },
        };
        Ok(Response::new(response))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let rpcs =
            [RpcType::CreateDeleteVolume, RpcType::PublishUnpublishVolume, RpcType::SingleNodeMultiWriter];
        let capability = |rpc: RpcType| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: rpcs.map(capability).into() }))
    }
}

impl Controller {
    /// A controller that runs apart from the nodes cannot know them all; one that runs with its node can.
    fn known_node(&self, publish: &Publish) -> Result<()> {
        match &self.only_node {
            Some(only) if *only != publish.node => Err(Error::NotFound(format!(
                "node {:?} does not exist: this driver serves {only:?} alone",
                publish.node
            ))),
            _ => Ok(()),
        }
    }
}
