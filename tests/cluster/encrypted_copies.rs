//! Copies of encrypted volumes: each has the keys of its source, sealed for itself, whatever becomes of the source, and
//! wherever a copy was killed.

use std::time::{Duration, Instant};

use tonic::Code;

use crate::ceph_csi::{self, rados};
use crate::common::csi::{CreateVolumeRequest, Volume};
use crate::common::life::{Life, MIB, block};
use crate::common::sight::PATIENCE;
use crate::common::tools::{check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::keys::{DEK, ENCRYPTED, HEADER, STORE, encrypted, encrypted_life, open, passphrase, seal};
use crate::lab::POOL;
use crate::life::request;
use crate::sources::{like, snapshot};

/// Ends the first writing of a key that `$WHAT` names, before it is done.
const KILL: &str = r#"
if [[ "$*" == "image-meta set "*" $WHAT "* ]] && (($(grep -c " $WHAT " "$CALLS") == 1)); then kill -9 $$; fi
exec "$RBD" "$@""#;

/// With data in its header, as if it had been staged.
async fn used(scene: &Scene, driver: &Driver, store: &str) -> Life {
    let life = encrypted_life(scene, driver, store, block()).await;
    written(scene, &life.image);
    scene.corner.set_meta(&life.image, ENCRYPTED, "encrypted");
    life
}

fn written(scene: &Scene, image: &str) {
    let bench = ["bench", "--io-type=write", "--io-size=4096", "--io-total=4096", "--io-threads=1"];
    run("rbd", &[&bench[..], &[&scene.corner.spec(image)]].concat());
}

/// The keys of an image, as its volume opens them.
fn keys(scene: &Scene, image: &str, volume: &str) -> Vec<Option<String>> {
    let meta = scene.corner.meta(image);
    let sealed = meta.iter().filter(|(key, _)| key.starts_with(DEK));
    sealed.map(|(_, sealed)| open(sealed, volume)).collect()
}

#[track_caller]
fn assert_own(scene: &Scene, image: &str, store: &str) {
    assert_eq!(scene.corner.meta(image).get(STORE), Some(&format!("{} {store}", &image[image.len() - 36..])));
}

#[tokio::test]
async fn a_copy_has_the_keys_of_its_source_sealed_for_itself() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let source = used(&scene, &driver, "meta").await;
    scene.corner.rotate(&source.image, &source.id, "second", 1);
    scene.corner.rotate(&source.image, &source.id, "third", 2);
    let expected = keys(&scene, &source.image, &source.id);
    assert!(expected.len() == 3 && expected.iter().all(Option::is_some), "{expected:?}");
    let taken = snapshot(&scene, &source);
    for asked in [like(&source).of_snapshot(&taken.id), like(&source).of_volume(&source.id)] {
        let volume = twice(|| driver.create(asked.clone().encrypted("meta"))).await;
        let image = &volume.volume_context["imageName"];
        assert_eq!((volume.capacity_bytes, scene.corner.size(image)), (64 << 20, Some(64 * MIB + HEADER)));
        assert_eq!(keys(&scene, image, &volume.volume_id), expected);
        assert!(keys(&scene, image, &source.id).iter().all(Option::is_none), "sealed for the source");
        assert_eq!(scene.corner.meta(image)[ENCRYPTED], "encrypted");
        assert_own(&scene, image, "meta");
        check(driver.create(asked.clone()).await, Code::AlreadyExists, "a plain one");
        check(driver.create(asked.encrypted("other")).await, Code::AlreadyExists, "\"other\"");
    }
    assert_eq!(keys(&scene, &source.image, &source.id), expected, "the source has other keys");
}

#[tokio::test]
async fn a_larger_copy_and_a_limit_are_of_what_a_pod_sees() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let source = used(&scene, &driver, "").await;
    let taken = snapshot(&scene, &source);
    let mut asked = encrypted("").of_snapshot(&taken.id);
    asked.capacity_range.as_mut().expect("a range").limit_bytes = 64 << 20;
    assert_eq!(twice(|| driver.create(asked.clone())).await.capacity_bytes, 64 << 20);
    asked.name = unique("copy");
    asked.capacity_range = request::create("", 96, block()).capacity_range;
    let volume = twice(|| driver.create(asked.clone())).await;
    let image = &volume.volume_context["imageName"];
    assert_eq!((volume.capacity_bytes, scene.corner.size(image)), (96 << 20, Some(96 * MIB + HEADER)));
    assert_own(&scene, image, "default");
}

