//! The driver takes ceph-csi's place in the midst of provisioning: a name that has a volume gets that one.

use serde_json::json;
use tonic::Code;

use crate::ceph_csi::{self, Made, SIZE, nothing_is_left};
use crate::common::csi::CreateVolumeRequest;
use crate::common::life::{Life, mount};
use crate::common::tools::{check, twice, unique};
use crate::harness::{CLUSTER, Scene};
use crate::lab::POOL;
use crate::life::request;

fn again(made: &Made) -> CreateVolumeRequest {
    request::create(&made.name, 320, mount("ext4"))
}

#[tokio::test]
async fn a_name_that_ceph_csi_has_a_volume_for_gets_that_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let elsewhere = ceph_csi::volume_journalled_elsewhere(&scene);
    for made in [ceph_csi::volume(&scene), ceph_csi::volume_with_prefix(&scene, "team-a-"), elsewhere] {
        let mut request = again(&made);
        request.parameters.insert("pool".to_owned(), made.context["journalPool"].clone());
        let volume = twice(|| driver.create(request.clone())).await;
        assert_eq!((&volume.volume_id, volume.capacity_bytes.unsigned_abs()), (&made.id, SIZE));
        for (key, value) in made.context.iter().filter(|(key, _)| *key != "imageFeatures") {
            assert_eq!(volume.volume_context.get(key), Some(value), "{key}");
        }
        let life = Life::create_as(&scene, &driver, request).await;
        life.up(&driver).await;
        life.down(&driver).await;
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_volume_of_that_name_that_differs_is_a_conflict() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::volume(&scene);
    let clone = ceph_csi::clone(&scene, &made);
    let larger = request::create(&made.name, 1024, mount("ext4"));
    check(driver.create(larger).await, Code::AlreadyExists, &made.image);
    check(driver.create(again(&clone)).await, Code::AlreadyExists, "-temp");
}

#[tokio::test]
async fn a_name_that_ceph_csi_only_reserved_gets_a_new_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let reserved = ceph_csi::reservation(&scene);
    let volume = twice(|| driver.create(again(&reserved))).await;
    assert_ne!(volume.volume_id, reserved.id);
    assert!(scene.corner.has_journal(&reserved.uuid), "what is not ours was taken away");
    // ceph-csi, still at work beside this driver: what was answered once stays the answer.
    ceph_csi::create(&scene, &reserved);
    assert_eq!(driver.create(again(&reserved)).await.expect("CreateVolume").volume_id, volume.volume_id);
}

/// One look a minute, where ceph-csi was ever at work, and else one at all.
#[tokio::test]
async fn where_ceph_csi_never_was_its_names_are_asked_for_once() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--v=4").start().await;
    for _ in 0..3 {
        driver.create(request::create(&unique("pvc"), 16, mount("ext4"))).await.expect("CreateVolume");
    }
    let log = driver.log();
    let asked = log
        .lines()
        .filter(|line| line.contains("listomapkeys") && line.contains("csi.volumes.default"))
        .count();
    assert_eq!(asked, 1, "in pool {POOL}: {log}");
}

/// The id names the cluster and pool of the other side. cluster-mapping.json is what Rook and ceph-csi's charts mount.
#[tokio::test]
async fn a_mirrored_volume_is_found_on_the_cluster_that_it_failed_over_to() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::volume(&scene);
    let id = format!("0001-0004-east-{:016x}-{}", 77, made.uuid);
    let there = Made { id, ..made };
    let life = ceph_csi::life(&scene, &driver, &there, mount("xfs"));
    check(life.attach(&driver, "node-a").await, Code::FailedPrecondition, "\"east\"");
    let pools = json!([{ "77": ceph_csi::pool_id(POOL).to_string() }]);
    let mapping = json!([{ "clusterIDMapping": { "east": CLUSTER }, "RBDPoolIDMapping": pools }]);
    std::fs::write(scene.path("cluster-mapping.json"), mapping.to_string()).expect("the mapping");
    twice(|| life.attach(&driver, "node-a")).await;
    life.up(&driver).await;
    assert_eq!(life.expand(&driver, 512 << 20).await.expect("ControllerExpandVolume"), (512 << 20, true));
    life.down(&driver).await;
    twice(|| life.detach(&driver, "node-a")).await;
    twice(|| driver.delete(&life.id)).await;
    nothing_is_left(&scene).await;
}
