//! Encrypted volumes on a node: what cannot be opened is refused before it is mapped, and left as it is.

use tonic::Code;

use crate::common::life::{Life, block, mount};
use crate::common::tools::check;
use crate::harness::{Driver, Scene};
use crate::keys::{DEK, ENCRYPTED, encrypted_life};

impl Life {
    pub(crate) fn saying(&self, name: &str, value: Option<&str>) -> Self {
        let mut context = self.context.clone();
        context.remove(name);
        context.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        self.clone().with_context(context)
    }

    fn with_passphrase(&self, passphrase: Option<&str>) -> Self {
        let mut life = self.clone();
        life.secrets.remove("encryptionPassphrase");
        life.secrets.extend(passphrase.map(|text| ("encryptionPassphrase".to_owned(), text.to_owned())));
        life
    }
}

async fn refused(scene: &Scene, driver: &Driver, life: &Life, code: Code, fragment: &str) {
    check(life.stage(driver).await, code, fragment);
    life.assert_gone_from(driver);
    assert!(scene.corner.is_empty(&life.image), "something was written to the image");
}

#[tokio::test]
async fn a_volume_that_was_plain_is_never_encrypted() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    for capability in [mount("ext4"), block()] {
        let plain = Life::create(&scene, &driver, capability).await.saying("encrypted", Some("true"));
        refused(
            &scene,
            &driver,
            &plain.with_passphrase(Some("p")),
            Code::FailedPrecondition,
            "it was made plain",
        )
        .await;
    }
}

#[tokio::test]
async fn what_its_key_does_not_open_is_not_mapped() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    for store in ["", "meta"] {
        let life = encrypted_life(&scene, &driver, store, mount("ext4")).await;
        for passphrase in [None, Some("")] {
            let without = life.with_passphrase(passphrase);
            refused(&scene, &driver, &without, Code::InvalidArgument, "encryptionPassphrase").await;
            // The image says what the context does not.
            let silent = without.saying("encrypted", None).saying("encryptionKMSID", None);
            refused(&scene, &driver, &silent, Code::InvalidArgument, "encryptionPassphrase").await;
        }
    }
    let life = encrypted_life(&scene, &driver, "meta", mount("ext4")).await;
    let other = life.with_passphrase(Some("another"));
    refused(&scene, &driver, &other, Code::FailedPrecondition, "does not open").await;
    let silent = other.saying("encrypted", None).saying("encryptionKMSID", None);
    refused(&scene, &driver, &silent, Code::FailedPrecondition, "does not open").await;
    let elsewhere = life.saying("encryptionKMSID", Some("vault"));
    refused(&scene, &driver, &elsewhere, Code::FailedPrecondition, "kind \"vault\"").await;
    let default = life.saying("encryptionKMSID", None);
    refused(&scene, &driver, &default, Code::FailedPrecondition, "a key of its own").await;
    let integrity = life.saying("integrityMode", Some("hmac-sha256"));
    refused(&scene, &driver, &integrity, Code::InvalidArgument, "integrityMode").await;
    refused(&scene, &driver, &life.saying("encryptionType", Some("file")), Code::InvalidArgument, "file")
        .await;
    scene.corner.remove_meta(&life.image, DEK);
    refused(&scene, &driver, &life, Code::FailedPrecondition, "is not there").await;
    assert_eq!(scene.corner.meta(&life.image)[ENCRYPTED], "encryptionPrepared");
}
