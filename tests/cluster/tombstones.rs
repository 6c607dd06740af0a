//! Volumes deleted while they have snapshots, and what is in the way meanwhile: twins, kills, clones.

use tonic::Code;

use crate::common::life::block;
use crate::common::sight::eventually;
use crate::common::tools::{check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::lab::Corner;
use crate::life::request;
use crate::snaps::{of_volume, uuid};

async fn volume(driver: &Driver, name: &str) -> String {
    driver.create(request::create(name, 16, block())).await.expect("CreateVolume").volume_id
}

fn image(id: &str) -> String {
    format!("csi-vol-{}", &id[id.len() - 36..])
}

fn write(corner: &Corner, image: &str) {
    let io = ["--io-type=write", "--io-size=4096", "--io-total=65536", "--io-pattern=rand"];
    run("rbd", &[&["bench"], &io[..], &[&corner.spec(image)]].concat());
}

#[tokio::test]
async fn snapshots_outlive_their_volume_and_the_last_one_takes_the_rest_away() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let id = volume(&driver, &unique("pvc")).await;
    write(&scene.corner, &image(&id));
    let one = driver.snap("one", &id).await.expect("CreateSnapshot");
    let two = driver.snap("two", &id).await.expect("CreateSnapshot");
    let content = scene.corner.content(&image(&id));
    twice(|| driver.delete(&id)).await;
    let tombstone = scene.corner.tombstones().pop().expect("a tombstone");
    assert_eq!(scene.corner.images(), [tombstone.clone()].into());
    let held = format!("{tombstone}@csi-snap-{}", uuid(&one.snapshot_id));
    assert_eq!(scene.corner.content(&held), content);
    assert_eq!(driver.get_snap(&two.snapshot_id).await.expect("GetSnapshot"), two);
    twice(|| driver.unsnap(&one.snapshot_id)).await;
    assert_eq!(scene.corner.tombstones(), [tombstone]);
    twice(|| driver.unsnap(&two.snapshot_id)).await;
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_volume_made_deleted_and_made_again_keeps_the_snapshots_of_each_time() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let name = unique("pvc");
    let mut snapshots = Vec::new();
    for round in ["one", "two"] {
        let id = volume(&driver, &name).await;
        write(&scene.corner, &image(&id));
        snapshots.push(driver.snap(round, &id).await.expect("CreateSnapshot"));
        driver.delete(&id).await.expect("DeleteVolume");
    }
    assert_eq!(scene.corner.tombstones().len(), 2);
    let id = volume(&driver, &name).await;
    assert!(scene.corner.is_empty(&image(&id)), "a new volume of an old name is empty");
    let again = driver.snap("one", &id).await.expect("CreateSnapshot");
    assert_eq!(again, snapshots[0], "the same name and source is the same snapshot");
    let listed = driver.list_snaps(of_volume(&id)).await.expect("ListSnapshots");
    assert_eq!(listed.entries.len(), 2);
    for snapshot in &snapshots {
        driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    }
    driver.delete(&id).await.expect("DeleteVolume");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn the_snapshots_of_an_administrator_keep_their_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let id = volume(&driver, &unique("pvc")).await;
    let spec = format!("{}@monday", scene.corner.spec(&image(&id)));
    run("rbd", &["snap", "create", "--no-progress", &spec]);
    driver.snap("n", &id).await.expect("CreateSnapshot");
    check(driver.delete(&id).await, Code::FailedPrecondition, "monday");
    run("rbd", &["snap", "rm", "--no-progress", &spec]);
    driver.delete(&id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn a_volume_that_is_being_cloned_is_not_deleted_and_one_that_was_is() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let id = volume(&driver, &unique("pvc")).await;
    let temporary = format!("{}@csi-clone-{}", scene.corner.spec(&image(&id)), &id[id.len() - 36..]);
    run("rbd", &["snap", "create", "--no-progress", &temporary]);
    check(driver.delete(&id).await, Code::Aborted, "csi-clone-");
    let clone = scene.corner.spec("a-clone");
    run("rbd", &["clone", "--rbd-default-clone-format=2", &temporary, &clone]);
    driver.delete(&id).await.expect("DeleteVolume");
    assert_eq!(scene.corner.images(), ["a-clone".to_owned()].into());
    // The volume waits in the trash for its clone.
    eventually("it is in the trash", || scene.corner.trash() == [image(&id)]).await;
    let other = volume(&driver, &unique("pvc")).await;
    run("rbd", &["rm", "--no-progress", &clone]);
    driver.delete(&other).await.expect("DeleteVolume");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

/// Once, before an image is moved, takes a snapshot of the driver's kind (`WHEN` is before), or removes one (gone).
const TWIN: &str = r#"if [[ $1 = rename || "$1 $2" = "trash mv" ]] && mkdir "$CALLS.once" 2>/dev/null; then
    [[ $1 = rename ]] && image=$2 || image=$3
    snap=(--no-progress "$image@csi-snap-$SNAP" "${@: -11}")
    case $WHEN in
    before) "$REAL" snap create "${snap[@]}" && exec "$REAL" "$@" ;;
    gone) "$REAL" snap rm "${snap[@]}" && exec "$REAL" "$@" ;;
    esac
