//! The folder that holds everything, and how an object comes into being and goes: made in `making`, moved in one
//! rename(2) to where it counts, moved in another to `trash`. So a kill at any instant leaves a whole object or none.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{Flock, FlockArg};
use uuid::Uuid;

use crate::error::{Error, Result};

use super::failed;

/// A folder of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Objects {
    Volumes,
    Snapshots,
}

const MAKING: &str = "making";
const TRASH: &str = "trash";

/// The root, locked: one driver works on it at a time.
pub(super) struct Root {
    path: PathBuf,
    identity: (u64, u64),
    lock: Flock<File>,
}

impl Objects {
    fn name(self) -> &'static str {
        match self {
            Self::Volumes => "volumes",
            Self::Snapshots => "snapshots",
        }
    }
}

/// Where the object of this uuid is.
pub(super) fn object(root: &Path, objects: Objects, uuid: Uuid) -> PathBuf {
    root.join(objects.name()).join(uuid.to_string())
}

/// Its data: of an image volume, or of a snapshot.
pub(super) fn image(object: &Path) -> PathBuf {
    object.join("image")
}

/// Bytes that a file takes on the disk, holes left out.
pub(super) fn held(file: &Path) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

/// Its data: of a directory volume.
pub(super) fn data(object: &Path) -> PathBuf {
    object.join("data")
}

/// Tells this root from another that is put in its place (a disk that is mounted or not).
pub(super) fn identity(path: &Path) -> Result<(u64, u64)> {
    let meta = path.metadata().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Precondition(format!(
            "--local-root {} is not there: make the folder, or mount the disk that holds it",
            path.display()
        )),
        _ => failed(&format!("looking at --local-root {}", path.display()), error),
    })?;
    if !meta.is_dir() {
        return Err(Error::Precondition(format!("--local-root {} is no folder", path.display())));
    }
    Ok((meta.dev(), meta.ino()))
}

impl Root {
    /// Fails where another driver has it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let identity = identity(path)?;
        let what = format!("opening --local-root {}", path.display());
        let folder = File::open(path).map_err(|error| failed(&what, error))?;
        let lock =
            Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
                nix::errno::Errno::EWOULDBLOCK => Error::Precondition(format!(
                    "--local-root {} is in use by another driver process: give each its own",
                    path.display()
                )),
                errno => failed(&what, errno.into()),
            })?;
        Ok(Self { path: path.to_owned(), identity, lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is(&self, identity: (u64, u64)) -> bool {
        self.identity == identity
    }

    /// Where the kernel shows the root now, should it have been moved.
    pub(super) fn path_now(&self) -> PathBuf {
        let link = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        fs::read_link(link).unwrap_or_else(|_| self.path.clone())
    }

    pub(super) fn object(&self, objects: Objects, uuid: Uuid) -> PathBuf {
        object(&self.path, objects, uuid)
    }

    /// Without it, "not there" proves nothing: an empty folder may be a disk that is not mounted.
    pub(super) fn was_used(&self) -> bool {
        self.path.join(Objects::Volumes.name()).is_dir()
    }

    /// All objects, in order.
    pub(super) fn uuids(&self, objects: Objects) -> Result<Vec<Uuid>> {
        let folder = self.path.join(objects.name());
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&format!("listing {}", folder.display()), error)),
        };
        let uuid = |entry: fs::DirEntry| Uuid::try_parse(entry.file_name().to_str()?).ok();
        let mut uuids: Vec<Uuid> = entries.flatten().filter_map(uuid).collect();
        uuids.sort();
        Ok(uuids)
    }

    /// Where an object is made.
    pub(super) fn making(&self, uuid: Uuid) -> PathBuf {
        self.path.join(MAKING).join(uuid.to_string())
    }

    /// An empty folder to make an object in.
    pub(super) fn make(&self, uuid: Uuid) -> Result<PathBuf> {
        let folder = self.making(uuid);
        // All folders from the first: on a disk that is full, none could be made to delete a volume.
        let folders =
            [Objects::Volumes.name(), Objects::Snapshots.name(), TRASH].map(|name| self.path.join(name));
        let made = folders.iter().try_for_each(fs::create_dir_all);
        let made = made.and_then(|()| fs::create_dir_all(&folder));
        made.map_err(|error| failed(&format!("making {}", folder.display()), error))?;
        Ok(folder)
    }

    /// The one instant at which the object comes into being.
    pub(super) fn commit(&self, made: &Path, objects: Objects, uuid: Uuid) -> Result<()> {
        let parent = self.path.join(objects.name());
        let place = self.object(objects, uuid);
        let commit = || {
            sync(&self.path)?;
            sync(made)?;
            fs::rename(made, &place)?;
            sync(&parent)
        };
        commit().map_err(|error| failed(&format!("moving {} to {}", made.display(), place.display()), error))
    }

    /// The one instant at which the object goes; its data lies in the trash until it is removed.
    pub(super) fn discard(&self, objects: Objects, uuid: Uuid) -> Result<()> {
        self.to_trash(&self.object(objects, uuid))
    }

    /// At start nothing is being made: what is there was left by a kill.
    pub(super) fn discard_unfinished(&self) -> Result<()> {
        self.entries(MAKING).iter().try_for_each(|path| self.to_trash(path))
    }

    /// What lies in the trash.
    pub(super) fn trash(&self) -> Vec<PathBuf> {
        self.entries(TRASH)
    }

    /// What lies in the trash of an object.
    pub(super) fn discarded(&self, uuid: Uuid) -> Vec<PathBuf> {
        let uuid = uuid.to_string();
        let of_object =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&uuid));
        self.trash().into_iter().filter(of_object).collect()
    }

    fn to_trash(&self, from: &Path) -> Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (trash, number) = (self.path.join(TRASH), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        let moved = || {
            fs::create_dir_all(&trash)?;
            fs::rename(from, trash.join(format!("{name}.{}.{number}", std::process::id())))?;
            from.parent().map_or(Ok(()), sync)
        };
        moved().map_err(|error| failed(&format!("moving {} to the trash", from.display()), error))
    }

    fn entries(&self, folder: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.join(folder)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// Nothing there is success.
pub(super) fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
