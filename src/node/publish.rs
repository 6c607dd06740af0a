//! NodePublishVolume and NodeUnpublishVolume: the staged volume shown at a pod's path, and taken away.

use std::path::Path;

use crate::backend::Access;
use crate::error::{Error, Result};
use crate::host::{Mount, MountCall};

use super::device::{SYS, device_is_read_only, number};
use super::health::gone;
use super::stage::{place, published};
use super::{Node, PublishVolume, make_mount_point, remove, resolved};

impl Node {
    pub(crate) async fn publish(&self, request: &PublishVolume) -> Result<()> {
        let volume = &request.target.volume;
        let (source, target) = (place(&request.staging, volume), resolved(&request.path));
        let mounts = self.host.mounts()?;
        let staged = mounts.iter().rfind(|mount| mount.target == source).ok_or_else(|| {
            Error::Precondition(format!(
                "volume {} is not staged at {}: stage it first",
                volume,
                source.display()
            ))
        })?;
        if let Some(gone) = gone(staged, Path::new(SYS)) {
            return Err(Error::Precondition(format!("volume {}: {gone}", request.target.volume)));
        }
        self.serve(&request.target, Some(request.capability.mode), 0).await?;
        let read_only = request.read_only || request.capability.mode.read_only();
        let block = fits(request, staged, &source, read_only)?;
        if let Some(there) = mounts.iter().rfind(|mount| mount.target == target) {
            return same_publish(request, staged, there, read_only);
        }
        let elsewhere = published(&mounts, staged, volume);
        if let Some(other) = elsewhere.filter(|_| request.capability.mode.single_target()) {
            return Err(Error::Precondition(format!(
                "volume {} is published at {} and its access mode allows one target: unpublish it there",
                request.target.volume,
                other.display()
            )));
        }
        if let Some(why) = self.lost(staged) {
            return Err(Error::Precondition(why));
        }
        make_mount_point(&target, block)?;
        let options = match &request.capability.access {
            Access::Block => Vec::new(),
            Access::Mount { flags, .. } => flags.clone(),
        };
        let what = format!("showing {} at {}", source.display(), target.display());
        let call = MountCall::Bind { source, target: target.clone(), options, read_only };
        if let Err(error) = self.host.mount(call).await {
            remove(&target)?;
            return Err(Error::internal(what, error));
        }
        Ok(())
    }

    pub(crate) async fn unpublish(&self, path: &Path) -> Result<()> {
        self.clear(&resolved(path)).await
    }
}

/// True for a block volume. A read-only bind of a device node stops no write: the device itself has to be read-only.
fn fits(request: &PublishVolume, staged: &Mount, source: &Path, read_only: bool) -> Result<bool> {
    let block = request.capability.access == Access::Block;
    if block == source.is_dir() {
        return Err(Error::Precondition(format!(
            "volume {} is staged as a {}: publish it as one",
            request.target.volume,
            if block { "filesystem" } else { "block device" }
        )));
    }
    if read_only && block && !number(source).is_ok_and(|number| device_is_read_only(&number, Path::new(SYS)))
    {
        return Err(Error::Precondition(format!(
            "volume {} is attached read-write, and a read-only block volume needs a read-only device: use a read-only access mode",
            request.target.volume
        )));
    }
    if !block && !read_only && staged.read_only() {
        return Err(Error::Precondition(format!(
            "volume {} is staged read-only: publish it read-only",
            request.target.volume
        )));
    }
    Ok(block)
}

/// A repeated publish: fine when it asks for what is there.
fn same_publish(request: &PublishVolume, staged: &Mount, there: &Mount, read_only: bool) -> Result<()> {
    let block = request.capability.access == Access::Block;
    if there.same_source(staged) && (block || there.read_only() == read_only) {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "{} already shows something else than volume {} {}: {} from {}, {}",
        there.target.display(),
        request.target.volume,
        if read_only { "read-only" } else { "read-write" },
        there.root.display(),
        there.source.display(),
        there.options
    )))
}
