//! What is refused, with the right code and a message that names the value at fault; and nothing is changed by it.

use std::fs;

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::csi::{
    CapacityRange, CreateVolumeRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability,
};
use crate::common::life::{Life, block, mount};
use crate::common::tools::{Answer, check, unique};
use crate::harness::{Driver, Scene};
use crate::lab::lab;
use crate::life::request;

fn asked(change: impl FnOnce(&mut CreateVolumeRequest)) -> CreateVolumeRequest {
    let mut request = request::create(&unique("pvc"), 64, mount("ext4"));
    change(&mut request);
    request
}

fn with(parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    asked(|request| request.parameters.extend(request::map(parameters)))
}

fn sized(required_bytes: i64, limit_bytes: i64) -> CreateVolumeRequest {
    asked(|request| request.capacity_range = Some(CapacityRange { required_bytes, limit_bytes }))
}

/// Each request is refused, and not one image is made.
async fn refuses(cases: Vec<(CreateVolumeRequest, Code, &str)>) {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (request, code, fragment) in cases {
        check(driver.create(request).await, code, fragment);
    }
    assert!(scene.corner.images().is_empty(), "{:?}", scene.corner.images());
    assert_eq!(scene.corner.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn parameters_that_cannot_be_meant() {
    refuses(vec![
        (asked(|request| drop(request.parameters.remove("clusterID"))), Code::InvalidArgument, "clusterID"),
        (asked(|request| drop(request.parameters.remove("pool"))), Code::InvalidArgument, "pool"),
        (with(&[("clusterID", "elsewhere")]), Code::FailedPrecondition, "\"elsewhere\""),
        (with(&[("clusterID", "a/b")]), Code::InvalidArgument, "a/b"),
        (with(&[("pool", "no-such-pool")]), Code::FailedPrecondition, "no-such-pool"),
        (with(&[("pool", "rbd/ns")]), Code::InvalidArgument, "rbd/ns"),
        (with(&[("dataPool", "no-such-data")]), Code::FailedPrecondition, "no-such-data"),
        (with(&[("dataPool", "")]), Code::InvalidArgument, "dataPool"),
        (with(&[("volumeNamePrefix", "a@b")]), Code::InvalidArgument, "a@b"),
        (with(&[("imageFeature", "layering")]), Code::InvalidArgument, "imageFeatures"),
        (with(&[("imageFeatures", "layering,speed")]), Code::InvalidArgument, "speed"),
        (with(&[("imageFeatures", "fast-diff")]), Code::InvalidArgument, "object-map"),
        (with(&[("imageFeatures", "")]), Code::InvalidArgument, "imageFeatures"),
        (with(&[("stripeUnit", "65536")]), Code::InvalidArgument, "stripeCount"),
        (with(&[("objectSize", "5000")]), Code::InvalidArgument, "5000"),
        (with(&[("encrypted", "true")]), Code::InvalidArgument, "encryptionPassphrase"),
        (with(&[("mounter", "nbd")]), Code::InvalidArgument, "rbd-nbd"),
        (with(&[("topologyConstrainedPools", "[]")]), Code::InvalidArgument, "topologyConstrainedPools"),
    ])
    .await;
}

#[tokio::test]
async fn an_unknown_parameter_is_named_with_the_nearest_known_one() {
    refuses(vec![
        (with(&[("imagefeature", "x")]), Code::InvalidArgument, "imagefeature"),
        (with(&[("imagefeature", "x")]), Code::InvalidArgument, "\"imageFeatures\""),
        (with(&[("datapol", "x")]), Code::InvalidArgument, "\"dataPool\""),
    ])
    .await;
}

#[tokio::test]
async fn sizes_that_cannot_be() {
    refuses(vec![
        (sized(-5, 0), Code::InvalidArgument, "-5"),
        (sized(0, -7), Code::InvalidArgument, "-7"),
        (sized(2 << 30, 1 << 30), Code::OutOfRange, "2147483648"),
        (sized((64 << 20) + 1, (64 << 20) + 5), Code::OutOfRange, "67108865"),
        (sized(0, 5), Code::OutOfRange, "5"),
        (sized(i64::MAX, 0), Code::OutOfRange, "9223372036854775807"),
        (sized(1 << 61, 0), Code::OutOfRange, "2305843009213693952"),
    ])
    .await;
}

#[tokio::test]
async fn names_and_uses_that_cannot_be() {
    let long = "n".repeat(129);
    let used = |capability: VolumeCapability| asked(|request| request.volume_capabilities = vec![capability]);
    let bare = VolumeCapability { access_type: None, ..block() };
    let modeless = VolumeCapability { access_mode: None, ..block() };
    refuses(vec![
        (asked(|request| request.name.clear()), Code::InvalidArgument, "name"),
        (asked(|request| request.name.clone_from(&long)), Code::InvalidArgument, &long),
        (asked(|request| request.name = "a\u{7}b".to_owned()), Code::InvalidArgument, "\\u{7}"),
        (asked(|request| request.volume_capabilities.clear()), Code::InvalidArgument, "volume_capabilities"),
        (used(bare), Code::InvalidArgument, "access_type"),
        (used(modeless), Code::InvalidArgument, "access_mode"),
        (used(mount("ntfs")), Code::InvalidArgument, "ntfs"),
        (used(mount("ext4").with(Mode::MultiNodeMultiWriter)), Code::InvalidArgument, "MultiNodeMultiWriter"),
        (
            used(mount("xfs").with(Mode::MultiNodeSingleWriter)),
            Code::InvalidArgument,
            "MultiNodeSingleWriter",
        ),
        (used(block().with(Mode::Unknown)), Code::InvalidArgument, "access mode 0"),
    ])
    .await;
    let longest = asked(|request| request.name = long[..128].to_owned());
    let scene = Scene::new();
    scene.start().await.create(longest).await.expect("a name of 128 bytes");
}

#[tokio::test]
async fn secrets_that_open_nothing() {
    // The first 16 characters of a key are the same in all: they tell its form and its date.
    let mut wrong = lab().key.clone();
    let other = if &wrong[24..25] == "A" { "B" } else { "A" };
    wrong.replace_range(24..25, other);
    let keyed = |user: &str, key: &str| {
        asked(|request| request.secrets = request::map(&[("userID", user), ("userKey", key)]))
    };
    refuses(vec![
        (keyed("csi", &wrong), Code::Unauthenticated, "userKey"),
        (keyed("nobody", &wrong), Code::Unauthenticated, "userID"),
        (keyed("csi", ""), Code::InvalidArgument, "userKey"),
        (keyed("csi", "true"), Code::Unauthenticated, "no Ceph key"),
        (asked(|request| request.secrets.clear()), Code::InvalidArgument, "userID"),
    ])
    .await;
}

/// `rbd` prints a key that it cannot decode; one with a character lost in copying is still nearly the key.
#[tokio::test]
async fn a_malformed_key_is_told_and_never_shown() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--v=6").start().await;
    let id = driver.create(asked(|_| {})).await.expect("CreateVolume").volume_id;
    for wrong in
        [lab().key[..37].to_owned(), format!("{}!", &lab().key[..36]), lab().key.chars().rev().collect()]
    {
        let mut delete = request::delete(&id);
        delete.secrets = request::map(&[("userID", "csi"), ("userKey", &wrong)]);
        let status = driver.controller().delete_volume(delete).await.expect_err("a malformed key");
        assert!(
            !status.message().contains(&wrong) && !driver.log().contains(&wrong),
            "the key is shown: {status:?}"
        );
        assert!(matches!(status.code(), Code::Unauthenticated | Code::InvalidArgument), "{status:?}");
        assert!(status.message().contains("userKey"), "{status:?}");
    }
    assert_eq!(scene.corner.images().len(), 1);
}

#[tokio::test]
async fn a_dead_monitor_is_told_in_time() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=4s").start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    scene.configure("127.0.0.1:1");
    let driver = driver.killed_and_started().await;
    check(driver.create(asked(|_| {})).await, Code::DeadlineExceeded, "monitors");
    check(driver.delete(&life.id).await, Code::DeadlineExceeded, "monitors");
    check(life.stage(&driver).await, Code::DeadlineExceeded, "monitors");
    life.assert_gone_from(&driver);
    assert_eq!(scene.corner.images().len(), 1);
}

