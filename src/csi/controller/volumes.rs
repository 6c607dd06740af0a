//! Single volumes: create, delete, publish, unpublish, validate, expand, modify.

use super::Controller;
use crate::backend::{Offer, Publish, is_static};
use crate::cluster::Secrets;
use crate::csi::note_volume;
use crate::csi::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse, ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};
use crate::csi::wire::{self, capability, volumes};
use crate::error::{Error, Result};
use crate::ops::Operation;

impl Controller {
    pub(super) async fn create(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse> {
        note_volume(&request.name);
        let fingerprint = wire::fingerprint(&request);
        let create = volumes::create(request, self.backend.offers())?;
        let target = self.backend.volume_uuid(&create)?.to_string();
        let operation = Operation {
            sources: create.source.iter().map(|source| source.uuid().to_string()).collect(),
            ..Operation::of("CreateVolume", target, fingerprint)
        };
        let backend = self.backend.clone();
        let volume = self.ops.run(operation, async move { backend.create(&create).await }).await?;
        note_volume(&volume.id.to_string());
        Ok(volumes::created(volume))
    }

    pub(super) async fn delete(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse> {
        note_volume(&request.volume_id);
        let Some(id) = wire::known_id(&request.volume_id)? else {
            // It cannot be told from a static volume, whose image is not ours to delete.
            tracing::info!(volume = request.volume_id, "no id of this driver: there is nothing to delete");
            return Ok(DeleteVolumeResponse {});
        };
        let fingerprint = wire::fingerprint(&request);
        let operation = Operation::of("DeleteVolume", id.uuid.to_string(), fingerprint);
        let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
        self.ops.run(operation, async move { backend.delete(&id, &secrets).await }).await?;
        Ok(DeleteVolumeResponse {})
    }

    pub(super) async fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<ControllerPublishVolumeResponse> {
        note_volume(&request.volume_id);
        let fingerprint = wire::fingerprint(&request);
        let publish = volumes::publish(request, self.backend.offers())?;
        if let Some(publish) = publish {
            self.known_node(&publish)?;
            let target = publish.id.uuid.to_string();
            let backend = self.backend.clone();
            let work = async move { backend.publish(&publish).await };
            self.ops.run(Operation::of("ControllerPublishVolume", target, fingerprint), work).await?;
        }
        Ok(ControllerPublishVolumeResponse::default())
    }

    pub(super) async fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<ControllerUnpublishVolumeResponse> {
        note_volume(&request.volume_id);
        let node = Some(request.node_id.clone()).filter(|node| !node.is_empty());
        if let Some(id) = wire::known_id(&request.volume_id)? {
            let fingerprint = wire::fingerprint(&request);
            let target = id.uuid.to_string();
            let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
            let work = async move { backend.unpublish(&id, node.as_deref(), &secrets).await };
            self.ops.run(Operation::of("ControllerUnpublishVolume", target, fingerprint), work).await?;
        }
        Ok(ControllerUnpublishVolumeResponse {})
    }

    pub(super) async fn validate(
        &self,
        mut request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse> {
        note_volume(&request.volume_id);
        let secrets = Secrets::new(std::mem::take(&mut request.secrets));
        let (id, mutable) = (request.volume_id.clone(), request.mutable_parameters.clone());
        let uses = capability::all(&request.volume_capabilities)?;
        let unasked = is_static(&request.volume_context);
        let verdict = volumes::validated(request, self.backend.offers())?;
        if unasked {
            // Its handle names an image that the volume's administrator answers for.
            return Ok(verdict);
        }
        let id = wire::existing_id("volume_id", &id)?;
        let mut refusal = self.backend.refusal(&id, &uses, &secrets).await?;
        if refusal.is_none() && !mutable.is_empty() && verdict.confirmed.is_some() {
            refusal = self.backend.refusal_to_modify(&id, &mutable, &secrets).await?;
        }
        Ok(match refusal {
            Some(message) => ValidateVolumeCapabilitiesResponse { confirmed: None, message },
            None => verdict,
        })
    }

    pub(super) async fn expand(
        &self,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse> {
        self.need(Offer::Expansion, "ControllerExpandVolume")?;
        note_volume(&request.volume_id);
        let fingerprint = wire::fingerprint(&request);
        let (id, size) = volumes::expand(&request)?;
        let operation = Operation::of("ControllerExpandVolume", id.uuid.to_string(), fingerprint);
        let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
        let work = async move { backend.expand(&id, size, &secrets).await };
        Ok(volumes::expanded(self.ops.run(operation, work).await?))
    }

    pub(super) async fn modify(
        &self,
        request: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse> {
        self.need(Offer::Modify, "ControllerModifyVolume")?;
        note_volume(&request.volume_id);
        let fingerprint = wire::fingerprint(&request);
        let (id, parameters) = volumes::modify(&request)?;
        let operation = Operation::of("ControllerModifyVolume", id.uuid.to_string(), fingerprint);
        let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
        let work = async move { backend.modify(&id, &parameters, &secrets).await };
        self.ops.run(operation, work).await?;
        Ok(ControllerModifyVolumeResponse {})
    }

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
