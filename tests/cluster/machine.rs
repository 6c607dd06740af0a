//! What the node service finds of its machine: the modules of the kernel, what its krbd knows, the network. The machine
//! of a test is what its mount namespace shows.

use tonic::Code;

use crate::common::tools::check;
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene, Start};
use crate::mapping::{UNSUPPORTED, by_nbd, create, gone};

/// What `rbd map` says where the kernel has no rbd and gets none.
const NO_MODULE: &str = r#"if [[ $1 == map && $* == *"--device-type krbd"* ]]; then
    echo 'modprobe: FATAL: Module rbd not found in directory /lib/modules/6.1.0' >&2
    echo 'rbd: failed to load rbd kernel module (1)' >&2
    echo 'rbd: sysfs write failed' >&2
    echo 'rbd: map failed: (2) No such file or directory' >&2
    exit 2
fi
exec "$RBD" "$@""#;

/// No kernel modules, neither loaded nor to be loaded.
const BARE: &str =
    "mount -t tmpfs none /sys/bus && { [ ! -d /lib/modules ] || mount -t tmpfs none /lib/modules; }";
/// A krbd that knows layering, exclusive-lock, fast-diff and deep-flatten.
const OLD_KRBD: &str = "mount -t tmpfs none /sys/bus && mkdir /sys/bus/rbd && \
                        echo 0x35 >/sys/bus/rbd/supported_features";

/// The driver on a machine that looks so.
fn on(start: &Start, machine: &str) -> Start {
    let script = format!("{machine} && exec \"$0\" \"$@\"");
    start.clone().within(&["unshare", "--mount", "bash", "-c", &script])
}

async fn start_on(scene: &Scene, machine: &str, wrapper: &Wrapper) -> Driver {
    on(&scene.driver().wrapped(wrapper), machine).start().await
}

#[tokio::test]
async fn a_node_without_the_module_says_what_to_do_at_its_start_and_when_it_stages() {
    let scene = Scene::new();
    let driver = start_on(&scene, BARE, &scene.wrapper(NO_MODULE)).await;
    assert!(driver.log().contains("mount the node's /lib/modules"), "{}", driver.log());
    let life = create(&scene, &driver, &[], None).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "has no module rbd");
    check(life.stage(&driver).await, Code::FailedPrecondition, "mount the node's /lib/modules");
    life.assert_gone_from(&driver);
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn rbd_nbd_maps_where_there_is_no_krbd_and_others_may_be_tried() {
    let scene = Scene::new();
    let driver = start_on(&scene, BARE, &scene.wrapper(NO_MODULE)).await;
    let life = create(&scene, &driver, &[("tryOtherMounters", "true")], None).await;
    life.up(&driver).await;
    assert_eq!(by_nbd(&scene, &driver), 1);
    life.down(&driver).await;
    gone(&scene, &driver, &life).await;
}

#[tokio::test]
async fn a_map_that_finds_no_monitor_is_not_taken_for_a_missing_module() {
    let scene = Scene::new();
    let driver = start_on(&scene, OLD_KRBD, &scene.wrapper(NO_MODULE)).await;
    assert!(!driver.log().contains("krbd"), "{}", driver.log());
    let life = create(&scene, &driver, &[("tryOtherMounters", "true")], None).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "ports of the monitors");
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn features_that_krbd_does_not_know_are_named() {
    let scene = Scene::new();
    let driver = start_on(&scene, OLD_KRBD, &scene.wrapper(UNSUPPORTED)).await;
    let life = create(&scene, &driver, &[], None).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "does not know the image's object-map: ");
    let disable = format!("rbd feature disable {} object-map", scene.corner.spec(&life.image));
    check(life.stage(&driver).await, Code::FailedPrecondition, &disable);
    life.assert_gone_from(&driver);
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn a_network_that_ends_with_its_pod_is_warned_of() {
    let named = serde_json::json!({ "netNamespaceFilePath": "/run/netns/a" });
    for (kind, rbd, warned) in [
        ("node", serde_json::json!({}), true),
        ("node", named, false),
        ("controller", serde_json::json!({}), false),
    ] {
        let scene = Scene::new();
        scene.configure_with("127.0.0.1", serde_json::json!({}), rbd);
        let driver = scene.on_node("node-a", kind).within(&["unshare", "--net"]).start().await;
        assert_eq!(driver.log().contains("hostNetwork"), warned, "{kind}: {}", driver.log());
    }
}

/// ceph-csi's manifests give it to both services.
#[tokio::test]
async fn the_limit_of_processes_is_for_the_node_service() {
    let scene = Scene::new();
    let driver = scene.on_node("outside", "controller").flag("--pidlimit=-1").start().await;
    assert!(driver.log().contains("--pidlimit=-1 is for the node service alone"), "{}", driver.log());
}
