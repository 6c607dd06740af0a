//! What is offered: by the plugin, by its controller and by its node, for each offer of the backend.

use crate::backend::{Offer, unbuilt};
use crate::csi::proto::controller_service_capability as controller_capability;
use crate::csi::proto::controller_service_capability::rpc::Type as ControllerRpc;
use crate::csi::proto::node_service_capability as node_capability;
use crate::csi::proto::node_service_capability::rpc::Type as NodeRpc;
use crate::csi::proto::plugin_capability::service::Type as Service;
use crate::csi::proto::plugin_capability::volume_expansion::Type as Expansion;
use crate::csi::proto::plugin_capability::{self, VolumeExpansion};
use crate::csi::proto::{
    ControllerGetCapabilitiesResponse, ControllerServiceCapability, GetPluginCapabilitiesResponse,
    NodeGetCapabilitiesResponse, NodeServiceCapability, PluginCapability,
};
use crate::error::Result;

const CONTROLLER: &[ControllerRpc] = &[
    ControllerRpc::CreateDeleteVolume,
    ControllerRpc::PublishUnpublishVolume,
    ControllerRpc::SingleNodeMultiWriter,
];
/// Health in both dialects: 1.13 reserves VOLUME_CONDITION, COs of 1.12 know nothing else.
const NODE: &[NodeRpc] = &[
    NodeRpc::StageUnstageVolume,
    NodeRpc::GetVolumeStats,
    NodeRpc::SingleNodeMultiWriter,
    NodeRpc::VolumeCondition,
    NodeRpc::GetVolumeHealth,
    NodeRpc::GetStorageHealth,
];

/// Refuses a call that the backend does not offer, before anything in it is looked at.
pub(crate) fn need(offered: bool, call: &str) -> Result<()> {
    if offered { Ok(()) } else { unbuilt(call) }
}

pub(crate) fn plugin(controller: bool, offers: &[Offer]) -> GetPluginCapabilitiesResponse {
    let mut capabilities = Vec::new();
    let mut add = |kind| capabilities.push(PluginCapability { r#type: Some(kind) });
    let service =
        |kind: Service| plugin_capability::Type::Service(plugin_capability::Service { r#type: kind.into() });
    if controller {
        add(service(Service::ControllerService));
    }
    if controller && offers.contains(&Offer::SnapshotMetadata) {
        add(service(Service::SnapshotMetadataService));
    }
    if offers.contains(&Offer::Topology) {
        add(service(Service::VolumeAccessibilityConstraints));
        add(service(Service::SnapshotAccessibilityConstraints));
    }
    if offers.contains(&Offer::Expansion) {
        let online = VolumeExpansion { r#type: Expansion::Online.into() };
        add(plugin_capability::Type::VolumeExpansion(online));
    }
    GetPluginCapabilitiesResponse { capabilities }
}

pub(crate) fn controller(offers: &[Offer]) -> ControllerGetCapabilitiesResponse {
    let rpcs = CONTROLLER.iter().chain(offers.iter().flat_map(|offer| controller_rpcs(*offer)));
    let capability = |rpc: &ControllerRpc| ControllerServiceCapability {
        r#type: Some(controller_capability::Type::Rpc(controller_capability::Rpc { r#type: (*rpc).into() })),
    };
    ControllerGetCapabilitiesResponse { capabilities: rpcs.map(capability).collect() }
}

fn controller_rpcs(offer: Offer) -> &'static [ControllerRpc] {
    use ControllerRpc as Rpc;
    match offer {
        Offer::Snapshots => &[Rpc::CreateDeleteSnapshot, Rpc::ListSnapshots, Rpc::GetSnapshot],
        Offer::Clones => &[Rpc::CloneVolume],
        Offer::Expansion => &[Rpc::ExpandVolume],
        Offer::Lists => &[
            Rpc::ListVolumes,
            Rpc::ListVolumesPublishedNodes,
            Rpc::GetVolume,
            Rpc::VolumeCondition,
            Rpc::GetVolumeHealth,
            Rpc::ListVolumeHealth,
        ],
        Offer::Capacity => &[Rpc::GetCapacity],
        Offer::Modify => &[Rpc::ModifyVolume],
        Offer::PublishReadOnly => &[Rpc::PublishReadonly],
        Offer::Topology | Offer::SnapshotMetadata => &[],
    }
}

pub(crate) fn node(expansion: bool) -> NodeGetCapabilitiesResponse {
    let rpcs = NODE.iter().chain(expansion.then_some(&NodeRpc::ExpandVolume));
    let capability = |rpc: &NodeRpc| NodeServiceCapability {
        r#type: Some(node_capability::Type::Rpc(node_capability::Rpc { r#type: (*rpc).into() })),
    };
    NodeGetCapabilitiesResponse { capabilities: rpcs.map(capability).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rpcs(offers: &[Offer]) -> Vec<i32> {
        let kinds = controller(offers).capabilities.into_iter().filter_map(|capability| capability.r#type);
        kinds.map(|controller_capability::Type::Rpc(rpc)| rpc.r#type).collect()
    }

    #[test]
    fn a_backend_that_offers_nothing_more_is_told_so() {
        use ControllerRpc::{CreateDeleteVolume, PublishUnpublishVolume, SingleNodeMultiWriter};
        let always = [CreateDeleteVolume, PublishUnpublishVolume, SingleNodeMultiWriter].map(i32::from);
        assert_eq!(rpcs(&[]), always);
        assert_eq!(rpcs(&[Offer::Topology]), always);
        assert_eq!(plugin(true, &[]).capabilities.len(), 1);
        assert_eq!(node(false).capabilities.len(), 6);
        assert_eq!(need(false, "GetCapacity").map_err(|error| error.code()), Err(tonic::Code::Unimplemented));
    }

    #[test]
    fn each_offer_comes_with_all_its_calls() {
        let added = |offer| rpcs(&[offer]).split_off(CONTROLLER.len());
        assert_eq!(added(Offer::Snapshots), [5, 6, 15]);
        assert_eq!(added(Offer::Lists), [3, 10, 12, 11, 16, 17]);
        assert_eq!(added(Offer::Expansion), [9]);
        assert_eq!(node(true).capabilities.len(), 7);
        assert_eq!(plugin(true, &[Offer::Topology, Offer::Expansion]).capabilities.len(), 4);
        assert_eq!(plugin(true, &[Offer::SnapshotMetadata]).capabilities.len(), 2);
        assert_eq!(plugin(false, &[Offer::SnapshotMetadata]).capabilities.len(), 0);
        assert_eq!(plugin(false, &[Offer::Topology]).capabilities.len(), 2);
    }
}
