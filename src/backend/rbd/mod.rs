//! Volumes as RBD images: one file for each thing that is done with them. Here is what the files share.

mod attach;
mod audit;
mod ceph_csi;
mod cli;
mod encryption;
mod meta;
mod params;
mod pool;
mod snapshot;
mod trash;
mod volume;
mod watchers;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::backend::{
    Ailment, Attach, Attached, Backend, BlockQuery, Blocks, Capability, Capacity, CapacityQuery,
    CreateSnapshot, CreateVolume, Detach, FormatMark, Image, Listing, Mapping, NewKey, Offer, Page,
    Parameters, Publish, Segments, SizeRange, Snapshot, Stashed, Target, Volume, VolumeState,
};
use crate::cluster::{Access, Clusters, Listed, ReadAffinity, Secrets};
use crate::config::Limits;
use crate::error::{Error, Result, chain};
use crate::host::Host;
use crate::id::{SnapshotId, VolumeId, snapshot_uuid, volume_uuid};
use crate::keys::{KeyStores, Passphrase};
use crate::labels::NodeLabels;
use crate::ops::Ops;

use ceph_csi::adopt::Names;
use cli::Cli;
use params::mapping::{Client, Wanted};
use params::{Plan, snapshot_prefix};
use pool::Pools;
use pool::stats::Reports;
use trash::Trash;
use volume::clone::flatten::Flattens;
use volume::clone::marker::MarkerQueue;
use volume::clone::source::Sources;
use volume::fence::Fencing;
use volume::not_found;

pub(crate) use audit::{Audit, Report};
pub(crate) use ceph_csi::back::WayBack;
pub(crate) use volume::placement::Topology;

/// Image sizes are whole MiB, as ceph-csi's are.
const GRANULE: u64 = 1 << 20;
/// librbd's object map counts at most so many objects.
const MAX_OBJECTS: u64 = 256_000_000;
const DEFAULT_OBJECT_SIZE: u64 = 4 << 20;

pub(crate) struct Rbd {
    host: Arc<dyn Host>,
    clusters: Clusters,
    key_stores: KeyStores,
    instance: String,
    cluster_name: String,
    deadline: Duration,
    ops: Ops,
    offers: Vec<Offer>,
    /// None: every volume is reached from everywhere.
    topology: Option<Topology>,
    pools: Pools,
    reports: Reports,
    names: Names,
    trash: Arc<Trash>,
    sources: Sources,
    markers: Arc<MarkerQueue>,
    flattens: Arc<Flattens>,
    limits: Limits,
    /// /sys/bus/rbd/devices
    sysfs: PathBuf,
    /// Devices that are being asked for their size.
    refreshing: Arc<Mutex<HashSet<String>>>,
    /// By the flags.
    read_affinity: ReadAffinity,
    /// Of this node, that say where it is in the CRUSH map.
    labels: Option<NodeLabels>,
    /// What the installed rbd-nbd says that it takes.
    nbd_help: OnceCell<String>,
    /// None: no client is shut out of the cluster.
    fencing: Option<Fencing>,
    told_of_no_shelter: AtomicBool,
}

