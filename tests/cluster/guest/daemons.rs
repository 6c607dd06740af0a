//! The daemons of rbd-nbd when the plugin is killed with its whole control group, as a container is, while a pod writes.

use std::time::Duration;

use tonic::Code;

use crate::common::csi::NodeGetVolumeHealthRequest;
use crate::common::life::{block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{Answer, check, run};
use crate::harness::Scene;
use crate::lab::{POOL, lab};

use super::machine::machine;
use super::nbd::Stand;
use super::node::{GUEST, Node};

/// The plugin's own group; beside it daemons may get one of theirs.
const PLUGIN: &str = "/sys/fs/cgroup/plugin";
const DAEMONS: &str = "/sys/fs/cgroup/ceph-rbd-csi";
/// No process comes into a group that gives controllers to others: the daemons have to stay with the plugin.
const NO_WAY_OUT: &str = "echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir -p /sys/fs/cgroup/ceph-rbd-csi/x; \
    echo +memory >/sys/fs/cgroup/ceph-rbd-csi/cgroup.subtree_control";

/// The control groups of the guest, as long as this lives.
struct Groups;

impl Groups {
    fn new() -> Self {
        machine().run(&format!("mount -t cgroup2 none /sys/fs/cgroup && mkdir {PLUGIN}"));
        Self
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = machine().try_run(&format!(
            "cd /sys/fs/cgroup; for g in {PLUGIN} {DAEMONS}; do [ ! -e $g ] || echo 1 >$g/cgroup.kill; done
             rmdir {DAEMONS}/x; echo -memory >{DAEMONS}/cgroup.subtree_control
             echo -memory >cgroup.subtree_control
             for g in {PLUGIN} {DAEMONS}; do until [ ! -e $g ] || rmdir $g; do sleep 0.1; done; done
             cd /; umount /sys/fs/cgroup"
        ));
    }
}

/// A node whose plugin is in a group of its own, as a container's is.
async fn contained(scene: &Scene) -> Node {
    let enter = format!("sh -c 'echo $$ >{PLUGIN}/cgroup.procs; exec \"$@\"' sh");
    Node::start_with(scene, &enter, "").await
}

/// With a credential of the cluster's configuration, or without.
fn scene(with_credential: bool) -> Scene {
    if with_credential { Scene::new().listing(&[POOL]) } else { Scene::new() }
}

impl Stand {
    /// Its daemon, which has to be one.
    #[track_caller]
    fn daemon(&self) -> String {
        let daemons = self.node.run("pgrep -x rbd-nbd; true");
        assert_eq!(daemons.lines().count(), 1, "{daemons:?}");
        daemons.trim().to_owned()
    }

    /// All processes of the plugin's group, at once.
    fn kill_plugin(&self) {
        let done = format!("until [ -z \"$(cat {PLUGIN}/cgroup.procs)\" ]; do sleep 0.1; done");
        self.node.run(&format!("echo 1 >{PLUGIN}/cgroup.kill; {done}"));
    }

    /// A pod that writes, and waits for the disk, again and again.
    fn pod_writes(&self) {
        let place = self.life.place().display().to_string();
        self.node.run(&format!(
            "rm -f /run/pod.*; head -c 64k /dev/urandom >/run/pod.data; echo 0 >/run/pod.count
             (while [ ! -e /run/pod.stop ]; do
                  dd if=/run/pod.data of={place} bs=64k conv=fsync,notrunc status=none 2>>/run/pod.errors
                  echo $(($(cat /run/pod.count) + 1)) >/run/pod.new; mv /run/pod.new /run/pod.count
                  sleep 0.1
              done; touch /run/pod.done) >/dev/null 2>&1 </dev/null &"
        ));
        self.pod_goes_on();
    }

    /// It comes to its end with what it writes, and writes more.
    fn pod_goes_on(&self) {
        self.node.run("n=$(cat /run/pod.count); until (($(cat /run/pod.count) > n + 2)); do sleep 0.1; done");
    }

    /// No write of it has failed.
    #[track_caller]
    fn pod_ends(&self) {
        self.node.run("touch /run/pod.stop; until [ -e /run/pod.done ]; do sleep 0.1; done");
        assert_eq!(self.node.run("cat /run/pod.errors"), "", "the pod met errors");
        let place = self.life.place().display().to_string();
        self.node.run(&format!("echo 3 >/proc/sys/vm/drop_caches; cmp -n 65536 /run/pod.data {place}"));
    }

    async fn ailments(&self) -> Vec<String> {
        let request = NodeGetVolumeHealthRequest { volume_id: self.life.id.clone(), ..Default::default() };
        let told = self.node.node().node_get_volume_health(request).await.expect("NodeGetVolumeHealth");
        let told = told.into_inner().volume_health.expect("its health").health_statuses;
        told.into_iter().map(|ailment| ailment.reason).collect()
    }

    /// The one client that watches the image is the one that the driver has recorded, or is about to.
    async fn recorded(&self) {
        let key = format!(".rbd.csi.ceph.com/clientaddress/{}/{GUEST}", self.life.id);
        let corner = &self.scene.corner;
        eventually("the client of the daemon is recorded", || {
            let watchers = corner.watchers(&self.life.image);
            watchers.len() == 1 && corner.meta(&self.life.image).get(&key) == watchers.first()
        })
        .await;
    }
}

/// The plugin is killed and started anew: the daemon does not even notice.
async fn outlives(stand: Stand) {
    stand.life.up(&stand.node).await;
    let daemon = stand.daemon();
    assert_eq!(stand.node.run(&format!("cat {DAEMONS}/cgroup.procs")).trim(), daemon);
    stand.pod_writes();
    stand.kill_plugin();
    stand.pod_goes_on();
    stand.node.launch().await;
    assert_eq!((stand.daemon(), stand.ailments().await), (daemon, vec![]));
    stand.life.stage(&stand.node).await.expect("NodeStageVolume again");
    stand.pod_ends();
    stand.recorded().await;
    stand.ends().await;
}

#[tokio::test]
async fn a_daemon_outlives_the_whole_container_of_the_plugin() {
    let _groups = Groups::new();
    let scene = scene(false);
    let node = contained(&scene).await;
    outlives(Stand::on(scene, node, mount("ext4")).await).await;
}

/// A plugin whose daemons have to stay in its group, and a pod that writes.
async fn inside(with_credential: bool) -> Stand {
    let scene = scene(with_credential);
    let node = contained(&scene).await;
    node.run(NO_WAY_OUT);
    let stand = Stand::on(scene, node, block()).await;
    stand.life.up(&stand.node).await;
    assert!(stand.node.log().contains("OnDelete"), "{}", stand.node.log());
    stand.pod_writes();
    stand.kill_plugin();
    assert_eq!(stand.node.run("pgrep -x rbd-nbd; true"), "", "it is killed with the plugin");
    stand.node.launch().await;
    stand
}

#[tokio::test]
async fn a_daemon_that_ended_with_the_plugin_is_begun_anew_by_the_configuration() {
    let _groups = Groups::new();
    let stand = inside(true).await;
    stand.pod_goes_on();
    stand.daemon();
    assert_eq!(stand.ailments().await, [""; 0]);
    stand.pod_ends();
    stand.recorded().await;
    stand.ends().await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_daemon_that_ended_with_the_plugin_is_begun_anew_by_the_next_call_with_secrets() {
    let _groups = Groups::new();
    let stand = inside(false).await;
    assert_eq!(stand.ailments().await, ["DeviceWithoutDaemon"]);
    let other = stand.life.target.with_file_name("other");
    let answer = stand.life.publish_at(&stand.node, &other, false).await;
    check(answer, Code::FailedPrecondition, "rbd.credential");
    stand.life.stage(&stand.node).await.expect("NodeStageVolume again");
    stand.pod_goes_on();
    stand.pod_ends();
    stand.recorded().await;
    stand.ends().await;
}

/// As where the volume was given to another node meanwhile.
#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn no_daemon_is_begun_where_another_client_holds_the_image() {
    let stand = Stand::new(block()).await;
    stand.life.up(&stand.node).await;
    stand.node.run("kill -9 $(pgrep -x rbd-nbd); while pgrep -x rbd-nbd; do sleep 0.1; done");
    let spec = stand.scene.corner.spec(&stand.life.image);
    let other = run("rbd", &["map", &spec]);
    check(stand.life.stage(&stand.node).await, Code::FailedPrecondition, &lab_address());
    assert_eq!(stand.node.run("pgrep -x rbd-nbd; true"), "");
    run("rbd", &["unmap", other.trim()]);
    stand.life.stage(&stand.node).await.expect("NodeStageVolume again");
    stand.recorded().await;
    stand.ends().await;
}

/// Of the clients of this machine.
fn lab_address() -> String {
    lab().monitors.split(':').next().unwrap_or_default().to_owned()
}

/// The device would stay for ever: no list has it.
#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_device_whose_daemon_died_is_taken_away_with_its_volume() {
    let stand = Stand::new(block()).await;
    stand.life.stage(&stand.node).await.expect("NodeStageVolume");
    stand.node.run("kill -9 $(pgrep -x rbd-nbd); while pgrep -x rbd-nbd; do sleep 0.1; done");
    stand.life.unstage(&stand.node).await.expect("NodeUnstageVolume");
    stand.node.assert_clean();
    // A dead client's watch ends by itself after 30 s.
    eventually("no watcher", || stand.scene.corner.watchers(&stand.life.image).is_empty()).await;
    stand.gone().await;
}

/// What a pod wrote and did not sync is in the kernel's memory: at the unmount it has to come to the image.
#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn what_was_written_before_a_daemon_died_is_there_when_its_volume_is_staged_anew() {
    let scene = scene(true);
    let node = Node::start(&scene).await;
    let stand = Stand::on(scene, node, mount("ext4")).await;
    stand.life.up(&stand.node).await;
    let place = stand.life.place().display().to_string();
    let digest = stand
        .node
        .run(&format!("kill -9 $(pgrep -x rbd-nbd); head -c 1M /dev/urandom >{place}; sha256sum <{place}"));
    // As a CO does: the driver may be at the new daemon by itself.
    until_done(async || stand.life.unpublish(&stand.node).await).await;
    until_done(async || stand.life.unstage(&stand.node).await).await;
    stand.node.assert_clean();
    stand.life.up(&stand.node).await;
    assert_eq!(stand.node.read(&stand.life, 1), digest);
    stand.ends().await;
}

/// Asks again while something else is at the volume.
async fn until_done(ask: impl AsyncFn() -> Answer) {
    while let Err(status) = ask().await {
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
