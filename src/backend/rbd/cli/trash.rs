//! The trash of a pool.

use crate::backend::Image;
use crate::error::Result;
use crate::host::{Cmd, Slot};

use super::{Cli, absent_is_none, errno, explain};

/// What became of an image in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    Removed,
    /// It is not in the trash.
    Absent,
    /// Somebody watches it, or clones live on its snapshots.
    Waits,
}

impl Cli<'_> {
    /// Moves an image, or what a killed command left of one, to the trash. False where there is nothing of that name.
    pub(crate) async fn trash_move(&self, image: &Image) -> Result<bool> {
        let moved = self.run("rbd", ["trash", "mv", &image.to_string()], |cmd| cmd).await;
        let moved =
            absent_is_none(moved).map_err(|error| explain(&format!("moving {image} to the trash"), error))?;
        Ok(moved.is_some())
    }

    /// Takes an image out of the trash, under a name. False where it is not in there.
    pub(crate) async fn trash_restore(&self, pool: &str, id: &str, name: &str) -> Result<bool> {
        let spec = format!("{}/{id}", self.pool(pool));
        let restored = self.run("rbd", ["trash", "restore", "--image", name, &spec], |cmd| cmd).await;
        let restored = absent_is_none(restored).map_err(|error| {
            explain(&format!("restoring image {id} as {name} from the trash of {pool}"), error)
        })?;
        Ok(restored.is_some())
    }

    /// Frees what is in the trash: work that grows with the image.
    pub(crate) async fn trash_remove(&self, pool: &str, id: &str) -> Result<Removal> {
        let spec = format!("{}/{id}", self.pool(pool));
        let slow = |cmd: Cmd| cmd.slot(Slot::Trash).deadline(self.deadline * 10);
        let removed = self.run("rbd", ["trash", "rm", &spec], slow).await;
        match removed.map_err(|error| (error.exit(), error)) {
            Ok(_) => Ok(Removal::Removed),
            Err((Some(errno::NOENT), _)) => Ok(Removal::Absent),
            Err((Some(errno::NOTEMPTY | errno::BUSY), _)) => Ok(Removal::Waits),
            Err((_, error)) => Err(explain(&format!("removing image {id} from the trash of {pool}"), error)),
        }
    }
}
