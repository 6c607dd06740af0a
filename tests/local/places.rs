//! Where volumes are and how much of them: topology, the attach limit, capacity and overcommitment.

use tonic::Code;

use crate::asks;
use crate::common::csi::{
    ControllerPublishVolumeRequest, CreateVolumeRequest, GetCapacityRequest, NodeGetInfoRequest, Topology,
    TopologyRequirement,
};
use crate::common::driver::Driver;
use crate::common::life::{Life, MIB, block, map};
use crate::common::tools::check;
use crate::harness::{NODE, SEGMENT, Scene};

fn place(node: &str) -> Topology {
    Topology { segments: map(&[(SEGMENT, node)]) }
}

fn placed(requisite: &[&str], preferred: &[&str]) -> CreateVolumeRequest {
    let places = |nodes: &[&str]| nodes.iter().map(|node| place(node)).collect();
    let accessibility_requirements =
        Some(TopologyRequirement { requisite: places(requisite), preferred: places(preferred) });
    CreateVolumeRequest { accessibility_requirements, ..asks::any(8, block()) }
}

#[tokio::test]
async fn the_node_says_where_it_is_and_how_much_it_takes() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--max-volumes-per-node=7").start().await;
    let info = driver.node().node_get_info(NodeGetInfoRequest {}).await.expect("NodeGetInfo").into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (NODE, 7));
    assert_eq!(info.accessible_topology, Some(place(NODE)));
}

/// An id names its node: one that was never handed out would be one that nobody can stage or delete.
#[tokio::test]
async fn a_volume_of_the_node_s_old_name_is_not_taken_for_a_new_one() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = asks::any(8, block());
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    drop(driver);
    let renamed = scene.named("node-b").start().await;
    check(renamed.create(request).await, Code::AlreadyExists, &volume.volume_id);
    renamed.delete(&volume.volume_id).await.expect("it can be deleted by its id");
    scene.assert_empty();
}

#[tokio::test]
async fn a_volume_is_made_where_it_is_asked_for_or_not_at_all() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (requisite, preferred) in [
        (&[NODE][..], &[NODE][..]),
        (&["node-b", NODE], &["node-b"]),
        (&[], &["node-b"]),
        (&[NODE], &[]),
        (&[], &[]),
    ] {
        let volume = driver.create(placed(requisite, preferred)).await.expect("CreateVolume");
        assert_eq!(volume.accessible_topology, [place(NODE)], "{requisite:?} {preferred:?}");
    }
    for request in [placed(&["node-b"], &["node-b"]), placed(&["node-b", "node-c"], &[])] {
        check(driver.create(request).await, Code::ResourceExhausted, NODE);
    }
    let mut foreign = placed(&[NODE], &[]);
    foreign.accessibility_requirements.as_mut().expect("places").requisite[0]
        .segments
        .extend(map(&[("topology.kubernetes.io/zone", "z")]));
    check(driver.create(foreign).await, Code::ResourceExhausted, NODE);
    assert_eq!(scene.volumes().len(), 5);
}

#[tokio::test]
async fn a_volume_is_published_to_its_own_node_alone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    check(life.attach(&driver, "node-b").await, Code::NotFound, "node-b");
    life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
    check(life.attach(&driver, "node-b").await, Code::NotFound, "node-b");
    life.detach(&driver, "node-b").await.expect("ControllerUnpublishVolume where it is not");
    let nodes = driver.state(&life.id).await.expect("ControllerGetVolume").status.expect("a status");
    assert_eq!(nodes.published_node_ids, [NODE]);
    let request = ControllerPublishVolumeRequest {
        volume_id: life.id.clone(),
        node_id: NODE.to_owned(),
        ..Default::default()
    };
    let answer = driver.controller().controller_publish_volume(request).await;
    check(answer, Code::InvalidArgument, "volume_capability");
}

