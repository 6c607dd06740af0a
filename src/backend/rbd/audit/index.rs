//! Keys of the index that speak of nothing, and what the trash holds.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::backend;
use crate::error::Result;

use crate::backend::rbd::audit::finding::{Finding, Kind, Remedy};
use crate::backend::rbd::audit::inventory::is_of_this_driver;
use crate::backend::rbd::audit::judge::{Judge, Place};
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::json::{Snapshot, Trashed};
use crate::backend::rbd::pool::index::{index_object, indexed};
use crate::backend::rbd::pool::records::{Records, named_uuid, read_published};
use crate::backend::rbd::trash::{Attempt, by_image};

impl Judge<'_> {
    pub(super) async fn index(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for key in &self.held.keys {
            let finding = if let Some(snapshot) =
                indexed(std::slice::from_ref(key), &self.cli.access.cluster, 0).pop()
            {
                self.snapshot_entry(key, &snapshot).await?
            } else if let Some((uuid, node)) = read_published(key) {
                self.publication(key, uuid, &node)
            } else if let Some(uuid) = named_uuid(key) {
                self.name_entry(key, uuid).await?
            } else {
                None
            };
            found.extend(finding);
        }
        Ok(found)
    }

    /// Images on their way out, and such as no intent speaks of.
    pub(super) async fn trash(&self) -> Result<Vec<Finding>> {
        let intents = by_image(self.held.keys.clone());
        let mut found = Vec::new();
        for (id, attempts) in &intents {
            let image = self.held.trash.iter().find(|image| image.id == *id);
            found.extend(self.deletion(id, attempts, image).await?);
        }
        let others = self.held.others.values().flatten().cloned().collect();
        let known: BTreeSet<String> = intents.into_keys().chain(by_image(others).into_keys()).collect();
        let records = Records::read(&self.held.keys);
        let unknown = self.held.trash.iter().filter(|image| !known.contains(&image.id));
        let ours = unknown.filter(|image| is_of_this_driver(&image.name, &records));
        found.extend(ours.map(|image| Finding {
            kind: Kind::TrashEntry,
            what: self.in_trash(image),
            since: None,
            why: "it has the name of a volume of this driver, and no intent speaks of it".to_owned(),
            remedy: Remedy::Never(
                "somebody moved it there by hand: rbd trash restore, or rbd trash rm".to_owned(),
            ),
        }));
        Ok(found)
    }

    async fn snapshot_entry(&self, key: &str, snapshot: &backend::Snapshot) -> Result<Option<Finding>> {
        let since = Some(snapshot.created);
        let (kind, why, remedy) = match self.place_of(snapshot.id.own.uuid, snapshot.source.uuid).await? {
            Place::Image => return Ok(None),
            _ if !self.is_old(since) => return Ok(None),
            Place::Trash(id) => (
                Kind::BuriedSnapshot,
                format!("its image, {id}, was moved to the trash while it was taken"),
                Remedy::Surface { id, uuid: snapshot.source.uuid },
            ),
            Place::Nowhere => (
                Kind::SnapshotEntry,
                "neither its volume nor what is left of it has this snapshot".to_owned(),
                Remedy::ForgetKey(key.to_owned()),
            ),
        };
        Ok(Some(Finding { kind, what: self.key(key), since, why, remedy }))
    }

    fn publication(&self, key: &str, uuid: Uuid, node: &str) -> Option<Finding> {
        let why = match self.images_of(uuid).next() {
            None => "there is no image of this volume".to_owned(),
            // Of others nothing is known.
            Some(seen) if seen.tells_published() && !seen.published.iter().any(|one| one == node) => {
                format!("the image is not published on node {node:?}")
            }
            Some(_) => return None,
        };
        let remedy = Remedy::ForgetKey(key.to_owned());
        Some(Finding { kind: Kind::PublicationEntry, what: self.key(key), since: None, why, remedy })
    }

    async fn name_entry(&self, key: &str, uuid: Uuid) -> Result<Option<Finding>> {
        let journal = self.cli.object_time(&self.held.pool, &Entry::Volume.object(uuid)).await?;
        let since = journal.or(self.held.written);
        if self.images_of(uuid).next().is_some() || !self.is_old(since) {
            return Ok(None);
        }
        let (why, remedy) = ("there is no image of this volume".to_owned(), Remedy::ForgetName(uuid));
        Ok(Some(Finding { kind: Kind::NameEntry, what: self.key(key), since, why, remedy }))
    }

    /// One that waits for its clones is where it should be.
    async fn deletion(
        &self,
        id: &str,
        attempts: &[Attempt],
        trashed: Option<&Trashed>,
    ) -> Result<Option<Finding>> {
        let since = attempts.iter().map(|attempt| attempt.since).max();
        if !self.is_old(since) {
            return Ok(None);
        }
        let (what, why) = match trashed {
            Some(image) => {
                let snapshots = self.cli.snapshots_of_trashed(&self.held.pool, id).await?;
                if snapshots.is_some_and(|snapshots: Vec<Snapshot>| !snapshots.is_empty()) {
                    return Ok(None);
                }
                (self.in_trash(image), "it was deleted, and its removal cut off".to_owned())
            }
            None if self.held.ids.contains(id) && !attempts.iter().all(Attempt::is_stale) => return Ok(None),
            None if self.held.ids.contains(id) => {
                (self.key(&attempts[0].key), format!("image {id} was to be deleted, and was not"))
            }
            None => (self.key(&attempts[0].key), format!("image {id} is gone")),
        };
        Ok(Some(Finding { kind: Kind::DeletedImage, what, since, why, remedy: Remedy::EmptyTrash }))
    }

    fn key(&self, key: &str) -> String {
        self.object(&format!("{} {key}", index_object(&self.rbd.instance)))
    }

    fn in_trash(&self, image: &Trashed) -> String {
        self.object(&format!("trash: {} ({})", image.id, image.name))
    }
}
