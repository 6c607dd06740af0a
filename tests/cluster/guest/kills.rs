//! The node service killed around what the kernel does for it: maps, mounts, and the way back.

use crate::common::client::Client;
use crate::common::csi::VolumeCapability;
use crate::common::life::{Life, block, mount};
use crate::harness::Scene;
use crate::matrix::{Matrix, Mortal};

use super::node::Node;

/// Where a node reads when it is to die.
pub(super) const FILE: &str = "/run/kill";

impl Mortal for Node {
    fn client(&self) -> &Client {
        self
    }

    fn order(&self, text: &str) {
        self.run(&format!("rm -f {FILE}.steps; echo '{text}' >{FILE}"));
    }

    fn steps(&self) -> Vec<String> {
        self.run(&format!("cat {FILE}.steps")).lines().map(str::to_owned).collect()
    }

    async fn revive(&mut self) {
        self.kill();
        self.launch().await;
    }

    fn write(&self, life: &Life) -> String {
        Node::write(self, life, 2)
    }

    fn read(&self, life: &Life) -> String {
        Node::read(self, life, 2)
    }

    fn assert_clean(&self, _: &Life) {
        Node::assert_clean(self);
    }
}

/// `is_at`: the steps that only a real kernel shows; the others this machine shows in a fraction of the time
/// (tests/cluster/matrix.rs).
async fn dies(what: &'static str, capability: VolumeCapability, is_at: fn(&str) -> bool) {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let mut node = Node::start_with(&scene, &format!("KILL_FILE={FILE}"), "").await;
    let new = async || Life::create(&scene, &controller, capability.clone()).await;
    Matrix::short(what, is_at).run(&mut node, new).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_driver_killed_around_a_filesystem_leaves_its_volume_whole() {
    let is_at = |step: &str| ["mkfs.xfs", "mount", "umount"].contains(&step);
    dies("xfs on krbd", mount("xfs"), is_at).await;
}

#[tokio::test]
async fn a_driver_killed_around_krbd_leaves_its_volume_whole() {
    dies("block on krbd", block(), |step| ["rbd map", "rbd unmap"].contains(&step)).await;
}
