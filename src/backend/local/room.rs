//! How much may still be promised: the free room of the filesystem less what sparse images may yet take.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};

use super::failed;
use super::meta::Meta;
use super::params::Kind;
use super::root::{self, Objects, Root};

/// The room below the root.
pub(super) struct Room {
    /// How many times it may be promised.
    overcommit: f64,
    /// Bytes of the promises that are being made.
    pending: Mutex<u64>,
}

/// A promise until it is kept: then the object itself counts.
pub(super) struct Promise<'a> {
    room: &'a Room,
    bytes: u64,
}

/// What an object holds already, and the most that it may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    held: u64,
    promised: u64,
}

impl Room {
    pub(super) fn new(overcommit: f64) -> Self {
        Self { overcommit, pending: Mutex::default() }
    }

    /// Bytes that can be promised now.
    pub(super) fn free(&self, root: &Root) -> Result<u64> {
        let pending = *self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.unpromised(root)?.saturating_sub(pending))
    }

    /// `NoSpace` where so much is not there.
    pub(super) fn promise(&self, root: &Root, bytes: u64) -> Result<Promise<'_>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.unpromised(root)?.saturating_sub(*pending);
        if bytes > free {
            return Err(Error::NoSpace(format!(
                "{bytes} bytes are asked for, and --local-root {} can promise {free} more: free some room, or promise more than \
                 is there (--local-overcommit)",
                root.path().display()
            )));
        }
        *pending += bytes;
        Ok(Promise { room: self, bytes })
    }

    fn unpromised(&self, root: &Root) -> Result<u64> {
        let mut all = Share::default();
        for objects in [Objects::Volumes, Objects::Snapshots] {
            for uuid in root.uuids(objects)? {
                let share = share(&root.object(objects, uuid), objects);
                all = Share { held: all.held + share.held, promised: all.promised + share.promised };
            }
        }
        Ok(scaled(available(root.path())? + all.held, self.overcommit).saturating_sub(all.promised))
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        *self.room.pending.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
    }
}

/// Bytes that the filesystem gives to users without privileges.
fn available(path: &Path) -> Result<u64> {
    let stat = statvfs(path)
        .map_err(|errno| failed(&format!("asking how full {} is", path.display()), errno.into()))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// An object whose metadata cannot be read counts as what it holds. Blocks that it shares with its source may have to be
/// written anew, so they are no room that it holds: where the source is gone since, that is more careful than need be.
fn share(object: &Path, objects: Objects) -> Share {
    let held = root::held(&root::image(object)).unwrap_or(0);
    match Meta::read(object) {
        Ok(Some(meta)) => {
            let most = if objects == Objects::Snapshots { held } else { meta.size.max(held) };
            let held = if meta.kind == Kind::Directory { used_of_quota(object, &meta) } else { held };
            Share { held: if meta.shared { 0 } else { held }, promised: most }
        }
        Ok(None) | Err(_) => Share { held, promised: held },
    }
}

/// What statvfs(2) says inside a folder with a project quota is the quota's.
fn used_of_quota(object: &Path, meta: &Meta) -> u64 {
    let stat = meta.project.and_then(|_| statvfs(&root::data(object)).ok());
    let used = stat.map(|stat| (stat.blocks() - stat.blocks_free()) * stat.fragment_size());
    used.unwrap_or(0).min(meta.size)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a ratio from 1 to 1000 of a number of bytes: the nearest is good enough, and casts saturate"
)]
fn scaled(bytes: u64, ratio: f64) -> u64 {
    if ratio <= 1.0 { bytes } else { (bytes as f64 * ratio) as u64 }
}
