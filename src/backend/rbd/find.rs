//! Which image a volume id means: its default name, or the one that was recorded.

use uuid::Uuid;

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use super::Rbd;
use super::cli::Cli;
use super::json::Info;
use super::meta::Meta;
use super::params::check_plain;

impl Rbd {
    /// The image of a volume with its metadata, under its default name or the recorded one.
    pub(super) async fn find_meta(&self, cli: &Cli<'_>, id: &VolumeId) -> Result<Option<(Image, Meta)>> {
        let pool = self.pools.name(cli, &id.pool).await?;
        let image = cli.image(&pool, &id.default_image());
        if let Some(meta) = cli.meta(&image).await? {
            return Ok(Some((image, meta)));
        }
        let Some(name) = self.recorded_name(cli, &pool, id.uuid).await? else { return Ok(None) };
        let image = cli.image(&pool, &name);
        Ok(cli.meta(&image).await?.map(|meta| (image, meta)))
    }

    /// The same with what `rbd info` says.
    pub(super) async fn find_info(&self, cli: &Cli<'_>, id: &VolumeId) -> Result<Option<(Image, Info)>> {
        let pool = self.pools.name(cli, &id.pool).await?;
        let image = cli.image(&pool, &id.default_image());
        if let Some(info) = cli.info(&image).await? {
            return Ok(Some((image, info)));
        }
        let Some(name) = self.recorded_name(cli, &pool, id.uuid).await? else { return Ok(None) };
        let image = cli.image(&pool, &name);
        Ok(cli.info(&image).await?.map(|info| (image, info)))
    }

    /// A name that no id can tell is written down before the image is made, where ceph-csi looks too.
    pub(super) async fn record_name(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        uuid: Uuid,
        request_name: &str,
    ) -> Result<()> {
        let object = journal_object(uuid);
        match self.recorded_name(cli, &image.pool, uuid).await? {
            Some(name) if name == image.name => return Ok(()),
            Some(name) => {
                return Err(Error::Conflict(format!(
                    "volume {request_name:?} exists already, as image {name:?}"
                )));
            }
            None => {}
        }
        self.note_name(cli, &image.pool, uuid, &image.name).await?;
        cli.omap_set(&image.pool, &object, "csi.volname", request_name).await?;
        cli.omap_set(&image.pool, &object, "csi.imagename", &image.name).await
    }

    pub(super) async fn recorded_name(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        uuid: Uuid,
    ) -> Result<Option<String>> {
        let name = cli.omap_get(pool, &journal_object(uuid), "csi.imagename").await?;
        let name = name.map(|name| String::from_utf8_lossy(&name).into_owned());
        name.as_deref().map_or(Ok(()), |name| check_plain("csi.imagename", name))?;
        Ok(name)
    }
}

pub(super) fn not_found(id: &VolumeId, image: &impl std::fmt::Display) -> Error {
    Error::NotFound(format!("volume {id} does not exist: no image {image}"))
}

/// librbd's object that maps an image's name to its id; the first that comes into being, and of one size for ever.
pub(super) fn id_object(image: &Image) -> String {
    format!("rbd_id.{}", image.name)
}

/// ceph-csi's journal entry of a volume.
pub(super) fn journal_object(uuid: Uuid) -> String {
    format!("csi.volume.{uuid}")
}
