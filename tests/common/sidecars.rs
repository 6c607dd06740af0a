//! The calls that each sidecar makes of a driver at its start, and the conditions under which it goes on, as its source has
//! them. A sidecar that does not go on exits, and its whole pod waits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::client::Client;
use super::csi::controller_service_capability::{Type as ControllerType, rpc::Type as Rpc};
use super::csi::plugin_capability::{Type as PluginType, service::Type as Service};
use super::csi::{
    ControllerGetCapabilitiesRequest, GetCapacityRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest,
    ListVolumesRequest, NodeGetInfoRequest, NodeGetInfoResponse, ProbeRequest,
};
use super::life::Map;
use super::sight::PATIENCE;

/// What a driver says that it can, in the order in which external-provisioner asks (`GetDriverCapabilities`).
pub(crate) struct Offered {
    services: BTreeSet<Service>,
    rpcs: BTreeSet<Rpc>,
}

impl Offered {
    async fn by(driver: &Client) -> Self {
        let answer = driver.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await;
        let kinds = answer.expect("GetPluginCapabilities").into_inner().capabilities.into_iter();
        let services = kinds.filter_map(|one| match one.r#type {
            Some(PluginType::Service(service)) => Some(service.r#type()),
            _ => None,
        });
        let services = services.collect();
        let answer =
            driver.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
        let kinds = answer.expect("ControllerGetCapabilities").into_inner().capabilities.into_iter();
        let rpcs = kinds.filter_map(|one| one.r#type).map(|ControllerType::Rpc(rpc)| rpc.r#type()).collect();
        Self { services, rpcs }
    }

    fn has(&self, rpc: Rpc) -> bool {
        self.rpcs.contains(&rpc)
    }

    fn is_a_controller(&self) -> bool {
        self.services.contains(&Service::ControllerService)
    }

    fn has_topology(&self) -> bool {
        self.services.contains(&Service::VolumeAccessibilityConstraints)
    }
}

/// csi-lib-utils, for each of them: a name that is not empty, and Probe until it says ready. Any failure but a deadline ends
/// the sidecar.
async fn connected(driver: &Client) -> String {
    let end = Instant::now() + PATIENCE;
    while driver.identity().probe(ProbeRequest {}).await.expect("Probe").into_inner().ready == Some(false) {
        assert!(Instant::now() < end, "the driver is never ready");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let info = driver.identity().get_plugin_info(GetPluginInfoRequest {}).await;
    let name = info.expect("GetPluginInfo").into_inner().name;
    assert!(!name.is_empty(), "driver name is empty");
    name
}

/// And kubelet, which it registers the driver with: a name to register, a node id, and topology keys where there is any.
pub(crate) async fn node_driver_registrar(driver: &Client, node: &str) -> (String, Option<Map>) {
    let info = driver.identity().get_plugin_info(GetPluginInfoRequest {}).await;
    let name = info.expect("GetPluginInfo").into_inner().name;
    assert!(!name.is_empty(), "driver name is empty");
    let answer = driver.node().node_get_info(NodeGetInfoRequest {}).await.expect("NodeGetInfo");
    let NodeGetInfoResponse { node_id, max_volumes_per_node, accessible_topology } = answer.into_inner();
    assert_eq!(node_id, node);
    assert!(max_volumes_per_node >= 0, "{max_volumes_per_node} volumes on a node");
    (name, accessible_topology.map(|topology| topology.segments))
}

/// `checkDriverCapabilities`; with a topology it asks the CSINode objects for keys, and provisions nothing without any.
/// `--enable-capacity` asks GetCapacity whatever is offered.
pub(crate) async fn external_provisioner(driver: &Client, nodes: Option<&Map>, capacity: Option<Map>) {
    connected(driver).await;
    let offered = Offered::by(driver).await;
    assert!(offered.is_a_controller(), "no plugin controller service support detected");
    assert!(offered.has(Rpc::CreateDeleteVolume), "no create/delete volume support detected");
    assert!(offered.has(Rpc::CloneVolume), "claims with a claim as dataSource are refused");
    assert!(offered.has(Rpc::CreateDeleteSnapshot), "claims with a snapshot as dataSource are refused");
    let keys = nodes.is_some_and(|segments| !segments.is_empty());
    assert_eq!(offered.has_topology(), keys, "no topology key found on any node");
    if let Some(parameters) = capacity {
        let request = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
        let answer = driver.controller().get_capacity(request).await.expect("GetCapacity").into_inner();
        assert!(answer.available_capacity > 0, "{answer:?}");
    }
}

/// Without PUBLISH_UNPUBLISH_VOLUME it marks attachments done and leaves their finalizers; with LIST_VOLUMES and
/// LIST_VOLUMES_PUBLISHED_NODES it lists all volumes each minute. True where it does.
pub(crate) async fn external_attacher(driver: &Client) -> bool {
    connected(driver).await;
    let offered = Offered::by(driver).await;
    let real = offered.is_a_controller() && offered.has(Rpc::PublishUnpublishVolume);
    assert!(real, "CSI driver does not support ControllerPublishUnpublish, using trivial handler");
    let lists = offered.has(Rpc::ListVolumes) && offered.has(Rpc::ListVolumesPublishedNodes);
    if lists {
        let listed = driver.controller().list_volumes(ListVolumesRequest::default()).await;
        listed.expect("ListVolumes, in each round of the reconciler");
    }
    lists
}

/// `NewResizerFromClient`.
pub(crate) async fn external_resizer(driver: &Client) {
    connected(driver).await;
    let offered = Offered::by(driver).await;
    assert!(offered.is_a_controller(), "CSI driver does not support controller service");
    assert!(offered.has(Rpc::ExpandVolume), "CSI driver neither supports controller resize nor node resize");
    assert!(offered.has(Rpc::ModifyVolume), "VolumeAttributesClasses are left alone");
}

/// Snapshots that were not made here are read by ListSnapshots; without that they count as ready.
pub(crate) async fn external_snapshotter(driver: &Client) {
    connected(driver).await;
    let offered = Offered::by(driver).await;
    assert!(offered.is_a_controller(), "CSI driver does not support controller service");
    assert!(offered.has(Rpc::CreateDeleteSnapshot), "CSI driver does not support ControllerCreateSnapshot");
    assert!(offered.has(Rpc::ListSnapshots), "pre-provisioned snapshots count as ready unseen");
}

/// Kubelet starts the driver's container anew when it says no.
pub(crate) async fn livenessprobe(driver: &Client) {
    let ready = driver.identity().probe(ProbeRequest {}).await.expect("Probe").into_inner().ready;
    assert_ne!(ready, Some(false), "driver responded but is not ready");
}
