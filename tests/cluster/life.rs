//! A volume of the cluster: created in the test's corner, and how it is seen on a node.

use crate::common::csi::{CreateVolumeRequest, VolumeCapability};
use crate::common::life::Life;
use crate::common::tools::unique;
use crate::harness::{Driver, Scene};

/// Requests as a CO makes them.
pub(crate) mod request {
    use crate::common::csi::{CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability};
    pub(crate) use crate::common::life::{Map, map};
    use crate::harness::CLUSTER;
    use crate::lab::{POOL, lab};

    pub(crate) fn secrets() -> Map {
        map(&[("userID", "csi"), ("userKey", &lab().key)])
    }

    pub(crate) fn create(name: &str, mib: i64, capability: VolumeCapability) -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: mib << 20, limit_bytes: 0 }),
            volume_capabilities: vec![capability],
            parameters: map(&[("clusterID", CLUSTER), ("pool", POOL)]),
            secrets: secrets(),
            ..CreateVolumeRequest::default()
        }
    }

    pub(crate) fn delete(id: &str) -> DeleteVolumeRequest {
        DeleteVolumeRequest { volume_id: id.to_owned(), secrets: secrets() }
    }
}

impl Life {
    /// Creates a volume of 64 MiB (xfs: of 320).
    pub(crate) async fn create(scene: &Scene, driver: &Driver, capability: VolumeCapability) -> Self {
        let mib = capability.usual_mib();
        Self::create_as(scene, driver, request::create(&unique("pvc"), mib, capability)).await
    }

    pub(crate) async fn create_as(scene: &Scene, driver: &Driver, request: CreateVolumeRequest) -> Self {
        let (capability, secrets) = (request.volume_capabilities[0].clone(), request.secrets.clone());
        let volume = driver.create(request).await.expect("CreateVolume");
        let image = volume.volume_context.get("imageName").expect("the context names the image").clone();
        let known = Self::known(scene, driver, &volume.volume_id, &image, capability);
        Self { secrets, ..known.with_context(volume.volume_context) }
    }

    /// A volume that exists already, with fresh paths.
    pub(crate) fn known(
        scene: &Scene,
        driver: &Driver,
        id: &str,
        image: &str,
        capability: VolumeCapability,
    ) -> Self {
        let node = scene.path(&driver.maps().file_name().expect("a name").to_string_lossy());
        Self { secrets: request::secrets(), ..Self::at(&node, id, image, capability) }
    }

    /// The same volume as another node sees it.
    pub(crate) fn on(&self, scene: &Scene, driver: &Driver) -> Self {
        Self::known(scene, driver, &self.id, &self.image, self.capability.clone())
            .with_context(self.context.clone())
    }

    /// Nothing of it is mounted, mapped or noted on this driver's node.
    #[track_caller]
    pub(crate) fn assert_gone_from(&self, driver: &Driver) {
        self.assert_unmounted();
        assert!(!driver.mapped().contains(&self.image), "{} is mapped: {:?}", self.image, driver.mapped());
    }
}
