//! What is not the driver's to take away: data that somebody wrote to a device, mounts in a folder, loop devices, other
//! files below the root.

use std::fs;

use nix::mount::umount;
use tonic::Code;

use crate::asks;
use crate::common::csi::GetMetadataAllocatedRequest;
use crate::common::growth::pattern;
use crate::common::life::{Life, block, map, mount};
use crate::common::sight::{eventually, loops_below};
use crate::common::tools::{check, run};
use crate::harness::Scene;

/// A mistyped option is enough for a mkfs that has begun and made nothing.
#[tokio::test]
async fn a_device_that_was_written_to_is_not_formatted_because_we_once_began_to() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let begun = life.clone().with_context(map(&[("mkfsOptions", "--no-such-option")]));
    begun.stage(&driver).await.expect_err("mkfs knows no such option");
    let data = pattern(2, 1);
    let raw = Life { capability: block(), ..life.clone() }.filled(&driver, &data).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "blocks");
    life.assert_gone();
    assert!(raw.content(&driver, data.len()).await == data, "the data was formatted over");
}

fn a_folder_volume(mib: i64) -> crate::common::csi::CreateVolumeRequest {
    asks::any(mib, mount("ext4")).with_parameters(&[("volumeType", "directory")])
}

#[tokio::test]
async fn what_is_mounted_in_a_folder_volume_is_not_deleted_with_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, a_folder_volume(8)).await;
    let other = scene.path("other");
    let inside = scene.volume(&life.uuid()).join("data/inside");
    for folder in [&other, &inside] {
        fs::create_dir(folder).expect("a folder");
    }
    fs::write(other.join("file"), "somebody else's").expect("a file");
    run("mount", &["--bind", &other.to_string_lossy(), &inside.to_string_lossy()]);
    check(driver.delete(&life.id).await, Code::FailedPrecondition, &inside.to_string_lossy());
    umount(&inside).expect("unmounted");
    // A part of the folder that shows elsewhere, as a subPath does.
    run("mount", &["--bind", &inside.to_string_lossy(), &other.to_string_lossy()]);
    check(driver.delete(&life.id).await, Code::FailedPrecondition, &other.to_string_lossy());
    umount(&other).expect("unmounted");
    driver.delete(&life.id).await.expect("DeleteVolume");
    assert_eq!(fs::read_to_string(other.join("file")).expect("it is there"), "somebody else's");
    scene.assert_empty();
}

#[tokio::test]
async fn a_start_leaves_loop_devices_of_others_alone() {
    let scene = Scene::new();
    let image = scene.root.join("of-somebody-else");
    fs::File::create(&image).and_then(|file| file.set_len(1 << 20)).expect("an image");
    run("losetup", &["--find", &image.to_string_lossy()]);
    let driver = scene.start().await;
    Life::create(&scene, &driver, block()).await;
    assert_eq!(loops_below(&scene.root).len(), 1);
    run("losetup", &["--detach", &loops_below(&scene.root)[0].device.to_string_lossy()]);
}

/// "Deleted" is answered when it is true, and one thing that cannot go keeps nothing else.
#[tokio::test]
async fn what_cannot_be_removed_is_not_told_to_be_gone() {
    let scene = Scene::on("ext4", 256);
    let driver = scene.start().await;
    let kept = Life::create_as(&scene, &driver, a_folder_volume(8)).await;
    let file = scene.volume(&kept.uuid()).join("data/file");
    fs::write(&file, "immutable").expect("a file");
    run("chattr", &["+i", &file.to_string_lossy()]);
    for _ in 0..2 {
        check(driver.delete(&kept.id).await, Code::Internal, "removing");
    }
    let trash = scene.root.join("trash");
    fs::create_dir(trash.join("zzz")).expect("what another kill left");
    let driver = driver.killed_and_started().await;
    eventually("the trash without the other", || fs::read_dir(&trash).expect("listed").count() == 1).await;
    let entry = fs::read_dir(&trash).expect("listed").flatten().next().expect("the one that stays");
    run("chattr", &["-i", &entry.path().join("data/file").to_string_lossy()]);
    driver.delete(&kept.id).await.expect("DeleteVolume");
    scene.assert_empty();
}

/// Files have no record of what changed in them.
#[tokio::test]
async fn which_blocks_changed_is_told_of_images_on_ceph_alone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = GetMetadataAllocatedRequest {
        snapshot_id:
            "0001-0001-a-0000000000000001-50d53503-e5e8-11e9-a0e9-0242ac110002-VvcyyZ0JVeCtde7ivMvQbA"
                .to_owned(),
        ..Default::default()
    };
    let answer = driver.blocks().get_metadata_allocated(request).await;
    check(answer, Code::Unimplemented, "SnapshotMetadata");
}
