//! Volumes come into being, grow, change and go.

use std::fs::File;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::backend::{CreateVolume, Parameters, SizeRange, Source, Volume};
use crate::error::{Error, Result};
use crate::id::{VolumeId, volume_uuid};

use super::meta::{Meta, Origin};
use super::params::{self, Kind, Plan};
use super::root::{self, Objects, Root};
use super::{CLUSTER, GRANULE, Local, directory, failed, io, loops, object_named, object_of, trash};

/// What a new volume starts from.
struct Start {
    image: PathBuf,
    meta: Meta,
}

/// What is to be made.
struct New<'a> {
    request: &'a CreateVolume,
    plan: &'a Plan,
    id: &'a VolumeId,
    size: u64,
    start: Option<&'a Start>,
}

impl Local {
    pub(super) async fn create_volume(&self, request: &CreateVolume) -> Result<Volume> {
        let plan = Plan::parse(request)?;
        let id = self.id(volume_uuid(&self.instance, CLUSTER, &request.name));
        let root = self.root().await?;
        if let Some((_, meta)) = object_of(&root, Objects::Volumes, id.uuid)? {
            if meta.id != id.to_string() {
                return Err(Error::Conflict(format!(
                    "volume {:?} exists as {}, made when this node had another name than {}: start the driver with that name",
                    request.name, meta.id, self.node
                )));
            }
            same_volume(request, &plan, &meta)?;
            return self.told_volume(id, &meta);
        }
        if !request.places.admit(&self.segments()) {
            return Err(self.elsewhere(&request.name));
        }
        let start = match &request.source {
            Some(source) => Some(self.start(&root, source)?),
            None => None,
        };
        let size = size(request, start.as_ref())?;
        let _promise = io(|| self.room.promise(&root, size))?;
        let folder = self.making(&root, id.uuid).await?;
        let new = New { request, plan: &plan, id: &id, size, start: start.as_ref() };
        let made = self.make(&root, &new, &folder).await;
        let meta = match made
            .and_then(|meta| io(|| root.commit(&folder, Objects::Volumes, id.uuid)).map(|()| meta))
        {
            Ok(meta) => meta,
            Err(error) => {
                // It was never a volume, and the next attempt starts anew.
                let _ = trash::remove(self.host.as_ref(), &root, &folder).await;
                return Err(error);
            }
        };
        self.told_volume(id, &meta)
    }

    pub(super) async fn delete_volume(&self, id: &VolumeId) -> Result<()> {
        let root = self.root().await?;
        let Some((folder, meta)) = Self::volume_if_there(&root, id)? else {
            self.prove_absent(&root, Objects::Volumes, id)?;
            return self.empty_trash(&root, id.uuid).await;
        };
        if let Some(published) = &meta.published {
            return Err(Error::Precondition(format!(
                "volume {id} is published on node {}: unpublish it first",
                published.node
            )));
        }
        self.let_go(&folder, &meta).await?;
        io(|| root.discard(Objects::Volumes, id.uuid))?;
        self.empty_trash(&root, id.uuid).await
    }

    pub(super) async fn expand_volume(&self, id: &VolumeId, range: SizeRange) -> Result<u64> {
        let root = self.root().await?;
        let (folder, mut meta) = self.volume(&root, id)?;
        if range.required <= meta.size {
            return range.keep(meta.size);
        }
        let size = range.choose(GRANULE)?;
        let _promise = io(|| self.room.promise(&root, size - meta.size))?;
        meta.size = size;
        match (meta.kind, meta.project) {
            (Kind::Image, _) => grow(&root::image(&folder), size)?,
            (Kind::Directory, Some(_)) => {
                directory::enforce(self.host.as_ref(), &folder, &meta).await?;
            }
            (Kind::Directory, None) => directory::refuse_limit(range, root.path())?,
        }
        io(|| meta.write(&folder))?;
        Ok(size)
    }

    pub(super) async fn modify_volume(&self, id: &VolumeId, mutable: &Parameters) -> Result<()> {
        let root = self.root().await?;
        let (folder, mut meta) = self.volume(&root, id)?;
        let Some(direct_io) = params::mutable(mutable)? else { return Ok(()) };
        meta.direct_io = direct_io;
        io(|| meta.write(&folder))?;
        for device in loops::on(self.host.as_ref(), &root::image(&folder)).await? {
            loops::set_direct_io(self.host.as_ref(), &device.device, direct_io).await;
        }
        Ok(())
    }

    /// `NotFound` where there is none of exactly this id.
    pub(super) fn volume(&self, root: &Root, id: &VolumeId) -> Result<(PathBuf, Meta)> {
        let found = Self::volume_if_there(root, id)?;
        found.ok_or_else(|| Error::NotFound(format!("volume {id} does not exist on node {}", self.node)))
    }

    pub(super) fn volume_if_there(root: &Root, id: &VolumeId) -> Result<Option<(PathBuf, Meta)>> {
        object_named(root, Objects::Volumes, id.uuid, &id.to_string())
    }

