//! All validation: requests into the driver's own types, with a message that says what is wrong. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Component, PathBuf};

use prost::Message;

use super::proto;
use super::proto::volume_capability::AccessType;
use super::proto::volume_capability::access_mode::Mode as WireMode;
use crate::backend::{Access, Capability, CreateVolume, Mode, Publish, SizeRange, Target, Volume};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::fs::SUPPORTED;
use crate::id::VolumeId;
use crate::node::{PublishVolume, StageVolume, Usage};

/// The CSI specification's limit for names and ids, in bytes.
pub(super) const MAX_TEXT: usize = 128;
const MAX_NODE_ID: usize = 256;
const MAX_PATH: usize = 4096;
/// The specification's limit for a map, keys and values together.
const MAX_MAP: usize = 4096;

type Map = BTreeMap<String, String>;

/// Tells equal requests from others, secrets and all, without keeping them. Maps are ordered (build.rs).
pub(super) fn fingerprint(request: &impl Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&request.encode_to_vec());
    hasher.finish()
}

pub(super) fn create_volume(request: proto::CreateVolumeRequest) -> Result<CreateVolume> {
    let name = text("name", &request.name)?;
    if let Some(odd) = name.chars().find(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        return Err(Error::Invalid(format!("name {name:?}: the control character {odd:?} is not allowed")));
    }
    let capabilities = capabilities(&request.volume_capabilities)?;
    capabilities.iter().try_for_each(supported)?;
    can_be_filled(&capabilities)?;
    if request.volume_content_source.is_some() {
        return not_built("volume_content_source (snapshots and clones)");
    }
    if request.accessibility_requirements.is_some() {
        return not_built("accessibility_requirements (topology)");
    }
    if !request.mutable_parameters.is_empty() {
        return not_built("mutable_parameters (VolumeAttributesClass)");
    }
    Ok(CreateVolume {
        name: name.to_owned(),
        size: size_range(request.capacity_range)?,
        parameters: map("parameters", request.parameters)?,
        secrets: Secrets::new(request.secrets),
    })
}

pub(super) fn created(volume: Volume) -> proto::CreateVolumeResponse {
    let volume = proto::Volume {
        capacity_bytes: i64::try_from(volume.size).unwrap_or(i64::MAX),
        volume_id: volume.id.to_string(),
        volume_context: volume.context,
        ..Default::default()
    };
    proto::CreateVolumeResponse { volume: Some(volume) }
}

/// None: an id that no CreateVolume of this driver (or of ceph-csi) ever answered.
pub(super) fn known_id(id: &str) -> Result<Option<VolumeId>> {
    text("volume_id", id)?;
    Ok(VolumeId::parse(id).ok())
}

/// A volume that has to exist.
pub(super) fn existing_id(id: &str) -> Result<VolumeId> {
    known_id(id)?.ok_or_else(|| {
        Error::NotFound(format!("volume {id:?} does not exist: no id of this driver looks like that"))
    })
}

/// None: a static volume, about which the controller has nothing to note.
pub(super) fn controller_publish(request: proto::ControllerPublishVolumeRequest) -> Result<Option<Publish>> {
    text("volume_id", &request.volume_id)?;
    let capability = capability(request.volume_capability.as_ref())?;
    let node = node_id(&request.node_id)?;
    if request.volume_context.get("staticVolume").is_some_and(|value| value == "true") {
        return Ok(None);
    }
    let id = existing_id(&request.volume_id)?;
    supported(&capability)?;
    if request.readonly {
        return Err(Error::Invalid("readonly: the driver does not advertise PUBLISH_READONLY".to_owned()));
    }
    Ok(Some(Publish { id, node, mode: capability.mode, secrets: Secrets::new(request.secrets) }))
}

pub(super) fn node_id(id: &str) -> Result<String> {
    if id.is_empty() || id.len() > MAX_NODE_ID || id.contains('/') {
        return Err(Error::Invalid(format!("node_id {id:?}: it is 1 to {MAX_NODE_ID} bytes without '/'")));
    }
    Ok(id.to_owned())
}

pub(super) fn capabilities(list: &[proto::VolumeCapability]) -> Result<Vec<Capability>> {
    if list.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    list.iter().map(|wire| capability(Some(wire))).collect()
}

