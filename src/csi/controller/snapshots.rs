//! Snapshots: create, delete, list, get.

use super::Controller;
use crate::backend::{Listing, Offer, Page, Snapshot};
use crate::cluster::Secrets;
use crate::csi::note_volume;
use crate::csi::proto::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};
use crate::csi::wire::snapshots::{self, Filter};
use crate::csi::wire::{self, pages};
use crate::error::{Error, Result};
use crate::ops::Operation;

impl Controller {
    pub(super) async fn take_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse> {
        self.need(Offer::Snapshots, "CreateSnapshot")?;
        note_volume(&request.source_volume_id);
        let fingerprint = wire::fingerprint(&request);
        let create = snapshots::create(request, self.backend.offers())?;
        let target = self.backend.snapshot_uuid(&create)?.to_string();
        let operation = Operation {
            sources: vec![create.source.uuid.to_string()],
            ..Operation::of("CreateSnapshot", target, fingerprint)
        };
        let backend = self.backend.clone();
        let snapshot = self.ops.run(operation, async move { backend.snapshot(&create).await }).await?;
        note_volume(&snapshot.id.to_string());
        let snapshot = Some(snapshots::told(snapshot));
        Ok(CreateSnapshotResponse { snapshot })
    }

    pub(super) async fn drop_snapshot(
        &self,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse> {
        self.need(Offer::Snapshots, "DeleteSnapshot")?;
        note_volume(&request.snapshot_id);
        let Some(id) = snapshots::known_id(&request.snapshot_id)? else {
            tracing::info!(
                snapshot = request.snapshot_id,
                "no id of this driver: there is nothing to delete"
            );
            return Ok(DeleteSnapshotResponse {});
        };
        let fingerprint = wire::fingerprint(&request);
        // The last snapshot of a deleted source may take what is left of the source with it.
        let operation = Operation {
            sources: id.source.iter().map(ToString::to_string).collect(),
            ..Operation::of("DeleteSnapshot", id.own.uuid.to_string(), fingerprint)
        };
        let (backend, secrets) = (self.backend.clone(), Secrets::new(request.secrets));
        self.ops.run(operation, async move { backend.delete_snapshot(&id, &secrets).await }).await?;
        Ok(DeleteSnapshotResponse {})
    }

    pub(super) async fn snapshots(&self, request: ListSnapshotsRequest) -> Result<ListSnapshotsResponse> {
        self.need(Offer::Snapshots, "ListSnapshots")?;
        let page = pages::page(request.max_entries, &request.starting_token)?;
        let filter = snapshots::filter(&request);
        let listing = self.filtered(&filter, &page, &Secrets::new(request.secrets)).await?;
        Ok(snapshots::listed(listing))
    }

    pub(super) async fn one_snapshot(&self, request: GetSnapshotRequest) -> Result<GetSnapshotResponse> {
        self.need(Offer::Snapshots, "GetSnapshot")?;
        note_volume(&request.snapshot_id);
        let id = snapshots::existing_id(&request.snapshot_id)?;
        let snapshot = self.backend.find_snapshot(&id, &Secrets::new(request.secrets)).await?;
        let snapshot = Some(snapshots::told(snapshot));
        Ok(GetSnapshotResponse { snapshot })
    }

    async fn filtered(&self, filter: &Filter, page: &Page, secrets: &Secrets) -> Result<Listing<Snapshot>> {
        let listing = match filter {
            Filter::All => self.backend.list_snapshots(None, page, secrets).await,
            Filter::OfVolume(volume) => self.backend.list_snapshots(Some(volume), page, secrets).await,
            Filter::One(id, of) => {
                let one = self.backend.find_snapshot(id, secrets).await;
                one.map(|one| snapshots::only(Some(one), of.as_ref(), page.after))
            }
            Filter::Nothing => Ok(snapshots::only(None, None, None)),
        };
        // What is not there has no snapshots: an empty list, no error.
        match listing {
            Err(Error::NotFound(_)) if *filter != Filter::All => Ok(snapshots::only(None, None, None)),
            listing => listing,
        }
    }
}