    /// Refuses where the volume shows on this node; takes away a device that an interrupted stage left.
    pub(super) async fn let_go(&self, folder: &Path, meta: &Meta) -> Result<()> {
        let used = |how: String| Err(Error::Precondition(format!("volume {} is in use: {how}", meta.id)));
        if meta.kind == Kind::Directory {
            return match directory::shown_at(self.host.as_ref(), &root::data(folder))? {
                Some(place) => used(format!("it shows at {}: unstage it first", place.display())),
                None => Ok(()),
            };
        }
        for device in loops::on(self.host.as_ref(), &root::image(folder)).await? {
            if let Err(error) = loops::detach(self.host.as_ref(), &device).await {
                return used(error.to_string());
            }
        }
        Ok(())
    }

    /// An empty folder to make an object in. What an attempt before left in it goes.
    pub(super) async fn making(&self, root: &Root, uuid: Uuid) -> Result<PathBuf> {
        trash::remove(self.host.as_ref(), root, &root.making(uuid)).await?;
        io(|| root.make(uuid))
    }

    pub(super) fn elsewhere(&self, name: &str) -> Error {
        Error::NoSpace(format!(
            "{name:?} is wanted elsewhere: this driver makes volumes on node {} alone ({:?})",
            self.node,
            self.segments()
        ))
    }

    async fn make(&self, root: &Root, new: &New<'_>, folder: &Path) -> Result<Meta> {
        let New { request, plan, id, size, start } = *new;
        let mut meta = Meta::new(id.to_string(), request.name.clone(), plan.kind, size);
        meta.context.clone_from(&plan.context);
        meta.direct_io = plan.direct_io;
        meta.source = request.source.as_ref().map(Origin::from);
        match (plan.kind, start) {
            (Kind::Directory, _) => {
                meta.project = self.make_directory(root, folder, id.uuid, request.size, size).await?;
            }
            (Kind::Image, None) => new_file(&root::image(folder), size)?,
            (Kind::Image, Some(start)) => {
                let image = root::image(folder);
                meta.shared = self.copies.copy(self.host.as_ref(), &start.image, &image).await?;
                meta.format.clone_from(&start.meta.format);
                grow(&image, size)?;
            }
        }
        io(|| meta.write(folder))?;
        Ok(meta)
    }

    fn start(&self, root: &Root, source: &Source) -> Result<Start> {
        let (objects, id, what) = match source {
            Source::Snapshot(id) => (Objects::Snapshots, id.to_string(), "snapshot"),
            Source::Volume(id) => (Objects::Volumes, id.to_string(), "volume"),
        };
        let Some((folder, meta)) = object_named(root, objects, source.uuid(), &id)? else {
            return Err(self.no_source(source, &format!("{what} {id}")));
        };
        if meta.kind == Kind::Directory {
            return Err(Error::Invalid(format!("{what} {id} is a directory volume, which cannot be copied")));
        }
        Ok(Start { image: root::image(&folder), meta })
    }

    /// NOT_FOUND is final for the provisioner; one that is on another node makes it look there.
    fn no_source(&self, source: &Source, what: &str) -> Error {
        let pool = match source {
            Source::Snapshot(id) => &id.own.pool,
            Source::Volume(id) => &id.pool,
        };
        if *pool == self.id(source.uuid()).pool {
            Error::NotFound(format!("{what} does not exist on node {}", self.node))
        } else {
            Error::NoSpace(format!("{what} is on another node than {}: make the volume there", self.node))
        }
    }
}

/// A file without blocks.
fn new_file(path: &Path, size: u64) -> Result<()> {
    io(|| {
        let file = File::create_new(path)?;
        file.set_len(size)?;
        file.sync_all()
    })
    .map_err(|error| failed(&format!("making {}", path.display()), error))
}

/// Never makes a file shorter.
fn grow(path: &Path, size: u64) -> Result<()> {
    io(|| {
        let file = File::options().write(true).open(path)?;
        if file.metadata()?.len() < size {
            file.set_len(size)?;
        }
        file.sync_all()
    })
    .map_err(|error| failed(&format!("growing {} to {size} bytes", path.display()), error))
}

/// At least as large as what it starts from.
fn size(request: &CreateVolume, start: Option<&Start>) -> Result<u64> {
    let Some(start) = start else { return request.size.choose(GRANULE) };
    let least = start.meta.size;
    let range = SizeRange { required: request.size.required.max(least), ..request.size };
    range.choose(GRANULE).map_err(|error| match error {
        Error::OutOfRange(text) => Error::OutOfRange(format!("{text}: {} has {least} bytes", start.meta.id)),
        other => other,
    })
}

fn same_volume(request: &CreateVolume, plan: &Plan, meta: &Meta) -> Result<()> {
    let differs = |what: String| Err(Error::Conflict(format!("volume {:?} exists, {what}", request.name)));
    if !request.size.admits(meta.size) {
        return differs(format!("with {} bytes, where {} are asked for", meta.size, request.size));
    }
    if plan.kind != meta.kind || plan.context != meta.context {
        let parts = |kind: Kind, context: &Parameters| format!("volumeType={kind} and {context:?}");
        let (there, asked) = (parts(meta.kind, &meta.context), parts(plan.kind, &plan.context));
        return differs(format!("made with {there}, where {asked} are asked for"));
    }
    let source = request.source.as_ref().map(Origin::from);
    if source != meta.source {
        let (there, asked) = (Origin::named(meta.source.as_ref()), Origin::named(source.as_ref()));
        return differs(format!("made from {there}, where {asked} is asked for"));
    }
    Ok(())
}
