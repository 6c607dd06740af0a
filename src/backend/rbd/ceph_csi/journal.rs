//! ceph-csi's journal: omap objects beside the images, which tell the names of volumes and snapshots whose ids do not.
//! Read where ceph-csi wrote them, written for volumes that are named with a prefix or are to go back to ceph-csi (`back`),
//! taken away behind the image.

use uuid::Uuid;

use crate::backend::Image;
use crate::error::{Error, Result};
use crate::id::Pool;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::params::check_plain;

/// The name of the image.
pub(super) const IMAGE: &str = "csi.imagename";
/// Where the key by the request's name is, in 16 hexadecimal digits, when it is not in the pool of the image.
const JOURNAL_POOL: &str = "csi.journalpool";
/// The id of the image, written when it is made.
pub(crate) const IMAGE_ID: &str = "csi.imageid";
/// The image that a snapshot was taken of.
pub(crate) const SOURCE: &str = "csi.source";

/// The key store of something that is encrypted, and the way in which it is.
pub(super) const KEY_STORE: &str = "csi.volume.encryptKMS";
pub(super) const ENCRYPTION: &str = "csi.volume.encryptionType";
/// The Kubernetes namespace of its claim, by which some key stores tell tenants apart.
pub(super) const OWNER: &str = "csi.volume.owner";

/// What an entry is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Volume,
    Snapshot,
}

impl Entry {
    /// The object of one volume or snapshot, in the pool of its image.
    pub(crate) fn object(self, uuid: Uuid) -> String {
        format!("{}{uuid}", self.object_prefix())
    }

    pub(crate) fn object_prefix(self) -> &'static str {
        match self {
            Self::Volume => "csi.volume.",
            Self::Snapshot => "csi.snap.",
        }
    }

    /// The object that has a key for the name of each request.
    pub(crate) fn directory(self, instance: &str) -> String {
        match self {
            Self::Volume => format!("csi.volumes.{instance}"),
            Self::Snapshot => format!("csi.snaps.{instance}"),
        }
    }

    pub(crate) fn directory_key(self, name: &str) -> String {
        match self {
            Self::Volume => format!("csi.volume.{name}"),
            Self::Snapshot => format!("csi.snap.{name}"),
        }
    }

    /// The key of the request's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Volume => "csi.volname",
            Self::Snapshot => "csi.snapname",
        }
    }
}

impl Rbd {
    /// A name that no id can tell is written down before the image is made, where ceph-csi looks too.
    pub(crate) async fn record_name(
        &self,
        cli: &Cli<'_>,
        image: &Image,
        uuid: Uuid,
        request_name: &str,
        key_store: Option<&str>,
    ) -> Result<()> {
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
        let object = Entry::Volume.object(uuid);
        cli.omap_set(&image.pool, &object, Entry::Volume.name(), request_name).await?;
        if let Some(id) = key_store {
            cli.omap_set(&image.pool, &object, KEY_STORE, id).await?;
            cli.omap_set(&image.pool, &object, ENCRYPTION, "block").await?;
        }
        cli.omap_set(&image.pool, &object, IMAGE, &image.name).await
    }

    /// The name of a volume's image, where it was written down.
    pub(crate) async fn recorded_name(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        uuid: Uuid,
    ) -> Result<Option<String>> {
        recorded(cli, pool, Entry::Volume, uuid).await
    }

    /// Takes away what was written of something whose image is gone. The object goes last: it tells what else there is,
    /// so that the next call goes on where a kill ended this one.
    pub(crate) async fn forget(&self, cli: &Cli<'_>, pool: &str, entry: Entry, uuid: Uuid) -> Result<()> {
        let object = entry.object(uuid);
        if let Some(keys) = keys_of(cli, pool, entry, uuid).await? {
            self.forget_name(cli, &keys, entry, uuid).await?;
            if keys.pool != pool {
                cli.remove_object(&keys.pool, &object).await?;
            }
        }
        cli.remove_object(pool, &object).await
    }

    /// Somebody may have been given the name anew: then its key names another uuid.
    async fn forget_name(&self, cli: &Cli<'_>, keys: &Keys, entry: Entry, uuid: Uuid) -> Result<()> {
        let Some(home) = self.home(cli, keys).await? else { return Ok(()) };
        let (directory, key) = (entry.directory(&self.instance), entry.directory_key(&keys.name));
        let value = cli.omap_get(&home, &directory, &key).await?;
        if value.is_some_and(|value| lossy(&value).ends_with(&uuid.to_string())) {
            cli.omap_remove(&home, &directory, &key).await?;
        }
        Ok(())
    }

