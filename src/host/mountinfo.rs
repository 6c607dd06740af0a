//! The parser of /proc/<pid>/mountinfo (proc(5)). Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Device number of the filesystem, `major:minor`.
    pub(crate) device: String,
    /// Which part of the filesystem is mounted: `/` for all of it; for a bound device node, its path in devtmpfs.
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// Options of this mount (not of the filesystem), comma separated.
    pub(crate) options: String,
    pub(crate) fs_type: String,
    pub(crate) source: PathBuf,
    /// Options of the filesystem, comma separated.
    pub(crate) super_options: String,
}

impl Mount {
    /// The same thing shown at two places.
    pub(crate) fn same_source(&self, other: &Self) -> bool {
        self.device == other.device && self.root == other.root
    }

    pub(crate) fn read_only(&self) -> bool {
        has(&self.options, "ro") || has(&self.super_options, "ro")
    }

    /// Mounted to be written, and the filesystem takes no writes any more: it met an error. Newer kernels say so by
    /// words of their own (ext4, since 6.14: `emergency_ro`, `shutdown`), and leave `rw`.
    pub(crate) fn gave_up(&self) -> bool {
        let gave_up = ["ro", "emergency_ro", "shutdown"].iter().any(|word| has(&self.super_options, word));
        !has(&self.options, "ro") && gave_up
    }

    /// The device whose filesystem, or whose own node, is mounted; None for a folder.
    pub(crate) fn device_path(&self) -> Option<PathBuf> {
        if !self.is_part() {
            return Some(self.source.clone());
        }
        // A device node that was bound: its path below /dev, in devtmpfs or in the tmpfs that a container has there.
        let node = self.fs_type.ends_with("tmpfs").then(|| self.root.strip_prefix("/").ok())??;
        Some(Path::new("/dev").join(node))
    }

    /// A folder or file of the filesystem, bound: what the filesystem is says nothing about it.
    pub(crate) fn is_part(&self) -> bool {
        self.root != Path::new("/")
    }
}

pub(crate) fn has(options: &str, wanted: &str) -> bool {
    options.split(',').any(|option| option == wanted)
}

/// Reads the whole file; lines that do not have the documented form are left out.
pub(crate) fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = text(fields.nth(2)?);
    let (root, target) = (path(fields.next()?), path(fields.next()?));
    let options = text(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let (fs_type, source) = (text(fields.next()?), path(fields.next()?));
    let super_options = text(fields.next().unwrap_or_default());
    Some(Mount { device, root, target, options, fs_type, source, super_options })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn path(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_of_the_manual_page_is_read() {
        let mounts = parse(
            b"36 35 98:0 /mnt1 /mnt\\0402 ro,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n",
        );
        let [mount] = mounts.as_slice() else { panic!("{mounts:?}") };
        assert_eq!((mount.device.as_str(), mount.fs_type.as_str()), ("98:0", "ext3"));
        assert_eq!(mount.target, PathBuf::from("/mnt 2"));
        assert!(mount.read_only());
    }

    #[test]
    fn a_filesystem_that_gave_up_is_told_from_one_mounted_read_only() {
        let check = |options: &str, super_options: &str| {
            let line = format!("36 35 98:0 / /mnt {options} - ext4 /dev/rbd0 {super_options}\n");
            parse(line.as_bytes()).iter().any(Mount::gave_up)
        };
        assert!(check("rw,relatime", "ro,errors=remount-ro"));
        assert!(check("rw,relatime", "rw,emergency_ro"));
        assert!(check("rw,relatime", "rw,shutdown"));
        assert!(!check("ro,relatime", "ro"));
        assert!(!check("rw,relatime", "rw,errors=remount-ro"));
    }

    #[test]
    fn this_machine_s_own_mounts_are_read() {
        let text = std::fs::read("/proc/self/mountinfo").expect("mountinfo");
        let lines = text.split(|byte| *byte == b'\n').count() - 1;
        assert_eq!(parse(&text).len(), lines);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            parse(&bytes);
        }
    }
}
