//! Where a snapshot is: on the image of its volume, or on what is left of it. A volume that is deleted while it has
//! snapshots becomes a tombstone: the image under another name, which goes with its last snapshot.

use uuid::Uuid;

use crate::backend::Image;
use crate::error::Result;
use crate::id::SnapshotId;

use super::Rbd;
use super::cli::Cli;
use super::json::Snapshot;

/// A tombstone is `csi-del-<uuid of the volume>-<image id>`: one uuid may have several, as a volume of one name may be
/// made and deleted again and again.
const TOMBSTONE: &str = "csi-del-";

impl Rbd {
    /// The image that holds the snapshot, and the snapshot. None where there is none.
    pub(super) async fn snapshot_image(
        &self,
        cli: &Cli<'_>,
        id: &SnapshotId,
    ) -> Result<Option<(Image, Snapshot)>> {
        let volume = id.source_volume();
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
        for image in tombstones(cli, &pool, volume.uuid).await? {
            if let Some(found) = holding(cli, image, id.own.uuid).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

pub(super) fn tombstone_name(uuid: Uuid, image_id: &str) -> String {
    format!("{TOMBSTONE}{uuid}-{image_id}")
}

/// What is left of a volume, once for each time that it was deleted.
pub(super) async fn tombstones(cli: &Cli<'_>, pool: &str, uuid: Uuid) -> Result<Vec<Image>> {
    let names = cli.images(pool).await?;
    let prefix = tombstone_name(uuid, "");
    let ours = names.iter().filter(|name| name.starts_with(&prefix));
    Ok(ours.map(|name| cli.image(pool, name)).collect())
}

/// The snapshot of this uuid, whatever prefix its name was given; not one that is in the trash of the image.
async fn holding(cli: &Cli<'_>, image: Image, uuid: Uuid) -> Result<Option<(Image, Snapshot)>> {
    let snapshots = cli.snapshots(&image).await?.unwrap_or_default();
    let named = |snapshot: &Snapshot| snapshot.is_of_a_user() && snapshot.name.ends_with(&uuid.to_string());
    Ok(snapshots.into_iter().find(named).map(|snapshot| (image, snapshot)))
}