fi
exec "$RBD" "$@""#;

/// The uuid of no request: it is found as any other of the driver's.
const SNAP: &str = "c2a7a6de-7d63-5f0b-9a55-6b3f6d4b2a10";

fn twin(when: &str, snap: &str) -> String {
    format!("WHEN={when}\nSNAP={snap}\n{TWIN}")
}

#[tokio::test]
async fn a_snapshot_that_a_twin_takes_while_the_volume_goes_is_kept() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(&twin("before", SNAP))).await;
    let id = volume(&driver, &unique("pvc")).await;
    driver.delete(&id).await.expect("DeleteVolume");
    let tombstone = scene.corner.tombstones().pop().expect("it came back as a tombstone");
    assert_eq!(scene.corner.snapshots(&tombstone), [format!("csi-snap-{SNAP}")]);
    driver.delete(&id).await.expect("the same again");
    let listed = driver.list_snaps(of_volume(&id)).await.expect("ListSnapshots");
    let twins = listed.entries[0].snapshot.clone().expect("a snapshot").snapshot_id;
    driver.unsnap(&twins).await.expect("DeleteSnapshot");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_volume_whose_last_snapshot_a_twin_removes_while_it_goes_leaves_nothing() {
    let scene = Scene::new();
    let plain = scene.start().await;
    let id = volume(&plain, &unique("pvc")).await;
    let snapshot = plain.snap("n", &id).await.expect("CreateSnapshot");
    let wrapper = scene.wrapper(&twin("gone", &uuid(&snapshot.snapshot_id)));
    let driver = scene.on_node("node-b", "rbd").wrapped(&wrapper).start().await;
    driver.delete(&id).await.expect("DeleteVolume");
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_snapshot_in_the_trash_is_found_by_every_call_that_asks_for_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let id = volume(&driver, &unique("pvc")).await;
    let snapshot = driver.snap("n", &id).await.expect("CreateSnapshot");
    let to_trash = || run("rbd", &["trash", "mv", &scene.corner.spec(&image(&id))]);
    to_trash();
    assert_eq!(driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
    let tombstone = scene.corner.tombstones().pop().expect("a tombstone");
    run("rbd", &["rename", &scene.corner.spec(&tombstone), &scene.corner.spec(&image(&id))]);
    to_trash();
    assert_eq!(driver.snap("n", &id).await.expect("CreateSnapshot"), snapshot);
    driver.delete(&id).await.expect("DeleteVolume");
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

/// The two states that a killed `rbd rename` leaves (both seen), with what it has for each name.
async fn half_renamed(listed_as_new: bool) {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=4s").start().await;
    let name = unique("pvc");
    let id = volume(&driver, &name).await;
    let snapshot = driver.snap("n", &id).await.expect("CreateSnapshot");
    let image_id =
        scene.corner.info(&image(&id)).expect("an image")["id"].as_str().expect("an id").to_owned();
    let tombstone = format!("csi-del-{}-{image_id}", &id[id.len() - 36..]);
    let (old, new) = (format!("rbd_id.{}", image(&id)), format!("rbd_id.{tombstone}"));
    let file = scene.path("id").display().to_string();
    let rados = |args: &[&str]| {
        run("rados", &[&["--pool", "rbd", "--namespace", &scene.corner.namespace], args].concat())
    };
    rados(&["get", &old, &file]);
    if listed_as_new {
        run("rbd", &["rename", &scene.corner.spec(&image(&id)), &scene.corner.spec(&tombstone)]);
        rados(&["put", &old, &file]);
        // A new volume of this name is a new one, not the tombstone.
        let again = volume(&driver, &name).await;
        assert_eq!((again.as_str(), scene.corner.snapshots(&image(&id)).len()), (id.as_str(), 0));
        driver.delete(&id).await.expect("DeleteVolume");
        rados(&["put", &old, &file]);
    } else {
        rados(&["put", &new, &file]);
        check(driver.delete(&id).await, Code::Aborted, "csi-del-");
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    }
    driver.delete(&id).await.expect("DeleteVolume");
    assert_eq!(scene.corner.images(), [tombstone].into());
    assert!(!scene.corner.has_id(&image(&id)));
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_rename_killed_before_the_new_name_is_listed_is_done_again() {
    half_renamed(false).await;
}

#[tokio::test]
async fn a_rename_killed_before_the_old_name_is_gone_is_finished() {
    half_renamed(true).await;
}
