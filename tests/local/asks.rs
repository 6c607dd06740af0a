//! Requests as a CO makes them of a driver without secrets, and their answers.

use crate::common::csi::volume_capability::AccessType;
use crate::common::csi::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use crate::common::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest,
    GetCapacityRequest, GetCapacityResponse, ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest,
    ListVolumesResponse, Snapshot, VolumeCapability, VolumeContentSource,
};
use crate::common::driver::Driver;
use crate::common::life::{map, mount};
use crate::common::tools::{Answer, unique};

pub(crate) fn volume(name: &str, mib: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: mib << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..CreateVolumeRequest::default()
    }
}

/// A volume of a fresh name.
pub(crate) fn any(mib: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    volume(&unique("pvc"), mib, capability)
}

impl CreateVolumeRequest {
    pub(crate) fn with_parameters(mut self, pairs: &[(&str, &str)]) -> Self {
        self.parameters.extend(map(pairs));
        self
    }

    pub(crate) fn sized(mut self, required_bytes: i64, limit_bytes: i64) -> Self {
        self.capacity_range = Some(CapacityRange { required_bytes, limit_bytes });
        self
    }

    pub(crate) fn of_snapshot(self, id: &str) -> Self {
        self.from(SourceType::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
    }

    pub(crate) fn of_volume(self, id: &str) -> Self {
        self.from(SourceType::Volume(VolumeSource { volume_id: id.to_owned() }))
    }

    fn from(mut self, source: SourceType) -> Self {
        self.volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
        self
    }
}

impl Driver {
    pub(crate) async fn delete(&self, id: &str) -> Answer {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub(crate) async fn snapshot(&self, name: &str, source: &str) -> Answer<Snapshot> {
        let request = CreateSnapshotRequest {
            source_volume_id: source.to_owned(),
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = self.controller().create_snapshot(request).await?.into_inner();
        Ok(answer.snapshot.expect("an answer without a snapshot"))
    }

    pub(crate) async fn delete_snapshot(&self, id: &str) -> Answer {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    /// The new size, and whether the node has work left.
    pub(crate) async fn expand(&self, id: &str, bytes: i64) -> Answer<(i64, bool)> {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        self.ask_to_expand(request).await
    }

    pub(crate) async fn capacity(&self, request: GetCapacityRequest) -> Answer<GetCapacityResponse> {
        Ok(self.controller().get_capacity(request).await?.into_inner())
    }

    /// Bytes that a plain volume can have.
    pub(crate) async fn available(&self) -> i64 {
        let answer = self.capacity(GetCapacityRequest::default()).await.expect("GetCapacity");
        answer.available_capacity
    }

    pub(crate) async fn state(&self, id: &str) -> Answer<ControllerGetVolumeResponse> {
        let request = ControllerGetVolumeRequest { volume_id: id.to_owned() };
        Ok(self.controller().controller_get_volume(request).await?.into_inner())
    }

    pub(crate) async fn list(&self, max_entries: i32, token: &str) -> Answer<ListVolumesResponse> {
        let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        Ok(self.controller().list_volumes(request).await?.into_inner())
    }

    pub(crate) async fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Answer<ListSnapshotsResponse> {
        Ok(self.controller().list_snapshots(request).await?.into_inner())
    }
}

/// A filesystem that is mounted with this option.
pub(crate) fn mount_with(fs_type: &str, option: &str) -> VolumeCapability {
    let mut capability = mount(fs_type);
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags.push(option.to_owned());
    }
    capability
}
