//! What /sys says about a block device, by its number `major:minor`. Never waits. `sys`: another folder in tests.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::host::device_number;

pub(super) const SYS: &str = "/sys";

/// The number of the device that a device node names.
pub(super) fn number(node: &Path) -> io::Result<String> {
    Ok(device_number(node.metadata()?.rdev()))
}

/// Whether the kernel still has the device. Filesystems without one have a number of their own, with major 0.
pub(super) fn device_exists(number: &str, sys: &Path) -> bool {
    number.starts_with("0:") || sys.join("dev/block").join(number).exists()
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
