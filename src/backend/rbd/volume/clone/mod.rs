//! CreateVolume with a source: a clone of a snapshot, in one process in the common case; of a volume, through a snapshot
//! that goes again. Each step is proved or made anew by the next try.

pub(crate) mod flatten;
pub(crate) mod marker;
pub(crate) mod source;
pub(crate) mod verify;

use uuid::Uuid;

use crate::backend::{Image, Source};
use crate::error::{Error, Result};
use crate::host::CmdError;
use crate::id::{Pool, SnapshotId, VolumeId};

use crate::backend::rbd::cli::json::{Info, Parent};
use crate::backend::rbd::cli::{Cli, errno};
use crate::backend::rbd::volume::clone::marker::Job;
use crate::backend::rbd::volume::clone::source::{Facts, depth};
use crate::backend::rbd::volume::clone::verify::{Target, Whole, temporary};
use crate::backend::rbd::volume::create::{NewVolume, differs, import_options, size, unfinished};
use crate::backend::rbd::volume::{id_object, not_found};
use crate::backend::rbd::{Rbd, meta};

/// A source that moves meanwhile, or a half that has to go first: each takes a turn.
const TURNS: u32 = 3;

enum Turn {
    Made(u64),
    Again,
}

/// A clone that is proved whole, on its way to what was asked for.
struct Progress {
    /// Bytes of the image.
    size: u64,
    wanted: u64,
    /// Of them, those that no pod sees.
    header: u64,
    /// Its parents.
    depth: usize,
    marked: bool,
}

impl Rbd {
    pub(crate) async fn make_from(&self, new: &NewVolume<'_>, source: &Source) -> Result<u64> {
        can_be_a_clone(new)?;
        let access = self.source_access(new, source)?;
        let from = self.cli(&access);
        for _ in 0..TURNS {
            let turn = match source {
                Source::Snapshot(id) => self.restore(new, &from, source, id).await,
                Source::Volume(id) => self.copy(new, &from, source, id).await,
            };
            match turn {
                Ok(Turn::Made(size)) => return Ok(size),
                Ok(Turn::Again) => {}
                Err(error) => return Err(final_without_image(new, error).await),
            }
        }
        let image = new.image;
        Err(Error::Busy(format!(
            "image {image} or its source was changed by somebody else meanwhile: ask again"
        )))
    }

    async fn restore(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        id: &SnapshotId,
    ) -> Result<Turn> {
        let facts = match self.facts(from, id).await {
            Err(absent @ Error::NotFound(_)) => {
                return self.made_before(new, from, source, &id.own.pool, absent).await;
            }
            facts => facts?,
        };
        if let Err(error) = self.can_inherit(new, from, source, &facts.image, &facts.meta).await {
            // Where it was made before, how it differs from that is said first.
            return match self.look(new, source).await? {
                Target::Closed => Err(error),
                Target::Half | Target::Whole(_) => self.made_or_discarded(new, from, source).await,
            };
        }
        let wanted = wanted(new, facts.size, facts.header())?;
        new.placed.still_ours()?;
        let Err(error) = clone(new, &facts).await else {
            return self.finish(new, from, source, Progress::of(&facts, wanted)).await;
        };
        self.forget_facts(from, id);
        match error.exit() {
            Some(errno::EXIST) => self.made_or_discarded(new, from, source).await,
            Some(errno::NOENT) => match self.look(new, source).await? {
                // The source is there, where it was: so the data pool is not.
                Target::Closed if self.facts(from, id).await.is_ok_and(|now| now.image == facts.image) => {
                    Err(self.creation_failed(new.cli, new.image, error).await)
                }
                Target::Closed => Ok(Turn::Again),
                Target::Half | Target::Whole(_) => self.made_or_discarded(new, from, source).await,
            },
            _ => Err(self.creation_failed(new.cli, new.image, error).await),
        }
    }

