//! The store of kind `metadata`: each volume has a random key, kept on its image under AES-256-GCM, by a key that scrypt
//! makes of the passphrase and the volume id. ceph-csi's format, so that each driver opens what the other has sealed.

use std::collections::HashMap;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use scrypt::Params;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};
use zeroize::Zeroizing;

use super::{KeyStore, Passphrase};
use crate::error::{Error, Result};

/// Random bytes of a volume's key, which is their base64.
const KEY_BYTES: usize = 20;
/// scrypt takes 32 MiB.
static DERIVING: Semaphore = Semaphore::const_new(2);

pub(super) struct Metadata {
    passphrase: Passphrase,
    /// By volume id: for one request, which may open several records.
    derived: Mutex<HashMap<String, LessSafeKey>>,
}

/// What is kept, as JSON. The key is sealed, the tag behind it; both are base64.
#[derive(Serialize, Deserialize)]
struct Record {
    dek: String,
    nonce: String,
}

impl Metadata {
    pub(super) fn new(passphrase: Passphrase) -> Self {
        Self { passphrase, derived: Mutex::default() }
    }

    async fn derived(&self, volume: &str) -> Result<LessSafeKey> {
        let mut derived = self.derived.lock().await;
        if let Some(key) = derived.get(volume) {
            return Ok(key.clone());
        }
        let _slot = DERIVING.acquire().await.map_err(|error| Error::internal("waiting for scrypt", error))?;
        let (passphrase, salt) = (self.passphrase.clone(), volume.to_owned());
        let key = tokio::task::spawn_blocking(move || derive(&passphrase, &salt)).await;
        let key = key.map_err(|error| Error::internal("making a key of the passphrase", error))??;
        derived.insert(volume.to_owned(), key.clone());
        Ok(key)
    }
}

#[async_trait]
impl KeyStore for Metadata {
    fn new_key(&self) -> Result<Passphrase> {
        let bytes = Zeroizing::new(random::<KEY_BYTES>()?);
        Ok(Passphrase::new(URL_SAFE.encode(bytes.as_slice()).into_bytes()))
    }

    async fn seal(&self, volume: &str, key: &Passphrase) -> Result<Option<String>> {
        let (nonce, mut sealed) = (random::<NONCE_LEN>()?, key.bytes().to_vec());
        let unique = Nonce::assume_unique_for_key(nonce);
        let done = self.derived(volume).await?.seal_in_place_append_tag(unique, Aad::empty(), &mut sealed);
        done.map_err(|_| Error::broken(format!("the key of volume {volume} cannot be sealed")))?;
        let record = Record { dek: STANDARD.encode(sealed), nonce: STANDARD.encode(nonce) };
        let text = serde_json::to_string(&record);
        text.map(Some).map_err(|error| Error::internal(format!("the key of volume {volume}"), error))
    }

    async fn open(&self, volume: &str, sealed: Option<&str>) -> Result<Passphrase> {
        let wrong = |what: &str| {
            Error::Precondition(format!("the key that is kept on the image of volume {volume} {what}"))
        };
        let sealed = sealed.ok_or_else(|| {
            wrong("is not there, and its data cannot be read without it: write rbd.csi.ceph.com/dek back to the image")
        })?;
        let (nonce, mut dek) = read(sealed).ok_or_else(|| {
            wrong("is not what ceph-csi and this driver write (JSON with dek and nonce): look at rbd.csi.ceph.com/dek")
        })?;
        let opened = self.derived(volume).await?.open_in_place(nonce, Aad::empty(), &mut dek);
        opened.map(|key| Passphrase::new(key.to_vec())).map_err(|_| {
            wrong("does not open with the encryptionPassphrase of the secret: it was sealed with another one, or for another volume")
        })
    }
}

fn read(sealed: &str) -> Option<(Nonce, Zeroizing<Vec<u8>>)> {
    let record: Record = serde_json::from_str(sealed).ok()?;
    let nonce = Nonce::try_assume_unique_for_key(&STANDARD.decode(record.nonce).ok()?).ok()?;
    Some((nonce, Zeroizing::new(STANDARD.decode(record.dek).ok()?)))
}

fn derive(passphrase: &Passphrase, salt: &str) -> Result<LessSafeKey> {
    let broken = || Error::broken("scrypt refuses the parameters of the key store");
    let params = Params::new(15, 8, 1).map_err(|_| broken())?;
    let mut key = Zeroizing::new([0; 32]);
    scrypt::scrypt(passphrase.bytes(), salt.as_bytes(), &params, key.as_mut_slice()).map_err(|_| broken())?;
    UnboundKey::new(&AES_256_GCM, key.as_slice()).map(LessSafeKey::new).map_err(|_| broken())
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::broken("the kernel has no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VOLUME: &str = "0001-0003-lab-0000000000000002-50d53503-e5e8-11e9-a0e9-0242ac110002";

    fn store(passphrase: &str) -> Metadata {
        Metadata::new(Passphrase::new(passphrase.as_bytes().to_vec()))
    }

    /// Sealed by Python's hashlib.scrypt and the AESGCM of its cryptography.
    #[tokio::test]
    async fn what_others_sealed_opens() {
        let sealed = r#"{"dek":"6rvoJ2MJsSGv1gGPZrltAKy2izQ3N1qPbqnsmMGihDQbjBirRO7GV4K+iOw=","nonce":"AAECAwQFBgcICQoL"}"#;
        let key = store("a secret passphrase").open(VOLUME, Some(sealed)).await.expect("it opens");
        assert_eq!(key.bytes(), b"yMnKy8zNzs_Q0dLT1NXW19jZ2ts=");
    }

    #[tokio::test]
    async fn a_key_opens_for_its_volume_and_its_passphrase_alone() {
        let (own, other) = (store("a"), store("b"));
        let key = own.new_key().expect("a key");
        assert_eq!((key.bytes().len(), key == own.new_key().expect("a key")), (28, false));
        let sealed = own.seal("v", &key).await.expect("sealed").expect("a record");
        let again = own.seal("v", &key).await.expect("sealed").expect("a record");
        assert!(sealed != again, "one nonce for two");
        assert!(store("a").open("v", Some(&sealed)).await.expect("it opens") == key);
        for (store, volume, sealed, why) in [
            (&own, "w", Some(sealed.as_str()), "another volume"),
            (&other, "v", Some(sealed.as_str()), "another one"),
            (&own, "v", None, "is not there"),
            (&own, "v", Some("{}"), "JSON"),
            (&own, "v", Some(r#"{"dek":"AAAA","nonce":"AAAA"}"#), "JSON"),
        ] {
            let error = store.open(volume, sealed).await.expect_err("refused").to_string();
            assert!(error.contains(why) && !error.contains("AAAA"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_record_of_a_key_is_read_or_refused(text in "\\PC{0,60}", dek in "[A-Za-z0-9+/=]{0,40}", nonce in "[A-Za-z0-9+/=]{0,20}") {
            let record = serde_json::json!({ "dek": dek, "nonce": nonce }).to_string();
            for sealed in [text, record] {
                // A nonce that is not of twelve bytes is none.
                prop_assert!(read(&sealed).is_none_or(|(nonce, _)| nonce.as_ref().len() == 12));
            }
        }
    }
}