async fn validate(driver: &Driver, id: &str, capability: VolumeCapability) -> Answer<bool> {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![capability],
        secrets: request::secrets(),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = driver.controller().validate_volume_capabilities(request).await?;
    Ok(answer.into_inner().confirmed.is_some())
}

#[tokio::test]
async fn ids_of_no_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let absent = format!("{}{}", &life.id[..life.id.len() - 36], "00000000-0000-0000-0000-000000000000");
    let foreign = absent.replacen("-lab-", "-far-", 1);
    driver.delete(&absent).await.expect("DeleteVolume of what is not there");
    check(driver.delete(&foreign).await, Code::FailedPrecondition, "\"far\"");
    check(driver.delete("").await, Code::InvalidArgument, "volume_id");
    for id in ["malformed", "0001-0003-lab", "../../etc", &absent] {
        if id != absent {
            driver.delete(id).await.expect("DeleteVolume of a malformed id");
        }
        let strange =
            Life { id: id.to_owned(), ..life.on(&scene, &driver).with_context(request::Map::new()) };
        check(validate(&driver, id, block()).await, Code::NotFound, id);
        check(strange.attach(&driver, "node-a").await, Code::NotFound, id);
        let staged = strange.stage(&driver).await.expect_err("a volume that is not there");
        assert!(matches!(staged.code(), Code::NotFound | Code::InvalidArgument), "{staged:?}");
        assert!(staged.message().contains(id), "{staged:?}");
        assert!(fs::read_dir(&strange.staging).expect("the staging path").next().is_none());
    }
    assert!(validate(&driver, &life.id, mount("ext4")).await.expect("ValidateVolumeCapabilities"));
    let shared = mount("ext4").with(Mode::MultiNodeMultiWriter);
    assert!(!validate(&driver, &life.id, shared).await.expect("ValidateVolumeCapabilities"));
    check(life.attach(&driver, "node-z").await, Code::NotFound, "node-z");
    check(life.attach(&driver, "").await, Code::InvalidArgument, "node_id");
    assert_eq!(scene.corner.images(), [life.image.clone()].into());
}