    async fn copy(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        id: &VolumeId,
    ) -> Result<Turn> {
        if !matches!(self.look(new, source).await?, Target::Closed) {
            return self.made_or_discarded(new, from, source).await;
        }
        let Some((image, info)) = self.find_info(from, id).await? else {
            let absent = not_found(id, &id.default_image());
            return self.made_before(new, from, source, &id.pool, absent).await;
        };
        let (snapshots, meta) = tokio::try_join!(from.snapshots(&image), from.meta(&image))?;
        let (snapshots, meta) = (snapshots.unwrap_or_default(), meta.unwrap_or_default());
        self.can_inherit(new, from, source, &image, &meta).await?;
        let snapshot = temporary(new.uuid);
        // From an earlier try of this very request.
        let found = snapshots.iter().find(|found| found.name == snapshot);
        let size = found.map_or(info.size, |found| found.size);
        let wanted = wanted(new, size, meta::header(&meta))?;
        if found.is_none() {
            self.room_for_snapshot(from, &image, &snapshots).await?;
            from.create_snapshot(&image, &snapshot).await?;
        }
        let facts =
            Facts { image, snapshot, size, depth: depth(from, &info).await.map_err(unfinished)?, meta };
        new.placed.still_ours()?;
        match clone(new, &facts).await {
            // Exit 0 is the proof, without which the snapshot has to stay.
            Ok(()) => {
                remove_temporary(new, from, &facts.image).await?;
                self.finish(new, from, source, Progress::of(&facts, wanted)).await
            }
            Err(error) if error.exit() == Some(errno::EXIST) => {
                let found = self.made_or_discarded(new, from, source).await;
                // A twin's, and whole: then this snapshot may be one too many.
                if matches!(found, Ok(Turn::Made(_)) | Err(Error::Conflict(_))) {
                    from.remove_snapshot(&facts.image, &facts.snapshot).await.map_err(unfinished)?;
                }
                found
            }
            Err(error) => self.copy_failed(new, from, &facts, error).await,
        }
    }

    /// A final answer leaves no snapshot behind: the provisioner does not come again.
    async fn copy_failed(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        facts: &Facts,
        error: CmdError,
    ) -> Result<Turn> {
        let absent = error.exit() == Some(errno::NOENT);
        let snapshots = from.snapshots(&facts.image).await.map_err(unfinished)?.unwrap_or_default();
        if absent && !snapshots.iter().any(|snapshot| snapshot.name == facts.snapshot) {
            return Ok(Turn::Again);
        }
        let error = self.creation_failed(new.cli, new.image, error).await;
        if !matches!(error, Error::Busy(_) | Error::TimedOut(_)) {
            from.remove_snapshot(&facts.image, &facts.snapshot).await.map_err(unfinished)?;
        }
        Err(error)
    }

    /// Removes the snapshot that the volume of this uuid was cloned through, where it is still there: `rbd info` then shows
    /// its own name.
    pub(crate) async fn without_temporary_snapshot(
        &self,
        cli: &Cli<'_>,
        clone: &Info,
        uuid: Uuid,
    ) -> Result<()> {
        let snapshot = temporary(uuid);
        let Some(parent) = clone.parent.as_ref().filter(|parent| parent.snapshot == snapshot) else {
            return Ok(());
        };
        let Parent { pool, pool_namespace, image, .. } = parent.clone();
        let image = Image { pool, namespace: pool_namespace, name: image };
        cli.remove_snapshot(&image, &snapshot).await.map(drop)
    }

    /// Something of that name is there.
    async fn made_or_discarded(&self, new: &NewVolume<'_>, from: &Cli<'_>, source: &Source) -> Result<Turn> {
        match self.look(new, source).await? {
            Target::Whole(whole) => self.finish_found(new, from, source, *whole).await,
            Target::Half | Target::Closed => {
                self.discard_half_made(new.cli, new.image).await.map(|()| Turn::Again)
            }
        }
    }

    /// The source is gone. NOT_FOUND is final for a provisioner: so the clone has to be proved absent too.
    async fn made_before(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        pool: &Pool,
        absent: Error,
    ) -> Result<Turn> {
        let NewVolume { cli, plan, image, .. } = *new;
        if !matches!(self.look(new, source).await?, Target::Closed)
            || self.trash.half_made_id(cli, image).await.map_err(unfinished)?.is_some()
        {
            return self.made_or_discarded(new, from, source).await;
        }
        let there = self.pools.name(from, pool).await?;
        self.pools.prove(from, pool, &there).await?;
        self.pools.prove(cli, &Pool::Name(plan.pool.clone()), &plan.pool).await?;
        Err(absent)
    }

    async fn finish_found(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        found: Whole,
    ) -> Result<Turn> {
        let Whole { info, marked, header } = found;
        self.without_temporary_snapshot(new.cli, &info, new.uuid).await.map_err(unfinished)?;
        let (size, shown, asked) = (info.size, info.size.saturating_sub(header), &new.request.size);
        let wanted = match asked.admits(shown) {
            true => size,
            // Its growth was cut off.
            false if !marked && shown < asked.required => wanted(new, size, header)?,
            false => return differs(new, &format!("with {shown} bytes, where {asked} are asked for")),
        };
        let depth = depth(new.cli, &info).await.map_err(unfinished)?;
        self.finish(new, from, source, Progress { size, wanted, header, depth, marked }).await
    }

