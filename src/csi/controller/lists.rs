//! What only looks: lists of volumes, the state and the health of one, the room that is left. Nothing is locked.

use std::ops::ControlFlow;

use super::Controller;
use crate::backend::{Listing, Offer, Page, VolumeState};
use crate::cluster::Secrets;
use crate::csi::note_volume;
use crate::csi::proto::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse, ControllerGetVolumeRequest,
    ControllerGetVolumeResponse, ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse,
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, ListVolumesResponse,
};
use crate::csi::wire::{self, health, lists, pages};
use crate::error::Result;

impl Controller {
    pub(super) async fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse> {
        self.need(Offer::Lists, "ListVolumes")?;
        let page = pages::page(request.max_entries, &request.starting_token)?;
        let listing = self.backend.list(&page).await?;
        Ok(lists::volumes(listing))
    }

    pub(super) async fn get(
        &self,
        request: &ControllerGetVolumeRequest,
    ) -> Result<ControllerGetVolumeResponse> {
        self.need(Offer::Lists, "ControllerGetVolume")?;
        note_volume(&request.volume_id);
        let id = wire::existing_id("volume_id", &request.volume_id)?;
        Ok(lists::volume(self.backend.state(&id, &Secrets::default()).await?))
    }

    pub(super) async fn health(
        &self,
        request: ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse> {
        self.need(Offer::Lists, "ControllerGetVolumeHealth")?;
        note_volume(&request.volume_id);
        let id = wire::existing_id("volume_id", &request.volume_id)?;
        let state = self.backend.state(&id, &Secrets::new(request.secrets)).await?;
        let volume_health = Some(health::of_volume(id.to_string(), state.health));
        Ok(ControllerGetVolumeHealthResponse { volume_health })
    }

    pub(super) async fn list_health(
        &self,
        request: &ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse> {
        self.need(Offer::Lists, "ControllerListVolumeHealth")?;
        let wanted = pages::page(request.max_entries, &request.starting_token)?;
        Ok(lists::unhealthy(self.unhealthy(wanted).await?))
    }

    pub(super) async fn capacity(&self, request: GetCapacityRequest) -> Result<GetCapacityResponse> {
        self.need(Offer::Capacity, "GetCapacity")?;
        let capacity = match lists::capacity_query(request)? {
            Some(query) => Some(self.backend.capacity(&query).await?),
            None => None,
        };
        Ok(lists::capacity(capacity))
    }

    async fn unhealthy(&self, wanted: Page) -> Result<Listing<VolumeState>> {
        let (mut search, mut page) = lists::Search::new(wanted);
        loop {
            match search.step(self.backend.list(&page).await?) {
                ControlFlow::Continue(next) => page = next,
                ControlFlow::Break(found) => return Ok(found),
            }
        }
    }
}
