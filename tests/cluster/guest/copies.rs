//! Copies of an encrypted volume beside their source on one node: the kernel has one header and one filesystem several
//! times, and each opens with keys of its own.

use crate::common::life::{Life, mount};
use crate::harness::Scene;
use crate::keys::encrypted_life;
use crate::sources::{like, snapshot};

use super::encrypted::Wrapper;

async fn live_beside_their_source(store: &str, fs_type: &str) {
    let scene = Scene::new();
    let controller = scene.with_key_stores(scene.on_node("outside", "controller")).start().await;
    let node = Wrapper::new(&scene).start(&scene).await;
    let source = encrypted_life(&scene, &controller, store, mount(fs_type)).await;
    source.up(&node).await;
    let before = node.write(&source, 2);
    let taken = snapshot(&scene, &source);
    let after = node.write(&source, 2);
    let asked = || like(&source).encrypted(store);
    let restore = Life::create_as(&scene, &controller, asked().of_snapshot(&taken.id)).await;
    let clone = Life::create_as(&scene, &controller, asked().of_volume(&source.id)).await;
    restore.up(&node).await;
    clone.up(&node).await;
    // Of the header, and of the filesystem behind it.
    let uuids = |life: &Life| {
        let devices = format!("{} /dev/mapper/{}", node.device(life), life.mapper());
        node.run(&format!("for d in {devices}; do blkid -p -o value -s UUID $d; echo; done"))
    };
    assert_eq!((uuids(&restore), uuids(&clone)), (uuids(&source), uuids(&source)));
    let read = |life: &Life| node.read(life, 2);
    assert_eq!((read(&source), read(&restore), read(&clone)), (after.clone(), before, after.clone()));
    let own = node.write(&restore, 2);
    source.down(&node).await;
    assert_eq!((read(&restore), read(&clone)), (own, after), "what their source is has changed them");
    restore.down(&node).await;
    assert_eq!(node.mappers(), [clone.mapper()]);
    clone.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_encrypted_xfs_and_its_copies_live_side_by_side() {
    live_beside_their_source("meta", "xfs").await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_encrypted_ext4_and_its_copies_live_side_by_side() {
    live_beside_their_source("", "ext4").await;
}