#[tokio::test]
async fn a_node_takes_no_more_volumes_than_its_limit() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--max-volumes-per-node=2").start().await;
    let mut lives = Vec::new();
    for _ in 0..3 {
        lives.push(Life::create(&scene, &driver, block()).await);
    }
    for life in &lives[..2] {
        life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
    }
    check(lives[2].attach(&driver, NODE).await, Code::ResourceExhausted, "2");
    lives[0].attach(&driver, NODE).await.expect("ControllerPublishVolume again");
    let driver = driver.killed_and_started().await;
    check(lives[2].attach(&driver, NODE).await, Code::ResourceExhausted, "2");
    lives[1].detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
    lives[2].attach(&driver, NODE).await.expect("ControllerPublishVolume in the place of another");
}

/// Bytes that differ by no more than what a filesystem takes for itself.
#[track_caller]
fn assert_near(one: i64, other: i64) {
    assert!((one - other).unsigned_abs() <= 4 * MIB, "{one} is not about {other}");
}

async fn at(driver: &Driver, node: &str) -> i64 {
    let request = GetCapacityRequest { accessible_topology: Some(place(node)), ..Default::default() };
    driver.capacity(request).await.expect("GetCapacity").available_capacity
}

#[tokio::test]
async fn each_promise_takes_from_the_capacity() {
    let scene = Scene::on("ext4", 512);
    let driver = scene.start().await;
    let all = driver.available().await;
    assert!(all > 300 << 20 && all < 512 << 20, "{all}");
    assert_eq!((at(&driver, NODE).await, at(&driver, "node-b").await), (all, 0));
    let life = Life::create(&scene, &driver, block()).await;
    assert_near(driver.available().await, all - (64 << 20));
    // Data takes what was promised, no more.
    let life = life.filled(&driver, &vec![7; 32 << 20]).await;
    assert_near(driver.available().await, all - (64 << 20));
    driver.expand(&life.id, 128 << 20).await.expect("ControllerExpandVolume");
    assert_near(driver.available().await, all - (128 << 20));
    let snapshot = driver.snapshot("one", &life.id).await.expect("CreateSnapshot");
    assert!(driver.available().await < all - (128 << 20), "a snapshot takes nothing");
    driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    driver.delete(&life.id).await.expect("DeleteVolume");
    assert_near(driver.available().await, all);
}

#[tokio::test]
async fn what_has_no_room_is_not_promised() {
    let scene = Scene::on("ext4", 512);
    let driver = scene.start().await;
    let all = driver.available().await >> 20;
    let large = driver.create(asks::any(all - 100, block())).await.expect("CreateVolume");
    check(driver.create(asks::any(150, block())).await, Code::ResourceExhausted, "157286400");
    check(driver.expand(&large.volume_id, (all + 50) << 20).await, Code::ResourceExhausted, "bytes");
    driver.create(asks::any(50, block())).await.expect("what there is room for");
    assert_eq!(scene.volumes().len(), 2);
    scene.assert_at_rest();
    let answer = driver.capacity(GetCapacityRequest::default()).await.expect("GetCapacity");
    let maximum = answer.maximum_volume_size.expect("the largest volume");
    assert!((0..1 << 20).contains(&(answer.available_capacity - maximum)), "{answer:?}");
}

#[tokio::test]
async fn overcommitment_promises_more_than_there_is() {
    let scene = Scene::on("ext4", 512);
    let single = scene.start().await;
    let all = single.available().await;
    drop(single);
    let driver = scene.driver().flag("--local-overcommit=2").start().await;
    let doubled = driver.available().await;
    assert_near(doubled / 2, all);
    driver.create(asks::any((all >> 20) + 50, block())).await.expect("more than there is");
    check(driver.create(asks::any(all >> 20, block())).await, Code::ResourceExhausted, "bytes");
}

#[tokio::test]
async fn capacity_is_asked_with_the_parameters_of_a_class() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let asked = |pairs: &[(&str, &str)]| GetCapacityRequest { parameters: map(pairs), ..Default::default() };
    driver.capacity(asked(&[("volumeType", "image"), ("directIO", "true")])).await.expect("GetCapacity");
    check(driver.capacity(asked(&[("volumetype", "image")])).await, Code::InvalidArgument, "volumeType");
}
