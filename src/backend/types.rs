//! The plain types that the services and the backends speak.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::size::SizeRange;
use crate::cluster::Secrets;
use crate::id::{SnapshotId, VolumeId};
use crate::keys::Passphrase;

pub(crate) type Parameters = BTreeMap<String, String>;
/// Labels of a place.
pub(crate) type Segments = BTreeMap<String, String>;

/// A part of CSI that a backend may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Create, restore, delete, get and list snapshots.
    Snapshots,
    /// A volume from a volume.
    Clones,
    /// On the controller and on the node, online.
    Expansion,
    /// ListVolumes and ControllerGetVolume, with the nodes and the health of each.
    Lists,
    Capacity,
    Modify,
    /// ControllerPublishVolume heeds `readonly`.
    PublishReadOnly,
    /// Which blocks of a snapshot were written, and which differ from an older one.
    SnapshotMetadata,
    /// Volumes and snapshots are reached from some nodes only.
    Topology,
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
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) parameters: Parameters,
    /// Of a VolumeAttributesClass.
    pub(crate) mutable: Parameters,
    pub(crate) source: Option<Source>,
    pub(crate) places: Places,
    pub(crate) secrets: Secrets,
}

/// What a volume starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

impl Source {
    pub(crate) fn uuid(&self) -> Uuid {
        match self {
            Self::Snapshot(id) => id.own.uuid,
            Self::Volume(id) => id.uuid,
        }
    }
}

/// From where a volume or snapshot has to be reached; empty: from anywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// At least one of these.
    pub(crate) requisite: Vec<Segments>,
    /// Best first.
    pub(crate) preferred: Vec<Segments>,
}

impl Places {
    pub(crate) fn is_empty(&self) -> bool {
        self.requisite.is_empty() && self.preferred.is_empty()
    }

    /// Whether something that is reached from `place` alone will do. `preferred` is a wish.
    pub(crate) fn admit(&self, place: &Segments) -> bool {
        self.requisite.is_empty() || self.requisite.iter().any(|wanted| is_in(place, wanted))
    }
}

/// Whether a place has all labels of the one that is wanted.
pub(crate) fn is_in(place: &Segments, wanted: &Segments) -> bool {
    wanted.iter().all(|(key, value)| place.get(key) == Some(value))
}

#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) context: Parameters,
    pub(crate) source: Option<Source>,
    /// Empty: from everywhere.
    pub(crate) reached_from: Vec<Segments>,
}

/// A volume, where it is in use, and what is wrong with it.
#[derive(Debug, Clone)]
pub(crate) struct VolumeState {
    pub(crate) volume: Volume,
    /// Nodes that ControllerPublishVolume gave it to.
    pub(crate) nodes: Vec<String>,
    pub(crate) health: Vec<Ailment>,
}

/// One thing that is wrong with a volume or with the storage behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ailment {
    pub(crate) severity: Severity,
    /// For programs, CamelCase.
    pub(crate) reason: &'static str,
    /// For people: what, and what to do.
    pub(crate) message: String,
}

/// The health errors of CSI 1.13.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// It works, but not well or not for long.
    Degraded,
    Inaccessible,
    DataLoss,
}

/// A page of a list that is ordered by uuid: so that what is deleted meanwhile moves nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Entries behind this one.
    pub(crate) after: Option<Uuid>,
    /// At most so many.
    pub(crate) most: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct Listing<T> {
    pub(crate) entries: Vec<T>,
    /// Where the next page starts; None at the end.
    pub(crate) next: Option<Uuid>,
}

pub(crate) struct CapacityQuery {
    pub(crate) parameters: Parameters,
    pub(crate) place: Option<Segments>,
}

/// In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) available: u64,
    /// Of one volume.
    pub(crate) maximum: u64,
    pub(crate) minimum: u64,
}

pub(crate) struct CreateSnapshot {
    pub(crate) name: String,
    pub(crate) source: VolumeId,
    pub(crate) parameters: Parameters,
    pub(crate) places: Places,
    pub(crate) secrets: Secrets,
}

#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) id: SnapshotId,
    /// The volume that it was taken of.
    pub(crate) source: VolumeId,
    /// Bytes: the least size of a volume made from it.
    pub(crate) size: u64,
    pub(crate) created: SystemTime,
    /// Empty: from everywhere.
    pub(crate) reached_from: Vec<Segments>,
}

