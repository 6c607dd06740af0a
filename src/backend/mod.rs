//! What the services need of a storage system. No gRPC type comes here.

mod blocks;
pub(crate) mod local;
mod names;
pub(crate) mod rbd;
mod size;
mod types;

use async_trait::async_trait;
use uuid::Uuid;

use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};
use crate::keys::Passphrase;

pub(crate) use blocks::{BlockQuery, Blocks, Extent};
pub(crate) use size::SizeRange;
pub(crate) use types::{
    Access, Ailment, Attach, Attached, Capability, Capacity, CapacityQuery, CreateSnapshot, CreateVolume,
    Detach, Encryption, FormatMark, Image, Listing, Mapping, Mode, NewKey, Offer, Page, Parameters, Places,
    Publish, Segments, Severity, Shown, Snapshot, Source, Staging, Stashed, Target, Volume, VolumeState,
    is_in, is_static,
};

/// A storage system. Every method may be repeated without harm. What only some offer answers `Unbuilt` by itself.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// What of CSI it offers beyond what every backend has to.
    fn offers(&self) -> &[Offer] {
        &[]
    }
    /// Where this node is, for a backend whose volumes are reached from some nodes only.
    async fn place(&self) -> Result<Option<Segments>> {
        Ok(None)
    }
    /// The uuid of the volume that this request means; the lock of the request. Refuses what can never be made.
    fn volume_uuid(&self, request: &CreateVolume) -> Result<Uuid>;
    /// The same for a snapshot.
    fn snapshot_uuid(&self, _: &CreateSnapshot) -> Result<Uuid> {
        unbuilt("CreateSnapshot")
    }

    /// Makes the volume, or finds it made, or finishes one that was left half-made.
    async fn create(&self, request: &CreateVolume) -> Result<Volume>;
    /// Why the volume cannot be used in one of these ways, if so. `NotFound` where there is none.
    async fn refusal(&self, id: &VolumeId, uses: &[Capability], secrets: &Secrets) -> Result<Option<String>>;
    /// The volume, where it is in use, and what is wrong with it. `NotFound` where there is none.
    async fn state(&self, _: &VolumeId, _: &Secrets) -> Result<VolumeState> {
        unbuilt("ControllerGetVolume")
    }
    /// Volumes, by uuid, with what is known of each without looking at it alone: a size of 0 is not known.
    async fn list(&self, _: &Page) -> Result<Listing<VolumeState>> {
        unbuilt("ListVolumes")
    }
    /// Takes the volume away. Nothing there, proved, is success.
    async fn delete(&self, id: &VolumeId, secrets: &Secrets) -> Result<()>;
    /// Grows the volume to a size in the range; answers its size in bytes.
    async fn expand(&self, _: &VolumeId, _: SizeRange, _: &Secrets) -> Result<u64> {
        unbuilt("ControllerExpandVolume")
    }
    /// Changes all of the mutable parameters given, or none; others stay.
    async fn modify(&self, _: &VolumeId, _: &Parameters, _: &Secrets) -> Result<()> {
        unbuilt("ControllerModifyVolume")
    }
    /// Why the volume cannot be changed so, if so. `NotFound` where there is none.
    async fn refusal_to_modify(&self, _: &VolumeId, _: &Parameters, _: &Secrets) -> Result<Option<String>> {
        Ok(None)
    }
    async fn capacity(&self, _: &CapacityQuery) -> Result<Capacity> {
        unbuilt("GetCapacity")
    }
    /// Makes the snapshot, or finds it made.
    async fn snapshot(&self, _: &CreateSnapshot) -> Result<Snapshot> {
        unbuilt("CreateSnapshot")
    }
    /// `NotFound` where there is none.
    async fn find_snapshot(&self, _: &SnapshotId, _: &Secrets) -> Result<Snapshot> {
        unbuilt("GetSnapshot")
    }
    /// Snapshots (of one source), by uuid.
    async fn list_snapshots(
        &self,
        _source: Option<&VolumeId>,
        _: &Page,
        _: &Secrets,
    ) -> Result<Listing<Snapshot>> {
        unbuilt("ListSnapshots")
    }
    /// Which blocks of a snapshot a backup has to read. Ended by dropping it. `NotFound` where there is no such snapshot.
    async fn blocks(&self, _: &BlockQuery) -> Result<Blocks> {
        unbuilt("GetMetadataAllocated and GetMetadataDelta")
    }
    /// Nothing there, proved, is success.
    async fn delete_snapshot(&self, _: &SnapshotId, _: &Secrets) -> Result<()> {
        unbuilt("DeleteSnapshot")
    }
    /// Notes that the volume is about to be used on a node; refuses where another one writes to it.
    async fn publish(&self, request: &Publish) -> Result<()>;
    /// Forgets that note once no client of the node (of any node: None) holds the volume.
    async fn unpublish(&self, id: &VolumeId, node: Option<&str>, secrets: &Secrets) -> Result<()>;

    /// Which image a node request means.
    async fn locate(&self, target: &Target) -> Result<Image>;
    /// How it is going to be mapped here, as far as that is known before.
    fn mapping(&self, _: &Target) -> Result<Mapping> {
        Ok(Mapping::default())
    }
    /// Shows the image on this node, having proved that nobody else writes to it.
    async fn attach(&self, request: &Attach) -> Result<Attached>;
    /// Takes every device of the image away from this node but those that are kept. No credential: NodeUnstageVolume
    /// carries none.
    async fn detach(&self, request: &Detach<'_>) -> Result<()>;
    /// Images attached here that belong to a volume whose stash is lost.
    async fn attached(&self, volume: &str) -> Result<Vec<Stashed>>;
    /// Whether the daemon that a device of this node needs is there. No process, no waiting. (Only rbd-nbd has one.)
    fn is_served(&self, _: &Stashed) -> bool {
        true
    }
    /// Begins such a daemon anew where it is gone, or where by it the device does not come to this size that its image has.
    async fn serve(&self, _: &Attach, _: &Stashed, _size: u64) -> Result<()> {
        Ok(())
    }
    /// Lets the device on this node have the size that its image was grown to; answers that size in bytes.
    async fn refresh(&self, _: &Image) -> Result<u64> {
        unbuilt("NodeExpandVolume")
    }
    /// Whether no block of the image, parents included, was ever written.
    async fn is_empty(&self, request: &Attach) -> Result<bool>;
    /// Writes down that nothing of the volume's journal is left to be replayed. (Only rbd hands out what has one.)
    async fn mark_replayed(&self, _: &Attach) -> Result<()> {
        Ok(())
    }
    /// Writes down how far the formatting of the volume has come, before anything follows from it.
    async fn mark_format(&self, request: &Attach, mark: &FormatMark) -> Result<()>;
    /// Writes down that the LUKS header of the image is made. (Only rbd encrypts.)
    async fn mark_encrypted(&self, _: &Attach) -> Result<()> {
        unbuilt("encryption")
    }
    /// The keys of an encrypted image, newest first, and a new one, which is not recorded yet.
    async fn new_key(&self, _: &Target, _: &Image) -> Result<NewKey> {
        unbuilt("EncryptionKeyRotate")
    }
    /// Makes a key that opens the header already the one in force. Those before it are kept while snapshots need them.
    async fn replace_key(&self, _: &Target, _: &Image, _: &Passphrase) -> Result<()> {
        unbuilt("EncryptionKeyRotate")
    }
    /// What is wrong with an image that is attached here. No process, no cluster command, no waiting.
    fn image_health(&self, _: &Image) -> Vec<Ailment> {
        Vec::new()
    }
    /// Of that, what leaves nothing to be read or written through its device, and a new one would mend.
    fn lost(&self, _: &Image) -> Option<Ailment> {
        None
    }
    /// What is wrong with the storage behind all volumes of this node. Like `image_health`.
    fn storage_health(&self) -> Vec<Ailment> {
        Vec::new()
    }
}

/// The answer to a call that this backend does not offer.
pub(crate) fn unbuilt<T>(what: &str) -> Result<T> {
    Err(Error::Unbuilt(format!("{what}: this backend does not offer it in this version of the driver")))
}