impl Rbd {
    /// `deadline`: `--command-timeout`.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        clusters: Clusters,
        key_stores: KeyStores,
        instance: String,
        cluster_name: String,
        deadline: Duration,
        ops: Ops,
    ) -> Self {
        let trash = Arc::new(Trash::new(host.clone(), &instance, deadline, ops.clone()));
        let markers = Arc::new(MarkerQueue::new(&host, deadline, ops.clone()));
        let flattens = Arc::new(Flattens::new(host.clone(), deadline, ops.clone()));
        let (pools, sysfs) = (Pools::default(), PathBuf::from("/sys/bus/rbd/devices"));
        let mut offers = vec![
            Offer::Expansion,
            Offer::Snapshots,
            Offer::Clones,
            Offer::Modify,
            Offer::SnapshotMetadata,
            Offer::PublishReadOnly,
        ];
        if clusters.any_listed() {
            offers.extend([Offer::Lists, Offer::Capacity]);
        }
        Self {
            host,
            clusters,
            key_stores,
            instance,
            cluster_name,
            deadline,
            ops,
            offers,
            topology: None,
            pools,
            reports: Reports::default(),
            names: Names::default(),
            trash,
            sources: Sources::default(),
            markers,
            flattens,
            limits: Limits::default(),
            sysfs,
            refreshing: Arc::default(),
            read_affinity: ReadAffinity::default(),
            labels: None,
            nbd_help: OnceCell::new(),
            fencing: None,
            told_of_no_shelter: AtomicBool::new(false),
        }
    }

    /// /sys
    fn sys(&self) -> &Path {
        self.sysfs.ancestors().nth(3).unwrap_or(&self.sysfs)
    }

    pub(crate) fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Nodes read from what is near them, as their labels tell.
    pub(crate) fn with_read_affinity(self, read_affinity: ReadAffinity, labels: Option<NodeLabels>) -> Self {
        Self { read_affinity, labels, ..self }
    }

    /// Clients of lost nodes are shut out of the cluster; never those of this process' own node, which is not lost.
    pub(crate) fn with_fencing(self, own_node: Option<String>) -> Self {
        Self { fencing: Some(Fencing { own_node }), ..self }
    }

    /// What an earlier run left in the trash, where the configuration has a key; elsewhere it waits for a request's.
    pub(crate) fn take_up_trash(&self) {
        let listed = self.clusters.listed().unwrap_or_else(|error| {
            tracing::warn!("what is left in the trash waits for the next request: {}", chain(&error));
            Vec::new()
        });
        for Listed { access, pools } in &listed {
            for pool in pools {
                self.trash.take_up(access, pool);
            }
        }
    }

    /// Nodes, and so perhaps pools, are in different places.
    pub(crate) fn with_topology(mut self, topology: Topology) -> Self {
        self.offers.push(Offer::Topology);
        Self { topology: Some(topology), ..self }
    }

    fn cli<'a>(&'a self, access: &'a Access) -> Cli<'a> {
        Cli { host: self.host.as_ref(), access, deadline: self.deadline }
    }
}

#[async_trait]
impl Backend for Rbd {
    fn offers(&self) -> &[Offer] {
        &self.offers
    }

    async fn place(&self) -> Result<Option<Segments>> {
        match &self.topology {
            Some(topology) => topology.place().await,
            None => Ok(None),
        }
    }

    fn volume_uuid(&self, request: &CreateVolume) -> Result<Uuid> {
        let plan = Plan::parse(request, &self.cluster_name)?;
        if request.source.is_none() {
            volume::create::size(&plan, request, plan.header())?;
        }
        Ok(volume_uuid(&self.instance, &plan.cluster, &request.name))
    }

    fn snapshot_uuid(&self, request: &CreateSnapshot) -> Result<Uuid> {
        snapshot_prefix(request)?;
        Ok(snapshot_uuid(&self.instance, &request.source.cluster, &request.name))
    }

    async fn create(&self, request: &CreateVolume) -> Result<Volume> {
        self.create_volume(request).await
    }

    async fn refusal(&self, id: &VolumeId, _: &[Capability], secrets: &Secrets) -> Result<Option<String>> {
        // csc and older COs send no secrets with ValidateVolumeCapabilities: then the id is judged by its form alone.
        let Some(access) = self.clusters.access_if_any(&id.cluster, secrets)? else { return Ok(None) };
        let found = self.find_meta(&self.cli(&access), id).await?;
        found.map(|_| None).ok_or_else(|| not_found(id, &id.default_image()))
    }

    async fn state(&self, id: &VolumeId, secrets: &Secrets) -> Result<VolumeState> {
        self.volume_state(id, secrets).await
    }

    async fn list(&self, page: &Page) -> Result<Listing<VolumeState>> {
        self.list_volumes(page).await
    }

    async fn capacity(&self, query: &CapacityQuery) -> Result<Capacity> {
        self.free_capacity(query).await
    }

    async fn delete(&self, id: &VolumeId, secrets: &Secrets) -> Result<()> {
        self.delete_volume(id, secrets).await
    }

    async fn expand(&self, id: &VolumeId, size: SizeRange, secrets: &Secrets) -> Result<u64> {
        self.expand_volume(id, size, secrets).await
    }

    async fn modify(&self, id: &VolumeId, mutable: &Parameters, secrets: &Secrets) -> Result<()> {
        self.modify_volume(id, mutable, secrets).await
    }

    async fn refusal_to_modify(
        &self,
        id: &VolumeId,
        mutable: &Parameters,
        secrets: &Secrets,
    ) -> Result<Option<String>> {
        self.modify_refusal(id, mutable, secrets).await
    }

