//! Expansion: online where the kernel can, at the next stage where it cannot, and never without need.

use std::path::Path;

use tonic::Code;

use crate::asks;
use crate::common::csi::ControllerExpandVolumeRequest;
use crate::common::growth::{SIZE, pattern};
use crate::common::life::{Life, block, mount};
use crate::common::tools::{check, twice};
use crate::harness::Scene;

#[tokio::test]
async fn xfs_and_block_volumes_grow_while_they_are_used() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("xfs"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        assert!(!life.grows_while_it_is_used(&driver).await, "grown before the node was asked");
    }
}

#[tokio::test]
async fn either_path_tells_which_volume_grows() {
    let scene = Scene::new();
    let driver = scene.start().await;
    Life::create(&scene, &driver, mount("xfs")).await.grows_at_either_path(&driver).await;
}

#[tokio::test]
async fn ext4_has_its_new_size_after_the_next_stage_at_the_latest() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.has_its_new_size_after_the_next_stage(&driver).await;
}

#[tokio::test]
async fn an_unstaged_volume_grows_too() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let data = pattern(1, 3);
        let life = Life::create(&scene, &driver, capability).await.filled(&driver, &data).await;
        twice(|| life.expand(&driver, SIZE)).await;
        assert_eq!(std::fs::metadata(&life.image).expect("its image").len(), SIZE.unsigned_abs());
        life.shows_what_it_grew_to(&driver, &data).await;
    }
}

/// Growing is refused, by a program that has changed nothing: no reason to keep the data from its pods.
#[tokio::test]
async fn a_filesystem_that_cannot_grow_is_used_as_it_is() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = asks::any(100, mount("ext4")).with_parameters(&[("mkfsOptions", "-O bigalloc -C 65536")]);
    let data = pattern(2, 4);
    let life = Life::create_as(&scene, &driver, request).await.filled(&driver, &data).await;
    driver.expand(&life.id, 200 << 20).await.expect("ControllerExpandVolume");
    for _ in 0..2 {
        assert!(life.content(&driver, data.len()).await == data);
        let meta =
            std::fs::read_to_string(scene.volume(&life.uuid()).join("meta.json")).expect("its metadata");
        assert!(meta.contains(r#""done": "ext4""#), "{meta}");
    }
}

#[tokio::test]
async fn what_cannot_grow_stays_as_it_is() {
    let scene = Scene::on("ext4", 512);
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let size = 64 << 20;
    assert_eq!(life.expand(&driver, 1 << 20).await.expect("it is large enough").0, size);
    check(life.expand(&driver, 1 << 40).await, Code::ResourceExhausted, "bytes");
    check(life.expand(&driver, -1).await, Code::InvalidArgument, "-1");
    let rangeless = ControllerExpandVolumeRequest { capacity_range: None, ..life.expansion(0, 0) };
    check(driver.ask_to_expand(rangeless).await, Code::InvalidArgument, "capacity_range");
    check(life.expand_within(&driver, 0, 32 << 20).await, Code::OutOfRange, "67108864");
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
