//! A driver in a container: its mount namespace ends with it, and takes the mounts away by which the kernel names files.

use std::fs;

use tonic::Code;

use crate::common::driver::Start;
use crate::common::growth::pattern;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{check, run};
use crate::copies::restored;
use crate::harness::{DRIVER, NODE, Scene};

/// The root shows at a place that only this mount namespace has; what is staged shows outside too, as kubelet has it.
const ENTER: &str = r#"mount --make-slave / && mount --bind "$ROOT" "$INSIDE" && exec "$0" "$@""#;

fn contained(scene: &Scene) -> Start {
    let (node, inside) = (scene.path(NODE), scene.path("inside"));
    for folder in [&node, &inside] {
        fs::create_dir(folder).expect("a folder");
    }
    let node = node.to_string_lossy();
    run("mount", &["--bind", &node, &node]);
    run("mount", &["--make-shared", &node]);
    let mut start = Start::new(&scene.path(""), NODE, "local")
        .flag(&format!("--local-root={}", inside.display()))
        .flag(&format!("--drivername={DRIVER}"))
        .variable("ROOT", &scene.root)
        .variable("INSIDE", inside);
    let within = ["unshare", "--mount", "--propagation", "unchanged", "bash", "-c", ENTER];
    start.within = within.map(str::to_owned).into();
    start
}

#[tokio::test]
async fn a_new_container_knows_what_the_old_one_has_staged() {
    let scene = Scene::on("ext4", 2048);
    let start = contained(&scene);
    let driver = start.start().await;
    let life = Life::create(&scene, &driver, mount("xfs")).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    life.publish(&driver).await.expect("NodePublishVolume");
    let data = pattern(4, 1);
    let driver = driver.killed_and_started().await;
    // In memory alone: a copy that takes the volume for unused would miss it.
    fs::write(life.place(), &data).expect("a pod writes");
    let snapshot = driver.snapshot("one", &life.id).await.expect("CreateSnapshot");
    check(driver.delete(&life.id).await, Code::FailedPrecondition, "in use");
    let size = 512 << 20;
    driver.expand(&life.id, size).await.expect("ControllerExpandVolume");
    assert_eq!(life.expand_at(&driver, &life.target, size).await.expect("NodeExpandVolume"), size);
    let copy = restored(&scene, &driver, &snapshot, &life).await;
    assert!(copy.content(&driver, data.len()).await == data, "the snapshot has other data");
    assert!(life.read(data.len()) == data);
    life.unpublish(&driver).await.expect("NodeUnpublishVolume");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    for id in [&life.id, &copy.id] {
        driver.delete(id).await.expect("DeleteVolume");
    }
    driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    run("umount", &[&scene.path(NODE).to_string_lossy()]);
    scene.assert_empty();
}

/// kubelet's folder shows at two paths, as a bind in fstab has it: each mount below it shows twice.
const TWICE: &str = r#"mount --bind "$NODE" "$NODE" && mount --make-shared "$NODE" && mount --bind "$NODE" "$AGAIN" && exec "$0" "$@""#;

#[tokio::test]
async fn a_mount_that_shows_twice_is_not_taken_for_two() {
    let scene = Scene::new();
    let (node, again) = (scene.path(NODE), scene.path("again"));
    for folder in [&node, &again] {
        fs::create_dir(folder).expect("a folder");
    }
    let mut start = scene.driver().variable("NODE", node).variable("AGAIN", again);
    start.within = ["unshare", "--mount", "bash", "-c", TWICE].map(str::to_owned).into();
    let driver = start.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        check(life.unstage(&driver).await, Code::FailedPrecondition, "published");
        life.down(&driver).await;
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    drop(driver);
    scene.assert_empty();
}
