//! A volume of the test's root: created, and how it is seen on the node.

use std::path::Path;

use crate::asks;
use crate::common::csi::{ControllerPublishVolumeRequest, CreateVolumeRequest, Volume, VolumeCapability};
use crate::common::driver::Driver;
use crate::common::life::Life;
use crate::common::sight::loops_below;
use crate::common::tools::Answer;
use crate::harness::{NODE, Scene};

impl Life {
    /// Creates a volume of 64 MiB (xfs: of 320).
    pub(crate) async fn create(scene: &Scene, driver: &Driver, capability: VolumeCapability) -> Self {
        let mib = capability.usual_mib();
        Self::create_as(scene, driver, asks::any(mib, capability)).await
    }

    pub(crate) async fn create_as(scene: &Scene, driver: &Driver, request: CreateVolumeRequest) -> Self {
        let capability = request.volume_capabilities[0].clone();
        let volume = driver.create(request).await.expect("CreateVolume");
        Self::of(scene, &volume, capability)
    }

    /// A volume that exists already, with fresh paths.
    pub(crate) fn of(scene: &Scene, volume: &Volume, capability: VolumeCapability) -> Self {
        Self::named(scene, &volume.volume_id, capability).with_context(volume.volume_context.clone())
    }

    pub(crate) fn named(scene: &Scene, id: &str, capability: VolumeCapability) -> Self {
        let uuid = id.get(id.len().saturating_sub(36)..).unwrap_or_default();
        let image = scene.volume(uuid).join("image");
        Self::at(&scene.path(NODE), id, &image.to_string_lossy(), capability)
    }

    /// The same volume at other paths.
    pub(crate) fn again(&self, scene: &Scene) -> Self {
        let context = self.context.clone();
        Self::named(scene, &self.id, self.capability.clone()).with_context(context)
    }

    pub(crate) async fn attach_as(&self, driver: &Driver, readonly: bool) -> Answer {
        let request = ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: NODE.to_owned(),
            volume_capability: Some(self.capability.clone()),
            readonly,
            volume_context: self.context.clone(),
            ..Default::default()
        };
        driver.controller().controller_publish_volume(request).await.map(drop)
    }

    /// No loop device has its image.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        self.assert_unmounted();
        let folder = Path::new(&self.image).parent().expect("the volume's folder");
        assert_eq!(loops_below(folder), vec![]);
    }
}
