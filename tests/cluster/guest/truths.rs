//! What the kernel knows is what the driver says: devices that are gone, devices that somebody holds, who has what.

use std::time::Duration;

use tonic::Code;

use crate::common::csi::VolumeCapability;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{check, run, unique};
use crate::format::by_hand;
use crate::harness::Scene;
use crate::lab::POOL;
use crate::life::request;

use super::node::{GUEST, Node, start_both};

impl Node {
    /// As when an administrator takes a device away from under its mount.
    fn take_away(&self, life: &Life) {
        let device = self.device(life);
        let number = device.trim_start_matches("/dev/rbd");
        self.run(&format!("echo '{number} force' >/sys/bus/rbd/remove_single_major"));
        assert_eq!(self.krbd(), [""; 0]);
    }
}

async fn goes_away(capability: VolumeCapability) {
    let (scene, controller, node) = start_both().await;
    let life = Life::create(&scene, &controller, capability).await;
    life.up(&node).await;
    let digest = node.write(&life, 1);
    assert_eq!(life.health(&node).await.expect("NodeGetVolumeHealth").health_statuses, []);
    node.take_away(&life);
    let told = life.health(&node).await.expect("NodeGetVolumeHealth").health_statuses;
    assert!(told.iter().any(|one| one.reason == "DeviceGone"), "{told:?}");
    match life.stats(&node, &life.target).await {
        Ok(stats) => {
            assert!(stats.volume_condition.is_some_and(|told| told.abnormal), "the stats tell nothing");
        }
        refused => check(refused, Code::Internal, "No such device"),
    }
    let second = life.target.with_file_name("second");
    check(life.publish_at(&node, &second, false).await, Code::FailedPrecondition, "is gone");
    check(life.publish(&node).await, Code::FailedPrecondition, "is gone");
    life.down(&node).await;
    node.assert_clean();
    life.up(&node).await;
    assert_eq!(node.read(&life, 1), digest);
    // The same, and this time a pod does not end before the volume is staged anew.
    node.take_away(&life);
    life.stage(&node).await.expect("NodeStageVolume, anew");
    check(life.publish(&node).await, Code::AlreadyExists, &life.target.display().to_string());
    life.unpublish(&node).await.expect("NodeUnpublishVolume");
    life.publish(&node).await.expect("NodePublishVolume");
    assert_eq!(node.read(&life, 1), digest);
    assert_eq!(life.health(&node).await.expect("NodeGetVolumeHealth").health_statuses, []);
    life.down(&node).await;
    node.assert_clean();
    assert_eq!(scene.corner.watchers(&life.image), [""; 0]);
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_ext4_whose_device_is_gone_is_staged_anew() {
    goes_away(mount("ext4")).await;
}

#[tokio::test]
async fn an_xfs_whose_device_is_gone_is_staged_anew() {
    goes_away(mount("xfs")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_block_volume_whose_device_is_gone_is_staged_anew() {
    goes_away(block()).await;
}

/// A mount that it only has a copy of goes with the folder below, which unstage removes: the kernel sees to that.
#[tokio::test]
async fn another_mount_namespace_that_holds_a_device_is_named() {
    let (scene, controller, node) = start_both().await;
    let life = Life::create(&scene, &controller, mount("ext4")).await;
    life.up(&node).await;
    let bind = format!("mount --bind {} /mnt", life.target.display());
    let holder =
        node.spawn(&format!("unshare --mount --propagation private bash -c '{bind} && exec sleep 3600'"));
    node.run(&format!("until [ $(cat /proc/{holder}/comm) = sleep ]; do sleep 0.1; done"));
    life.unpublish(&node).await.expect("NodeUnpublishVolume");
    let named = format!("a mount at /mnt in the mount namespace of process {holder} (sleep)");
    check(life.unstage(&node).await, Code::FailedPrecondition, &named);
    assert_eq!(node.krbd(), [scene.corner.spec(&life.image)]);
    node.end(&holder);
    life.unstage(&node).await.expect("NodeUnstageVolume");
    node.assert_clean();
}

/// As kubelet holds a block volume: at the published path; older ones, at the device.
#[tokio::test]
async fn a_loop_device_that_holds_a_block_volume_is_named() {
    let (scene, controller, node) = start_both().await;
    let life = Life::create(&scene, &controller, block()).await;
    life.up(&node).await;
    let hold = |path: &str| node.run(&format!("losetup --find --show {path}")).trim().to_owned();
    let published = hold(&life.target.display().to_string());
    let named = |held: &str| format!("loop device /sys/block/{}", held.trim_start_matches("/dev/"));
    check(life.unpublish(&node).await, Code::FailedPrecondition, &named(&published));
    node.run(&format!("losetup --detach {published}"));
    life.unpublish(&node).await.expect("NodeUnpublishVolume");
    let mapped = hold(&node.device(&life));
    check(life.unstage(&node).await, Code::FailedPrecondition, &named(&mapped));
    node.run(&format!("losetup --detach {mapped}"));
    life.unstage(&node).await.expect("NodeUnstageVolume");
    node.assert_clean();
}

/// A `blkid` that waits for what is done to its device meanwhile.
const WAITING: &str = r#"mkdir -p /run/waiting && rm -f /run/waiting/{asked,go} && cat >/run/waiting/blkid <<'EOF' && chmod +x /run/waiting/blkid
#!/bin/bash
touch /run/waiting/asked
until [ -e /run/waiting/go ]; do sleep 0.1; done
exec /sbin/blkid "$@"
EOF"#;

/// The client of krbd is shut out between the map and the first look at what is there: every read fails.
#[tokio::test]
async fn a_device_that_krbd_cannot_read_is_no_empty_one() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let node = Node::start_with(&scene, "PATH=/run/waiting:$PATH", "").await;
    node.run(WAITING);
    // With a map of objects krbd asks nobody for what was never written.
    let mut asked = request::create(&unique("pvc"), 64, mount("ext4"));
    asked.parameters.extend(request::map(&[("imageFeatures", "layering,exclusive-lock")]));
    let life = Life::create_as(&scene, &controller, asked).await;
    let shut_out = async {
        while node.machine().try_run("[ -e /run/waiting/asked ]").is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        run("ceph", &["osd", "blocklist", "add", node.run("cat /sys/bus/rbd/devices/*/client_addr").trim()]);
        let device = node.device(&life);
        node.run(&format!(
            "while dd if={device} of=/dev/null bs=4k count=1 iflag=direct; do sleep 0.2; done"
        ));
        node.run("touch /run/waiting/go");
    };
    let (staged, ()) = tokio::join!(life.stage(&node), shut_out);
    check(staged, Code::Internal, "/dev/rbd0");
    node.assert_clean();
    assert!(scene.corner.is_empty(&life.image), "it was written to");
    assert_eq!(
        scene.corner.meta(&life.image).get(".rbd.csi.ceph.com/format"),
        None,
        "it was to be formatted"
    );
    by_hand(&scene, &life.image, |device| drop(run("mkfs.ext4", &["-q", "-L", "somebody", device])));
    life.up(&node).await;
    assert_eq!(node.run(&format!("blkid -p -o value -s LABEL {}", node.device(&life))), "somebody");
    life.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
async fn the_driver_says_what_cluster_and_kernel_say() {
    let scene = Scene::new().listing(&[POOL]);
    let controller = scene.on_node("outside", "controller").start().await;
    let node = Node::start(&scene).await;
    let life = Life::create(&scene, &controller, block()).await;
    assert_eq!(controller.nodes(&life.id).await, [].into());
    life.attach(&controller, GUEST).await.expect("ControllerPublishVolume");
    life.up(&node).await;
    assert_eq!(controller.nodes(&life.id).await, [GUEST.to_owned()].into());
    assert_eq!(node.krbd(), [scene.corner.spec(&life.image)]);
    let address = node.run("cat /sys/bus/rbd/devices/*/client_addr");
    assert_eq!(scene.corner.watchers(&life.image), [address.trim()]);
    check(life.detach(&controller, GUEST).await, Code::FailedPrecondition, address.trim());
    for told in [life.health(&node).await, controller.health(&life.id, false).await] {
        assert_eq!(told.expect("health").health_statuses, []);
    }
    life.down(&node).await;
    node.assert_clean();
    assert_eq!(scene.corner.watchers(&life.image), [""; 0]);
    assert_eq!(controller.nodes(&life.id).await, [GUEST.to_owned()].into());
    life.detach(&controller, GUEST).await.expect("ControllerUnpublishVolume");
    assert_eq!(controller.nodes(&life.id).await, [].into());
}
