//! Filesystems on a device: what is there, making one, checking it, growing it. Whether one may be made is decided in
//! node/stage.rs.

mod grow;
mod look;
mod superblock;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, Host, Slot};

use look::{both_ends, look};

pub(crate) use grow::{NotGrown, grow, grows_mounted, is_smaller};

/// What this driver makes and mounts.
pub(crate) const SUPPORTED: &[&str] = &["ext4", "xfs"];
const PREZEROED: &str = "assume_storage_prezeroed";
/// fsck of a large filesystem takes its time; kubelet's own time-out is 2 minutes and it asks again.
const CHECK_WITHIN: Duration = Duration::from_secs(1800);

/// What blkid's low-level probe sees on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// No known signature: alone no proof that there is no data.
    Nothing,
    /// One of `SUPPORTED`.
    Filesystem(String),
    /// A partition table, LUKS, LVM, swap, another filesystem…
    Other(String),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Filesystem(found) | Self::Other(found) => f.write_str(found),
        }
    }
}

/// 2 means nothing found, 8 that two signatures contradict each other; all else is an error.
pub(crate) async fn probe(host: &dyn Host, device: &Path) -> Result<Content> {
    let args = ["-p", "-o", "export", &device.to_string_lossy()];
    match host.run(Cmd::new("blkid", args)).await {
        Ok(output) => Ok(content(&String::from_utf8_lossy(&output.stdout))),
        // blkid says so too of what it could not read, and not always with a text (seen of 2.38).
        Err(error) if error.exit() == Some(2) && error.said.is_empty() => {
            look(device, both_ends).await.map(|()| Content::Nothing)
        }
        Err(error) if error.exit() == Some(8) => {
            Ok(Content::Other("several signatures that contradict each other".to_owned()))
        }
        Err(error) => Err(Error::internal(format!("looking at what is on {}", device.display()), error)),
    }
}

fn content(export: &str) -> Content {
    let value = |key: &str| export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match (value("USAGE"), value("TYPE"), value("PTTYPE")) {
        (Some("filesystem"), Some(fs_type), None) if SUPPORTED.contains(&fs_type) => {
            Content::Filesystem(fs_type.to_owned())
        }
        (_, Some(other), None) => Content::Other(other.to_owned()),
        (_, _, Some(table)) => Content::Other(format!("a partition table ({table})")),
        (_, None, None) => Content::Other(format!("something that blkid calls {export:?}")),
    }
}

/// Makes a filesystem. `fresh`: every block of the device is known to read as zeros.
pub(crate) async fn format(
    host: &dyn Host,
    device: &Path,
    fs_type: &str,
    options: Option<&str>,
    fresh: bool,
) -> Result<()> {
    let failed = |error: CmdError| {
        let what = format!("making {fs_type} on {}", device.display());
        if is_not_to_be_had(&error) {
            return Error::Precondition(format!(
                "{what}: {error}: mend mkfsOptions, or ask for a larger volume"
            ));
        }
        Error::internal(what, error)
    };
    match host.run(mkfs(device, fs_type, options, fresh)).await {
        // e2fsprogs before 1.47 does not know the option, and has written nothing.
        Err(error) if knows_no_prezeroed(&error) => {
            host.run(mkfs(device, fs_type, options, false)).await.map(drop).map_err(failed)
        }
        result => result.map(drop).map_err(failed),
    }
}

/// Whether what mkfs was asked for cannot be had, on a device that is whole.
fn is_not_to_be_had(error: &CmdError) -> bool {
    let why = ["Usage:", "usage:", "nvalid", "must be larger than", "too small"];
    error.exit() == Some(1) && why.iter().any(|why| error.said.contains(why))
}

fn knows_no_prezeroed(error: &CmdError) -> bool {
    error.exit() == Some(1) && error.said.contains(PREZEROED)
}

fn mkfs(device: &Path, fs_type: &str, options: Option<&str>, fresh: bool) -> Cmd {
    let xfs = fs_type == "xfs";
    let program = if xfs { "mkfs.xfs" } else { "mkfs.ext4" };
    let mut args: Vec<String> = match options {
        Some(options) => options.split(' ').filter(|option| !option.is_empty()).map(str::to_owned).collect(),
        None if xfs => vec!["-K".to_owned()],
        None if fresh => vec!["-m0".to_owned(), "-E".to_owned(), format!("nodiscard,{PREZEROED}=1")],
        None => ["-m0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"].map(str::to_owned).into(),
    };
    // What is there was proved to be nothing, or our own half-made work: no question to be asked.
    args.push(if xfs { "-f" } else { "-F" }.to_owned());
    args.push(device.to_string_lossy().into_owned());
    Cmd::new(program, args).slot(Slot::Long).deadline(Duration::from_secs(600))
}

