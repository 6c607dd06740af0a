//! Who we are on a cluster: by the secrets of a request, or by the cluster configuration. The key lives in memory only.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::keys::Passphrase;

/// The secrets of a request. No `Debug`, no `Display`: they cannot be printed. What they are is wiped when they go.
#[derive(Clone, Default)]
pub(crate) struct Secrets(BTreeMap<String, Zeroizing<String>>);

impl Secrets {
    pub(crate) fn new(values: BTreeMap<String, String>) -> Self {
        Self(values.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of encrypted volumes: `encryptionPassphrase`. An empty one is none.
    pub(crate) fn encryption_passphrase(&self) -> Option<Passphrase> {
        let text = self.0.get("encryptionPassphrase").filter(|text| !text.is_empty())?;
        Some(Passphrase::new(text.as_bytes().to_vec()))
    }

    /// User and key: `userID`/`userKey`, the older `adminID`/`adminKey`, or the in-tree `adminId`/`key`.
    pub(super) fn credential(&self) -> Result<(&str, &str)> {
        let get = |key: &str| self.0.get(key).map(|value| value.as_str()).filter(|value| !value.is_empty());
        [("userID", "userKey"), ("adminID", "adminKey"), ("adminId", "key")]
            .iter()
            .find_map(|(user, key)| get(user).zip(get(key)))
            .ok_or_else(|| {
                Error::Invalid(
                    "the request carries no credential: its secret needs userID and userKey (name the secret in the \
                     StorageClass: csi.storage.k8s.io/<operation>-secret-name and -namespace)"
                        .to_owned(),
                )
            })
    }
}

/// Ours, not ceph-csi's: for the calls that carry no secrets (ListVolumes, ControllerGetVolume, GetCapacity), and for
/// those that may carry none.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Credential {
    #[serde(rename = "userID")]
    pub(super) user: String,
    /// Holds the key alone, as `ceph auth get-key` prints it.
    #[serde(rename = "keyFile")]
    key_file: PathBuf,
    /// Those that are listed.
    #[serde(default)]
    pub(super) pools: Vec<String>,
}

impl Credential {
    /// Read anew each time: a changed Secret counts at once. A folder that is not mounted yet passes by itself.
    pub(super) fn key(&self) -> Result<Zeroizing<String>> {
        let path = self.key_file.display();
        std::fs::read_to_string(&self.key_file).map(Zeroizing::new).map_err(|error| {
            Error::Precondition(format!("the key file {path} of the cluster configuration: {error}"))
        })
    }
}

/// A key is base64. Checked here, because `rbd` prints a key that it cannot decode.
pub(super) fn is_key(key: &str) -> Result<()> {
    let key = key.trim();
    let digits = key.trim_end_matches('=');
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/');
    if plain && key.len().is_multiple_of(4) && key.len() - digits.len() <= 2 {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "userKey is not a Ceph key ({} bytes, not base64): copy it anew (ceph auth get-key client.<userID>)",
        key.len()
    )))
}

/// A file without a name on any disk.
pub(super) fn keep_in_memory(key: &str) -> Result<File> {
    let descriptor = memfd_create("key", MFdFlags::MFD_CLOEXEC)
        .map_err(|error| Error::internal("keeping the key in memory", error))?;
    let mut file = File::from(descriptor);
    file.write_all(key.trim().as_bytes())
        .map_err(|error| Error::internal("keeping the key in memory", error))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_spellings_of_a_credential_are_read() {
        for pair in [("userID", "userKey"), ("adminID", "adminKey"), ("adminId", "key")] {
            assert_eq!(secrets(&[(pair.0, "u"), (pair.1, "k")]).credential().expect("read"), ("u", "k"));
        }
        assert!(secrets(&[("userID", "u")]).credential().is_err());
    }

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        Secrets::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }
}
