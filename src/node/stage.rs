//! NodeStageVolume and NodeUnstageVolume: attach, format if and only if that is safe, mount; and the way back.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::backend::{Access, Attach, Attached, FormatMark};
use crate::error::{Error, Result, chain};
use crate::fs::{self, Content};
use crate::host::{Mount, MountCall};

use super::stash::{self, Found};
use super::{Node, StageVolume, make_mount_point, resolved};

impl Node {
    pub(crate) async fn stage(&self, request: &StageVolume) -> Result<()> {
        make_mount_point(&request.staging, false)?;
        let place = place(&request.staging, &request.target.volume);
        if let Some(mount) = self.mount_at(&place)? {
            if device_exists(&mount) {
                return same_use(request, &mount, &place);
            }
            tracing::warn!(place = %place.display(), "the device behind this mount is gone: it is staged anew");
            self.clear(&place).await?;
        }
        match self.attach_and_mount(request, &place).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo(request, error).await),
        }
    }

    pub(crate) async fn unstage(&self, volume: &str, staging: &Path) -> Result<()> {
        let place = place(staging, volume);
        let images = match stash::read(staging)? {
            Found::Image(image) => vec![image],
            Found::Nothing => self.backend.attached(volume).await?,
            Found::Torn(why) => {
                tracing::warn!(staging = %staging.display(), "the stash cannot be used ({why}): the kernel's list of maps is");
                self.backend.attached(volume).await?
            }
        };
        self.clear(&place).await?;
        for image in &images {
            self.backend.detach(image).await?;
        }
        stash::remove(staging)
    }

    async fn attach_and_mount(&self, request: &StageVolume, place: &Path) -> Result<()> {
        let image = self.backend.locate(&request.target).await?;
        stash::write(&request.staging, &image)?;
        let (target, mode, node) = (request.target.clone(), request.capability.mode, self.id.clone());
        let attach = Attach { target, image, mode, node };
        let attached = self.backend.attach(&attach).await?;
        self.mount_device(request, &attach, &attached, place).await
    }

    /// Takes everything back: kubelet sends no NodeUnstageVolume after a final error. Nothing was mounted when this call
    /// began, so what an earlier, killed call attached goes too.
    async fn undo(&self, request: &StageVolume, error: Error) -> Error {
        match self.unstage(&request.target.volume, &request.staging).await {
            Ok(()) => error,
            // The stash stays, and with it the way back.
            Err(undo) => {
                Error::Busy(format!("{}; and taking it back failed too: {}", chain(&error), chain(&undo)))
            }
        }
    }

    /// Formats where that is safe, and shows the device at its place.
    async fn mount_device(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
        place: &Path,
    ) -> Result<()> {
        let read_only = attach.mode.read_only();
        let call = match &request.capability.access {
            Access::Block => {
                make_mount_point(place, true)?;
                let (source, target) = (attached.device.clone(), place.to_owned());
                MountCall::Bind { source, target, options: Vec::new(), read_only }
            }
            Access::Mount { fs_type, flags } => {
                self.make_filesystem(request, attach, attached, fs_type).await?;
                make_mount_point(place, false)?;
                let options = fs::mount_options(fs_type, flags, read_only);
                let (device, target) = (attached.device.clone(), place.to_owned());
                MountCall::Filesystem { device, target, fs_type: fs_type.clone(), options }
            }
        };
        let what = format!("mounting {} at {}", attached.device.display(), place.display());
        self.host.mount(call).await.map_err(|error| Error::internal(what, error))?;
        if matches!(request.capability.access, Access::Mount { .. }) && !read_only {
            let place = place.to_owned();
            let opened = tokio::task::spawn_blocking(move || open_new_root(&place)).await;
            opened.map_err(|error| Error::internal("looking at a new filesystem", error))??;
        }
        Ok(())
    }

    /// Leaves a filesystem of this type on the device, or refuses. Nothing that holds data is ever formatted: no probe
    /// alone decides, because a filesystem whose first MiB is lost probes as nothing.
    async fn make_filesystem(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
        fs_type: &str,
    ) -> Result<()> {
        let device = attached.device.as_path();
        let content = fs::probe(self.host.as_ref(), device).await?;
        let refuse = |what: String| {
            Err(Error::Precondition(format!("volume {} is not formatted: {what}", request.target.volume)))
        };
        match (&attached.format, &content) {
            // Half-made by us, and no pod has seen it: mounts come only after "done".
            (FormatMark::Begun(_), _) if attach.mode.read_only() => {
                refuse("its first stage has to be read-write".to_owned())
            }
            (FormatMark::Begun(_), _) => self.format(request, attach, device, fs_type, false).await,
            (_, Content::Filesystem(found)) if found == fs_type => {
                if attach.mode.read_only() {
                    Ok(())
                } else {
                    fs::check(self.host.as_ref(), device, fs_type).await
                }
            }
            (_, Content::Filesystem(found)) => {
                refuse(format!("it holds {found}, and {fs_type} is asked for: ask for {found}"))
            }
            (_, Content::Other(found)) => {
                refuse(format!("it holds {found}, no filesystem: use it as a block volume"))
            }
            (FormatMark::Done(made), Content::Nothing) => refuse(format!(
                "it was made {made} by this driver, and there is none now: its data has vanished or was overwritten; do not format it, look at the image {}",
                attach.image
            )),
            (FormatMark::Never, Content::Nothing) if request.target.is_static() => refuse(
                "a static volume is never formatted: make a filesystem on the image by hand".to_owned(),
            ),
            (FormatMark::Never, Content::Nothing) if attach.mode.read_only() => {
                refuse("it is empty, and staged read-only".to_owned())
            }
            (FormatMark::Never, Content::Nothing) => {
                if !self.backend.is_empty(attach).await? {
                    return refuse(format!(
                        "no signature is on it, but blocks of image {} were written: there may be data; look at it",
                        attach.image
                    ));
                }
                self.format(request, attach, device, fs_type, true).await
            }
        }
    }

    /// "begun" before and "done" after, so that a kill in between is told from a volume with data.
    async fn format(
        &self,
        request: &StageVolume,
        attach: &Attach,
        device: &Path,
        fs_type: &str,
        fresh: bool,
    ) -> Result<()> {
        let options = request.target.context.get("mkfsOptions").map(String::as_str);
        self.backend.mark_format(attach, &FormatMark::Begun(fs_type.to_owned())).await?;
        fs::format(self.host.as_ref(), device, fs_type, options, fresh).await?;
        self.backend.mark_format(attach, &FormatMark::Done(fs_type.to_owned())).await
    }
}

