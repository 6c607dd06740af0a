//! `--enable-fencing`: a node that is lost keeps nothing from moving, and writes nothing afterwards; whoever is not lost is
//! left alone.

use std::fs;
use std::os::unix::fs::FileExt as _;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, unique};
use crate::harness::{Driver, Scene};
use crate::lab::blocklist;
use crate::life::request;

pub(crate) const FENCING: &str = "--enable-fencing";

/// A controller that fences, and two nodes.
async fn cluster(scene: &Scene) -> [Driver; 3] {
    let controller = scene.on_node("controller", "controller").flag(FENCING).start().await;
    let first = scene.on_node("node-a", "node").start().await;
    let second = scene.on_node("node-b", "node").start().await;
    [controller, first, second]
}

fn watcher(scene: &Scene, life: &Life) -> String {
    let watchers = scene.corner.watchers(&life.image);
    assert_eq!(watchers.len(), 1, "{watchers:?}");
    watchers[0].clone()
}

async fn held(scene: &Scene, controller: &Driver, node: &Driver, life: Life) -> (Life, String) {
    let here = life.on(scene, node);
    here.attach(controller, "node-a").await.expect("ControllerPublishVolume");
    here.up(node).await;
    let address = watcher(scene, &here);
    (here, address)
}

/// A write that goes to the device at once.
fn write_through(life: &Life) -> std::io::Result<()> {
    let file = fs::File::options().write(true).open(life.place())?;
    file.write_all_at(b"too late", 0)?;
    file.sync_all()
}

/// The processes behind a node's maps, frozen for a while.
struct Frozen(Vec<Pid>);

impl Frozen {
    fn maps_of(node: &Driver) -> Self {
        let folders = fs::read_dir(node.maps()).expect("maps").flatten();
        let pids = folders.filter_map(|folder| fs::read_to_string(folder.path().join("pid")).ok());
        let frozen = Self(pids.map(|pid| Pid::from_raw(pid.trim().parse().expect("a pid"))).collect());
        assert!(!frozen.0.is_empty(), "nothing is mapped");
        frozen.0.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).expect("it runs"));
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill(*pid, Signal::SIGCONT);
        }
    }
}

#[tokio::test]
async fn the_client_of_a_lost_node_and_no_other_is_shut_out() {
    let scene = Scene::new();
    let [controller, first, second] = cluster(&scene).await;
    let (other, bystander) =
        held(&scene, &controller, &first, Life::create(&scene, &controller, block()).await).await;
    let life = Life::create(&scene, &controller, mount("ext4")).await;
    let (here, address) = held(&scene, &controller, &first, life).await;
    here.write(b"synced before").expect("a pod writes");

    here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume fences");
    let listed = blocklist();
    assert!(listed.contains(&address), "{address} is not among {listed:?}");
    assert!(!listed.contains(&bystander), "{bystander} did nothing: {listed:?}");
    assert!(listed.iter().all(|address| !address.ends_with("/0")), "an IP: {listed:?}");
    assert!(scene.corner.watchers(&here.image).is_empty(), "its watch is left");
    here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume again");

    let there = here.on(&scene, &second);
    there.attach(&controller, "node-b").await.expect("ControllerPublishVolume elsewhere");
    there.up(&second).await;
    write_through(&here).expect_err("the lost node's write");
    other.write(b"untouched").expect("another client of the same IP writes");
    assert_eq!(there.read(13), b"synced before");
    there.write(b"goes on there").expect("a pod writes");

    here.down(&first).await;
    other.down(&first).await;
    there.down(&second).await;
    here.assert_gone_from(&first);
}

#[tokio::test]
async fn without_the_flag_nothing_moves_while_the_client_lives() {
    let scene = Scene::new();
    let [_, first, second] = cluster(&scene).await;
    let controller = scene.on_node("controller-b", "controller").flag("--enable-fencing=false").start().await;
    let life = Life::create(&scene, &controller, mount("ext4")).await;
    let (here, address) = held(&scene, &controller, &first, life).await;
    check(here.detach(&controller, "node-a").await, Code::FailedPrecondition, &address);
    check(here.attach(&controller, "node-b").await, Code::FailedPrecondition, "\"node-a\"");
    check(here.on(&scene, &second).stage(&second).await, Code::FailedPrecondition, &address);
    assert!(!blocklist().contains(&address));
    here.write(b"still its own").expect("a pod writes");
    here.down(&first).await;
    here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
}

