//! The Identity service: who we are and what we serve. It runs no command.

use tonic::{Request, Response, Status};

use super::proto::identity_server;
use super::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use super::wire::offers;
use crate::backend::Offer;
use crate::ops::Ops;

pub(crate) struct Identity {
    pub(crate) driver_name: String,
    /// Whether the controller service is served here.
    pub(crate) controller: bool,
    /// What the backend offers.
    pub(crate) offers: Vec<Offer>,
    pub(crate) ops: Ops,
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(offers::plugin(self.controller, &self.offers)))
    }

    /// Ready as soon as this can be answered, until SIGTERM; storage that is down is no reason to restart the driver.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(!self.ops.draining()) }))
    }
}