/// Refuses uses that this driver does not offer.
pub(super) fn supported(capability: &Capability) -> Result<()> {
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

/// A new volume is empty: somebody has to be able to write to it before others read it.
fn can_be_filled(capabilities: &[Capability]) -> Result<()> {
    let read_by_many = |capability: &&Capability| capability.mode.read_only() && capability.mode.multi_node();
    let shared =
        capabilities.iter().filter(read_by_many).any(|capability| capability.access != Access::Block);
    if shared || capabilities.iter().all(|capability| capability.mode.read_only()) {
        return not_built("a read-only volume (it needs a snapshot or a volume to read from)");
    }
    Ok(())
}

pub(super) fn stage(request: proto::NodeStageVolumeRequest) -> Result<StageVolume> {
    let volume = handle(&request.volume_id)?;
    let staging = path("staging_target_path", &request.staging_target_path)?;
    let capability = capability(request.volume_capability.as_ref())?;
    let context = map("volume_context", request.volume_context)?;
    let target = Target { volume, context, secrets: Secrets::new(request.secrets) };
    if !target.is_static() {
        existing_id(&target.volume)?;
    }
    supported(&capability)?;
    Ok(StageVolume { target, staging, capability })
}

pub(super) fn publish(request: &proto::NodePublishVolumeRequest) -> Result<PublishVolume> {
    let volume = handle(&request.volume_id)?;
    let target = path("target_path", &request.target_path)?;
    let capability = capability(request.volume_capability.as_ref())?;
    if request.staging_target_path.is_empty() {
        return Err(Error::Precondition(
            "staging_target_path is empty: the volume has to be staged first".to_owned(),
        ));
    }
    let staging = path("staging_target_path", &request.staging_target_path)?;
    Ok(PublishVolume { volume, staging, path: target, capability, read_only: request.readonly })
}

pub(super) fn usage(usage: &Usage) -> proto::NodeGetVolumeStatsResponse {
    use proto::volume_usage::Unit;
    let wire = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let part = |unit: Unit, total, used, available| proto::VolumeUsage {
        unit: unit.into(),
        total: wire(total),
        used: wire(used),
        available: wire(available),
    };
    let usage = match usage {
        Usage::Block { bytes } => vec![part(Unit::Bytes, *bytes, 0, 0)],
        Usage::Filesystem { bytes, inodes } => vec![
            part(Unit::Bytes, bytes.total, bytes.used, bytes.available),
            part(Unit::Inodes, inodes.total, inodes.used, inodes.available),
        ],
    };
    proto::NodeGetVolumeStatsResponse { usage, ..Default::default() }
}

/// A volume as the node requests name it: it becomes a file name.
pub(super) fn handle(id: &str) -> Result<String> {
    text("volume_id", id)?;
    if id.contains(['/', '\\', '\0']) || id == "." || id == ".." {
        return Err(Error::Invalid(format!("volume_id {id:?}: '/', '\\', \".\" and \"..\" are not allowed")));
    }
    Ok(id.to_owned())
}

/// An absolute path that stays where it says.
pub(super) fn path(field: &str, value: &str) -> Result<PathBuf> {
    if value.is_empty() {
        return Err(missing(field));
    }
    let path = PathBuf::from(value);
    let plain = path.components().skip(1).all(|component| matches!(component, Component::Normal(_)));
    if !path.is_absolute()
        || !plain
        || path.file_name().is_none()
        || value.len() > MAX_PATH
        || value.contains('\0')
    {
        return Err(Error::Invalid(format!(
            "{field} {value:?}: it has to be an absolute path without \"..\", below the root"
        )));
    }
    Ok(path)
}

/// A path at which a volume is looked for: any path where there is none is NOT_FOUND, even an odd one.
pub(super) fn volume_path(value: &str) -> Result<PathBuf> {
    if value.is_empty() { Err(missing("volume_path")) } else { Ok(PathBuf::from(value)) }
}

fn capability(wire: Option<&proto::VolumeCapability>) -> Result<Capability> {
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

fn size_range(range: Option<proto::CapacityRange>) -> Result<SizeRange> {
    let range = range.unwrap_or_default();
    let bytes = |field: &str, value: i64| {
        u64::try_from(value)
            .map_err(|_| Error::Invalid(format!("capacity_range.{field} {value}: a size is not negative")))
    };
    let required = bytes("required_bytes", range.required_bytes)?;
    let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|limit| *limit > 0);
    if let Some(limit) = limit.filter(|limit| required > *limit) {
        return Err(Error::OutOfRange(format!(
            "capacity_range: required_bytes {required} is more than limit_bytes {limit}"
        )));
    }
    Ok(SizeRange { required, limit })
}

fn text<'a>(field: &str, value: &'a str) -> Result<&'a str> {
    match value.len() {
        0 => Err(missing(field)),
        1..=MAX_TEXT => Ok(value),
        length => {
            let start: String = value.chars().take(2 * MAX_TEXT).collect();
            Err(Error::Invalid(format!(
                "{field} {start:?} has {length} bytes: at most {MAX_TEXT} are allowed"
            )))
        }
    }
}

fn map(field: &str, values: Map) -> Result<Map> {
    let size: usize = values.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_MAP {
        return Err(Error::Invalid(format!("{field} has {size} bytes: at most {MAX_MAP} are allowed")));
    }
    Ok(values)
}

fn missing(field: &str) -> Error {
    Error::Invalid(format!("{field} is missing"))
}

fn not_built<T>(what: &str) -> Result<T> {
    Err(Error::Invalid(format!("{what}: not built in this version of the driver")))
}
