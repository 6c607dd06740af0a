//! A volume that is only read, mounted once so that its journal is replayed: it was filled as the snapshot of a
//! filesystem in use, and what was fsynced there is in the journal alone.

use std::path::{Path, PathBuf};

use crate::backend::{Access, Attach, Attached, Detach, Shown, Stashed};
use crate::error::{Error, Result, chain};
use crate::fs::{self, Content};
use crate::host::MountCall;

use super::{Node, StageVolume, make_mount_point, resolved};

impl Node {
    /// Nobody else writes meanwhile: the backend has proved it. Ends with nothing attached.
    pub(super) async fn replay(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
    ) -> Result<()> {
        let place = place(&request.staging);
        // An earlier call may have been killed here.
        self.clear(&place).await?;
        let unlocked = self.unlock(request, attach, attached).await?;
        let (Access::Mount { fs_type, flags }, Shown::Device(device)) =
            (&request.capability.access, &unlocked.shown)
        else {
            return Ok(());
        };
        match fs::probe(self.host.as_ref(), device).await? {
            Content::Filesystem(found) if found == *fs_type => {}
            content => {
                return Err(Error::Precondition(format!(
                    "volume {} is to be read as {fs_type}, and holds {content}: a volume that is only read is never formatted",
                    request.target.volume
                )));
            }
        }
        self.check_and_grow(attach, &attached.format, device, fs_type).await?;
        make_mount_point(&place, false)?;
        let writable: Vec<String> = flags.iter().filter(|flag| *flag != "ro").cloned().collect();
        let call = MountCall::Filesystem {
            device: device.clone(),
            target: place.clone(),
            fs_type: fs_type.clone(),
            options: fs::mount_options(fs_type, &writable, false),
        };
        let what = format!("replaying the journal of {} at {}", device.display(), place.display());
        self.host.mount(call).await.map_err(|error| Error::internal(what, error))?;
        if let Some(mount) = self.mount_at(&place)?
            && let Some(error) = self.grow_mounted(&mount).await?
        {
            tracing::error!(place = %place.display(), "the filesystem stays smaller than its volume: {}", chain(&error));
        }
        self.clear(&place).await?;
        self.backend.mark_replayed(attach).await?;
        let stashed = Stashed { image: attach.image.clone(), mapping: attached.mapping.clone() };
        let (volume, shown) = (request.target.volume.as_str(), attached.shown.device());
        self.lock(volume, shown, &[]).await?;
        self.backend.detach(&Detach { volume, stashed: &stashed, shown, kept: &[] }).await
    }
}

/// Not where the volume is staged: what is mounted there is taken for staged.
pub(super) fn place(staging: &Path) -> PathBuf {
    resolved(&staging.join("replay"))
}
