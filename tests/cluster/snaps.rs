//! Snapshots as a CO asks for them, and what the cluster shows of them.

use crate::common::csi::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    ListSnapshotsResponse, Snapshot,
};
use crate::common::life::map;
use crate::common::tools::{Answer, run};
use crate::harness::{CLUSTER, Driver};
use crate::lab::Corner;
use crate::life::request::secrets;

pub(crate) fn asked(name: &str, source: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        secrets: secrets(),
        parameters: map(&[("clusterID", CLUSTER)]),
        ..CreateSnapshotRequest::default()
    }
}

impl Driver {
    pub(crate) async fn take(&self, request: CreateSnapshotRequest) -> Answer<Snapshot> {
        let answer = self.controller().create_snapshot(request).await?;
        Ok(answer.into_inner().snapshot.expect("an answer without a snapshot"))
    }

    pub(crate) async fn snap(&self, name: &str, source: &str) -> Answer<Snapshot> {
        self.take(asked(name, source)).await
    }

    pub(crate) async fn unsnap(&self, id: &str) -> Answer {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), secrets: secrets() };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    pub(crate) async fn get_snap(&self, id: &str) -> Answer<Snapshot> {
        let request = GetSnapshotRequest { snapshot_id: id.to_owned(), secrets: secrets() };
        let answer = self.controller().get_snapshot(request).await?;
        Ok(answer.into_inner().snapshot.expect("an answer without a snapshot"))
    }

    pub(crate) async fn list_snaps(&self, request: ListSnapshotsRequest) -> Answer<ListSnapshotsResponse> {
        Ok(self.controller().list_snapshots(request).await?.into_inner())
    }
}

/// A request for a page of all snapshots.
pub(crate) fn page(max_entries: i32, starting_token: &str) -> ListSnapshotsRequest {
    let starting_token = starting_token.to_owned();
    ListSnapshotsRequest { max_entries, starting_token, secrets: secrets(), ..Default::default() }
}

/// Those of one volume.
pub(crate) fn of_volume(source: &str) -> ListSnapshotsRequest {
    ListSnapshotsRequest { source_volume_id: source.to_owned(), ..page(0, "") }
}

pub(crate) fn ids(listed: &ListSnapshotsResponse) -> Vec<String> {
    let snapshots = listed.entries.iter().filter_map(|entry| entry.snapshot.as_ref());
    snapshots.map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

/// The uuid in a snapshot id, before the 22 characters of its source.
pub(crate) fn uuid(id: &str) -> String {
    id[id.len() - 59..id.len() - 23].to_owned()
}

impl Corner {
    /// The names of the snapshots of an image, but for those that only clones keep.
    pub(crate) fn snapshots(&self, image: &str) -> Vec<String> {
        let listed = run("rbd", &["snap", "ls", &self.spec(image), "--format=json"]);
        let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).expect("a list of snapshots");
        listed.iter().map(|snapshot| crate::lab::text(&snapshot["name"])).collect()
    }

    pub(crate) fn tombstones(&self) -> Vec<String> {
        self.images().into_iter().filter(|image| image.starts_with("csi-del-")).collect()
    }
}