    /// The pool that has the directory. None where it is gone, and the directory with it.
    async fn home(&self, cli: &Cli<'_>, keys: &Keys) -> Result<Option<String>> {
        let Some(recorded) = &keys.journal_pool else { return Ok(Some(keys.pool.clone())) };
        let id = u64::from_str_radix(recorded, 16).map_err(|_| {
            Error::Precondition(format!(
                "{JOURNAL_POOL} is {recorded:?}, no number of a pool: mend ceph-csi's journal"
            ))
        })?;
        match self.pools.name(cli, &Pool::Id(id)).await {
            Ok(name) => Ok(Some(name)),
            Err(Error::Precondition(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What an object tells of where its directory's key is.
struct Keys {
    /// Where the object is that has them.
    pool: String,
    /// Of the request.
    name: String,
    journal_pool: Option<String>,
}

/// They are in the pool of the image. But where ceph-csi keeps its directory in another one (topology), it writes the keys
/// there too, and leaves an object without any beside the image (`ReserveName`).
async fn keys_of(cli: &Cli<'_>, pool: &str, entry: Entry, uuid: Uuid) -> Result<Option<Keys>> {
    let object = entry.object(uuid);
    if let Some(keys) = keys_in(cli, pool, entry, &object).await? {
        return Ok(Some(keys));
    }
    if cli.object_time(pool, &object).await?.is_none() {
        return Ok(None);
    }
    for other in cli.pools().await?.into_values().filter(|other| other != pool) {
        match keys_in(cli, &other, entry, &object).await {
            Ok(None) => {}
            // A pool of others.
            Err(Error::Denied(_)) => tracing::debug!(other, "this user may not look into this pool"),
            found => return found,
        }
    }
    Ok(None)
}

async fn keys_in(cli: &Cli<'_>, pool: &str, entry: Entry, object: &str) -> Result<Option<Keys>> {
    let (name, journal_pool) =
        tokio::try_join!(cli.omap_get(pool, object, entry.name()), cli.omap_get(pool, object, JOURNAL_POOL))?;
    let journal_pool = journal_pool.map(|pool| lossy(&pool));
    Ok(name.map(|name| Keys { pool: pool.to_owned(), name: lossy(&name), journal_pool }))
}

/// The name of the image of an entry.
pub(crate) async fn recorded(cli: &Cli<'_>, pool: &str, entry: Entry, uuid: Uuid) -> Result<Option<String>> {
    let name = cli.omap_get(pool, &entry.object(uuid), IMAGE).await?.map(|name| lossy(&name));
    name.as_deref().map_or(Ok(()), |name| check_plain(IMAGE, name))?;
    Ok(name)
}

/// The key store that ceph-csi, or this driver, has written down.
pub(crate) async fn recorded_key_store(
    cli: &Cli<'_>,
    pool: &str,
    entry: Entry,
    uuid: Uuid,
) -> Result<Option<String>> {
    let object = entry.object(uuid);
    let id = match cli.omap_get(pool, &object, KEY_STORE).await? {
        Some(id) => Some(id),
        None => match keys_of(cli, pool, entry, uuid).await? {
            Some(keys) if keys.pool != pool => cli.omap_get(&keys.pool, &object, KEY_STORE).await?,
            _ => None,
        },
    };
    Ok(id.map(|id| lossy(&id)).filter(|id| !id.is_empty()))
}

/// The uuid at the end of a name that ceph-csi gave.
pub(crate) fn trailing_uuid(name: &str) -> Option<Uuid> {
    let uuid = name.get(name.len().checked_sub(36)?..)?;
    Uuid::try_parse(uuid).ok()
}

pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_of_an_image_stands_at_the_end_of_its_name() {
        let uuid = "50d53503-e5e8-11e9-a0e9-0242ac110002";
        for prefix in ["csi-vol-", "kubernetes-dynamic-pvc-", "team-", ""] {
            assert_eq!(trailing_uuid(&format!("{prefix}{uuid}")).expect("a uuid").to_string(), uuid);
        }
        for name in ["", "golden-image", "csi-vol-50d53503", "\u{e4}0d53503-e5e8-11e9-a0e9-0242ac110002"] {
            assert_eq!(trailing_uuid(name), None, "{name:?}");
        }
    }
}