/// A volume that is given to a node, before anything is done with it there.
pub(crate) struct Publish {
    pub(crate) id: VolumeId,
    pub(crate) node: String,
    pub(crate) mode: Mode,
    pub(crate) read_only: bool,
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
        is_static(&self.context)
    }
}

/// By its volume context. That of a volume of the in-tree driver says both (csi-translation-lib, rbd.go): its handle is
/// an id, not the name of an image.
pub(crate) fn is_static(context: &Parameters) -> bool {
    let says = |key: &str| context.get(key).is_some_and(|value| value == "true");
    says("staticVolume") && !says("migration")
}

/// An image by name; printed as `rbd` takes it. (A backend without pools has the folder of its volumes there.)
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

/// An image that this node is to see, and what for.
pub(crate) struct Attach {
    pub(crate) target: Target,
    pub(crate) image: Image,
    pub(crate) mode: Mode,
    /// As a device, without a filesystem of the driver's.
    pub(crate) block: bool,
    /// This one.
    pub(crate) node: String,
}

/// How an image is mapped on this node: what the way back needs to know beside its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// By rbd-nbd, not by the kernel's own client.
    pub(crate) nbd: bool,
    /// Empty: not known yet.
    pub(crate) device: String,
    /// As `rbd unmap --options` takes them.
    pub(crate) unmap_options: String,
    /// As `mapOptions` has those for rbd-nbd: what serves the device anew needs them too.
    pub(crate) map_options: String,
    /// Where rbd-nbd writes its log; empty: nowhere.
    pub(crate) log_dir: String,
    /// What becomes of the log at the unmap: remove, compress or preserve.
    pub(crate) log_strategy: String,
}

/// An image and how it is mapped, as the stash has it, or, where that is lost, this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stashed {
    pub(crate) image: Image,
    pub(crate) mapping: Mapping,
}

/// A staging folder of this node, by what its stash says.
#[derive(Debug, Clone)]
pub(crate) struct Staging {
    /// The stash.
    pub(crate) file: PathBuf,
    /// When that was written.
    pub(crate) since: Option<SystemTime>,
    /// Or why it cannot be read.
    pub(crate) image: std::result::Result<Image, String>,
}

/// An image that this node is to see no more.
pub(crate) struct Detach<'a> {
    pub(crate) volume: &'a str,
    pub(crate) stashed: &'a Stashed,
    /// The device that was mounted, if any.
    pub(crate) shown: Option<&'a Path>,
    /// Devices that stay.
    pub(crate) kept: &'a [PathBuf],
}

/// An image that this node sees.
#[derive(Debug, Clone)]
pub(crate) struct Attached {
    pub(crate) shown: Shown,
    pub(crate) mapping: Mapping,
    /// Nothing may be written, whatever the request would allow.
    pub(crate) read_only: bool,
    /// It is to be read, and its journal to be replayed before: mounted once, read-write, then taken away and attached anew.
    pub(crate) to_replay: bool,
    pub(crate) format: FormatMark,
    /// None: what the pod sees begins at the first byte of the image.
    pub(crate) encryption: Option<Encryption>,
}

/// A LUKS header before what the pod sees, and what opens it.
#[derive(Debug, Clone)]
pub(crate) struct Encryption {
    /// Never empty. A header is made with the first one; a clone of an older snapshot may be opened by a later one alone.
    pub(crate) keys: Vec<Passphrase>,
    /// A header was made to its end. One that opens with none of the keys is refused, never made anew.
    pub(crate) made: bool,
}

/// A key in the place of others.
pub(crate) struct NewKey {
    /// Newest first.
    pub(crate) keys: Vec<Passphrase>,
    pub(crate) new: Passphrase,
}

/// What a node sees of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    Device(PathBuf),
    /// A directory volume: its files, without a filesystem of its own.
    Directory(PathBuf),
}

impl Shown {
    pub(crate) fn device(&self) -> Option<&Path> {
        match self {
            Self::Device(device) => Some(device),
            Self::Directory(_) => None,
        }
    }
}

/// How far the driver's own formatting of a volume has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FormatMark {
    /// Nothing was ever begun by this driver.
    #[default]
    Never,
    /// Half-made content, if any, is our own, and no pod has seen it.
    Begun(String),
    Done(String),
    /// Made long ago; and growing, unmounted, with a program that leaves it broken when it is killed.
    Growing(String),
}
