//! What lets each sidecar run beside the driver of one node, which serves the controller too.

use crate::common::life::{Map, map};
use crate::common::sidecars;
use crate::harness::{DRIVER, NODE, SEGMENT, Scene};

fn segments() -> Map {
    map(&[(SEGMENT, NODE)])
}

#[tokio::test]
async fn node_driver_registrar_registers_the_node() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (name, told) = sidecars::node_driver_registrar(&driver, NODE).await;
    assert_eq!((name.as_str(), told), (DRIVER, Some(segments())));
}

#[tokio::test]
async fn external_provisioner_provisions_with_topology_and_capacity() {
    let scene = Scene::new();
    let driver = scene.start().await;
    sidecars::external_provisioner(&driver, Some(&segments()), Some(Map::new())).await;
}

#[tokio::test]
async fn external_attacher_attaches_and_lists() {
    let scene = Scene::new();
    let driver = scene.start().await;
    assert!(sidecars::external_attacher(&driver).await);
}

#[tokio::test]
async fn external_resizer_grows_and_modifies() {
    let scene = Scene::new();
    sidecars::external_resizer(&*scene.start().await).await;
}

#[tokio::test]
async fn external_snapshotter_takes_snapshots() {
    let scene = Scene::new();
    sidecars::external_snapshotter(&*scene.start().await).await;
}

#[tokio::test]
async fn livenessprobe_lets_it_live() {
    let scene = Scene::new();
    sidecars::livenessprobe(&*scene.start().await).await;
}
