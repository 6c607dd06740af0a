//! What lies under the name of a clone that is to be made: nothing, a half, or a whole one, proved (SAFETY 2).

use uuid::Uuid;

use crate::backend::Source;
use crate::error::{Error, Result};

use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Parent, Snapshot};
use crate::backend::rbd::encryption::same_encryption;
use crate::backend::rbd::meta::Meta;
use crate::backend::rbd::trash::tombstone::{TEMPORARY, is_young, volume_of};
use crate::backend::rbd::volume::clone::source::access_to;
use crate::backend::rbd::volume::create::{NewVolume, agrees, differs, unfinished};
use crate::backend::rbd::volume::id_object;
use crate::backend::rbd::watchers::settled_watchers;
use crate::backend::rbd::{Rbd, meta};

pub(crate) enum Target {
    /// It cannot be opened: nothing is there, or a half that was killed at its very beginning.
    Closed,
    Half,
    Whole(Box<Whole>),
}

pub(crate) struct Whole {
    pub(crate) info: Info,
    /// It has come to its end before, and has the size that it was made for.
    pub(crate) marked: bool,
    /// Bytes that no pod sees.
    pub(crate) header: u64,
}

impl Rbd {
    /// Fails with `Conflict` where a whole one was made from something else.
    pub(crate) async fn look(&self, new: &NewVolume<'_>, source: &Source) -> Result<Target> {
        let NewVolume { cli, image, uuid, .. } = *new;
        let (info, meta) = tokio::try_join!(cli.info(image), cli.meta(image)).map_err(unfinished)?;
        let Some((info, meta)) = info.zip(meta) else { return Ok(Target::Closed) };
        if self.drop_old_name(cli, image).await.map_err(unfinished)? {
            return Ok(Target::Closed);
        }
        let (made, header) = (meta::created_by(&meta, uuid), meta::header(&meta));
        if let Some(made) = made.filter(|_| meta::proves(&meta, uuid, &info)) {
            let from = made.source.map(str::to_owned);
            return whole(new, source, from, &meta, Whole { info, marked: true, header });
        }
        let Some(parent) = &info.parent else { return Ok(Target::Half) };
        let Some(family) = Family::of(cli, parent).await.map_err(unfinished)? else {
            return Ok(Target::Half);
        };
        if !family.has(&info.id) {
            return Ok(Target::Half);
        }
        self.not_at_work(new).await?;
        let from = family.source(parent, uuid);
        whole(new, source, from, &meta, Whole { info, marked: false, header })
    }

    /// `rbd clone` copies the metadata of the source when the clone is whole: a twin that is not through yet would write
    /// it over what this driver writes.
    async fn not_at_work(&self, new: &NewVolume<'_>) -> Result<()> {
        let NewVolume { cli, image, .. } = *new;
        let object = id_object(image);
        let made = cli.object_time(&image.pool, &object).await.map_err(unfinished)?;
        if !made.is_some_and(|made| is_young(made, self.deadline)) {
            return Ok(());
        }
        let watchers = settled_watchers(cli, image, <[_]>::is_empty).await.map_err(unfinished)?;
        match watchers.unwrap_or_default().first() {
            Some(watcher) => Err(Error::Busy(format!(
                "image {image} is being made by {}, or was until it was killed: ask again",
                watcher.address
            ))),
            None => Ok(()),
        }
    }
}

fn whole(
    new: &NewVolume<'_>,
    source: &Source,
    from: Option<String>,
    meta: &Meta,
    whole: Whole,
) -> Result<Target> {
    let asked = meta::source_text(source);
    if from.as_ref() != Some(&asked) {
        let from = from.unwrap_or_else(|| "nothing".to_owned());
        return differs(new, &format!("made from {from}, where {asked} is asked for"));
    }
    same_encryption(new, meta, whole.marked)?;
    agrees(new, &whole.info).map(|()| Target::Whole(Box::new(whole)))
}

/// A snapshot, and the clones that its image knows of.
pub(crate) struct Family {
    pub(crate) snapshot: Snapshot,
    /// As librbd keeps them: their image ids are in there.
    children: Vec<u8>,
}

impl Family {
    /// Of the snapshot that a clone names. Asked by id, so that a parent with another name, or in the trash, is found
    /// too. (`rbd children` wants a name.)
    pub(crate) async fn of(cli: &Cli<'_>, parent: &Parent) -> Result<Option<Self>> {
        let access = access_to(cli, parent);
        let cli = Cli { host: cli.host, access: &access, deadline: cli.deadline };
        let snapshots = cli.snapshots_of_trashed(&parent.pool, &parent.id).await?.unwrap_or_default();
        let Some(snapshot) = snapshots.into_iter().find(|snapshot| snapshot.name == parent.snapshot) else {
            return Ok(None);
        };
        let children = cli.children_of_snapshot(&parent.pool, &parent.id, snapshot.id).await?;
        Ok(Some(Self { snapshot, children }))
    }

    /// Whether the parent lists this clone: one that is not listed loses its data when the snapshot is removed. Ceph writes
    /// a text behind its length.
    pub(crate) fn has(&self, child_id: &str) -> bool {
        let length = u32::try_from(child_id.len()).unwrap_or_default().to_le_bytes();
        let text = [&length[..], child_id.as_bytes()].concat();
        !child_id.is_empty() && self.children.windows(text.len()).any(|part| part == text)
    }

    /// What the clone of this uuid was made from, as its marker would say it.
    pub(crate) fn source(&self, parent: &Parent, uuid: Uuid) -> Option<String> {
        made_from(&parent.image, self.snapshot.original_name(), uuid)
    }
}

fn made_from(image: &str, snapshot: &str, uuid: Uuid) -> Option<String> {
    if snapshot == temporary(uuid) {
        return volume_of(image).map(|uuid| format!("volume:{uuid}"));
    }
    volume_of(snapshot).map(|uuid| format!("snapshot:{uuid}"))
}

/// Whether an image of this driver's is whole: its marker says so, or, of a clone that is not marked yet, its parent.
pub(crate) async fn is_whole(cli: &Cli<'_>, uuid: Uuid, info: &Info, meta: &Meta) -> Result<bool> {
    if meta::proves(meta, uuid, info) {
        return Ok(true);
    }
    let Some(parent) = info.parent.as_ref().filter(|_| uuid.get_version_num() == 5) else { return Ok(false) };
    Ok(Family::of(cli, parent).await?.is_some_and(|family| family.has(&info.id)))
}

pub(crate) fn temporary(uuid: Uuid) -> String {
    format!("{TEMPORARY}{uuid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_a_clone_was_made_from() {
        let (own, volume, snapshot) = (Uuid::from_u128(1), Uuid::from_u128(2), Uuid::from_u128(3));
        let check = |image: &str, of: &str| made_from(image, of, own);
        let image = format!("csi-vol-{volume}");
        assert_eq!(check(&image, &format!("snaps-{snapshot}")), Some(format!("snapshot:{snapshot}")));
        assert_eq!(check(&image, &temporary(own)), Some(format!("volume:{volume}")));
        assert_eq!(
            check(&format!("csi-del-{volume}-12ab"), &temporary(own)),
            Some(format!("volume:{volume}"))
        );
        assert_eq!(check(&image, &temporary(volume)), Some(format!("snapshot:{volume}")));
        assert_eq!(check(&image, "by-hand"), None);
        let prefixed = format!("{snapshot}-{volume}");
        assert_eq!(check(&prefixed, &temporary(own)), Some(format!("volume:{volume}")));
    }
}
