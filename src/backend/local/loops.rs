//! Loop devices: which file is behind which, asked of sysfs; made, resized and taken away by losetup(8).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc::{ENODEV, ENOENT, ENXIO};
use serde::Deserialize;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, Host, Output, device_number, holders};

const DETACH_TRIES: u32 = 5;
const DETACH_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loop {
    pub(super) device: PathBuf,
    /// As the kernel shows it now; with ` (deleted)` behind it when it is.
    pub(super) file: PathBuf,
    pub(super) read_only: bool,
}

impl Loop {
    /// The volume whose image it has, by the name of the file: to be proved by `on`.
    pub(super) fn volume(&self) -> Option<Uuid> {
        Uuid::try_parse(self.file.parent()?.file_name()?.to_str()?).ok()
    }
}

/// Every loop device of this node that has a file. A listing that fails is an error, never "none".
pub(super) fn list() -> Result<Vec<Loop>> {
    list_in(Path::new("/sys/block")).map_err(|error| Error::internal("listing loop devices", error))
}

fn list_in(sysfs: &Path) -> io::Result<Vec<Loop>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(sysfs)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") {
            continue;
        }
        let file = match fs::read(sysfs.join(&name).join("loop/backing_file")) {
            Ok(file) => file,
            // It has none, or loses it just now (ENODEV, seen).
            Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ENXIO | ENODEV)) => continue,
            Err(error) => return Err(error),
        };
        let file = PathBuf::from(OsString::from_vec(file.strip_suffix(b"\n").unwrap_or(&file).to_vec()));
        let read_only = fs::read(sysfs.join(&name).join("ro")).is_ok_and(|ro| ro.trim_ascii() == b"1");
        found.push(Loop { device: Path::new("/dev").join(name), file, read_only });
    }
    Ok(found)
}

/// Those whose file is this image. By inode, not by name: the kernel shows the name as the mount had it that losetup went
/// through, and that of a container that has ended is cut off (seen: `/volumes/…`, without the root before it).
pub(super) async fn on(host: &dyn Host, image: &Path) -> Result<Vec<Loop>> {
    let candidates: Vec<Loop> = list()?.into_iter().filter(|device| same_tail(&device.file, image)).collect();
    let meta = match image.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::internal(format!("looking at {}", image.display()), error)),
    };
    let wanted = Inode { number: meta.ino(), device: device_number(meta.dev()) };
    let mut found = Vec::new();
    for candidate in candidates {
        if inode(host, &candidate.device).await?.as_ref() == Some(&wanted) {
            found.push(candidate);
        }
    }
    Ok(found)
}

/// The last two parts, the uuid of a volume and `image`; the kernel writes ` (deleted)` behind what is.
pub(super) fn same_tail(shown: &Path, image: &Path) -> bool {
    let tail: PathBuf = image.iter().skip(image.iter().count().saturating_sub(2)).collect();
    let shown = shown.to_string_lossy();
    Path::new(shown.strip_suffix(" (deleted)").unwrap_or(&shown)).ends_with(tail)
}

/// What tells one file from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inode {
    number: u64,
    /// `major:minor` of its filesystem.
    device: String,
}

#[derive(Debug, Deserialize)]
struct Listing {
    loopdevices: Vec<Backing>,
}

#[derive(Debug, Deserialize)]
struct Backing {
    #[serde(rename = "back-ino")]
    inode: Option<u64>,
    #[serde(rename = "back-maj:min")]
    device: Option<String>,
}

/// The file behind a device; None where it has just lost it.
async fn inode(host: &dyn Host, device: &Path) -> Result<Option<Inode>> {
    let what = format!("asking for the file behind {}", device.display());
    let path = device.to_string_lossy();
    let args = ["--list", "--json", "--output", "BACK-INO,BACK-MAJ:MIN", &path];
    let output = match run(host, args).await {
        Ok(output) => output,
        Err(_) if !list()?.iter().any(|there| there.device == device) => return Ok(None),
        Err(error) => return Err(Error::internal(what, error)),
    };
    let text = output.stdout.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    let listing: Listing = serde_json::from_slice(text).map_err(|error| Error::internal(what, error))?;
    let backing = listing.loopdevices.into_iter().next();
    Ok(backing.and_then(|Backing { inode, device }| {
        Some(Inode { number: inode?, device: device?.trim().to_owned() })
    }))
}