#[tokio::test]
async fn a_copy_of_what_was_never_staged_is_to_be_formatted() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let source = encrypted_life(&scene, &driver, "meta", block()).await;
    let taken = snapshot(&scene, &source);
    // The header is made after the snapshot.
    written(&scene, &source.image);
    scene.corner.set_meta(&source.image, ENCRYPTED, "encrypted");
    for (asked, state) in [
        (encrypted("meta").of_snapshot(&taken.id), "encryptionPrepared"),
        (encrypted("meta").of_volume(&source.id), "encrypted"),
    ] {
        let volume = driver.create(asked).await.expect("CreateVolume");
        assert_eq!(scene.corner.meta(&volume.volume_context["imageName"])[ENCRYPTED], state);
    }
}

#[tokio::test]
async fn plain_and_encrypted_do_not_mix() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let (plain, secret) = (Life::create(&scene, &driver, block()).await, used(&scene, &driver, "meta").await);
    let (of_plain, of_secret) = (snapshot(&scene, &plain), snapshot(&scene, &secret));
    let images = scene.corner.images();
    for asked in [encrypted("").of_snapshot(&of_plain.id), encrypted("").of_volume(&plain.id)] {
        check(driver.create(asked).await, Code::InvalidArgument, "is plain");
    }
    for asked in [like(&secret).of_snapshot(&of_secret.id), like(&secret).of_volume(&secret.id)] {
        check(driver.create(asked).await, Code::InvalidArgument, "is encrypted");
    }
    let mut forgotten = encrypted("meta").of_snapshot(&of_secret.id);
    forgotten.secrets.insert("encryptionPassphrase".to_owned(), "another".to_owned());
    check(driver.create(forgotten).await, Code::FailedPrecondition, "encryptionPassphrase");
    // Its header opens with a key of its own, which that store cannot keep.
    check(driver.create(encrypted("").of_snapshot(&of_secret.id)).await, Code::InvalidArgument, "metadata");
    assert_eq!(scene.corner.images(), images);
    assert!(
        scene.corner.snapshots(&secret.image).len() == 1 && scene.corner.snapshots(&plain.image).len() == 1
    );
}

#[tokio::test]
async fn a_copy_may_be_of_another_key_store() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    for (of, to) in [("", "meta"), ("meta", "other")] {
        let source = used(&scene, &driver, of).await;
        let key = scene.corner.key(&source.image, DEK, &source.id).unwrap_or_else(|| passphrase().to_owned());
        let asked = encrypted(to).of_volume(&source.id);
        let volume = twice(|| driver.create(asked.clone())).await;
        let image = &volume.volume_context["imageName"];
        assert_eq!(scene.corner.key(image, DEK, &volume.volume_id), Some(key));
        assert_own(&scene, image, to);
    }
}

#[tokio::test]
async fn an_older_key_that_opens_for_nobody_is_in_nobody_s_way() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let source = used(&scene, &driver, "meta").await;
    let (name, lost) = (format!("{DEK}/1"), seal("lost", "another volume"));
    scene.corner.set_meta(&source.image, &name, &lost);
    let key = scene.corner.key(&source.image, DEK, &source.id);
    let volume = driver.create(encrypted("meta").of_volume(&source.id)).await.expect("CreateVolume");
    let image = &volume.volume_context["imageName"];
    assert_eq!(scene.corner.key(image, DEK, &volume.volume_id), key);
    assert_eq!(scene.corner.meta(image)[&name], lost);
}

