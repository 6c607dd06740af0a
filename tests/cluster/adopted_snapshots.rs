//! Snapshots that ceph-csi made: images of their own, with ids in the form of a volume's.

use tonic::Code;

use crate::ceph_csi::{self, Made, SIZE, left, life, nothing_is_left};
use crate::common::csi::{
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, GetSnapshotRequest,
    ListSnapshotsRequest, Snapshot,
};
use crate::common::growth::pattern;
use crate::common::life::{Life, mount};
use crate::common::sight::eventually;
use crate::common::tools::{Answer, check, run, twice, unique};
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene};
use crate::lab::POOL;
use crate::life::request;

async fn delete(driver: &Driver, id: &str) -> Answer {
    let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), secrets: request::secrets() };
    driver.controller().delete_snapshot(request).await.map(drop)
}

async fn get(driver: &Driver, id: &str) -> Answer<Snapshot> {
    let request = GetSnapshotRequest { snapshot_id: id.to_owned(), secrets: request::secrets() };
    let answer = driver.controller().get_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.expect("a snapshot"))
}

/// The ids that are listed.
async fn list(driver: &Driver, id: &str, source: &str) -> Vec<String> {
    let request = ListSnapshotsRequest {
        snapshot_id: id.to_owned(),
        source_volume_id: source.to_owned(),
        secrets: request::secrets(),
        ..ListSnapshotsRequest::default()
    };
    let response = driver.controller().list_snapshots(request).await.expect("ListSnapshots").into_inner();
    let entries = response.entries.into_iter().filter_map(|entry| entry.snapshot);
    entries.map(|snapshot| snapshot.snapshot_id).collect()
}

#[tokio::test]
async fn a_snapshot_is_told_by_its_id_with_the_volume_that_it_was_taken_of() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (volume, other) = (ceph_csi::volume(&scene), ceph_csi::volume(&scene));
    for prefix in ["csi-snap-", "team-b-"] {
        let made = ceph_csi::snapshot_as(&scene, &volume, prefix);
        let snapshot = get(&driver, &made.id).await.expect("GetSnapshot");
        assert_eq!((&snapshot.snapshot_id, &snapshot.source_volume_id), (&made.id, &volume.id));
        assert_eq!((snapshot.size_bytes.unsigned_abs(), snapshot.ready_to_use), (SIZE, true));
        let taken = snapshot.creation_time.expect("a time").seconds.unsigned_abs();
        let age = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs().checked_sub(taken);
        assert!(age.is_some_and(|age| age < 600), "taken {age:?} s ago");
        assert_eq!(list(&driver, &made.id, "").await, std::slice::from_ref(&made.id));
        assert_eq!(list(&driver, &made.id, &volume.id).await, std::slice::from_ref(&made.id));
        assert_eq!(list(&driver, &made.id, &other.id).await, Vec::<String>::new());
    }
    check(get(&driver, &volume.id).await, Code::NotFound, &volume.id);
}

/// Its journal lost, its parent tells; the parent gone too, the answer is still one that the CO takes.
#[tokio::test]
async fn a_snapshot_without_a_journal_is_told_all_the_same() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = ceph_csi::volume(&scene);
    let made = ceph_csi::snapshot(&scene, &volume);
    ceph_csi::rados(&scene, POOL, &["rm", &format!("csi.snap.{}", made.uuid)]);
    let source = || async { get(&driver, &made.id).await.expect("GetSnapshot").source_volume_id };
    assert_eq!(source().await, volume.id);
    run("rbd", &["flatten", "--no-progress", &scene.corner.spec(&made.image)]);
    assert_eq!(source().await, made.id);
}

