//! What somebody plants where kubelet and the driver make their files and folders: links, fifos, files. None is followed, waited
//! for or overwritten.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tonic::Code;

use crate::common::life::{Life, block, mount};
use crate::common::sight::mounts_below;
use crate::common::tools::check;
use crate::harness::Scene;

/// A folder with a file that nobody may touch.
fn canary(scene: &Scene) -> std::path::PathBuf {
    let canary = scene.path("canary");
    fs::create_dir(&canary).expect("a canary");
    fs::write(canary.join("image-meta.json"), "sings").expect("a file of the canary");
    canary
}

#[track_caller]
fn sings(canary: &Path) {
    let names: Vec<_> =
        fs::read_dir(canary).expect("the canary").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["image-meta.json"]);
    assert_eq!(fs::read_to_string(canary.join("image-meta.json")).expect("its file"), "sings");
    assert!(mounts_below(canary).is_empty(), "something is mounted there");
}

#[tokio::test]
async fn a_link_in_the_place_of_a_target_is_refused_and_not_followed() {
    let scene = Scene::new();
    let (driver, canary) = (scene.start().await, canary(&scene));
    for (capability, to) in [(mount("ext4"), ""), (block(), "image-meta.json"), (block(), "made")] {
        let life = Life::create(&scene, &driver, capability).await;
        life.stage(&driver).await.expect("NodeStageVolume");
        symlink(canary.join(to), &life.target).expect("a link");
        check(life.publish(&driver).await, Code::FailedPrecondition, "symbolic link");
        sings(&canary);
        life.down(&driver).await;
        sings(&canary);
        life.assert_unmounted();
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_staging_folder_is_refused_and_not_followed() {
    let scene = Scene::new();
    let (driver, canary) = (scene.start().await, canary(&scene));
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    fs::remove_dir(&life.staging).expect("kubelet's folder");
    symlink(&canary, &life.staging).expect("a link");
    check(life.stage(&driver).await, Code::FailedPrecondition, "symbolic link");
    check(life.unstage(&driver).await, Code::FailedPrecondition, "symbolic link");
    sings(&canary);
}

#[tokio::test]
async fn a_link_in_the_staging_folder_is_refused_and_not_followed() {
    let scene = Scene::new();
    let (driver, canary) = (scene.start().await, canary(&scene));
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    symlink(&canary, life.staging.join(&life.id)).expect("a link");
    check(life.stage(&driver).await, Code::FailedPrecondition, "symbolic link");
    sings(&canary);
    life.up(&driver).await;
    life.down(&driver).await;
    life.assert_unmounted();
}

#[tokio::test]
async fn what_is_planted_in_the_place_of_the_stash_is_neither_followed_nor_waited_for() {
    let scene = Scene::new();
    let (driver, canary) = (scene.start().await, canary(&scene));
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let plants: [&dyn Fn(&Path); 3] = [
        &|path| symlink(canary.join("image-meta.json"), path).expect("a link"),
        &|path| mkfifo(path, Mode::S_IRWXU).expect("a fifo"),
        &|path| fs::write(path, " ".repeat(1 << 20)).expect("a large file"),
    ];
    for plant in plants {
        for name in ["image-meta.json", "image-meta.json.tmp"] {
            plant(&life.staging.join(name));
            life.up(&driver).await;
            life.unpublish(&driver).await.expect("NodeUnpublishVolume");
            let _ = fs::remove_file(life.staging.join(name));
            plant(&life.staging.join(name));
            life.unstage(&driver).await.expect("NodeUnstageVolume");
            life.assert_unmounted();
            sings(&canary);
        }
    }
}

#[tokio::test]
async fn a_file_in_the_place_of_a_target_is_not_removed() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    fs::write(&life.target, "data").expect("a file");
    check(life.unpublish(&driver).await, Code::FailedPrecondition, "left alone");
    assert_eq!(fs::read_to_string(&life.target).expect("the file"), "data");
}
