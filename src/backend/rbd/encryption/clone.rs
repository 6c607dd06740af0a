//! Keys of a clone. It inherits what its source has at that moment, sealed for the source: so before it is handed out, each
//! key is sealed anew for the clone. Each one proves by itself for whom it is sealed, so that a killed try is gone on with,
//! and twins do no harm.

use crate::backend::{Image, Source};
use crate::error::{Error, Result};
use crate::id::VolumeId;
use crate::keys::{self, KeyStore, Passphrase};

use crate::backend::rbd::Rbd;
use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::encryption::Keyring;
use crate::backend::rbd::meta::{self, Key, Meta};
use crate::backend::rbd::volume::create::NewVolume;

/// What the keys of a source are sealed for: its volume; of a snapshot that is an image (ceph-csi's), the snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(super) volume: VolumeId,
    pub(super) entry: Entry,
}

impl From<&Source> for Origin {
    fn from(source: &Source) -> Self {
        match source {
            Source::Volume(id) => id.into(),
            Source::Snapshot(id) => match id.source_volume() {
                Some(volume) => (&volume).into(),
                None => Self { volume: id.own.clone(), entry: Entry::Snapshot },
            },
        }
    }
}

/// Opens what is sealed for a source, or for its clone already.
struct Heir<'a> {
    keyring: &'a Keyring,
    /// None: the same store.
    store: Option<Box<dyn KeyStore>>,
    from: String,
}

impl Heir<'_> {
    /// None: it is sealed for the clone, or an older one that opens for nobody.
    async fn inherited(&self, key: Option<&Key>) -> Result<Option<Passphrase>> {
        let Keyring { store, volume, .. } = self.keyring;
        let sealed = key.map(|key| key.sealed.as_str());
        if sealed.is_some() && store.open(volume, sealed).await.is_ok() {
            return Ok(None);
        }
        let source = self.store.as_ref().unwrap_or(store);
        match (source.open(&self.from, sealed).await, key) {
            (Err(Error::Precondition(why)), Some(older)) if older.name != meta::DEK => {
                tracing::warn!(volume, name = older.name, "an older key stays as it is: {why}");
                Ok(None)
            }
            (opened, _) => opened.map(Some),
        }
    }

    async fn seal(&self, key: &Passphrase) -> Result<Option<String>> {
        self.keyring.store.seal(&self.keyring.volume, key).await
    }
}

impl Rbd {
    /// Refuses, before anything is made, a source whose keys cannot become the clone's.
    pub(crate) async fn can_inherit(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
        image: &Image,
        meta: &Meta,
    ) -> Result<()> {
        let refuse = |is: &str, asked: &str| {
            Err(Error::Invalid(format!(
                "the source of volume {:?}, image {image}, is {is}, and the StorageClass asks for {asked} volumes: a clone \
                 shares the blocks of its source; take a StorageClass that fits",
                new.request.name
            )))
        };
        let Some(keyring) = new.keyring else {
            return if meta::is_encrypted(meta) { refuse("encrypted", "plain") } else { Ok(()) };
        };
        if !meta::is_encrypted(meta) {
            return refuse("plain", "encrypted");
        }
        let heir = self.heir(new, keyring, from, source, meta).await?;
        for sealed in all(meta) {
            if let Some(key) = heir.inherited(sealed.as_ref()).await? {
                heir.seal(&key).await?;
            }
        }
        // Not every release of `rbd` lets a clone inherit what begins with a dot.
        for (key, value) in meta::undotted(meta) {
            from.set_meta(image, key, &value).await?;
        }
        Ok(())
    }

    /// Makes the keys that a clone has inherited its own. Without that it is not whole: it comes before the answer, and before
    /// the marker.
    pub(crate) async fn inherit_keys(
        &self,
        new: &NewVolume<'_>,
        from: &Cli<'_>,
        source: &Source,
    ) -> Result<()> {
        let NewVolume { cli, image, uuid, .. } = *new;
        let Some(keyring) = new.keyring else { return Ok(()) };
        let meta = cli.meta(image).await?.unwrap_or_default();
        if meta::key_store(&meta, uuid).is_some() {
            return Ok(());
        }
        let heir = self.heir(new, keyring, from, source, &meta).await?;
        for sealed in all(&meta) {
            let Some(key) = heir.inherited(sealed.as_ref()).await? else { continue };
            let name = sealed.as_ref().map_or(meta::DEK, |key| key.name.as_str());
            match heir.seal(&key).await? {
                Some(own) => cli.set_meta(image, name, &own).await?,
                None if sealed.is_some() => cli.remove_meta(image, name).await?,
                None => {}
            }
        }
        if !meta.contains_key(meta::HEADER) {
            cli.set_meta(image, meta::HEADER, &meta::header(&meta).to_string()).await?;
        }
        // The header may have been made after the snapshot.
        if meta::is_made(&meta) && cli.is_empty(image).await? {
            cli.set_meta(image, meta::ENCRYPTED, meta::PREPARED).await?;
        }
        let (key, value) = meta::of_key_store(uuid, &keyring.id);
        cli.set_meta(image, &key, &value).await
    }

    async fn heir<'a>(
        &self,
        new: &NewVolume<'_>,
        keyring: &'a Keyring,
        from: &Cli<'_>,
        source: &Source,
        meta: &Meta,
    ) -> Result<Heir<'a>> {
        let Origin { volume, entry } = source.into();
        let pool = self.pools.name(from, &volume.pool).await?;
        let known = self.key_store_of(from, &pool, meta, &(entry, volume.uuid)).await?;
        let id = known.unwrap_or_else(|| fallback(meta, &keyring.id));
        let passphrase = new.request.secrets.encryption_passphrase();
        let store = if id == keyring.id { None } else { Some(self.key_stores.get(&id, passphrase).await?) };
        Ok(Heir { keyring, store, from: volume.to_string() })
    }
}

/// Where nothing says which store it is: one that keeps keys on the image, if any are there.
fn fallback(meta: &Meta, id: &str) -> String {
    if meta::keys(meta).is_empty() { keys::DEFAULT.to_owned() } else { id.to_owned() }
}

/// Its keys; that of a store that keeps nothing on the image is there all the same.
fn all(meta: &Meta) -> Vec<Option<Key>> {
    let keys = meta::keys(meta);
    if keys.is_empty() { vec![None] } else { keys.into_iter().map(Some).collect() }
}
