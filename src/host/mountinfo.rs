//! The parser of /proc/<pid>/mountinfo (proc(5)). Pure.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

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
        let has_ro = |options: &str| options.split(',').any(|option| option == "ro");
        has_ro(&self.options) || has_ro(&self.super_options)
    }
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