/// How thorough a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// The journal, and all where something is known to be wrong.
    Usual,
    /// Everything: resize2fs asks for it.
    All,
    /// Everything, and whatever is wrong is put right: after a resize2fs of ours was killed (seen: at each of 53 points
    /// that were tried, with every file whole afterwards).
    Mend,
}

/// Replays and repairs what can be repaired without a decision. xfs does so itself when it is mounted.
pub(crate) async fn check(host: &dyn Host, device: &Path, fs_type: &str, how: Check) -> Result<()> {
    if fs_type != "ext4" {
        return Ok(());
    }
    let how = match how {
        Check::Usual => "-p",
        Check::All => "-fp",
        Check::Mend => "-fy",
    };
    let args = [how, &device.to_string_lossy()];
    match host.run(Cmd::new("fsck.ext4", args).slot(Slot::Long).deadline(CHECK_WITHIN)).await {
        Ok(_) => Ok(()),
        Err(error) if error.exit() == Some(1) => {
            tracing::warn!(device = %device.display(), "fsck repaired the filesystem: {}", error.said);
            Ok(())
        }
        Err(error) if error.exit().is_some_and(|code| code & 4 != 0) => Err(Error::Precondition(format!(
            "the filesystem on {} has errors that need a decision: run fsck.ext4 by hand{} ({error})",
            device.display(),
            cut_off(&error.said)
        ))),
        Err(error) => Err(Error::internal(format!("checking the filesystem on {}", device.display()), error)),
    }
}

/// A resize2fs that was killed leaves this behind (seen); `fsck.ext4 -f -y` mends it, and the files are whole.
fn cut_off(said: &str) -> &'static str {
    let resize_inode = ["Resize inode not valid", "Inode 7 has illegal block"];
    if resize_inode.iter().any(|text| said.contains(text)) {
        " (it looks like a growing that was cut off, which fsck.ext4 -f -y mends)"
    } else {
        ""
    }
}

/// The options to mount with: xfs refuses a second filesystem of one UUID, which every clone is, without `nouuid`.
pub(crate) fn mount_options(fs_type: &str, flags: &[String], read_only: bool) -> Vec<String> {
    let mut options = flags.to_vec();
    if fs_type == "xfs" && !flags.iter().any(|flag| flag.split(',').any(|flag| flag == "nouuid")) {
        options.push("nouuid".to_owned());
    }
    options.extend(read_only.then(|| "ro".to_owned()));
    options
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_filesystem_that_can_be_mounted_is_taken_for_one() {
        let ext4 = "DEVNAME=/dev/x\nUUID=1\nTYPE=ext4\nUSAGE=filesystem\n";
        assert_eq!(content(ext4), Content::Filesystem("ext4".to_owned()));
        let btrfs = "BLOCK_SIZE=4096\nTYPE=btrfs\nUSAGE=filesystem\n";
        assert_eq!(content(btrfs), Content::Other("btrfs".to_owned()));
        assert_eq!(content("TYPE=crypto_LUKS\nUSAGE=crypto\n"), Content::Other("crypto_LUKS".to_owned()));
        assert!(matches!(content("PTTYPE=gpt\n"), Content::Other(_)));
        assert!(matches!(content(""), Content::Other(_)));
    }

    #[test]
    fn mkfs_options_of_the_user_replace_the_defaults() {
        assert_eq!(mkfs(Path::new("/d"), "ext4", Some("-b 1024"), true).args, ["-b", "1024", "-F", "/d"]);
        assert_eq!(mkfs(Path::new("/d"), "xfs", None, true).args, ["-K", "-f", "/d"]);
    }

    #[test]
    fn xfs_is_always_mounted_with_nouuid() {
        assert_eq!(mount_options("xfs", &["noatime".to_owned()], true), ["noatime", "nouuid", "ro"]);
        assert_eq!(mount_options("xfs", &["noatime,nouuid".to_owned()], false), ["noatime,nouuid"]);
    }

    proptest! {
        #[test]
        fn only_a_plain_filesystem_is_taken_for_one(export in "((TYPE|USAGE|PTTYPE)=(ext4|xfs|filesystem|dos|[a-z]{0,5})\n|\\PC{0,20}\n){0,5}") {
            if let Content::Filesystem(found) = content(&export) {
                prop_assert!(SUPPORTED.contains(&found.as_str()) && export.contains("USAGE=filesystem"));
                prop_assert!(!export.lines().any(|line| line.starts_with("PTTYPE=")));
            }
        }
    }
}
