//! The messages of single volumes: create, publish, validate, expand, modify.

use crate::backend::{CreateVolume, Offer, Parameters, Publish, SizeRange, Source, Volume, is_static};
use crate::cluster::Secrets;
use crate::csi::proto;
use crate::csi::proto::validate_volume_capabilities_response::Confirmed;
use crate::csi::proto::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use crate::error::{Error, Result};
use crate::id::VolumeId;

use super::{
    capability, existing_id, map, missing, name, not_built, places, signed, size_range, snapshots, text,
};

const MAX_NODE_ID: usize = 256;

pub(crate) fn create(request: proto::CreateVolumeRequest, offers: &[Offer]) -> Result<CreateVolume> {
    let name = name(&request.name)?;
    let capabilities = capability::all(&request.volume_capabilities)?;
    capabilities.iter().try_for_each(capability::supported)?;
    let source = request.volume_content_source.map(|wire| source(wire, offers)).transpose()?;
    if source.is_none() {
        capability::can_be_filled(&capabilities)?;
    }
    Ok(CreateVolume {
        name,
        size: size_range(request.capacity_range)?,
        capabilities,
        parameters: map("parameters", request.parameters)?,
        mutable: map("mutable_parameters", request.mutable_parameters)?,
        source,
        places: places::wanted(request.accessibility_requirements, offers)?,
        secrets: Secrets::new(request.secrets),
    })
}

pub(crate) fn created(volume: Volume) -> proto::CreateVolumeResponse {
    proto::CreateVolumeResponse { volume: Some(told(volume)) }
}

pub(super) fn told(volume: Volume) -> proto::Volume {
    proto::Volume {
        capacity_bytes: signed(volume.size),
        volume_id: volume.id.to_string(),
        volume_context: volume.context,
        content_source: volume.source.as_ref().map(told_source),
        accessible_topology: places::reached_from(volume.reached_from),
    }
}

/// An id that no call of this driver answered is the id of nothing: NOT_FOUND, as the specification wants it.
fn source(wire: proto::VolumeContentSource, offers: &[Offer]) -> Result<Source> {
    match wire.r#type.ok_or_else(|| missing("volume_content_source.type"))? {
        SourceType::Snapshot(_) if !offers.contains(&Offer::Snapshots) => {
            not_built("volume_content_source.snapshot (snapshots)")
        }
        SourceType::Snapshot(from) => snapshots::existing_id(&from.snapshot_id).map(Source::Snapshot),
        SourceType::Volume(_) if !offers.contains(&Offer::Clones) => {
            not_built("volume_content_source.volume (clones)")
        }
        SourceType::Volume(from) => {
            existing_id("volume_content_source.volume_id", &from.volume_id).map(Source::Volume)
        }
    }
}

