//! A new key in the place of the one in force. The header of each snapshot opens with the key of its time: so no key goes while
//! there are snapshots, those in the trash of the image included.

use crate::backend::{Image, NewKey, Target};
use crate::error::{Error, Result};
use crate::keys::Passphrase;

use crate::backend::rbd::Rbd;
use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::encryption::Keyring;
use crate::backend::rbd::meta::{self, DEK, Key, Meta};

impl Rbd {
    /// Refuses, before the header is touched, where no new key could be kept, or another node might change it too.
    pub(crate) async fn next_key(&self, target: &Target, image: &Image) -> Result<NewKey> {
        let access = self.target_access(target)?;
        let cli = self.cli(&access);
        let (keyring, meta) = self.keys_of(&cli, target, image).await?;
        let clients = meta::clients(&meta, &target.volume);
        if let [(one, _), (other, _), ..] = clients.as_slice() {
            return Err(Error::Precondition(format!(
                "volume {:?} is staged on several nodes ({one:?}, {other:?}): its header is changed while one has it alone",
                target.volume
            )));
        }
        let (keys, new) = (keyring.open(&meta).await?, keyring.store.new_key()?);
        keyring.own_seal(target, &new).await?;
        Ok(NewKey { keys, new })
    }

    /// Makes a key current that opens the header already; the one before stays next to it, and is to be taken from the header
    /// behind this. Cut off at any instant, the image has a key that opens its header and each of its snapshots.
    pub(crate) async fn rotate_key(&self, target: &Target, image: &Image, key: &Passphrase) -> Result<()> {
        let access = self.target_access(target)?;
        let cli = self.cli(&access);
        let (keyring, meta) = self.keys_of(&cli, target, image).await?;
        let (current, mut older): (Vec<_>, Vec<_>) =
            meta::keys(&meta).into_iter().partition(|key| key.name == DEK);
        let current = current.into_iter().next().map(|key| key.sealed);
        if keyring.store.open(&keyring.volume, current.as_deref()).await.ok().as_ref() != Some(key) {
            let sealed = keyring.own_seal(target, key).await?;
            if let Some(current) = current {
                let name = meta::next_older(&meta);
                cli.set_meta(image, &name, &current).await?;
                older.push(Key { name, sealed: current });
            }
            cli.set_meta(image, DEK, &sealed).await?;
        }
        // Asked when the new key is in force: a snapshot that comes now has it in its header.
        if !cli.snapshots(image).await?.unwrap_or_default().is_empty() {
            return Ok(());
        }
        for Key { name, .. } in older {
            cli.remove_meta(image, &name).await?;
        }
        Ok(())
    }

    async fn keys_of(&self, cli: &Cli<'_>, target: &Target, image: &Image) -> Result<(Keyring, Meta)> {
        let meta = cli.meta(image).await?;
        let meta = meta.ok_or_else(|| Error::NotFound(format!("image {image} does not exist")))?;
        Ok((self.keyring_of(cli, target, &image.pool, &meta).await?, meta))
    }
}

impl Keyring {
    /// Of a key that is the volume's own.
    async fn own_seal(&self, target: &Target, key: &Passphrase) -> Result<String> {
        self.store.seal(&self.volume, key).await?.ok_or_else(|| {
            Error::Precondition(format!(
                "volume {:?} is of a key store that keeps no key for each volume: there is none to be changed",
                target.volume
            ))
        })
    }
}