/// ceph-csi's volumes bring their StorageClass along in the volume context.
#[tokio::test]
async fn a_volume_that_asks_for_more_than_is_built() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    for (name, value) in [("encryptionType", "file"), ("mounter", "fuse"), ("mapOptions", "krbd:exclusive")] {
        let mut context = life.context.clone();
        context.insert(name.to_owned(), value.to_owned());
        let asking = life.clone().with_context(context);
        check(asking.stage(&driver).await, Code::InvalidArgument, &format!("{name}={value:?}"));
        asking.assert_gone_from(&driver);
    }
}

#[tokio::test]
async fn paths_that_lead_elsewhere() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let up = scene.path("inside/../../outside");
    for path in ["relative/path", "", "/", &up.display().to_string()] {
        let strange = Life { staging: path.into(), target: path.into(), ..life.clone() };
        let said = if path.is_empty() { "staging_target_path" } else { path };
        check(strange.stage(&driver).await, Code::InvalidArgument, said);
        check(strange.unstage(&driver).await, Code::InvalidArgument, said);
        let said = if path.is_empty() { "target_path" } else { path };
        check(life.publish_at(&driver, path.as_ref(), false).await, Code::InvalidArgument, said);
        check(strange.unpublish(&driver).await, Code::InvalidArgument, said);
        let stats = life.stats(&driver, path.as_ref()).await.expect_err("no path of a volume");
        assert!(matches!(stats.code(), Code::InvalidArgument | Code::NotFound), "{stats:?}");
    }
    let nameless = Life { id: String::new(), ..life.clone() };
    check(nameless.stage(&driver).await, Code::InvalidArgument, "volume_id");
    check(nameless.publish(&driver).await, Code::InvalidArgument, "volume_id");
    check(nameless.unpublish(&driver).await, Code::InvalidArgument, "volume_id");
    check(nameless.unstage(&driver).await, Code::InvalidArgument, "volume_id");
    assert!(!scene.path("inside").exists() && driver.mapped().is_empty());
}

#[tokio::test]
async fn another_volume_under_the_same_name() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let first = asked(|_| {});
    let id = driver.create(first.clone()).await.expect("CreateVolume").volume_id;
    let sized = |required_bytes, limit_bytes| {
        let capacity_range = Some(CapacityRange { required_bytes, limit_bytes });
        CreateVolumeRequest { capacity_range, ..first.clone() }
    };
    check(driver.create(sized(1 << 30, 0)).await, Code::AlreadyExists, &first.name);
    check(driver.create(sized(1 << 20, 32 << 20)).await, Code::AlreadyExists, &first.name);
    let mut plainer = first.clone();
    plainer.parameters.extend(request::map(&[("imageFeatures", "layering")]));
    check(driver.create(plainer).await, Code::AlreadyExists, "layering");
    let within = driver.create(sized(1 << 20, 64 << 20)).await.expect("a range that holds its size");
    assert_eq!(within.volume_id, id);
    assert_eq!(scene.corner.images().len(), 1);
}
