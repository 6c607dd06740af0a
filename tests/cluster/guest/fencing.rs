//! One writer across kernels: krbd in the guest holds a volume, and the guest is lost.

use tonic::Code;

use crate::common::csi::NodeGetVolumeHealthRequest;
use crate::common::life::{Life, block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, run};
use crate::fencing::FENCING;
use crate::harness::Scene;
use crate::lab::blocklist;

use super::machine::Machine;
use super::node::{GUEST, Node, given};

/// The guest stands still, until this goes out of sight.
struct Frozen(&'static Machine);

impl Frozen {
    fn new(node: &Node) -> Self {
        node.machine().freeze();
        Self(node.machine())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.thaw();
    }
}

/// What a pod writes there reaches the cluster, or it is told.
fn written(node: &Node, life: &Life) -> Result<String, String> {
    let place = life.place().display().to_string();
    node.machine()
        .try_run(&format!("dd if=/dev/zero of={place} bs=4k count=16 conv=fsync,notrunc status=none"))
}

async fn reasons(node: &Node, life: &Life) -> Vec<String> {
    let request = NodeGetVolumeHealthRequest {
        volume_id: life.id.clone(),
        volume_publish_path: life.target.display().to_string(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let health = node.node().node_get_volume_health(request).await.expect("NodeGetVolumeHealth");
    let health = health.into_inner().volume_health.expect("health");
    health.health_statuses.into_iter().map(|entry| entry.reason).collect()
}

#[tokio::test]
async fn a_frozen_node_loses_its_volume_and_writes_nothing_when_it_thaws() {
    let scene = Scene::new();
    let careful = scene.on_node("careful", "controller").start().await;
    let fencing = scene.on_node("fencing", "controller").flag(FENCING).start().await;
    let second = scene.on_node("node-b", "node").start().await;
    let node = Node::start(&scene).await;
    let here = given(&scene, &careful, mount("xfs")).await;
    here.up(&node).await;
    let digest = node.write(&here, 2);
    let [address] = scene.corner.watchers(&here.image).try_into().expect("one watcher");
    let there = here.on(&scene, &second);
    check(there.stage(&second).await, Code::FailedPrecondition, &address);
    check(here.detach(&careful, GUEST).await, Code::FailedPrecondition, &address);
    let scribble = format!(
        "(while dd if=/dev/urandom of={} bs=64k seek=64 count=8 conv=fsync,notrunc; do :; done) >/dev/null 2>&1 &",
        here.place().display()
    );
    node.run(&scribble);
    let frozen = Frozen::new(&node);
    check(here.attach(&careful, "node-b").await, Code::FailedPrecondition, GUEST);
    here.detach(&fencing, GUEST).await.expect("ControllerUnpublishVolume fences");
    assert!(blocklist().contains(&address));
    there.attach(&fencing, "node-b").await.expect("ControllerPublishVolume elsewhere");
    there.up(&second).await;
    let place = there.place().display().to_string();
    let read = run("sh", &["-c", &format!("head -c 2M {place} | sha256sum")]);
    assert_eq!(read.trim(), digest, "what was synced before");
    there.write(b"goes on there").expect("a pod writes");
    let content = scene.corner.content(&here.image);
    drop(frozen);
    written(&node, &here).expect_err("the write of the lost node");
    assert_eq!(scene.corner.content(&here.image), content, "it wrote all the same");
    there.down(&second).await;
    here.down(&node).await;
    node.assert_clean();
}

/// Its watch ends after 30 s, and it would come back with all that it had under way. Its other volumes share its client.
#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_node_that_was_cut_off_mends_by_itself() {
    let scene = Scene::new();
    let fencing = scene.on_node("fencing", "controller").flag(FENCING).start().await;
    let node = Node::start(&scene).await;
    node.run("mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug");
    let moved = given(&scene, &fencing, block()).await;
    let hit = given(&scene, &fencing, mount("ext4")).await;
    let fresh = given(&scene, &fencing, mount("xfs")).await;
    moved.up(&node).await;
    hit.up(&node).await;
    let (_, digest) = (node.write(&moved, 1), node.write(&hit, 1));
    let [address] = scene.corner.watchers(&moved.image).try_into().expect("one watcher");
    assert_eq!(scene.corner.watchers(&hit.image), [address.as_str()], "both are of one client");
    assert_eq!(reasons(&node, &hit).await, [""; 0]);
    node.machine().cut_off();
    eventually("the watch ends", || scene.corner.watchers(&moved.image).is_empty()).await;
    moved.detach(&fencing, GUEST).await.expect("ControllerUnpublishVolume fences");
    assert!(blocklist().contains(&address), "it has the lock, and would come back");
    node.machine().reconnect();

    written(&node, &moved).expect_err("a write to what was moved");
    written(&node, &hit).expect_err("a write by the same client");
    assert!(reasons(&node, &hit).await.contains(&"ClientBlocklisted".to_owned()));
    fresh.up(&node).await;
    let written = node.write(&fresh, 1);
    assert_eq!(node.read(&fresh, 1), written, "a new volume has a client of its own");
    check(hit.stage(&node).await, Code::FailedPrecondition, &address);
    hit.unpublish(&node).await.expect("NodeUnpublishVolume");
    check(hit.publish(&node).await, Code::FailedPrecondition, &address);
    hit.up(&node).await;
    assert_eq!(node.read(&hit, 1), digest, "staged anew, with what was synced");
    node.write(&hit, 1);
    for life in [moved, hit, fresh] {
        life.down(&node).await;
    }
    node.assert_clean();
}
