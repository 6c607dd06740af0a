//! NodeGetVolumeStats: how full a volume is. No process, no cluster command, and it never hangs: the kernel is asked on
//! a thread of its own, one for each mount, with a deadline.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};

use super::{Node, find};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Bytes and inodes of a filesystem, or bytes of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Usage {
    Filesystem { bytes: Part, inodes: Part },
    Block { bytes: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// To users without privileges.
    pub(crate) available: u64,
}

impl Node {
    pub(crate) async fn usage(&self, volume: &str, path: &Path) -> Result<Usage> {
        let mounts = self.host.mounts()?;
        let path = find(&mounts, volume, path)?.shown.target.clone();
        self.ask(path).await
    }

    async fn ask(&self, path: PathBuf) -> Result<Usage> {
        if !self.probing.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone()) {
            return Err(hangs(&path));
        }
        let (probing, asked) = (self.probing.clone(), path.clone());
        let answer = tokio::task::spawn_blocking(move || {
            let usage = measure(&asked);
            probing.lock().unwrap_or_else(PoisonError::into_inner).remove(&asked);
            usage
        });
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(usage)) => usage
                .map_err(|error| Error::internal(format!("asking how full {} is", path.display()), error)),
            Ok(Err(error)) => Err(Error::internal(format!("asking how full {} is", path.display()), error)),
            Err(_) => Err(hangs(&path)),
        }
    }
}

fn hangs(path: &Path) -> Error {
    Error::TimedOut(format!(
        "{} does not answer: the storage behind it, or the way there, hangs",
        path.display()
    ))
}

fn measure(path: &Path) -> std::io::Result<Usage> {
    if !path.is_dir() {
        return Ok(Usage::Block { bytes: File::open(path)?.seek(SeekFrom::End(0))? });
    }
    let stat = statvfs(path)?;
    let block = stat.fragment_size();
    let bytes = Part {
        total: stat.blocks() * block,
        used: (stat.blocks() - stat.blocks_free()) * block,
        available: stat.blocks_available() * block,
    };
    let inodes = Part {
        total: stat.files(),
        used: stat.files() - stat.files_free(),
        available: stat.files_available(),
    };
    Ok(Usage::Filesystem { bytes, inodes })
}
