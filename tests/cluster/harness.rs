//! Starts the built driver for one test and takes away all that the test leaves behind, also when it fails.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::csi::controller_client::ControllerClient;
use crate::csi::identity_client::IdentityClient;
use crate::csi::node_client::NodeClient;
use crate::csi::{ProbeRequest, Volume};
use crate::lab::{Corner, lab, unique};
use crate::life::request;
use crate::sight::{PATIENCE, mapped, mounts_below};
use crate::wrap::{Wrapper, real};

pub(crate) const CLUSTER: &str = "lab";

pub(crate) type Answer<T = ()> = Result<T, Status>;

/// A call that has to fail with this code and with this in its message.
#[track_caller]
pub(crate) fn check<T>(answer: Answer<T>, code: Code, fragment: &str) {
    let Err(status) = answer else { panic!("it succeeded, where {code:?} with {fragment:?} was expected") };
    let message = status.message();
    assert_eq!(status.code(), code, "{message}");
    assert!(message.contains(fragment), "{message:?} does not say {fragment:?}");
}

/// What one test has for itself: a folder, a corner of the cluster, and the nodes that it starts.
pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) corner: Corner,
    /// Where the mappings of each node are kept.
    nodes: RefCell<Vec<PathBuf>>,
}

impl Scene {
    /// In a RADOS namespace of its own.
    pub(crate) fn new() -> Self {
        Self::at(Corner::of_its_own())
    }

    /// In the pool that tests share, for what is older than namespaces.
    pub(crate) fn shared() -> Self {
        Self::at(Corner::shared())
    }

    fn at(corner: Corner) -> Self {
        let folder = TempDir::with_prefix("cluster-test.").expect("a folder for the test");
        let scene = Self { folder, corner, nodes: RefCell::default() };
        scene.configure(&lab().monitors);
        scene
    }

    /// Writes config.json.
    pub(crate) fn configure(&self, monitors: &str) {
        let rbd = json!({ "radosNamespace": self.corner.namespace });
        let config = json!([{ "clusterID": CLUSTER, "monitors": [monitors], "rbd": rbd }]);
        fs::write(self.path("config.json"), config.to_string()).expect("config.json");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn wrapper(&self, script: &str) -> Wrapper {
        Wrapper::new(self.path("wrapper"), script)
    }

    /// A driver with both services, before it is started; `.flag("--type=node")` and the like make it another.
    pub(crate) fn driver(&self) -> Start {
        self.on_node("node-a")
    }

    /// The same on another node: with mappings and a socket of its own.
    pub(crate) fn on_node(&self, node: &str) -> Start {
        let maps = lab().dir.join(unique(&format!("maps-{node}")));
        self.nodes.borrow_mut().push(maps.clone());
        Start {
            node: node.to_owned(),
            maps,
            namespace: self.corner.namespace.clone(),
            config: self.path("config.json"),
            socket: self.path(&format!("{node}.sock")),
            log: self.path(&format!("{node}.log")),
            kind: "rbd".to_owned(),
            flags: Vec::new(),
            path: None,
        }
    }

    pub(crate) async fn start(&self) -> Driver {
        self.driver().start().await
    }

    pub(crate) async fn start_with(&self, wrapper: &Wrapper) -> Driver {
        self.driver().wrapped(wrapper).start().await
    }
}

impl Drop for Scene {
    /// Each step may find nothing to do, and none may keep the others from being tried.
    fn drop(&mut self) {
        for mount in mounts_below(self.folder.path()).iter().rev() {
            let _ = umount2(&mount.path, MntFlags::MNT_DETACH);
        }
        for maps in self.nodes.borrow().iter().filter(|maps| maps.exists()) {
            for (_, device) in mapped(maps, &self.corner.namespace) {
                let unmap = ["unmap", "--options", "force", &device];
                let _ = Command::new("rbd").args(unmap).env("RBD_STANDIN_DIR", maps).output();
            }
        }
    }
}

/// How to start a driver; the same again starts it anew on the same node.
#[derive(Clone)]
pub(crate) struct Start {
    node: String,
    pub(crate) maps: PathBuf,
    namespace: String,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    kind: String,
    flags: Vec<String>,
    path: Option<String>,
}

impl Start {
    pub(crate) fn kind(mut self, kind: &str) -> Self {
        kind.clone_into(&mut self.kind);
        self
    }

    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub(crate) fn wrapped(mut self, wrapper: &Wrapper) -> Self {
        self.path = Some(wrapper.path());
        self
    }

    pub(crate) async fn start(&self) -> Driver {
        let log = File::options().create(true).append(true).open(&self.log).expect("the driver's log");
        let errors = log.try_clone().expect("the log, twice");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"));
        command
            .arg(format!("--type={}", self.kind))
            .arg(format!("--nodeid={}", self.node))
            .arg(format!("--endpoint=unix://{}", self.socket.display()))
            .arg(format!("--config={}", self.config.display()))
            .args(&self.flags)
            .env("RBD_STANDIN_DIR", &self.maps)
            .env("RBD_STANDIN_REAL", real())
            .env_remove("CEPH_CONF")
            .stdout(log)
            .stderr(errors);
        command.envs(self.path.as_ref().map(|path| ("PATH", path)));
        let child = command.spawn().expect("the driver starts");
        let endpoint = Endpoint::try_from(format!("unix://{}", self.socket.display())).expect("an endpoint");
        let mut driver = Driver { start: self.clone(), child, channel: endpoint.connect_lazy() };
        driver.until_ready().await;
        driver
    }
}

/// A running driver. Killed when it goes out of sight.
pub(crate) struct Driver {
    pub(crate) start: Start,
    child: Child,
    channel: Channel,
}

impl Driver {
    async fn until_ready(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = IdentityClient::new(self.channel.clone()).probe(ProbeRequest {}).await;
            if answer.as_ref().is_ok_and(|answer| answer.get_ref().ready != Some(false)) {
                return;
            }
            let ended = self.child.try_wait().expect("the driver's state");
            assert!(
                ended.is_none() && Instant::now() < end,
                "no driver: {ended:?}, {answer:?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub(crate) async fn create(&self, request: crate::csi::CreateVolumeRequest) -> Answer<Volume> {
        let answer = self.controller().create_volume(request).await?;
        Ok(answer.into_inner().volume.expect("an answer without a volume"))
    }

    pub(crate) async fn delete(&self, id: &str) -> Answer {
        self.controller().delete_volume(request::delete(id)).await.map(drop)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.start.log).unwrap_or_default()
    }

    /// The images mapped on this driver's node.
    pub(crate) fn mapped(&self) -> Vec<String> {
        mapped(&self.start.maps, &self.start.namespace).into_iter().map(|(image, _)| image).collect()
    }

    pub(crate) fn maps(&self) -> &Path {
        &self.start.maps
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the driver runs");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the driver's state") {
                return status;
            }
            assert!(Instant::now() < end, "the driver does not end\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// SIGKILL, and a new one on the same socket.
    pub(crate) async fn killed_and_started(mut self) -> Self {
        self.end();
        let start = self.start.clone();
        drop(self);
        start.start().await
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Driver {
    #[expect(clippy::print_stderr, reason = "what the driver said explains why a test failed")]
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "the end of the log of {}:\n{}",
                self.start.node,
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}
