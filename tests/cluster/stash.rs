//! The stash lost, torn or of an older release, the driver killed between any two steps: the way back is found.

use std::fs;

use serde_json::json;

use crate::common::life::{Life, block, mount};
use crate::common::sight::stash;
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
