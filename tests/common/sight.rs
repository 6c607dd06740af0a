//! What this machine shows of a volume: mounts, devices, the stash.

use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

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
    let mounts = parse_mounts(&fs::read_to_string("/proc/mounts").expect("/proc/mounts"));
    mounts.into_iter().filter(|mount| mount.path.starts_with(folder)).collect()
}

/// What /proc/mounts says.
pub(crate) fn parse_mounts(text: &str) -> Vec<Mounted> {
    let mounts = text.lines().map(|line| {
        let fields: Vec<String> = line.split(' ').map(unescaped).collect();
        let options = fields[3].split(',').map(str::to_owned).collect();
        Mounted {
            source: fields[0].clone(),
            path: fields[1].clone().into(),
            kind: fields[2].clone(),
            options,
        }
    });
    mounts.collect()
}

/// What the kernel writes of a path: some characters as a backslash and three digits.
fn unescaped(field: &str) -> String {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.iter().fold(field.to_owned(), |text, (escaped, real)| text.replace(escaped, real))
}

pub(crate) fn mounts_at(path: &Path) -> Vec<Mounted> {
    mounts_below(path).into_iter().filter(|mount| mount.path == path).collect()
}

/// A loop device and the file behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
    pub(crate) file: PathBuf,
}

/// Loop devices on files below this folder, deleted ones included.
pub(crate) fn loops_below(folder: &Path) -> Vec<Loop> {
    let devices = fs::read_dir("/sys/block").expect("/sys/block").flatten();
    let loops = devices.filter_map(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let file = file.trim_end().trim_end_matches(" (deleted)").into();
        Some(Loop { device: Path::new("/dev").join(entry.file_name()), file })
    });
    loops.filter(|found| found.file.starts_with(folder)).collect()
}

pub(crate) fn stash(staging: &Path) -> Option<Value> {
    let text = fs::read_to_string(staging.join("image-meta.json")).ok()?;
    Some(
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the stash is not JSON: {error}: {text:?}")),
    )
}
