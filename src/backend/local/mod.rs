//! Volumes on one node, without a cluster: sparse files behind loop devices, or plain folders, below `--local-root`.

mod attach;
mod copy;
mod directory;
mod loops;
mod meta;
mod params;
mod publish;
mod quota;
mod room;
mod root;
mod snapshots;
mod state;
mod trash;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::backend::{
    Access, Ailment, Attach, Attached, Backend, Capability, Capacity, CapacityQuery, CreateSnapshot,
    CreateVolume, Detach, FormatMark, Image, Listing, Mapping, Offer, Page, Parameters, Publish, Segments,
    SizeRange, Snapshot, Stashed, Target, Volume, VolumeState,
};
use crate::cluster::Secrets;
use crate::config::LocalRoot;
use crate::error::{Error, Result, chain};
use crate::host::Host;
use crate::id::{Pool, SnapshotId, VolumeId, node_number, snapshot_uuid, volume_uuid};
use crate::ops::Ops;

use copy::Copies;
use meta::Meta;
use params::{Kind, Plan};
use room::Room;
use root::{Objects, Root};

/// Where a volume id has its cluster.
const CLUSTER: &str = "local";
/// Sizes are whole MiB.
const GRANULE: u64 = 1 << 20;
/// Copies that run at once, where the filesystem has no reflinks.
const COPIES: usize = 2;

pub(crate) struct Local {
    host: Arc<dyn Host>,
    ops: Ops,
    path: PathBuf,
    /// Opened when it is first used, and anew when another folder is in its place.
    root: Mutex<Option<Arc<Root>>>,
    room: Room,
    copies: Copies,
    instance: String,
    node: String,
    /// Key of the label that names the node.
    topology_key: String,
    /// 0: no limit.
    max_volumes: u32,
}

/// What tells this driver and its node from others.
pub(crate) struct Names {
    pub(crate) driver: String,
    pub(crate) instance: String,
    pub(crate) node: String,
}

impl Local {
    /// `max_volumes`: 0 for no limit.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        ops: Ops,
        root: &LocalRoot,
        names: Names,
        max_volumes: u32,
    ) -> Self {
        let copies = Copies::new(COPIES, ops.clone());
        Self {
            host,
            ops,
            path: root.path.clone(),
            root: Mutex::default(),
            room: Room::new(root.overcommit),
            copies,
            instance: names.instance,
            node: names.node,
            topology_key: format!("topology.{}/node", names.driver.to_lowercase()),
            max_volumes,
        }
    }

    /// Takes the root up at start, so that what a kill left behind goes at once. Where it is not there yet, it is taken
    /// up by the first call that needs it.
    pub(crate) async fn recover(&self) {
        if let Err(error) = self.root().await {
            tracing::warn!("volumes cannot be served yet: {}", chain(&error));
        }
    }

    async fn root(&self) -> Result<Arc<Root>> {
        let mut open = self.root.lock().await;
        let identity = io(|| root::identity(&self.path))?;
        if let Some(root) = open.as_ref().filter(|root| root.is(identity)) {
            return Ok(root.clone());
        }
        *open = None;
        let root = Arc::new(Root::open(&self.path)?);
        if let Err(error) = io(|| root.discard_unfinished()) {
            tracing::warn!("what an interrupted operation left stays: {}", chain(&error));
        }
        self.ops.background(trash::sweep(self.host.clone(), root.clone()));
        self.free_devices(&root).await?;
        *open = Some(root.clone());
        Ok(root)
    }

    fn id(&self, uuid: Uuid) -> VolumeId {
        VolumeId { cluster: CLUSTER.to_owned(), pool: Pool::Id(node_number(&self.node)), uuid }
    }

    fn told_volume(&self, id: VolumeId, meta: &Meta) -> Result<Volume> {
        let (size, context, source) = (meta.size, meta.context.clone(), meta.source()?);
        Ok(Volume { id, size, context, source, reached_from: vec![self.segments()] })
    }

    fn segments(&self) -> Segments {
        Segments::from([(self.topology_key.clone(), self.node.clone())])
    }

    /// "Not there" is the truth for ids of this node, where the root is the one that held them, and nothing of the uuid is
    /// there by another id.
    fn prove_absent(&self, root: &Root, objects: Objects, id: &VolumeId) -> Result<()> {
        if id.cluster != CLUSTER || id.pool != self.id(id.uuid).pool {
            return Err(Error::Precondition(format!(
                "{id} was made on another node or by another driver, not on {}",
                self.node
            )));
        }
        let there = root.object(objects, id.uuid);
        if there.exists() {
            return Err(Error::Precondition(format!(
                "{} is there, and its meta.json names another id than {id}: look at it",
                there.display()
            )));
        }
        if !root.was_used() {
            return Err(Error::Precondition(format!(
                "--local-root {} has never held a volume: is the disk that holds it mounted?",
                root.path().display()
            )));
        }
        Ok(())
    }
}

