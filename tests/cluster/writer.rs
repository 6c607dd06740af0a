//! One writer: two node services on one cluster never have one volume at once, and nobody takes it from under them.

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block, mount};
use crate::common::tools::check;
use crate::harness::{Driver, Scene};

/// A controller and two nodes, each a process of its own with its own mappings.
async fn cluster(scene: &Scene) -> [Driver; 3] {
    let controller = scene.on_node("controller", "controller").start().await;
    let first = scene.on_node("node-a", "node").start().await;
    let second = scene.on_node("node-b", "node").start().await;
    [controller, first, second]
}

fn only_watcher(scene: &Scene, life: &Life) -> String {
    let watchers = scene.corner.watchers(&life.image);
    assert_eq!(watchers.len(), 1, "{watchers:?}");
    watchers[0].clone()
}

#[tokio::test]
async fn a_second_node_waits_until_the_first_has_unstaged() {
    let scene = Scene::new();
    let [controller, first, second] = cluster(&scene).await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let here = Life::create(&scene, &controller, capability).await.on(&scene, &first);
        let there = here.on(&scene, &second);
        here.up(&first).await;
        here.write(b"of the first").expect("a pod writes");
        let address = only_watcher(&scene, &here);
        let refused = there.stage(&second).await;
        check(refused.clone(), Code::FailedPrecondition, &address);
        check(refused, Code::FailedPrecondition, "node-a");
        there.assert_gone_from(&second);
        assert_eq!(only_watcher(&scene, &here), address, "the first lost its map");
        here.down(&first).await;
        there.up(&second).await;
        assert_eq!(there.read(12), b"of the first");
        here.assert_gone_from(&first);
        there.down(&second).await;
    }
}

#[tokio::test]
async fn two_nodes_that_stage_at_once_never_both_have_it() {
    let scene = Scene::new();
    let [controller, first, second] = cluster(&scene).await;
    for _ in 0..4 {
        let here = Life::create(&scene, &controller, mount("ext4")).await.on(&scene, &first);
        let there = here.on(&scene, &second);
        let (one, two) = tokio::join!(here.stage(&first), there.stage(&second));
        assert!(one.is_err() || two.is_err(), "both nodes have staged it");
        for (answer, life, node) in [(one, &here, &first), (two, &there, &second)] {
            if let Err(status) = answer {
                assert!(matches!(status.code(), Code::FailedPrecondition | Code::Aborted), "{status:?}");
                assert!(life.staged().is_empty(), "refused, and yet mounted");
                assert!(!node.mapped().contains(&life.image), "refused, and yet mapped");
            }
        }
        here.unstage(&first).await.expect("NodeUnstageVolume");
        there.unstage(&second).await.expect("NodeUnstageVolume");
    }
}

/// A second map of an image only warns: "cannot list" is not "nothing is mapped".
#[tokio::test]
async fn a_list_of_maps_that_fails_maps_nothing() {
    let scene = Scene::new();
    let controller = scene.on_node("controller", "controller").start().await;
    let unlisted = scene.wrapper(r#"[ "$1" != device ] || exit 5; exec "$RBD" "$@""#);
    let node = scene.on_node("node-a", "node").wrapped(&unlisted).start().await;
    let life = Life::create(&scene, &controller, block()).await.on(&scene, &node);
    check(life.stage(&node).await, Code::Aborted, "listing the mapped images");
    assert_eq!(unlisted.count("map"), 0);
    assert!(node.mapped().is_empty() && life.staged().is_empty());
}

#[tokio::test]
async fn block_volumes_for_several_nodes_are_staged_on_several() {
    let scene = Scene::new();
    let [controller, first, second] = cluster(&scene).await;
    let life = Life::create(&scene, &controller, block().with(Mode::MultiNodeMultiWriter)).await;
    let (here, there) = (life.on(&scene, &first), life.on(&scene, &second));
    life.attach(&controller, "node-a").await.expect("ControllerPublishVolume");
    life.attach(&controller, "node-b").await.expect("ControllerPublishVolume on a second node");
    here.up(&first).await;
    there.up(&second).await;
    assert_eq!(scene.corner.watchers(&life.image).len(), 2);
    here.down(&first).await;
    there.down(&second).await;
}

#[tokio::test]
async fn the_controller_gives_a_volume_to_one_node_at_a_time() {
    let scene = Scene::new();
    let [controller, ..] = cluster(&scene).await;
    let life = Life::create(&scene, &controller, mount("ext4")).await;
    life.attach(&controller, "node-a").await.expect("ControllerPublishVolume");
    check(life.attach(&controller, "node-b").await, Code::FailedPrecondition, "\"node-a\"");
    life.attach(&controller, "node-a").await.expect("ControllerPublishVolume again");
    life.detach(&controller, "node-b").await.expect("ControllerUnpublishVolume where it is not");
    check(life.attach(&controller, "node-b").await, Code::FailedPrecondition, "\"node-a\"");
    check(controller.delete(&life.id).await, Code::FailedPrecondition, "\"node-a\"");
    life.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
    life.attach(&controller, "node-b").await.expect("ControllerPublishVolume on the second node");
    life.detach(&controller, "node-b").await.expect("ControllerUnpublishVolume");
    controller.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn the_controller_takes_nothing_from_a_node_that_holds_it() {
    let scene = Scene::new();
    let [controller, first, _] = cluster(&scene).await;
    let life = Life::create(&scene, &controller, mount("ext4")).await.on(&scene, &first);
    life.attach(&controller, "node-a").await.expect("ControllerPublishVolume");
    life.up(&first).await;
    let address = only_watcher(&scene, &life);
    check(life.detach(&controller, "node-a").await, Code::FailedPrecondition, &address);
    check(controller.delete(&life.id).await, Code::FailedPrecondition, &address);
    assert!(scene.corner.has(&life.image) && scene.corner.trash().is_empty());
    life.write(b"still here").expect("a pod writes");
    life.down(&first).await;
    life.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
    controller.delete(&life.id).await.expect("DeleteVolume");
}
