//! Growth while a volume is used: the controller outside, the node and the kernel that has it inside.

use crate::common::csi::VolumeCapability;
use crate::common::growth::SIZE;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{run, twice, unique};
use crate::harness::Scene;
use crate::lab::POOL;
use crate::life::request;

use super::node::{Node, given, start_both};

impl Node {
    /// Bytes of the filesystem, or of the device, that a pod sees.
    fn seen_size(&self, life: &Life) -> i64 {
        let target = life.target.display();
        let script = if life.capability.is_block() {
            format!("blockdev --getsize64 {target}")
        } else {
            format!("df --block-size=1 --output=size {target} | tail -n 1")
        };
        self.run(&script).trim().parse().expect("a size")
    }

    #[track_caller]
    fn assert_grown(&self, life: &Life) {
        let seen = self.seen_size(life);
        assert!(seen <= SIZE && seen > SIZE / 5 * 4, "{seen} bytes are seen of {SIZE}");
    }
}

async fn grows_while_a_file_is_open(capability: VolumeCapability) {
    let (scene, controller, node) = start_both().await;
    let life = given(&scene, &controller, capability).await;
    life.up(&node).await;
    let digest = node.write(&life, 2);
    let holder = node.spawn(&format!("exec 9<>{}; exec sleep 3600", life.place().display()));
    assert!(node.seen_size(&life) < SIZE);
    assert_eq!(life.expand(&controller, SIZE).await.expect("ControllerExpandVolume"), (SIZE, true));
    assert_eq!(twice(|| life.expand_at(&node, &life.target, SIZE)).await, SIZE);
    node.assert_grown(&life);
    assert_eq!(node.read(&life, 2), digest);
    node.run(&format!("kill -0 {holder}"));
    node.end(&holder);
    life.down(&node).await;
    node.assert_clean();
    life.up(&node).await;
    node.assert_grown(&life);
    assert_eq!(node.read(&life, 2), digest);
    life.down(&node).await;
}

#[tokio::test]
async fn an_ext4_grows_while_a_file_is_open() {
    grows_while_a_file_is_open(mount("ext4")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_xfs_grows_while_a_file_is_open() {
    grows_while_a_file_is_open(mount("xfs")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_block_volume_grows_while_it_is_open() {
    grows_while_a_file_is_open(block()).await;
}

/// The header of an image says so, and nobody is told: as where `rbd resize` was killed in between.
fn resize_untold(scene: &Scene, image: &str, bytes: i64) {
    let info = scene.corner.info(image).expect("rbd info");
    let header = format!("rbd_header.{}", info["id"].as_str().expect("its id"));
    let size = scene.path("size");
    std::fs::write(&size, bytes.to_le_bytes()).expect("a file");
    let (namespace, size) = (&scene.corner.namespace, size.display().to_string());
    run(
        "rados",
        &["--pool", POOL, "--namespace", namespace, "setomapval", &header, "size", "--input-file", &size],
    );
}

#[tokio::test]
async fn a_growth_that_nobody_was_told_of_is_found() {
    let (scene, controller, node) = start_both().await;
    let mut asked = request::create(&unique("pvc"), 320, mount("xfs"));
    // No map of objects, which would have to have been resized first.
    asked.parameters.extend(request::map(&[("imageFeatures", "layering,exclusive-lock")]));
    let life = Life::create_as(&scene, &controller, asked).await;
    life.up(&node).await;
    resize_untold(&scene, &life.image, SIZE);
    assert_eq!(life.expand(&controller, SIZE).await.expect("ControllerExpandVolume"), (SIZE, true));
    let device = node.device(&life);
    let kernel = || node.run(&format!("blockdev --getsize64 {device}")).trim().to_owned();
    assert_eq!(kernel(), (320 << 20).to_string(), "the kernel was told");
    assert_eq!(life.expand_at(&node, &life.target, SIZE).await.expect("NodeExpandVolume"), SIZE);
    assert_eq!(kernel(), SIZE.to_string());
    node.assert_grown(&life);
    life.down(&node).await;
    node.assert_clean();
}
