//! Copies of an image as it is at one instant: a reflink where the filesystem of the root has them, else a copy that
//! keeps the holes, with the filesystem on the image frozen meanwhile.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};

use crate::error::{Error, Result};
use crate::host::{Cmd, Host, Mount, holders};
use crate::ops::Ops;

use super::{failed, io, loops, root};

/// The slowest disk that a copy is given time for, in bytes a second.
const SLOWEST: u64 = 4 << 20;

/// Where the content of an image shows on this node.
struct Use {
    device: PathBuf,
    /// Mounts of the filesystem on it; none where it is used as a block device.
    mounts: Vec<PathBuf>,
}

/// Who copies, and who waits.
pub(super) struct Copies {
    /// Where there are no reflinks: how many copies run at once.
    slots: Semaphore,
    /// A source is frozen by one copy at a time: whoever came second would thaw what the first has frozen.
    sources: std::sync::Mutex<HashMap<PathBuf, Weak<Mutex<()>>>>,
    ops: Ops,
}

impl Copies {
    pub(super) fn new(at_once: usize, ops: Ops) -> Self {
        Self { slots: Semaphore::new(at_once), sources: std::sync::Mutex::default(), ops }
    }

    /// Copies the image; answers whether its blocks are shared with the original.
    pub(super) async fn copy(&self, host: &dyn Host, from: &Path, to: &Path) -> Result<bool> {
        let uses = uses(host, from).await?;
        for used in &uses {
            flush(used).await?;
        }
        if cp(host, from, to, "--reflink=always", "--sparse=auto").await.is_ok() {
            sync(to)?;
            return Ok(true);
        }
        if let Some(raw) = uses.iter().find(|used| used.mounts.is_empty()) {
            return Err(Error::Precondition(format!(
                "{} is in use as the block device {}, and the filesystem of --local-root has no reflinks: unpublish \
                 and unstage the volume first, or put --local-root on xfs or btrfs",
                from.display(),
                raw.device.display()
            )));
        }
        let turn = self.turn(from);
        // Waited for before anything is frozen.
        let (_turn, _slot) = (turn.lock().await, self.slots.acquire().await);
        let mounts: Vec<&PathBuf> = uses.iter().filter_map(|used| used.mounts.first()).collect();
        self.copy_frozen(host, from, to, &mounts).await?;
        sync(to)?;
        Ok(false)
    }

    /// A copy of what was not frozen all the while is none.
    async fn copy_frozen(&self, host: &dyn Host, from: &Path, to: &Path, mounts: &[&PathBuf]) -> Result<()> {
        let (mut frozen, mut result) = (Vec::new(), Ok(()));
        for mount in mounts {
            match host.run(fsfreeze("--freeze", mount)).await {
                Ok(_) => frozen.push(mount),
                // Somebody else froze it, and has it thawed.
                Err(error) => result = Err(Error::internal(format!("freezing {}", mount.display()), error)),
            }
        }
        if result.is_ok() {
            result = tokio::select! {
                copied = cp(host, from, to, "--reflink=never", "--sparse=always") => copied,
                // Whoever writes would hang until the next start, and a pod that hangs so cannot be ended.
                () = self.ops.stopped() => Err(Error::Busy("the driver is ending, and the copy with it: ask again".to_owned())),
            };
        }
        for mount in frozen {
            if let Err(error) = host.run(fsfreeze("--unfreeze", mount)).await {
                tracing::error!(mount = %mount.display(), "thawing failed: is it frozen still (fsfreeze --unfreeze)? {error}");
                let what = format!(
                    "thawing {}, which may have been thawed by somebody else too early",
                    mount.display()
                );
                result = result.and(Err(Error::internal(what, error)));
            }
        }
        result
    }

    fn turn(&self, source: &Path) -> Arc<Mutex<()>> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = sources.get(source).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Mutex::new(()));
        sources.insert(source.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Lets filesystems go that a killed driver left frozen.
pub(super) async fn thaw_all(host: &dyn Host, device: &Path) {
    for mount in mounts_of(host, device).unwrap_or_default() {
        // Of one that is not frozen, it says so and nothing happens.
        let _ = host.run(fsfreeze("--unfreeze", &mount)).await;
    }
}

async fn cp(host: &dyn Host, from: &Path, to: &Path, reflink: &str, sparse: &str) -> Result<()> {
    let what = format!("copying {} to {}", from.display(), to.display());
    let held = root::held(from).map_err(|error| failed(&what, error))?;
    let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
    let cp = Cmd::new("cp", [reflink, sparse, "--", &*from, &*to]);
    match host.run(cp.deadline(Duration::from_secs(60 + held / SLOWEST))).await {
        Ok(_) => Ok(()),
        Err(error) if error.said.contains("No space left on device") => {
            Err(Error::NoSpace(format!("{what}: {error}: free some room under --local-root")))
        }
        Err(error) => Err(Error::internal(what, error)),
    }
}

async fn uses(host: &dyn Host, image: &Path) -> Result<Vec<Use>> {
    let mut uses = Vec::new();
    for found in loops::on(host, image).await? {
        // One that nobody reads or writes through.
        if holders::of(&found.device).await.is_some() && !found.read_only {
            let mounts = mounts_of(host, &found.device)?;
            uses.push(Use { device: found.device, mounts });
        }
    }
    Ok(uses)
}

fn mounts_of(host: &dyn Host, device: &Path) -> Result<Vec<PathBuf>> {
    let whole = |mount: &Mount| mount.source == device && !mount.is_part();
    Ok(host.mounts()?.into_iter().filter(whole).map(|mount| mount.target).collect())
}

/// What programs have written goes from memory to the image: not more than a power cut leaves is promised, and this is
/// what users expect.
async fn flush(used: &Use) -> Result<()> {
    let path = used.mounts.first().unwrap_or(&used.device).clone();
    let what = format!("flushing {}", path.display());
    let flush = move || {
        File::open(&path)
            .and_then(|file| nix::unistd::syncfs(&file).map_err(Into::into).and_then(|()| file.sync_all()))
    };
    let flushed =
        tokio::task::spawn_blocking(flush).await.map_err(|error| Error::internal(what.clone(), error))?;
    flushed.map_err(|error| failed(&what, error))
}

fn sync(path: &Path) -> Result<()> {
    io(|| File::open(path)?.sync_all())
        .map_err(|error| failed(&format!("flushing {}", path.display()), error))
}

fn fsfreeze(how: &str, mount: &Path) -> Cmd {
    Cmd::new("fsfreeze", [how, &mount.to_string_lossy()])
}
