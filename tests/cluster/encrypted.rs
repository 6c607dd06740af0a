//! Encrypted volumes, the controller's side: what is written with the image, how large a volume is, what is refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tonic::Code;

use crate::common::csi::CreateVolumeRequest;
use crate::common::life::{Life, MIB, block};
use crate::common::tools::{check, run, twice, unique};
use crate::harness::{CLUSTER, Scene};
use crate::keys::{DEK, ENCRYPTED, HEADER, STORE, encrypted, encrypted_life, passphrase};
use crate::kubernetes::{Api, account, authority};
use crate::lab::POOL;
use crate::life::request;
use crate::snaps::{of_volume, page};
use crate::wrap::COUNT;

fn with(request: &CreateVolumeRequest, name: &str, value: &str) -> CreateVolumeRequest {
    let mut request = request.clone();
    request.parameters.insert(name.to_owned(), value.to_owned());
    request
}

#[tokio::test]
async fn an_encrypted_volume_and_its_key_are_one_process() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.with_key_stores(scene.driver()).wrapped(&wrapper).start().await;
    for (store, named, keeps) in
        [("", "default", false), ("default", "default", false), ("meta", "meta", true)]
    {
        let asked = encrypted(store);
        wrapper.forget();
        let volume = driver.create(asked.clone()).await.expect("CreateVolume");
        let calls = wrapper.calls();
        assert!(calls.iter().all(|call| call.starts_with("import")), "{calls:#?}");
        assert_eq!(driver.create(asked).await.expect("the same again"), volume);
        let (image, context) = (&volume.volume_context["imageName"], &volume.volume_context);
        assert_eq!((context["encrypted"].as_str(), volume.capacity_bytes), ("true", 64 << 20));
        assert_eq!(scene.corner.size(image), Some(64 * MIB + HEADER));
        let meta = scene.corner.meta(image);
        assert_eq!(
            (meta[ENCRYPTED].as_str(), meta["rbd.csi.ceph.com/luks2HeaderSize"].as_str()),
            ("encryptionPrepared", "16777216")
        );
        assert_eq!(meta[STORE], format!("{} {named}", &image[image.len() - 36..]));
        assert_eq!(meta.contains_key(DEK), keeps);
        assert_eq!(scene.corner.key(image, DEK, &volume.volume_id).map(|key| key.len()), keeps.then_some(28));
    }
}

#[tokio::test]
async fn a_name_of_its_own_is_written_down_with_the_key_store() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let volume =
        driver.create(with(&encrypted("meta"), "volumeNamePrefix", "team-")).await.expect("CreateVolume");
    let object = format!("csi.volume.{}", &volume.volume_id[volume.volume_id.len() - 36..]);
    for (key, value) in [("csi.volume.encryptKMS", "meta"), ("csi.volume.encryptionType", "block")] {
        let args = [
            "--pool",
            POOL,
            "--namespace",
            &scene.corner.namespace,
            "getomapval",
            &object,
            key,
            "/dev/stdout",
        ];
        assert_eq!(run("rados", &args), value);
    }
}

#[tokio::test]
async fn every_call_tells_what_a_pod_sees() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start_with_keys().await;
    let life = encrypted_life(&scene, &driver, "meta", block()).await;
    let snapshot = driver.snap(&unique("snap"), &life.id).await.expect("CreateSnapshot");
    assert_eq!(snapshot.size_bytes, 64 << 20);
    assert_eq!(driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
    for listed in [of_volume(&life.id), page(0, "")] {
        let listed = driver.list_snaps(listed).await.expect("ListSnapshots");
        let ours = listed.entries.into_iter().filter_map(|entry| entry.snapshot);
        assert!(ours.into_iter().any(|one| one == snapshot));
    }
    assert_eq!(life.expand_within(&driver, 64 << 20, 64 << 20).await.expect("its size"), (64 << 20, true));
    assert_eq!(scene.corner.size(&life.image), Some(64 * MIB + HEADER));
    assert_eq!(twice(|| life.expand_within(&driver, 96 << 20, 96 << 20)).await, (96 << 20, true));
    assert_eq!(scene.corner.size(&life.image), Some(96 * MIB + HEADER));
    let volume = driver.state(&life.id).await.expect("ControllerGetVolume").volume.expect("a volume");
    assert_eq!(volume.capacity_bytes, 96 << 20);
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    let left = driver.list_snaps(page(0, "")).await.expect("ListSnapshots");
    assert!(
        !left.entries.into_iter().filter_map(|entry| entry.snapshot).any(|one| one == snapshot),
        "it is listed still"
    );
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn a_limit_is_one_of_what_a_pod_sees() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let mut asked = encrypted("");
    asked.capacity_range.as_mut().expect("a range").limit_bytes = 64 << 20;
    let volume = twice(|| driver.create(asked.clone())).await;
    assert_eq!(volume.capacity_bytes, 64 << 20);
    asked.capacity_range.as_mut().expect("a range").required_bytes = 72 << 20;
    asked.capacity_range.as_mut().expect("a range").limit_bytes = 80 << 20;
    check(driver.create(asked).await, Code::AlreadyExists, "67108864 bytes");
}

