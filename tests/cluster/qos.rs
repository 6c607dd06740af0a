//! How fast a volume may be (mutable parameters, VolumeAttributesClass): limits of librbd, for volumes of rbd-nbd.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use tonic::Code;

use crate::common::csi::{
    ControllerModifyVolumeRequest, CreateVolumeRequest, ValidateVolumeCapabilitiesRequest,
};
use crate::common::life::{Life, Map, block, map};
use crate::common::tools::{Answer, check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::lab::text;
use crate::life::request;
use crate::wrap::COUNT;

const GIB: i64 = 1 << 30;
/// From 1 GiB on, 10 more for each, and 60 at most.
const SCALED: [(&str, &str); 4] = [
    ("baseReadIops", "20"),
    ("readIopsPerGiB", "10"),
    ("baseVolSizeBytes", "1073741824"),
    ("maxReadIops", "60"),
];

/// Of so many GiB, mapped by rbd-nbd.
fn asked(gib: i64, mutable: &[(&str, &str)]) -> CreateVolumeRequest {
    let mut request = request::create(&unique("pvc"), gib << 10, block());
    request.parameters.insert("mounter".to_owned(), "rbd-nbd".to_owned());
    CreateVolumeRequest { mutable_parameters: map(mutable), ..request }
}

/// The limits that librbd has for this image alone, as `rbd config image list` tells them.
fn limits(scene: &Scene, life: &Life) -> BTreeMap<String, String> {
    let printed = run("rbd", &["config", "image", "list", "--format=json", &scene.corner.spec(&life.image)]);
    let options: Vec<Value> = serde_json::from_str(&printed).expect("a list of options");
    let ours = options.iter().filter(|option| option["source"] == "image");
    ours.map(|option| (text(&option["name"]), text(&option["value"]))).collect()
}

fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(kind, value)| (format!("rbd_qos_{kind}_limit"), (*value).to_owned())).collect()
}

impl Life {
    async fn modify(&self, driver: &Driver, mutable: &[(&str, &str)]) -> Answer {
        let request = ControllerModifyVolumeRequest {
            volume_id: self.id.clone(),
            mutable_parameters: map(mutable),
            secrets: self.secrets.clone(),
        };
        driver.controller().controller_modify_volume(request).await.map(drop)
    }

    /// What ValidateVolumeCapabilities says against these; empty: it confirms them.
    async fn validate(&self, driver: &Driver, mutable: &[(&str, &str)]) -> String {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_capabilities: vec![self.capability.clone()],
            mutable_parameters: map(mutable),
            secrets: self.secrets.clone(),
            ..Default::default()
        };
        let answer = driver.controller().validate_volume_capabilities(request).await;
        let answer = answer.expect("ValidateVolumeCapabilities").into_inner();
        assert_eq!(
            answer.confirmed.map(|confirmed| confirmed.mutable_parameters),
            confirmed(&answer.message, mutable)
        );
        answer.message
    }
}

fn confirmed(message: &str, mutable: &[(&str, &str)]) -> Option<Map> {
    message.is_empty().then(|| map(mutable))
}

#[tokio::test]
async fn a_volume_is_made_with_its_limits_by_one_process() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let mutable = [&SCALED[..], &[("baseBps", "1000000"), ("maxBps", "2000000")]].concat();
    let request = asked(3, &mutable);
    let life = Life::create_as(&scene, &driver, request.clone()).await;
    assert_eq!(limits(&scene, &life), of(&[("bps", "1000000"), ("read_iops", "40")]));
    assert_eq!(wrapper.calls().len(), wrapper.count("import"), "{:#?}", wrapper.calls());
    let meta = scene.corner.meta(&life.image);
    let kept = ["csi.ceph.com/mounter", "rbd_base_qos_read_iops_limit", "rbd_max_qos_read_iops_limit"];
    assert_eq!(kept.map(|key| meta[key].as_str()), ["rbd-nbd", "20", "60"]);
    assert_eq!([&meta["rbd_read_iops_per_gib_limit"], &meta["rbd_base_qos_vol_size"]], ["10", "1073741824"]);
    assert!(!life.context.keys().any(|key| key.contains("Iops")), "{:?}", life.context);

    let again = driver.create(request.clone()).await.expect("the same again");
    assert_eq!(again.volume_id, life.id);
    let mut other = request;
    other.mutable_parameters.insert("baseBps".to_owned(), "3".to_owned());
    other.mutable_parameters.remove("maxBps");
    check(driver.create(other).await, Code::AlreadyExists, "baseBps");
}

#[tokio::test]
async fn only_what_is_named_is_changed() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(3, &SCALED)).await;
    twice(|| life.modify(&driver, &[("baseWriteBps", "500")])).await;
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "40"), ("write_bps", "500")]));
    twice(|| life.modify(&driver, &[("baseReadIops", "30"), ("baseWriteBps", "0")])).await;
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "50"), ("write_bps", "0")]));
    twice(|| life.modify(&driver, &[("readIopsPerGiB", "1")])).await;
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "32"), ("write_bps", "0")]));
    twice(|| life.modify(&driver, &[])).await;
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "32"), ("write_bps", "0")]));
}

