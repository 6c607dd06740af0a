//! Snapshots: taken, found, listed, deleted; their names, and what they hold.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;
use tonic::Code;

use crate::common::life::{Life, block, map, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, twice, unique};
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::{POOL, lab};
use crate::life::request;
use crate::snaps::{asked, ids, of_volume, page, uuid};

async fn volume(driver: &Driver) -> String {
    driver.create(request::create(&unique("pvc"), 16, block())).await.expect("CreateVolume").volume_id
}

fn image(id: &str) -> String {
    format!("csi-vol-{}", &id[id.len() - 36..])
}

#[tokio::test]
async fn a_snapshot_holds_what_was_written_before_it_and_nothing_after() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    life.write(&[1; 4096]).expect("a write");
    let snapshot = driver.snap("before", &life.id).await.expect("CreateSnapshot");
    let held = format!("{}@csi-snap-{}", life.image, uuid(&snapshot.snapshot_id));
    let content = scene.corner.content(&held);
    life.write(&vec![2; 1 << 20]).expect("a write");
    life.down(&driver).await;
    assert_eq!(scene.corner.content(&held), content);
    assert_ne!(scene.corner.content(&life.image), content);
    assert_eq!(scene.corner.images().len(), 1, "a snapshot is no second image");
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    driver.delete(&life.id).await.expect("DeleteVolume");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_snapshot_is_told_whole_and_the_same_each_time() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = volume(&driver).await;
    let name = unique("snap");
    let snapshot = twice(|| driver.snap(&name, &source)).await;
    assert!(snapshot.ready_to_use);
    assert_eq!((snapshot.size_bytes, &snapshot.source_volume_id), (16 << 20, &source));
    let age = std::time::UNIX_EPOCH.elapsed().expect("a time").as_secs()
        - u64::try_from(snapshot.creation_time.expect("a time").seconds).expect("since 1970");
    assert!(age < 90, "taken {age} s ago");
    assert_eq!(driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
    assert_eq!(scene.corner.snapshots(&image(&source)).len(), 1);
    twice(|| driver.unsnap(&snapshot.snapshot_id)).await;
    check(driver.get_snap(&snapshot.snapshot_id).await, Code::NotFound, &snapshot.snapshot_id);
    assert!(scene.corner.snapshots(&image(&source)).is_empty());
}

#[tokio::test]
async fn a_name_belongs_to_one_volume_until_its_snapshot_is_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (first, second) = (volume(&driver).await, volume(&driver).await);
    let snapshot = driver.snap("n", &first).await.expect("CreateSnapshot");
    check(driver.snap("n", &second).await, Code::AlreadyExists, &first);
    assert!(scene.corner.snapshots(&image(&second)).is_empty());
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    let other = driver.snap("n", &second).await.expect("the name is free again");
    // A deletion of the old one comes late.
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    check(driver.snap("n", &first).await, Code::AlreadyExists, &second);
    driver.unsnap(&other.snapshot_id).await.expect("DeleteSnapshot");
}

#[tokio::test]
async fn a_claim_without_a_snapshot_is_respected_for_a_while() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=4s").start().await;
    let (first, second) = (volume(&driver).await, volume(&driver).await);
    let snapshot = driver.snap("n", &first).await.expect("CreateSnapshot");
    let spec = format!("{}@csi-snap-{}", scene.corner.spec(&image(&first)), uuid(&snapshot.snapshot_id));
    crate::common::tools::run("rbd", &["snap", "rm", "--no-progress", &spec]);
    check(driver.snap("n", &second).await, Code::Aborted, &first);
    tokio::time::sleep(std::time::Duration::from_secs(41)).await;
    let taken = driver.snap("n", &second).await.expect("the claim of a dead one");
    check(driver.snap("n", &first).await, Code::AlreadyExists, &second);
    for id in [&snapshot.snapshot_id, &taken.snapshot_id] {
        driver.unsnap(id).await.expect("DeleteSnapshot");
    }
    for id in [&first, &second] {
        driver.delete(id).await.expect("DeleteVolume");
    }
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_snapshot_of_no_volume_is_not_found_and_keeps_no_name() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let gone = volume(&driver).await;
    driver.delete(&gone).await.expect("DeleteVolume");
    check(driver.snap("n", &gone).await, Code::NotFound, &gone);
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
    let other = volume(&driver).await;
    driver.snap("n", &other).await.expect("the name is free");
    let elsewhere = gone.replacen("-lab-", "-far-", 1);
    check(driver.snap("m", &elsewhere).await, Code::InvalidArgument, "far");
    check(driver.get_snap("none").await, Code::NotFound, "none");
    driver.unsnap("none").await.expect("DeleteSnapshot of what is not there");
}

