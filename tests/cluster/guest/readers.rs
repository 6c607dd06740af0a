//! What is read-only stays so in the kernel, whoever writes; and several kernels read at once.

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block, mount};
use crate::common::tools::{check, run};
use crate::harness::Scene;
use crate::keys::encrypted_life;
use crate::readers::REPLAYED;
use crate::sources::{like, restored, snapshot};

use super::encrypted::Wrapper;
use super::node::{GUEST, Node, start_both};

impl Node {
    /// Why a pod that is root cannot write there.
    #[track_caller]
    fn refusal(&self, life: &Life) -> String {
        let script = format!("echo x | dd of={} bs=4096 conv=notrunc,fsync", life.place().display());
        self.machine().try_run(&script).expect_err("a write")
    }

    fn is_read_only(&self, life: &Life) -> bool {
        self.run(&format!("blockdev --getro {}", self.device(life))).trim() == "1"
    }
}

#[tokio::test]
async fn two_kernels_read_what_was_restored() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let other = scene.on_node("node-b", "node").start().await;
    let node = Node::start(&scene).await;
    let source = Life::create(&scene, &controller, mount("ext4")).await;
    source.up(&node).await;
    let digest = node.write(&source, 2);
    // Of a filesystem in use: what was fsynced is in its journal.
    let taken = snapshot(&scene, &source);
    let here = restored(&scene, &controller, &taken, &source).await.with(Mode::MultiNodeReaderOnly);
    let there = here.on(&scene, &other);
    for name in [GUEST, "node-b"] {
        here.attach(&controller, name).await.expect("ControllerPublishVolume");
    }
    here.up(&node).await;
    assert!(node.is_read_only(&here) && !node.is_read_only(&source));
    there.up(&other).await;
    assert_eq!(node.read(&here, 2), digest);
    let read = run("sh", &["-c", "sha256sum <\"$0\"", &there.place().display().to_string()]);
    assert_eq!(read.trim(), digest.trim());
    assert!(node.refusal(&here).contains("Read-only file system"));
    there.down(&other).await;
    // A read-only map holds no watch: the record of who was given it does.
    check(controller.delete(&here.id).await, Code::FailedPrecondition, GUEST);
    assert_eq!(node.read(&here, 2), digest);
    here.down(&node).await;
    source.down(&node).await;
    node.assert_clean();
}

/// Opened once to be written, for its journal, and from then on by a mapper that takes no write, over a device that
/// takes none.
#[tokio::test]
async fn an_encrypted_snapshot_is_read_at_several_paths() {
    let scene = Scene::new();
    let controller = scene.with_key_stores(scene.on_node("outside", "controller")).start().await;
    let node = Wrapper::new(&scene).start(&scene).await;
    let source = encrypted_life(&scene, &controller, "meta", mount("ext4")).await;
    source.up(&node).await;
    let digest = node.write(&source, 2);
    let asked = like(&source).encrypted("meta").of_snapshot(&snapshot(&scene, &source).id);
    let life = Life::create_as(&scene, &controller, asked).await.with(Mode::MultiNodeReaderOnly);
    life.attach(&controller, GUEST).await.expect("ControllerPublishVolume");
    for turn in ["replayed", "as it was left"] {
        life.up(&node).await;
        assert_eq!(scene.corner.meta(&life.image).get(REPLAYED), Some(&life.uuid()), "{turn}");
        let mapper = node.run(&format!("blockdev --getro /dev/mapper/{}", life.mapper()));
        assert_eq!((node.is_read_only(&life), mapper.trim()), (true, "1"), "{turn}");
        let second = Life { target: life.target.with_file_name("second"), ..life.clone() };
        second.publish(&node).await.expect("NodePublishVolume at a second path");
        life.stage(&node).await.expect("the same again");
        for seen in [&life, &second] {
            assert_eq!(node.read(seen, 2), digest, "{turn}");
            assert!(node.refusal(seen).contains("Read-only file system"));
        }
        second.unpublish(&node).await.expect("NodeUnpublishVolume");
        life.down(&node).await;
        assert_eq!(node.mappers(), [source.mapper()]);
    }
    source.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn what_is_published_read_only_takes_no_write() {
    let (scene, controller, node) = start_both().await;
    let life = Life::create(&scene, &controller, mount("xfs")).await;
    life.up(&node).await;
    let digest = node.write(&life, 1);
    life.unpublish(&node).await.expect("NodeUnpublishVolume");
    life.publish_at(&node, &life.target, true).await.expect("NodePublishVolume, read-only");
    assert!(node.refusal(&life).contains("Read-only file system"));
    assert_eq!(node.read(&life, 1), digest);
    life.down(&node).await;
    let raw = Life::create(&scene, &controller, block()).await;
    raw.up(&node).await;
    let digest = node.write(&raw, 1);
    raw.unpublish(&node).await.expect("NodeUnpublishVolume");
    check(raw.publish_at(&node, &raw.target, true).await, Code::FailedPrecondition, "read-only device");
    raw.unstage(&node).await.expect("NodeUnstageVolume");
    let raw = raw.with(Mode::SingleNodeReaderOnly);
    raw.up(&node).await;
    assert!(node.is_read_only(&raw));
    let refusal = node.refusal(&raw);
    assert!(refusal.contains("Operation not permitted") || refusal.contains("Read-only"), "{refusal}");
    assert_eq!(node.read(&raw, 1), digest);
    raw.down(&node).await;
    node.assert_clean();
}
