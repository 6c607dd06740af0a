//! Where a snapshot is: on the image of its volume, or on what is left of it. A volume that is deleted while it has
//! snapshots becomes a tombstone: the image under another name, which goes with its last snapshot.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::id::{SnapshotId, trailing_uuid};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::cli::{Cli, Renamed, Restored};
use crate::backend::rbd::trash::{Trash, length_prefixed};
use crate::backend::rbd::volume::id_object;
use crate::backend::rbd::watchers::{LOOK_AGAIN, LOOKS};

/// A tombstone is `csi-del-<uuid of the volume>-<image id>`: one uuid may have several, as a volume of one name may be
/// made and deleted again and again.
const TOMBSTONE: &str = "csi-del-";
/// The snapshot that a volume is cloned through, `csi-clone-<uuid of the clone>`: gone, into the trash of the source, as
/// soon as the clone is proved.
pub(crate) const TEMPORARY: &str = "csi-clone-";

impl Rbd {
    /// The image that holds the snapshot, and the snapshot. None where there is none.
    pub(crate) async fn snapshot_image(
        &self,
        cli: &Cli<'_>,
        id: &SnapshotId,
    ) -> Result<Option<(Image, Snapshot)>> {
        let Some(volume) = id.source_volume() else {
            return self.ceph_csi_snapshot_image(cli, id).await;
        };
        let pool = self.pools.name(cli, &volume.pool).await?;
        let image = cli.image(&pool, &volume.default_image());
        if let Some(found) = holding(cli, image, id.own.uuid).await? {
            return Ok(Some(found));
        }
        if let Some(name) = self.recorded_name(cli, &pool, volume.uuid).await?
            && let Some(found) = holding(cli, cli.image(&pool, &name), id.own.uuid).await?
        {
            return Ok(Some(found));
        }
        // The trash first: an image with this snapshot leaves it as a tombstone, and never goes the other way.
        self.trash.surface_all(cli, &pool, volume.uuid).await?;
        for image in tombstones(cli, &pool, volume.uuid).await? {
            if let Some(found) = holding(cli, image, id.own.uuid).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Gives the image of a deleted volume, which has snapshots, its other name. A killed one is taken up.
    pub(crate) async fn entomb(&self, cli: &Cli<'_>, image: &Image, uuid: Uuid, id: &str) -> Result<()> {
        let tombstone = cli.image(&image.pool, &tombstone_name(uuid, id));
        for _ in 0..3 {
            if cli.rename(image, &tombstone).await? != Renamed::Taken {
                // A twin may have removed the last snapshot before it had this name.
                return self.trash.bury(cli, &tombstone, uuid, id, self.deadline).await;
            }
            if self.is_half_renamed(cli, image, id).await? {
                cli.remove_object(&image.pool, &id_object(image)).await?;
                return self.trash.bury(cli, &tombstone, uuid, id, self.deadline).await;
            }
            self.unname(cli, &tombstone, image, id).await?;
        }
        Err(Error::Busy(format!("image {image} is being renamed by somebody else: ask again")))
    }

    /// A killed rename leaves both names, and the image listed under one of them. True: this is the old one, and its
    /// image is listed as a tombstone.
    pub(crate) async fn is_half_renamed(&self, cli: &Cli<'_>, image: &Image, id: &str) -> Result<bool> {
        let listed = listed_name(cli, &image.pool, id).await?;
        let moved = listed.is_some_and(|name| name != image.name && is_tombstone(&name));
        Ok(moved && named_id(cli, image).await?.as_deref() == Some(id))
    }

    /// Takes away an old name that a killed rename left: it opens a tombstone. False where it is none.
    pub(crate) async fn drop_old_name(&self, cli: &Cli<'_>, image: &Image) -> Result<bool> {
        let Some(id) = named_id(cli, image).await? else { return Ok(false) };
        let old = self.is_half_renamed(cli, image, &id).await?;
        if old {
            tracing::warn!(%image, "an interrupted deletion left this name to a tombstone: it is taken from it");
            cli.remove_object(&image.pool, &id_object(image)).await?;
        }
        Ok(old)
    }

    /// Takes away a new name under which the image is not listed yet: a twin may be about to do that, so not at once.
    async fn unname(&self, cli: &Cli<'_>, tombstone: &Image, image: &Image, id: &str) -> Result<()> {
        let object = id_object(tombstone);
        let (since, listed) =
            tokio::try_join!(cli.object_time(&image.pool, &object), listed_name(cli, &image.pool, id))?;
        let Some(since) = since else { return Ok(()) };
        if listed.as_ref() != Some(&image.name) || is_young(since, self.deadline) {
            return Err(Error::Busy(format!("image {image} is being renamed to {tombstone}: ask again")));
        }
        cli.remove_object(&image.pool, &object).await
    }

    /// Removes what is left of a volume where no snapshot is left on it.
    pub(crate) async fn bury_empty(&self, cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<()> {
        for tombstone in tombstones(cli, pool, uuid).await? {
            if let Some(id) = tombstone.name.strip_prefix(&tombstone_name(uuid, "")) {
                self.trash.bury(cli, &tombstone, uuid, id, self.deadline).await?;
            }
        }
        Ok(())
    }
}

impl Trash {
    /// Moves a tombstone without snapshots to the trash.
    async fn bury(
        self: &Arc<Self>,
        cli: &Cli<'_>,
        tombstone: &Image,
        uuid: Uuid,
        id: &str,
        deadline: Duration,
    ) -> Result<()> {
        let Some(snapshots) = cli.snapshots(tombstone).await? else { return Ok(()) };
        if kept(cli, tombstone, snapshots, deadline).await?.is_empty() {
            self.dispose(cli, tombstone, uuid, Some(id.to_owned())).await?;
        }
        Ok(())
    }

    /// Moves an image to the trash. False where there is nothing. A twin may have taken a snapshot in between: then the
    /// image comes back as a tombstone.
    pub(crate) async fn dispose(
        self: &Arc<Self>,
        cli: &Cli<'_>,
        image: &Image,
        uuid: Uuid,
        id: Option<String>,
    ) -> Result<bool> {
        let moved = self.discard(cli, image, id.clone()).await?;
        if let Some(id) = id {
            self.surface(cli, &image.pool, uuid, &id).await?;
        }
        Ok(moved)
    }

    /// Takes an image out of the trash, as a tombstone, if somebody has a snapshot on it. False where nobody has.
    pub(crate) async fn surface(&self, cli: &Cli<'_>, pool: &str, uuid: Uuid, id: &str) -> Result<bool> {
        let snapshots = cli.snapshots_of_trashed(pool, id).await?.unwrap_or_default();
        let lasting = |snapshot: &Snapshot| snapshot.is_of_a_user() && !is_temporary(snapshot);
        if !snapshots.iter().any(lasting) {
            return Ok(false);
        }
        let name = tombstone_name(uuid, id);
        tracing::info!(
            pool,
            name,
            "a snapshot was taken while its image was deleted: the image is kept for it"
        );
        for _ in 0..LOOKS * 2 {
            if cli.trash_restore(pool, id, &name).await? != Restored::Removing {
                return Ok(true);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Err(Error::Busy(format!(
            "image {id} in the trash of {pool} has snapshots and is being removed all the same, which fails: ask again"
        )))
    }

    /// The same for all that the trash has of a volume.
    pub(crate) async fn surface_all(&self, cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<()> {
        for entry in cli.trashed(pool).await? {
            if volume_of(&entry.name) == Some(uuid) {
                self.surface(cli, pool, uuid, &entry.id).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn tombstone_name(uuid: Uuid, image_id: &str) -> String {
    format!("{TOMBSTONE}{uuid}-{image_id}")
}

pub(crate) fn is_tombstone(name: &str) -> bool {
    name.starts_with(TOMBSTONE)
}

/// The volume that an image of ours or of ceph-csi's is of, or was.
pub(crate) fn volume_of(name: &str) -> Option<Uuid> {
    match name.strip_prefix(TOMBSTONE) {
        Some(rest) => Uuid::try_parse(rest.get(..36)?).ok(),
        None => trailing_uuid(name),
    }
}

/// The uuid of a snapshot that CreateSnapshot of this driver took, by its name.
pub(crate) fn csi_uuid(name: &str) -> Option<Uuid> {
    let uuid = trailing_uuid(name).filter(|uuid| uuid.get_version_num() == 5);
    uuid.filter(|_| !name.starts_with(TEMPORARY))
}

/// Taken by CreateSnapshot of this driver, and not by an administrator, a mirror or a group.
pub(crate) fn is_csi(snapshot: &Snapshot) -> bool {
    csi_uuid(&snapshot.name).is_some()
}

/// One that a clone is made through: of this driver, or of ceph-csi, which takes one on a volume for the moment in which it
/// makes the image of a snapshot (`csi-snap-<uuid>`) or of a clone (`csi-vol-<uuid>-temp`), and leaves it where it is killed
/// in that moment. No request names it. Its first releases left a snapshot for good, but protected.
pub(crate) fn is_temporary(snapshot: &Snapshot) -> bool {
    let name = &snapshot.name;
    let of_a_snapshot = name.strip_prefix("csi-snap-");
    let of_a_clone = name.strip_prefix("csi-vol-").and_then(|name| name.strip_suffix("-temp"));
    let foreign =
        |text: &str| trailing_uuid(text).is_some_and(|uuid| text.len() == 36 && uuid.get_version_num() != 5);
    let ceph_csi = of_a_snapshot.or(of_a_clone).is_some_and(foreign) && !snapshot.protected;
    name.starts_with(TEMPORARY) || ceph_csi
}

/// The snapshots of users, but for the temporary ones, which are removed: with a clone they are not needed any more, and
/// old ones are of nobody. A young one without a clone is of a clone that is being made.
pub(crate) async fn kept(
    cli: &Cli<'_>,
    image: &Image,
    snapshots: Vec<Snapshot>,
    deadline: Duration,
) -> Result<Vec<Snapshot>> {
    let of_users = snapshots.into_iter().filter(Snapshot::is_of_a_user);
    let (temporary, lasting): (Vec<_>, Vec<_>) = of_users.partition(is_temporary);
    for snapshot in temporary {
        let old = snapshot.taken().is_some_and(|taken| !is_young(taken, deadline * 2));
        if !old && cli.children_of(image, &snapshot.name).await?.unwrap_or_default().is_empty() {
            let name = &snapshot.name;
            return Err(Error::Busy(format!(
                "image {image} is being cloned (its snapshot {name}): ask again"
            )));
        }
        cli.remove_snapshot(image, &snapshot.name).await?;
    }
    Ok(lasting)
}

/// Of a temporary snapshot on an image in the trash.
pub(crate) fn is_abandoned(snapshot: &Snapshot, deadline: Duration) -> bool {
    is_temporary(snapshot) && snapshot.taken().is_some_and(|taken| !is_young(taken, deadline * 2))
}

pub(crate) fn is_young(since: SystemTime, limit: Duration) -> bool {
    SystemTime::now().duration_since(since).unwrap_or_default() < limit
}

/// What is left of a volume, once for each time that it was deleted.
pub(crate) async fn tombstones(cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<Vec<Image>> {
    let names = cli.images(pool).await?;
    let prefix = tombstone_name(uuid, "");
    let ours = names.iter().filter(|name| name.starts_with(&prefix));
    Ok(ours.map(|name| cli.image(pool, name)).collect())
}

/// The snapshot of this uuid, whatever prefix its name was given; not one that is in the trash of the image.
pub(crate) fn of_uuid(snapshots: Vec<Snapshot>, uuid: Uuid) -> Option<Snapshot> {
    let uuid = uuid.to_string();
    snapshots.into_iter().find(|snapshot| snapshot.is_of_a_user() && snapshot.name.ends_with(&uuid))
}

async fn holding(cli: &Cli<'_>, image: Image, uuid: Uuid) -> Result<Option<(Image, Snapshot)>> {
    let snapshots = cli.snapshots(&image).await?.unwrap_or_default();
    Ok(of_uuid(snapshots, uuid).map(|snapshot| (image, snapshot)))
}

/// The name under which the directory of the pool has an image.
pub(crate) async fn listed_name(cli: &Cli<'_>, pool: &str, id: &str) -> Result<Option<String>> {
    let name = cli.omap_get(pool, "rbd_directory", &format!("id_{id}")).await?;
    Ok(name.as_deref().and_then(length_prefixed))
}

/// The image that a name opens.
pub(crate) async fn named_id(cli: &Cli<'_>, image: &Image) -> Result<Option<String>> {
    let id = cli.object(&image.pool, &id_object(image)).await?;
    Ok(id.as_deref().and_then(length_prefixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str, protected: &str) -> bool {
        let text = format!(r#"{{"name":"{name}","protected":{protected}}}"#);
        is_temporary(&serde_json::from_str(&text).expect("a snapshot"))
    }

    #[test]
    fn what_a_clone_is_made_through_is_told_from_what_lasts() {
        let ceph_csi = "3d2c9b9e-6a57-4b6c-8f0e-0c8a54a0f3a1";
        let ours = "c2a7a6de-7d63-5f0b-9a55-6b3f6d4b2a10";
        let names =
            [format!("csi-snap-{ceph_csi}"), format!("csi-vol-{ceph_csi}-temp"), format!("csi-clone-{ours}")];
        assert!(names.iter().all(|name| temporary(name, r#""false""#)));
        assert!(!temporary(&names[0], r#""true""#) && !temporary(&names[1], "true"));
        let lasting = [format!("csi-snap-{ours}"), format!("csi-vol-{ceph_csi}"), format!("team-{ceph_csi}")];
        assert!(!lasting.iter().any(|name| temporary(name, "false")));
        for odd in ["csi-snap-", "csi-snap-monday", "csi-vol--temp", &format!("csi-snap-x{ceph_csi}")] {
            assert!(!temporary(odd, "false"), "{odd}");
        }
    }
}
