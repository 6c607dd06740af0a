//! Names of snapshots are claimed, so that two replicas never give one name to two volumes: an exclusive lock on an
//! object of the name, whose cookie is the uuid of the source. Taken before the snapshot, given up before it goes.

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::id::{SnapshotId, VolumeId};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Locker;
use crate::backend::rbd::snapshot::NewSnapshot;
use crate::backend::rbd::trash::tombstone::is_young;

/// How many `--command-timeout`s a claim without a snapshot is left alone: twice what all commands of a request between
/// its claim and its snapshot may take.
pub(crate) const PATIENCE: u32 = 10;
/// What the object of a claim is called before the uuid of the snapshot.
pub(crate) const CLAIM: &str = "csi.rbd.snap.";

/// Since when a name is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimed {
    Now,
    /// By an earlier call, or a twin's.
    Before,
}

impl Rbd {
    pub(crate) async fn claim(&self, new: &NewSnapshot<'_>) -> Result<Claimed> {
        let (object, source) = (claim_object(&new.id), new.request.source.uuid.to_string());
        for _ in 0..3 {
            if new.cli.claim(&new.pool, &object, &source).await? {
                return Ok(Claimed::Now);
            }
            match new.cli.claimant(&new.pool, &object).await? {
                Some(owner) if owner.cookie == source => return Ok(Claimed::Before),
                Some(owner) => self.break_dead_claim(new, &object, &owner).await?,
                None => {}
            }
        }
        Err(Error::Busy(format!(
            "the name of snapshot {:?} is being taken and given up by others: ask again",
            new.request.name
        )))
    }

    /// Whether the name is ours still; one that was given up meanwhile is taken again.
    pub(crate) async fn still_claimed(&self, new: &NewSnapshot<'_>) -> Result<bool> {
        let (object, source) = (claim_object(&new.id), new.request.source.uuid.to_string());
        match new.cli.claimant(&new.pool, &object).await? {
            Some(owner) => Ok(owner.cookie == source),
            None => new.cli.claim(&new.pool, &object, &source).await,
        }
    }

    /// Gives the name up, if it is claimed for the source of this snapshot.
    pub(crate) async fn give_up_claim(&self, cli: &Cli<'_>, pool: &str, id: &SnapshotId) -> Result<()> {
        let object = claim_object(id);
        match cli.claimant(pool, &object).await? {
            Some(owner) if id.source.is_none_or(|source| owner.cookie != source.to_string()) => Ok(()),
            Some(_) => cli.remove_object(pool, &object).await,
            // Killed between lock and object there is none; an object without a lock is what a broken claim leaves.
            None => Ok(()),
        }
    }

    /// A claim whose snapshot is not there, and whose request has long ended, is nobody's.
    async fn break_dead_claim(&self, new: &NewSnapshot<'_>, object: &str, owner: &Locker) -> Result<()> {
        let taken = |by: &dyn std::fmt::Display| {
            Error::Conflict(format!(
                "snapshot {:?} exists, of {by}, where one of {} is asked for",
                new.request.name, new.request.source
            ))
        };
        let Ok(source) = Uuid::try_parse(&owner.cookie) else { return Err(taken(&owner.cookie)) };
        let volume = VolumeId { uuid: source, ..new.id.own.clone() };
        let other = SnapshotId::new(&volume, new.id.own.uuid);
        let (held, since) =
            tokio::try_join!(self.snapshot_image(new.cli, &other), new.cli.object_time(&new.pool, object))?;
        if held.is_some() {
            return Err(taken(&format_args!("volume {volume}")));
        }
        if since.is_some_and(|since| is_young(since, self.deadline * PATIENCE)) {
            return Err(Error::Busy(format!(
                "snapshot {:?} is being taken of volume {volume}: ask again",
                new.request.name
            )));
        }
        tracing::warn!(name = new.request.name, %source, "an interrupted request left the name claimed: it is taken from it");
        new.cli.break_claim(&new.pool, object, owner).await.map(drop)
    }
}

fn claim_object(id: &SnapshotId) -> String {
    format!("{CLAIM}{}", id.own.uuid)
}
