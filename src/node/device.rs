//! What /sys says about a block device, by its number `major:minor`. Never waits. `sys`: another folder in tests.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::host::device_number;
pub(super) use crate::host::mapper::SYS;
use crate::host::mapper::below;

/// The number of the device that a device node names.
pub(super) fn number(node: &Path) -> io::Result<String> {
    Ok(device_number(node.metadata()?.rdev()))
}

/// Whether the kernel still has the device, and what is below it. Filesystems without one have a number of their own,
/// with major 0.
pub(super) fn device_exists(number: &str, sys: &Path) -> bool {
    let device = sys.join("dev/block").join(number);
    number.starts_with("0:") || device.exists() && (!device.join("dm").exists() || stands(&device))
}

/// A mapper outlives a device that is taken away below it by force.
fn stands(mapper: &Path) -> bool {
    let below = below(mapper);
    !below.is_empty() && below.iter().all(|device| device.exists())
}

pub(super) fn device_is_read_only(number: &str, sys: &Path) -> bool {
    fs::read_to_string(sys.join("dev/block").join(number).join("ro")).is_ok_and(|ro| ro.trim() == "1")
}

/// How many errors the kernel has met in the ext4 on a device since it was last checked. None: it does not say.
pub(super) fn ext4_errors(number: &str, sys: &Path) -> Option<u64> {
    let link = fs::read_link(sys.join("dev/block").join(number)).ok()?;
    let count = sys.join("fs/ext4").join(link.file_name()?).join("errors_count");
    fs::read_to_string(count).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapper_is_gone_with_what_is_below_it() {
        let sys = tempfile::tempdir().expect("a folder");
        let block = sys.path().join("dev/block");
        for folder in ["252:0", "253:0/dm", "253:0/slaves", "253:1/dm", "253:1/slaves"] {
            fs::create_dir_all(block.join(folder)).expect("made");
        }
        for (mapper, below) in [("253:0", "252:0"), ("253:1", "252:9")] {
            let link = block.join(mapper).join("slaves/rbd0");
            std::os::unix::fs::symlink(format!("../../{below}"), link).expect("linked");
        }
        let there =
            ["252:0", "253:0", "253:1", "252:9", "0:40"].map(|number| device_exists(number, sys.path()));
        assert_eq!(there, [true, true, false, false, true]);
        fs::remove_file(block.join("253:0/slaves/rbd0")).expect("removed");
        assert!(!device_exists("253:0", sys.path()));
    }
}
