//! A driver as a CO sees it, wherever it runs: its services behind one endpoint.

use tonic::transport::{Channel, Endpoint};

use super::csi::controller_client::ControllerClient;
use super::csi::identity_client::IdentityClient;
use super::csi::node_client::NodeClient;
use super::csi::snapshot_metadata_client::SnapshotMetadataClient;
use super::csi::{CreateVolumeRequest, Volume};
use super::tools::Answer;

#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    /// Of `unix:///path` or `http://host:port`. It need not be there yet.
    pub(crate) fn of(endpoint: &str) -> Self {
        let endpoint = Endpoint::try_from(endpoint.to_owned()).expect("an endpoint");
        Self { channel: endpoint.connect_lazy() }
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub(crate) fn blocks(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    pub(crate) async fn create(&self, request: CreateVolumeRequest) -> Answer<Volume> {
        let answer = self.controller().create_volume(request).await?;
        Ok(answer.into_inner().volume.expect("an answer without a volume"))
    }
}
