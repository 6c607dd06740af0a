//! What a node does with a volume: stage, publish, expand, stats, health, and the way back. No gRPC here. Each step looks
//! before it acts, so that a call repeated after a kill at any point goes on from there.

mod census;
mod daemon;
mod device;
mod expand;
mod health;
mod publish;
mod replay;
mod rotate;
mod stage;
mod stash;
mod stats;
mod unlock;

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{Access, Ailment, Backend, Capability, Offer, Segments, SizeRange, Target};
use crate::error::{Error, Result};
use crate::host::{Host, Mount, files, holders};
use crate::id::VolumeId;

pub(crate) use stash::{all as stagings, is_stash};
pub(crate) use stats::Usage;

/// Tries to unmount what is busy: who looks at it only in passing is gone by then.
const UNMOUNT_TRIES: u32 = 5;
const UNMOUNT_AGAIN: Duration = Duration::from_millis(200);

pub(crate) struct Node {
    host: Arc<dyn Host>,
    backend: Arc<dyn Backend>,
    id: String,
    max_volumes: u32,
    /// Mounts that are being asked how full they are: at most one question at a time.
    probing: Arc<Mutex<HashSet<PathBuf>>>,
}

pub(crate) struct StageVolume {
    pub(crate) target: Target,
    pub(crate) staging: PathBuf,
    pub(crate) capability: Capability,
}

pub(crate) struct PublishVolume {
    pub(crate) target: Target,
    pub(crate) staging: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) read_only: bool,
}

pub(crate) struct ExpandVolume {
    pub(crate) target: Target,
    /// Where it is published or staged.
    pub(crate) path: PathBuf,
    /// Older COs do not tell it.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) size: SizeRange,
}

impl Node {
    /// `max_volumes`: 0 for no limit.
    pub(crate) fn new(host: Arc<dyn Host>, backend: Arc<dyn Backend>, id: String, max_volumes: u32) -> Self {
        Self { host, backend, id, max_volumes, probing: Arc::default() }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn max_volumes(&self) -> u32 {
        self.max_volumes
    }

    pub(crate) async fn place(&self) -> Result<Option<Segments>> {
        self.backend.place().await
    }

    pub(crate) fn offers(&self, what: Offer) -> bool {
        self.backend.offers().contains(&what)
    }

    pub(crate) fn storage_health(&self) -> Vec<Ailment> {
        self.backend.storage_health()
    }

    /// The topmost mount at a path.
    fn mount_at(&self, path: &Path) -> Result<Option<Mount>> {
        Ok(self.host.mounts()?.into_iter().rfind(|mount| mount.target == path))
    }

    /// Takes away every mount at a path, and the path. Works on mounts whose device is gone.
    async fn clear(&self, path: &Path) -> Result<()> {
        let mut tries = 0;
        while let Some(mount) = self.mount_at(path)? {
            let Err(error) = self.host.unmount(path).await else { continue };
            if error.raw_os_error() != Some(nix::libc::EBUSY) {
                return Err(Error::internal(format!("unmounting {}", path.display()), error));
            }
            tries += 1;
            if tries == UNMOUNT_TRIES {
                // Only a device node tells by its path who has it, and can be looked at without waiting for storage.
                let holders = if mount.is_part() { holders::of(path).await } else { None };
                let by = holders.map(|holders| format!(" by {holders}")).unwrap_or_default();
                return Err(Error::Precondition(format!(
                    "{} is still in use{by}: end what uses it",
                    path.display()
                )));
            }
            tokio::time::sleep(UNMOUNT_AGAIN).await;
        }
        remove(path)
    }
}

/// One for each volume, the same for both services of one process.
pub(crate) fn lock(volume: &str) -> String {
    VolumeId::parse(volume).map_or_else(|_| volume.to_owned(), |id| id.uuid.to_string())
}

/// Where a volume shows.
struct Place<'a> {
    /// The mount that was asked for.
    shown: &'a Mount,
    staged: &'a Mount,
}

