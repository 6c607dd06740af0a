//! CreateSnapshot: the name is claimed, then one native snapshot is taken of the image itself. No copy, no second image.

mod blocks;
pub(crate) mod claim;
mod delete;
mod list;

use uuid::Uuid;

use crate::backend::{CreateSnapshot, Image, Snapshot};
use crate::error::{Error, Result, chain};
use crate::id::{SnapshotId, VolumeId, snapshot_uuid};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json;
use crate::backend::rbd::meta::{self, Meta};
use crate::backend::rbd::params::snapshot_prefix;
use crate::backend::rbd::pool::index::{index_object, snapshot_key};
use crate::backend::rbd::trash::tombstone::{named_id, of_uuid};
use crate::backend::rbd::volume::not_found;

use claim::Claimed;

/// A snapshot on the image that holds it.
type Held = (Image, json::Snapshot);

/// The image of a volume that has or is to have snapshots.
struct Taken {
    image: Image,
    snapshots: Vec<json::Snapshot>,
    meta: Meta,
}

/// What is to be taken.
pub(crate) struct NewSnapshot<'a> {
    cli: &'a Cli<'a>,
    pool: String,
    id: SnapshotId,
    /// Of the snapshot in the image.
    name: String,
    request: &'a CreateSnapshot,
}

impl Rbd {
    pub(crate) async fn create_snapshot(&self, request: &CreateSnapshot) -> Result<Snapshot> {
        let prefix = snapshot_prefix(request)?;
        let access = self.clusters.access(&request.source.cluster, &request.secrets)?;
        let cli = &self.cli(&access);
        let id = self.snapshot_id(request)?;
        let pool = self.pools.name(cli, &id.own.pool).await?;
        let name = format!("{prefix}{}", id.own.uuid);
        let new = NewSnapshot { cli, pool, id, name, request };
        // Both to their ends: a claim that is cut off may still come to be.
        let (claimed, source) = tokio::join!(self.claim(&new), self.source(cli, &new.pool, &request.source));
        let mine = matches!(claimed, Ok(Claimed::Now));
        let source = self.begun(&new, mine, source).await;
        let reached_from = match &source {
            Ok(Some(Taken { meta, .. })) => self.reached_from(meta, request.source.uuid, &request.places),
            _ => Ok(Vec::new()),
        };
        let reached_from = self.begun(&new, mine, reached_from).await?;
        let held = async { self.taken(&new, claimed?, source?).await };
        let (meta, snapshot) = held.await.map_err(uncertain)?;
        let snapshot = told(&request.source, new.id.own.uuid, &snapshot, &meta).map_err(unfinished)?;
        let snapshot = Snapshot { reached_from, ..snapshot };
        let index = index_object(&self.instance);
        cli.omap_set(&new.pool, &index, &snapshot_key(&snapshot), "").await.map_err(unfinished)?;
        self.trash.take_up(&access, &new.pool);
        Ok(snapshot)
    }

    fn snapshot_id(&self, request: &CreateSnapshot) -> Result<SnapshotId> {
        let uuid = snapshot_uuid(&self.instance, &request.source.cluster, &request.name);
        let id = SnapshotId::new(&request.source, uuid);
        let length = id.to_string().len();
        if length > 128 {
            return Err(Error::Invalid(format!(
                "volume {} was migrated from the in-tree driver, and a snapshot of it would have an id of {length} bytes, \
                 where 128 are the most: its pool has too long a name",
                request.source
            )));
        }
        Ok(id)
    }

    /// The image of the source and its snapshots, under its default name or the recorded one.
    async fn source(&self, cli: &Cli<'_>, pool: &str, id: &VolumeId) -> Result<Option<Taken>> {
        if let Some(found) = look_at(cli, cli.image(pool, &id.default_image())).await? {
            return Ok(Some(found));
        }
        let Some(name) = self.recorded_name(cli, pool, id.uuid).await? else { return Ok(None) };
        look_at(cli, cli.image(pool, &name)).await
    }

    async fn taken(
        &self,
        new: &NewSnapshot<'_>,
        claimed: Claimed,
        source: Option<Taken>,
    ) -> Result<(Meta, json::Snapshot)> {
        let known = source.as_ref().map(|source| (source.image.clone(), source.meta.clone()));
        let (image, snapshot) = self.found_or_taken(new, claimed, source).await?;
        let meta = match known {
            Some((known, meta)) if known == image => meta,
            _ => noted(new.cli, &image).await?.unwrap_or_default(),
        };
        Ok((meta, snapshot))
    }

    async fn found_or_taken(
        &self,
        new: &NewSnapshot<'_>,
        claimed: Claimed,
        source: Option<Taken>,
    ) -> Result<Held> {
        let Some(Taken { image, snapshots, .. }) = source else { return self.of_no_volume(new).await };
        if let Some(snapshot) = of_uuid(snapshots.clone(), new.id.own.uuid) {
            return Ok((image, snapshot));
        }
        // One of an earlier volume of the same name may be on its tombstone.
        if claimed == Claimed::Before
            && let Some(held) = self.snapshot_image(new.cli, &new.id).await?
        {
            return Ok(held);
        }
        self.room_for_snapshot(new.cli, &image, &snapshots).await?;
        match new.cli.create_snapshot(&image, &new.name).await {
            Ok(_) => self.proved(new, &image).await,
            Err(Error::NotFound(_)) => self.of_no_volume(new).await,
            Err(error) => self.not_taken(new, &image, error).await,
        }
    }

