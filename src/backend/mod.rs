//! What the services need of a storage system, and the plain types both sides speak. No gRPC type comes here.

pub(crate) mod rbd;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use async_trait::async_trait;
use uuid::Uuid;

use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

pub(crate) type Parameters = BTreeMap<String, String>;

/// A storage system. Every method may be repeated without harm.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// The uuid of the volume that this request means; the lock of the request. Refuses what can never be made.
    fn volume_uuid(&self, request: &CreateVolume) -> Result<Uuid>;
    /// Makes the volume, or finds it made, or finishes one that was left half-made.
    async fn create(&self, request: &CreateVolume) -> Result<Volume>;
    /// `NotFound` where there is none.
    async fn find(&self, id: &VolumeId, secrets: &Secrets) -> Result<()>;
    /// Takes the volume away. Nothing there, proved, is success.
    async fn delete(&self, id: &VolumeId, secrets: &Secrets) -> Result<()>;
    /// Notes that the volume is about to be used on a node; refuses where another one writes to it.
    async fn publish(&self, request: &Publish) -> Result<()>;
    /// Forgets that note once no client of the node (of any node: None) holds the volume.
    async fn unpublish(&self, id: &VolumeId, node: Option<&str>, secrets: &Secrets) -> Result<()>;

    /// Which image a node request means.
    async fn locate(&self, target: &Target) -> Result<Image>;
    /// Makes a block device of the image on this node, having proved that nobody else writes to it.
    async fn attach(&self, request: &Attach) -> Result<Attached>;
    /// Takes every device of the image away from this node. No credential: NodeUnstageVolume carries none.
    async fn detach(&self, image: &Image) -> Result<()>;
    /// Images attached here that belong to a volume whose stash is lost.
    async fn attached(&self, volume: &str) -> Result<Vec<Image>>;
    /// Whether no block of the image, parents included, was ever written.
    async fn is_empty(&self, request: &Attach) -> Result<bool>;
    /// Writes down how far the formatting of the volume has come, before anything follows from it.
    async fn mark_format(&self, request: &Attach, mark: &FormatMark) -> Result<()>;
}

/// Sizes in bytes; `limit` is the most that the caller allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeRange {
    pub(crate) required: u64,
    pub(crate) limit: Option<u64>,
}

impl SizeRange {
    const DEFAULT: u64 = 1 << 30;

    /// The size to make: what is required (1 GiB where nothing is), rounded up to `granule`, never past the limit.
    pub(crate) fn choose(&self, granule: u64) -> Result<u64> {
        let limit = self.limit.unwrap_or(i64::MAX.unsigned_abs());
        let wanted =
            if self.required == 0 { Self::DEFAULT.min(limit / granule * granule) } else { self.required };
        let size = wanted.max(1).checked_next_multiple_of(granule).filter(|size| *size <= limit);
        size.ok_or_else(|| {
            Error::OutOfRange(format!(
                "no size fits: required_bytes {}, rounded up to {granule} bytes, is more than the limit of {limit}",
                self.required
            ))
        })
    }

    pub(crate) fn admits(&self, size: u64) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }
}

/// How a volume is to be used, as a request asks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) access: Access,
    pub(crate) mode: Mode,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    Block,
    /// `fs_type` is never empty.
    Mount {
        fs_type: String,
        flags: Vec<String>,
    },
}

/// The access modes of the CSI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    SingleNodeWriter,
    SingleNodeReader,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReader,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
}

impl Mode {
    pub(crate) fn read_only(self) -> bool {
        matches!(self, Self::SingleNodeReader | Self::MultiNodeReader)
    }

    pub(crate) fn multi_node(self) -> bool {
        matches!(self, Self::MultiNodeReader | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter)
    }

    /// Whether a second target path on the same node is refused (CSI specification, NodePublishVolume).
    pub(crate) fn single_target(self) -> bool {
        matches!(self, Self::SingleNodeWriter | Self::SingleNodeSingleWriter)
    }
}

pub(crate) struct CreateVolume {
    pub(crate) name: String,
    pub(crate) size: SizeRange,
    pub(crate) parameters: Parameters,
    pub(crate) secrets: Secrets,
}

#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) context: Parameters,
}

pub(crate) struct Publish {
    pub(crate) id: VolumeId,
    pub(crate) node: String,
    pub(crate) mode: Mode,
    pub(crate) secrets: Secrets,
}

/// A volume as the node requests name it.
#[derive(Clone)]
pub(crate) struct Target {
    /// A volume id, or the name of an image (static volumes).
    pub(crate) volume: String,
    pub(crate) context: Parameters,
    pub(crate) secrets: Secrets,
}

impl Target {
    /// An image that somebody else made and named as a volume: never formatted.
    pub(crate) fn is_static(&self) -> bool {
        self.context.get("staticVolume").is_some_and(|value| value == "true")
    }
}

/// An image by name; printed as `rbd` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) pool: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{pool}/{name}") } else { write!(f, "{pool}/{namespace}/{name}") }
    }
}

pub(crate) struct Attach {
    pub(crate) target: Target,
    pub(crate) image: Image,
    pub(crate) mode: Mode,
    pub(crate) node: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) device: PathBuf,
    pub(crate) format: FormatMark,
}

/// How far the driver's own formatting of a volume has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FormatMark {
    /// Nothing was ever begun by this driver.
    Never,
    /// Half-made content, if any, is our own, and no pod has seen it.
    Begun(String),
    Done(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(required: u64, limit: Option<u64>) -> Option<u64> {
        SizeRange { required, limit }.choose(MIB).ok()
    }

    #[test]
    fn a_size_is_rounded_up_but_never_past_the_limit() {
        assert_eq!(check(0, None), Some(1 << 30));
        assert_eq!(check(0, Some(10 * MIB + 5)), Some(10 * MIB));
        assert_eq!(check(1, None), Some(MIB));
        assert_eq!(check(MIB + 1, Some(2 * MIB)), Some(2 * MIB));
        assert_eq!(check(MIB + 1, Some(2 * MIB - 1)), None);
        assert_eq!(check(0, Some(5)), None);
        assert_eq!(check(u64::MAX, None), None);
    }

    proptest! {
        #[test]
        fn a_chosen_size_is_always_admitted(required in 0..1_u64 << 50, limit in proptest::option::of(0..1_u64 << 50)) {
            let range = SizeRange { required, limit };
            if let Ok(size) = range.choose(MIB) {
                prop_assert!(range.admits(size) && size % MIB == 0 && size > 0);
            }
        }
    }
}
