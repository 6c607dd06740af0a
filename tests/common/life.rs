//! A volume on its way through a driver's calls, with the paths that kubelet would give it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tonic::Code;

use super::client::Client;
use super::csi::volume_capability::access_mode::Mode;
use super::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use super::csi::volume_usage::Unit;
use super::csi::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, NodeGetVolumeHealthRequest,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability, VolumeHealth,
};
use super::sight::{Mounted, mounts_at};
use super::tools::{Answer, check, twice, unique};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Map = BTreeMap<String, String>;

pub(crate) fn map(pairs: &[(&str, &str)]) -> Map {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
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

    pub(crate) fn is_block(&self) -> bool {
        matches!(self.access_type, Some(AccessType::Block(_)))
    }

    /// A size that such a volume takes, in MiB: xfs takes no less than 300.
    pub(crate) fn usual_mib(&self) -> i64 {
        let xfs = matches!(&self.access_type, Some(AccessType::Mount(mount)) if mount.fs_type == "xfs");
        if xfs { 320 } else { 64 }
    }
}

/// A volume and where it is to be seen on one node.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) id: String,
    /// What is behind it, as the backend names it.
    pub(crate) image: String,
    pub(crate) context: Map,
    pub(crate) capability: VolumeCapability,
    pub(crate) secrets: Map,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
}

impl Life {
    /// With fresh paths below a folder that a node's kubelet has.
    pub(crate) fn at(node: &Path, id: &str, image: &str, capability: VolumeCapability) -> Self {
        let kubelet = node.join(unique("kubelet"));
        let staging = kubelet.join("plugins/kubernetes.io/csi/globalmount");
        let pod = kubelet.join("pods/1/volumes/kubernetes.io~csi/pvc");
        fs::create_dir_all(&staging).expect("kubelet makes the staging path");
        fs::create_dir_all(&pod).expect("kubelet makes the parent of the target");
        let (id, image, target) = (id.to_owned(), image.to_owned(), pod.join("mount"));
        let (context, secrets) = (Map::new(), Map::new());
        Self { id, image, context, capability, secrets, staging, target }
    }

    pub(crate) fn with_context(mut self, context: Map) -> Self {
        self.context = context;
        self
    }

    pub(crate) fn with(mut self, mode: Mode) -> Self {
        self.capability = self.capability.with(mode);
        self
    }

    /// The uuid in the volume id.
    pub(crate) fn uuid(&self) -> String {
        self.id[self.id.len() - 36..].to_owned()
    }

    pub(crate) async fn attach(&self, driver: &Client, node: &str) -> Answer {
        let request = ControllerPublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node.to_owned(),
            volume_capability: Some(self.capability.clone()),
            readonly: false,
            secrets: self.secrets.clone(),
            volume_context: self.context.clone(),
        };
        driver.controller().controller_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn detach(&self, driver: &Client, node: &str) -> Answer {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            node_id: node.to_owned(),
            secrets: self.secrets.clone(),
        };
        driver.controller().controller_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stage(&self, driver: &Client) -> Answer {
        let request = NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: Map::new(),
            staging_target_path: self.staging.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            secrets: self.secrets.clone(),
            volume_context: self.context.clone(),
        };
        driver.node().node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self, driver: &Client) -> Answer {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.staging.display().to_string(),
        };
        driver.node().node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, driver: &Client) -> Answer {
        self.publish_at(driver, &self.target, false).await
    }

    pub(crate) async fn publish_at(&self, driver: &Client, target: &Path, readonly: bool) -> Answer {
        let request = NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            publish_context: Map::new(),
            staging_target_path: self.staging.display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(self.capability.clone()),
            readonly,
            secrets: Map::new(),
            volume_context: self.context.clone(),
        };
        driver.node().node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, driver: &Client) -> Answer {
        self.unpublish_at(driver, &self.target).await
    }

    pub(crate) async fn unpublish_at(&self, driver: &Client, target: &Path) -> Answer {
        let request = NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: target.display().to_string(),
        };
        driver.node().node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn stats(&self, driver: &Client, path: &Path) -> Answer<NodeGetVolumeStatsResponse> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: path.display().to_string(),
            staging_target_path: self.staging.display().to_string(),
        };
        Ok(driver.node().node_get_volume_stats(request).await?.into_inner())
    }

    /// NodeGetVolumeHealth.
    pub(crate) async fn health(&self, driver: &Client) -> Answer<VolumeHealth> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: self.target.display().to_string(),
            staging_target_path: self.staging.display().to_string(),
        };
        let answer = driver.node().node_get_volume_health(request).await?.into_inner();
        Ok(answer.volume_health.expect("an answer without health"))
    }

    /// Stage and publish, both of which have to succeed.
    pub(crate) async fn up(&self, driver: &Client) {
        self.stage(driver).await.expect("NodeStageVolume");
        self.publish(driver).await.expect("NodePublishVolume");
    }

    /// Unpublish and unstage, both of which have to succeed.
    pub(crate) async fn down(&self, driver: &Client) {
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

    /// Nothing of it is mounted or noted on its node.
    #[track_caller]
    pub(crate) fn assert_unmounted(&self) {
        assert_eq!((self.published(), self.staged()), (vec![], vec![]));
        let left: Vec<_> =
            fs::read_dir(&self.staging).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left in the staging path: {left:?}");
        assert!(!self.target.exists(), "the target path is left");
    }

    /// The stats of a volume of this size with at least 1 MiB of data, published and staged.
    pub(crate) async fn assert_stats(&self, driver: &Client, size: u64) {
        let usage = twice(|| self.stats(driver, &self.target)).await.usage;
        let size = i64::try_from(size).expect("a size");
        let bytes = usage.iter().find(|usage| usage.unit() == Unit::Bytes).expect("bytes");
        if self.capability.is_block() {
            assert_eq!(bytes.total, size);
            return;
        }
        assert!(bytes.total > size / 2 && bytes.total <= size, "{bytes:?}");
        assert!(bytes.used > 1 << 20 && bytes.available > 0, "{bytes:?}");
        let inodes = usage.iter().find(|usage| usage.unit() == Unit::Inodes).expect("inodes");
        assert!(inodes.total > 0 && inodes.used > 0 && inodes.available > 0, "{inodes:?}");
        let staged =
            self.stats(driver, &self.staging.join(&self.id)).await.expect("stats of the staged volume");
        assert_eq!(staged.usage.len(), usage.len());
        check(self.stats(driver, Path::new("/no/such/path")).await, Code::NotFound, "/no/such/path");
    }

    /// A single writer has one target, a multi-writer several; the volume is down before and behind it.
    pub(crate) async fn shows_at_as_many_paths_as(&self, mode: Mode, driver: &Client) {
        self.up(driver).await;
        let second = self.target.with_file_name("second");
        let answer = self.publish_at(driver, &second, false).await;
        if mode == Mode::SingleNodeMultiWriter {
            answer.expect("a second target");
            self.unpublish_at(driver, &second).await.expect("NodeUnpublishVolume");
        } else {
            check(answer, Code::FailedPrecondition, &self.target.display().to_string());
        }
        assert!(!second.exists());
        self.down(driver).await;
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
