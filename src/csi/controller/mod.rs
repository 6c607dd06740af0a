//! The Controller service. Each handler parses, locks, does and answers; they are in one file for each kind of thing.

mod lists;
mod snapshots;
mod volumes;

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, controller_server,
};
use super::wire::offers;
use crate::backend::{Backend, Offer};
use crate::error::Result;
use crate::ops::Ops;

pub(crate) struct Controller {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ops: Ops,
    /// The only node there is, when both services run in one process.
    pub(crate) only_node: Option<String>,
}

impl Controller {
    fn need(&self, offer: Offer, call: &str) -> Result<()> {
        offers::need(self.backend.offers().contains(&offer), call)
    }
}

/// What tonic's trait wants of a handler.
type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(result: Result<T>) -> Answer<T> {
    Ok(Response::new(result?))
}

#[tonic::async_trait]
impl controller_server::Controller for Controller {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        answer(self.create(request.into_inner()).await)
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        answer(self.delete(request.into_inner()).await)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        answer(self.publish(request.into_inner()).await)
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        answer(self.unpublish(request.into_inner()).await)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        answer(self.validate(request.into_inner()).await)
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        answer(self.expand(request.into_inner()).await)
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        answer(self.modify(request.into_inner()).await)
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        answer(self.list(&request.into_inner()).await)
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        answer(self.get(&request.into_inner()).await)
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Answer<ControllerGetVolumeHealthResponse> {
        answer(self.health(request.into_inner()).await)
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Answer<ControllerListVolumeHealthResponse> {
        answer(self.list_health(&request.into_inner()).await)
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        answer(self.capacity(request.into_inner()).await)
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        answer(self.take_snapshot(request.into_inner()).await)
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        answer(self.drop_snapshot(request.into_inner()).await)
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        answer(self.snapshots(request.into_inner()).await)
    }

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        answer(self.one_snapshot(request.into_inner()).await)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        answer(Ok(offers::controller(self.backend.offers())))
    }
}
