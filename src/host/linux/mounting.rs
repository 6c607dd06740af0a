//! mount(2) and umount(2).
#![expect(clippy::disallowed_methods, reason = "this is the one place that the rule leads to")]

use std::io;
use std::path::Path;

use sys_mount::{Mount as SysMount, MountFlags, UnmountFlags};

use super::super::MountCall;

pub(super) fn mount(what: &MountCall) -> io::Result<()> {
    match what {
        MountCall::Filesystem { device, target, fs_type, options } => {
            let (flags, data) = split_options(options);
            SysMount::builder().fstype(fs_type.as_str()).flags(flags).data(&data).mount(device, target)?;
        }
        MountCall::Bind { source, target, options, read_only } => {
            SysMount::builder().fstype("none").flags(MountFlags::BIND).mount(source, target)?;
            let (mut flags, _) = split_options(options);
            flags.set(MountFlags::RDONLY, *read_only || flags.contains(MountFlags::RDONLY));
            if flags.is_empty() {
                return Ok(());
            }
            // mount(2) ignores every other flag of the call that binds.
            let remounted = remount(target, flags);
            if remounted.is_err() {
                let _ = sys_mount::unmount(target, no_follow());
            }
            remounted?;
        }
    }
    Ok(())
}

pub(super) fn unmount(path: &Path) -> io::Result<()> {
    sys_mount::unmount(path, no_follow())
}

/// umount(2) of the path itself, never of what a symlink at its end points to. (sys-mount 3.1's own NOFOLLOW is
/// O_NOFOLLOW, which the kernel answers with EINVAL.)
fn no_follow() -> UnmountFlags {
    UnmountFlags::from_bits_retain(nix::libc::UMOUNT_NOFOLLOW)
}

fn remount(target: &Path, flags: MountFlags) -> io::Result<()> {
    let flags = flags | MountFlags::BIND | MountFlags::REMOUNT;
    SysMount::builder().fstype("none").flags(flags).mount("none", target).map(drop)
}

/// Mount options as mount(8) takes them, split into the flags of mount(2) and the data for the filesystem.
fn split_options(options: &[String]) -> (MountFlags, String) {
    let (mut flags, mut data) = (MountFlags::empty(), Vec::new());
    for option in options.iter().flat_map(|option| option.split(',')) {
        match option {
            // For mount(8) itself, or the default.
            "" | "defaults" | "_netdev" | "rw" | "suid" | "dev" | "exec" | "async" | "atime" => {}
            "ro" => flags |= MountFlags::RDONLY,
            "nosuid" => flags |= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "dirsync" => flags |= MountFlags::DIRSYNC,
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "strictatime" => flags |= MountFlags::STRICTATIME,
            other => data.push(other),
        }
    }
    (flags, data.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_into_flags_and_data() {
        let (flags, data) =
            split_options(&["_netdev,ro".to_owned(), "noatime".to_owned(), "nouuid,data=ordered".to_owned()]);
        assert_eq!(flags, MountFlags::RDONLY | MountFlags::NOATIME);
        assert_eq!(data, "nouuid,data=ordered");
    }
}
