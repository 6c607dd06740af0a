//! The passphrases of encrypted volumes, and the stores that they come from, by ceph-csi's names.

mod default;
mod metadata;
mod secret;
mod stores;

use std::fmt;

use async_trait::async_trait;
use zeroize::Zeroizing;

use crate::error::Result;

pub(crate) use stores::{DEFAULT, KeyStores};

/// What opens a LUKS header. Never printed, never an argument: `cryptsetup` reads it from its stdin.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Passphrase(Zeroizing<Vec<u8>>);

/// Where keys come from. What of a key is kept is kept on the image, sealed for one volume.
#[async_trait]
pub(crate) trait KeyStore: Send + Sync {
    /// A key for a new volume.
    fn new_key(&self) -> Result<Passphrase>;
    /// The key as it may be kept on the image of this volume. None: nothing has to be.
    async fn seal(&self, volume: &str, key: &Passphrase) -> Result<Option<String>>;
    /// The key of this volume, by what is kept on its image.
    async fn open(&self, volume: &str, sealed: Option<&str>) -> Result<Passphrase>;
}

impl Passphrase {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_cannot_be_printed() {
        assert_eq!(format!("{:?}", Passphrase::new(b"secret".to_vec())), "Passphrase");
    }
}