#[tokio::test]
async fn a_deleted_snapshot_leaves_nothing_but_the_volumes_restored_from_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = ceph_csi::volume(&scene);
    let before = left(&scene);
    for prefix in ["csi-snap-", "team-b-"] {
        let made = ceph_csi::snapshot_as(&scene, &volume, prefix);
        twice(|| delete(&driver, &made.id)).await;
        check(get(&driver, &made.id).await, Code::NotFound, &made.id);
    }
    eventually("what was there before", || left(&scene) == before).await;
    let data = pattern(1, 8);
    let source = life(&scene, &driver, &volume, mount("ext4")).filled(&driver, &data).await;
    let made = ceph_csi::snapshot(&scene, &volume);
    let restored = ceph_csi::restored(&scene, &made);
    twice(|| delete(&driver, &made.id)).await;
    driver.delete(&source.id).await.expect("DeleteVolume");
    assert_eq!(scene.corner.images(), [restored.image.clone()].into());
    let life = life(&scene, &driver, &restored, mount("ext4"));
    assert!(life.content(&driver, data.len()).await == data, "a restored volume lost its data");
    driver.delete(&life.id).await.expect("DeleteVolume");
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_snapshot_that_somebody_made_of_a_snapshot_s_image_keeps_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::snapshot(&scene, &ceph_csi::volume(&scene));
    let mine = scene.corner.spec(&format!("{}@mine", made.image));
    run("rbd", &["snap", "create", "--no-progress", &mine]);
    check(delete(&driver, &made.id).await, Code::FailedPrecondition, "[\"mine\"]");
    get(&driver, &made.id).await.expect("it is whole still");
    run("rbd", &["snap", "rm", "--no-progress", &mine]);
    delete(&driver, &made.id).await.expect("DeleteSnapshot");
}

/// Kills the program that writes for the `$STEP`th time, before it runs. What the trash does behind the answer counts
/// for nothing.
const KILL: &str = r#"case "$*" in
"rmomapkey csi.rbd.index"*) exec "$PROGRAM" "$@" ;;
"snap rm"* | "trash mv"* | *setomapval* | *rmomapkey* | rm*) ;;
*) exec "$PROGRAM" "$@" ;;
esac
echo "$*" >>"$CALLS"
[ "$(wc -l <"$CALLS")" != "$(cat "$CALLS.step")" ] || kill -9 $$
exec "$PROGRAM" "$@""#;

/// What deletes this is killed at each of its steps in turn, and then asked again.
async fn survives_kills(lay_down: impl Fn(&Scene) -> Made, delete: impl AsyncFn(&Driver, &Made) -> Answer) {
    let scene = Scene::new();
    let wrapper = Wrapper::new(scene.path("wrapper"), &["rbd", "rados"], &script());
    let driver = scene.start_with(&wrapper).await;
    let mut killed = 0;
    for step in 1..20 {
        let made = lay_down(&scene);
        std::fs::write(wrapper.folder().join("calls.step"), step.to_string()).expect("a step");
        wrapper.forget();
        let first = delete(&driver, &made).await;
        std::fs::write(wrapper.folder().join("calls.step"), "0").expect("no step");
        delete(&driver, &made).await.unwrap_or_else(|error| panic!("killed at step {step}: {error:?}"));
        assert!(!scene.corner.images().contains(&made.image), "killed at step {step}");
        if first.is_ok() {
            break;
        }
        killed += 1;
    }
    assert!(killed >= 4, "only {killed} steps were killed: {:?}", wrapper.calls());
    eventually("no name of it", || left(&scene).iter().all(|left| !left.contains("csi."))).await;
}

fn script() -> String {
    let find = |name: &str| run("sh", &["-c", &format!("command -v {name}")]).trim().to_owned();
    format!("PROGRAM={}\n[ \"${{0##*/}}\" = rbd ] || PROGRAM={}\n{KILL}", find("rbd"), find("rados"))
}

#[tokio::test]
async fn a_deletion_of_a_snapshot_killed_at_any_step_is_finished_by_the_next() {
    let lay_down = |scene: &Scene| {
        let volume = ceph_csi::volume(scene);
        let made = ceph_csi::snapshot(scene, &volume);
        ceph_csi::forgotten(scene, &volume);
        made
    };
    survives_kills(lay_down, async |driver, made| delete(driver, &made.id).await).await;
}

