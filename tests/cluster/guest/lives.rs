//! The whole life of a volume over krbd: what the driver says, and what the kernel does.

use std::path::Path;

use crate::common::csi::VolumeCapability;
use crate::common::life::{block, mount};

use super::node::{GUEST, given, start_both};

/// Created, used, and taken away again.
async fn lives(capability: VolumeCapability) {
    let (scene, controller, node) = start_both().await;
    let life = given(&scene, &controller, capability).await;
    life.up(&node).await;
    let image = format!("{}/{}", scene.corner.place(), life.image);
    assert_eq!(node.krbd(), [image]);
    let digest = node.write(&life, 2);
    life.stage(&node).await.expect("the same again");
    life.publish(&node).await.expect("the same again");
    let watchers = scene.corner.watchers(&life.image);
    let address = node.run("cat /sys/bus/rbd/devices/*/client_addr");
    assert_eq!(watchers, [address], "one writer, and the kernel knows itself by the same name");
    life.down(&node).await;
    node.assert_clean();
    assert_eq!(scene.corner.watchers(&life.image), [""; 0]);
    life.up(&node).await;
    assert_eq!(node.read(&life, 2), digest);
    life.down(&node).await;
    life.detach(&controller, GUEST).await.expect("ControllerUnpublishVolume");
    controller.delete(&life.id).await.expect("DeleteVolume");
    assert!(node.mounts_at(Path::new(&life.target)).is_empty());
}

#[tokio::test]
async fn an_ext4_volume_lives_on_krbd() {
    lives(mount("ext4")).await;
}

#[tokio::test]
async fn an_xfs_volume_lives_on_krbd() {
    lives(mount("xfs")).await;
}

#[tokio::test]
async fn a_block_volume_lives_on_krbd() {
    lives(block()).await;
}
