//! ControllerModifyVolume: how fast a volume may be, and what of that follows its size.

use crate::backend::{Image, Parameters};
use crate::cluster::Secrets;
use crate::error::{Error, Result};
use crate::id::VolumeId;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::meta;
use crate::backend::rbd::params::qos::Qos;
use crate::backend::rbd::volume::not_found;

/// A twin may grow or change the volume while it is changed here: so it is looked at again, a few times.
const LOOKS: u32 = 4;

impl Rbd {
    pub(crate) async fn modify_volume(
        &self,
        id: &VolumeId,
        mutable: &Parameters,
        secrets: &Secrets,
    ) -> Result<()> {
        let access = self.clusters.access(&id.cluster, secrets)?;
        let cli = self.cli(&access);
        for _ in 0..LOOKS {
            let (image, changes) = self.modification(&cli, id, mutable).await?;
            if changes.is_empty() {
                return Ok(());
            }
            apply(&cli, &image, changes).await?;
        }
        Err(Error::Busy(format!("volume {id} was changed by somebody else meanwhile: ask again")))
    }

    /// Why the volume cannot be changed so, if it cannot.
    pub(crate) async fn modify_refusal(
        &self,
        id: &VolumeId,
        mutable: &Parameters,
        secrets: &Secrets,
    ) -> Result<Option<String>> {
        let wrong = match self.clusters.access_if_any(&id.cluster, secrets)? {
            Some(access) => self.modification(&self.cli(&access), id, mutable).await.map(drop),
            None => Qos::parse(mutable).map(drop),
        };
        match wrong {
            Err(Error::Invalid(text)) => Ok(Some(text)),
            other => other.map(|()| None),
        }
    }

    /// Lets what is limited for each GiB follow the size that a volume has grown to.
    pub(crate) async fn rescale(&self, cli: &Cli<'_>, image: &Image, size: u64) -> Result<()> {
        let meta = cli.meta(image).await?.unwrap_or_default();
        // What somebody wrote by hand and fits nothing keeps no volume from growing.
        let changes = Qos::default().changes(&meta, size).unwrap_or_default();
        apply(cli, image, changes).await
    }

    /// What is still to be written to which image. All is checked before anything changes.
    async fn modification(
        &self,
        cli: &Cli<'_>,
        id: &VolumeId,
        mutable: &Parameters,
    ) -> Result<(Image, Vec<(String, String)>)> {
        let absent = || not_found(id, &id.default_image());
        let (image, meta) = self.find_meta(cli, id).await?.ok_or_else(absent)?;
        let qos = Qos::parse(mutable)?;
        if qos.is_empty() {
            return Ok((image, Vec::new()));
        }
        if !meta::is_nbd(&meta) {
            return Err(no_limits(&format!("image {image}")));
        }
        let size = cli.info(&image).await?.ok_or_else(absent)?.size;
        let changes = qos.changes(&meta, size.saturating_sub(meta::header(&meta)))?;
        Ok((image, changes))
    }
}

pub(crate) fn no_limits(what: &str) -> Error {
    Error::Invalid(format!(
        "{what} is mapped by krbd, which knows no limits: mutable parameters are for volumes whose StorageClass has \
         mounter: rbd-nbd"
    ))
}

async fn apply(cli: &Cli<'_>, image: &Image, changes: Vec<(String, String)>) -> Result<()> {
    for (key, value) in changes {
        cli.set_meta(image, &key, &value).await?;
    }
    Ok(())
}
