//! What is wrong with a staged volume, as the kernel tells it at once: no process, no cluster command, no waiting.

use std::path::Path;

use crate::backend::{Ailment, Severity, Stashed};
use crate::error::{Error, Result};
use crate::host::Mount;

use super::device::{SYS, device_exists, ext4_errors};
use super::stash;
use super::{Kind, Node, device_of, is_staged, kind};

impl Node {
    /// `NotFound` where the volume is not staged here.
    pub(crate) fn health(&self, volume: &str) -> Result<Vec<Ailment>> {
        let mounts = self.host.mounts()?;
        let staged = mounts
            .iter()
            .find(|mount| is_staged(mount, volume))
            .ok_or_else(|| Error::NotFound(format!("volume {volume} is not staged on this node")))?;
        let mut found = ailments(staged, Path::new(SYS));
        if let Some(stashed) = stash::beside(staged) {
            found.extend(self.backend.image_health(&stashed.image));
            found.extend((!self.backend.is_served(&stashed)).then(|| unserved(&stashed)));
        }
        Ok(found)
    }

    /// Why nothing can be written through what is staged any more, if so.
    pub(super) fn lost(&self, staged: &Mount) -> Option<String> {
        Some(self.backend.lost(&stash::beside(staged)?.image)?.message)
    }
}

fn unserved(Stashed { image, mapping }: &Stashed) -> Ailment {
    let message = format!(
        "no rbd-nbd serves {} of image {image} any more, and who uses it waits, with an I/O error at the end: a new one \
         begins with the next call that carries a credential, or by rbd.credential of the cluster configuration; else \
         end the pods that use the volume",
        mapping.device
    );
    Ailment { severity: Severity::Inaccessible, reason: "DeviceWithoutDaemon", message }
}

fn ailments(staged: &Mount, sys: &Path) -> Vec<Ailment> {
    let (kind, place) = (kind(staged), staged.target.display());
    if let Some(message) = gone(staged, sys) {
        return vec![Ailment { severity: Severity::Inaccessible, reason: "DeviceGone", message }];
    }
    if kind == Kind::Block {
        return Vec::new();
    }
    let mut found = Vec::new();
    if staged.gave_up() {
        let message = format!(
            "the {} at {place} takes no writes since it met an error (see the kernel's log): {}",
            staged.fs_type,
            remedy(&kind)
        );
        found.push(Ailment { severity: Severity::Inaccessible, reason: "FilesystemReadOnly", message });
    }
    let ext4 = staged.fs_type == "ext4";
    if let Some(count @ 1..) = ext4.then(|| ext4_errors(&staged.device, sys)).flatten() {
        let message = format!(
            "the kernel found {count} errors in the ext4 at {place} since it was last checked: {}",
            remedy(&kind)
        );
        found.push(Ailment { severity: Severity::Degraded, reason: "FilesystemErrors", message });
    }
    found
}

/// In words, where the kernel does not have the device any more that is behind a staged volume.
pub(super) fn gone(staged: &Mount, sys: &Path) -> Option<String> {
    let device = device_of(staged)?;
    let place = staged.target.display();
    (!device_exists(&device, sys)).then(|| {
        format!(
            "the block device {device} behind {place} is gone from this node: end the pods that use the volume, so that it is staged anew"
        )
    })
}

fn remedy(kind: &Kind) -> &'static str {
    match kind {
        Kind::Directory => "it is the filesystem of the node on which the folder lies; have that one checked",
        Kind::Filesystem | Kind::Block => {
            "end the pods that use the volume on this node, so that it is checked and staged anew"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::host::mountinfo;

    /// A /sys with rbd0 as 252:0 that counted so many errors.
    fn sys(errors: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a folder");
        for folder in ["dev/block", "fs/ext4/rbd0", "devices/rbd0"] {
            fs::create_dir_all(sys.path().join(folder)).expect("made");
        }
        symlink("../../devices/rbd0", sys.path().join("dev/block/252:0")).expect("linked");
        fs::write(sys.path().join("fs/ext4/rbd0/errors_count"), errors).expect("written");
        sys
    }

    fn check(line: &str, errors: &str) -> Vec<(Severity, &'static str)> {
        let mounts = mountinfo::parse(format!("2 1 {line}\n").as_bytes());
        let found = ailments(mounts.first().expect("a mount"), sys(errors).path());
        found.into_iter().map(|ailment| (ailment.severity, ailment.reason)).collect()
    }

    #[test]
    fn a_healthy_volume_has_nothing() {
        assert_eq!(check("252:0 / /s/vol rw - ext4 /dev/rbd0 rw", "0\n"), []);
        assert_eq!(check("252:0 / /s/vol ro - ext4 /dev/rbd0 ro", ""), []);
        assert_eq!(check("252:0 / /s/vol rw - xfs /dev/rbd0 rw", "9\n"), []);
        assert_eq!(check("0:40 /v /tmp rw - btrfs /dev/vdb rw", "0\n"), []);
    }

    #[test]
    fn errors_of_a_filesystem_are_told() {
        let gone = (Severity::Inaccessible, "DeviceGone");
        let read_only = (Severity::Inaccessible, "FilesystemReadOnly");
        let errors = (Severity::Degraded, "FilesystemErrors");
        assert_eq!(check("252:0 / /s/vol rw - ext4 /dev/rbd0 rw", "2\n"), [errors]);
        assert_eq!(check("252:0 / /s/vol rw - ext4 /dev/rbd0 ro", "1\n"), [read_only, errors]);
        assert_eq!(check("252:0 / /s/vol rw - xfs /dev/rbd0 rw,shutdown", ""), [read_only]);
        assert_eq!(check("252:7 / /s/vol rw - ext4 /dev/rbd7 ro", ""), [gone]);
    }

    #[test]
    fn the_device_of_a_block_volume_is_the_one_that_its_node_names() {
        let gone = [(Severity::Inaccessible, "DeviceGone")];
        // 1:3, which no /sys has as a block device.
        assert_eq!(check("0:6 /null /dev/null rw - devtmpfs dev rw", "0\n"), gone);
        assert_eq!(check("0:6 /x /does/not/exist rw - devtmpfs dev rw", "0\n"), []);
    }
}
