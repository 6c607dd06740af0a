//! Encrypting never destroys data: a LUKS header is made where nothing is, and everything else is left as it was. (What
//! needs dm-crypt is in `guest`.)

use std::process::{Command, Stdio};

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::life::{Life, block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, run};
use crate::format::{by_hand, overwrite, refused};
use crate::harness::Scene;
use crate::keys::{ENCRYPTED, encrypted_life, passphrase};

#[tokio::test]
async fn what_others_put_on_a_device_is_not_encrypted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (what, capability) in [("ext4", mount("ext4")), ("swap", block()), ("blocks", block())] {
        let life = encrypted_life(&scene, &driver, "", capability).await;
        by_hand(&scene, &life.image, |device| match what {
            "ext4" => drop(run("mkfs.ext4", &["-q", device])),
            "swap" => drop(run("mkswap", &[device])),
            _ => overwrite(device, 1 << 20, b"somebody's data"),
        });
        refused(&scene, &driver, &life, what).await;
        assert_eq!(scene.corner.meta(&life.image)[ENCRYPTED], "encryptionPrepared");
    }
}

#[tokio::test]
async fn a_header_that_has_vanished_is_not_made_again() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = encrypted_life(&scene, &driver, "", mount("ext4")).await;
    scene.corner.set_meta(&life.image, ENCRYPTED, "encrypted");
    refused(&scene, &driver, &life, "vanished").await;
    assert!(scene.corner.is_empty(&life.image));
}

/// A filesystem that was mounted in the open is never mounted as one that was encrypted.
#[tokio::test]
async fn a_volume_without_a_header_is_not_taken_for_an_encrypted_one() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    life.write(b"data").expect("a pod writes");
    life.down(&driver).await;
    scene.corner.set_meta(&life.image, ENCRYPTED, "encrypted");
    let mut asked = life.clone();
    asked.secrets.insert("encryptionPassphrase".to_owned(), passphrase().to_owned());
    let before = scene.corner.content(&life.image);
    check(asked.stage(&driver).await, Code::FailedPrecondition, "ext4");
    life.assert_gone_from(&driver);
    assert_eq!(scene.corner.content(&life.image), before);
}

/// However many may write later: two that make a header at once would each take the other's for its own half-made one.
#[tokio::test]
async fn who_makes_a_header_is_alone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let shared = block().with(Mode::MultiNodeMultiWriter);
    let life = encrypted_life(&scene, &driver, "", shared).await;
    let mut other = Command::new("rbd")
        .args(["watch", &scene.corner.spec(&life.image)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("another client");
    eventually("it watches", || !scene.corner.watchers(&life.image).is_empty()).await;
    refused(&scene, &driver, &life, "in use by").await;
    scene.corner.set_meta(&life.image, ENCRYPTED, "encrypted");
    refused(&scene, &driver, &life, "vanished").await;
    other.kill().expect("the other client ends");
    other.wait().expect("its end");
}
