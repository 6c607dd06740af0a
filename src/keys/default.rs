//! The store of kind `default`: the passphrase of the secret opens all volumes, and nothing is kept.

use async_trait::async_trait;

use super::{KeyStore, Passphrase};
use crate::error::{Error, Result};

pub(super) struct Default {
    pub(super) passphrase: Passphrase,
}

#[async_trait]
impl KeyStore for Default {
    fn new_key(&self) -> Result<Passphrase> {
        Ok(self.passphrase.clone())
    }

    async fn seal(&self, volume: &str, key: &Passphrase) -> Result<Option<String>> {
        if *key == self.passphrase {
            return Ok(None);
        }
        Err(Error::Invalid(format!(
            "volume {volume} has a key of its own, which the key store \"default\" cannot keep: it opens volumes with the \
             encryptionPassphrase of the secret alone; name a key store of kind metadata (encryptionKMSID)"
        )))
    }

    async fn open(&self, volume: &str, sealed: Option<&str>) -> Result<Passphrase> {
        match sealed {
            None => Ok(self.passphrase.clone()),
            Some(_) => Err(Error::Precondition(format!(
                "volume {volume} has a key of its own on its image, and the key store \"default\" is named for it, which opens \
                 volumes with the encryptionPassphrase of the secret alone: name the store that its key is of (encryptionKMSID)"
            ))),
        }
    }
}
