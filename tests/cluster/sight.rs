//! What this machine shows of a volume: mounts, devices, the stash.

use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{run, try_run};

/// A generous end for what takes moments: only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until it is true.
#[track_caller]
pub(crate) fn eventually(what: &str, so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    within(PATIENCE, what, so)
}

/// Waits so long at most until it is true.
#[track_caller]
pub(crate) fn within(limit: Duration, what: &str, mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let (what, caller) = (what.to_owned(), Location::caller());
    async move {
        let end = Instant::now() + limit;
        while !so() {
            assert!(Instant::now() < end, "{caller}: not within {limit:?}: {what}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// A mount, as /proc/mounts has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) source: String,
    pub(crate) path: PathBuf,
    pub(crate) kind: String,
    pub(crate) options: Vec<String>,
}

impl Mounted {
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }
}

/// All mounts in this folder and below, in the order in which they were made.
pub(crate) fn mounts_below(folder: &Path) -> Vec<Mounted> {
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc/mounts");
    let mounts = mounts.lines().map(|line| {
        let fields: Vec<String> = line.split(' ').map(|field| field.replace("\\040", " ")).collect();
        let options = fields[3].split(',').map(str::to_owned).collect();
        Mounted {
            source: fields[0].clone(),
            path: fields[1].clone().into(),
            kind: fields[2].clone(),
            options,
        }
    });
    mounts.filter(|mount| mount.path.starts_with(folder)).collect()
}

pub(crate) fn mounts_at(path: &Path) -> Vec<Mounted> {
    mounts_below(path).into_iter().filter(|mount| mount.path == path).collect()
}

/// The images mapped on a node, with their devices, as `rbd device list` tells them.
pub(crate) fn mapped(maps: &Path, namespace: &str) -> Vec<(String, String)> {
    let mut command = Command::new("rbd");
    command.args(["device", "list", "--format=json"]).env("RBD_STANDIN_DIR", maps);
    let listed = try_run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    let listed: Vec<Value> = serde_json::from_str(&listed).expect("a list of devices");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ours = listed.iter().filter(|device| text(&device["namespace"]) == namespace);
    ours.map(|device| (text(&device["name"]), text(&device["device"]))).collect()
}

/// Loop devices on files below this folder (`losetup` tells the same).
pub(crate) fn loops_below(folder: &Path) -> Vec<String> {
    let listed = run("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    let folder = folder.to_string_lossy();
    listed.lines().filter(|line| line.contains(&format!(" {folder}/"))).map(str::to_owned).collect()
}

pub(crate) fn stash(staging: &Path) -> Option<Value> {
    let text = fs::read_to_string(staging.join("image-meta.json")).ok()?;
    Some(
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the stash is not JSON: {error}: {text:?}")),
    )
}
