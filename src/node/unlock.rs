//! The LUKS header before what a pod sees of an encrypted volume: made if and only if that is safe, opened, grown, closed.

use std::path::{Path, PathBuf};

use crate::backend::{Access, Attach, Attached, Encryption, FormatMark, Shown};
use crate::error::{Error, Result};
use crate::fs::{self, Content};
use crate::host::Mount;
use crate::host::mapper;
use crate::luks;

use super::device::{SYS, number};
use super::{Node, StageVolume, remove};

impl Node {
    /// What is behind the header of an encrypted volume, in place of its device. A volume without encryption as it is.
    pub(super) async fn unlock(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
    ) -> Result<Attached> {
        let (Some(encryption), Shown::Device(device)) = (&attached.encryption, &attached.shown) else {
            return Ok(attached.clone());
        };
        let (host, volume) = (self.host.as_ref(), &request.target.volume);
        let name = luks::name(volume)?;
        let read_only = attached.read_only && !attached.to_replay;
        let shown = Shown::Device(luks::path(&name));
        if is_open(&name, device, read_only)? && encryption.made {
            luks::grow(host, &name).await?;
            return Ok(Attached { shown, ..attached.clone() });
        }
        // What a killed call has left half-made, or made for another use.
        self.lock(volume, Some(device), &[]).await?;
        let format = self.make_header(request, attach, attached, encryption, device).await?;
        if !luks::open(host, device, &name, &encryption.keys, read_only).await? {
            return Err(no_key(request, device));
        }
        if !encryption.made {
            self.backend.mark_encrypted(attach).await?;
        }
        Ok(Attached { shown, format, ..attached.clone() })
    }

    /// Leaves a header on the device, or refuses; answers how far formatting has come with that. What is open behind a
    /// header reads as noise where it was never written, so all proof of emptiness is of the time before it.
    async fn make_header(
        &self,
        request: &StageVolume,
        attach: &Attach,
        attached: &Attached,
        encryption: &Encryption,
        device: &Path,
    ) -> Result<FormatMark> {
        let refuse = |what: String| {
            Err(Error::Precondition(format!("volume {} is not opened: {what}", request.target.volume)))
        };
        let begun = matches!(attached.format, FormatMark::Begun(_)) && !encryption.made;
        match fs::probe(self.host.as_ref(), device).await? {
            // Half-made by us, and no pod has seen it: the header counts as made before anything comes behind it.
            _ if begun && attached.read_only => {
                return refuse("its first stage has to be read-write".to_owned());
            }
            _ if begun => {}
            // One that opens was made to its end, whoever made it.
            Content::Other(found) if found == luks::SIGNATURE => return Ok(attached.format.clone()),
            Content::Filesystem(found) | Content::Other(found) => {
                return refuse(format!(
                    "it is to be encrypted, and holds {found} that is not; look at what is behind it ({})",
                    attach.image
                ));
            }
            Content::Nothing if encryption.made => {
                return refuse(format!(
                    "its LUKS header was made, and there is none now: it has vanished or was overwritten, and its data with it; look at what is behind it ({})",
                    attach.image
                ));
            }
            Content::Nothing => {
                if let Some(what) = self.why_not_empty(request, attach, attached).await? {
                    return refuse(what);
                }
            }
        }
        let what = match &request.capability.access {
            Access::Mount { fs_type, .. } => fs_type,
            Access::Block => "block",
        };
        let mark = self.begin_format(attach, &attached.format, what).await?;
        let Some(key) = encryption.keys.first() else {
            return Err(Error::broken(format!("volume {} has no passphrase", request.target.volume)));
        };
        luks::format(self.host.as_ref(), device, key, &request.target.context).await?;
        Ok(mark)
    }

    /// Closes what is open of a volume over devices that do not stay. `device`: the volume's own, where it is known.
    pub(super) async fn lock(&self, volume: &str, device: Option<&Path>, kept: &[PathBuf]) -> Result<()> {
        // What cannot have such a name is not encrypted.
        let Ok(name) = luks::name(volume) else { return Ok(()) };
        for mapper in luks::opened(&name, device) {
            if mapper.below.iter().any(|below| kept.contains(below)) {
                return Ok(());
            }
            // A device node that is bound somewhere does not keep the mapper from going, and another gets its number.
            let shows = |mount: &Mount| mount.device_path().is_some_and(|node| mapper.is_at(&node));
            if let Some(mount) = self.host.mounts()?.iter().find(|mount| shows(mount)) {
                return Err(Error::Precondition(format!(
                    "{} still shows at {}: unmount it there first",
                    mapper.name,
                    mount.target.display()
                )));
            }
            luks::close(self.host.as_ref(), &mapper.name).await?;
        }
        // A cryptsetup that was killed may have closed it and left its node.
        remove(&luks::path(&name))
    }

    /// Lets what is open of a volume have the size that its device was grown to; answers that in bytes. None: nothing is.
    pub(super) async fn grow_opened(&self, volume: &str) -> Result<Option<u64>> {
        let opened = || mapper::named(&luks::name(volume).ok()?, Path::new(SYS));
        let Some(mapper) = opened() else { return Ok(None) };
        luks::grow(self.host.as_ref(), &mapper.name).await?;
        Ok(opened().map(|mapper| mapper.sectors << 9))
    }
}

/// The device of the storage that a mount shows, below what was opened on it.
pub(super) fn attached_device(mount: &Mount) -> Option<PathBuf> {
    Some(mapper::base(mount.device_path()?, Path::new(SYS)))
}

/// Whether there is a mapper that can be used as it is. One over another device that is there is refused.
fn is_open(name: &str, device: &Path, read_only: bool) -> Result<bool> {
    let Some(mapper) = mapper::named(name, Path::new(SYS)) else { return Ok(false) };
    if let Some(other) = mapper.below.iter().find(|below| *below != device && below.exists()) {
        return Err(Error::Precondition(format!(
            "{name} is open over {}, and is wanted over {}: cryptsetup close it by hand",
            other.display(),
            device.display()
        )));
    }
    // A cryptsetup may have been killed before it was live, or before its node was made.
    let node = number(&luks::path(name));
    Ok(mapper.sectors > 0 && mapper.read_only == read_only && node.is_ok_and(|node| node == mapper.number))
}

fn no_key(request: &StageVolume, device: &Path) -> Error {
    let store = match request.target.context.get("encryptionKMSID").filter(|id| !id.is_empty()) {
        Some(id) => format!("what encryptionKMSID {id:?} keeps"),
        None => "encryptionPassphrase in the secret of node-stage".to_owned(),
    };
    Error::Denied(format!(
        "volume {}: its passphrase does not open the LUKS header on {}: check {store}; nothing was changed",
        request.target.volume,
        device.display()
    ))
}
