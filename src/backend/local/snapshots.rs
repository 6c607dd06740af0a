//! Snapshots: copies of an image as it was at one instant, which live on when their volume goes.

use uuid::Uuid;

use crate::backend::names::RESERVED;
use crate::backend::{CreateSnapshot, Listing, Page, Parameters, Snapshot};
use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId, snapshot_uuid};

use super::meta::{Meta, Origin};
use super::params::Kind;
use super::root::{self, Objects, Root};
use super::state::page_of;
use super::{CLUSTER, Local, failed, io, object_named, object_of, trash};

/// Of a VolumeSnapshotClass nothing is known but the names of the CO.
pub(super) fn check_parameters(parameters: &Parameters) -> Result<()> {
    match parameters.keys().find(|name| !name.starts_with(RESERVED)) {
        Some(name) => Err(Error::Invalid(format!(
            "snapshot parameter {name:?} is not known to --type=local: leave it out"
        ))),
        None => Ok(()),
    }
}

impl Local {
    pub(super) async fn create_snapshot(&self, request: &CreateSnapshot) -> Result<Snapshot> {
        let root = self.root().await?;
        let id = SnapshotId::new(&request.source, snapshot_uuid(&self.instance, CLUSTER, &request.name));
        if let Some((_, meta)) = object_of(&root, Objects::Snapshots, id.own.uuid)? {
            if meta.id != id.to_string() {
                return Err(Error::Conflict(format!(
                    "snapshot {:?} exists, of {}, where one of {} is asked for",
                    request.name,
                    Origin::named(meta.source.as_ref()),
                    request.source
                )));
            }
            return self.told_snapshot(&meta);
        }
        if !request.places.admit(&self.segments()) {
            return Err(self.elsewhere(&request.name));
        }
        let (source, from) = self.volume(&root, &request.source)?;
        if from.kind == Kind::Directory {
            return Err(Error::Invalid(format!(
                "volume {} is a directory volume, of which there are no snapshots: use volumeType=image",
                request.source
            )));
        }
        let image = root::image(&source);
        let held =
            root::held(&image).map_err(|error| failed(&format!("looking at {}", image.display()), error))?;
        let _promise = io(|| self.room.promise(&root, held))?;
        let folder = self.making(&root, id.own.uuid).await?;
        let mut meta = Meta::new(id.to_string(), request.name.clone(), Kind::Image, from.size);
        meta.source = Some(Origin::Volume(request.source.to_string()));
        meta.format = from.format;
        let copied = self.copies.copy(self.host.as_ref(), &image, &root::image(&folder)).await;
        let made = copied.and_then(|shared| {
            meta.shared = shared;
            io(|| meta.write(&folder).and_then(|()| root.commit(&folder, Objects::Snapshots, id.own.uuid)))
        });
        if let Err(error) = made {
            let _ = trash::remove(self.host.as_ref(), &root, &folder).await;
            return Err(error);
        }
        self.told_snapshot(&meta)
    }

    pub(super) fn snapshot_state(&self, root: &Root, id: &SnapshotId) -> Result<Snapshot> {
        let found = object_named(root, Objects::Snapshots, id.own.uuid, &id.to_string())?;
        let (_, meta) = found
            .ok_or_else(|| Error::NotFound(format!("snapshot {id} does not exist on node {}", self.node)))?;
        self.told_snapshot(&meta)
    }

    pub(super) async fn remove_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let (root, uuid) = (self.root().await?, id.own.uuid);
        match object_named(&root, Objects::Snapshots, uuid, &id.to_string())? {
            Some(_) => io(|| root.discard(Objects::Snapshots, uuid))?,
            None => self.prove_absent(&root, Objects::Snapshots, &id.own)?,
        }
        self.empty_trash(&root, uuid).await
    }

    pub(super) fn snapshots_of(
        &self,
        root: &Root,
        source: Option<&VolumeId>,
        page: &Page,
    ) -> Result<Listing<Snapshot>> {
        let wanted = source.map(|id| Origin::Volume(id.to_string()));
        let read = |uuid: Uuid| {
            let meta = io(|| Meta::read(&root.object(Objects::Snapshots, uuid)))?;
            let meta = meta.filter(|meta| wanted.is_none() || meta.source == wanted);
            meta.map(|meta| self.told_snapshot(&meta)).transpose()
        };
        let one = |uuid: Uuid| {
            // It cannot be told whose it is; the others can.
            let left_out = |error| tracing::error!(%uuid, "a snapshot is left out of the list: {error}");
            Ok(read(uuid).map_err(left_out).ok().flatten())
        };
        page_of(root.uuids(Objects::Snapshots)?, page, one)
    }

    fn told_snapshot(&self, meta: &Meta) -> Result<Snapshot> {
        let (id, reached_from) = (SnapshotId::parse(&meta.id)?, vec![self.segments()]);
        let source = id.source_volume().ok_or_else(|| {
            Error::broken(format!("snapshot {id}: its id names no source: meta.json was changed by hand"))
        })?;
        Ok(Snapshot { id, source, size: meta.size, created: meta.created(), reached_from })
    }
}
