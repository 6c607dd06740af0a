//! Directory volumes: a folder of the root shown as it is, with what it can and what it cannot do.

use std::fs;

use tonic::Code;

use crate::asks;
use crate::common::csi::CreateVolumeRequest;
use crate::common::life::{Life, block, mount};
use crate::common::sight::loops_below;
use crate::common::tools::{check, twice};
use crate::harness::{NODE, Scene};

const DIRECTORY: &[(&str, &str)] = &[("volumeType", "directory")];

fn directory(mib: i64) -> CreateVolumeRequest {
    asks::any(mib, mount("ext4")).with_parameters(DIRECTORY)
}

#[tokio::test]
async fn a_directory_volume_lives_its_whole_life() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = directory(64);
    let volume = twice(|| driver.create(request.clone())).await;
    assert_eq!(volume.capacity_bytes, 64 << 20);
    let life = Life::of(&scene, &volume, mount("ext4"));
    let data = scene.volume(&life.uuid()).join("data");
    assert!(data.is_dir(), "there is no {}", data.display());
    twice(|| life.attach(&driver, NODE)).await;
    twice(|| life.stage(&driver)).await;
    twice(|| life.publish(&driver)).await;
    assert_eq!(loops_below(&scene.root), vec![]);
    life.write(b"of a pod").expect("a pod writes");
    assert_eq!(fs::read(data.join("data")).expect("its file"), b"of a pod");
    assert!(!life.stats(&driver, &life.target).await.expect("NodeGetVolumeStats").usage.is_empty());
    check(driver.delete(&life.id).await, Code::FailedPrecondition, &life.id);
    let driver = driver.killed_and_started().await;
    twice(|| life.unpublish(&driver)).await;
    twice(|| life.unstage(&driver)).await;
    life.assert_gone();
    assert_eq!(life.content(&driver, 8).await, b"of a pod");
    twice(|| life.detach(&driver, NODE)).await;
    twice(|| driver.delete(&life.id)).await;
    scene.assert_empty();
}

#[tokio::test]
async fn a_directory_volume_is_published_read_only() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, directory(64)).await.filled(&driver, b"data").await;
    life.stage(&driver).await.expect("NodeStageVolume");
    life.publish_at(&driver, &life.target, true).await.expect("NodePublishVolume");
    assert!(life.published()[0].has("ro"), "{:?}", life.published());
    assert_eq!(life.write(b"x").expect_err("a write").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(life.read(4), b"data");
    life.down(&driver).await;
}

#[tokio::test]
async fn what_a_folder_cannot_be_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let device = asks::any(64, block()).with_parameters(DIRECTORY);
    check(driver.create(device).await, Code::InvalidArgument, "directory");
    let made = directory(64).with_parameters(&[("mkfsOptions", "-b 1024")]);
    check(driver.create(made).await, Code::InvalidArgument, "mkfsOptions");
    // Nothing here keeps it to that size.
    let limited = directory(64).sized(64 << 20, 64 << 20);
    let refused = driver.create(limited).await.expect_err("a limit without a quota");
    assert!(refused.message().contains("quota"), "{refused:?}");
    scene.assert_empty();
}

#[tokio::test]
async fn a_folder_has_no_snapshots_and_no_clones() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, directory(64)).await;
    for refused in [
        driver.snapshot("one", &life.id).await.map(drop),
        driver.create(directory(64).of_volume(&life.id)).await.map(drop),
        driver.create(asks::any(64, mount("ext4")).of_volume(&life.id)).await.map(drop),
    ] {
        let status = refused.expect_err("a copy of a folder");
        assert!(status.message().contains("directory"), "{status:?}");
        assert!(matches!(status.code(), Code::InvalidArgument | Code::FailedPrecondition), "{status:?}");
    }
    assert_eq!(scene.volumes(), [life.uuid()].into());
    scene.assert_at_rest();
}

#[tokio::test]
async fn a_folder_is_not_staged_as_a_device() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, directory(64)).await;
    let device = Life { capability: block(), ..life.again(&scene) };
    check(device.stage(&driver).await, Code::FailedPrecondition, "directory");
    device.assert_gone();
}
