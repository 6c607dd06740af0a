//! The meta.json of one volume torn by a crash or a hand: that volume says so, and all others work on.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use tonic::Code;

use crate::asks;
use crate::common::csi::{ControllerModifyVolumeRequest, ListSnapshotsRequest};
use crate::common::driver::Driver;
use crate::common::life::{Life, block, map};
use crate::common::tools::{check, unique};
use crate::harness::{NODE, Scene};

/// What a crash, a full disk or a person makes of it.
fn damages() -> [(&'static str, Vec<u8>); 5] {
    [
        ("empty", Vec::new()),
        ("zeros", vec![0; 300]),
        ("torn", b"{\"version\": 1, \"si".to_vec()),
        ("of another kind", b"[1, 2, 3]".to_vec()),
        ("without its fields", b"{}".to_vec()),
    ]
}

fn meta(scene: &Scene, life: &Life) -> PathBuf {
    scene.volume(&life.uuid()).join("meta.json")
}

/// Refused with the file's name, whatever is asked of the volume.
async fn refused(driver: &Driver, life: &Life, file: &str) {
    check(life.attach(driver, NODE).await, Code::Internal, file);
    check(life.stage(driver).await, Code::Internal, file);
    check(driver.expand(&life.id, 128 << 20).await, Code::Internal, file);
    check(driver.snapshot(&unique("snap"), &life.id).await, Code::Internal, file);
    check(driver.create(asks::any(64, block()).of_volume(&life.id)).await, Code::Internal, file);
    life.assert_gone();
}

#[tokio::test]
async fn only_the_volume_with_a_torn_meta_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = asks::any(64, block());
    let life = Life::create_as(&scene, &driver, request.clone()).await;
    let other = Life::create(&scene, &driver, block()).await;
    let path = meta(&scene, &life);
    let (file, whole) = (path.to_string_lossy().into_owned(), fs::read(&path).expect("its meta.json"));
    for (what, bytes) in damages() {
        fs::write(&path, bytes).expect(what);
        refused(&driver, &life, &file).await;
        check(driver.create(request.clone()).await, Code::Internal, &file);
        assert_told(&driver, &life, &file).await;
        other.up(&driver).await;
        other.write(b"others work").expect("a pod writes");
        other.down(&driver).await;
        let snapshot = driver.snapshot(&unique("snap"), &other.id).await.expect("CreateSnapshot");
        driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
        driver.create(asks::any(64, block())).await.expect("CreateVolume");
    }
    fs::write(&path, whole).expect("mended by hand");
    assert_eq!(driver.create(request).await.expect("CreateVolume again").volume_id, life.id);
    life.up(&driver).await;
    life.down(&driver).await;
}

/// In the list and alone, with an abnormal condition; the other volume with a good one.
async fn assert_told(driver: &Driver, life: &Life, file: &str) {
    let state = driver.state(&life.id).await.expect("ControllerGetVolume");
    let told = state.status.and_then(|status| status.volume_condition).expect("a condition");
    assert!(told.abnormal && told.message.contains(file), "{told:?}");
    for entry in driver.list(0, "").await.expect("ListVolumes").entries {
        let id = entry.volume.expect("a volume").volume_id;
        let told = entry.status.and_then(|status| status.volume_condition).expect("a condition");
        assert_eq!(told.abnormal, id == life.id, "{id}: {told:?}");
    }
}

#[tokio::test]
async fn a_driver_starts_beside_a_torn_meta() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    fs::write(meta(&scene, &life), "").expect("torn");
    let driver = driver.killed_and_started().await;
    let other = Life::create(&scene, &driver, block()).await;
    assert_eq!(driver.list(0, "").await.expect("ListVolumes").entries.len(), 2);
    assert!(driver.available().await > 0);
    assert_eq!(other.content(&driver, 1).await, [0]);
}

/// Unstage is told nothing and has to need nothing.
#[tokio::test]
async fn a_volume_whose_meta_is_torn_while_it_is_staged_is_taken_down() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.up(&driver).await;
    life.write(b"data").expect("a pod writes");
    fs::write(meta(&scene, &life), "{").expect("torn");
    let driver = driver.killed_and_started().await;
    life.down(&driver).await;
    life.assert_gone();
}

#[tokio::test]
async fn only_the_snapshot_with_a_torn_meta_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let mut snapshots = Vec::new();
    for _ in 0..2 {
        snapshots.push(driver.snapshot(&unique("snap"), &life.id).await.expect("CreateSnapshot").snapshot_id);
    }
    // `<volume id with the snapshot's uuid>-<22 characters>`
    let uuid = &snapshots[0][snapshots[0].len() - 59..snapshots[0].len() - 23];
    let path = scene.snapshot(uuid).join("meta.json");
    assert!(path.exists(), "there is no {}", path.display());
    fs::write(&path, "{").expect("torn");
    let file = path.to_string_lossy();
    let restore = |id: &str| asks::any(64, block()).of_snapshot(id);
    check(driver.create(restore(&snapshots[0])).await, Code::Internal, &file);
    driver.create(restore(&snapshots[1])).await.expect("the other one");
    let listed = driver.list_snapshots(ListSnapshotsRequest::default()).await.expect("ListSnapshots");
    assert!(
        listed.entries.iter().flat_map(|entry| &entry.snapshot).any(|one| one.snapshot_id == snapshots[1])
    );
    driver.delete_snapshot(&snapshots[1]).await.expect("DeleteSnapshot");
}

#[tokio::test]
async fn a_mutable_parameter_is_changed_whole_or_not_at_all() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let modify = |id: &str, pairs: &[(&str, &str)]| {
        let request = ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: map(pairs),
            secrets: BTreeMap::new(),
        };
        let mut controller = driver.controller();
        async move { controller.controller_modify_volume(request).await.map(drop) }
    };
    let before = fs::read(meta(&scene, &life)).expect("its meta.json");
    let mixed = [("directIO", "true"), ("speed", "9")];
    check(modify(&life.id, &mixed).await, Code::InvalidArgument, "speed");
    check(modify(&life.id, &[("directIO", "maybe")]).await, Code::InvalidArgument, "maybe");
    assert_eq!(fs::read(meta(&scene, &life)).expect("its meta.json"), before);
    for value in ["true", "true", "false"] {
        modify(&life.id, &[("directIO", value)]).await.expect("ControllerModifyVolume");
    }
    check(modify("malformed", &[("directIO", "true")]).await, Code::NotFound, "malformed");
    assert_eq!(life.content(&driver, 1).await, [0]);
}
