//! NodeExpandVolume, and the growing at stage: a filesystem takes the size that its device has.

use std::path::Path;

use crate::backend::{Attach, FormatMark, Image, Stashed};
use crate::error::{Error, Result, chain};
use crate::fs::{self, Check, NotGrown};
use crate::host::Mount;

use super::device::number;
use super::stash::{self, Found};
use super::{ExpandVolume, Kind, Node, find, kind, stage};

impl Node {
    /// Answers the size of the volume in bytes.
    pub(crate) async fn expand(&self, request: &ExpandVolume) -> Result<u64> {
        let volume = &request.target.volume;
        let mounts = self.host.mounts()?;
        let found = find(&mounts, volume, &request.path)?.staged;
        let told = request.staging.as_ref().map(|staging| stage::place(staging, volume));
        let staged =
            mounts.iter().find(|mount| told.as_ref() == Some(&mount.target) && mount.same_source(found));
        let staged = staged.unwrap_or(found);
        self.serve(&request.target, None, request.size.required).await?;
        let size = self.backend.refresh(&self.image(volume, staged).await?).await?;
        if request.size.required > size {
            // Not OUT_OF_RANGE: kubelet gives up what it takes for infeasible, and this passes.
            return Err(Error::Precondition(format!(
                "volume {volume} has {size} bytes, and {} are asked for: expand it on the controller first",
                request.size.required
            )));
        }
        let opened = self.grow_opened(volume).await?;
        match kind(staged) {
            Kind::Filesystem => self.grow_staged(volume, staged).await?,
            Kind::Block | Kind::Directory => {}
        }
        Ok(opened.unwrap_or(size))
    }

    /// The stash names it; where that is lost, the kernel does.
    pub(super) async fn image(&self, volume: &str, staged: &Mount) -> Result<Image> {
        if let Some(Found::Stashed(stashed)) = staged.target.parent().map(stash::read).transpose()? {
            return Ok(stashed.image);
        }
        let images = self.backend.attached(volume).await?;
        let [Stashed { image, .. }] = images.as_slice() else {
            return Err(Error::Precondition(format!(
                "the stash beside {} is lost, and {} images attached to this node could be volume {volume}: unstage it, \
                 and stage it again",
                staged.target.display(),
                images.len()
            )));
        };
        Ok(image.clone())
    }

    async fn grow_staged(&self, volume: &str, staged: &Mount) -> Result<()> {
        let device = &staged.source;
        is_device_of(device, staged)?;
        if !fs::is_smaller(device).await? {
            return Ok(());
        }
        if staged.read_only() {
            return Err(Error::Precondition(format!(
                "volume {volume} is read-only at {} ({}; {}), and is not grown: stage it read-write",
                staged.target.display(),
                staged.options,
                staged.super_options
            )));
        }
        let grown = fs::grow(self.host.as_ref(), device, &staged.fs_type, Some(&staged.target)).await;
        grown.map_err(NotGrown::into_error)
    }

    /// Makes a filesystem ready to be mounted, and grows one that only now can be: a snapshot restored to a larger size,
    /// or a volume that was expanded while it was nowhere in use.
    /// What grows unmounted is marked meanwhile: cut off, it is mended, which nothing else that is broken is.
    pub(super) async fn check_and_grow(
        &self,
        attach: &Attach,
        mark: &FormatMark,
        device: &Path,
        fs_type: &str,
    ) -> Result<()> {
        let host = self.host.as_ref();
        let cut_off = matches!(mark, FormatMark::Growing(_));
        if cut_off {
            tracing::warn!(device = %device.display(), "a growing was cut off: the filesystem is mended");
            fs::check(host, device, fs_type, Check::Mend).await?;
        }
        let grow = !fs::grows_mounted(fs_type) && fs::is_smaller(device).await?;
        if !cut_off {
            fs::check(host, device, fs_type, if grow { Check::All } else { Check::Usual }).await?;
        }
        let marked = !attach.target.is_static();
        if grow {
            if marked {
                self.backend.mark_format(attach, &FormatMark::Growing(fs_type.to_owned())).await?;
            }
            match fs::grow(host, device, fs_type, None).await {
                Ok(()) => {}
                Err(NotGrown::CutOff(error)) => return Err(error),
                Err(NotGrown::Refused(error)) => {
                    tracing::error!("the filesystem stays smaller than its volume: {}", chain(&error));
                    fs::check(host, device, fs_type, Check::All).await?;
                }
            }
        }
        if marked && (grow || cut_off) {
            self.backend.mark_format(attach, &FormatMark::Done(fs_type.to_owned())).await?;
        }
        Ok(())
    }

    /// Grows a filesystem that its stage had to leave small, or better did, until it was mounted. Answers why it stays
    /// small: its data can be used all the same, and NodeExpandVolume tells.
    pub(super) async fn grow_mounted(&self, mount: &Mount) -> Result<Option<Error>> {
        let device = &mount.source;
        if mount.is_part() || !fs::grows_mounted(&mount.fs_type) {
            return Ok(None);
        }
        is_device_of(device, mount)?;
        if !fs::is_smaller(device).await? {
            return Ok(None);
        }
        let grown = fs::grow(self.host.as_ref(), device, &mount.fs_type, Some(&mount.target)).await;
        Ok(grown.err().map(NotGrown::into_error))
    }
}

/// The name of a device that is gone may be another one's by now.
fn is_device_of(device: &Path, mount: &Mount) -> Result<()> {
    let number = number(device)
        .map_err(|error| Error::internal(format!("looking at the device {}", device.display()), error))?;
    if number == mount.device {
        return Ok(());
    }
    Err(Error::Precondition(format!(
        "{} was mounted from {} as device {}, which is {number} now: unstage the volume (end its pods), and stage it again",
        mount.target.display(),
        device.display(),
        mount.device
    )))
}
