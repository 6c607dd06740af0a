//! The stash lost, torn or of an older release, the driver killed between any two steps: the way back is found.

use std::fs;

use serde_json::json;
use tonic::Code;

use crate::common::life::{Life, block, mount};
use crate::common::sight::stash;
use crate::common::tools::{Answer, check};
use crate::harness::{Driver, Scene};
use crate::lab::POOL;

/// Stages, does this to the stash, and takes the volume down.
async fn survives(damage: impl Fn(&Life)) {
    // The pool itself: the oldest stashes know no namespace.
    let scene = Scene::shared();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        damage(&life);
        life.down(&driver).await;
        life.assert_gone_from(&driver);
        assert_eq!(scene.corner.watchers(&life.image), Vec::<String>::new());
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}

impl Life {
    /// As it was before it was mounted at its staging path.
    async fn publish_unmounted(&self, driver: &Driver) -> Answer {
        nix::mount::umount(&self.staged()[0].path).expect("unmounted");
        self.publish(driver).await
    }
}

fn overwrite(life: &Life, text: &str) {
    fs::write(life.staging.join("image-meta.json"), text).expect("the stash is overwritten");
}

#[tokio::test]
async fn a_deleted_stash_keeps_nothing_mapped() {
    survives(|life| fs::remove_file(life.staging.join("image-meta.json")).expect("deleted")).await;
}

#[tokio::test]
async fn an_empty_stash_keeps_nothing_mapped() {
    survives(|life| overwrite(life, "")).await;
}

/// A file whose blocks never reached the disk.
#[tokio::test]
async fn a_stash_of_zeros_keeps_nothing_mapped() {
    survives(|life| overwrite(life, &"\0".repeat(200))).await;
}

#[tokio::test]
async fn a_torn_stash_keeps_nothing_mapped() {
    survives(|life| {
        let whole = stash(&life.staging).expect("a stash").to_string();
        overwrite(life, &whole[..whole.len() / 2]);
    })
    .await;
}

#[tokio::test]
async fn stashes_of_older_releases_are_read() {
    survives(|life| {
        overwrite(
            life,
            &json!({"Version": 1, "pool": POOL, "image": life.image, "accessType": false}).to_string(),
        );
    })
    .await;
    survives(|life| {
        let v2 =
            json!({"Version": 2, "pool": POOL, "image": life.image, "accessType": false, "encrypted": false});
        overwrite(life, &v2.to_string());
    })
    .await;
}

/// After a downgrade: known by its old names, or by none.
#[tokio::test]
async fn a_stash_of_a_later_release_keeps_nothing_mapped() {
    survives(|life| {
        let v4 = json!({"Version": 4, "pool": POOL, "radosNamespace": "", "image": life.image, "accessType": false,
            "encrypted": false, "clusterFsid": "028c9754", "devices": [{"path": "/dev/rbd7"}]});
        overwrite(life, &v4.to_string());
    })
    .await;
    survives(|life| overwrite(life, &json!({"Version": 4, "images": [{"name": life.image}]}).to_string()))
        .await;
}

/// With all that was in it, by an administrator who meant well.
#[tokio::test]
async fn a_staging_folder_that_is_gone_keeps_nothing_mapped() {
    survives(|life| {
        for mount in life.published().iter().chain(&life.staged()) {
            nix::mount::umount(&mount.path).expect("unmounted");
        }
        fs::remove_dir_all(&life.staging).expect("the folder is removed");
    })
    .await;
}

#[tokio::test]
async fn a_volume_without_its_stash_is_used_on() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("xfs"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        fs::remove_file(life.staging.join("image-meta.json")).expect("deleted");
        life.stage(&driver).await.expect("NodeStageVolume again");
        life.publish(&driver).await.expect("NodePublishVolume again");
        life.grows_while_it_is_used(&driver).await;
        life.assert_gone_from(&driver);
    }
}

#[tokio::test]
async fn what_is_mapped_and_not_mounted_is_mounted_from_the_same_device() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        life.write(b"data").expect("a pod writes");
        life.unpublish(&driver).await.expect("NodeUnpublishVolume");
        check(life.publish_unmounted(&driver).await, Code::FailedPrecondition, "stage it first");
        life.up(&driver).await;
        assert_eq!((life.read(4), driver.mapped()), (b"data".to_vec(), vec![life.image.clone()]));
        life.down(&driver).await;
        life.assert_gone_from(&driver);
    }
}

/// Restored from a backup to the wrong folder: the volume that it names belongs to other pods.
#[tokio::test]
async fn a_stash_of_another_volume_takes_nothing_from_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability.clone()).await;
        let other = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        other.up(&driver).await;
        overwrite(&life, &stash(&other.staging).expect("a stash").to_string());
        life.unpublish(&driver).await.expect("NodeUnpublishVolume");
        check(life.unstage(&driver).await, Code::FailedPrecondition, &other.staging.display().to_string());
        other.write(b"data").expect("a pod writes");
        other.down(&driver).await;
        other.assert_gone_from(&driver);
        fs::remove_file(life.staging.join("image-meta.json")).expect("deleted");
        life.unstage(&driver).await.expect("NodeUnstageVolume");
        life.assert_gone_from(&driver);
    }
}

#[tokio::test]
async fn a_lost_stash_in_a_namespace_keeps_nothing_mapped() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (life, other) =
        (Life::create(&scene, &driver, block()).await, Life::create(&scene, &driver, block()).await);
    life.up(&driver).await;
    other.up(&driver).await;
    overwrite(&life, "{");
    life.down(&driver).await;
    life.assert_gone_from(&driver);
    assert_eq!(driver.mapped(), std::slice::from_ref(&other.image), "another volume was unmapped");
    other.down(&driver).await;
}

/// What a stage writes can be read by the next, whatever a crash left beside it.
#[tokio::test]
async fn a_left_over_temporary_stash_is_harmless() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    fs::write(life.staging.join("image-meta.json.tmp"), "{\"Ver").expect("a left-over");
    life.up(&driver).await;
    life.down(&driver).await;
    life.assert_gone_from(&driver);
}

#[tokio::test]
async fn a_driver_killed_between_any_two_steps_goes_on() {
    let scene = Scene::new();
    let mut driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        driver = driver.killed_and_started().await;
        life.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
        driver = driver.killed_and_started().await;
        life.stage(&driver).await.expect("NodeStageVolume");
        driver = driver.killed_and_started().await;
        life.stage(&driver).await.expect("NodeStageVolume again");
        life.publish(&driver).await.expect("NodePublishVolume");
        life.write(b"data").expect("a pod writes");
        driver = driver.killed_and_started().await;
        life.publish(&driver).await.expect("NodePublishVolume again");
        assert_eq!(life.read(4), b"data");
        driver = back_down(driver, &life).await;
        eventually_deleted(&scene, &driver, &life).await;
    }
}

async fn back_down(mut driver: Driver, life: &Life) -> Driver {
    life.unpublish(&driver).await.expect("NodeUnpublishVolume");
    driver = driver.killed_and_started().await;
    life.unpublish(&driver).await.expect("NodeUnpublishVolume again");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    driver = driver.killed_and_started().await;
    life.unstage(&driver).await.expect("NodeUnstageVolume again");
    life.assert_gone_from(&driver);
    life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
    driver.killed_and_started().await
}

async fn eventually_deleted(scene: &Scene, driver: &Driver, life: &Life) {
    driver.delete(&life.id).await.expect("DeleteVolume");
    driver.delete(&life.id).await.expect("DeleteVolume again");
    crate::common::sight::eventually("an empty namespace", || scene.corner.leftovers().is_empty()).await;
}