/// Killed before a key is written, and before the note that says that all are.
#[tokio::test]
async fn a_copy_that_was_killed_before_its_keys_gets_them() {
    for what in [DEK, "rbd.csi.ceph.com/dek/1", STORE] {
        for gone in [false, true] {
            let scene = Scene::new();
            let wrapper = scene.wrapper(&format!("WHAT={what}\n{KILL}"));
            let plain = scene.start_with_keys().await;
            let source = used(&scene, &plain, "meta").await;
            scene.corner.rotate(&source.image, &source.id, "second", 1);
            let (expected, taken) = (keys(&scene, &source.image, &source.id), snapshot(&scene, &source));
            let driver = scene.on_node("node-b", "controller").flag("--command-timeout=4s").wrapped(&wrapper);
            let driver = scene.with_key_stores(driver).start().await;
            let asked = encrypted("meta").of_snapshot(&taken.id);
            check(driver.create(asked.clone()).await, Code::Aborted, what);
            if gone {
                run("rbd", &["snap", "rm", "--no-progress", &taken.spec]);
                plain.delete(&source.id).await.expect("DeleteVolume");
            }
            let volume = to_its_end(&driver, &asked).await;
            assert_eq!(
                keys(&scene, &volume.volume_context["imageName"], &volume.volume_id),
                expected,
                "{what}"
            );
            assert_own(&scene, &volume.volume_context["imageName"], "meta");
        }
    }
}

async fn to_its_end(driver: &Driver, asked: &CreateVolumeRequest) -> Volume {
    let end = Instant::now() + PATIENCE;
    loop {
        match driver.create(asked.clone()).await {
            Ok(volume) => return volume,
            Err(status) => {
                assert!(status.code() == Code::Aborted && Instant::now() < end, "{status:?}");
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The header in an older snapshot opens with the key of its time.
#[tokio::test]
async fn a_snapshot_taken_before_a_rotation_is_readable_when_its_volume_is_gone() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let source = used(&scene, &driver, "meta").await;
    let first = scene.corner.key(&source.image, DEK, &source.id);
    let taken = driver.snap(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    scene.corner.rotate(&source.image, &source.id, "second", 1);
    driver.delete(&source.id).await.expect("DeleteVolume");
    assert_eq!(scene.corner.tombstones().len(), 1);
    assert_eq!(driver.get_snap(&taken.snapshot_id).await.expect("GetSnapshot").size_bytes, 64 << 20);
    let volume =
        driver.create(encrypted("meta").of_snapshot(&taken.snapshot_id)).await.expect("CreateVolume");
    let restored = keys(&scene, &volume.volume_context["imageName"], &volume.volume_id);
    assert_eq!(restored, [Some("second".to_owned()), first]);
}

/// ceph-csi's volumes have their key store in its journal, and its snapshots are images with a key of their own.
#[tokio::test]
async fn what_ceph_csi_encrypted_is_copied_with_its_keys() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let made = ceph_csi::volume(&scene);
    let store =
        |object: &str| drop(rados(&scene, POOL, &["setomapval", object, "csi.volume.encryptKMS", "other"]));
    store(&format!("csi.volume.{}", made.uuid));
    written(&scene, &made.image);
    // As its older releases wrote them.
    scene.corner.set_meta(&made.image, ".rbd.csi.ceph.com/encrypted", "encrypted");
    scene.corner.set_meta(&made.image, ".rbd.csi.ceph.com/dek", &seal("its key", &made.id));
    let asked = || request::create(&unique("copy"), 304, block()).encrypted("meta");
    let clone = twice_made(&driver, asked().of_volume(&made.id)).await;
    let snapshot = ceph_csi::snapshot(&scene, &made);
    store(&format!("csi.snap.{}", snapshot.uuid));
    scene.corner.set_meta(&snapshot.image, ENCRYPTED, "encrypted");
    scene.corner.set_meta(&snapshot.image, DEK, &seal("its key", &snapshot.id));
    assert_eq!(driver.get_snap(&snapshot.id).await.expect("GetSnapshot").size_bytes, 304 << 20);
    let restored = twice_made(&driver, asked().of_snapshot(&snapshot.id)).await;
    for (volume, image) in [clone, restored] {
        assert_eq!(scene.corner.key(&image, DEK, &volume), Some("its key".to_owned()));
        assert_eq!(scene.corner.size(&image), Some(320 * MIB), "the header was in what was asked for");
        assert_own(&scene, &image, "meta");
    }
}

async fn twice_made(driver: &Driver, asked: CreateVolumeRequest) -> (String, String) {
    let volume = twice(|| driver.create(asked.clone())).await;
    (volume.volume_id, volume.volume_context["imageName"].clone())
}
