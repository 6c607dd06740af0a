//! The keys of encrypted images: sealed for the volume id, kept in the metadata of the image, so that they live exactly as
//! long as it does, under whatever name (SAFETY 7).

mod attach;
mod clone;
mod rotate;

use uuid::Uuid;

use crate::cluster::Secrets;
use crate::error::Result;
use crate::id::VolumeId;
use crate::keys::{KeyStore, Passphrase};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::{Entry, recorded_key_store};
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::meta::{self, Key, Meta};
use crate::backend::rbd::params::Plan;
use crate::backend::rbd::volume::create::{NewVolume, differs};

pub(crate) use clone::Origin;

/// The key store of one volume, asked with the secrets of one request.
pub(crate) struct Keyring {
    store: Box<dyn KeyStore>,
    /// Of the store.
    id: String,
    /// What keys are sealed for: the id of the volume, as the CO has it.
    volume: String,
}

impl Keyring {
    pub(crate) fn of(self, volume: &VolumeId) -> Self {
        Self { volume: volume.to_string(), ..self }
    }

    /// The metadata of a new image.
    pub(crate) async fn records(&self, uuid: Uuid) -> Result<Vec<(String, String)>> {
        let sealed = self.store.seal(&self.volume, &self.store.new_key()?).await?;
        let pair = |key: &str, value: String| (key.to_owned(), value);
        let mut records = vec![
            pair(meta::ENCRYPTED, meta::PREPARED.to_owned()),
            pair(meta::HEADER, meta::LUKS2_HEADER.to_string()),
            meta::of_key_store(uuid, &self.id),
        ];
        records.extend(sealed.map(|sealed| pair(meta::DEK, sealed)));
        Ok(records)
    }

    /// All that may open the header, newest first. The key in force has to be readable.
    pub(crate) async fn open(&self, meta: &Meta) -> Result<Vec<Passphrase>> {
        let sealed = meta::keys(meta);
        let (current, older) = match sealed.split_first() {
            Some((first, older)) if first.name == meta::DEK => (Some(first), older),
            _ => (None, sealed.as_slice()),
        };
        let current = current.map(|key| key.sealed.as_str());
        let mut keys = vec![self.store.open(&self.volume, current).await?];
        for Key { name, sealed } in older {
            match self.store.open(&self.volume, Some(sealed)).await {
                Ok(key) if !keys.contains(&key) => keys.push(key),
                Ok(_) => {}
                Err(error) => tracing::warn!(volume = self.volume, name, "an older key is left out: {error}"),
            }
        }
        Ok(keys)
    }
}

impl Rbd {
    pub(crate) async fn keyring(&self, id: &str, volume: String, secrets: &Secrets) -> Result<Keyring> {
        let store = self.key_stores.get(id, secrets.encryption_passphrase()).await?;
        Ok(Keyring { store, id: id.to_owned(), volume })
    }

    /// Of a volume that is to be made: for which one is known later.
    pub(crate) async fn new_keyring(&self, plan: &Plan, secrets: &Secrets) -> Result<Option<Keyring>> {
        match &plan.key_store {
            Some(id) => self.keyring(id, String::new(), secrets).await.map(Some),
            None => Ok(None),
        }
    }

    /// The key store of an image that is there already, by what its metadata was written for: of a clone that is not finished
    /// that is its source.
    async fn key_store_of(
        &self,
        cli: &Cli<'_>,
        pool: &str,
        meta: &Meta,
        of: &(Entry, Uuid),
    ) -> Result<Option<String>> {
        if let Some(id) = meta::key_store(meta, of.1) {
            return Ok(Some(id.to_owned()));
        }
        recorded_key_store(cli, pool, of.0, of.1).await
    }
}

/// Refuses a whole image that is not encrypted as the request asks for. `finished`: its keys are its own by now.
pub(crate) fn same_encryption(new: &NewVolume<'_>, meta: &Meta, finished: bool) -> Result<()> {
    let asked = new.plan.key_store.as_deref();
    let (is, has) = (meta::is_encrypted(meta), meta::key_store(meta, new.uuid));
    match asked {
        None if is => differs(new, "encrypted, where a plain one is asked for"),
        Some(_) if !is => differs(new, "not encrypted, where an encrypted one is asked for"),
        Some(asked) if has.is_some_and(|has| has != asked) || has.is_none() && finished => {
            let has = has.unwrap_or("none");
            differs(new, &format!("encrypted by key store {has:?}, where {asked:?} is asked for"))
        }
        _ => Ok(()),
    }
}

impl From<&VolumeId> for Origin {
    fn from(id: &VolumeId) -> Self {
        Self { volume: id.clone(), entry: Entry::Volume }
    }
}
