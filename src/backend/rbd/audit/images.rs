//! Images and snapshots that nobody was given, or that nothing lists.

use crate::error::Result;
use crate::id::{Pool, VolumeId, trailing_uuid};

use crate::backend::rbd::audit::finding::{Finding, Kind, Remedy};
use crate::backend::rbd::audit::judge::Judge;
use crate::backend::rbd::audit::look::{Seen, State};
use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::pool::index::{key_prefix, snapshot_key};
use crate::backend::rbd::snapshot::{noted, told};
use crate::backend::rbd::trash::tombstone::{TEMPORARY, csi_uuid, is_temporary};
use crate::backend::rbd::volume::create::untouched;

impl Judge<'_> {
    pub(super) async fn images(&self) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for seen in &self.held.images {
            found.extend(self.image(seen).await?);
            if seen.state == State::Fine || seen.state == State::Tombstone {
                for snapshot in seen.snapshots.iter().filter(|snapshot| self.is_old(snapshot.taken())) {
                    found.extend(self.snapshot(seen, snapshot).await?);
                }
            }
        }
        Ok(found)
    }

    async fn image(&self, seen: &Seen) -> Result<Option<Finding>> {
        let old = self.is_old(seen.since);
        let (kind, why, remedy) = match &seen.state {
            State::Unreadable(error) => {
                let why = format!("it cannot be looked at: {error}");
                (Kind::UnreadableImage, why, Remedy::Never("see what keeps it from being opened".to_owned()))
            }
            State::Half if old => (
                Kind::HalfMadeImage,
                "a command that made it was killed, and nobody was ever given it".to_owned(),
                self.remedy_of_half(seen).await?,
            ),
            State::OtherName(other) if old => (
                Kind::StrayName,
                format!("a rename that was killed left it: the image that it opens is listed as {other}"),
                self.if_ours(Remedy::DropName(seen.image.clone())),
            ),
            State::Tombstone if old && seen.snapshots.iter().all(is_temporary) => {
                let Some(uuid) = seen.uuid else { return Ok(None) };
                let why =
                    "it is what was left of a deleted volume for its snapshots, and has none".to_owned();
                (Kind::EmptyTombstone, why, self.if_ours(Remedy::Bury(uuid)))
            }
            State::Fine | State::Half | State::OtherName(_) | State::Tombstone => return Ok(None),
        };
        Ok(Some(Finding { kind, what: seen.image.to_string(), since: seen.since, why, remedy }))
    }

    async fn remedy_of_half(&self, seen: &Seen) -> Result<Remedy> {
        let never = |why: &str| Ok(Remedy::Never(why.to_owned()));
        if let Some(why) = self.held.shared() {
            return Ok(Remedy::Never(why));
        }
        if let Some(watcher) = self.cli.watchers(&seen.image).await?.unwrap_or_default().first() {
            return Ok(Remedy::Never(format!("{} has it open", watcher.address)));
        }
        if !seen.snapshots.is_empty() {
            return never("it has snapshots: look at it");
        }
        if !untouched(self.cli, &seen.image).await? {
            return never("it holds data, though not the mark of a volume that this driver made: look at it");
        }
        Ok(Remedy::Discard(seen.image.clone()))
    }

    async fn snapshot(&self, seen: &Seen, snapshot: &Snapshot) -> Result<Option<Finding>> {
        let (what, since) = (format!("{}@{}", seen.image, snapshot.name), snapshot.taken());
        if let Some(clone) = snapshot.name.strip_prefix(TEMPORARY).and_then(trailing_uuid) {
            let why = "a volume was cloned through it, or was to be, and it was not removed".to_owned();
            let (image, name) = (seen.image.clone(), snapshot.name.clone());
            let remedy = self.if_ours(Remedy::RemoveSnapshot { image, name, clone });
            return Ok(Some(Finding { kind: Kind::TemporarySnapshot, what, since, why, remedy }));
        }
        let (Some(own), Some(source)) = (csi_uuid(&snapshot.name), seen.uuid) else { return Ok(None) };
        let prefix = key_prefix(own, source);
        let mut keys = self.held.keys.iter().chain(self.held.others.values().flatten());
        if keys.any(|key| key.starts_with(&prefix)) {
            return Ok(None);
        }
        let pool = Pool::Id(self.rbd.pools.id(self.cli, &self.held.pool).await?);
        let source = VolumeId { cluster: self.cli.access.cluster.clone(), pool, uuid: source };
        let meta = noted(self.cli, &seen.image).await?.unwrap_or_default();
        let key = snapshot_key(&told(&source, own, snapshot, &meta)?);
        let why = "CreateSnapshot was cut off behind it: it is in no index, and so in no list".to_owned();
        let remedy = self.if_ours(Remedy::WriteKey(key));
        Ok(Some(Finding { kind: Kind::UnindexedSnapshot, what, since, why, remedy }))
    }
}