#[tokio::test]
async fn what_is_refused_changes_nothing() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(3, &SCALED)).await;
    let krbd = Life::create(&scene, &driver, block()).await;
    let before = [&life, &krbd].map(|life| scene.corner.meta(&life.image));
    let wrong: [(&[(&str, &str)], &str); 5] = [
        (&[("baseIops", "7"), ("baseReadIop", "5")], "\"baseReadIops\""),
        (&[("baseIops", "7"), ("baseBps", "fast")], "baseBps=\"fast\""),
        (&[("baseIops", "7"), ("writeIopsPerGiB", "1")], "baseWriteIops"),
        (&[("baseIops", "7"), ("baseReadIops", "61")], "maxReadIops=60"),
        (&[("maxIops", "7")], "baseIops"),
    ];
    for (mutable, fragment) in wrong {
        check(life.modify(&driver, mutable).await, Code::InvalidArgument, fragment);
        let message = life.validate(&driver, mutable).await;
        assert!(message.contains(fragment), "{message:?} does not say {fragment:?}");
        if !fragment.contains("60") {
            let scene_before = scene.corner.images();
            check(driver.create(asked(3, mutable)).await, Code::InvalidArgument, fragment);
            assert_eq!(scene.corner.images(), scene_before);
        }
    }
    assert_eq!(life.validate(&driver, &SCALED).await, "");
    check(krbd.modify(&driver, &SCALED).await, Code::InvalidArgument, "krbd");
    assert!(krbd.validate(&driver, &SCALED).await.contains("krbd"));
    krbd.modify(&driver, &[]).await.expect("nothing is asked");
    let on_krbd = CreateVolumeRequest {
        mutable_parameters: map(&SCALED),
        ..request::create(&unique("pvc"), 64, block())
    };
    check(driver.create(on_krbd).await, Code::InvalidArgument, "krbd");
    assert_eq!([&life, &krbd].map(|life| scene.corner.meta(&life.image)), before);
    let absent = Life {
        id: format!("{}00000000-0000-0000-0000-000000000000", &life.id[..life.id.len() - 36]),
        ..life
    };
    check(absent.modify(&driver, &[("none", "none")]).await, Code::NotFound, &absent.id);
}

#[tokio::test]
async fn what_is_limited_for_each_gib_follows_the_size() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(2, &SCALED)).await;
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "30")]));
    life.expand(&driver, 4 * GIB).await.expect("ControllerExpandVolume");
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "50")]));
    life.expand(&driver, 9 * GIB).await.expect("ControllerExpandVolume");
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "60")]));
    // Grown by one that was killed behind the resize, or by hand.
    run("rbd", &["config", "image", "set", &scene.corner.spec(&life.image), "rbd_qos_read_iops_limit", "50"]);
    life.expand(&driver, 9 * GIB).await.expect("it is large enough");
    assert_eq!(limits(&scene, &life), of(&[("read_iops", "60")]));
}

/// Kills the second `image-meta set`, once.
const KILL_THE_SECOND: &str = r#"[ "$1 $2" = "image-meta set" ] || exec "$RBD" "$@"
(($(grep -c "^image-meta set" "$CALLS") == 2)) && kill -9 $$
exec "$RBD" "$@""#;

#[tokio::test]
async fn a_change_that_was_killed_half_way_is_finished_by_the_next_try() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(KILL_THE_SECOND)).await;
    let life = Life::create_as(&scene, &driver, asked(3, &SCALED)).await;
    let change = [("baseReadIops", "30"), ("baseIops", "900")];
    check(life.modify(&driver, &change).await, Code::Internal, "signal 9");
    let half = scene.corner.meta(&life.image);
    let driver = driver.killed_and_started().await;
    life.modify(&driver, &change).await.expect("the next try");
    assert_eq!(limits(&scene, &life), of(&[("iops", "900"), ("read_iops", "50")]));
    assert_ne!(scene.corner.meta(&life.image), half);
}

/// What ceph-csi set is read, whatever it does not know is left.
#[tokio::test]
async fn limits_that_ceph_csi_set_are_taken_over() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(2, &[])).await;
    assert_eq!(limits(&scene, &life), of(&[]));
    let theirs = [
        ("rbd_base_qos_write_iops_limit", "100"),
        ("rbd_write_iops_per_gib_limit", "5"),
        ("rbd_base_qos_vol_size", "1073741824"),
        ("conf_rbd_qos_write_iops_limit", "105"),
        ("conf_rbd_cache", "false"),
    ];
    for (key, value) in theirs {
        scene.corner.set_meta(&life.image, key, value);
    }
    life.expand(&driver, 3 * GIB).await.expect("ControllerExpandVolume");
    let mut expected = of(&[("write_iops", "110")]);
    expected.insert("rbd_cache".to_owned(), "false".to_owned());
    assert_eq!(limits(&scene, &life), expected);
}

/// librbd, which rbd-nbd runs, heeds them: `rbd bench` is librbd too.
#[tokio::test]
async fn a_limit_is_felt() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(1, &[("baseWriteIops", "20")])).await;
    let spec = scene.corner.spec(&life.image);
    let bench = [
        "bench",
        "--io-type=write",
        "--io-size=4K",
        "--io-total=320K",
        "--io-threads=1",
        "--rbd-cache=false",
    ];
    let seconds = || {
        let started = std::time::Instant::now();
        let done = Command::new("rbd").args(bench).arg(&spec).output().expect("rbd bench");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        started.elapsed().as_secs_f64()
    };
    let limited = seconds();
    assert!(limited > 2.0, "80 writes at 20 a second took {limited} s");
    life.modify(&driver, &[("baseWriteIops", "0")]).await.expect("ControllerModifyVolume");
    let free = seconds();
    assert!(free < limited, "{free} s without a limit, {limited} s with one");
}
