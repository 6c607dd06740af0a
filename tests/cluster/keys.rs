//! Encrypted volumes as a CO asks for them, and their keys as somebody else seals and opens them, in the format of
//! ceph-csi's key store `metadata`.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde_json::{Value, json};

use crate::common::csi::{CreateVolumeRequest, VolumeCapability};
use crate::common::life::{Life, block};
use crate::common::tools::unique;
use crate::harness::{Driver, Scene, Start};
use crate::lab::Corner;
use crate::life::request;

pub(crate) const DEK: &str = "rbd.csi.ceph.com/dek";
pub(crate) const ENCRYPTED: &str = "rbd.csi.ceph.com/encrypted";
pub(crate) const STORE: &str = "rbd.csi.ceph.com/keystore";
/// Bytes of an image that no pod sees.
pub(crate) const HEADER: u64 = 16 << 20;

/// Of all volumes of this run; in no file.
pub(crate) fn passphrase() -> &'static str {
    static PASSPHRASE: OnceLock<String> = OnceLock::new();
    PASSPHRASE.get_or_init(|| unique("passphrase"))
}

impl Scene {
    /// With key stores `meta` and `other` of kind metadata, and one that is not built.
    pub(crate) fn with_key_stores(&self, start: Start) -> Start {
        let stores = json!({
            "meta": { "encryptionKMSType": "metadata" },
            "other": { "KMS_PROVIDER": "metadata" },
            "far": { "KMS_PROVIDER": "metadata", "secretName": "volumes", "secretNamespace": "storage" },
            "vault": { "encryptionKMSType": "vault", "vaultAddress": "http://127.0.0.1" },
        });
        let path = self.path("key-stores.json");
        std::fs::write(&path, stores.to_string()).expect("the key stores");
        start.flag(&format!("--kms-config={}", path.display()))
    }

    pub(crate) async fn start_with_keys(&self) -> Driver {
        self.with_key_stores(self.driver()).start().await
    }
}

impl CreateVolumeRequest {
    /// By a key store; empty: the default one.
    pub(crate) fn encrypted(mut self, store: &str) -> Self {
        self.parameters.insert("encrypted".to_owned(), "true".to_owned());
        self.parameters.remove("encryptionKMSID");
        if !store.is_empty() {
            self.parameters.insert("encryptionKMSID".to_owned(), store.to_owned());
        }
        self.secrets.insert("encryptionPassphrase".to_owned(), passphrase().to_owned());
        self
    }
}

/// A request for 64 MiB.
pub(crate) fn encrypted(store: &str) -> CreateVolumeRequest {
    request::create(&unique("pvc"), 64, block()).encrypted(store)
}

pub(crate) async fn encrypted_life(
    scene: &Scene,
    driver: &Driver,
    store: &str,
    access: VolumeCapability,
) -> Life {
    let mib = access.usual_mib();
    Life::create_as(scene, driver, request::create(&unique("pvc"), mib, access).encrypted(store)).await
}

impl Corner {
    /// What the image has under this key, opened for this volume id.
    pub(crate) fn key(&self, image: &str, name: &str, volume: &str) -> Option<String> {
        open(&self.meta(image).remove(name)?, volume)
    }

    /// As ceph-csi's RotateEncryptionKey, or this driver's, leaves it.
    pub(crate) fn rotate(&self, image: &str, volume: &str, new: &str, number: u32) {
        let old = self.meta(image).remove(DEK).expect("a key");
        self.set_meta(image, &format!("{DEK}/{number}"), &old);
        self.set_meta(image, DEK, &seal(new, volume));
    }
}

/// None: it was sealed with another passphrase, or for another volume.
pub(crate) fn open(sealed: &str, volume: &str) -> Option<String> {
    let record: Value = serde_json::from_str(sealed).expect("JSON");
    let bytes = |name: &str| STANDARD.decode(record[name].as_str().expect("a text")).expect("base64");
    let (mut dek, nonce) = (bytes("dek"), bytes("nonce"));
    let nonce = Nonce::try_assume_unique_for_key(&nonce).expect("12 bytes");
    let opened = derived(volume).open_in_place(nonce, Aad::empty(), &mut dek).ok()?;
    Some(String::from_utf8(opened.to_vec()).expect("a text"))
}

pub(crate) fn seal(key: &str, volume: &str) -> String {
    let (nonce, mut dek) = ([7; 12], key.as_bytes().to_vec());
    let unique = Nonce::assume_unique_for_key(nonce);
    derived(volume).seal_in_place_append_tag(unique, Aad::empty(), &mut dek).expect("sealed");
    json!({ "dek": STANDARD.encode(dek), "nonce": STANDARD.encode(nonce) }).to_string()
}

fn derived(volume: &str) -> LessSafeKey {
    let params = scrypt::Params::new(15, 8, 1).expect("parameters");
    let mut key = [0; 32];
    scrypt::scrypt(passphrase().as_bytes(), volume.as_bytes(), &params, &mut key).expect("a key");
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("a key"))
}