/// Finds a volume by a path where it is published or staged: the mount there shows the same as one that is named as a
/// staged volume is. kubelet calls the staging folder, one above that mount, a path of the volume too.
fn find<'a>(mounts: &'a [Mount], volume: &str, path: &Path) -> Result<Place<'a>> {
    let at = |path: &Path| mounts.iter().rfind(|mount| mount.target == path);
    let shown = [resolved(path), stage::place(path, volume)];
    // Staged comes before published: the kernel lists mounts in the order in which they were made.
    let staged =
        |shown: &Mount| mounts.iter().find(|mount| is_staged(mount, volume) && mount.same_source(shown));
    shown
        .iter()
        .filter_map(|path| at(path))
        .find_map(|shown| Some(Place { shown, staged: staged(shown)? }))
        .ok_or_else(|| Error::NotFound(format!("volume {volume} is not at {}", path.display())))
}

fn is_staged(mount: &Mount, volume: &str) -> bool {
    mount.target.file_name().is_some_and(|name| name == volume)
}

/// What a volume is, by its staged mount.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Filesystem,
    Block,
    Directory,
}

/// The staged path is looked at only where it is part of a filesystem of the node itself: that looks at no volume, and
/// so does not hang with one.
fn kind(staged: &Mount) -> Kind {
    if !staged.is_part() {
        Kind::Filesystem
    } else if staged.target.is_dir() {
        Kind::Directory
    } else {
        Kind::Block
    }
}

/// The number of the device behind a staged volume. None: its device node is gone, it is being unstaged.
fn device_of(staged: &Mount) -> Option<String> {
    match kind(staged) {
        // A device node that was bound stays when the device goes, and the mount has the number of devtmpfs.
        Kind::Block => device::number(&staged.target).ok(),
        Kind::Filesystem | Kind::Directory => Some(staged.device.clone()),
    }
}

/// The path as the kernel names it in mountinfo: its folder without symlinks. What does not exist stays as it is.
fn resolved(path: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
    parent.canonicalize().map_or_else(|_| path.to_owned(), |parent| parent.join(name))
}

/// A folder of kubelet may be reached through links, but what it makes for a volume is none.
fn refuse_link(path: &Path) -> Result<()> {
    if !path.is_symlink() {
        return Ok(());
    }
    let path = path.display();
    Err(Error::Precondition(format!(
        "{path} is a symbolic link, and a volume is at a plain path: remove the link"
    )))
}

/// Makes the file or folder that a mount covers. Already there is success; a symbolic link is not: mount(2) would follow
/// it, and what shows at its other end nobody would find and unmount again.
fn make_mount_point(path: &Path, file: bool) -> Result<()> {
    refuse_link(path)?;
    let made = if file {
        path.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).open(path).map(drop))
    } else {
        std::fs::create_dir_all(path)
    };
    made.map_err(|error| {
        path_error(
            format!("making the mount point {}", path.display()),
            error,
            "name a path that can be made",
        )
    })
}

/// Removes an empty mount point, never anything that somebody has filled.
fn remove(path: &Path) -> Result<()> {
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(error) if files::is_absence(&error) => return Ok(()),
        Err(error) => {
            return Err(path_error(
                format!("looking at {}", path.display()),
                error,
                "name a path that can be",
            ));
        }
    };
    if meta.is_file() && meta.len() > 0 {
        return Err(Error::Precondition(format!(
            "{} is a file with {} bytes and no mount point: it is left alone; take it away if nobody needs it",
            path.display(),
            meta.len()
        )));
    }
    let removed = if meta.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| {
            path_error(format!("removing {}", path.display()), error, "take away what is in there")
        }),
    }
}

/// A filesystem says EINVAL to an option that it does not know, and to what it cannot make sense of on its device.
fn not_mounted(what: String, capability: &Capability, error: io::Error) -> Error {
    match &capability.access {
        Access::Mount { flags, .. } if !flags.is_empty() && error.kind() == ErrorKind::InvalidInput => {
            Error::Precondition(format!(
                "{what} with the options {flags:?}: {error}: take away the option that the filesystem does not know; if it knows them all, it is damaged: see the kernel's log of the node"
            ))
        }
        _ => Error::internal(what, error),
    }
}

