//! NodeStageVolume and NodeUnstageVolume: attach, format if and only if that is safe, mount; and the way back.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::{Access, Attach, Attached, Capability, Detach, FormatMark, Shown};
use crate::error::{Error, Result, chain};
use crate::fs::{self, Content};
use crate::host::{Mount, MountCall};

use super::device::SYS;
use super::health::gone;
use super::replay;
use super::stash::{self, Found};
use super::unlock::attached_device;
use super::{Node, StageVolume, is_staged, make_mount_point, not_mounted, refuse_link, resolved};

/// Looking at the root folder of a new filesystem.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

impl Node {
    pub(crate) async fn stage(&self, request: &StageVolume) -> Result<()> {
        make_mount_point(&request.staging, false)?;
        let place = place(&request.staging, &request.target.volume);
        let mounts = self.host.mounts()?;
        if let Some(mount) = mounts.iter().rfind(|mount| mount.target == place) {
            if self.is_in_place(request, &mounts, mount, &place).await? {
                return Ok(());
            }
            tracing::warn!(place = %place.display(), "the device behind this mount is gone or useless: it is staged anew");
            self.clear(&place).await?;
            // Not taken for one over a device of the same name.
            self.lock(&request.target.volume, None, &[]).await?;
        }
        let (attach, attached) = match self.attach(request).await {
            Ok(attached) => attached,
            Err(error) => return Err(self.undo(request, error).await),
        };
        if let Some(other) = self.staged_elsewhere(&request.target.volume, &attached, &place)? {
            // The device is the other's: only the stash is ours.
            stash::remove(&request.staging)?;
            return Err(Error::Precondition(format!(
                "volume {} is staged at {}: unstage it there first",
                request.target.volume,
                other.display()
            )));
        }
        match self.mount_device(request, &attach, &attached, &place).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.undo(request, error).await),
        }
    }

    pub(crate) async fn unstage(&self, volume: &str, staging: &Path) -> Result<()> {
        refuse_link(staging)?;
        let place = place(staging, volume);
        let images = match stash::read(staging)? {
            Found::Stashed(stashed) => vec![stashed],
            Found::Nothing => self.backend.attached(volume).await?,
            Found::Torn(why) => {
                tracing::warn!(staging = %staging.display(), "the stash cannot be used ({why}): what is attached here is looked for instead");
                self.backend.attached(volume).await?
            }
        };
        let mounts = self.host.mounts()?;
        let staged = mounts.iter().rfind(|mount| mount.target == place);
        if let Some(target) = staged.and_then(|staged| published(&mounts, staged, volume)) {
            return Err(Error::Precondition(format!(
                "volume {volume} is published at {}: unpublish it there first",
                target.display()
            )));
        }
        let shown = staged.and_then(attached_device);
        if staged.is_some()
            && let Err(error) = self.serve_by_configuration(volume).await
        {
            tracing::error!(volume, "what its pods wrote last may be lost: {}", chain(&error));
        }
        self.clear(&replay::place(staging)).await?;
        self.clear(&place).await?;
        // What is staged at another path keeps its device: this may be the way back from a stage that was refused.
        let mounts = self.host.mounts()?.into_iter().filter(|mount| is_staged(mount, volume));
        let kept: Vec<PathBuf> = mounts.filter_map(|mount| attached_device(&mount)).collect();
        let device = images.first().map(|stashed| Path::new(&stashed.mapping.device));
        self.lock(volume, device, &kept).await?;
        for stashed in &images {
            let request = Detach { volume, stashed, shown: shown.as_deref(), kept: &kept };
            self.backend.detach(&request).await?;
        }
        stash::remove(staging)
    }

    async fn attach(&self, request: &StageVolume) -> Result<(Attach, Attached)> {
        let attach = self.attachment(request).await?;
        let mapping = self.backend.mapping(&request.target)?;
        stash::write(&request.staging, &attach.image, &mapping, false)?;
        let mut attached = self.backend.attach(&attach).await?;
        if attached.to_replay {
            self.replay(request, &attach, &attached).await?;
            attached = self.backend.attach(&attach).await?;
        }
        let encrypted = attached.encryption.is_some();
        if attached.mapping != mapping || encrypted {
            stash::write(&request.staging, &attach.image, &attached.mapping, encrypted)?;
        }
        Ok((attach, attached))
    }

    async fn attachment(&self, request: &StageVolume) -> Result<Attach> {
        let image = self.backend.locate(&request.target).await?;
        let (target, mode, node) = (request.target.clone(), request.capability.mode, self.id.clone());
        Ok(Attach { target, image, mode, block: request.capability.access == Access::Block, node })
    }

    /// Where else a volume is staged from the same device. (From a device of its own, as on another node: the backend
    /// proves that there is one writer.)
    fn staged_elsewhere(&self, volume: &str, attached: &Attached, place: &Path) -> Result<Option<PathBuf>> {
        let Shown::Device(device) = &attached.shown else { return Ok(None) };
        let shows =
            |mount: &Mount| is_staged(mount, volume) && attached_device(mount).as_ref() == Some(device);
        let mounts = self.host.mounts()?;
        Ok(mounts.into_iter().find(|mount| mount.target != place && shows(mount)).map(|mount| mount.target))
    }

    /// Whether what is staged already can stay.
    async fn is_in_place(
        &self,
        request: &StageVolume,
        mounts: &[Mount],
        mount: &Mount,
        place: &Path,
    ) -> Result<bool> {
        if gone(mount, Path::new(SYS)).is_some() {
            return Ok(false);
        }
        self.serve(&request.target, Some(request.capability.mode), 0).await?;
        self.same_use(request, mount, place).await?;
        let published = published(mounts, mount, &request.target.volume).is_some();
        match self.lost(mount) {
            Some(why) if published => return Err(Error::Precondition(why)),
            Some(_) => return Ok(false),
            None if published => {}
            // No pod has it yet: the call that mounted it may have been killed right after.
            None => self.settle(request, place).await?,
        }
        Ok(true)
    }

    /// A repeated stage: fine when it asks for what is there.
    async fn same_use(&self, request: &StageVolume, mount: &Mount, place: &Path) -> Result<()> {
        let folder = place.is_dir();
        let asked_read_only = asks_read_only(&request.capability);
        if same_kind(request, mount, folder) {
            if !folder || asked_read_only == mount.read_only() {
                return Ok(());
            }
            // ControllerPublishVolume may have wanted it read-only whatever the mode.
            if !asked_read_only && self.backend.attach(&self.attachment(request).await?).await?.read_only {
                return Ok(());
            }
        }
        Err(Error::Conflict(format!(
            "volume {} is staged at {} in another way ({} {}): unstage it first",
            request.target.volume,
            place.display(),
            mount.fs_type,
            mount.options
        )))
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
        let attached = &self.unlock(request, attach, attached).await?;
        let (read_only, target) = (attached.read_only, place.to_owned());
        let (call, source) = match (&request.capability.access, &attached.shown) {
            (Access::Block, Shown::Device(device)) => {
                self.forget_format(attach, attached).await?;
                make_mount_point(place, true)?;
                (MountCall::Bind { source: device.clone(), target, options: Vec::new(), read_only }, device)
            }
            (Access::Mount { fs_type, flags }, Shown::Device(device)) => {
                self.make_filesystem(request, attach, attached, device, fs_type).await?;
                make_mount_point(place, false)?;
                let fs_type = fs_type.clone();
                let options = fs::mount_options(&fs_type, flags, read_only);
                (MountCall::Filesystem { device: device.clone(), target, fs_type, options }, device)
            }
            (Access::Mount { flags, .. }, Shown::Directory(folder)) => {
                make_mount_point(place, false)?;
                (
                    MountCall::Bind { source: folder.clone(), target, options: flags.clone(), read_only },
                    folder,
                )
            }
            (Access::Block, Shown::Directory(_)) => {
                return Err(Error::Precondition(format!(
                    "volume {} is a directory, no block device: use it as a filesystem",
                    request.target.volume
                )));
            }
        };
        let what = format!("mounting {} at {}", source.display(), place.display());
        self.host.mount(call).await.map_err(|error| not_mounted(what, &request.capability, error))?;
        self.settle(request, place).await
    }

    /// What can be done to a filesystem only once it is mounted to be written.
    async fn settle(&self, request: &StageVolume, place: &Path) -> Result<()> {
        let mount = self.mount_at(place)?.filter(|mount| !mount.read_only());
        let (Access::Mount { .. }, Some(mount)) = (&request.capability.access, mount) else { return Ok(()) };
        if let Some(error) = self.grow_mounted(&mount).await? {
            tracing::error!(place = %place.display(), "the filesystem stays smaller than its volume: {}", chain(&error));
        }
        let (path, what) =
            (place.to_owned(), format!("looking at the new filesystem at {}", place.display()));
        let opened = tokio::task::spawn_blocking(move || open_new_root(&path));
        match tokio::time::timeout(ANSWER_WITHIN, opened).await {
            Ok(opened) => opened.map_err(|error| Error::internal(what, error))?,
            Err(_) => Err(Error::TimedOut(format!("{what}: the storage behind it does not answer"))),
        }
    }

    /// Who writes to the device itself makes of our half-made filesystem something of his own.
    async fn forget_format(&self, attach: &Attach, attached: &Attached) -> Result<()> {
        let ours = matches!(attached.format, FormatMark::Begun(_) | FormatMark::Growing(_));
        if ours && !attached.read_only {
            self.backend.mark_format(attach, &FormatMark::Never).await?;
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
        device: &Path,
        fs_type: &str,
    ) -> Result<()> {
        let content = fs::probe(self.host.as_ref(), device).await?;
        let refuse = |what: String| {
            Err(Error::Precondition(format!("volume {} is not formatted: {what}", request.target.volume)))
        };
        match (&attached.format, &content) {
            (FormatMark::Begun(_), _) if attached.read_only => {
                refuse("its first stage has to be read-write".to_owned())
            }
            (FormatMark::Growing(_), _) if attached.read_only => {
                refuse("its growing was cut off: the next stage has to be read-write".to_owned())
            }
            // Half-made by us, and no pod has seen it: mounts come only after "done", and a block stage forgets the mark.
            (FormatMark::Begun(_), _) => self.format(request, attach, attached, device, fs_type, false).await,
            (_, Content::Filesystem(found)) if found == fs_type => {
                if attached.read_only {
                    Ok(())
                } else {
                    self.check_and_grow(attach, &attached.format, device, fs_type).await
                }
            }
            (_, Content::Filesystem(found)) => {
                refuse(format!("it holds {found}, and {fs_type} is asked for: ask for {found}"))
            }
            (_, Content::Other(found)) => refuse(format!(
                "it holds {found}, which this driver does not mount: use it as a block volume"
            )),
            (FormatMark::Never, Content::Nothing) if attached.encryption.is_some() => refuse(format!(
                "there is a LUKS header and no filesystem behind it, where nothing tells whether there is data; look at what is behind it ({})",
                attach.image
            )),
            (_, Content::Nothing) => match self.why_not_empty(request, attach, attached).await? {
                Some(what) => refuse(what),
                None => self.format(request, attach, attached, device, fs_type, true).await,
            },
        }
    }

    /// Why nothing may be made on a device where no signature is, if so.
    pub(super) async fn why_not_empty(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
    ) -> Result<Option<String>> {
        if let FormatMark::Done(made) | FormatMark::Growing(made) = &attached.format {
            return Ok(Some(format!(
                "it was made {made} by this driver, and there is none now: its data has vanished or was overwritten; do not format it, look at what is behind it ({})",
                attach.image
            )));
        }
        if request.target.is_static() {
            return Ok(Some("a static volume is never formatted: do it by hand".to_owned()));
        }
        if attached.read_only {
            return Ok(Some("it is empty, and staged read-only".to_owned()));
        }
        let empty = self.backend.is_empty(attach).await?;
        Ok((!empty).then(|| {
            format!(
                "no signature is on it, but blocks were written: there may be data; look at what is behind it ({})",
                attach.image
            )
        }))
    }

    /// Nobody else's from here on: whatever is there is our own half-made work.
    pub(super) async fn begin_format(
        &self,
        attach: &Attach,
        mark: &FormatMark,
        what: &str,
    ) -> Result<FormatMark> {
        let begun = FormatMark::Begun(what.to_owned());
        if *mark != begun {
            self.backend.mark_format(attach, &begun).await?;
        }
        Ok(begun)
    }

    /// "begun" before and "done" after, so that a kill in between is told from a volume with data.
    async fn format(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
        device: &Path,
        fs_type: &str,
        fresh: bool,
    ) -> Result<()> {
        let options = request.target.context.get("mkfsOptions").map(String::as_str);
        self.begin_format(attach, &attached.format, fs_type).await?;
        fs::format(self.host.as_ref(), device, fs_type, options, fresh).await?;
        self.backend.mark_format(attach, &FormatMark::Done(fs_type.to_owned())).await
    }
}

/// Where the volume shows inside its staging folder: ceph-csi's layout.
pub(super) fn place(staging: &Path, volume: &str) -> PathBuf {
    resolved(&staging.join(volume))
}

/// Where a staged volume shows besides. Not where it is staged itself: where the folder of kubelet shows at two paths,
/// each mount does.
pub(super) fn published<'a>(mounts: &'a [Mount], staged: &Mount, volume: &str) -> Option<&'a Path> {
    let besides = |mount: &&Mount| mount.same_source(staged) && !is_staged(mount, volume);
    mounts.iter().find(besides).map(|mount| mount.target.as_path())
}

fn same_kind(request: &StageVolume, mount: &Mount, folder: bool) -> bool {
    match &request.capability.access {
        Access::Block => !folder,
        // The type of a bound folder is that of the node's own filesystem.
        Access::Mount { fs_type, .. } => folder && (mount.is_part() || mount.fs_type == *fs_type),
    }
}

fn asks_read_only(capability: &Capability) -> bool {
    let flagged = match &capability.access {
        Access::Mount { flags, .. } => flags.iter().flat_map(|flag| flag.split(',')).any(|flag| flag == "ro"),
        Access::Block => false,
    };
    flagged || capability.mode.read_only()
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
