//! Which image a volume id means: its default name, or the one that was recorded.

pub(crate) mod clone;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod expand;
pub(crate) mod fence;
pub(crate) mod get;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod modify;
pub(crate) mod placement;
pub(crate) mod publish;

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Info;
use crate::backend::rbd::meta::Meta;

impl Rbd {
    /// The image of a volume with its metadata, under its default name or the recorded one.
    pub(crate) async fn find_meta(&self, cli: &Cli<'_>, id: &VolumeId) -> Result<Option<(Image, Meta)>> {
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
    pub(crate) async fn find_info(&self, cli: &Cli<'_>, id: &VolumeId) -> Result<Option<(Image, Info)>> {
        let pool = self.pools.name(cli, &id.pool).await?;
        let image = cli.image(&pool, &id.default_image());
        if let Some(info) = cli.info(&image).await? {
            return Ok(Some((image, info)));
        }
        let Some(name) = self.recorded_name(cli, &pool, id.uuid).await? else { return Ok(None) };
        let image = cli.image(&pool, &name);
        Ok(cli.info(&image).await?.map(|info| (image, info)))
    }
}

pub(crate) fn not_found(id: &VolumeId, image: &impl std::fmt::Display) -> Error {
    Error::NotFound(format!("volume {id} does not exist: no image {image}"))
}

/// librbd's object that maps an image's name to its id; the first that comes into being, and of one size for ever.
pub(crate) fn id_object(image: &Image) -> String {
    format!("rbd_id.{}", image.name)
}