/// What is wrong with a path itself, or with what stands there, is not the driver's fault.
fn path_error(what: String, error: io::Error, mend: &str) -> Error {
    match error.kind() {
        ErrorKind::AlreadyExists
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::DirectoryNotEmpty
        | ErrorKind::InvalidFilename => Error::Precondition(format!("{what}: {error}: {mend}")),
        // A loop of links has no kind of its own.
        _ if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            Error::Precondition(format!("{what}: {error}: {mend}"))
        }
        _ => Error::internal(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mountinfo;

    fn mounts() -> Vec<Mount> {
        mountinfo::parse(
            b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
              2 1 252:0 / /nowhere/staging/vol rw - ext4 /dev/rbd0 rw\n\
              3 1 0:6 /rbd1 /nowhere/block/vol rw - devtmpfs dev rw\n\
              4 1 252:0 / /nowhere/pod/mount rw - ext4 /dev/rbd0 rw\n\
              5 1 252:9 / /nowhere/other/mount rw - ext4 /dev/rbd9 rw\n\
              6 1 0:6 /rbd1 /nowhere/pod/block rw - devtmpfs dev rw\n",
        )
    }

    fn check(volume: &str, path: &str) -> Option<(String, String)> {
        let mounts = mounts();
        let place = find(&mounts, volume, Path::new(path)).ok()?;
        let text = |mount: &Mount| mount.target.display().to_string();
        Some((text(place.shown), text(place.staged)))
    }

    #[test]
    fn a_volume_is_found_where_it_is_published_and_where_it_is_staged() {
        let found = |shown: &str, staged: &str| Some((shown.to_owned(), staged.to_owned()));
        let staged = "/nowhere/staging/vol";
        assert_eq!(check("vol", "/nowhere/pod/mount"), found("/nowhere/pod/mount", staged));
        assert_eq!(check("vol", staged), found(staged, staged));
        assert_eq!(check("vol", "/nowhere/staging"), found(staged, staged));
        assert_eq!(check("vol", "/nowhere/pod/block"), found("/nowhere/pod/block", "/nowhere/block/vol"));
    }

    #[test]
    fn what_is_not_the_volume_is_not_found() {
        assert_eq!(check("vol", "/nowhere/other/mount"), None);
        assert_eq!(check("other", "/nowhere/pod/mount"), None);
        assert_eq!(check("vol", "/nowhere"), None);
        assert_eq!(check("vol", "/"), None);
        assert_eq!(check("", "/nowhere/pod/mount"), None);
    }

    #[test]
    fn a_bound_folder_is_told_from_a_bound_device() {
        let folder = tempfile::tempdir().expect("a folder");
        let mounts = mounts();
        let (filesystem, block) = (&mounts[1], &mounts[2]);
        let directory = Mount { target: folder.path().to_owned(), ..block.clone() };
        assert_eq!(kind(filesystem), Kind::Filesystem);
        assert_eq!((kind(block), kind(&directory)), (Kind::Block, Kind::Directory));
    }

    #[test]
    fn a_mount_point_is_never_made_through_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, far) = (folder.path().join("link"), folder.path().join("far"));
        for exists in [false, true] {
            let _ = std::os::unix::fs::symlink(&far, &link);
            for file in [false, true] {
                let error = make_mount_point(&link, file).expect_err("a link");
                assert!(
                    matches!(&error, Error::Precondition(text) if text.contains("symbolic link")),
                    "{error}"
                );
            }
            assert_eq!(far.exists(), exists);
            if !exists {
                std::fs::create_dir(&far).expect("made meanwhile");
            }
        }
    }

    #[test]
    fn what_holds_something_is_no_mount_point_to_be_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "data").expect("a file");
        std::fs::create_dir_all(path("full/of")).expect("folders");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        for name in ["file", "full"] {
            let error = remove(&path(name)).expect_err("it is left alone");
            assert!(matches!(error, Error::Precondition(_)), "{error}");
        }
        for name in ["link", "full/of", "nothing", "file/below", &"x".repeat(256)] {
            remove(&path(name)).expect("removed, or not there");
        }
        assert_eq!(std::fs::read_to_string(path("file")).expect("the file"), "data");
    }

    #[test]
    fn a_path_that_cannot_be_made_is_its_sender_s_mistake() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, long) = (folder.path().join("file"), folder.path().join("x".repeat(256)));
        std::fs::write(&file, "").expect("a file");
        for (path, as_file) in [(file.join("below"), false), (long, true), (folder.path().to_owned(), true)] {
            let error = make_mount_point(&path, as_file).expect_err("it cannot be made");
            assert!(matches!(error, Error::Precondition(_)), "{error}");
        }
    }
}
