//! Formatting never destroys data: what may be formatted is, and everything else is refused and left as it was.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::process::Command;
use std::time::Duration;

use tonic::Code;

use crate::common::life::{Life, MIB, block, mount};
use crate::common::tools::{check, run, try_run, unique};
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::POOL;
use crate::life::request;

const MARK: &str = ".rbd.csi.ceph.com/format";

/// A device of the image for a moment, on a node of nobody's: for what other people do to it.
pub(crate) fn by_hand(scene: &Scene, image: &str, work: impl FnOnce(&str)) {
    let maps = scene.on_node("by-hand", "node").maps;
    let rbd = |args: &[&str]| {
        let mut command = Command::new("rbd");
        command.args(args).args(["--options", "noudev"]).env("RBD_STANDIN_DIR", &maps);
        try_run(&mut command).unwrap_or_else(|error| panic!("{error}"))
    };
    let device = rbd(&["map", &scene.corner.spec(image)]);
    let device = device.trim();
    work(device);
    run("blockdev", &["--flushbufs", device]);
    rbd(&["unmap", device]);
}

pub(crate) fn overwrite(device: &str, at: u64, bytes: &[u8]) {
    let mut file = File::options().write(true).open(device).expect("the device");
    file.seek(SeekFrom::Start(at)).expect("a place on it");
    file.write_all(bytes).expect("written");
    file.sync_all().expect("written down");
}

/// Why it was not refused with these words, nothing mounted or mapped, and not a byte changed.
pub(super) async fn left_alone(
    scene: &Scene,
    driver: &Driver,
    life: &Life,
    fragment: &str,
) -> Result<(), String> {
    let (image, before) = (&life.image, scene.corner.content(&life.image));
    let told = match life.stage(driver).await {
        Ok(()) => Some("it was staged".to_owned()),
        Err(status) => {
            let refused = status.code() == Code::FailedPrecondition && status.message().contains(fragment);
            (!refused).then(|| format!("{fragment:?} was expected, not {status:?}"))
        }
    };
    let left = (life.staged(), driver.mapped());
    let told =
        told.or_else(|| (left != (vec![], vec![])).then(|| format!("mounts and maps are left: {left:?}")));
    let changed = scene.corner.content(image) != before;
    told.or_else(|| changed.then(|| format!("{image} was written to"))).map_or(Ok(()), Err)
}

/// Refused with these words, nothing mounted or mapped, not a byte changed.
pub(crate) async fn refused(scene: &Scene, driver: &Driver, life: &Life, fragment: &str) {
    left_alone(scene, driver, life, fragment).await.unwrap_or_else(|why| panic!("{why}"));
    life.assert_gone_from(driver);
}

#[tokio::test]
async fn a_filesystem_that_lost_its_first_mib_is_not_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at % 249) as u8).collect();
    life.write(&data).expect("a pod writes");
    life.down(&driver).await;
    by_hand(&scene, &life.image, |device| overwrite(device, 0, &vec![0; 1 << 20]));
    refused(&scene, &driver, &life, "vanished").await;
    // A volume of ceph-csi has no mark: then the blocks behind decide.
    scene.corner.remove_meta(&life.image, MARK);
    refused(&scene, &driver, &life, "blocks").await;
    assert!(!scene.corner.meta(&life.image).contains_key(MARK));
}

#[tokio::test]
async fn data_without_any_signature_is_not_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.up(&driver).await;
    life.write(&[7; 4096]).expect("a pod writes");
    life.down(&driver).await;
    let life = Life { capability: mount("ext4"), ..life };
    refused(&scene, &driver, &life, "blocks").await;
}

#[tokio::test]
async fn our_own_half_made_filesystem_is_made_again() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (fs_type, half) in [("ext4", "xfs"), ("xfs", "xfs"), ("ext4", "nothing known")] {
        let life = Life::create(&scene, &driver, mount(fs_type)).await;
        scene.corner.set_meta(&life.image, MARK, &format!("begun {fs_type} {}", life.uuid()));
        let signature: &[u8] = if half == "xfs" { b"XFSB" } else { &[7; 100] };
        by_hand(&scene, &life.image, |device| overwrite(device, 0, signature));
        life.up(&driver).await;
        life.write(b"data").expect("a pod writes");
        assert_eq!(life.staged()[0].kind, fs_type);
        assert_eq!(scene.corner.meta(&life.image)[MARK], format!("done {fs_type} {}", life.uuid()));
        life.down(&driver).await;
    }
}

/// Whoever had it as a device may have written to it.
#[tokio::test]
async fn a_block_stage_forgets_a_filesystem_that_was_begun() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    scene.corner.set_meta(&life.image, MARK, &format!("begun ext4 {}", life.uuid()));
    let raw = Life { capability: block(), ..life.clone() };
    raw.up(&driver).await;
    raw.write(&[7; 4096]).expect("a pod writes");
    raw.down(&driver).await;
    refused(&scene, &driver, &life, "blocks").await;
}

#[tokio::test]
async fn a_mark_that_speaks_of_another_image_counts_for_nothing() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    by_hand(&scene, &life.image, |device| overwrite(device, 0, &[7; 4096]));
    scene.corner.set_meta(&life.image, MARK, "begun ext4 00000000-0000-0000-0000-000000000000");
    refused(&scene, &driver, &life, "blocks").await;
}

#[tokio::test]
async fn a_volume_whose_data_has_vanished_is_not_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    scene.corner.set_meta(&life.image, MARK, &format!("done ext4 {}", life.uuid()));
    refused(&scene, &driver, &life, "vanished").await;
    assert!(scene.corner.is_empty(&life.image));
}

#[tokio::test]
async fn a_static_volume_is_never_formatted_and_mounted_as_it_is() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let image = unique("static");
    run("rbd", &["create", "--size", "64", &scene.corner.spec(&image)]);
    let context = request::map(&[("staticVolume", "true"), ("clusterID", CLUSTER), ("pool", POOL)]);
    let life = Life::known(&scene, &driver, &image, &image, mount("ext4")).with_context(context);
    refused(&scene, &driver, &life, "static").await;
    assert!(scene.corner.is_empty(&image));
    by_hand(&scene, &image, |device| drop(run("mkfs.ext4", &["-q", device])));
    life.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    life.up(&driver).await;
    life.write(b"data").expect("a pod writes");
    life.down(&driver).await;
    life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
    driver.delete(&image).await.expect("DeleteVolume");
    assert!(scene.corner.has(&image), "an image that somebody else made was deleted");
}

#[tokio::test]
async fn the_wrong_filesystem_is_told() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("xfs")).await;
    life.up(&driver).await;
    life.down(&driver).await;
    let life = Life { capability: mount("ext4"), ..life };
    refused(&scene, &driver, &life, "xfs").await;
}

/// "Half-made" is what CreateVolume makes again; with data on it, it is not.
#[tokio::test]
async fn an_image_with_data_and_without_our_marker_is_left_alone() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=4s").start().await;
    let asked = request::create(&unique("pvc"), 16, block());
    let life = Life::create_as(&scene, &driver, asked.clone()).await;
    by_hand(&scene, &life.image, |device| overwrite(device, 0, b"somebody's data"));
    scene.corner.remove_meta(&life.image, ".rbd.csi.ceph.com/created");
    let content = scene.corner.content(&life.image);
    let answer = loop {
        match driver.create(asked.clone()).await {
            Err(status) if status.code() == Code::Aborted => tokio::time::sleep(Duration::from_secs(1)).await,
            answer => break answer,
        }
    };
    check(answer, Code::FailedPrecondition, "left alone");
    assert_eq!(scene.corner.content(&life.image), content);
}
