//! The end of a run: everything is taken down and away, as kubelet and the sidecars do.

use tonic::{Code, Status};

use crate::common::client::Client;
use crate::common::csi::{
    ControllerUnpublishVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, ListSnapshotsRequest,
    ListVolumesRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::common::sight::{Mounted, mounts_below};
use crate::common::tools::Answer;

use super::World;

impl World {
    pub(crate) async fn end(&mut self, driver: &Client) {
        self.ask_again(driver).await;
        while let Some(mount) = mounts_below(&self.folder).pop() {
            // Where a target was a folder with something in it, it stays, and its mount goes.
            let filled = |status: &Status| status.code() == Code::FailedPrecondition;
            let answer = self.take_down(driver, &mount).await;
            assert!(answer.as_ref().err().is_none_or(filled), "{mount:?}: {answer:?}");
            assert!(!mounts_below(&self.folder).contains(&mount), "{mount:?} is still there: {answer:?}");
        }
        for (volume, staging) in self.stagings() {
            unstage(driver, volume, staging).await.expect("NodeUnstageVolume");
        }
        for volume_id in self.volumes.clone() {
            let (node_id, secrets) = (self.node.clone(), self.secrets.clone());
            let request = ControllerUnpublishVolumeRequest { volume_id, node_id, secrets };
            driver
                .controller()
                .controller_unpublish_volume(request)
                .await
                .expect("ControllerUnpublishVolume");
        }
        self.delete_all(driver).await;
    }

    /// What is named as a volume is staged there; what is named otherwise is published.
    async fn take_down(&self, driver: &Client, mount: &Mounted) -> Answer {
        let name = mount.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if self.volumes.contains(&name) {
            let staging = mount.path.parent().expect("a staging folder").display().to_string();
            return unstage(driver, name, staging).await;
        }
        let (volume_id, target_path) = ("any".to_owned(), mount.path.display().to_string());
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        driver.node().node_unpublish_volume(request).await.map(drop)
    }

    /// What a driver that died did not answer is asked again, as its CO does: else nobody would know what it has made.
    async fn ask_again(&mut self, driver: &Client) {
        for request in std::mem::take(&mut self.unanswered) {
            if let Ok(volume) = driver.create(request).await {
                self.volumes.push(volume.volume_id);
            }
        }
    }

    async fn delete_all(&self, driver: &Client) {
        let mut controller = driver.controller();
        let snapshots =
            controller.list_snapshots(ListSnapshotsRequest::default()).await.expect("ListSnapshots");
        for entry in snapshots.into_inner().entries {
            let snapshot_id = entry.snapshot.expect("a snapshot").snapshot_id;
            let request = DeleteSnapshotRequest { snapshot_id, secrets: self.secrets.clone() };
            controller.delete_snapshot(request).await.expect("DeleteSnapshot");
        }
        let volumes = controller.list_volumes(ListVolumesRequest::default()).await.expect("ListVolumes");
        for entry in volumes.into_inner().entries {
            let volume_id = entry.volume.expect("a volume").volume_id;
            let request = DeleteVolumeRequest { volume_id, secrets: self.secrets.clone() };
            controller.delete_volume(request).await.expect("DeleteVolume");
        }
    }
}

async fn unstage(driver: &Client, volume_id: String, staging_target_path: String) -> Answer {
    let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
    driver.node().node_unstage_volume(request).await.map(drop)
}
