//! The passphrases of encrypted volumes.

use std::fmt;

/// What opens a LUKS header. Never printed, never an argument: `cryptsetup` reads it from its stdin.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Passphrase(Vec<u8>);

impl Passphrase {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
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
