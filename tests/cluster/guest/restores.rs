//! A restore beside its source on one node: the same filesystem by its UUID, and the data of its own moment.

use crate::common::life::{Life, mount};
use crate::sources::{restored, snapshot};

use super::node::{GUEST, given, start_both};

async fn live_side_by_side(fs_type: &str) {
    let (scene, controller, node) = start_both().await;
    let source = given(&scene, &controller, mount(fs_type)).await;
    source.up(&node).await;
    let before = node.write(&source, 2);
    let taken = snapshot(&scene, &source);
    let after = node.write(&source, 2);
    let copy = restored(&scene, &controller, &taken, &source).await;
    copy.attach(&controller, GUEST).await.expect("ControllerPublishVolume of the restore");
    copy.up(&node).await;
    let uuid = |life: &Life| node.run(&format!("blkid -p -o value -s UUID {}", node.device(life)));
    assert_eq!(uuid(&source), uuid(&copy), "the kernel has one filesystem twice");
    assert_eq!((node.read(&source, 2), node.read(&copy, 2)), (after.clone(), before));
    let own = node.write(&copy, 2);
    source.down(&node).await;
    assert_eq!(node.krbd(), [scene.corner.spec(&copy.image)]);
    assert_eq!(node.read(&copy, 2), own, "what its source is has changed it");
    source.up(&node).await;
    copy.down(&node).await;
    assert_eq!(node.read(&source, 2), after, "what was made from it has changed it");
    source.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn an_ext4_and_its_restore_live_side_by_side() {
    live_side_by_side("ext4").await;
}

#[tokio::test]
async fn an_xfs_and_its_restore_live_side_by_side() {
    live_side_by_side("xfs").await;
}
