//! What of a pool has no counterpart. Here is what all parts of that share.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::error::Result;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::audit::finding::{Finding, Remedy};
use crate::backend::rbd::audit::inventory::Inventory;
use crate::backend::rbd::audit::look::{Seen, State};
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::snapshot::claim::PATIENCE;
use crate::backend::rbd::trash::tombstone::{is_young, of_uuid, volume_of};

pub(super) struct Judge<'a> {
    pub(super) rbd: &'a Rbd,
    pub(super) cli: &'a Cli<'a>,
    pub(super) held: &'a Inventory,
}

/// Where a snapshot of this driver is.
pub(super) enum Place {
    Image,
    /// In the trash, on the image of this id.
    Trash(String),
    Nowhere,
}

impl Judge<'_> {
    pub(super) async fn all(&self) -> Result<Vec<Finding>> {
        let mut found = self.images().await?;
        found.extend(self.index().await?);
        found.extend(self.trash().await?);
        found.extend(self.claims().await?);
        found.extend(self.journal().await?);
        found.extend(self.bodies().await?);
        found.sort_by_key(|finding| finding.kind);
        Ok(found)
    }

    /// Whatever is younger may be at work.
    pub(super) fn is_old(&self, since: Option<SystemTime>) -> bool {
        since.is_some_and(|since| !is_young(since, self.patience()))
    }

    /// Twice the longest that all commands of a request may take.
    fn patience(&self) -> Duration {
        self.rbd.deadline * PATIENCE
    }

    /// Nothing that may be another instance's is touched.
    pub(super) fn if_ours(&self, remedy: Remedy) -> Remedy {
        self.held.shared().map_or(remedy, Remedy::Never)
    }

    pub(super) fn images_of(&self, uuid: Uuid) -> impl Iterator<Item = &Seen> {
        self.held.images.iter().filter(move |seen| seen.uuid == Some(uuid))
    }

    /// On an image of its volume. One that cannot be read may have it.
    pub(super) async fn place_of(&self, own: Uuid, source: Uuid) -> Result<Place> {
        let may_have = |seen: &Seen| {
            matches!(seen.state, State::Unreadable(_)) || of_uuid(seen.snapshots.clone(), own).is_some()
        };
        if self.images_of(source).any(may_have) {
            return Ok(Place::Image);
        }
        let (pool, trash) = (&self.held.pool, self.held.trash.iter());
        for image in trash.filter(|image| volume_of(&image.name) == Some(source)) {
            let snapshots = self.cli.snapshots_of_trashed(pool, &image.id).await?.unwrap_or_default();
            if of_uuid(snapshots, own).is_some() {
                return Ok(Place::Trash(image.id.clone()));
            }
        }
        Ok(Place::Nowhere)
    }

    /// An object as `rados` is told it.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{} {name}", self.cli.pool(&self.held.pool))
    }
}