    async fn blocks(&self, query: &BlockQuery) -> Result<Blocks> {
        self.snapshot_blocks(query).await
    }

    async fn snapshot(&self, request: &CreateSnapshot) -> Result<Snapshot> {
        self.create_snapshot(request).await
    }

    async fn find_snapshot(&self, id: &SnapshotId, secrets: &Secrets) -> Result<Snapshot> {
        self.get_snapshot(id, secrets).await
    }

    async fn list_snapshots(
        &self,
        source: Option<&VolumeId>,
        page: &Page,
        secrets: &Secrets,
    ) -> Result<Listing<Snapshot>> {
        match source {
            Some(source) => self.snapshots_of_volume(source, page, secrets).await,
            None => self.all_snapshots(page, secrets).await,
        }
    }

    async fn delete_snapshot(&self, id: &SnapshotId, secrets: &Secrets) -> Result<()> {
        self.remove_snapshot(id, secrets).await
    }

    async fn publish(&self, request: &Publish) -> Result<()> {
        self.publish_volume(request).await
    }

    async fn unpublish(&self, id: &VolumeId, node: Option<&str>, secrets: &Secrets) -> Result<()> {
        self.unpublish_volume(id, node, secrets).await
    }

    async fn locate(&self, target: &Target) -> Result<Image> {
        self.locate_image(target).await
    }

    fn mapping(&self, target: &Target) -> Result<Mapping> {
        let wanted = Wanted::of_context(&target.context)?;
        Ok(wanted.mapping(if wanted.nbd { Client::Nbd } else { Client::Krbd }))
    }

    async fn attach(&self, request: &Attach) -> Result<Attached> {
        self.attach_image(request).await
    }

    async fn detach(&self, request: &Detach<'_>) -> Result<()> {
        self.detach_image(request).await
    }

    async fn attached(&self, volume: &str) -> Result<Vec<Stashed>> {
        self.attached_images(volume).await
    }

    fn is_served(&self, stashed: &Stashed) -> bool {
        attach::daemons::has_daemon(&stashed.mapping)
    }

    async fn serve(&self, request: &Attach, stashed: &Stashed, size: u64) -> Result<()> {
        self.serve_device(request, stashed, size).await
    }

    async fn refresh(&self, image: &Image) -> Result<u64> {
        self.refresh_image(image).await
    }

    async fn is_empty(&self, request: &Attach) -> Result<bool> {
        let access = self.target_access(&request.target)?;
        self.cli(&access).is_empty(&request.image).await
    }

    async fn mark_replayed(&self, request: &Attach) -> Result<()> {
        self.note_replay(request).await
    }

    async fn mark_format(&self, request: &Attach, mark: &FormatMark) -> Result<()> {
        let id = VolumeId::parse(&request.target.volume)?;
        let access = self.target_access(&request.target)?;
        let cli = self.cli(&access);
        match meta::format_value(mark, id.uuid) {
            Some(value) => cli.set_meta(&request.image, meta::FORMAT, &value).await,
            None => cli.remove_meta(&request.image, meta::FORMAT).await,
        }
    }

    async fn mark_encrypted(&self, request: &Attach) -> Result<()> {
        let access = self.target_access(&request.target)?;
        self.cli(&access).set_meta(&request.image, meta::ENCRYPTED, meta::MADE).await
    }

    async fn new_key(&self, target: &Target, image: &Image) -> Result<NewKey> {
        self.next_key(target, image).await
    }

    async fn replace_key(&self, target: &Target, image: &Image, key: &Passphrase) -> Result<()> {
        self.rotate_key(target, image, key).await
    }

    fn image_health(&self, image: &Image) -> Vec<Ailment> {
        attach::sysfs::image_ailments(self.sys(), image)
    }

    fn lost(&self, image: &Image) -> Option<Ailment> {
        attach::sysfs::lost(self.sys(), image)
    }

    fn storage_health(&self) -> Vec<Ailment> {
        attach::sysfs::storage_ailments(self.sys())
    }
}

/// The size, where an image whose objects have so many bytes can have it.
fn fits(size: u64, object_size: u64) -> Result<u64> {
    let most = object_size.saturating_mul(MAX_OBJECTS);
    if size > most {
        return Err(Error::OutOfRange(format!(
            "{size} bytes: an image of this object size holds at most {most}"
        )));
    }
    Ok(size)
}
