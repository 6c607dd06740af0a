//! Who serves a block device, and who keeps it busy, asked of the kernel: mounts in any mount namespace (of a filesystem on it, or of the
//! device node itself), device mappers, loop devices, open files.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::device_number;
use super::mountinfo::{self, Mount};

/// The daemons that serve the device: rbd-nbd. The kernel's own word, /sys/block/nbd0/pid, stays what it was at the map
/// when the daemon dies and when another one takes its place (seen, Linux 6.1).
pub(crate) fn serving(device: &Path) -> Vec<u32> {
    let processes = entries("/proc").into_iter().filter(|path| is_pid(path) && is_daemon(path));
    let serving = processes.filter(|process| has_open(process, device));
    serving.filter_map(|process| process.file_name()?.to_str()?.parse().ok()).collect()
}

/// The holders in words; None where /proc and /sys show none. Reads them on a thread of its own.
pub(crate) async fn of(device: &Path) -> Option<String> {
    let device = device.to_owned();
    let found = tokio::task::spawn_blocking(move || find(&device)).await.unwrap_or_default();
    (!found.is_empty()).then(|| found.into_iter().collect::<Vec<_>>().join(", "))
}

fn find(device: &Path) -> BTreeSet<String> {
    let Ok(number) = fs::metadata(device).map(|meta| meta.rdev()) else { return BTreeSet::new() };
    let number = device_number(number);
    let mut found = stacked(&number);
    found.extend(loops(device));
    let mut namespaces = BTreeSet::new();
    // One process speaks for all that share its mounts; of ours, this one.
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    for process in [own].into_iter().chain(entries("/proc").into_iter().filter(|path| is_pid(path))) {
        if fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| namespaces.insert(namespace)) {
            found.extend(mounted(&process, &number, device));
        }
        found.extend(opened(&process, device));
    }
    found
}

fn stacked(number: &str) -> BTreeSet<String> {
    let name = |holder: &PathBuf| {
        let kernel = holder.file_name()?.to_string_lossy().into_owned();
        let mapper = fs::read_to_string(holder.join("dm/name"));
        Some(mapper.map_or(kernel.clone(), |name| format!("{kernel} ({})", name.trim())))
    };
    let holders = entries(format!("/sys/dev/block/{number}/holders"));
    holders.iter().filter_map(name).map(|name| format!("device {name}")).collect()
}

/// kubelet holds a block volume by a loop device of its own.
fn loops(device: &Path) -> Vec<String> {
    let backs = |path: &PathBuf| {
        fs::read_to_string(path.join("loop/backing_file")).is_ok_and(|file| Path::new(file.trim()) == device)
    };
    let loops = entries("/sys/block").into_iter().filter(backs);
    loops.map(|path| format!("loop device {}", path.display())).collect()
}

fn mounted(process: &Path, number: &str, device: &Path) -> Option<String> {
    let text = fs::read(process.join("mountinfo")).ok()?;
    // A block volume is the device node, bound from devtmpfs (or from the tmpfs that a container has at /dev).
    let is_node = |mount: &Mount| {
        mount.fs_type.ends_with("tmpfs")
            && mount.root.file_name() == device.file_name()
            && !mount.target.is_dir()
    };
    let mut mounts = mountinfo::parse(&text).into_iter();
    let mount = mounts.find(|mount| mount.device == number || is_node(mount))?;
    Some(format!("a mount at {} in the mount namespace of {}", mount.target.display(), named(process)))
}

fn opened(process: &Path, device: &Path) -> Option<String> {
    // Its own daemon keeps it open, to serve it.
    let open = !is_daemon(process) && has_open(process, device);
    open.then(|| format!("an open file of {}", named(process)))
}

fn is_daemon(process: &Path) -> bool {
    fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "rbd-nbd")
}

fn has_open(process: &Path, device: &Path) -> bool {
    let mut files = entries(process.join("fd")).into_iter();
    files.any(|fd| fs::read_link(fd).is_ok_and(|target| target == device))
}

/// `process 1234 (name)`
fn named(process: &Path) -> String {
    let pid = process.file_name().unwrap_or_default().to_string_lossy();
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}

fn is_pid(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
}

fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
