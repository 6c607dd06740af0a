//! A volume of the test's root: created, and how it is seen on the node.

use std::path::Path;

use crate::asks;
use crate::common::csi::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, NodeExpandVolumeRequest, Volume,
    VolumeCapability,
};
use crate::common::driver::Driver;
use crate::common::life::{Life, MIB};
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

    /// NodeExpandVolume at one of its paths.
    pub(crate) async fn expand_at(&self, driver: &Driver, path: &Path, bytes: i64) -> Answer<i64> {
        let request = NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: self.staging.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        };
        Ok(driver.node().node_expand_volume(request).await?.into_inner().capacity_bytes)
    }

    /// Bytes of the published device, or of the filesystem.
    pub(crate) async fn shown_size(&self, driver: &Driver) -> u64 {
        let usage = self.stats(driver, &self.target).await.expect("NodeGetVolumeStats").usage;
        u64::try_from(usage[0].total).expect("a size")
    }

    /// No loop device has its image.
    #[track_caller]
    pub(crate) fn assert_gone(&self) {
        self.assert_unmounted();
        let folder = Path::new(&self.image).parent().expect("the volume's folder");
        assert_eq!(loops_below(folder), vec![]);
    }

    /// Up, so much of its data read, and down again.
    pub(crate) async fn content(&self, driver: &Driver, length: usize) -> Vec<u8> {
        self.up(driver).await;
        let bytes = self.read(length);
        self.down(driver).await;
        bytes
    }

    /// Up, written to, and down again.
    pub(crate) async fn filled(self, driver: &Driver, bytes: &[u8]) -> Self {
        self.up(driver).await;
        self.write(bytes).expect("a pod writes");
        self.down(driver).await;
        self
    }
}

/// Bytes that are no zeros and differ with the seed.
pub(crate) fn pattern(mib: u64, seed: u8) -> Vec<u8> {
    (0..mib * MIB).map(|at| (at % 241) as u8 ^ seed | 1).collect()
}
