//! One image: make it, look at it, its metadata, its size.

use crate::backend::Image;
use crate::error::Result;
use crate::host::{Cmd, CmdError, Slot};

use crate::backend::rbd::cli::json::{Info, Locks, Status, Used, Watcher};
use crate::backend::rbd::cli::{Cli, absent_is_none, errno, explain, parse};
use crate::backend::rbd::meta::Meta;

/// What became of an image's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renamed {
    Done,
    /// There is nothing of the old name.
    Absent,
    /// The new name is there already.
    Taken,
}

impl Cli<'_> {
    /// Makes an image from an export stream. False where one of that name exists.
    pub(crate) async fn import(
        &self,
        image: &Image,
        options: Vec<String>,
        stream: Vec<u8>,
    ) -> Result<bool, CmdError> {
        let mut args = vec!["import".to_owned(), "--export-format=2".to_owned(), "--no-progress".to_owned()];
        args.extend(options);
        args.extend(["-".to_owned(), image.to_string()]);
        match self.run("rbd", args, |cmd| cmd.stdin(stream)).await {
            Ok(_) => Ok(true),
            Err(error) if error.exit() == Some(errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// None where there is no such image, or only half of one.
    pub(crate) async fn info(&self, image: &Image) -> Result<Option<Info>> {
        self.json_if_there("info", image, &[]).await
    }

    /// The same by the id of an image, in the trash or not.
    pub(crate) async fn info_of_trashed(&self, pool: &str, id: &str) -> Result<Option<Info>> {
        self.json_by_id("info", pool, id, &[]).await
    }

    /// Names of images.
    pub(crate) async fn images(&self, pool: &str) -> Result<Vec<String>> {
        let what = format!("listing the images of {}", self.pool(pool));
        let args = ["ls".to_owned(), self.pool(pool), "--format=json".to_owned()];
        let output = self.run("rbd", args, |cmd| cmd).await.map_err(|error| explain(&what, error))?;
        parse(&what, &output)
    }

    /// Works with snapshots and clones. A killed one leaves both names.
    pub(crate) async fn rename(&self, image: &Image, new: &Image) -> Result<Renamed> {
        let renamed = self.run("rbd", ["rename", &image.to_string(), &new.to_string()], |cmd| cmd).await;
        match renamed.map_err(|error| (error.exit(), error)) {
            Ok(_) => Ok(Renamed::Done),
            Err((Some(errno::NOENT), _)) => Ok(Renamed::Absent),
            Err((Some(errno::EXIST), _)) => Ok(Renamed::Taken),
            Err((_, error)) => Err(explain(&format!("renaming {image} to {new}"), error)),
        }
    }

    /// Clients that hold the image open for writing. None where there is no such image.
    pub(crate) async fn watchers(&self, image: &Image) -> Result<Option<Vec<Watcher>>> {
        let status = self.json_if_there::<Status>("status", image, &[]).await?;
        Ok(status.map(|status| status.watchers))
    }

    /// The clients that have the exclusive lock of the image, alive or not. None where there is no such image.
    pub(crate) async fn lock_owners(&self, image: &Image) -> Result<Option<Vec<String>>> {
        let locks = self.json_if_there::<Locks>("lock ls", image, &[]).await?;
        Ok(locks.map(|Locks(locks)| locks.into_iter().map(|lock| lock.address).collect()))
    }

    pub(crate) async fn meta(&self, image: &Image) -> Result<Option<Meta>> {
        self.json_if_there("image-meta list", image, &[]).await
    }

    /// What is wanted of the metadata, by image id. Not by `rbd image-meta list`, which opens the image for writing: it watches
    /// it for a moment, so that others take it for used, and it hangs while the pool is full (seen).
    pub(crate) async fn some_meta(
        &self,
        pool: &str,
        id: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Meta> {
        let header = format!("rbd_header.{id}");
        let mut meta = Meta::new();
        for key in self.omap_keys(pool, &header).await? {
            let Some(name) = key.strip_prefix("metadata_").filter(|name| wanted(name)) else { continue };
            let value = self.omap_get(pool, &header, &key).await?.unwrap_or_default();
            meta.insert(name.to_owned(), String::from_utf8_lossy(&value).into_owned());
        }
        Ok(meta)
    }

    pub(crate) async fn set_meta(&self, image: &Image, key: &str, value: &str) -> Result<()> {
        let args = ["image-meta", "set", &image.to_string(), key, "--", value];
        self.run("rbd", args, Cmd::with_hidden_value)
            .await
            .map(drop)
            .map_err(|error| explain(&format!("writing {key} to {image}"), error))
    }

    /// A key that is not there is success.
    pub(crate) async fn remove_meta(&self, image: &Image, key: &str) -> Result<()> {
        let removed = self.run("rbd", ["image-meta", "remove", &image.to_string(), key], |cmd| cmd).await;
        absent_is_none(removed)
            .map(drop)
            .map_err(|error| explain(&format!("removing {key} from {image}"), error))
    }

    /// Makes an image larger; `rbd` refuses to make it smaller. Work that grows with the image, where it has an object map.
    pub(crate) async fn resize(&self, image: &Image, size: u64) -> Result<()> {
        let args = ["resize", "--no-progress", "--size", &format!("{size}B"), &image.to_string()];
        let resized = self.run("rbd", args, |cmd| cmd.deadline(self.deadline * 2)).await;
        resized.map(drop).map_err(|error| explain(&format!("growing {image} to {size} bytes"), error))
    }

    /// Bytes that the image holds itself, without its parents. Instant with fast-diff.
    pub(crate) async fn own_bytes(&self, image: &Image) -> Result<u64> {
        let used = self.json_if_there::<Used>("du", image, &[]).await?;
        Ok(used.map_or(0, |used| used.images.iter().map(|image| image.used_size).sum()))
    }

    /// Whether no block, parents included, was ever written. Instant with fast-diff; else it looks at each object.
    pub(crate) async fn is_empty(&self, image: &Image) -> Result<bool> {
        let args = ["diff", "--whole-object", "--format=json", &image.to_string()];
        let long = |cmd: Cmd| cmd.slot(Slot::Long).deadline(self.deadline * 10);
        let output = self
            .run("rbd", args, long)
            .await
            .map_err(|error| explain(&format!("looking for data in {image}"), error))?;
        Ok(output.stdout.trim_ascii() == b"[]")
    }
}
