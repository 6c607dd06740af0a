//! What a node does with a volume: stage, publish, stats, and the way back. No gRPC here. Each step looks before it
//! acts, so that a call repeated after a kill at any point goes on from there.

mod publish;
mod stage;
mod stash;
mod stats;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::backend::{Backend, Capability, Target};
use crate::error::{Error, Result};
use crate::host::{Host, Mount};

pub(crate) use stats::Usage;

pub(crate) struct Node {
    host: Arc<dyn Host>,
    backend: Arc<dyn Backend>,
    id: String,
    /// Mounts that are being asked how full they are: at most one question at a time.
    probing: Arc<Mutex<HashSet<PathBuf>>>,
}

pub(crate) struct StageVolume {
    pub(crate) target: Target,
    pub(crate) staging: PathBuf,
    pub(crate) capability: Capability,
}

pub(crate) struct PublishVolume {
    pub(crate) volume: String,
    pub(crate) staging: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) capability: Capability,
    pub(crate) read_only: bool,
}

impl Node {
    pub(crate) fn new(host: Arc<dyn Host>, backend: Arc<dyn Backend>, id: String) -> Self {
        Self { host, backend, id, probing: Arc::default() }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn mounts(&self) -> Result<Vec<Mount>> {
        self.host.mounts().map_err(|error| Error::internal("reading the mounts of this node", error))
    }

    /// The topmost mount at a path.
    fn mount_at(&self, path: &Path) -> Result<Option<Mount>> {
        Ok(self.mounts()?.into_iter().rfind(|mount| mount.target == path))
    }

    /// Takes away every mount at a path, and the path. Works on mounts whose device is gone.
    async fn clear(&self, path: &Path) -> Result<()> {
        while self.mount_at(path)?.is_some() {
            self.host.unmount(path).await.map_err(|error| match error.raw_os_error() {
                Some(nix::libc::EBUSY) => {
                    Error::Precondition(format!("{} is still in use: end what uses it", path.display()))
                }
                _ => Error::internal(format!("unmounting {}", path.display()), error),
            })?;
        }
        remove(path)
    }
}

/// The path as the kernel names it in mountinfo: its folder without symlinks. What does not exist stays as it is.
fn resolved(path: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
    parent.canonicalize().map_or_else(|_| path.to_owned(), |parent| parent.join(name))
}

/// Makes the file or folder that a mount covers. Already there is success.
fn make_mount_point(path: &Path, file: bool) -> Result<()> {
    let made = if file {
        path.parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).open(path).map(drop))
    } else {
        std::fs::create_dir_all(path)
    };
    made.map_err(|error| Error::internal(format!("making the mount point {}", path.display()), error))
}

/// Removes an empty mount point, never anything below it.
fn remove(path: &Path) -> Result<()> {
    let kind = match path.symlink_metadata() {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::internal(format!("looking at {}", path.display()), error)),
    };
    let removed = if kind.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    removed.map_err(|error| Error::internal(format!("removing {}", path.display()), error))
}
