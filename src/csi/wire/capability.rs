//! VolumeCapability: how a volume is to be used, and which uses the driver offers.

use crate::backend::{Access, Capability, Mode};
use crate::csi::proto;
use crate::csi::proto::volume_capability::AccessType;
use crate::csi::proto::volume_capability::access_mode::Mode as WireMode;
use crate::error::{Error, Result};
use crate::fs::SUPPORTED;

use super::{missing, not_built};

pub(crate) fn all(list: &[proto::VolumeCapability]) -> Result<Vec<Capability>> {
    if list.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    list.iter().map(|wire| one(Some(wire))).collect()
}

pub(super) fn one(wire: Option<&proto::VolumeCapability>) -> Result<Capability> {
    let wire = wire.ok_or_else(|| missing("volume_capability"))?;
    let mode = wire.access_mode.as_ref().ok_or_else(|| missing("volume_capability.access_mode"))?;
    let access = match wire.access_type.as_ref().ok_or_else(|| missing("volume_capability.access_type"))? {
        AccessType::Block(_) => Access::Block,
        AccessType::Mount(mount) if !mount.volume_mount_group.is_empty() => {
            return Err(Error::Invalid(
                "volume_mount_group: the driver does not advertise VOLUME_MOUNT_GROUP".to_owned(),
            ));
        }
        AccessType::Mount(mount) => {
            let fs_type = if mount.fs_type.is_empty() { "ext4" } else { &mount.fs_type };
            Access::Mount { fs_type: fs_type.to_owned(), flags: mount.mount_flags.clone() }
        }
    };
    Ok(Capability { access, mode: access_mode(mode.mode)? })
}

/// Refuses uses that this driver does not offer.
pub(crate) fn supported(capability: &Capability) -> Result<()> {
    let Access::Mount { fs_type, .. } = &capability.access else { return Ok(()) };
    if !SUPPORTED.contains(&fs_type.as_str()) {
        return Err(Error::Invalid(format!("fs_type {fs_type:?} is not built: use one of {SUPPORTED:?}")));
    }
    if capability.mode.multi_node() && !capability.mode.read_only() {
        return Err(Error::Invalid(format!(
            "access mode {:?} with a filesystem: {fs_type} on several nodes is destroyed; use a block volume (volumeMode: Block)",
            capability.mode
        )));
    }
    Ok(())
}

/// Without a source a new volume is empty: somebody has to be able to write to it before others read it.
pub(super) fn can_be_filled(capabilities: &[Capability]) -> Result<()> {
    let read_by_many = |capability: &&Capability| capability.mode.read_only() && capability.mode.multi_node();
    let shared =
        capabilities.iter().filter(read_by_many).any(|capability| capability.access != Access::Block);
    if shared || capabilities.iter().all(|capability| capability.mode.read_only()) {
        return not_built("a read-only volume (it needs a snapshot or a volume to read from)");
    }
    Ok(())
}

fn access_mode(number: i32) -> Result<Mode> {
    match WireMode::try_from(number) {
        Ok(WireMode::SingleNodeWriter) => Ok(Mode::SingleNodeWriter),
        Ok(WireMode::SingleNodeReaderOnly) => Ok(Mode::SingleNodeReader),
        Ok(WireMode::SingleNodeSingleWriter) => Ok(Mode::SingleNodeSingleWriter),
        Ok(WireMode::SingleNodeMultiWriter) => Ok(Mode::SingleNodeMultiWriter),
        Ok(WireMode::MultiNodeReaderOnly) => Ok(Mode::MultiNodeReader),
        Ok(WireMode::MultiNodeSingleWriter) => Ok(Mode::MultiNodeSingleWriter),
        Ok(WireMode::MultiNodeMultiWriter) => Ok(Mode::MultiNodeMultiWriter),
        Ok(WireMode::Unknown) | Err(_) => {
            Err(Error::Invalid(format!("access mode {number} is none that this driver knows")))
        }
    }
}
