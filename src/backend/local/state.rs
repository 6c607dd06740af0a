//! What is there, how much more fits, and what is wrong with it.

use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};
use uuid::Uuid;

use crate::backend::{
    Ailment, Capacity, CapacityQuery, Image, Listing, Page, Parameters, Severity, Volume, VolumeState, is_in,
};
use crate::error::{Error, Result, chain};
use crate::id::VolumeId;

use super::meta::Meta;
use super::params::{self, Kind};
use super::root::{self, Objects, Root};
use super::{GRANULE, Local, directory, folder, io};

/// A root with less room than this share of its size, in hundredths, or than 64 MiB, is about to fail its volumes.
const NEARLY_FULL: u64 = 1;
const LITTLE: u64 = 64 << 20;

impl Local {
    pub(super) fn volume_state(&self, root: &Root, id: &VolumeId) -> Result<VolumeState> {
        let state = io(|| self.state_of(root, id.uuid)).filter(|state| state.volume.id == *id);
        state.ok_or_else(|| Error::NotFound(format!("volume {id} does not exist on node {}", self.node)))
    }

    pub(super) fn list_volumes(&self, root: &Root, page: &Page) -> Result<Listing<VolumeState>> {
        io(|| page_of(root.uuids(Objects::Volumes)?, page, |uuid| Ok(self.state_of(root, uuid))))
    }

    pub(super) async fn free_capacity(&self, query: &CapacityQuery) -> Result<Capacity> {
        params::kind(&query.parameters)?;
        let here = query.place.as_ref().is_none_or(|wanted| is_in(&self.segments(), wanted));
        let root = self.root().await?;
        let available = if here { io(|| self.room.free(&root))? } else { 0 };
        Ok(Capacity { available, maximum: available / GRANULE * GRANULE, minimum: GRANULE })
    }

    /// A volume whose metadata cannot be read is told of, with what can be known of it.
    fn state_of(&self, root: &Root, uuid: Uuid) -> Option<VolumeState> {
        let object = root.object(Objects::Volumes, uuid);
        let known = match Meta::read(&object) {
            Ok(None) => return None,
            Ok(Some(meta)) => self.known_state(&object, &meta),
            Err(error) => Err(error),
        };
        Some(known.unwrap_or_else(|error| {
            let size = root::image(&object).metadata().map_or(0, |meta| meta.len());
            let reached_from = vec![self.segments()];
            let id = self.id(uuid);
            let volume = Volume { id, size, context: Parameters::new(), source: None, reached_from };
            VolumeState { volume, nodes: Vec::new(), health: vec![unreadable(&error)] }
        }))
    }

    fn known_state(&self, object: &Path, meta: &Meta) -> Result<VolumeState> {
        let volume = self.told_volume(VolumeId::parse(&meta.id)?, meta)?;
        let nodes = meta.published.iter().map(|published| published.node.clone()).collect();
        Ok(VolumeState { volume, nodes, health: ailments(object, meta) })
    }
}

/// One page of a list in order of uuid.
pub(super) fn page_of<T>(
    uuids: Vec<Uuid>,
    page: &Page,
    one: impl Fn(Uuid) -> Result<Option<T>>,
) -> Result<Listing<T>> {
    let (mut entries, mut last) = (Vec::new(), None);
    for uuid in uuids.into_iter().filter(|uuid| page.after.is_none_or(|after| *uuid > after)) {
        let Some(entry) = one(uuid)? else { continue };
        if page.most.is_some_and(|most| entries.len() >= most) {
            return Ok(Listing { entries, next: last });
        }
        entries.push(entry);
        last = Some(uuid);
    }
    Ok(Listing { entries, next: None })
}

/// What is wrong with a volume that is staged here.
pub(super) fn image_health(image: &Image) -> Vec<Ailment> {
    let Ok(object) = folder(image) else { return Vec::new() };
    let mut found = match Meta::read(&object) {
        Ok(Some(meta)) => ailments(&object, &meta),
        Ok(None) => vec![lost(&object)],
        Err(error) => vec![unreadable(&error)],
    };
    found.extend(Path::new(&image.pool).parent().map(root_health).unwrap_or_default());
    found
}

/// What is wrong with the root and so with all of its volumes.
pub(super) fn root_health(path: &Path) -> Vec<Ailment> {
    let ailment = |severity, reason, message| vec![Ailment { severity, reason, message }];
    let stat = match root::identity(path).map(|_| statvfs(path)) {
        Ok(Ok(stat)) => stat,
        Ok(Err(errno)) => {
            let message = format!("--local-root {} does not answer: {errno}", path.display());
            return ailment(Severity::Inaccessible, "RootUnreachable", message);
        }
        Err(error) => return ailment(Severity::Inaccessible, "RootMissing", chain(&error)),
    };
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        let message = format!(
            "the filesystem of --local-root {} is read-only: look at the kernel's log",
            path.display()
        );
        return ailment(Severity::Inaccessible, "RootReadOnly", message);
    }
    let [free, all] = [stat.blocks_available(), stat.blocks()].map(|blocks| blocks * stat.fragment_size());
    if free < LITTLE.min(all / 10) || free < all / 100 * NEARLY_FULL {
        let message =
            format!("--local-root {} has {free} of {all} bytes left: writes will fail soon", path.display());
        return ailment(Severity::Degraded, "RootNearlyFull", message);
    }
    Vec::new()
}

fn ailments(object: &Path, meta: &Meta) -> Vec<Ailment> {
    let whole = match meta.kind {
        Kind::Image => root::image(object).metadata().is_ok_and(|file| file.len() >= meta.size),
        Kind::Directory => root::data(object).is_dir(),
    };
    if !whole {
        return vec![lost(object)];
    }
    if meta.kind == Kind::Directory && !directory::is_held(object, meta) {
        let message = format!(
            "nothing holds volume {} to its {} bytes: mount the filesystem of --local-root with prjquota, and stage the volume anew",
            meta.id, meta.size
        );
        return vec![Ailment { severity: Severity::Degraded, reason: "LimitNotEnforced", message }];
    }
    Vec::new()
}

fn lost(object: &Path) -> Ailment {
    let message =
        format!("the data below {} is gone or too short: put it back from a backup", object.display());
    Ailment { severity: Severity::DataLoss, reason: "DataMissing", message }
}

fn unreadable(error: &Error) -> Ailment {
    Ailment { severity: Severity::Inaccessible, reason: "MetadataUnreadable", message: chain(error) }
}