/// File I/O that may take its time: the other tasks of this worker thread go to another one.
fn io<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// What an error of the root's filesystem means to the caller.
fn failed(what: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => {
            Error::NoSpace(format!("{what}: {error}: free some room under --local-root"))
        }
        ReadOnlyFilesystem => Error::Precondition(format!("{what}: {error}: remount it read-write")),
        FileTooLarge => Error::OutOfRange(format!(
            "{what}: {error}: the filesystem of --local-root holds no file of that size"
        )),
        _ => Error::internal(what, error),
    }
}

#[async_trait]
impl Backend for Local {
    fn offers(&self) -> &[Offer] {
        &[
            Offer::Snapshots,
            Offer::Clones,
            Offer::Expansion,
            Offer::Lists,
            Offer::Capacity,
            Offer::Modify,
            Offer::PublishReadOnly,
            Offer::Topology,
        ]
    }

    async fn place(&self) -> Result<Option<Segments>> {
        Ok(Some(self.segments()))
    }

    fn volume_uuid(&self, request: &CreateVolume) -> Result<Uuid> {
        Plan::parse(request)?;
        request.size.choose(GRANULE)?;
        Ok(volume_uuid(&self.instance, CLUSTER, &request.name))
    }

    fn snapshot_uuid(&self, request: &CreateSnapshot) -> Result<Uuid> {
        snapshots::check_parameters(&request.parameters)?;
        Ok(snapshot_uuid(&self.instance, CLUSTER, &request.name))
    }

    async fn create(&self, request: &CreateVolume) -> Result<Volume> {
        self.create_volume(request).await
    }

    async fn refusal(&self, id: &VolumeId, uses: &[Capability], _: &Secrets) -> Result<Option<String>> {
        let (_, meta) = self.volume(self.root().await?.as_ref(), id)?;
        let raw = meta.kind == Kind::Directory && uses.iter().any(|one| one.access == Access::Block);
        Ok(raw.then(|| format!("volume {id} is a directory, no block device")))
    }

    async fn state(&self, id: &VolumeId, _: &Secrets) -> Result<VolumeState> {
        self.volume_state(self.root().await?.as_ref(), id)
    }

    async fn list(&self, page: &Page) -> Result<Listing<VolumeState>> {
        self.list_volumes(self.root().await?.as_ref(), page)
    }

    async fn delete(&self, id: &VolumeId, _: &Secrets) -> Result<()> {
        self.delete_volume(id).await
    }

    async fn expand(&self, id: &VolumeId, size: SizeRange, _: &Secrets) -> Result<u64> {
        self.expand_volume(id, size).await
    }

    async fn refusal_to_modify(
        &self,
        _: &VolumeId,
        mutable: &Parameters,
        _: &Secrets,
    ) -> Result<Option<String>> {
        Ok(params::mutable(mutable).err().map(|error| error.to_string()))
    }

