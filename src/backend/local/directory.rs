//! Directory volumes: a folder, held to its size by a project quota where the filesystem of the root offers one.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use uuid::Uuid;

use crate::backend::SizeRange;
use crate::error::{Error, Result};
use crate::host::{Host, Mount};

use super::meta::Meta;
use super::quota::{Quotas, mount_of};
use super::root::{self, Root};
use super::{Local, failed, io};

impl Local {
    /// The folder of a directory volume, and the number of its quota.
    pub(super) async fn make_directory(
        &self,
        root: &Root,
        folder: &Path,
        uuid: Uuid,
        range: SizeRange,
        size: u64,
    ) -> Result<Option<u32>> {
        let data = root::data(folder);
        io(|| std::fs::create_dir(&data))
            .map_err(|error| failed(&format!("making {}", data.display()), error))?;
        let Some(quotas) = Quotas::around(self.host.as_ref(), &root.path_now())? else {
            refuse_limit(range, root.path())?;
            return Ok(None);
        };
        let project = quotas.give(&data, uuid).await?;
        quotas.limit(project, size).await?;
        Ok(Some(project))
    }
}

/// Sees to it that a volume that was made with a limit has it, and the right one.
pub(super) async fn enforce(host: &dyn Host, object: &Path, meta: &Meta) -> Result<()> {
    let Some(project) = meta.project else { return Ok(()) };
    let data = root::data(object);
    let data =
        data.canonicalize().map_err(|error| failed(&format!("looking at {}", data.display()), error))?;
    let Some(quotas) = Quotas::around(host, &data)? else {
        return Err(Error::Precondition(format!(
            "volume {} was made with a limit of {} bytes, and the filesystem that holds {} does not enforce it: mount it with \
             prjquota",
            meta.id,
            meta.size,
            data.display()
        )));
    };
    quotas.limit(project, meta.size).await
}

/// Inside a folder with a project quota, statvfs(2) tells the quota's numbers, unless the filesystem is smaller.
pub(super) fn is_held(object: &Path, meta: &Meta) -> bool {
    meta.project.is_none()
        || statvfs(&root::data(object)).is_ok_and(|stat| stat.blocks() * stat.fragment_size() <= meta.size)
}

/// Without a quota nothing keeps a folder below `limit_bytes`; what is required at least is free room, and was promised.
pub(super) fn refuse_limit(range: SizeRange, root: &Path) -> Result<()> {
    match range.limit {
        None => Ok(()),
        Some(limit) => Err(Error::OutOfRange(format!(
            "limit_bytes {limit}: nothing holds a directory volume to a size, because the filesystem of --local-root {} has no \
             project quotas: mount it with prjquota (ext4: made with -O project,quota), use volumeType=image, or leave the limit out",
            root.display()
        ))),
    }
}

/// Where a folder, or a part of it, shows, or what is mounted in it.
pub(super) fn shown_at(host: &dyn Host, folder: &Path) -> Result<Option<PathBuf>> {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let around = mount_of(host, &folder)?;
    let inside =
        folder.strip_prefix(&around.target).map_or_else(|_| folder.clone(), |tail| around.root.join(tail));
    let bound = |mount: &Mount| mount.device == around.device && mount.root.starts_with(&inside);
    let found = host.mounts()?.into_iter().find(|mount| bound(mount) || mount.target.starts_with(&folder));
    Ok(found.map(|mount| mount.target))
}
