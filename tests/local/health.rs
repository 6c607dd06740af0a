//! Health, told in both dialects: the volume condition of CSI 1.12, and the health calls of 1.13.

use std::fs;

use tonic::Code;

use crate::asks;
use crate::common::csi::controller_service_capability::Type as ControllerType;
use crate::common::csi::controller_service_capability::rpc::Type as ControllerRpc;
use crate::common::csi::node_service_capability::Type as NodeType;
use crate::common::csi::node_service_capability::rpc::Type as NodeRpc;
use crate::common::csi::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest,
    NodeGetCapabilitiesRequest, NodeGetStorageHealthRequest, VolumeCondition, VolumeHealth,
};
use crate::common::driver::Driver;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{Answer, check};
use crate::harness::Scene;

async fn health(driver: &Driver, id: &str) -> Answer<VolumeHealth> {
    let request = ControllerGetVolumeHealthRequest { volume_id: id.to_owned(), ..Default::default() };
    let answer = driver.controller().controller_get_volume_health(request).await?.into_inner();
    Ok(answer.volume_health.expect("an answer without health"))
}

async fn unhealthy(driver: &Driver) -> Vec<VolumeHealth> {
    let request = ControllerListVolumeHealthRequest::default();
    let answer = driver.controller().controller_list_volume_health(request).await;
    answer.expect("ControllerListVolumeHealth").into_inner().entries
}

async fn condition(driver: &Driver, life: &Life) -> VolumeCondition {
    let state = driver.state(&life.id).await.expect("ControllerGetVolume");
    state.status.and_then(|status| status.volume_condition).expect("a condition")
}

#[tokio::test]
async fn both_dialects_are_advertised() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let answer = driver.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
    let offered = answer.expect("ControllerGetCapabilities").into_inner().capabilities;
    for wanted in [
        ControllerRpc::VolumeCondition,
        ControllerRpc::GetVolumeHealth,
        ControllerRpc::ListVolumeHealth,
        ControllerRpc::GetVolume,
        ControllerRpc::ListVolumesPublishedNodes,
    ] {
        let has = offered
            .iter()
            .any(|one| matches!(&one.r#type, Some(ControllerType::Rpc(rpc)) if rpc.r#type() == wanted));
        assert!(has, "{wanted:?} is not in {offered:?}");
    }
    let answer = driver.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await;
    let offered = answer.expect("NodeGetCapabilities").into_inner().capabilities;
    for wanted in
        [NodeRpc::VolumeCondition, NodeRpc::GetVolumeHealth, NodeRpc::GetStorageHealth, NodeRpc::ExpandVolume]
    {
        let has = offered
            .iter()
            .any(|one| matches!(&one.r#type, Some(NodeType::Rpc(rpc)) if rpc.r#type() == wanted));
        assert!(has, "{wanted:?} is not in {offered:?}");
    }
}

#[tokio::test]
async fn a_healthy_volume_is_said_to_be_healthy() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        let told = condition(&driver, &life).await;
        assert!(!told.abnormal && !told.message.is_empty(), "{told:?}");
        let stats = life.stats(&driver, &life.target).await.expect("NodeGetVolumeStats");
        assert!(stats.volume_condition.is_some_and(|told| !told.abnormal && !told.message.is_empty()));
        for told in [
            health(&driver, &life.id).await.expect("ControllerGetVolumeHealth"),
            life.health(&driver).await.expect("NodeGetVolumeHealth"),
        ] {
            assert_eq!((told.volume_id.as_str(), told.health_statuses), (life.id.as_str(), vec![]));
        }
        assert_eq!(unhealthy(&driver).await, vec![]);
        life.down(&driver).await;
    }
    let answer = driver.node().node_get_storage_health(NodeGetStorageHealthRequest::default()).await;
    assert_eq!(answer.expect("NodeGetStorageHealth").into_inner().backend_health, vec![]);
}

#[tokio::test]
async fn a_volume_whose_image_is_gone_is_lost() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (life, other) =
        (Life::create(&scene, &driver, block()).await, Life::create(&scene, &driver, block()).await);
    fs::remove_file(&life.image).expect("somebody deletes it");
    let told = condition(&driver, &life).await;
    assert!(told.abnormal && told.message.contains(&life.uuid()), "{told:?}");
    let told = health(&driver, &life.id).await.expect("ControllerGetVolumeHealth");
    assert!(!told.health_statuses.is_empty() && told.health_statuses[0].message.contains(&life.uuid()));
    assert_eq!(unhealthy(&driver).await, [told]);
    assert!(!condition(&driver, &other).await.abnormal);
    let error = life.stage(&driver).await.expect_err("a volume without an image");
    assert!(error.message().contains(&life.image), "{error:?}");
    life.assert_gone();
    driver.delete(&life.id).await.expect("DeleteVolume");
    assert_eq!(scene.volumes(), [other.uuid()].into());
}

/// What the kernel does with an ext4 in which it finds an error.
#[tokio::test]
async fn a_filesystem_that_gave_up_is_told() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, asks::mount_with("ext4", "errors=remount-ro")).await;
    life.up(&driver).await;
    let device = life.staged()[0].source.replace("/dev/", "");
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("an error of the filesystem");
    life.write(b"data").expect_err("a write to a filesystem that gave up");
    let told = life.health(&driver).await.expect("NodeGetVolumeHealth").health_statuses;
    assert!(told.iter().any(|one| one.message.contains("no writes")), "{told:?}");
    let stats = life.stats(&driver, &life.target).await.expect("NodeGetVolumeStats");
    assert!(stats.volume_condition.is_some_and(|told| told.abnormal), "the stats tell nothing of it");
    life.down(&driver).await;
}

/// A reader's mount is read-only on purpose.
#[tokio::test]
async fn a_volume_staged_for_readers_is_healthy() {
    use crate::common::csi::volume_capability::access_mode::Mode;
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await.filled(&driver, b"data").await;
    let life = life.with(Mode::SingleNodeReaderOnly);
    life.up(&driver).await;
    let told = life.health(&driver).await.expect("NodeGetVolumeHealth");
    assert_eq!(told.health_statuses, vec![]);
    life.down(&driver).await;
}

#[tokio::test]
async fn health_of_no_volume_is_not_found() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    check(life.health(&driver).await, Code::NotFound, &life.id);
    driver.delete(&life.id).await.expect("DeleteVolume");
    check(health(&driver, &life.id).await, Code::NotFound, &life.id);
    check(health(&driver, "malformed").await, Code::NotFound, "malformed");
    check(health(&driver, "").await, Code::InvalidArgument, "volume_id");
}

#[tokio::test]
async fn a_root_that_is_gone_is_told_as_sick_storage() {
    let scene = Scene::new();
    let driver = scene.start().await;
    fs::rename(&scene.root, scene.path("away")).expect("somebody moves it");
    let answer = driver.node().node_get_storage_health(NodeGetStorageHealthRequest::default()).await;
    let told = answer.expect("NodeGetStorageHealth").into_inner().backend_health;
    assert!(told.iter().any(|one| one.message.contains(&*scene.root.to_string_lossy())), "{told:?}");
}