    /// With a final code for an answer nobody may ask for this name again: it is not kept, unless an earlier call had it,
    /// which may have taken the snapshot.
    async fn begun<T>(&self, new: &NewSnapshot<'_>, mine: bool, source: Result<T>) -> Result<T> {
        if let Err(error) = &source
            && mine
            && !matches!(error, Error::Busy(_) | Error::TimedOut(_) | Error::Internal { .. })
        {
            self.give_up_claim(new.cli, &new.pool, &new.id).await?;
        }
        source
    }

    /// The volume is gone. A snapshot that an earlier call took of it may live on.
    async fn of_no_volume(&self, new: &NewSnapshot<'_>) -> Result<Held> {
        let source = &new.request.source;
        if let Some(held) = self.snapshot_image(new.cli, &new.id).await? {
            return Ok(held);
        }
        self.pools.prove(new.cli, &source.pool, &new.pool).await?;
        self.give_up_claim(new.cli, &new.pool, &new.id).await?;
        Err(not_found(source, &source.default_image()))
    }

    /// The snapshot is there. A twin may have moved its image meanwhile, or have taken the name for a dead one's.
    async fn proved(&self, new: &NewSnapshot<'_>, image: &Image) -> Result<Held> {
        let (snapshots, ours) = tokio::join!(new.cli.snapshots(image), self.still_claimed(new));
        if !ours.map_err(unfinished)? {
            new.cli.remove_snapshot(image, &new.name).await.map_err(unfinished)?;
            return Err(Error::Busy(format!(
                "the name of snapshot {:?} was taken by a request for another volume meanwhile: ask again",
                new.request.name
            )));
        }
        let snapshots = snapshots.map_err(unfinished)?.unwrap_or_default();
        if let Some(snapshot) = of_uuid(snapshots, new.id.own.uuid) {
            return Ok((image.clone(), snapshot));
        }
        self.snapshot_image(new.cli, &new.id).await.map_err(unfinished)?.ok_or_else(|| {
            Error::Busy(format!("volume {} is being deleted meanwhile: ask again", new.request.source))
        })
    }

    /// A final code tells the snapshotter that there is no snapshot and never will be: so look first. What crashed or
    /// was killed may have its work done a moment later.
    async fn not_taken(&self, new: &NewSnapshot<'_>, image: &Image, error: Error) -> Result<Held> {
        if matches!(error, Error::Busy(_) | Error::TimedOut(_)) {
            return Err(error);
        }
        let Ok(snapshots) = new.cli.snapshots(image).await else { return Err(unfinished(error)) };
        let Some(snapshots) = snapshots else { return self.of_no_volume(new).await };
        match of_uuid(snapshots, new.id.own.uuid) {
            Some(snapshot) => Ok((image.clone(), snapshot)),
            None if matches!(error, Error::Internal { .. }) => Err(unfinished(error)),
            None => {
                self.give_up_claim(new.cli, &new.pool, &new.id).await?;
                Err(error)
            }
        }
    }
}

/// A failure while the snapshot is there, or may be: never a final code, or the snapshotter forgets it.
fn unfinished(error: Error) -> Error {
    match error {
        Error::Busy(_) | Error::TimedOut(_) => error,
        other => Error::Busy(format!("{}; it may be taken all the same: asking again tells", chain(&other))),
    }
}

/// The same before that: what a command did that crashed or was killed, nobody knows.
fn uncertain(error: Error) -> Error {
    if matches!(error, Error::Internal { .. }) { unfinished(error) } else { error }
}

async fn look_at(cli: &Cli<'_>, image: Image) -> Result<Option<Taken>> {
    let (snapshots, meta) = tokio::try_join!(cli.snapshots(&image), noted(cli, &image))?;
    Ok(snapshots.zip(meta).map(|(snapshots, meta)| Taken { image, snapshots, meta }))
}

/// What the image of snapshots says that is told of them: how much of it a pod sees, and from where it is reached. None where
/// there is no such image.
pub(crate) async fn noted(cli: &Cli<'_>, image: &Image) -> Result<Option<Meta>> {
    let Some(id) = named_id(cli, image).await? else { return Ok(None) };
    let wanted = |key: &str| meta::says_size(key) || key == meta::TOPOLOGY;
    cli.some_meta(&image.pool, &id, wanted).await.map(Some)
}

/// A snapshot as it is told to the CO: as large as what a pod sees. `meta`: of its image.
pub(crate) fn told(
    source: &VolumeId,
    uuid: Uuid,
    snapshot: &json::Snapshot,
    meta: &Meta,
) -> Result<Snapshot> {
    let created = snapshot.taken().ok_or_else(|| {
        Error::broken(format!(
            "snapshot {}: rbd says that it was taken at {:?}, which this driver cannot read",
            snapshot.name, snapshot.timestamp
        ))
    })?;
    let (id, source) = (SnapshotId::new(source, uuid), source.clone());
    let size = snapshot.size.saturating_sub(meta::header(meta));
    Ok(Snapshot { id, source, size, created, reached_from: Vec::new() })
}
