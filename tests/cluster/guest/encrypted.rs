//! Encrypted volumes with the real dm-crypt: their whole life, growth, and what survives a kill.

use tonic::Code;

use crate::common::csi::{NodeGetVolumeHealthRequest, VolumeCapability};
use crate::common::life::{Life, block, mount};
use crate::common::tools::check;
use crate::harness::{Driver, Scene};
use crate::keys::{ENCRYPTED, encrypted_life, passphrase};
use crate::matrix::Matrix;

use super::kills::FILE;
use super::node::{GUEST, Node};

const FORMAT: &str = ".rbd.csi.ceph.com/format";

impl Life {
    /// What its opened device is called.
    pub(super) fn mapper(&self) -> String {
        format!("luks-rbd-{}", self.id)
    }
}

/// Created, used, staged again, grown while in use, and taken away again.
async fn lives(capability: VolumeCapability) {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let node = Wrapper::new(&scene).start(&scene).await;
    let life = encrypted_life(&scene, &controller, "", capability).await;
    life.attach(&controller, GUEST).await.expect("ControllerPublishVolume");
    life.up(&node).await;
    assert_eq!(node.mappers(), [life.mapper()]);
    assert_eq!(node.run("blkid -p -s TYPE -o value /dev/rbd0"), "crypto_LUKS");
    assert_eq!(scene.corner.meta(&life.image)[ENCRYPTED], "encrypted");
    let stash = node.run(&format!("cat {}/image-meta.json", life.staging.display()));
    assert!(stash.contains(r#""encrypted":true"#), "{stash}");
    let digest = node.write(&life, 2);
    life.stage(&node).await.expect("the same again");
    grows(&life, &controller, &node).await;
    life.down(&node).await;
    node.assert_clean();
    let mut wrong = life.clone();
    wrong.secrets.insert("encryptionPassphrase".to_owned(), "another".to_owned());
    let before = scene.corner.content(&life.image);
    check(wrong.stage(&node).await, Code::Unauthenticated, "encryptionPassphrase");
    node.assert_clean();
    assert_eq!(scene.corner.content(&life.image), before, "a wrong passphrase changed something");
    life.up(&node).await;
    assert_eq!(node.read(&life, 2), digest);
    // What a lost stash told is asked of the kernel.
    node.run(&format!("rm {}/image-meta.json", life.staging.display()));
    life.down(&node).await;
    node.assert_clean();
    life.detach(&controller, GUEST).await.expect("ControllerUnpublishVolume");
    controller.delete(&life.id).await.expect("DeleteVolume");
    for log in [node.log(), controller.log()] {
        assert!(!log.contains(passphrase()), "a passphrase is in a log: {log}");
    }
}

async fn grows(life: &Life, controller: &Driver, node: &Node) {
    let size = (life.capability.usual_mib() + 64) << 20;
    life.expand(controller, size).await.expect("ControllerExpandVolume");
    assert_eq!(life.expand_at(node, &life.target, size).await.expect("NodeExpandVolume"), size);
    assert_eq!(life.expand_at(node, &life.target, size).await.expect("nothing is left to do"), size);
    let shown = node.run(&format!("blockdev --getsize64 /dev/mapper/{}", life.mapper()));
    assert_eq!(shown.trim().parse(), Ok(size));
    if !life.capability.is_block() {
        let filesystem = node.run(&format!("stat -f -c '%b %S' {}", life.target.display()));
        let bytes = filesystem
            .trim()
            .split_once(' ')
            .and_then(|(blocks, size)| Some(blocks.parse::<u64>().ok()? * size.parse::<u64>().ok()?));
        assert!(bytes.is_some_and(|bytes| bytes > size.unsigned_abs() / 10 * 7), "{filesystem}");
    }
}

#[tokio::test]
async fn an_encrypted_ext4_volume_lives() {
    lives(mount("ext4")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_encrypted_xfs_volume_lives() {
    lives(mount("xfs")).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_encrypted_block_volume_lives() {
    lives(block()).await;
}

/// A `cryptsetup` in front of the real one, `$REAL`, whose keys cost next to nothing.
pub(super) struct Wrapper {
    folder: String,
}

const QUICK: &str = r#"exec $REAL "$@""#;

impl Wrapper {
    pub(super) fn new(scene: &Scene) -> Self {
        Self { folder: scene.path("wrapper").display().to_string() }
    }

    /// A node that runs it, and has the key stores where the scene has them (`Scene::with_key_stores`).
    pub(super) async fn start(&self, scene: &Scene) -> Node {
        let stores = format!("--kms-config={}", scene.path("key-stores.json").display());
        let before = format!("PATH={}:$PATH KILL_FILE={FILE}", self.folder);
        let node = Node::start_with(scene, &before, &stores).await;
        self.does(&node, QUICK);
        node
    }

    /// `script`: what becomes of its arguments, `"$@"`.
    fn does(&self, node: &Node, script: &str) {
        node.run(&format!(
            r#"mkdir -p {0} && cat >{0}/cryptsetup <<'EOF' && chmod +x {0}/cryptsetup
#!/bin/bash
REAL=/sbin/cryptsetup
[[ $* != *luksFormat* ]] || set -- --pbkdf-force-iterations 4 "$@"
{script}
EOF"#,
            self.folder
        ));
    }
}

/// A luksFormat of ours is killed at one of its writes: the next stage begins anew. (At each of them: header_kills.rs.)
#[tokio::test]
async fn a_half_made_header_is_made_again() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let life = encrypted_life(&scene, &controller, "", mount("ext4")).await;
    let cryptsetup = Wrapper::new(&scene);
    let node = cryptsetup.start(&scene).await;
    // Both headers are there, without a key; one of them has it.
    for write in [11, 18] {
        cryptsetup.does(
            &node,
            &format!("exec strace -f -qq -o /dev/null -e inject=write:signal=KILL:when={write} $REAL \"$@\""),
        );
        check(life.stage(&node).await, Code::Internal, "luksFormat");
        node.assert_clean();
        let meta = scene.corner.meta(&life.image);
        assert_eq!(meta[ENCRYPTED], "encryptionPrepared", "killed at write {write}");
        assert_eq!(meta[FORMAT], format!("begun ext4 {}", life.uuid()), "killed at write {write}");
    }
    cryptsetup.does(&node, QUICK);
    life.up(&node).await;
    let digest = node.write(&life, 1);
    life.down(&node).await;
    life.up(&node).await;
    assert_eq!(node.read(&life, 1), digest);
    life.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_driver_killed_around_cryptsetup_leaves_an_encrypted_volume_whole() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let mut node = Wrapper::new(&scene).start(&scene).await;
    let new = async || encrypted_life(&scene, &controller, "", mount("ext4")).await;
    Matrix::short("ext4 in LUKS", |step| step.starts_with("cryptsetup")).run(&mut node, new).await;
}

/// By force, which nobody should.
#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_device_that_is_taken_away_below_a_mapper_is_told_and_staged_anew() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let node = Wrapper::new(&scene).start(&scene).await;
    let life = encrypted_life(&scene, &controller, "", mount("ext4")).await;
    life.up(&node).await;
    node.run("rbd unmap -o noudev,force /dev/rbd0");
    let health = NodeGetVolumeHealthRequest {
        volume_id: life.id.clone(),
        volume_publish_path: life.target.display().to_string(),
        staging_target_path: life.staging.display().to_string(),
    };
    let health = node.node().node_get_volume_health(health).await.expect("NodeGetVolumeHealth").into_inner();
    assert!(format!("{health:?}").contains("DeviceGone"), "{health:?}");
    life.unpublish(&node).await.expect("NodeUnpublishVolume");
    life.stage(&node).await.expect("staged anew");
    assert_eq!(node.mappers(), [life.mapper()]);
    life.down(&node).await;
    node.assert_clean();
}
