//! The services of CSI-Addons that a node has: who it is, and new keys for encrypted volumes.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::addons_proto::encryptionkeyrotation::encryption_key_rotation_controller_server::EncryptionKeyRotationController;
use super::addons_proto::encryptionkeyrotation::{EncryptionKeyRotateRequest, EncryptionKeyRotateResponse};
use super::addons_proto::identity::capability::encryption_key_rotation::Type as Rotation;
use super::addons_proto::identity::capability::service::Type as Service;
use super::addons_proto::identity::capability::{self, Type};
use super::addons_proto::identity::identity_server;
use super::addons_proto::identity::{
    Capability, GetCapabilitiesRequest, GetCapabilitiesResponse, GetIdentityRequest, GetIdentityResponse,
    ProbeRequest, ProbeResponse,
};
use super::node::operation;
use super::{note_volume, wire};
use crate::cluster::Secrets;
use crate::error::Error;
use crate::node::Node;
use crate::ops::Ops;

#[derive(Clone)]
pub(crate) struct Addons {
    pub(crate) driver_name: String,
    pub(crate) node: Arc<Node>,
    pub(crate) ops: Ops,
}

#[tonic::async_trait]
impl EncryptionKeyRotationController for Addons {
    async fn encryption_key_rotate(
        &self,
        request: Request<EncryptionKeyRotateRequest>,
    ) -> Result<Response<EncryptionKeyRotateResponse>, Status> {
        let request = request.into_inner();
        note_volume(&request.volume_id);
        let volume = wire::handle(&request.volume_id)?;
        if !request.encryption_key.is_empty() {
            let text = "encryption_key: this driver makes the new key itself: leave it out";
            return Err(Error::Invalid(text.to_owned()).into());
        }
        let operation = operation("EncryptionKeyRotate", &volume, wire::fingerprint(&request));
        let (node, secrets) = (self.node.clone(), Secrets::new(request.secrets));
        self.ops.run(operation, async move { node.rotate(&volume, secrets).await }).await?;
        Ok(Response::new(EncryptionKeyRotateResponse {}))
    }
}

#[tonic::async_trait]
impl identity_server::Identity for Addons {
    async fn get_identity(
        &self,
        _: Request<GetIdentityRequest>,
    ) -> Result<Response<GetIdentityResponse>, Status> {
        Ok(Response::new(GetIdentityResponse {
            name: self.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        }))
    }

    async fn get_capabilities(
        &self,
        _: Request<GetCapabilitiesRequest>,
    ) -> Result<Response<GetCapabilitiesResponse>, Status> {
        let service = capability::Service { r#type: Service::NodeService.into() };
        let rotation = capability::EncryptionKeyRotation { r#type: Rotation::Encryptionkeyrotation.into() };
        let all = [Type::Service(service), Type::EncryptionKeyRotation(rotation)];
        let capabilities = all.map(|one| Capability { r#type: Some(one) }).into();
        Ok(Response::new(GetCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(!self.ops.draining()) }))
    }
}
