//! The messages of the Node service.

use crate::backend::{Ailment, Parameters, Segments, Target};
use crate::cluster::Secrets;
use crate::csi::proto;
use crate::error::{Error, Result};
use crate::node::{ExpandVolume, PublishVolume, StageVolume, Usage, is_stash};

use super::{capability, existing_id, handle, health, map, path, signed, size_range, volume_path};

pub(crate) fn stage(request: proto::NodeStageVolumeRequest) -> Result<StageVolume> {
    let volume = handle(&request.volume_id)?;
    if is_stash(&volume) {
        return Err(Error::Invalid(format!(
            "volume_id {volume:?}: beside each volume the driver keeps a file of that name: rename the image"
        )));
    }
    let staging = path("staging_target_path", &request.staging_target_path)?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    let context = map("volume_context", request.volume_context)?;
    let target = Target { volume, context, secrets: Secrets::new(request.secrets) };
    if !target.is_static() {
        existing_id("volume_id", &target.volume)?;
    }
    capability::supported(&capability)?;
    Ok(StageVolume { target, staging, capability })
}

pub(crate) fn publish(request: proto::NodePublishVolumeRequest) -> Result<PublishVolume> {
    let volume = handle(&request.volume_id)?;
    let shown = path("target_path", &request.target_path)?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    if request.staging_target_path.is_empty() {
        return Err(Error::Precondition(
            "staging_target_path is empty: the volume has to be staged first".to_owned(),
        ));
    }
    let staging = path("staging_target_path", &request.staging_target_path)?;
    let (context, secrets) = (request.volume_context, Secrets::new(request.secrets));
    let target = Target { volume, context, secrets };
    Ok(PublishVolume { target, staging, path: shown, capability, read_only: request.readonly })
}

/// Any path is looked for, as in NodeGetVolumeStats: COs send where the volume is published, or where it is staged.
pub(crate) fn expand(request: proto::NodeExpandVolumeRequest) -> Result<ExpandVolume> {
    let staging = Some(&request.staging_target_path).filter(|path| !path.is_empty());
    let (volume, secrets) = (handle(&request.volume_id)?, Secrets::new(request.secrets));
    Ok(ExpandVolume {
        target: Target { volume, context: Parameters::new(), secrets },
        path: volume_path(&request.volume_path)?,
        staging: staging.map(Into::into),
        size: size_range(request.capacity_range)?,
    })
}

pub(crate) fn expanded(size: u64) -> proto::NodeExpandVolumeResponse {
    proto::NodeExpandVolumeResponse { capacity_bytes: signed(size) }
}

/// `ailments`: None where nothing is known of the health.
pub(crate) fn usage(usage: &Usage, ailments: Option<&[Ailment]>) -> proto::NodeGetVolumeStatsResponse {
    use proto::volume_usage::Unit;
    let part = |unit: Unit, total, used, available| proto::VolumeUsage {
        unit: unit.into(),
        total: signed(total),
        used: signed(used),
        available: signed(available),
    };
    let usage = match usage {
        Usage::Block { bytes } => vec![part(Unit::Bytes, *bytes, 0, 0)],
        Usage::Filesystem { bytes, inodes } => vec![
            part(Unit::Bytes, bytes.total, bytes.used, bytes.available),
            part(Unit::Inodes, inodes.total, inodes.used, inodes.available),
        ],
    };
    proto::NodeGetVolumeStatsResponse { usage, volume_condition: ailments.map(health::condition) }
}

/// `max_volumes`: 0 leaves it to the CO.
pub(crate) fn info(id: &str, max_volumes: u32, place: Option<Segments>) -> proto::NodeGetInfoResponse {
    proto::NodeGetInfoResponse {
        node_id: id.to_owned(),
        max_volumes_per_node: max_volumes.into(),
        accessible_topology: place.map(|segments| proto::Topology { segments }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tonic::Code;

    use super::*;

    #[test]
    fn any_path_to_expand_is_looked_for_but_none_is_missing() {
        let check = |id: &str, path: &str| {
            let (volume_id, volume_path) = (id.to_owned(), path.to_owned());
            let request = proto::NodeExpandVolumeRequest { volume_id, volume_path, ..Default::default() };
            expand(request).map_err(|error| error.code())
        };
        let expand = check("v", "some/path").expect("an odd path");
        assert_eq!((expand.path.as_path(), expand.staging), (Path::new("some/path"), None));
        assert_eq!((expand.size.required, expand.size.limit), (0, None));
        assert_eq!(check("v", "").err(), Some(Code::InvalidArgument));
        assert_eq!(check("", "/p").err(), Some(Code::InvalidArgument));
    }

    #[test]
    fn a_volume_is_never_shown_where_its_stash_is() {
        for id in ["image-meta.json", "image-meta.json.tmp"] {
            let request = proto::NodeStageVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
            let Err(error) = stage(request) else { panic!("{id} is staged") };
            assert!(error.to_string().contains("rename the image"), "{error}");
        }
    }

    #[test]
    fn a_condition_is_told_where_it_is_known() {
        let block = Usage::Block { bytes: 5 };
        assert_eq!(usage(&block, None).volume_condition, None);
        let well = usage(&block, Some(&[]));
        assert_eq!(well.volume_condition.map(|condition| condition.abnormal), Some(false));
        assert_eq!(well.usage[0].total, 5);
    }
}
