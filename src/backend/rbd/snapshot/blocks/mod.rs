//! Which blocks of a snapshot a backup has to read: all that were written, or those that differ from an older snapshot.

mod extents;

use std::fs::File;
use std::io::BufReader;

use futures_util::future::try_join_all;

use crate::backend::{BlockQuery, Blocks, Image};
use crate::error::{Error, Result};
use crate::id::SnapshotId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Snapshot;
use crate::backend::rbd::meta;
use crate::backend::rbd::snapshot::blocks::extents::{Entries, Extents};

const REBUILD: &str =
    "rebuild the object maps of the image and of each of its snapshots (rbd object-map rebuild)";

/// A snapshot, and the older one that it is compared with.
struct Pair {
    image: Image,
    target: Snapshot,
    base: Option<Snapshot>,
}

impl Rbd {
    pub(crate) async fn snapshot_blocks(&self, query: &BlockQuery) -> Result<Blocks> {
        let access = self.clusters.access(&query.target.own.cluster, &query.secrets)?;
        let cli = self.cli(&access);
        let pair = self.pair(&cli, query).await?;
        let size = pair.target.size;
        if query.from > size {
            return Err(Error::OutOfRange(format!(
                "starting_offset {}: snapshot {} has {size} bytes",
                query.from, query.target
            )));
        }
        let before = pair.snapshots(&cli).await?;
        pair.can_be_told(&cli, &before).await?;
        let base = pair.base.as_ref().map(|base| base.name.as_str());
        let printed = cli.diff(&pair.image, &pair.target.name, base).await?;
        // Another replica may remove one of them at any time: then what was printed proves nothing.
        if pair.snapshots(&cli).await? != before {
            return Err(Error::Busy(format!(
                "snapshots of image {} were removed while they were compared: ask again",
                pair.image
            )));
        }
        Ok(blocks(printed, query, size))
    }

    async fn pair(&self, cli: &Cli<'_>, query: &BlockQuery) -> Result<Pair> {
        let Some(base) = &query.base else {
            let (image, target) = self.there(cli, &query.target).await?;
            return Ok(Pair { image, target, base: None });
        };
        let ((image, target), (other, base)) =
            tokio::try_join!(self.there(cli, &query.target), self.there(cli, base))?;
        if image != other {
            return Err(Error::Precondition(format!(
                "the snapshots are on two images, {other} and {image}, as their volume was made anew between them: \
                 make a full backup"
            )));
        }
        if base.id >= target.id {
            return Err(Error::Invalid(format!(
                "base_snapshot_id names {}, which is not older than {} of target_snapshot_id",
                base.name, target.name
            )));
        }
        Ok(Pair { image, target, base: Some(base) })
    }

    async fn there(&self, cli: &Cli<'_>, id: &SnapshotId) -> Result<(Image, Snapshot)> {
        let found = self.snapshot_image(cli, id).await?;
        found.ok_or_else(|| Error::NotFound(format!("snapshot {id} does not exist")))
    }
}

impl Pair {
    /// The names of the two, and of those between them, whose object maps count too.
    async fn snapshots(&self, cli: &Cli<'_>) -> Result<Vec<String>> {
        let first = self.base.as_ref().unwrap_or(&self.target).id;
        let all = cli.snapshots(&self.image).await?.unwrap_or_default();
        let ours = all.into_iter().filter(|snapshot| (first..=self.target.id).contains(&snapshot.id));
        Ok(ours.filter(Snapshot::is_of_a_user).map(|snapshot| snapshot.name).collect())
    }

    /// Without valid object maps librbd compares object by object: slow, and all of 16.2, and others before 17.2.8 and
    /// 18.2.4, overlook discards that way (https://tracker.ceph.com/issues/63770).
    async fn can_be_told(&self, cli: &Cli<'_>, snapshots: &[String]) -> Result<()> {
        let image = &self.image;
        let refuse = |what: String| Err(Error::Precondition(format!("image {image} {what}")));
        let infos = snapshots.iter().map(|name| cli.snapshot_info(image, name));
        let (infos, meta) = tokio::try_join!(try_join_all(infos), cli.meta(image))?;
        if meta.is_some_and(|meta| meta::is_encrypted(&meta)) {
            return refuse(
                "is encrypted: its blocks are not those that a pod sees; make a full backup".to_owned(),
            );
        }
        if !infos.iter().all(|info| info.features.iter().any(|feature| feature == "fast-diff")) {
            return refuse(format!(
                "has no changed block tracking, the feature fast-diff: make a full backup, or enable object-map and \
                 fast-diff (rbd feature enable) and {REBUILD}"
            ));
        }
        match snapshots.iter().zip(infos).find(|(_, info)| !info.flags.is_empty()) {
            Some((name, info)) => refuse(format!(
                "has {:?} at its snapshot {name}: make a full backup, or {REBUILD}",
                info.flags
            )),
            None => Ok(()),
        }
    }
}

/// Nothing was there before the first snapshot, so what is gone is a change between two of them alone.
fn blocks(printed: File, query: &BlockQuery, size: u64) -> Blocks {
    let all = query.base.is_some();
    let entries = Entries::new(BufReader::new(printed))
        .filter(move |entry| entry.as_ref().map_or(true, |entry| all || entry.exists));
    Blocks { size, extents: Box::new(Extents::new(entries, query.from, size)) }
}
