//! Expansion: online where the kernel can, at the next stage where it cannot, and never without need.

use std::path::Path;

use tonic::Code;

use crate::common::csi::{CapacityRange, ControllerExpandVolumeRequest};
use crate::common::life::{Life, MIB, block, mount};
use crate::common::tools::{check, twice};
use crate::harness::Scene;
use crate::life::pattern;

const SIZE: i64 = 512 << 20;

#[tokio::test]
async fn xfs_and_block_volumes_grow_while_they_are_used() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("xfs"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        let data = pattern(2, 1);
        life.write(&data).expect("a pod writes");
        let before = life.shown_size(&driver).await;
        assert_eq!(twice(|| driver.expand(&life.id, SIZE)).await, (SIZE, true));
        assert_eq!(life.shown_size(&driver).await, before, "grown before the node was asked");
        assert_eq!(twice(|| life.expand_at(&driver, &life.target, SIZE)).await, SIZE);
        life.assert_stats(&driver, SIZE.unsigned_abs()).await;
        assert!(life.read(data.len()) == data);
        life.down(&driver).await;
        assert!(life.content(&driver, data.len()).await == data);
    }
}

/// csi-sanity and older COs name the published path alone; kubelet also expands what is only staged.
#[tokio::test]
async fn either_path_tells_which_volume_grows() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("xfs")).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    driver.expand(&life.id, SIZE).await.expect("ControllerExpandVolume");
    assert_eq!(life.expand_at(&driver, &life.staging, SIZE).await.expect("at its staging path"), SIZE);
    life.publish(&driver).await.expect("NodePublishVolume");
    assert!(life.shown_size(&driver).await > 400 * MIB);
    driver.expand(&life.id, 2 * SIZE).await.expect("ControllerExpandVolume");
    let pathless = Life { staging: "".into(), ..life.clone() };
    assert_eq!(pathless.expand_at(&driver, &life.target, 0).await.expect("at its target path"), 2 * SIZE);
    assert!(life.shown_size(&driver).await > 900 * MIB);
    life.down(&driver).await;
}

/// Some kernels let only a mightier process grow a mounted ext4: then it grows at the next stage.
#[tokio::test]
async fn ext4_has_its_new_size_after_the_next_stage_at_the_latest() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let data = pattern(2, 2);
    life.up(&driver).await;
    life.write(&data).expect("a pod writes");
    driver.expand(&life.id, SIZE).await.expect("ControllerExpandVolume");
    let online = life.expand_at(&driver, &life.target, SIZE).await;
    assert!(life.read(data.len()) == data);
    life.write(&data).expect("it can still be written");
    if online.is_ok() {
        assert!(life.shown_size(&driver).await > 400 * MIB);
    }
    life.down(&driver).await;
    life.up(&driver).await;
    life.assert_stats(&driver, SIZE.unsigned_abs()).await;
    assert_eq!(life.expand_at(&driver, &life.target, SIZE).await.expect("nothing is left to do"), SIZE);
    assert!(life.read(data.len()) == data);
    life.down(&driver).await;
}

#[tokio::test]
async fn an_unstaged_volume_grows_too() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let data = pattern(1, 3);
        let life = Life::create(&scene, &driver, capability).await.filled(&driver, &data).await;
        twice(|| driver.expand(&life.id, SIZE)).await;
        assert_eq!(std::fs::metadata(&life.image).expect("its image").len(), SIZE.unsigned_abs());
        life.up(&driver).await;
        life.assert_stats(&driver, SIZE.unsigned_abs()).await;
        assert!(life.read(data.len()) == data);
        life.down(&driver).await;
    }
}

#[tokio::test]
async fn what_cannot_grow_stays_as_it_is() {
    let scene = Scene::on("ext4", 512);
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let size = 64 << 20;
    assert_eq!(driver.expand(&life.id, 1 << 20).await.expect("it is large enough").0, size);
    check(driver.expand(&life.id, 1 << 40).await, Code::ResourceExhausted, "bytes");
    check(driver.expand(&life.id, -1).await, Code::InvalidArgument, "-1");
    let rangeless = ControllerExpandVolumeRequest { volume_id: life.id.clone(), ..Default::default() };
    let answer = driver.controller().controller_expand_volume(rangeless.clone()).await;
    check(answer, Code::InvalidArgument, "capacity_range");
    let limited = CapacityRange { required_bytes: 0, limit_bytes: 32 << 20 };
    let limited = ControllerExpandVolumeRequest { capacity_range: Some(limited), ..rangeless };
    let answer = driver.controller().controller_expand_volume(limited).await;
    check(answer, Code::OutOfRange, "67108864");
    assert_eq!(std::fs::metadata(&life.image).expect("its image").len(), size.unsigned_abs());
}

#[tokio::test]
async fn a_node_expands_only_what_it_has() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    check(life.expand_at(&driver, &life.target, SIZE).await, Code::NotFound, &life.id);
    check(life.expand_at(&driver, Path::new(""), SIZE).await, Code::InvalidArgument, "volume_path");
    let strange = Life { id: "malformed".to_owned(), ..life.clone() };
    check(strange.expand_at(&driver, &life.target, SIZE).await, Code::NotFound, "malformed");
}
