//! The node service inside the virtual machine, and what its kernel shows of a volume.

use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::client::Client;
use crate::common::csi::{ProbeRequest, VolumeCapability};
use crate::common::life::Life;
use crate::common::sight::{Mounted, parse_mounts};
use crate::common::tools::unique;
use crate::harness::{Driver, Scene};

use super::machine::{Machine, machine};

/// Its `--nodeid`.
pub(super) const GUEST: &str = "guest";
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 9000;
/// An emulated `rbd` beside others takes minutes where a real one takes a moment.
const COMMAND_TIMEOUT: &str = "5m";

/// A controller outside, and a node in the guest.
pub(super) async fn start_both() -> (Scene, Driver, Node) {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let node = Node::start(&scene).await;
    (scene, controller, node)
}

/// A volume that the guest was given.
pub(super) async fn given(scene: &Scene, controller: &Driver, capability: VolumeCapability) -> Life {
    let life = Life::create(scene, controller, capability).await;
    life.attach(controller, GUEST).await.expect("ControllerPublishVolume");
    life
}

/// A driver in the guest. Killed when it goes out of sight, and what is left of the scene is taken down.
pub(super) struct Node {
    folder: String,
    log: String,
    /// Its command line, with what is set before it.
    command: String,
    client: Client,
    machine: &'static Machine,
}

impl Node {
    pub(super) async fn start(scene: &Scene) -> Self {
        Self::start_with(scene, "", "").await
    }

    /// `before`: what stands before the program on its command line, as variables do; `flags` behind.
    pub(super) async fn start_with(scene: &Scene, before: &str, flags: &str) -> Self {
        let log = format!("/tmp/{}.log", unique("node"));
        let folder = scene.path("").display().to_string();
        let command = format!(
            "{before} {} --type=node --nodeid={GUEST} --endpoint=tcp://{}:{PORT} --config={}/config.json \
             --command-timeout={COMMAND_TIMEOUT} {flags}",
            env!("CARGO_BIN_EXE_ceph-rbd-csi"),
            machine().address,
            folder.trim_end_matches('/'),
        );
        let client = Client::of(&format!("http://{}:{PORT}", machine().address));
        let node = Self { folder, log, command, client, machine: machine() };
        node.launch().await;
        node
    }

    /// Starts it (anew) and waits until it answers.
    pub(super) async fn launch(&self) {
        self.run(&format!("env {} >>{} 2>&1 </dev/null & echo $! >/run/driver.pid", self.command, self.log));
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.client.identity().probe(ProbeRequest {}).await;
            if answer.as_ref().is_ok_and(|answer| answer.get_ref().ready != Some(false)) {
                return;
            }
            assert!(Instant::now() < end, "no driver in the guest: {answer:?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// SIGKILL, with all that it runs.
    pub(super) fn kill(&self) {
        self.run("kill -9 $(cat /run/driver.pid); while kill -0 $(cat /run/driver.pid); do sleep 0.05; done 2>&-; true");
    }

    pub(super) fn log(&self) -> String {
        self.run(&format!("tail -n 60 {}", self.log))
    }

    #[track_caller]
    pub(super) fn run(&self, script: &str) -> String {
        self.machine.run(script)
    }

    pub(super) fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// Images that krbd has mapped, as `pool/namespace/image`, of the kernel's own word.
    pub(super) fn krbd(&self) -> Vec<String> {
        let script = "for d in /sys/bus/rbd/devices/*; do [ -e $d/name ] || continue; \
             echo $(<$d/pool)/$(<$d/pool_ns)/$(<$d/name); done";
        self.lines(script)
    }

    /// nbd devices that somebody serves.
    pub(super) fn nbd(&self) -> Vec<String> {
        self.lines("for d in /sys/block/nbd*/pid; do [ -e $d ] && echo ${d%/pid}; done; true")
    }

    /// Names of device mapper.
    pub(super) fn mappers(&self) -> Vec<String> {
        self.lines("cat /sys/block/dm-*/dm/name 2>&-; true")
    }

    /// The krbd device of an image, as `/dev/rbd0`.
    #[track_caller]
    pub(super) fn device(&self, life: &Life) -> String {
        let script = format!("cd /sys/bus/rbd/devices && grep -lx {} */name", life.image);
        format!("/dev/rbd{}", self.run(&script).trim().trim_end_matches("/name"))
    }

    /// Starts what runs until it is ended, answers its pid.
    #[track_caller]
    pub(super) fn spawn(&self, command: &str) -> String {
        self.run(&format!("{command} </dev/null >/dev/null 2>&1 & echo $!")).trim().to_owned()
    }

    /// Ends it, and waits until it is gone.
    #[track_caller]
    pub(super) fn end(&self, pid: &str) {
        self.run(&format!("kill -9 {pid}; while kill -0 {pid}; do sleep 0.1; done 2>&-; true"));
    }

    fn lines(&self, script: &str) -> Vec<String> {
        self.run(script).lines().map(str::to_owned).collect()
    }

    pub(super) fn mounts_at(&self, path: &Path) -> Vec<Mounted> {
        let mounts = parse_mounts(&self.run("cat /proc/mounts"));
        mounts.into_iter().filter(|mount| mount.path == path).collect()
    }

    /// Writes so many MiB of chance to where a pod does; answers their digest.
    pub(super) fn write(&self, life: &Life, mib: u64) -> String {
        let place = life.place().display().to_string();
        self.run(&format!(
            "head -c {mib}M /dev/urandom >/tmp/chance && sha256sum </tmp/chance && \
             dd if=/tmp/chance of={place} bs=1M conv=fsync,notrunc status=none"
        ))
    }

    /// The digest of the first so many MiB, from the device and not from memory. (Dropping all
    /// that is in memory would have every program read anew from the machine outside: a minute for `rbd`.)
    pub(super) fn read(&self, life: &Life, mib: u64) -> String {
        let place = life.place().display().to_string();
        self.run(&format!("dd if={place} bs=1M count={mib} iflag=direct status=none | sha256sum"))
    }

    /// What the kernel still has of maps, mappers and mounts, and the driver of stashes.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let mut left = self.krbd();
        left.extend(self.nbd());
        left.extend(self.mappers());
        left.extend(
            self.lines(&format!(
                "grep -F {} /proc/mounts; find {0} -name image-meta.json*; true",
                self.folder
            )),
        );
        left
    }

    #[track_caller]
    pub(super) fn assert_clean(&self) {
        assert_eq!(self.leftovers(), Vec::<String>::new());
    }
}

impl Deref for Node {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Node {
    /// Each step may find nothing to do.
    #[expect(clippy::print_stderr, reason = "what the driver said explains why a test failed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.machine.try_run(&format!("tail -n 60 {}", self.log)).unwrap_or_else(|why| why);
            eprintln!("the end of the log of the guest's node:\n{log}");
        }
        let _ = self.machine.try_run(&format!(
            "kill -9 $(cat /run/driver.pid)
             for m in $(grep -F {} /proc/mounts | cut -d' ' -f2 | tac); do umount -l $m; done
             for d in /dev/mapper/luks-*; do [ -e $d ] && cryptsetup close $d; done
             for d in /sys/bus/rbd/devices/*; do [ -e $d ] && rbd unmap -o noudev,force /dev/rbd${{d##*/}}; done
             for d in /sys/block/nbd*/pid; do [ -e $d ] && d=${{d%/pid}} && rbd-nbd unmap /dev/${{d##*/}}; done
             true",
            self.folder
        ));
    }
}