#[tokio::test]
async fn a_deletion_of_a_clone_killed_at_any_step_is_finished_by_the_next() {
    let lay_down = |scene: &Scene| {
        let volume = ceph_csi::volume(scene);
        let made = ceph_csi::clone(scene, &volume);
        ceph_csi::forgotten(scene, &volume);
        made
    };
    survives_kills(lay_down, async |driver, made| driver.delete(&made.id).await).await;
}

/// A native snapshot of a volume that ceph-csi made: its names go with the volume, its image with the snapshot.
#[tokio::test]
async fn a_volume_with_a_native_snapshot_goes_with_its_names_and_the_snapshot_stays() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for made in [ceph_csi::volume(&scene), ceph_csi::volume_with_prefix(&scene, "team-a-"), {
        ceph_csi::clone(&scene, &ceph_csi::volume(&scene))
    }] {
        let request = CreateSnapshotRequest {
            name: unique("snapshot"),
            source_volume_id: made.id.clone(),
            secrets: request::secrets(),
            ..CreateSnapshotRequest::default()
        };
        let answer = driver.controller().create_snapshot(request).await.expect("CreateSnapshot");
        let snapshot = answer.into_inner().snapshot.expect("a snapshot");
        assert_eq!(snapshot.source_volume_id, made.id);
        twice(|| driver.delete(&made.id)).await;
        assert!(!scene.corner.has_journal(&made.uuid), "its journal is left");
        let found = get(&driver, &snapshot.snapshot_id).await.expect("GetSnapshot");
        assert_eq!(found, snapshot);
        twice(|| delete(&driver, &snapshot.snapshot_id)).await;
        eventually("no image", || !left(&scene).iter().any(|left| left.contains(&made.uuid))).await;
    }
}

fn asked() -> CreateVolumeRequest {
    request::create(&unique("pvc"), 320, mount("ext4"))
}

#[tokio::test]
async fn a_volume_is_made_from_a_snapshot_and_from_a_volume_and_outlives_both() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = ceph_csi::volume(&scene);
    let data = pattern(1, 9);
    let source = life(&scene, &driver, &volume, mount("ext4")).filled(&driver, &data).await;
    let snapshot = ceph_csi::snapshot(&scene, &volume);
    let of_volume = asked().of_volume(&volume.id);
    let mut made = Vec::new();
    for request in [asked().of_snapshot(&snapshot.id), of_volume] {
        let volume = twice(|| driver.create(request.clone())).await;
        assert_eq!(volume.content_source, request.volume_content_source);
        made.push(Life::create_as(&scene, &driver, request).await);
    }
    twice(|| delete(&driver, &snapshot.id)).await;
    twice(|| driver.delete(&source.id)).await;
    for life in &made {
        assert!(life.content(&driver, data.len()).await == data, "{} lost its source's data", life.image);
        twice(|| driver.delete(&life.id)).await;
    }
    check(driver.create(asked().of_snapshot(&snapshot.id)).await, Code::NotFound, &snapshot.id);
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_name_that_ceph_csi_restored_or_cloned_a_volume_for_gets_that_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = ceph_csi::volume(&scene);
    let snapshot = ceph_csi::snapshot(&scene, &volume);
    let (restored, clone) = (ceph_csi::restored(&scene, &snapshot), ceph_csi::clone(&scene, &volume));
    let of_volume = asked().of_volume(&volume.id);
    for (made, request) in [(&restored, asked().of_snapshot(&snapshot.id)), (&clone, of_volume.clone())] {
        let request = CreateVolumeRequest { name: made.name.clone(), ..request };
        assert_eq!(twice(|| driver.create(request.clone())).await.volume_id, made.id);
    }
    let mixed = CreateVolumeRequest { name: restored.name.clone(), ..of_volume };
    check(driver.create(mixed).await, Code::AlreadyExists, &snapshot.image);
}