/// Both services in one process: that its node is not lost, it knows best.
#[tokio::test]
async fn a_process_never_shuts_out_its_own_node() {
    let scene = Scene::new();
    let driver = scene.driver().flag(FENCING).start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let (here, address) = held(&scene, &driver, &driver, life).await;
    check(here.detach(&driver, "node-a").await, Code::FailedPrecondition, &address);
    assert!(!blocklist().contains(&address));
    here.down(&driver).await;
    here.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
    assert!(!blocklist().contains(&address));
}

#[tokio::test]
async fn a_node_that_unstaged_is_not_shut_out() {
    let scene = Scene::new();
    let [controller, first, _] = cluster(&scene).await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &controller, capability).await;
        let (here, address) = held(&scene, &controller, &first, life).await;
        here.write(b"x").expect("a pod writes");
        here.down(&first).await;
        here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
        assert!(!blocklist().contains(&address));
    }
}

/// Who is cut off loses its watch after 30 s. It comes back with what it had under way.
#[tokio::test]
async fn a_client_that_lost_its_watch_and_has_the_lock_is_shut_out() {
    let scene = Scene::new();
    let [controller, first, _] = cluster(&scene).await;
    let (here, address) =
        held(&scene, &controller, &first, Life::create(&scene, &controller, block()).await).await;
    here.write(b"takes the lock").expect("a pod writes");
    let frozen = Frozen::maps_of(&first);
    eventually("the watch ends", || scene.corner.watchers(&here.image).is_empty()).await;
    here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
    assert!(blocklist().contains(&address), "{address} would come back");
    controller.delete(&here.id).await.expect("DeleteVolume");
    drop(frozen);
    here.down(&first).await;
    eventually("an empty corner", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn of_several_writers_only_the_lost_one_is_shut_out() {
    let scene = Scene::new();
    let [controller, first, second] = cluster(&scene).await;
    let mut asked = request::create(&unique("pvc"), 64, block().with(Mode::MultiNodeMultiWriter));
    asked.parameters.extend(request::map(&[("mounter", "rbd-nbd")]));
    let life = Life::create_as(&scene, &controller, asked).await;
    let (here, lost) = held(&scene, &controller, &first, life).await;
    let there = here.on(&scene, &second);
    there.attach(&controller, "node-b").await.expect("ControllerPublishVolume on a second node");
    there.up(&second).await;
    let record = format!(".rbd.csi.ceph.com/clientaddress/{}/node-b", there.id);
    let recorded = scene.corner.meta(&there.image)[&record].clone();
    here.detach(&controller, "node-a").await.expect("ControllerUnpublishVolume");
    let alive = watcher(&scene, &there);
    assert_eq!(alive, recorded);
    let listed = blocklist();
    assert!(listed.contains(&lost) && !listed.contains(&alive), "{lost}, {alive}: {listed:?}");
    write_through(&here).expect_err("the lost node's write");
    there.write(b"goes on").expect("the other node writes");
    here.down(&first).await;
    there.down(&second).await;
}

#[tokio::test]
async fn whoever_is_not_recorded_is_never_shut_out() {
    let scene = Scene::new();
    let [controller, first, _] = cluster(&scene).await;
    let life = Life::create(&scene, &controller, block()).await;
    let (here, stranger) = held(&scene, &controller, &first, life).await;
    let key = format!(".rbd.csi.ceph.com/clientaddress/{}/node-a", here.id);
    scene.corner.remove_meta(&here.image, &key);
    check(here.detach(&controller, "node-a").await, Code::FailedPrecondition, &stranger);
    // An address of the same machine is not the client.
    scene.corner.set_meta(&here.image, &key, "127.0.0.1:0/0");
    here.detach(&controller, "node-a").await.expect("the client of its record is gone");
    assert!(!blocklist().contains(&stranger) && !blocklist().contains("127.0.0.1:0/0"));
    here.write(b"still there").expect("a pod writes");
    here.down(&first).await;
}

/// krbd's answer where its maps share a client that is on the blocklist (Linux 6.1).
fn shut_out(unless: &str) -> String {
    format!(
        "if [[ $1 == map && $* != *{unless}* ]]; then
             echo 'rbd: sysfs write failed' >&2
             echo 'rbd: map failed: (108) Cannot send after transport endpoint shutdown' >&2
             exit 108
         fi
         exec \"$RBD\" \"$@\""
    )
}

#[tokio::test]
async fn a_node_whose_client_was_shut_out_maps_with_a_new_one() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(&shut_out("noudev,noshare"));
    let driver = scene.start_with(&wrapper).await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    assert_eq!(wrapper.count("map"), 2);
    life.down(&driver).await;
}

#[tokio::test]
async fn a_node_whose_address_was_shut_out_is_told_so() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(&shut_out("never"))).await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "ceph osd blocklist ls");
    life.assert_gone_from(&driver);
}