#[tokio::test]
async fn the_header_is_taken_from_the_room_for_a_volume() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start_with_keys().await;
    let plain = [("clusterID", CLUSTER), ("pool", POOL)];
    let encrypted = [&plain[..], &[("encrypted", "true")]].concat();
    let most = async |parameters: &[(&str, &str)]| {
        driver.capacity(parameters).await.expect("GetCapacity").maximum_volume_size.expect("a size")
    };
    // Others write to the pool meanwhile; each report of Ceph's counts for some seconds.
    loop {
        let (before, less, after) = (most(&plain).await, most(&encrypted).await, most(&plain).await);
        if before == after {
            return assert_eq!(before - less, 16 << 20);
        }
    }
}

#[tokio::test]
async fn one_name_is_not_encrypted_in_two_ways() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let (first, plain) = (encrypted("meta"), request::create(&unique("pvc"), 64, block()));
    driver.create(first.clone()).await.expect("CreateVolume");
    driver.create(plain.clone()).await.expect("CreateVolume");
    let unencrypted = CreateVolumeRequest { name: first.name.clone(), ..plain.clone() };
    check(driver.create(unencrypted).await, Code::AlreadyExists, "a plain one");
    check(driver.create(first.clone().encrypted("other")).await, Code::AlreadyExists, "\"other\"");
    check(driver.create(first.clone().encrypted("")).await, Code::AlreadyExists, "\"default\"");
    check(driver.create(plain.encrypted("meta")).await, Code::AlreadyExists, "not encrypted");
    let mut forgotten = first.clone();
    forgotten.secrets.insert("encryptionPassphrase".to_owned(), "another".to_owned());
    check(driver.create(forgotten).await, Code::FailedPrecondition, "encryptionPassphrase");
    driver.create(first).await.expect("the same again");
}

#[tokio::test]
async fn what_cannot_be_encrypted_so_is_refused_and_nothing_is_made() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    for store in ["", "meta"] {
        for passphrase in [None, Some(String::new())] {
            let mut asked = encrypted(store);
            asked.secrets.remove("encryptionPassphrase");
            asked.secrets.extend(passphrase.map(|empty| ("encryptionPassphrase".to_owned(), empty)));
            check(driver.create(asked).await, Code::InvalidArgument, "encryptionPassphrase");
        }
    }
    check(driver.create(encrypted("nowhere")).await, Code::FailedPrecondition, "\"nowhere\"");
    check(driver.create(encrypted("vault")).await, Code::FailedPrecondition, "kind \"vault\"");
    for (name, value) in [
        ("encryptionType", "file"),
        ("integrityMode", "hmac-sha256"),
        ("encryptionCipher", "rot13"),
        ("encryptionKeySize", "7"),
        ("encryptionSectorSize", "7"),
        ("encrypted", "maybe"),
    ] {
        check(
            driver.create(with(&encrypted(""), name, value)).await,
            Code::InvalidArgument,
            &format!("{name}={value:?}"),
        );
    }
    std::fs::remove_file(scene.path("key-stores.json")).expect("removed");
    check(driver.create(encrypted("meta")).await, Code::FailedPrecondition, "key-stores.json");
    assert!(scene.corner.images().is_empty());
    let fine =
        Life::create_as(&scene, &driver, with(&encrypted(""), "encryptionCipher", "aes-xts-plain64")).await;
    assert_eq!(fine.context["encryptionCipher"], "aes-xts-plain64");
}

/// As ceph-csi's key stores of kind metadata may have it.
#[tokio::test]
async fn a_passphrase_may_be_in_a_secret_of_its_own() {
    let scene = Scene::new();
    let folder = scene.path("authority");
    authority(&folder);
    let (api, account) = (Api::start(&folder), account(&scene, &folder));
    let start = scene.with_key_stores(scene.driver()).flag("--v=6").asking(&account, api.port);
    let driver = start.start().await;
    let mut asked = encrypted("far");
    asked.secrets.remove("encryptionPassphrase");
    let forbidden = r#"{"kind": "Status", "message": "secrets \"volumes\" is forbidden"}"#;
    for (status, body, words) in [
        (
            "403 Forbidden",
            forbidden,
            &["Secret storage/volumes", "\"secrets\"", "\"get\"", "is forbidden"][..],
        ),
        ("404 Not Found", "{}", &["no such Secret", "secretNamespace"]),
        ("200 OK", r#"{"data": {}}"#, &["no encryptionPassphrase"]),
        ("200 OK", r#"{"data": {"encryptionPassphrase": ""}}"#, &["no encryptionPassphrase"]),
        ("200 OK", r#"{"data": {"encryptionPassphrase": 5}}"#, &["not what this driver knows"]),
    ] {
        api.answers(status, body);
        for word in words {
            check(driver.create(asked.clone()).await, Code::FailedPrecondition, word);
        }
    }
    let data = json!({ "encryptionPassphrase": STANDARD.encode(passphrase()) });
    api.answers("200 OK", &json!({ "kind": "Secret", "data": data }).to_string());
    let volume = twice(|| driver.create(asked.clone())).await;
    assert!(scene.corner.key(&volume.volume_context["imageName"], DEK, &volume.volume_id).is_some());
    let heads = api.heads();
    assert!(
        heads
            .iter()
            .all(|head| head.starts_with("GET /api/v1/namespaces/storage/secrets/volumes HTTP/1.1\r\n"))
    );
    let log = driver.log();
    assert!(!log.contains(passphrase()) && !log.contains(&STANDARD.encode(passphrase())), "it is in the log");
}
