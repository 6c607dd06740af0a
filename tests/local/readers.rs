//! Volumes that are only read: by many pods, from a snapshot, and what that leaves untouched.

use std::io::ErrorKind;

use tonic::Code;

use crate::asks;
use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{check, twice, unique};
use crate::harness::{NODE, Scene};

const DATA: &[u8] = b"what all read";

#[tokio::test]
async fn a_restored_snapshot_is_read_at_many_targets() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let source = Life::create(&scene, &driver, capability.clone()).await.filled(&driver, DATA).await;
        let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
        let many = capability.clone().with(Mode::MultiNodeReaderOnly);
        let request = asks::any(capability.usual_mib(), many).of_snapshot(&snapshot.snapshot_id);
        let life = Life::create_as(&scene, &driver, request).await;
        life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
        life.stage(&driver).await.expect("NodeStageVolume");
        let second = life.target.with_file_name("second");
        for target in [&life.target, &second] {
            twice(|| life.publish_at(&driver, target, true)).await;
        }
        assert_eq!(life.read(DATA.len()), DATA);
        let error = life.write(b"more").expect_err("a write to a volume that is only read");
        assert!(
            matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied),
            "{error:?}"
        );
        life.unpublish_at(&driver, &second).await.expect("NodeUnpublishVolume");
        life.down(&driver).await;
        life.detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
        life.assert_gone();
    }
}

#[tokio::test]
async fn a_volume_written_once_is_staged_for_readers() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await.filled(&driver, DATA).await;
    let reader = life.again(&scene).with(Mode::SingleNodeReaderOnly);
    reader.stage(&driver).await.expect("NodeStageVolume");
    assert!(reader.staged()[0].has("ro"), "{:?}", reader.staged());
    let writer = Life { capability: mount("ext4"), ..reader.clone() };
    check(writer.stage(&driver).await, Code::AlreadyExists, &life.id);
    reader.publish(&driver).await.expect("NodePublishVolume");
    assert_eq!(reader.read(DATA.len()), DATA);
    assert_eq!(reader.write(b"x").expect_err("a write").kind(), ErrorKind::ReadOnlyFilesystem);
    reader.down(&driver).await;
}

#[tokio::test]
async fn a_new_volume_for_readers_alone_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for mode in [Mode::SingleNodeReaderOnly, Mode::MultiNodeReaderOnly] {
        let request = asks::any(64, mount("ext4").with(mode));
        check(driver.create(request).await, Code::InvalidArgument, "read");
    }
    scene.assert_empty();
}

/// A filesystem is never made for readers.
#[tokio::test]
async fn an_empty_volume_is_not_staged_for_readers() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await.with(Mode::SingleNodeReaderOnly);
    check(life.stage(&driver).await, Code::FailedPrecondition, "empty");
    life.assert_gone();
}

/// What ControllerPublishVolume gave read-only, stays so on the node.
#[tokio::test]
async fn the_readonly_of_controller_publish_is_noted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await.filled(&driver, DATA).await;
    twice(|| life.attach_as(&driver, true)).await;
    check(life.attach_as(&driver, false).await, Code::AlreadyExists, NODE);
    let driver = driver.killed_and_started().await;
    check(life.attach_as(&driver, false).await, Code::AlreadyExists, NODE);
    life.detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
    twice(|| life.attach_as(&driver, false)).await;
    check(life.attach_as(&driver, true).await, Code::AlreadyExists, NODE);
    life.detach(&driver, "").await.expect("ControllerUnpublishVolume from all nodes");
    driver.delete(&life.id).await.expect("DeleteVolume");
    scene.assert_empty();
}