/// Makes a device of the file; answers its path. Direct I/O where the filesystem allows it: no data is cached twice.
pub(super) async fn attach(
    host: &dyn Host,
    file: &Path,
    read_only: bool,
    direct_io: bool,
) -> Result<PathBuf> {
    let path = file.to_string_lossy();
    let mut args = vec!["--find", "--show", "--nooverlap"];
    args.extend(read_only.then_some("--read-only"));
    args.push(&path);
    let what = format!("making a loop device of {path}");
    let output = run(host, args).await.map_err(|error| Error::internal(what.clone(), error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let device = PathBuf::from(text.trim());
    if !device.is_absolute() {
        return Err(Error::broken(format!("{what}: losetup answered {text:?}, which is no device")));
    }
    // Of a file that it cannot write to, losetup makes a read-only device without a word.
    if !read_only && let Some(made) = list()?.into_iter().find(|made| made.device == device && made.read_only)
    {
        detach(host, &made).await?;
        return Err(Error::Precondition(format!(
            "{path} cannot be written to: is its filesystem mounted read-only?"
        )));
    }
    set_direct_io(host, &device, direct_io).await;
    Ok(device)
}

/// A wish: the kernel refuses it where the filesystem of the file, or its block size, does not allow it.
pub(super) async fn set_direct_io(host: &dyn Host, device: &Path, on: bool) {
    let switch = if on { "--direct-io=on" } else { "--direct-io=off" };
    if let Err(error) = run(host, [switch, &device.to_string_lossy()]).await {
        tracing::debug!(device = %device.display(), "direct I/O stays as it is: {error}");
    }
}

/// Lets the device have the size of its file.
pub(super) async fn refresh(host: &dyn Host, device: &Path) -> Result<()> {
    let refreshed = run(host, ["--set-capacity", &device.to_string_lossy()]).await;
    refreshed.map(drop).map_err(|error| Error::internal(format!("resizing {}", device.display()), error))
}

/// `losetup --detach` of a busy device succeeds, and takes it away when its last user leaves: so who uses it is asked
/// before, and whether it is gone after. Who looks at it only in passing (udev, blkid) is waited for.
pub(super) async fn detach(host: &dyn Host, there: &Loop) -> Result<()> {
    let device = there.device.to_string_lossy();
    let mut held = "a program that has it open".to_owned();
    for _ in 0..DETACH_TRIES {
        if !list()?.contains(there) {
            return Ok(());
        }
        if let Some(holders) = holders::of(&there.device).await {
            held = holders;
        } else {
            let detached = run(host, ["--detach", &device]).await;
            detached.map_err(|error| Error::internal(format!("detaching {device}"), error))?;
            if !list()?.contains(there) {
                return Ok(());
            }
        }
        tokio::time::sleep(DETACH_AGAIN).await;
    }
    Err(Error::Precondition(format!("{device} is held by {held}: end that first")))
}

async fn run<'a>(host: &dyn Host, args: impl IntoIterator<Item = &'a str>) -> Result<Output, CmdError> {
    host.run(Cmd::new("losetup", args)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_with_a_file_are_listed() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let make = |name: &str, file: Option<&str>| {
            fs::create_dir_all(sysfs.path().join(name).join("loop")).expect("a device");
            fs::write(sysfs.path().join(name).join("ro"), "1\n").expect("ro");
            if let Some(file) = file {
                fs::write(sysfs.path().join(name).join("loop/backing_file"), file).expect("its file");
            }
        };
        make("loop0", None);
        make("loop7", Some("/a b/image (deleted)\n"));
        make("vda", Some("/c\n"));
        let found = list_in(sysfs.path()).expect("listed");
        let expected =
            Loop { device: "/dev/loop7".into(), file: "/a b/image (deleted)".into(), read_only: true };
        assert_eq!(found, [expected]);
        assert!(list_in(&sysfs.path().join("gone")).is_err());
    }
}
