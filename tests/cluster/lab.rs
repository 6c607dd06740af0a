//! The throwaway cluster as its administrator sees it: what is in a pool, and what an image is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::sight::PATIENCE;
use crate::common::tools::{run, try_run, unique};

pub(crate) const POOL: &str = "rbd";
/// What the driver keeps in a pool for itself, empty when there is nothing left to do.
const INDEX: &str = "csi.rbd.index.default";

pub(crate) struct Lab {
    pub(crate) dir: PathBuf,
    pub(crate) monitors: String,
    /// Of the user `csi`, which has no more rights than the documented ones.
    pub(crate) key: String,
}

pub(crate) fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| {
        let Some(dir) = std::env::var_os("LAB_DIR").map(PathBuf::from) else {
            panic!("these tests need a cluster: run `make test`, or tests/lab/ceph with cargo test --test cluster");
        };
        let read = |name: &str| {
            let text = std::fs::read_to_string(dir.join(name)).unwrap_or_else(|error| panic!("the lab's {name}: {error}"));
            text.trim().to_owned()
        };
        until_listed();
        Lab { monitors: read("monitors"), key: read("csi.key"), dir }
    })
}

/// A pool is in the statistics, and so in the driver's list of pools, some seconds after it was made.
fn until_listed() {
    let end = Instant::now() + PATIENCE;
    while !run("rados", &["df"]).lines().any(|line| line.starts_with(&format!("{POOL} "))) {
        assert!(Instant::now() < end, "pool {POOL} is not in `rados df`");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A place in the cluster: the pool itself, or one namespace of it that a test has for itself.
#[derive(Clone)]
pub(crate) struct Corner {
    /// Empty: the pool itself.
    pub(crate) namespace: String,
}

impl Corner {
    pub(crate) fn of_its_own() -> Self {
        lab();
        let namespace = unique("ns");
        run("rbd", &["namespace", "create", &format!("{POOL}/{namespace}")]);
        Self { namespace }
    }

    pub(crate) fn shared() -> Self {
        lab();
        Self { namespace: String::new() }
    }

    pub(crate) fn place(&self) -> String {
        if self.namespace.is_empty() { POOL.to_owned() } else { format!("{POOL}/{}", self.namespace) }
    }

    pub(crate) fn spec(&self, image: &str) -> String {
        format!("{}/{image}", self.place())
    }

    /// `rbd ls`.
    pub(crate) fn images(&self) -> BTreeSet<String> {
        run("rbd", &["ls", &self.place()]).lines().map(str::to_owned).collect()
    }

    pub(crate) fn has(&self, image: &str) -> bool {
        self.images().contains(image)
    }

    /// `rbd trash ls --all`: the names of what is in it.
    pub(crate) fn trash(&self) -> Vec<String> {
        let entries = json("rbd", &["trash", "ls", &self.place(), "--all", "--format=json"]);
        entries.as_array().into_iter().flatten().map(|entry| text(&entry["name"])).collect()
    }

    /// None where it cannot be opened.
    pub(crate) fn info(&self, image: &str) -> Option<Value> {
        let info = try_run(Command::new("rbd").args(["info", &self.spec(image), "--format=json"])).ok()?;
        serde_json::from_str(&info).ok()
    }

    pub(crate) fn size(&self, image: &str) -> Option<u64> {
        self.info(image)?["size"].as_u64()
    }

    /// The addresses of the clients that hold the image open.
    pub(crate) fn watchers(&self, image: &str) -> Vec<String> {
        let status = json("rbd", &["status", &self.spec(image), "--format=json"]);
        status["watchers"].as_array().into_iter().flatten().map(|watcher| text(&watcher["address"])).collect()
    }

    pub(crate) fn meta(&self, image: &str) -> BTreeMap<String, String> {
        let meta = run("rbd", &["image-meta", "list", &self.spec(image), "--format=json"]);
        // Of an image that has none, rbd prints nothing.
        let meta = if meta.trim().is_empty() { "{}" } else { &meta };
        serde_json::from_str(meta).expect("metadata is a map of texts")
    }

    pub(crate) fn set_meta(&self, image: &str, key: &str, value: &str) {
        run("rbd", &["image-meta", "set", &self.spec(image), key, value]);
    }

    pub(crate) fn remove_meta(&self, image: &str, key: &str) {
        run("rbd", &["image-meta", "remove", &self.spec(image), key]);
    }

    /// Whether nothing was ever written to the image.
    pub(crate) fn is_empty(&self, image: &str) -> bool {
        run("rbd", &["diff", "--whole-object", "--format=json", &self.spec(image)]).trim() == "[]"
    }

    /// A digest of all that the image holds.
    pub(crate) fn content(&self, image: &str) -> String {
        run("sh", &["-c", "rbd export --no-progress \"$0\" - | sha256sum", &self.spec(image)])
    }

    /// What is left of images and volumes where there should be none: objects, trash and intents.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let args = ["--pool", POOL, "--namespace", &self.namespace];
        let listed =
            try_run(Command::new("rados").args(args).args(["listomapkeys", INDEX])).unwrap_or_default();
        let intents = listed.lines().map(|key| format!("{INDEX}: {key}"));
        let objects = run("rados", &[&args[..], &["ls"]].concat());
        let lasting = ["rbd_directory", "rbd_info", "rbd_trash", "rbd_children", "rbd_task", INDEX];
        let objects = objects.lines().filter(|object| !lasting.contains(object)).map(str::to_owned);
        objects.chain(intents).chain(self.trash()).chain(self.images()).collect()
    }

    /// The driver's journal entry of a volume, which only volumes with a name of their own have.
    pub(crate) fn has_journal(&self, uuid: &str) -> bool {
        self.has_object(&format!("csi.volume.{uuid}"))
    }

    /// The first object of an image to come into being, listed or not.
    pub(crate) fn has_id(&self, image: &str) -> bool {
        self.has_object(&format!("rbd_id.{image}"))
    }

    fn has_object(&self, object: &str) -> bool {
        let args = ["--pool", POOL, "--namespace", &self.namespace, "stat", object];
        try_run(Command::new("rados").args(args)).is_ok()
    }
}

/// The images mapped on a node, with their devices, by krbd and by rbd-nbd, as `rbd device list` tells them.
pub(crate) fn mapped(maps: &Path, namespace: &str) -> Vec<(String, String)> {
    let all = ["krbd", "nbd"].iter().flat_map(|client| mapped_by(client, maps, namespace));
    all.collect()
}

pub(crate) fn mapped_by(client: &str, maps: &Path, namespace: &str) -> Vec<(String, String)> {
    let mut command = Command::new("rbd");
    command.args(["device", "list", "--format=json", "--device-type", client]).env("RBD_STANDIN_DIR", maps);
    let listed = try_run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    let listed: Vec<Value> = serde_json::from_str(&listed).expect("a list of devices");
    let ours = listed.iter().filter(|device| text(&device["namespace"]) == namespace);
    let name = |device: &Value| text(device.get("name").unwrap_or(&device["image"]));
    ours.map(|device| (name(device), text(&device["device"]))).collect()
}

/// `ceph osd blocklist ls`, which other tests add to.
pub(crate) fn blocklist() -> BTreeSet<String> {
    let printed = run("ceph", &["osd", "blocklist", "ls", "--format=json"]);
    let listed = serde_json::Deserializer::from_str(&printed).into_iter::<Value>().next();
    let listed = listed.expect("a list").unwrap_or_else(|error| panic!("{error}: {printed:?}"));
    listed.as_array().into_iter().flatten().map(|entry| text(&entry["addr"])).collect()
}

fn json(program: &str, args: &[&str]) -> Value {
    let printed = run(program, args);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{program} {args:?}: {error}: {printed}"))
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