    async fn modify(&self, id: &VolumeId, mutable: &Parameters, _: &Secrets) -> Result<()> {
        self.modify_volume(id, mutable).await
    }

    async fn capacity(&self, query: &CapacityQuery) -> Result<Capacity> {
        self.free_capacity(query).await
    }

    async fn snapshot(&self, request: &CreateSnapshot) -> Result<Snapshot> {
        self.create_snapshot(request).await
    }

    async fn find_snapshot(&self, id: &SnapshotId, _: &Secrets) -> Result<Snapshot> {
        self.snapshot_state(self.root().await?.as_ref(), id)
    }

    async fn list_snapshots(
        &self,
        source: Option<&VolumeId>,
        page: &Page,
        _: &Secrets,
    ) -> Result<Listing<Snapshot>> {
        self.snapshots_of(self.root().await?.as_ref(), source, page)
    }

    async fn delete_snapshot(&self, id: &SnapshotId, _: &Secrets) -> Result<()> {
        self.remove_snapshot(id).await
    }

    async fn publish(&self, request: &Publish) -> Result<()> {
        self.publish_volume(request).await
    }

    async fn unpublish(&self, id: &VolumeId, node: Option<&str>, _: &Secrets) -> Result<()> {
        self.unpublish_volume(id, node).await
    }

    async fn locate(&self, target: &Target) -> Result<Image> {
        self.locate_image(target).await
    }

    async fn attach(&self, request: &Attach) -> Result<Attached> {
        self.attach_image(request).await
    }

    async fn detach(&self, request: &Detach<'_>) -> Result<()> {
        self.detach_image(&request.stashed.image, request.shown, request.kept).await
    }

    async fn attached(&self, volume: &str) -> Result<Vec<Stashed>> {
        let images = self.attached_images(volume).await?;
        Ok(images.into_iter().map(|image| Stashed { image, mapping: Mapping::default() }).collect())
    }

    async fn refresh(&self, image: &Image) -> Result<u64> {
        self.refresh_image(image).await
    }

    async fn is_empty(&self, request: &Attach) -> Result<bool> {
        attach::is_empty(&request.image)
    }

    async fn mark_format(&self, request: &Attach, mark: &FormatMark) -> Result<()> {
        attach::write_format(&request.image, mark)
    }

    fn image_health(&self, image: &Image) -> Vec<Ailment> {
        io(|| state::image_health(image))
    }

    fn storage_health(&self) -> Vec<Ailment> {
        io(|| state::root_health(&self.path))
    }
}

/// The folder of an object, and what is written there; None where there is no such object.
fn object_of(root: &Root, objects: Objects, uuid: Uuid) -> Result<Option<(PathBuf, Meta)>> {
    let folder = root.object(objects, uuid);
    Ok(io(|| Meta::read(&folder))?.map(|meta| (folder, meta)))
}

/// The same for exactly this id: a volume of the same name on another node has the same uuid, and another id.
fn object_named(root: &Root, objects: Objects, uuid: Uuid, id: &str) -> Result<Option<(PathBuf, Meta)>> {
    Ok(object_of(root, objects, uuid)?.filter(|(_, meta)| meta.id == id))
}

/// A volume as the node names it: the folder of all volumes in place of a pool, and the uuid. Printed, it is a path.
fn image_of(root: &Path, uuid: Uuid) -> Image {
    let object = root::object(root, Objects::Volumes, uuid);
    let pool = object.parent().unwrap_or(root).to_string_lossy().into_owned();
    Image { pool, namespace: String::new(), name: uuid.to_string() }
}

/// The folder of the volume that an image is the name of.
fn folder(image: &Image) -> Result<PathBuf> {
    Ok(Path::new(&image.pool).join(uuid_of(image)?.to_string()))
}

fn uuid_of(image: &Image) -> Result<Uuid> {
    Uuid::try_parse(&image.name).map_err(|_| {
        Error::Precondition(format!("image {image} is none of --type=local: another driver staged it"))
    })
}
