//! Volumes over rbd-nbd on a real kernel: their whole life, with a daemon of their own behind each.

use crate::common::csi::VolumeCapability;
use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::tools::unique;
use crate::harness::{Driver, Scene};
use crate::life::request;

use super::node::{GUEST, Node};

const GROWN: i64 = 512 << 20;

/// A controller outside, a node in the guest, and a volume that is mapped by rbd-nbd there.
pub(super) struct Stand {
    pub(super) scene: Scene,
    pub(super) controller: Driver,
    pub(super) node: Node,
    pub(super) life: Life,
}

impl Stand {
    pub(super) async fn new(capability: VolumeCapability) -> Self {
        let scene = Scene::new();
        let node = Node::start(&scene).await;
        Self::on(scene, node, capability).await
    }

    pub(super) async fn on(scene: Scene, node: Node, capability: VolumeCapability) -> Self {
        let controller = scene.on_node("outside", "controller").start().await;
        let mut asked = request::create(&unique("pvc"), capability.usual_mib(), capability);
        asked.parameters.extend(request::map(&[("mounter", "rbd-nbd")]));
        let life = Life::create_as(&scene, &controller, asked).await;
        life.attach(&controller, GUEST).await.expect("ControllerPublishVolume");
        Self { scene, controller, node, life }
    }

    pub(super) async fn ends(self) {
        self.life.down(&self.node).await;
        self.node.assert_clean();
        assert_eq!(self.node.run("pgrep -x rbd-nbd; true"), "");
        assert_eq!(self.scene.corner.watchers(&self.life.image), [""; 0]);
        self.gone().await;
    }

    /// Taken away where nobody uses it.
    pub(super) async fn gone(&self) {
        self.life.detach(&self.controller, GUEST).await.expect("ControllerUnpublishVolume");
        self.controller.delete(&self.life.id).await.expect("DeleteVolume");
    }
}

/// Created, used, grown while it is used, and taken away again.
async fn lives(capability: VolumeCapability) {
    let stand = Stand::new(capability).await;
    let Stand { scene, controller, node, life } = &stand;
    life.up(node).await;
    let cookie = node.run("cat /sys/block/nbd0/backend");
    assert_eq!((node.nbd(), cookie.trim()), (vec!["/sys/block/nbd0".to_owned()], life.id.as_str()));
    let digest = node.write(life, 2);
    life.stage(node).await.expect("the same again");
    life.publish(node).await.expect("the same again");
    assert_eq!(scene.corner.watchers(&life.image).len(), 1);
    life.expand(controller, GROWN).await.expect("ControllerExpandVolume");
    assert_eq!(life.expand_at(node, &life.target, GROWN).await.expect("NodeExpandVolume"), GROWN);
    let usage = life.stats(node, &life.target).await.expect("NodeGetVolumeStats").usage;
    assert!(usage[0].total > 400 * MIB.cast_signed(), "{usage:?}");
    assert_eq!(scene.corner.watchers(&life.image).len(), 1);
    life.down(node).await;
    node.assert_clean();
    life.up(node).await;
    assert_eq!(node.read(life, 2), digest);
    stand.ends().await;
}

#[tokio::test]
async fn an_ext4_volume_lives_and_grows_on_rbd_nbd() {
    lives(mount("ext4")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_xfs_volume_lives_and_grows_on_rbd_nbd() {
    lives(mount("xfs")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_block_volume_lives_and_grows_on_rbd_nbd() {
    lives(block()).await;
}

#[tokio::test]
async fn a_block_volume_that_is_only_read_is_mapped_read_only_by_rbd_nbd() {
    let mut stand = Stand::new(block()).await;
    stand.life = stand.life.with(Mode::SingleNodeReaderOnly);
    stand.life.up(&stand.node).await;
    assert_eq!(stand.node.run("cat /sys/block/nbd0/ro").trim(), "1");
    stand.ends().await;
}