#[tokio::test]
async fn parameters_of_a_snapshot_class_are_heeded_or_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = volume(&driver).await;
    let with = |name: &str, value: &str| {
        let mut request = asked("n", &source);
        request.parameters.extend(map(&[(name, value)]));
        request
    };
    check(
        driver.take(with("snapshotnameprefix", "x")).await,
        Code::InvalidArgument,
        "\"snapshotNamePrefix\"",
    );
    check(driver.take(with("snapshotNamePrefix", "a@b")).await, Code::InvalidArgument, "a@b");
    check(driver.take(with("clusterID", "far")).await, Code::InvalidArgument, "far");
    assert!(scene.corner.snapshots(&image(&source)).is_empty());
    let snapshot = driver.take(with("snapshotNamePrefix", "daily-")).await.expect("CreateSnapshot");
    let name = format!("daily-{}", uuid(&snapshot.snapshot_id));
    assert_eq!(scene.corner.snapshots(&image(&source)), [name]);
    assert_eq!(driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    assert!(scene.corner.snapshots(&image(&source)).is_empty());
}

#[tokio::test]
async fn a_volume_with_a_name_of_its_own_has_snapshots_like_any_other() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let mut request = request::create(&unique("pvc"), 16, block());
    request.parameters.extend(map(&[("volumeNamePrefix", "team-a-")]));
    let id = driver.create(request).await.expect("CreateVolume").volume_id;
    let snapshot = driver.snap("n", &id).await.expect("CreateSnapshot");
    driver.delete(&id).await.expect("DeleteVolume");
    assert_eq!(driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
    assert_eq!(scene.corner.tombstones().len(), 1);
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn pages_of_a_list_stay_right_while_snapshots_are_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (first, second) = (volume(&driver).await, volume(&driver).await);
    let mut all = BTreeSet::new();
    for number in 0..5 {
        let source = if number < 3 { &first } else { &second };
        all.insert(driver.snap(&format!("s{number}"), source).await.expect("CreateSnapshot").snapshot_id);
    }
    let whole = driver.list_snaps(page(0, "")).await.expect("ListSnapshots");
    assert_eq!(
        (ids(&whole).into_iter().collect::<BTreeSet<_>>(), whole.next_token.as_str()),
        (all.clone(), "")
    );
    let ordered = ids(&whole);
    let one = driver.list_snaps(page(2, "")).await.expect("ListSnapshots");
    assert_eq!(ids(&one), ordered[..2]);
    driver.unsnap(&ordered[1]).await.expect("DeleteSnapshot");
    driver.unsnap(&ordered[2]).await.expect("DeleteSnapshot");
    let two = driver.list_snaps(page(2, &one.next_token)).await.expect("ListSnapshots");
    assert_eq!((ids(&two), two.next_token.as_str()), (ordered[3..].to_vec(), ""));
    check(driver.list_snaps(page(2, "nonsense")).await, Code::Aborted, "nonsense");
    let told = driver.get_snap(&ordered[3]).await.expect("GetSnapshot");
    assert_eq!(two.entries[0].snapshot.as_ref(), Some(&told), "the index tells what the image tells");
}

#[tokio::test]
async fn snapshots_are_listed_by_volume_and_by_id() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (first, second) = (volume(&driver).await, volume(&driver).await);
    let one = driver.snap("a", &first).await.expect("CreateSnapshot").snapshot_id;
    let two = driver.snap("b", &second).await.expect("CreateSnapshot").snapshot_id;
    let mut by_id = page(0, "");
    by_id.snapshot_id.clone_from(&two);
    let list = async |request| ids(&driver.list_snaps(request).await.expect("ListSnapshots"));
    assert_eq!(list(of_volume(&first)).await, std::slice::from_ref(&one));
    assert_eq!(list(by_id.clone()).await, std::slice::from_ref(&two));
    by_id.source_volume_id.clone_from(&first);
    assert!(list(by_id).await.is_empty());
    driver.delete(&first).await.expect("DeleteVolume");
    assert_eq!(list(of_volume(&first)).await, [one]);
    driver.unsnap(&two).await.expect("DeleteSnapshot");
    driver.delete(&second).await.expect("DeleteVolume");
    assert!(list(of_volume(&second)).await.is_empty());
}

/// external-snapshotter lists without secrets where its class names none.
#[tokio::test]
async fn all_are_listed_with_the_credential_of_the_configuration_or_the_only_cluster() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = volume(&driver).await;
    let id = driver.snap("n", &source).await.expect("CreateSnapshot").snapshot_id;
    let mut bare = page(0, "");
    bare.secrets.clear();
    check(driver.list_snaps(bare.clone()).await, Code::FailedPrecondition, "credential");
    fs::write(scene.path("key"), &lab().key).expect("a key file");
    let credential = json!({ "userID": "csi", "keyFile": scene.path("key"), "pools": [POOL] });
    let rbd = json!({ "radosNamespace": scene.corner.namespace, "credential": credential });
    let config = json!([
        { "clusterID": CLUSTER, "monitors": [lab().monitors], "rbd": rbd },
        { "clusterID": "other", "monitors": ["127.0.0.1:1"] }
    ]);
    fs::write(scene.path("config.json"), config.to_string()).expect("config.json");
    let listed = driver.list_snaps(bare).await.expect("ListSnapshots");
    assert_eq!(ids(&listed), std::slice::from_ref(&id));
    driver.unsnap(&id).await.expect("DeleteSnapshot");
}
