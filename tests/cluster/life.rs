//! A volume on its way through a driver's calls, with the paths that kubelet would give it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi::{
    CreateVolumeRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCapability,
};
use crate::harness::{Answer, Driver, Scene};
use crate::lab::unique;
use crate::sight::{Mounted, mounts_at};

pub(crate) const MIB: u64 = 1 << 20;

/// Requests as a CO makes them.
pub(crate) mod request {
    use std::collections::BTreeMap;

    use crate::csi::{CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability};
    use crate::harness::CLUSTER;
    use crate::lab::{POOL, lab};

    pub(crate) type Map = BTreeMap<String, String>;

    pub(crate) fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

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

pub(crate) fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}))
}

/// A filesystem.
pub(crate) fn mount(fs_type: &str) -> VolumeCapability {
    capability(AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() }))
}

fn capability(access: AccessType) -> VolumeCapability {
    VolumeCapability { access_type: Some(access), access_mode: None }.with(Mode::SingleNodeWriter)
}

impl VolumeCapability {
    pub(crate) fn with(mut self, mode: Mode) -> Self {
        self.access_mode = Some(AccessMode { mode: mode.into() });
        self
    }

    fn is_block(&self) -> bool {
        matches!(self.access_type, Some(AccessType::Block(_)))
    }
}

/// A volume and where it is to be seen on one node.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) id: String,
    pub(crate) image: String,
    pub(crate) context: request::Map,
    pub(crate) capability: VolumeCapability,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
}

impl Life {
    /// Creates a volume of 64 MiB (xfs: of 320, it takes no less).
    pub(crate) async fn create(scene: &Scene, driver: &Driver, capability: VolumeCapability) -> Self {
        let xfs = matches!(&capability.access_type, Some(AccessType::Mount(mount)) if mount.fs_type == "xfs");
        let name = unique("pvc");
        Self::create_as(scene, driver, request::create(&name, if xfs { 320 } else { 64 }, capability)).await
    }

    pub(crate) async fn create_as(scene: &Scene, driver: &Driver, request: CreateVolumeRequest) -> Self {
        let capability = request.volume_capabilities[0].clone();
        let volume = driver.create(request).await.expect("CreateVolume");
        let image = volume.volume_context.get("imageName").expect("the context names the image").clone();
        Self::known(scene, driver, &volume.volume_id, &image, capability).with_context(volume.volume_context)
    }

    /// A volume that exists already, with fresh paths.
    pub(crate) fn known(
        scene: &Scene,
        driver: &Driver,
        id: &str,
        image: &str,
        capability: VolumeCapability,
    ) -> Self {
        let kubelet = scene
            .path(&driver.start.maps.file_name().expect("a name").to_string_lossy())
            .join(unique("kubelet"));
        let staging = kubelet.join("plugins/kubernetes.io/csi/globalmount");
        let pod = kubelet.join("pods/1/volumes/kubernetes.io~csi/pvc");
        fs::create_dir_all(&staging).expect("kubelet makes the staging path");
        fs::create_dir_all(&pod).expect("kubelet makes the parent of the target");
        let (id, image) = (id.to_owned(), image.to_owned());
        Self { id, image, context: request::Map::new(), capability, staging, target: pod.join("mount") }
    }

    pub(crate) fn with_context(mut self, context: request::Map) -> Self {
        self.context = context;
        self
    }

    /// The same volume as another node sees it.
    pub(crate) fn on(&self, scene: &Scene, driver: &Driver) -> Self {
        Self::known(scene, driver, &self.id, &self.image, self.capability.clone())
            .with_context(self.context.clone())
    }

    pub(crate) fn with(mut self, mode: Mode) -> Self {
        self.capability = self.capability.with(mode);
        self
    }

    /// The uuid in the volume id.
    pub(crate) fn uuid(&self) -> String {
        self.id[self.id.len() - 36..].to_owned()
    }

    pub(crate) async fn attach(&self, driver: &Driver, node: &str) -> Answer {
        let request = crate::csi::ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node.to_owned(),
            volume_capability: Some(self.capability.clone()),
            readonly: false,
            secrets: request::secrets(),
            volume_context: self.context.clone(),
        };
        driver.controller().controller_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn detach(&self, driver: &Driver, node: &str) -> Answer {
        let request = crate::csi::ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node.to_owned(),
            secrets: request::secrets(),
        };
        driver.controller().controller_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stage(&self, driver: &Driver) -> Answer {
        let request = crate::csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: request::Map::new(),
            staging_target_path: self.staging.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            secrets: request::secrets(),
            volume_context: self.context.clone(),
        };
        driver.node().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, driver: &Driver) -> Answer {
        let request = crate::csi::NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.display().to_string(),
        };
        driver.node().node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, driver: &Driver) -> Answer {
        self.publish_at(driver, &self.target, false).await
    }

    pub(crate) async fn publish_at(&self, driver: &Driver, target: &Path, readonly: bool) -> Answer {
        let request = crate::csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: request::Map::new(),
            staging_target_path: self.staging.display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            readonly,
            secrets: request::Map::new(),
            volume_context: self.context.clone(),
        };
        driver.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, driver: &Driver) -> Answer {
        self.unpublish_at(driver, &self.target).await
    }

    pub(crate) async fn unpublish_at(&self, driver: &Driver, target: &Path) -> Answer {
        let request = crate::csi::NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: target.display().to_string(),
        };
        driver.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stats(&self, driver: &Driver, path: &Path) -> Answer<NodeGetVolumeStatsResponse> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: path.display().to_string(),
            staging_target_path: self.staging.display().to_string(),
        };
        Ok(driver.node().node_get_volume_stats(request).await?.into_inner())
    }

    /// Stage and publish, both of which have to succeed.
    pub(crate) async fn up(&self, driver: &Driver) {
        self.stage(driver).await.expect("NodeStageVolume");
        self.publish(driver).await.expect("NodePublishVolume");
    }

    /// Unpublish and unstage, both of which have to succeed.
    pub(crate) async fn down(&self, driver: &Driver) {
        self.unpublish(driver).await.expect("NodeUnpublishVolume");
        self.unstage(driver).await.expect("NodeUnstageVolume");
    }

    /// What is mounted for all pods of the node.
    pub(crate) fn staged(&self) -> Vec<Mounted> {
        mounts_at(&self.staging.join(&self.id))
    }

    pub(crate) fn published(&self) -> Vec<Mounted> {
        mounts_at(&self.target)
    }

    /// Nothing of it is mounted, mapped or noted on this driver's node.
    #[track_caller]
    pub(crate) fn assert_gone_from(&self, driver: &Driver) {
        assert_eq!((self.published(), self.staged()), (vec![], vec![]));
        assert!(!driver.mapped().contains(&self.image), "{} is mapped: {:?}", self.image, driver.mapped());
        let left: Vec<_> =
            fs::read_dir(&self.staging).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left in the staging path: {left:?}");
        assert!(!self.target.exists(), "the target path is left");
    }

    /// Where a pod reads and writes: a file in the filesystem, or the device itself.
    pub(crate) fn place(&self) -> PathBuf {
        if self.capability.is_block() { self.target.clone() } else { self.target.join("data") }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        use std::io::Write as _;
        let mut options = fs::File::options();
        let mut file = options.write(true).create(!self.capability.is_block()).open(self.place())?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    pub(crate) fn read(&self, length: usize) -> Vec<u8> {
        use std::io::Read as _;
        let mut bytes = vec![0; length];
        let mut file = fs::File::open(self.place()).expect("the volume can be read");
        file.read_exact(&mut bytes).expect("as much as was written");
        bytes
    }
}
