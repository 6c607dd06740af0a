//! What lets each sidecar run beside the controller and on a node: with lists and without, with topology and without.

use crate::common::life::map;
use crate::common::sidecars;
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::POOL;

const LABELS: &str = "--domainlabels=topology.kubernetes.io/zone=za";
const KEY: &str = "topology.rbd.csi.ceph.com/zone";

/// A deployment: its controller, a node, and whether it has a credential to list with, and topology.
struct Deployed {
    controller: Driver,
    node: Driver,
    lists: bool,
    topology: bool,
}

async fn each_deployment(check: impl AsyncFn(Deployed)) {
    for (lists, topology) in [(false, false), (true, false), (false, true), (true, true)] {
        let scene = Scene::new();
        let scene = if lists { scene.listing(&[POOL]) } else { scene };
        let start = |name: &str, kind: &str| {
            let start = scene.on_node(name, kind);
            if topology { start.flag(LABELS) } else { start }
        };
        let (controller, node) = (start("controller-1", "controller"), start("node-a", "node"));
        check(Deployed { controller: controller.start().await, node: node.start().await, lists, topology })
            .await;
    }
}

#[tokio::test]
async fn node_driver_registrar_registers_the_node() {
    each_deployment(async |deployed| {
        let (name, segments) = sidecars::node_driver_registrar(&deployed.node, "node-a").await;
        assert_eq!((name.as_str(), segments), ("rbd.csi.ceph.com", deployed.segments()));
    })
    .await;
}

#[tokio::test]
async fn external_provisioner_provisions_clones_and_restores() {
    each_deployment(async |deployed| {
        let capacity = deployed.lists.then(|| map(&[("clusterID", CLUSTER), ("pool", POOL)]));
        let segments = deployed.segments();
        sidecars::external_provisioner(&deployed.controller, segments.as_ref(), capacity).await;
    })
    .await;
}

#[tokio::test]
async fn external_attacher_attaches_and_lists_where_it_can() {
    each_deployment(async |deployed| {
        assert_eq!(sidecars::external_attacher(&deployed.controller).await, deployed.lists);
    })
    .await;
}

#[tokio::test]
async fn external_resizer_grows_and_modifies() {
    each_deployment(async |deployed| sidecars::external_resizer(&deployed.controller).await).await;
}

#[tokio::test]
async fn external_snapshotter_takes_snapshots() {
    each_deployment(async |deployed| sidecars::external_snapshotter(&deployed.controller).await).await;
}

#[tokio::test]
async fn livenessprobe_lets_both_live() {
    each_deployment(async |deployed| {
        sidecars::livenessprobe(&deployed.controller).await;
        sidecars::livenessprobe(&deployed.node).await;
    })
    .await;
}

impl Deployed {
    /// What the node says of its place.
    fn segments(&self) -> Option<crate::common::life::Map> {
        self.topology.then(|| map(&[(KEY, "za")]))
    }
}
