//! The SnapshotMetadata service: which blocks a backup has to read. It takes no lock, as it changes nothing: that the
//! snapshots were there all the time is proved by the backend. A client that leaves ends the work.

use std::sync::Arc;

use tokio_stream::{StreamExt as _, iter};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::note_volume;
use super::proto::{
    GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, GetMetadataDeltaRequest,
    GetMetadataDeltaResponse, snapshot_metadata_server,
};
use super::wire::blocks::{self, Pieces};
use super::wire::offers;
use crate::backend::{Backend, BlockQuery, Offer};
use crate::error::Result;

pub(crate) struct SnapshotMetadata {
    pub(crate) backend: Arc<dyn Backend>,
}

impl SnapshotMetadata {
    fn offered(&self) -> Result<()> {
        offers::need(self.backend.offers().contains(&Offer::SnapshotMetadata), "SnapshotMetadata")
    }

    /// The pieces of the answer, each made when the one before it is on its way.
    async fn pieces(&self, query: &BlockQuery, most: usize) -> Result<Pieces> {
        note_volume(&query.target.to_string());
        Ok(Pieces::of(self.backend.blocks(query).await?, most))
    }
}

#[tonic::async_trait]
impl snapshot_metadata_server::SnapshotMetadata for SnapshotMetadata {
    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<GetMetadataAllocatedResponse>>, Status> {
        self.offered()?;
        let (query, most) = blocks::allocated(request.into_inner())?;
        let pieces = iter(self.pieces(&query, most).await?);
        Ok(Response::new(Box::pin(pieces.map(|piece| Ok(blocks::told_allocated(piece?))))))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<GetMetadataDeltaResponse>>, Status> {
        self.offered()?;
        let (query, most) = blocks::delta(request.into_inner())?;
        let pieces = iter(self.pieces(&query, most).await?);
        Ok(Response::new(Box::pin(pieces.map(|piece| Ok(blocks::told_delta(piece?))))))
    }
}