    /// Makes its keys its own, and it as large as it is to be, and its chain short enough.
    async fn finish(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        clone: Progress,
    ) -> Result<Turn> {
        let NewVolume { cli, plan, image, uuid, .. } = *new;
        let Progress { size, wanted, header, depth, marked } = clone;
        let (hard, soft) = (self.limits.hard_depth.into(), self.limits.soft_depth.into());
        if !marked {
            self.inherit_keys(new, from, source).await.map_err(unfinished)?;
        }
        // What follows may take hours, and asks nothing of the source.
        self.ops.let_sources_go(&uuid.to_string());
        if wanted > size {
            grow(new, wanted).await.map_err(unfinished)?;
        }
        if !marked && (wanted > size || depth > soft) {
            mark(new, source).await.map_err(unfinished)?;
        }
        if depth > hard {
            self.flatten_unused(cli, image, uuid).await.map_err(unfinished)?;
        } else if depth > soft {
            self.flattens.start(cli.access, image);
        }
        let mut labels = plan.labels.clone();
        for (key, value) in plan.qos.records(wanted - header)? {
            cli.set_meta(image, &key, &value).await.map_err(unfinished)?;
            labels.push((key, value));
        }
        self.markers.add(Job {
            access: cli.access.clone(),
            image: image.clone(),
            uuid,
            labels: Some(labels),
        });
        Ok(Turn::Made(wanted - header))
    }
}

impl Progress {
    fn of(facts: &Facts, wanted: u64) -> Self {
        Self { size: facts.size, wanted, header: facts.header(), depth: facts.depth + 1, marked: false }
    }
}

async fn clone(new: &NewVolume<'_>, facts: &Facts) -> Result<(), CmdError> {
    let options = import_options(new.plan);
    new.cli.clone(&facts.image, &facts.snapshot, new.image, options).await
}

/// `rbd resize` that crashed when its work was done has done it.
async fn grow(new: &NewVolume<'_>, wanted: u64) -> Result<()> {
    let NewVolume { cli, image, .. } = *new;
    let Err(error) = cli.resize(image, wanted).await else { return Ok(()) };
    let now = cli.info(image).await.ok().flatten();
    if now.is_some_and(|info| info.size == wanted) { Ok(()) } else { Err(error) }
}

/// With the source in it, so that it is known when the parents are gone.
async fn mark(new: &NewVolume<'_>, source: &Source) -> Result<()> {
    let NewVolume { cli, image, uuid, .. } = *new;
    let info = cli.info(image).await?;
    let info = info.ok_or_else(|| Error::Busy(format!("image {image} has vanished meanwhile: ask again")))?;
    let (key, value) = meta::cloned(uuid, info.size, &info.id, &meta::source_text(source));
    cli.set_meta(image, &key, &value).await
}

/// The source may have got another name since it was looked for, when its volume was deleted.
async fn remove_temporary(new: &NewVolume<'_>, from: &Cli<'_>, image: &Image) -> Result<()> {
    let snapshot = temporary(new.uuid);
    if from.remove_snapshot(image, &snapshot).await.map_err(unfinished)? {
        return Ok(());
    }
    let info = new.cli.info(new.image).await.map_err(unfinished)?;
    match info.and_then(|info| info.parent).filter(|parent| parent.snapshot == snapshot) {
        Some(parent) => Err(Error::Busy(format!(
            "snapshot {snapshot} of {}/{} is to be removed, and its image was renamed meanwhile: ask again",
            parent.pool, parent.image
        ))),
        None => Ok(()),
    }
}

/// The size of the image. A volume is never smaller than its source.
fn wanted(new: &NewVolume<'_>, source: u64, header: u64) -> Result<u64> {
    let (asked, shown) = (&new.request.size, source.saturating_sub(header));
    match asked.limit {
        Some(limit) if limit < shown => Err(Error::OutOfRange(format!(
            "the source has {shown} bytes, more than the limit of {limit}: a volume is never smaller than its source"
        ))),
        _ if asked.required <= shown => Ok(source),
        _ => size(new.plan, new.request, header),
    }
}

fn can_be_a_clone(new: &NewVolume<'_>) -> Result<()> {
    // What cannot be is refused before anything is made.
    new.plan.qos.records(new.request.size.required)?;
    let features = &new.plan.features;
    if features.iter().any(|feature| feature == "layering") {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "StorageClass parameter imageFeatures={:?}: a volume with a source needs layering: add it",
        features.join(",")
    )))
}

/// Where an image of ours may be there, half-made, nothing is final: the provisioner would forget it.
async fn final_without_image(new: &NewVolume<'_>, error: Error) -> Error {
    // Upon the last three somebody has to act, and asking again finishes nothing.
    if matches!(
        error,
        Error::Busy(_) | Error::TimedOut(_) | Error::Conflict(_) | Error::Invalid(_) | Error::Precondition(_)
    ) {
        return error;
    }
    match new.cli.object_time(&new.image.pool, &id_object(new.image)).await {
        Ok(None) => error,
        _ => unfinished(error),
    }
}
