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

/// What all else does, this machine shows in a fraction of the time (tests/cluster/matrix.rs).
fn is_the_kernel_s(step: &str) -> bool {
    ["rbd map", "rbd unmap", "mkfs", "mount", "umount", "cryptsetup"]
        .iter()
        .any(|what| step.starts_with(what))
}

async fn dies(what: &'static str, capability: VolumeCapability) {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let mut node = Node::start_with(&scene, &format!("KILL_FILE={FILE}"), "").await;
    let new = async || Life::create(&scene, &controller, capability.clone()).await;
    Matrix::new(what, is_the_kernel_s).run(&mut node, new).await;
}

#[tokio::test]
async fn a_driver_killed_around_krbd_leaves_an_xfs_volume_whole() {
    dies("xfs on krbd", mount("xfs")).await;
}

#[tokio::test]
async fn a_driver_killed_around_krbd_leaves_a_block_volume_whole() {
    dies("block on krbd", block()).await;
}
