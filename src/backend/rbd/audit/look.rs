//! One image as the audit sees it: whole, half of one, or somebody else's.

use std::time::SystemTime;

use uuid::Uuid;

use crate::backend::Image;
use crate::error::{Result, chain};

use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::{Info, Snapshot};
use crate::backend::rbd::meta;
use crate::backend::rbd::pool::records::Records;
use crate::backend::rbd::trash::tombstone::{is_tombstone, listed_name, named_id, volume_of};
use crate::backend::rbd::volume::clone::verify::is_whole;
use crate::backend::rbd::volume::id_object;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Whole, or nothing that this driver makes.
    Fine,
    Half,
    /// A name that opens an image which is listed under this other one.
    OtherName(String),
    Tombstone,
    Unreadable(String),
}

pub(super) struct Seen {
    pub(super) image: Image,
    /// At the end of its name.
    pub(super) uuid: Option<Uuid>,
    /// A volume of this driver's or of ceph-csi's, by its name and the index.
    pub(super) is_volume: bool,
    pub(super) state: State,
    pub(super) since: Option<SystemTime>,
    /// Those of users.
    pub(super) snapshots: Vec<Snapshot>,
    /// On nodes, as the image says.
    pub(super) published: Vec<String>,
}

impl Seen {
    /// `listed`: its name is in the directory of the pool.
    pub(super) async fn look(cli: &Cli<'_>, image: Image, listed: bool, records: &Records) -> Self {
        let mut seen = Self {
            uuid: volume_of(&image.name),
            is_volume: records.volume_of(&image.name).is_some(),
            image,
            state: State::Fine,
            since: None,
            snapshots: Vec::new(),
            published: Vec::new(),
        };
        if let Err(error) = seen.look_closer(cli, listed).await {
            seen.state = State::Unreadable(chain(&error));
        }
        seen
    }

    /// Made by this driver, whichever instance of it: ceph-csi's uuids are of other versions.
    pub(super) fn is_ours(&self) -> bool {
        let derived = self.uuid.is_some_and(|uuid| uuid.get_version_num() == 5);
        is_tombstone(&self.image.name) || self.is_volume && derived
    }

    /// Whether `published` is known.
    pub(super) fn tells_published(&self) -> bool {
        self.is_ours() && self.state == State::Fine
    }

    async fn look_closer(&mut self, cli: &Cli<'_>, listed: bool) -> Result<()> {
        let Some(uuid) = self.uuid else { return Ok(()) };
        let info = if listed { cli.info(&self.image).await? } else { None };
        match info {
            Some(info) => self.look_inside(cli, uuid, &info).await?,
            None if self.is_ours() => self.state = closed(cli, &self.image, listed).await?,
            None => {}
        }
        if self.state != State::Fine {
            self.since = cli.object_time(&self.image.pool, &id_object(&self.image)).await?;
        }
        Ok(())
    }

    async fn look_inside(&mut self, cli: &Cli<'_>, uuid: Uuid, info: &Info) -> Result<()> {
        if self.is_ours() {
            let meta = cli.some_meta(&self.image.pool, &info.id, meta::is_of_its_making).await?;
            let published = meta::published(&meta, uuid).into_iter();
            self.published = published.map(|record| record.node).collect();
            self.state = match is_tombstone(&self.image.name) {
                true => State::Tombstone,
                false if is_whole(cli, uuid, info, &meta).await? => State::Fine,
                false => State::Half,
            };
        }
        if info.snapshot_count > 0 {
            let snapshots = cli.snapshots(&self.image).await?.unwrap_or_default();
            self.snapshots = snapshots.into_iter().filter(Snapshot::is_of_a_user).collect();
        }
        Ok(())
    }
}

/// A name that opens nothing.
async fn closed(cli: &Cli<'_>, image: &Image, listed: bool) -> Result<State> {
    if listed {
        return Ok(State::Half);
    }
    let Some(id) = named_id(cli, image).await? else { return Ok(State::Fine) };
    let other = listed_name(cli, &image.pool, &id).await?.filter(|name| *name != image.name);
    Ok(other.map_or(State::Half, State::OtherName))
}
