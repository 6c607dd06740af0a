//! Snapshots and clones.

use std::fs::File;

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, Slot};

use crate::backend::rbd::cli::json::{Child, Info, Snapshot};
use crate::backend::rbd::cli::{Cli, absent_is_none, errno, explain};

impl Cli<'_> {
    /// Snapshots, those in the trash of the image too. None where there is no such image.
    pub(crate) async fn snapshots(&self, image: &Image) -> Result<Option<Vec<Snapshot>>> {
        self.json_if_there("snap ls", image, &["--all"]).await
    }

    /// The same by the id of an image, in the trash or not.
    pub(crate) async fn snapshots_of_trashed(&self, pool: &str, id: &str) -> Result<Option<Vec<Snapshot>>> {
        self.json_by_id("snap ls", pool, id, &["--all"]).await
    }

    /// The features and flags of an image as they are of a snapshot of it.
    pub(crate) async fn snapshot_info(&self, image: &Image, name: &str) -> Result<Info> {
        let spec = format!("{image}@{name}");
        let info = self.json("info", &spec, [spec.as_str()].iter()).await?;
        info.ok_or_else(|| Error::NotFound(format!("snapshot {spec} does not exist")))
    }

    /// Objects that were written up to a snapshot, parents included, or between an older one and it: a list of JSON, in
    /// a file that has no name, for it may be larger than memory.
    pub(crate) async fn diff(&self, image: &Image, name: &str, base: Option<&str>) -> Result<File> {
        let spec = format!("{image}@{name}");
        let what = format!("comparing {spec} with what was before it");
        let base = base.map(|base| ["--from-snap", base]);
        let args = ["diff", "--whole-object", "--format=json", &spec];
        self.run_to_file("rbd", args.into_iter().chain(base.into_iter().flatten()), &what).await
    }

    /// One monitor commit, and whole or not there at all. False where one of that name exists.
    pub(crate) async fn create_snapshot(&self, image: &Image, name: &str) -> Result<bool> {
        let spec = format!("{image}@{name}");
        match self.run("rbd", ["snap", "create", "--no-progress", &spec], |cmd| cmd).await {
            Ok(_) => Ok(true),
            Err(error) if error.exit() == Some(errno::EXIST) => Ok(false),
            Err(error) => Err(explain(&format!("taking snapshot {spec}"), error)),
        }
    }

    /// What has clones goes to the trash of the image until they are gone. False where there is no such snapshot.
    pub(crate) async fn remove_snapshot(&self, image: &Image, name: &str) -> Result<bool> {
        let spec = format!("{image}@{name}");
        let removed = self.run("rbd", ["snap", "rm", "--no-progress", &spec], |cmd| cmd).await;
        let removed =
            absent_is_none(removed).map_err(|error| explain(&format!("removing snapshot {spec}"), error))?;
        Ok(removed.is_some())
    }

    /// The same on an image in the trash.
    pub(crate) async fn remove_snapshot_of_trashed(&self, pool: &str, id: &str, name: &str) -> Result<()> {
        let (namespace, what) = (&self.access.namespace, format!("removing snapshot {name} of image {id}"));
        let place = ["--pool", pool, "--namespace", namespace, "--image-id", id, "--snap", name];
        let args = ["snap", "rm", "--no-progress"].iter().chain(&place).copied();
        let removed = self.run("rbd", args, |cmd| cmd).await;
        absent_is_none(removed).map(drop).map_err(|error| explain(&what, error))
    }

    /// Metadata only: a clone of format 2, whose parent needs no protection and may go to the trash.
    pub(crate) async fn clone(
        &self,
        parent: &Image,
        snapshot: &str,
        clone: &Image,
        options: Vec<String>,
    ) -> Result<(), CmdError> {
        let mut args = vec!["clone".to_owned(), "--rbd-default-clone-format=2".to_owned()];
        args.extend(options);
        args.extend([format!("{parent}@{snapshot}"), clone.to_string()]);
        self.run("rbd", args, |cmd| cmd).await.map(drop)
    }

    /// The clones of all snapshots of an image, those in the trash too. None where there is no such image.
    pub(crate) async fn children(&self, image: &Image) -> Result<Option<Vec<Child>>> {
        self.json_if_there("children", image, &["--all"]).await
    }

    /// The clones of one snapshot. None where there is no such image or snapshot.
    pub(crate) async fn children_of(&self, image: &Image, snapshot: &str) -> Result<Option<Vec<Child>>> {
        let spec = format!("{image}@{snapshot}");
        self.json("children", &spec, [spec.as_str(), "--all"].iter()).await
    }

    /// The clones of one snapshot as librbd keeps them, with the header of the image: the image id of each is in there.
    pub(crate) async fn children_of_snapshot(&self, pool: &str, id: &str, snapshot: u64) -> Result<Vec<u8>> {
        let (header, key) = (format!("rbd_header.{id}"), format!("snap_children_{snapshot:016x}"));
        Ok(self.omap_get(pool, &header, &key).await?.unwrap_or_default())
    }

    /// Copies what a clone shares with its parents, and lets go of them: work that grows with the image. In `Long`, or behind
    /// the answers in `Trash`.
    pub(crate) async fn flatten(&self, image: &Image, slot: Slot) -> Result<()> {
        let long = |cmd: Cmd| cmd.slot(slot).deadline(self.deadline * 10);
        let flattened = self.run("rbd", ["flatten", &image.to_string()], long).await;
        flattened.map(drop).map_err(|error| explain(&format!("flattening {image}"), error))
    }
}
