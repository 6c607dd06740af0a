//! The trash of a pool.

use crate::backend::Image;
use crate::error::Result;
use crate::host::{Cmd, Slot};

use crate::backend::rbd::cli::json::Trashed;
use crate::backend::rbd::cli::{Cli, absent_is_none, errno, explain, parse};

const JSON: &str = "--format=json";

/// What became of an image in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    Removed,
    /// It is not in the trash.
    Absent,
    /// Somebody watches it.
    Watched,
    /// It has snapshots, of a user or such as live on because they have clones.
    HasSnapshots,
}

/// What became of an image that was to come out of the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restored {
    Done,
    /// It is not in the trash.
    Absent,
    /// A `trash rm` is at work on it, or was killed at it: the next one, which fails, ends that.
    Removing,
}

impl Cli<'_> {
    /// Moves an image, or what a killed command left of one, to the trash. False where there is nothing of that name.
    pub(crate) async fn trash_move(&self, image: &Image) -> Result<bool> {
        let moved = self.run("rbd", ["trash", "mv", &image.to_string()], |cmd| cmd).await;
        let moved =
            absent_is_none(moved).map_err(|error| explain(&format!("moving {image} to the trash"), error))?;
        Ok(moved.is_some())
    }

    /// What is in the trash of a pool.
    pub(crate) async fn trashed(&self, pool: &str) -> Result<Vec<Trashed>> {
        let what = format!("listing the trash of {}", self.pool(pool));
        let args =
            ["trash".to_owned(), "ls".to_owned(), self.pool(pool), "--all".to_owned(), JSON.to_owned()];
        let output = self.run("rbd", args, |cmd| cmd).await.map_err(|error| explain(&what, error))?;
        parse(&what, &output)
    }

    /// Takes an image out of the trash, under a name; one that was killed is taken up.
    pub(crate) async fn trash_restore(&self, pool: &str, id: &str, name: &str) -> Result<Restored> {
        let spec = format!("{}/{id}", self.pool(pool));
        let restored = self.run("rbd", ["trash", "restore", "--image", name, &spec], |cmd| cmd).await;
        match restored.map_err(|error| (error.exit(), error)) {
            Ok(_) => Ok(Restored::Done),
            Err((Some(errno::NOENT), _)) => Ok(Restored::Absent),
            // 116: a twin changed what the trash says of it in between (seen).
            Err((Some(errno::BUSY | errno::STALE), _)) => Ok(Restored::Removing),
            Err((_, error)) => {
                Err(explain(&format!("restoring image {id} as {name} from the trash of {pool}"), error))
            }
        }
    }

    /// Frees what is in the trash: work that grows with the image.
    pub(crate) async fn trash_remove(&self, pool: &str, id: &str) -> Result<Removal> {
        let spec = format!("{}/{id}", self.pool(pool));
        let slow = |cmd: Cmd| cmd.slot(Slot::Trash).deadline(self.deadline * 10);
        let removed = self.run("rbd", ["trash", "rm", &spec], slow).await;
        match removed.map_err(|error| (error.exit(), error)) {
            Ok(_) => Ok(Removal::Removed),
            Err((Some(errno::NOENT), _)) => Ok(Removal::Absent),
            Err((Some(errno::BUSY), _)) => Ok(Removal::Watched),
            Err((Some(errno::NOTEMPTY), _)) => Ok(Removal::HasSnapshots),
            Err((_, error)) => Err(explain(&format!("removing image {id} from the trash of {pool}"), error)),
        }
    }
}