/// Where the volume shows inside its staging folder: ceph-csi's layout.
pub(super) fn place(staging: &Path, volume: &str) -> PathBuf {
    resolved(&staging.join(volume))
}

/// A repeated stage: fine when it asks for what is there.
fn same_use(request: &StageVolume, mount: &Mount, place: &Path) -> Result<()> {
    let fits = match &request.capability.access {
        Access::Block => !place.is_dir(),
        Access::Mount { fs_type, .. } => place.is_dir() && mount.fs_type == *fs_type,
    };
    let read_only = mount.read_only() == request.capability.mode.read_only();
    if fits && (read_only || !place.is_dir()) {
        return Ok(());
    }
    Err(Error::Conflict(format!(
        "volume {} is staged at {} in another way ({} {}): unstage it first",
        request.target.volume,
        place.display(),
        mount.fs_type,
        mount.options
    )))
}

/// Whether the kernel still has the device of a mounted filesystem (a bound device node says nothing about it).
fn device_exists(mount: &Mount) -> bool {
    mount.device.starts_with("0:") || Path::new("/sys/dev/block").join(&mount.device).exists()
}

/// A new filesystem belongs to root and nobody else may write: as ceph-csi does, pods of any user may, until
/// somebody decides otherwise. What was decided, or written, stays.
fn open_new_root(place: &Path) -> Result<()> {
    let failed = |error| Error::internal(format!("setting the mode of {}", place.display()), error);
    let meta = place.metadata().map_err(failed)?;
    let entries = std::fs::read_dir(place).map_err(failed)?;
    let untouched = entries.flatten().all(|entry| entry.file_name() == "lost+found");
    if untouched && meta.uid() == 0 && meta.mode() & 0o7777 == 0o755 {
        std::fs::set_permissions(place, Permissions::from_mode(0o777)).map_err(failed)?;
    }
    Ok(())
}
