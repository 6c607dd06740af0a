//! What the node service needs of its machine, on a kernel that loads its modules at need: krbd, nbd, either version of
//! control groups, more than one network.

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block};
use crate::common::tools::{check, run, unique};
use crate::harness::{Driver, Scene};
use crate::life::request;

use super::machine::machine;
use super::node::Node;

/// As after the boot.
const NO_MODULES: &str = "for module in rbd nbd; do [ ! -d /sys/module/$module ] || rmmod $module; done";

/// A cluster's side of a fact: the controller, outside.
async fn outside(scene: &Scene) -> Driver {
    scene.on_node("outside", "controller").start().await
}

async fn volume(scene: &Scene, controller: &Driver, parameters: &[(&str, &str)]) -> Life {
    let mut asked = request::create(&unique("pvc"), 64, block());
    asked.parameters.extend(request::map(parameters));
    Life::create_as(scene, controller, asked).await
}

#[tokio::test]
async fn modules_are_loaded_when_a_volume_needs_them() {
    machine().run(NO_MODULES);
    let scene = Scene::new();
    let (controller, node) = (outside(&scene).await, Node::start(&scene).await);
    assert!(!node.log().contains("WARN"), "nothing is wrong with this machine: {}", node.log());
    assert_eq!(machine().run("ls -d /sys/module/{rbd,nbd} 2>&- || true"), "");
    for (parameters, maps) in [(vec![], (1, 0)), (vec![("mounter", "rbd-nbd")], (0, 1))] {
        let life = volume(&scene, &controller, &parameters).await;
        life.stage(&node).await.expect("NodeStageVolume");
        assert_eq!((node.krbd().len(), node.nbd().len()), maps);
        life.unstage(&node).await.expect("NodeUnstageVolume");
        node.assert_clean();
        controller.delete(&life.id).await.expect("DeleteVolume");
    }
}

/// A container that the modules of its node are not mounted in.
const NO_TREE: &str =
    r#"unshare --mount bash -c 'umount --lazy "/lib/modules/$(uname -r)" && exec "$0" "$@"'"#;

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_module_that_cannot_be_loaded_is_told_with_what_to_do() {
    machine().run(NO_MODULES);
    let scene = Scene::new();
    let (controller, node) = (outside(&scene).await, Node::start_with(&scene, NO_TREE, "").await);
    let expected = "mount the node's /lib/modules into the container";
    assert!(node.log().contains(expected), "{}", node.log());
    for (mounter, module) in [("rbd", "rbd"), ("rbd-nbd", "nbd")] {
        let life = volume(&scene, &controller, &[("mounter", mounter)]).await;
        let lacks = format!("has no module {module}, and /lib/modules/");
        check(life.stage(&node).await, Code::FailedPrecondition, &lacks);
        life.unstage(&node).await.expect("NodeUnstageVolume");
        node.assert_clean();
        controller.delete(&life.id).await.expect("DeleteVolume");
    }
}

#[tokio::test]
async fn what_krbd_does_not_know_is_named_read_all_the_same_and_mapped_by_rbd_nbd() {
    let scene = Scene::new();
    let (controller, node) = (outside(&scene).await, Node::start(&scene).await);
    let plain = volume(&scene, &controller, &[]).await;
    let flexible = volume(&scene, &controller, &[("tryOtherMounters", "true")]).await;
    for life in [&plain, &flexible] {
        run("rbd", &["feature", "enable", &scene.corner.spec(&life.image), "journaling"]);
    }
    let kernel = machine().run("uname -r");
    let expected = format!("(Linux {}) does not know the image's journaling: ", kernel.trim());
    check(plain.stage(&node).await, Code::FailedPrecondition, &expected);
    node.assert_clean();
    let reader = plain.clone().with(Mode::MultiNodeReaderOnly);
    reader.stage(&node).await.expect("krbd reads it");
    assert_eq!((node.krbd().len(), node.nbd().len()), (1, 0));
    reader.unstage(&node).await.expect("NodeUnstageVolume");
    flexible.stage(&node).await.expect("rbd-nbd maps it");
    assert_eq!((node.krbd().len(), node.nbd().len()), (0, 1));
    flexible.unstage(&node).await.expect("NodeUnstageVolume");
    node.assert_clean();
    for life in [plain, flexible] {
        controller.delete(&life.id).await.expect("DeleteVolume");
    }
}

/// A control group of the guest, in a hierarchy that is mounted for it and taken down with it.
struct Group;

impl Group {
    fn new(mount: &str) -> Self {
        machine().run(&format!(
            "mount {mount} none /sys/fs/cgroup && cd /sys/fs/cgroup
             [ ! -e cgroup.controllers ] || echo +pids >cgroup.subtree_control
             mkdir driver && echo 1000 >driver/pids.max"
        ));
        Self
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = machine().try_run(
            "cd /; until rmdir /sys/fs/cgroup/driver; do sleep 0.1; done 2>&-; umount /sys/fs/cgroup",
        );
    }
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn the_limit_of_processes_is_set_in_either_version_of_control_groups() {
    let enter = |inside: &str| {
        format!("bash -c 'echo $$ >/sys/fs/cgroup/driver/cgroup.procs && exec {inside} \"$0\" \"$@\"'")
    };
    // The group is the topmost one that a container sees, as runtimes have it with version 2.
    let contained = "unshare --cgroup --mount bash -c \"umount --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec \\\"\\$0\\\" \\\"\\$@\\\"\"";
    for (mount, inside) in [("-t cgroup -o pids", ""), ("-t cgroup2", ""), ("-t cgroup2", contained)] {
        let scene = Scene::new();
        let _group = Group::new(mount);
        let node = Node::start_with(&scene, &enter(inside), "--pidlimit=-1").await;
        let limit = machine().run("cat /sys/fs/cgroup/driver/pids.max");
        assert_eq!(limit.trim(), "max", "{mount} {inside}: {}", node.log());
        node.kill();
    }
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_network_that_is_not_the_machine_s_is_warned_of() {
    let driver = env!("CARGO_BIN_EXE_ceph-rbd-csi");
    let said = machine().run(&format!(
        "unshare --net {driver} --type=node --nodeid=guest --endpoint=/run/alone.sock >/tmp/alone.log 2>&1 </dev/null &
         until grep -q serving /tmp/alone.log; do kill -0 $! || break; sleep 0.1; done
         kill -TERM $!; wait $!; cat /tmp/alone.log"
    ));
    assert!(said.contains("hostNetwork: true"), "{said}");
}
