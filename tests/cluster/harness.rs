//! Starts the built driver for one test and takes away all that the test leaves behind, also when it fails.

use std::cell::RefCell;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::driver;
use crate::common::sight::mounts_below;
use crate::common::tools::{Answer, unique};
use crate::common::wrap::Wrapper;
use crate::lab::{Corner, lab, mapped};
use crate::life::request;
use crate::wrap::real;

pub(crate) const CLUSTER: &str = "lab";

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
        self.configure_with(monitors, json!({}), json!({}));
    }

    /// With a credential for the calls that carry no secrets, and the pools that are listed.
    pub(crate) fn listing(self, pools: &[&str]) -> Self {
        let credential = json!({ "userID": "csi", "keyFile": lab().dir.join("csi.key"), "pools": pools });
        self.configure_with(&lab().monitors, json!({}), json!({ "credential": credential }));
        self
    }

    /// With more in the cluster's entry, and in its `rbd`.
    pub(crate) fn configure_with(&self, monitors: &str, entry: Value, rbd: Value) {
        let merged = |mut known: Value, more: Value| {
            let map = known.as_object_mut().expect("an object");
            map.extend(more.as_object().expect("an object").clone());
            known
        };
        let rbd = merged(json!({ "radosNamespace": self.corner.namespace }), rbd);
        let entry = merged(json!({ "clusterID": CLUSTER, "monitors": [monitors], "rbd": rbd }), entry);
        let config = json!([entry]);
        fs::write(self.path("config.json"), config.to_string()).expect("config.json");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn wrapper(&self, script: &str) -> Wrapper {
        Wrapper::of_rbd(self.path("wrapper"), script)
    }

    /// A driver with both services, before it is started.
    pub(crate) fn driver(&self) -> Start {
        self.on_node("node-a", "rbd")
    }

    /// Of this `--type` on another node: with mappings and a socket of its own.
    pub(crate) fn on_node(&self, node: &str, kind: &str) -> Start {
        let maps = lab().dir.join(unique(&format!("maps-{node}")));
        self.nodes.borrow_mut().push(maps.clone());
        let process = driver::Start::new(self.folder.path(), node, kind)
            .flag(&format!("--config={}", self.path("config.json").display()))
            .variable("RBD_STANDIN_DIR", &maps)
            .variable("RBD_STANDIN_REAL", real());
        Start { maps, namespace: self.corner.namespace.clone(), process }
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
                for how in [["--options", "force"], ["--device-type", "nbd"]] {
                    let mut unmap = Command::new("rbd");
                    let _ = unmap.arg("unmap").args(how).arg(&device).env("RBD_STANDIN_DIR", maps).output();
                }
            }
        }
    }
}

/// How to start a driver on a node of the cluster.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) maps: PathBuf,
    namespace: String,
    process: driver::Start,
}

impl Start {
    pub(crate) fn flag(self, flag: &str) -> Self {
        Self { process: self.process.flag(flag), ..self }
    }

    pub(crate) fn variable(self, name: &'static str, value: &str) -> Self {
        Self { process: self.process.variable(name, value), ..self }
    }

    /// Behind a program and its arguments that becomes the driver in the end.
    pub(crate) fn within(mut self, words: &[&str]) -> Self {
        self.process.within = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    pub(crate) fn wrapped(self, wrapper: &Wrapper) -> Self {
        Self { process: self.process.wrapped(wrapper), ..self }
    }

    /// Started, and nothing more.
    pub(crate) fn launch(&self) -> Driver {
        Driver { start: self.clone(), process: self.process.launch() }
    }

    pub(crate) async fn start(&self) -> Driver {
        Driver { start: self.clone(), process: self.process.start().await }
    }
}

/// A running driver and the mappings of its node.
pub(crate) struct Driver {
    start: Start,
    process: driver::Driver,
}

impl Driver {
    pub(crate) async fn delete(&self, id: &str) -> Answer {
        self.controller().delete_volume(request::delete(id)).await.map(drop)
    }

    /// The images mapped on this driver's node.
    pub(crate) fn mapped(&self) -> Vec<String> {
        mapped(&self.start.maps, &self.start.namespace).into_iter().map(|(image, _)| image).collect()
    }

    pub(crate) fn maps(&self) -> &Path {
        &self.start.maps
    }

    /// SIGKILL, and a new one on the same socket.
    pub(crate) async fn killed_and_started(self) -> Self {
        Self { process: self.process.killed_and_started().await, ..self }
    }
}

impl Deref for Driver {
    type Target = driver::Driver;

    fn deref(&self) -> &driver::Driver {
        &self.process
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut driver::Driver {
        &mut self.process
    }
}