fn told_source(source: &Source) -> proto::VolumeContentSource {
    let from = match source {
        Source::Snapshot(id) => SourceType::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
        Source::Volume(id) => SourceType::Volume(VolumeSource { volume_id: id.to_string() }),
    };
    proto::VolumeContentSource { r#type: Some(from) }
}

/// None: a static volume, about which the controller has nothing to note.
pub(crate) fn publish(
    request: proto::ControllerPublishVolumeRequest,
    offers: &[Offer],
) -> Result<Option<Publish>> {
    text("volume_id", &request.volume_id)?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    let node = node_id(&request.node_id)?;
    if is_static(&request.volume_context) {
        return Ok(None);
    }
    let id = existing_id("volume_id", &request.volume_id)?;
    capability::supported(&capability)?;
    if request.readonly && !offers.contains(&Offer::PublishReadOnly) {
        return Err(Error::Invalid("readonly: the driver does not advertise PUBLISH_READONLY".to_owned()));
    }
    let read_only = request.readonly;
    Ok(Some(Publish { id, node, mode: capability.mode, read_only, secrets: Secrets::new(request.secrets) }))
}

fn node_id(id: &str) -> Result<String> {
    if id.is_empty() || id.len() > MAX_NODE_ID || id.contains('/') {
        return Err(Error::Invalid(format!("node_id {id:?}: it is 1 to {MAX_NODE_ID} bytes without '/'")));
    }
    Ok(id.to_owned())
}

/// Confirms what was asked, or says why not. Being refused is an answer here, no error.
pub(crate) fn validated(
    request: proto::ValidateVolumeCapabilitiesRequest,
    offers: &[Offer],
) -> Result<proto::ValidateVolumeCapabilitiesResponse> {
    let capabilities = capability::all(&request.volume_capabilities)?;
    let modified = !request.mutable_parameters.is_empty() && !offers.contains(&Offer::Modify);
    let verdict = match capabilities.iter().try_for_each(capability::supported) {
        Ok(()) if modified => not_built("mutable_parameters (VolumeAttributesClass)"),
        verdict => verdict,
    };
    Ok(match verdict {
        Ok(()) => proto::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
        Err(error) => {
            proto::ValidateVolumeCapabilitiesResponse { confirmed: None, message: error.to_string() }
        }
    })
}

pub(crate) fn expand(request: &proto::ControllerExpandVolumeRequest) -> Result<(VolumeId, SizeRange)> {
    text("volume_id", &request.volume_id)?;
    let range = request.capacity_range.ok_or_else(|| missing("capacity_range"))?;
    Ok((existing_id("volume_id", &request.volume_id)?, size_range(Some(range))?))
}

/// The node always has a device, a filesystem or both to look at again.
pub(crate) fn expanded(size: u64) -> proto::ControllerExpandVolumeResponse {
    proto::ControllerExpandVolumeResponse { capacity_bytes: signed(size), node_expansion_required: true }
}

/// The id first: a volume that is not there has no parameters to be wrong.
pub(crate) fn modify(request: &proto::ControllerModifyVolumeRequest) -> Result<(VolumeId, Parameters)> {
    let id = existing_id("volume_id", &request.volume_id)?;
    Ok((id, map("mutable_parameters", request.mutable_parameters.clone())?))
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use uuid::Uuid;

    use super::*;
    use crate::csi::proto::volume_capability::access_mode::Mode;
    use crate::csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume};
    use crate::id::{Pool, SnapshotId};

    const EVERYTHING: &[Offer] =
        &[Offer::Snapshots, Offer::Clones, Offer::Modify, Offer::PublishReadOnly, Offer::Topology];

    fn id() -> VolumeId {
        VolumeId { cluster: "c".to_owned(), pool: Pool::Id(1), uuid: Uuid::from_u128(1) }
    }

    fn from_snapshot(id: &str) -> SourceType {
        SourceType::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })
    }

    fn from_volume(id: &str) -> SourceType {
        SourceType::Volume(VolumeSource { volume_id: id.to_owned() })
    }

    fn capability(mode: Mode) -> proto::VolumeCapability {
        proto::VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    fn check_source(from: SourceType, offers: &[Offer]) -> Result<Source, Code> {
        let wire = proto::VolumeContentSource { r#type: Some(from) };
        let found = source(wire, offers).map_err(|error| error.code())?;
        let again = told_source(&found).r#type.expect("a source");
        assert_eq!(
            source(proto::VolumeContentSource { r#type: Some(again) }, offers).ok(),
            Some(found.clone())
        );
        Ok(found)
    }

    #[test]
    fn a_source_is_what_it_says_or_nothing() {
        let snapshot = SnapshotId::new(&id(), Uuid::from_u128(7));
        let (volume_text, snapshot_text) = (id().to_string(), snapshot.to_string());
        let check = check_source;
        assert_eq!(check(from_volume(&volume_text), EVERYTHING), Ok(Source::Volume(id())));
        assert_eq!(check(from_snapshot(&snapshot_text), EVERYTHING), Ok(Source::Snapshot(snapshot)));
        assert_eq!(check(from_volume("none"), EVERYTHING), Err(Code::NotFound));
        assert_eq!(check(from_snapshot("none"), EVERYTHING), Err(Code::NotFound));
        let ceph_csi = SnapshotId { own: id(), source: None };
        assert_eq!(check(from_snapshot(&volume_text), EVERYTHING), Ok(Source::Snapshot(ceph_csi)));
        assert_eq!(check(from_volume(""), EVERYTHING), Err(Code::InvalidArgument));
        assert_eq!(check(from_snapshot(""), EVERYTHING), Err(Code::InvalidArgument));
        assert_eq!(check(from_volume(&volume_text), &[Offer::Snapshots]), Err(Code::InvalidArgument));
        assert_eq!(check(from_snapshot(&snapshot_text), &[Offer::Clones]), Err(Code::InvalidArgument));
    }

    #[test]
    fn only_a_volume_with_a_source_may_be_read_only() {
        let request = |source: Option<SourceType>| proto::CreateVolumeRequest {
            name: "n".to_owned(),
            volume_capabilities: vec![capability(Mode::MultiNodeReaderOnly)],
            volume_content_source: source.map(|from| proto::VolumeContentSource { r#type: Some(from) }),
            ..Default::default()
        };
        assert!(create(request(None), EVERYTHING).is_err());
        let filled = create(request(Some(from_volume(&id().to_string()))), EVERYTHING);
        assert_eq!(filled.ok().and_then(|create| create.source), Some(Source::Volume(id())));
    }

    #[test]
    fn a_volume_is_told_with_its_source_and_its_place() {
        let volume = Volume {
            id: id(),
            size: 5,
            context: Parameters::new(),
            source: Some(Source::Volume(id())),
            reached_from: vec![[("n".to_owned(), "a".to_owned())].into()],
        };
        let told = told(volume.clone());
        assert_eq!((told.capacity_bytes, told.volume_id), (5, id().to_string()));
        assert_eq!(
            told.content_source.and_then(|source| source.r#type),
            Some(from_volume(&id().to_string()))
        );
        assert_eq!(told.accessible_topology.len(), 1);
        assert_eq!(super::told(Volume { source: None, ..volume }).content_source, None);
    }

    #[test]
    fn readonly_is_refused_where_it_is_not_heeded() {
        let check = |offers| {
            let request = proto::ControllerPublishVolumeRequest {
                volume_id: id().to_string(),
                node_id: "n".to_owned(),
                volume_capability: Some(capability(Mode::SingleNodeWriter)),
                readonly: true,
                ..Default::default()
            };
            let publish = publish(request, offers).map_err(|error| error.code())?;
            Ok(publish.is_some_and(|publish| publish.read_only))
        };
        assert_eq!(check(EVERYTHING), Ok(true));
        assert_eq!(check(&[]), Err(Code::InvalidArgument));
    }

    #[test]
    fn all_that_was_confirmed_is_said_again() {
        let check = |mode: Mode, offers| {
            let pair = |key: &str| [(key.to_owned(), "x".to_owned())].into();
            let request = proto::ValidateVolumeCapabilitiesRequest {
                volume_context: pair("context"),
                volume_capabilities: vec![capability(mode)],
                parameters: pair("parameter"),
                mutable_parameters: pair("mutable"),
                ..Default::default()
            };
            validated(request, offers).expect("an answer")
        };
        let confirmed = check(Mode::MultiNodeMultiWriter, EVERYTHING).confirmed.expect("confirmed");
        assert_eq!(confirmed.volume_capabilities, [capability(Mode::MultiNodeMultiWriter)]);
        let keys = [confirmed.volume_context, confirmed.parameters, confirmed.mutable_parameters];
        assert_eq!(keys.map(|map| map.into_keys().collect::<String>()), ["context", "parameter", "mutable"]);
        let refused = check(Mode::SingleNodeWriter, &[]);
        assert!(refused.confirmed.is_none() && refused.message.contains("mutable_parameters"));
    }

    #[test]
    fn a_size_to_grow_to_has_to_be_named() {
        let check = |id: &str, range: Option<(i64, i64)>| {
            let capacity_range = range
                .map(|(required_bytes, limit_bytes)| proto::CapacityRange { required_bytes, limit_bytes });
            let volume_id = id.to_owned();
            let request =
                proto::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
            expand(&request).map(|(_, size)| size.required).map_err(|error| error.code())
        };
        let good = id().to_string();
        assert_eq!(check(&good, Some((5, 0))), Ok(5));
        assert_eq!(check(&good, None), Err(Code::InvalidArgument));
        assert_eq!(check("", Some((5, 0))), Err(Code::InvalidArgument));
        assert_eq!(check("none", Some((5, 0))), Err(Code::NotFound));
        assert_eq!(check(&good, Some((5, 4))), Err(Code::OutOfRange));
        assert_eq!(check(&good, Some((-5, 0))), Err(Code::InvalidArgument));
    }
}
