//! A test's own folder with the driver's root in it, and the end of all that the test leaves there, also when it fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::common::driver::{Driver, Start};
use crate::common::sight::{loops_below, mounts_below};
use crate::common::tools::{run, try_run};
use crate::common::wrap::Wrapper;

pub(crate) const NODE: &str = "node-a";
pub(crate) const DRIVER: &str = "local.example.com";
/// The key of the one topology segment.
pub(crate) const SEGMENT: &str = "topology.local.example.com/node";
/// The parts of a root.
const PARTS: [&str; 4] = ["volumes", "snapshots", "making", "trash"];

/// What one test has for itself: a folder, and a root in it.
pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) root: PathBuf,
}

impl Scene {
    /// The root is a plain folder of the machine's own filesystem.
    pub(crate) fn new() -> Self {
        let scene = Self::rootless();
        fs::create_dir(&scene.root).expect("a root");
        scene
    }

    /// There is no root yet.
    pub(crate) fn rootless() -> Self {
        let folder = TempDir::with_prefix("local-test.").expect("a folder for the test");
        // Loop devices and mounts tell paths without symlinks.
        let root = folder.path().canonicalize().expect("the folder").join("root");
        Self { folder, root }
    }

    /// The root is a filesystem of its own in a file of this size: xfs can share blocks between files, ext4 cannot.
    pub(crate) fn on(fs_type: &str, mib: u64) -> Self {
        let scene = Self::new();
        let disk = scene.path("disk");
        fs::File::create(&disk).and_then(|file| file.set_len(mib << 20)).expect("a file for the disk");
        let disk = disk.to_string_lossy();
        let force = if fs_type == "xfs" { "-f" } else { "-F" };
        run(&format!("mkfs.{fs_type}"), &["-q", force, &disk]);
        run("mount", &["-o", "loop", &disk, &scene.root.to_string_lossy()]);
        // Only a filesystem knows it.
        let _ = fs::remove_dir(scene.root.join("lost+found"));
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.parent().expect("the test's folder").join(name)
    }

    /// Whether files of the root can share blocks.
    pub(crate) fn reflinks(&self) -> bool {
        let [one, two] = ["one", "two"].map(|name| self.root.parent().expect("a folder").join(name));
        let place = if mounts_below(&self.root).is_empty() { one.clone() } else { self.root.join("one") };
        let copy = place.with_file_name(two.file_name().expect("a name"));
        fs::write(&place, [1; 4096]).expect("a file");
        let mut command = Command::new("cp");
        let shared = try_run(command.arg("--reflink=always").args([&place, &copy])).is_ok();
        for file in [place, copy] {
            let _ = fs::remove_file(file);
        }
        shared
    }

    pub(crate) fn driver(&self) -> Start {
        self.named(NODE)
    }

    /// A driver on the same root with another node id, socket and log.
    pub(crate) fn named(&self, node: &str) -> Start {
        let folder = self.root.parent().expect("the test's folder");
        Start::new(folder, node, "local")
            .flag(&format!("--local-root={}", self.root.display()))
            .flag(&format!("--drivername={DRIVER}"))
    }

    pub(crate) async fn start(&self) -> Driver {
        self.driver().start().await
    }

    pub(crate) fn wrapper(&self, programs: &[&str], script: &str) -> Wrapper {
        Wrapper::new(self.path("wrapper"), programs, script)
    }

    /// The folder of a volume.
    pub(crate) fn volume(&self, uuid: &str) -> PathBuf {
        self.root.join("volumes").join(uuid)
    }

    /// The folder of a snapshot.
    pub(crate) fn snapshot(&self, uuid: &str) -> PathBuf {
        self.root.join("snapshots").join(uuid)
    }

    /// The uuids of all volumes.
    pub(crate) fn volumes(&self) -> BTreeSet<String> {
        names(&self.root.join("volumes"))
    }

    /// What is there of volumes, snapshots, loop devices and mounts: nothing, where everything was deleted.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let entries = PARTS.iter().flat_map(|part| {
            names(&self.root.join(part)).into_iter().map(move |name| format!("{part}/{name}"))
        });
        let loops = loops_below(&self.root).into_iter().map(|found| format!("{found:?}"));
        let mounts = mounts_below(self.root.parent().expect("a folder")).into_iter();
        let mounts = mounts.filter(|mount| mount.path != self.root).map(|mount| format!("{mount:?}"));
        entries.chain(loops).chain(mounts).collect()
    }

    #[track_caller]
    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.leftovers(), Vec::<String>::new());
    }

    /// At rest nothing is half-made.
    #[track_caller]
    pub(crate) fn assert_at_rest(&self) {
        let begun = ["making", "trash"].map(|part| names(&self.root.join(part)));
        assert_eq!(begun, [BTreeSet::new(), BTreeSet::new()]);
    }
}

impl Drop for Scene {
    /// Each step may find nothing to do, and none may keep the others from being tried. Innermost first: the devices on
    /// files of a disk before the disk.
    fn drop(&mut self) {
        let folder = self.folder.path().canonicalize().unwrap_or_else(|_| self.folder.path().to_owned());
        let mounts = mounts_below(&folder);
        let (disks, others): (Vec<_>, Vec<_>) = mounts.into_iter().partition(|mount| mount.path == self.root);
        for mount in others.iter().rev() {
            // A filesystem that stays frozen keeps its device for ever.
            if mount.path.is_dir() {
                let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&mount.path).output();
            }
            let _ = umount2(&mount.path, MntFlags::MNT_DETACH);
        }
        // Of a disk that was unmounted, the kernel shows no path any more.
        for device in
            others.iter().map(|mount| &mount.source).filter(|source| source.starts_with("/dev/loop"))
        {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
        detach(&self.root);
        for disk in &disks {
            let _ = umount2(&disk.path, MntFlags::MNT_DETACH);
        }
        detach(&folder);
    }
}

fn detach(folder: &Path) {
    for found in loops_below(folder) {
        let _ = Command::new("losetup").arg("--detach").arg(&found.device).output();
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
