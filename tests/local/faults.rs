//! A root that is full, read-only, not there yet, gone, or somebody else's: told as what it is, and nothing is lost.

use std::fs;

use tonic::Code;

use crate::asks;
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::{eventually, loops_below};
use crate::common::tools::{check, run, unique};
use crate::harness::{NODE, Scene};

/// Takes all but so many KiB of the root's filesystem.
fn fill(scene: &Scene, leave: u64) {
    let told = run("df", &["--output=avail", "--block-size=1K", &scene.root.to_string_lossy()]);
    let free: u64 = told.lines().nth(1).and_then(|line| line.trim().parse().ok()).expect("df");
    let length = (free - leave).to_string() + "K";
    run("fallocate", &["--length", &length, &scene.root.join("ballast").to_string_lossy()]);
}

#[tokio::test]
async fn a_root_that_is_full_is_told_and_what_was_begun_is_gone() {
    let scene = Scene::on("ext4", 192);
    let driver = scene.driver().flag("--local-overcommit=100").start().await;
    let data = pattern(32, 1);
    let source = Life::create(&scene, &driver, block()).await.filled(&driver, &data).await;
    fill(&scene, 8 << 10);
    check(driver.snapshot(&unique("snap"), &source.id).await, Code::ResourceExhausted, "--local-root");
    let clone = asks::any(64, block()).of_volume(&source.id);
    check(driver.create(clone.clone()).await, Code::ResourceExhausted, "--local-root");
    scene.assert_at_rest();
    assert_eq!(scene.volumes(), [source.uuid()].into());
    assert!(source.content(&driver, data.len()).await == data);
    fs::remove_file(scene.root.join("ballast")).expect("there is room again");
    let clone = Life::create_as(&scene, &driver, clone).await;
    assert!(clone.content(&driver, data.len()).await == data);
}

#[tokio::test]
async fn a_root_without_a_single_block_is_told() {
    let scene = Scene::on("ext4", 64);
    let driver = scene.driver().flag("--local-overcommit=100").start().await;
    let life = Life::create(&scene, &driver, block()).await;
    fill(&scene, 0);
    // What root keeps for itself too.
    let _ = fs::write(scene.root.join("more"), vec![1; 32 << 20]);
    check(driver.create(asks::any(8, block())).await, Code::ResourceExhausted, "--local-root");
    scene.assert_at_rest();
    life.up(&driver).await;
    life.down(&driver).await;
    driver.delete(&life.id).await.expect("DeleteVolume on a full disk");
    assert!(scene.volumes().is_empty());
}

#[tokio::test]
async fn a_read_only_root_changes_nothing_and_says_so() {
    let scene = Scene::on("ext4", 256);
    let driver = scene.start().await;
    let (life, staged) =
        (Life::create(&scene, &driver, block()).await, Life::create(&scene, &driver, mount("ext4")).await);
    let snapshot = driver.snapshot(&unique("snap"), &life.id).await.expect("CreateSnapshot").snapshot_id;
    let root = scene.root.to_string_lossy().into_owned();
    run("mount", &["-o", "remount,ro", &root]);
    check(driver.create(asks::any(8, block())).await, Code::FailedPrecondition, &root);
    check(driver.snapshot("one", &life.id).await, Code::FailedPrecondition, &root);
    check(driver.expand(&life.id, 100 << 20).await, Code::FailedPrecondition, &root);
    check(life.attach(&driver, NODE).await, Code::FailedPrecondition, &root);
    check(driver.delete(&life.id).await, Code::FailedPrecondition, &root);
    check(driver.delete_snapshot(&snapshot).await, Code::FailedPrecondition, &root);
    assert_eq!(driver.list(0, "").await.expect("ListVolumes").entries.len(), 2);
    let driver = driver.killed_and_started().await;
    check(driver.create(asks::any(8, block())).await, Code::FailedPrecondition, &root);
    run("mount", &["-o", "remount,rw", &root]);
    driver.delete_snapshot(&snapshot).await.expect("DeleteSnapshot");
    staged.up(&driver).await;
    staged.down(&driver).await;
    for life in [life, staged] {
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    scene.assert_empty();
}

#[tokio::test]
async fn a_root_that_comes_later_is_used_when_it_is_there() {
    let scene = Scene::rootless();
    let driver = scene.start().await;
    let root = scene.root.to_string_lossy().into_owned();
    let request = asks::any(64, block());
    for _ in 0..2 {
        check(driver.create(request.clone()).await, Code::FailedPrecondition, &root);
    }
    assert!(!scene.root.exists(), "the driver made the root by itself");
    fs::create_dir(&scene.root).expect("it is there");
    let life = Life::create_as(&scene, &driver, request).await;
    assert_eq!(life.content(&driver, 1).await, [0]);
    driver.delete(&life.id).await.expect("DeleteVolume");
    scene.assert_empty();
}

/// An empty folder in the place of a root that was not mounted after a restart: its volumes are not deleted, they are
/// elsewhere.
#[tokio::test]
async fn volumes_of_a_root_that_is_missing_are_not_taken_for_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await.filled(&driver, b"data").await;
    let snapshot = driver.snapshot(&unique("snap"), &life.id).await.expect("CreateSnapshot").snapshot_id;
    drop(driver);
    fs::rename(&scene.root, scene.path("away")).expect("somebody moves it");
    let root = scene.root.to_string_lossy().into_owned();
    let driver = scene.start().await;
    check(life.stage(&driver).await, Code::FailedPrecondition, &root);
    check(driver.list(0, "").await, Code::FailedPrecondition, &root);
    for _ in 0..2 {
        check(driver.delete(&life.id).await, Code::FailedPrecondition, &root);
        check(driver.delete_snapshot(&snapshot).await, Code::FailedPrecondition, &root);
        // Now as an empty folder.
        let _ = fs::create_dir(&scene.root);
    }
    life.stage(&driver).await.expect_err("a volume that is elsewhere");
    fs::remove_dir_all(&scene.root).expect("the empty folder");
    fs::rename(scene.path("away"), &scene.root).expect("it is back");
    assert_eq!(life.content(&driver, 4).await, b"data");
    driver.delete_snapshot(&snapshot).await.expect("DeleteSnapshot");
    driver.delete(&life.id).await.expect("DeleteVolume");
    scene.assert_empty();
}

