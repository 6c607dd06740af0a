//! What `--repair` does: only what an intent, the index or a name of ours speaks of, each looked at once more.

use crate::error::{Error, Result};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::audit::finding::Remedy;
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Locker;
use crate::backend::rbd::meta;
use crate::backend::rbd::pool::index::index_object;
use crate::backend::rbd::snapshot::claim::PATIENCE;
use crate::backend::rbd::trash::tombstone::{is_young, listed_name, named_id};
use crate::backend::rbd::volume::clone::verify::is_whole;
use crate::backend::rbd::volume::id_object;

use super::finding::Finding;

impl Rbd {
    /// False: it is left alone.
    pub(super) async fn mend(&self, cli: &Cli<'_>, pool: &str, finding: &Finding) -> Result<bool> {
        let index = index_object(&self.instance);
        match &finding.remedy {
            Remedy::Never(_) => return Ok(false),
            Remedy::Discard(image) => {
                self.discard_half_made(cli, image).await?;
                self.trash.sweep(cli, pool).await?;
            }
            Remedy::DropName(image) => self.drop_name(cli, image).await?,
            Remedy::RemoveSnapshot { image, name, clone } => {
                self.clone_is_proved(cli, pool, *clone).await?;
                cli.remove_snapshot(image, name).await?;
            }
            Remedy::Bury(uuid) => {
                self.bury_empty(cli, pool, *uuid).await?;
                self.trash.sweep(cli, pool).await?;
            }
            Remedy::Surface { id, uuid } => {
                self.trash.surface(cli, pool, *uuid, id).await?;
                self.trash.sweep(cli, pool).await?;
            }
            Remedy::WriteKey(key) => cli.omap_set(pool, &index, key, "").await?,
            Remedy::ForgetKey(key) => self.forget_keys(cli, pool, std::slice::from_ref(key)).await?,
            Remedy::ForgetName(uuid) => {
                self.forget_noted_name(cli, pool, *uuid).await?;
                self.forget(cli, pool, Entry::Volume, *uuid).await?;
            }
            Remedy::EmptyTrash => self.trash.sweep(cli, pool).await?,
            Remedy::BreakClaim { object, locker } => break_claim(cli, pool, object, locker.as_ref()).await?,
            Remedy::RemoveObject(object) => cli.remove_object(pool, object).await?,
            Remedy::ForgetEntry(entry, uuid) => self.forget(cli, pool, *entry, *uuid).await?,
        }
        Ok(true)
    }

    async fn drop_name(&self, cli: &Cli<'_>, image: &crate::backend::Image) -> Result<()> {
        let object = id_object(image);
        let (id, since) = tokio::try_join!(named_id(cli, image), cli.object_time(&image.pool, &object))?;
        let (Some(id), Some(since)) = (id, since) else { return Ok(()) };
        let listed = listed_name(cli, &image.pool, &id).await?;
        if listed.is_none_or(|name| name == image.name) || is_young(since, self.deadline * PATIENCE) {
            return Err(changed(image));
        }
        cli.remove_object(&image.pool, &object).await
    }

    /// A clone that its source does not list would lose its data with the snapshot.
    async fn clone_is_proved(&self, cli: &Cli<'_>, pool: &str, uuid: uuid::Uuid) -> Result<()> {
        let image = cli.image(pool, &format!("csi-vol-{uuid}"));
        if named_id(cli, &image).await?.is_none() {
            return Ok(());
        }
        let Some(info) = cli.info(&image).await? else { return Err(changed(&image)) };
        let meta = cli.some_meta(pool, &info.id, meta::is_of_its_making).await?;
        if is_whole(cli, uuid, &info, &meta).await? { Ok(()) } else { Err(changed(&image)) }
    }
}

/// From exactly that one; the object goes where nobody has taken it since.
async fn break_claim(cli: &Cli<'_>, pool: &str, object: &str, locker: Option<&Locker>) -> Result<()> {
    if let Some(locker) = locker {
        cli.break_claim(pool, object, locker).await?;
    }
    match cli.claimant(pool, object).await? {
        None => cli.remove_object(pool, object).await,
        Some(_) => Err(changed(&object)),
    }
}

fn changed(what: &impl std::fmt::Display) -> Error {
    Error::Busy(format!("{what} is not what it was when it was looked at: run the audit again"))
}
