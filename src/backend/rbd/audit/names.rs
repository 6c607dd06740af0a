//! Objects that stand for a name, or are a part of an image: claims, ceph-csi's journal, data.

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::id::hyphenated;

use crate::backend::rbd::audit::finding::{Finding, Kind, Remedy};
use crate::backend::rbd::audit::judge::{Judge, Place};
use crate::backend::rbd::ceph_csi::journal::{Entry, recorded};
use crate::backend::rbd::pool::records::named_uuid;
use crate::backend::rbd::snapshot::claim::CLAIM;
use crate::backend::rbd::trash::tombstone::{listed_name, of_uuid};
use crate::backend::rbd::volume::placement::PLACE;

impl Judge<'_> {
    pub(super) async fn claims(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for uuid in self.held.objects.after(CLAIM).filter_map(hyphenated) {
            found.extend(self.claim(uuid).await?);
        }
        for uuid in self.held.objects.after(PLACE).filter_map(hyphenated) {
            found.extend(self.placement(uuid).await?);
        }
        Ok(found)
    }

    async fn claim(&self, uuid: Uuid) -> Result<Option<Finding>> {
        if self.held.images.iter().any(|seen| of_uuid(seen.snapshots.clone(), uuid).is_some()) {
            return Ok(None);
        }
        let (object, pool) = (format!("{CLAIM}{uuid}"), &self.held.pool);
        let (since, locker) =
            tokio::try_join!(self.cli.object_time(pool, &object), self.cli.claimant(pool, &object))?;
        if !self.is_old(since) {
            return Ok(None);
        }
        let source = locker.as_ref().and_then(|locker| Uuid::try_parse(&locker.cookie).ok());
        let why = match source {
            Some(source) => match self.place_of(uuid, source).await? {
                Place::Nowhere => {
                    format!("a snapshot of volume {source} was to have this name, and is not there")
                }
                Place::Image | Place::Trash(_) => return Ok(None),
            },
            None => "nobody has it".to_owned(),
        };
        let (what, remedy) = (self.object(&object), self.if_ours(Remedy::BreakClaim { object, locker }));
        Ok(Some(Finding { kind: Kind::Claim, what, since, why, remedy }))
    }

    async fn placement(&self, uuid: Uuid) -> Result<Option<Finding>> {
        let object = format!("{PLACE}{uuid}");
        let since = self.cli.object_time(&self.held.pool, &object).await?;
        let why = "the request that chose a pool for this volume has long ended".to_owned();
        let (what, remedy) = (self.object(&object), self.if_ours(Remedy::RemoveObject(object)));
        Ok(self.is_old(since).then_some(Finding { kind: Kind::Placement, what, since, why, remedy }))
    }

    pub(super) async fn journal(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for entry in [Entry::Volume, Entry::Snapshot] {
            let prefix = entry.object_prefix();
            for uuid in self.held.objects.after(prefix).filter_map(hyphenated) {
                found.extend(self.entry(entry, uuid).await?);
            }
        }
        Ok(found)
    }

    async fn entry(&self, entry: Entry, uuid: Uuid) -> Result<Option<Finding>> {
        let noted = self.held.keys.iter().any(|key| named_uuid(key) == Some(uuid));
        if noted || self.images_of(uuid).next().is_some() {
            return Ok(None);
        }
        let object = entry.object(uuid);
        let since = self.cli.object_time(&self.held.pool, &object).await?;
        if !self.is_old(since) || self.is_elsewhere(entry, uuid).await? {
            return Ok(None);
        }
        let ours = entry == Entry::Volume && uuid.get_version_num() == 5;
        let remedy = if ours {
            self.if_ours(Remedy::ForgetEntry(entry, uuid))
        } else {
            Remedy::Never("it is ceph-csi's: where no PersistentVolume names it, rados rm".to_owned())
        };
        let (what, why) = (self.object(&object), "there is no image of this name".to_owned());
        Ok(Some(Finding { kind: Kind::JournalEntry, what, since, why, remedy }))
    }

    /// ceph-csi may keep an entry in another pool than the image. A pool that this user may not read may have it.
    async fn is_elsewhere(&self, entry: Entry, uuid: Uuid) -> Result<bool> {
        let Some(name) = recorded(self.cli, &self.held.pool, entry, uuid).await? else { return Ok(false) };
        for pool in self.cli.pools().await?.into_values().filter(|pool| *pool != self.held.pool) {
            match self.cli.object_time(&pool, &format!("rbd_id.{name}")).await {
                Ok(None) => {}
                Ok(Some(_)) | Err(Error::Denied(_)) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// What is left where an image is neither listed nor in the trash.
    pub(super) async fn bodies(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        let trashed = |id: &str| self.held.trash.iter().any(|image| image.id == id);
        for (id, object) in &self.held.objects.bodies {
            if self.held.ids.contains(id) || trashed(id) {
                continue;
            }
            let since = self.cli.object_time(&self.held.pool, object).await?;
            if !self.is_old(since) || listed_name(self.cli, &self.held.pool, id).await?.is_some() {
                continue;
            }
            let why = format!("they are of image {id}, which no name leads to and the trash does not have");
            let never = "whose they are is not known: see that no image has this id, then rados rm each";
            let (what, remedy) = (self.object(object), Remedy::Never(never.to_owned()));
            found.push(Finding { kind: Kind::Objects, what, since, why, remedy });
        }
        Ok(found)
    }
}