#[tokio::test]
async fn a_volume_is_unstaged_although_its_root_is_gone() {
    unstaged_without_root(false).await;
}

#[tokio::test]
async fn a_volume_is_unstaged_although_its_root_is_gone_and_the_driver_is_new() {
    unstaged_without_root(true).await;
}

async fn unstaged_without_root(restart: bool) {
    let scene = Scene::new();
    let mut driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        life.write(&pattern(1, 2)).expect("a pod writes");
        fs::rename(&scene.root, scene.path("away")).expect("somebody moves it");
        if restart {
            driver = driver.killed_and_started().await;
        }
        assert!(life.read(1 << 20) == pattern(1, 2), "the pod lost its data");
        life.down(&driver).await;
        life.assert_gone();
        assert_eq!(loops_below(&scene.path("away")), vec![]);
        fs::rename(scene.path("away"), &scene.root).expect("it is back");
        assert!(life.content(&driver, 1 << 20).await == pattern(1, 2));
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    scene.assert_empty();
}

/// A disk that somebody unmounts lazily, with volumes on it in use.
#[tokio::test]
async fn a_volume_is_unstaged_although_the_disk_of_its_root_is_unmounted() {
    let scene = Scene::on("ext4", 256);
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    run("umount", &["--lazy", &scene.root.to_string_lossy()]);
    life.write(&pattern(1, 3)).expect("a pod writes");
    life.down(&driver).await;
    life.assert_gone();
    drop(driver);
    let free = || loops_below(&scene.path("disk")).is_empty();
    eventually("a disk that nothing holds any more", free).await;
}

#[tokio::test]
async fn one_root_has_one_driver() {
    let scene = Scene::new();
    let first = scene.start().await;
    let life = Life::create(&scene, &first, block()).await;
    let second = scene.named("node-b").launch();
    let said = || second.log().contains(&*scene.root.to_string_lossy());
    eventually("a word of the second driver about the root", said).await;
    let request = asks::any(8, block());
    assert!(second.create(request).await.is_err(), "the second driver makes volumes in the same root");
    assert!(second.delete(&life.id).await.is_err(), "the second driver deletes volumes of the first");
    assert_eq!(scene.volumes(), [life.uuid()].into());
    drop(second);
    life.up(&first).await;
    life.down(&first).await;
    // kill -9 leaves no lock behind.
    let first = first.killed_and_started().await;
    first.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn what_a_crash_left_half_made_is_swept_away() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    drop(driver);
    for part in ["making", "trash"] {
        let folder = scene.root.join(part).join("8f6b1d0e-7a55-4e0e-9a3a-2f1a4c5d6e7f");
        fs::create_dir_all(&folder).expect("half-made");
        fs::write(folder.join("image"), vec![1; usize::try_from(MIB).expect("a size")]).expect("its image");
    }
    let driver = scene.start().await;
    eventually("an empty making and trash", || {
        let empty =
            |part| fs::read_dir(scene.root.join(part)).is_ok_and(|mut entries| entries.next().is_none());
        empty("making") && empty("trash")
    })
    .await;
    assert_eq!(life.content(&driver, 1).await, [0]);
}
