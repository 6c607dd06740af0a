//! `ceph-rbd-csi audit` on a pool that others use too: what has no counterpart is laid down as kills leave it, and exactly
//! that is found, and exactly what is this driver's is repaired.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::ceph_csi;
use crate::common::life::block;
use crate::common::sight::eventually;
use crate::common::tools::{run, try_run, unique};
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::{POOL, lab, text};
use crate::life::request;

const INDEX: &str = "csi.rbd.index.default";
/// In the key of an intent or of a snapshot: long ago.
const THEN: &str = "1700000000";

/// With a deadline after which what was laid down is soon old enough.
fn audit(scene: &Scene, args: &[&str]) -> Output {
    audit_with(scene, args, &scene.path("no-maps"))
}

/// On the node that keeps its mappings there.
fn audit_with(scene: &Scene, args: &[&str], maps: &Path) -> Output {
    let config = scene.path("config.json").display().to_string();
    let key = lab().dir.join("csi.key").display().to_string();
    let place = ["audit", "--cluster", CLUSTER, "--pool", POOL, "--config", &config];
    let who = ["--user", "csi", "--keyfile", &key, "--command-timeout=4s"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"));
    let output = command
        .args(place)
        .args(who)
        .args(args)
        .env_remove("CEPH_CONF")
        .env("RBD_STANDIN_DIR", maps)
        .output();
    output.expect("the audit starts")
}

/// What is found: kind, and what it is.
fn found(scene: &Scene, args: &[&str]) -> Vec<Value> {
    let output = audit(scene, &[&["--json"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(report["clean"] == true, output.status.success(), "{report:#} {said}");
    report["pools"][0]["found"].as_array().expect("a list").clone()
}

fn kinds(found: &[Value]) -> Vec<String> {
    let mut kinds: Vec<String> = found.iter().map(|one| text(&one["kind"])).collect();
    kinds.sort();
    kinds
}

/// Nothing has lost its counterpart here, be it as young as it may.
pub(crate) fn finds_nothing(scene: &Scene) {
    let found = found(scene, &[]);
    assert!(found.is_empty(), "the audit finds {found:#?}");
}

fn rados(scene: &Scene, args: &[&str]) -> String {
    ceph_csi::rados(scene, POOL, args)
}

/// All that a repair may change.
fn state(scene: &Scene) -> BTreeSet<String> {
    let mut state: BTreeSet<String> = rados(scene, &["ls"]).lines().map(str::to_owned).collect();
    let with_keys: Vec<String> = state.iter().filter(|object| has_keys(object)).cloned().collect();
    for object in with_keys {
        let keys = rados(scene, &["listomapkeys", &object]);
        state.extend(keys.lines().map(|key| format!("{object} {key}")));
    }
    state
}

fn has_keys(object: &str) -> bool {
    ["rbd_directory", "rbd_trash"].contains(&object)
        || object.starts_with("csi.")
        || object.starts_with("rbd_header")
}

/// A uuid of the version that this driver derives, of no request.
fn derived(number: u32) -> String {
    format!("{number:08x}-7d63-5f0b-9a55-6b3f6d4b2a10")
}

struct Volume {
    id: String,
    uuid: String,
    image: String,
}

async fn volume(driver: &Driver) -> Volume {
    let made = driver.create(request::create(&unique("pvc"), 16, block())).await.expect("CreateVolume");
    let uuid = made.volume_id[made.volume_id.len() - 36..].to_owned();
    Volume { id: made.volume_id, image: format!("csi-vol-{uuid}"), uuid }
}

fn image_id(scene: &Scene, image: &str) -> String {
    text(&scene.corner.info(image).expect("an image")["id"])
}

fn key(scene: &Scene, key: &str, value: &str) {
    rados(scene, &["setomapval", INDEX, key, value]);
}

fn take(scene: &Scene, snapshot: &str) {
    run("rbd", &["snap", "create", "--no-progress", &scene.corner.spec(snapshot)]);
}

fn make(scene: &Scene, image: &str) {
    run("rbd", &["create", "--size", "16M", &scene.corner.spec(image)]);
}

fn to_trash(scene: &Scene, image: &str) {
    run("rbd", &["trash", "mv", &scene.corner.spec(image)]);
}

/// Volumes of all kinds, in use or waiting for what uses them: this driver's, ceph-csi's, an administrator's.
async fn healthy(scene: &Scene, driver: &Driver) {
    let (plain, source) = (volume(driver).await, volume(driver).await);
    let snapshot = driver.snap(&unique("snap"), &plain.id).await.expect("CreateSnapshot").snapshot_id;
    let ask = || request::create(&unique("pvc"), 16, block());
    let mut prefixed = ask();
    prefixed.parameters.insert("volumeNamePrefix".to_owned(), "team-".to_owned());
    for asked in
        [ask().of_snapshot(&snapshot), ask().of_volume(&plain.id), ask().of_volume(&source.id), prefixed]
    {
        driver.create(asked).await.expect("CreateVolume");
    }
    // One that waits in the trash for its clone, and one that is a tombstone.
    driver.delete(&source.id).await.expect("DeleteVolume");
    driver.delete(&plain.id).await.expect("DeleteVolume");
    let theirs = ceph_csi::volume(scene);
    ceph_csi::clone(scene, &theirs);
    ceph_csi::volume_with_prefix(scene, "theirs-");
    ceph_csi::volume_journalled_elsewhere(scene);
    let restored = ceph_csi::restored(scene, &ceph_csi::snapshot(scene, &theirs));
    take(scene, &format!("{}@monday", restored.image));
    for image in ["golden", "rescued"] {
        make(scene, image);
    }
    take(scene, "golden@tuesday");
    to_trash(scene, "rescued");
}

/// What kills leave, each with its kind. Those that nothing repairs are behind the others.
async fn lay_down(scene: &Scene, driver: &Driver) -> Vec<&'static str> {
    let mut kinds = images(scene, driver).await;
    kinds.extend(keys(scene, driver).await);
    to_trash(scene, &volume(driver).await.image);
    ceph_csi::reservation(scene);
    rados(scene, &["create", "rbd_data.feedbeef.0000000000000000"]);
    kinds.extend(["trash-entry", "journal-entry", "objects"]);
    kinds
}

const NEVER: usize = 3;

async fn images(scene: &Scene, driver: &Driver) -> Vec<&'static str> {
    let corner = &scene.corner;
    make(scene, &format!("csi-vol-{}", derived(1)));
    // Killed before the directory had it.
    fs::write(scene.path("id"), b"\x08\0\0\0abcdabcd").expect("a file");
    let file = scene.path("id").display().to_string();
    rados(scene, &["put", &format!("rbd_id.csi-vol-{}", derived(2)), &file]);
    // A clone that was killed before it had its parent, and the snapshots that this and another one were to be made through.
    let source = volume(driver).await;
    take(scene, &format!("{}@csi-clone-{}", source.image, derived(3)));
    make(scene, &format!("csi-vol-{}", derived(3)));
    take(scene, &format!("{}@csi-clone-{}", source.image, derived(4)));
    let gone = volume(driver).await;
    let tombstone = format!("csi-del-{}-{}", gone.uuid, image_id(scene, &gone.image));
    run("rbd", &["rename", &corner.spec(&gone.image), &corner.spec(&tombstone)]);
    // A rename that was killed before the old name was gone.
    let renamed = volume(driver).await;
    driver.snap(&unique("snap"), &renamed.id).await.expect("CreateSnapshot");
    let (id, old) = (image_id(scene, &renamed.image), format!("rbd_id.{}", renamed.image));
    rados(scene, &["get", &old, &file]);
    let tombstone = format!("csi-del-{}-{id}", renamed.uuid);
    run("rbd", &["rename", &corner.spec(&renamed.image), &corner.spec(&tombstone)]);
    rados(scene, &["put", &old, &file]);
    let half = "half-made-image";
    let temporary = "temporary-snapshot";
    vec![half, half, half, temporary, temporary, "empty-tombstone", "stray-name"]
}

async fn keys(scene: &Scene, driver: &Driver) -> Vec<&'static str> {
    let living = volume(driver).await;
    driver.snap(&unique("snap"), &living.id).await.expect("CreateSnapshot");
    let listed = rados(scene, &["listomapkeys", INDEX]);
    let own = listed.lines().find(|key| key.contains(&living.uuid)).expect("its key").to_owned();
    rados(scene, &["rmomapkey", INDEX, &own]);
    key(scene, &format!("snap.{}.{}.16777216.{THEN}", derived(5), living.uuid), "");
    // Its snapshot was taken while it was deleted.
    let buried = volume(driver).await;
    driver.snap(&unique("snap"), &buried.id).await.expect("CreateSnapshot");
    key(scene, &format!("del.{}.{THEN}", image_id(scene, &buried.image)), &buried.image);
    to_trash(scene, &buried.image);
    key(scene, &format!("pub.{}.node-x", living.uuid), "");
    key(scene, &format!("pub.{}.node-x", derived(6)), "");
    key(scene, &format!("name.{}", derived(7)), "team-x");
    let cut_off = volume(driver).await;
    key(scene, &format!("del.{}.{THEN}", image_id(scene, &cut_off.image)), &cut_off.image);
    to_trash(scene, &cut_off.image);
    key(scene, &format!("del.abcdef.{THEN}"), "csi-vol-x");
    let claim = format!("csi.rbd.snap.{}", derived(8));
    rados(scene, &["lock", "get", &claim, "claim", "--lock-cookie", &living.uuid]);
    rados(scene, &["create", &format!("csi.rbd.place.{}", derived(9))]);
    rados(scene, &["setomapval", &format!("csi.volume.{}", derived(10)), "csi.imagename", "team-y"]);
    vec![
        "unindexed-snapshot",
        "snapshot-entry",
        "buried-snapshot",
        "publication-entry",
        "publication-entry",
        "name-entry",
        "deleted-image",
        "deleted-image",
        "claim",
        "placement",
        "journal-entry",
    ]
}

#[tokio::test]
async fn the_audit_finds_what_kills_leave_and_repairs_what_is_this_driver_s() {
    let scene = Scene::new();
    let driver = scene.start().await;
    healthy(&scene, &driver).await;
    eventually("an emptied trash", || scene.corner.trash().len() == 2).await;
    finds_nothing(&scene);
    let whole = state(&scene);
    let mut expected = lay_down(&scene, &driver).await;
    drop(driver);
    let never: BTreeSet<&str> = expected[expected.len() - NEVER..].iter().copied().collect();
    expected.sort_unstable();
    eventually("all of it old", || kinds(&found(&scene, &[])).len() >= expected.len()).await;
    let laid = state(&scene);
    let dry = found(&scene, &["--repair", "--dry-run"]);
    assert_eq!(kinds(&dry), expected, "{dry:#?}");
    assert_eq!(state(&scene), laid, "a dry run changes nothing");
    let repaired = found(&scene, &["--repair"]);
    assert_eq!(kinds(&repaired), expected);
    for one in &repaired {
        assert_eq!(one["repaired"], one["repairable"], "{one:#}");
    }
    let left = found(&scene, &["--repair"]);
    assert_eq!(kinds(&left).iter().map(String::as_str).collect::<BTreeSet<_>>(), never);
    assert_eq!(left.len(), NEVER, "{left:#?}");
    let now = state(&scene);
    let lost: Vec<&String> = whole.difference(&now).collect();
    assert!(lost.is_empty(), "the repair took {lost:?}");
    tells_the_same_as_text_and_metrics(&scene);
}

fn tells_the_same_as_text_and_metrics(scene: &Scene) {
    let file = scene.path("audit.prom").display().to_string();
    let output = audit(scene, &["--metrics-file", &file]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("trash-entry ") && told.contains("0 to be repaired, 0 failed, 3 left to you"),
        "{told}"
    );
    let metrics = fs::read_to_string(&file).expect("the metrics");
    let namespace = &scene.corner.namespace;
    for (kind, count) in [("trash-entry", 1), ("claim", 0)] {
        let line = format!(
            "ceph_rbd_csi_audit_found{{cluster=\"lab\",pool=\"{POOL}\",namespace=\"{namespace}\",kind=\"{kind}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}

#[tokio::test]
async fn what_may_be_another_instance_s_is_left_alone() {
    let scene = Scene::new();
    let other = scene.on_node("node-b", "rbd").flag("--instanceid=other").start().await;
    let theirs = volume(&other).await;
    other.snap(&unique("snap"), &theirs.id).await.expect("CreateSnapshot");
    drop(other);
    let doomed = format!("csi-vol-{}", derived(20));
    make(&scene, &doomed);
    let id = image_id(&scene, &doomed);
    rados(&scene, &["setomapval", "csi.rbd.index.other", &format!("del.{id}.{THEN}"), &doomed]);
    to_trash(&scene, &doomed);
    make(&scene, &format!("csi-vol-{}", derived(21)));
    let claim = format!("csi.rbd.snap.{}", derived(22));
    rados(&scene, &["lock", "get", &claim, "claim", "--lock-cookie", &theirs.uuid]);
    let kept = state(&scene);
    key(&scene, &format!("pub.{}.node-x", derived(23)), "");
    eventually("all of it old", || found(&scene, &[]).len() == 3).await;
    let repaired = found(&scene, &["--repair"]);
    assert_eq!(kinds(&repaired), ["claim", "half-made-image", "publication-entry"]);
    for one in &repaired {
        assert_eq!(one["repaired"], one["kind"] == "publication-entry", "{one:#}");
    }
    let now = state(&scene);
    assert!(now.is_superset(&kept), "{:?}", kept.difference(&now).collect::<Vec<_>>());
}

#[tokio::test]
async fn volumes_that_no_handle_names_are_told_and_left_alone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (named, unnamed) = (volume(&driver).await, volume(&driver).await);
    let file = scene.path("handles");
    fs::write(&file, format!("{}\n", named.id)).expect("the handles");
    let found = found(&scene, &["--repair", "--volumes", &file.display().to_string()]);
    assert_eq!(kinds(&found), ["unnamed-volume"]);
    assert!(text(&found[0]["what"]).ends_with(&unnamed.image), "{found:?}");
    assert!(scene.corner.has(&unnamed.image));
}

#[tokio::test]
async fn an_image_that_holds_data_or_is_open_is_never_taken_for_a_half() {
    let scene = Scene::new();
    let image = format!("csi-vol-{}", derived(30));
    make(&scene, &image);
    let io = ["--io-type=write", "--io-size=4096", "--io-total=4096"];
    run("rbd", &[&["bench"], &io[..], &[&scene.corner.spec(&image)]].concat());
    eventually("it is old", || kinds(&found(&scene, &[])) == ["half-made-image"]).await;
    let found = found(&scene, &["--repair"]);
    assert!(text(&found[0]["repair"]).contains("holds data"), "{found:?}");
    assert!(scene.corner.has(&image));
}

#[tokio::test]
async fn a_node_s_maps_and_stashes_are_compared() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (staged, mapped, idle) = (volume(&driver).await, volume(&driver).await, volume(&driver).await);
    let device = |volume: &Volume| {
        let mut map = Command::new("rbd");
        map.args(["map", &scene.corner.spec(&volume.image), "--device-type", "krbd", "--options", "noudev"]);
        try_run(map.env("RBD_STANDIN_DIR", driver.maps())).expect("rbd map").trim().to_owned()
    };
    let devices = [device(&staged), device(&mapped)];
    let csi = scene.path("kubelet").join("plugins/kubernetes.io/csi");
    let stash = |folder: &str, text: &str| {
        fs::create_dir_all(csi.join(folder)).expect("a staging folder");
        fs::write(csi.join(folder).join("image-meta.json"), text).expect("a stash");
    };
    let of = |volume: &Volume| {
        let (namespace, image) = (&scene.corner.namespace, &volume.image);
        json!({ "Version": 3, "pool": POOL, "radosNamespace": namespace, "image": image }).to_string()
    };
    stash("rbd.csi.ceph.com/a/globalmount", &of(&staged));
    stash("volumeDevices/staging/pv-1", &of(&idle));
    stash("other.csi/b/globalmount", "{");
    let kubelet = scene.path("kubelet").display().to_string();
    let look = || {
        let output = audit_with(&scene, &["--json", "--kubelet-dir", &kubelet], driver.maps());
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let ours = report["node"].as_array().expect("a list").clone();
        let ours = ours.into_iter().filter(|one| {
            !text(&one["what"]).contains("/ns-") || text(&one["what"]).contains(&scene.corner.namespace)
        });
        ours.map(|one| (text(&one["kind"]), text(&one["what"]))).collect::<Vec<_>>()
    };
    let loose =
        ("map-without-stash".to_owned(), format!("{} {}", devices[1], scene.corner.spec(&mapped.image)));
    let without = csi.join("volumeDevices/staging/pv-1/image-meta.json").display().to_string();
    let idle = ("stash-without-map".to_owned(), without);
    eventually("the stash is old", || look() == [loose.clone(), idle.clone()]).await;
    stash("rbd.csi.ceph.com/c/globalmount", "{");
    let torn = csi.join("rbd.csi.ceph.com/c/globalmount/image-meta.json").display().to_string();
    // It may be the stash of whatever is mapped.
    assert_eq!(look(), [("torn-stash".to_owned(), torn), idle]);
    assert_eq!(driver.mapped().len(), 2);
}

#[tokio::test]
async fn a_wrong_question_is_told_from_a_wrong_cluster() {
    let scene = Scene::new();
    let code = |args: &[&str]| audit(&scene, args).status.code();
    assert_eq!(code(&["--dry-run"]), Some(2));
    assert_eq!(code(&["--pool", "nowhere"]), Some(1));
    let without = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"))
        .args(["audit", "--cluster", CLUSTER, "--pool", POOL, "--config"])
        .arg(scene.path("config.json"))
        .output()
        .expect("the audit starts");
    assert_eq!(without.status.code(), Some(2));
    let said = String::from_utf8_lossy(&without.stderr);
    assert!(said.contains("give --user and --keyfile"), "{said}");
    assert!(try_run(Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi")).args(["audit", "--help"])).is_ok());
}
