//! Snapshots, volumes restored from them, clones: the data of their moment, whatever happens to where it came from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Code;

use crate::asks;
use crate::common::csi::volume_content_source::Type as SourceType;
use crate::common::csi::{Snapshot, VolumeCapability};
use crate::common::driver::Driver;
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::tools::{check, run, twice, unique};
use crate::harness::Scene;

fn kinds() -> [VolumeCapability; 3] {
    [mount("ext4"), mount("xfs"), block()]
}

/// Restores at the size of the source.
pub(crate) async fn restored(scene: &Scene, driver: &Driver, snapshot: &Snapshot, source: &Life) -> Life {
    let request = asks::any(source.capability.usual_mib(), source.capability.clone());
    Life::create_as(scene, driver, request.of_snapshot(&snapshot.snapshot_id)).await
}

pub(crate) async fn cloned(scene: &Scene, driver: &Driver, source: &Life) -> Life {
    let request = asks::any(source.capability.usual_mib(), source.capability.clone());
    Life::create_as(scene, driver, request.of_volume(&source.id)).await
}

#[tokio::test]
async fn a_snapshot_keeps_what_was_there() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in kinds() {
        let (before, after) = (pattern(2, 1), pattern(2, 2));
        let source = Life::create(&scene, &driver, capability.clone()).await.filled(&driver, &before).await;
        let name = unique("snap");
        let snapshot = twice(|| driver.snapshot(&name, &source.id)).await;
        assert!(snapshot.ready_to_use && snapshot.creation_time.is_some(), "{snapshot:?}");
        assert_eq!(snapshot.size_bytes, capability.usual_mib() << 20);
        assert_eq!(snapshot.source_volume_id, source.id);
        assert!(snapshot.snapshot_id.starts_with("0001-0005-local-"), "{snapshot:?}");
        let source = source.filled(&driver, &after).await;
        let restored = restored(&scene, &driver, &snapshot, &source).await;
        assert!(restored.content(&driver, before.len()).await == before, "other data was restored");
        assert!(source.content(&driver, after.len()).await == after, "the source has other data");
        driver.delete(&restored.id).await.expect("DeleteVolume");
        twice(|| driver.delete_snapshot(&snapshot.snapshot_id)).await;
        driver.delete(&source.id).await.expect("DeleteVolume");
        scene.assert_empty();
    }
}

#[tokio::test]
async fn a_snapshot_of_a_mounted_filesystem_holds_what_was_written_before_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let (before, after) = (pattern(8, 3), pattern(8, 4));
        let source = Life::create(&scene, &driver, mount(fs_type)).await;
        source.up(&driver).await;
        // Not synced: what is still in memory belongs to the snapshot too.
        std::fs::write(source.place(), &before).expect("a pod writes");
        let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
        std::fs::write(source.place(), &after).expect("it goes on writing");
        let copy = restored(&scene, &driver, &snapshot, &source).await;
        assert!(copy.content(&driver, before.len()).await == before, "{fs_type}: other data was restored");
        assert!(source.read(after.len()) == after);
        source.down(&driver).await;
    }
}

/// Whoever came second would thaw what the first has frozen.
#[tokio::test]
async fn copies_of_one_mounted_source_at_once_are_whole() {
    let scene = Scene::on("ext4", 2048);
    let script = r#"PATH=${PATH#*:}
[[ " $* " == *" --reflink=always "* ]] || sleep 0.7
exec "${0##*/}" "$@""#;
    let driver = scene.driver().wrapped(&scene.wrapper(&["cp"], script)).start().await;
    let source = Life::create(&scene, &driver, mount("ext4")).await;
    source.up(&driver).await;
    let writing = Arc::new(AtomicBool::new(true));
    let writer = std::thread::spawn({
        let (folder, writing) = (source.target.clone(), writing.clone());
        move || {
            for count in (0..200).cycle().take_while(|_| writing.load(Ordering::Relaxed)) {
                let file = folder.join(format!("file-{count}"));
                std::fs::write(&file, vec![7; 20_000]).expect("a pod writes");
                let _ = std::fs::remove_file(folder.join(format!("file-{}", (count + 150) % 200)));
            }
        }
    });
    let snapshots = tokio::join!(
        driver.snapshot("a", &source.id),
        driver.snapshot("b", &source.id),
        driver.snapshot("c", &source.id)
    );
    writing.store(false, Ordering::Relaxed);
    writer.join().expect("the pod was never stopped");
    for snapshot in [snapshots.0, snapshots.1, snapshots.2] {
        let id = snapshot.expect("CreateSnapshot").snapshot_id;
        let uuid = &id[id.len() - 59..id.len() - 23];
        run("e2fsck", &["-f", "-n", &scene.snapshot(uuid).join("image").to_string_lossy()]);
        driver.delete_snapshot(&id).await.expect("DeleteSnapshot");
    }
    source.down(&driver).await;
}

/// The copy takes a while; nobody may write to the device meanwhile.
#[tokio::test]
async fn a_staged_block_volume_is_not_copied_without_reflinks() {
    let scene = Scene::on("ext4", 512);
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    source.up(&driver).await;
    check(driver.snapshot("one", &source.id).await, Code::FailedPrecondition, &source.uuid());
    let clone = asks::any(64, block()).of_volume(&source.id);
    check(driver.create(clone.clone()).await, Code::FailedPrecondition, &source.uuid());
    source.write(b"still written to").expect("a pod writes");
    source.down(&driver).await;
    scene.assert_at_rest();
    let snapshot = driver.snapshot("one", &source.id).await.expect("CreateSnapshot");
    driver.create(clone).await.expect("a clone of an unstaged volume");
    driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
}

#[tokio::test]
async fn a_clone_and_a_clone_of_it_go_their_own_ways() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in kinds() {
        let of = |seed| pattern(1, seed);
        let first = Life::create(&scene, &driver, capability.clone()).await.filled(&driver, &of(1)).await;
        let second = cloned(&scene, &driver, &first).await;
        let first = first.filled(&driver, &of(2)).await;
        let third = cloned(&scene, &driver, &second).await;
        let second = second.filled(&driver, &of(3)).await;
        for (life, seed) in [(&first, 2), (&second, 3), (&third, 1)] {
            assert!(life.content(&driver, of(seed).len()).await == of(seed), "not the data of {seed}");
        }
        for life in [second, first] {
            driver.delete(&life.id).await.expect("DeleteVolume of a source");
        }
        assert!(third.content(&driver, of(1).len()).await == of(1));
        driver.delete(&third.id).await.expect("DeleteVolume");
        scene.assert_empty();
    }
}

/// Each clone of a filesystem has the UUID of its source, and both are mounted at once.
#[tokio::test]
async fn a_source_and_its_clone_are_mounted_side_by_side() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let source = Life::create(&scene, &driver, mount(fs_type)).await;
        source.up(&driver).await;
        source.write(b"same").expect("a pod writes");
        let clone = cloned(&scene, &driver, &source).await;
        clone.up(&driver).await;
        clone.write(b"mine").expect("a pod writes");
        assert_eq!((source.read(4), clone.read(4)), (b"same".into(), b"mine".into()));
        clone.down(&driver).await;
        source.down(&driver).await;
    }
}

#[tokio::test]
async fn a_larger_restore_has_a_filesystem_of_its_size() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in kinds() {
        let data = pattern(2, 5);
        let mib = capability.usual_mib();
        let source = Life::create(&scene, &driver, capability.clone()).await.filled(&driver, &data).await;
        let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
        let larger = || asks::any(2 * mib, capability.clone());
        for request in [larger().of_snapshot(&snapshot.snapshot_id), larger().of_volume(&source.id)] {
            let volume = twice(|| driver.create(request.clone())).await;
            assert_eq!(volume.capacity_bytes, (2 * mib) << 20);
            let life = Life::of(&scene, &volume, source.capability.clone());
            life.up(&driver).await;
            life.assert_stats(&driver, 2 * mib.unsigned_abs() * MIB).await;
            assert!(life.read(data.len()) == data);
            life.down(&driver).await;
        }
    }
}

#[tokio::test]
async fn sizes_that_a_copy_cannot_have() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    let small = asks::any(64, block()).sized(1 << 20, 32 << 20);
    for request in [small.clone().of_snapshot(&snapshot.snapshot_id), small.of_volume(&source.id)] {
        check(driver.create(request).await, Code::OutOfRange, "67108864");
    }
    assert_eq!(scene.volumes(), [source.uuid()].into());
    scene.assert_at_rest();
}

#[tokio::test]
async fn a_deleted_source_leaves_its_snapshots_whole() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let data = pattern(1, 6);
    let source = Life::create(&scene, &driver, mount("ext4")).await.filled(&driver, &data).await;
    let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    driver.delete(&source.id).await.expect("DeleteVolume with a snapshot");
    assert!(scene.volumes().is_empty());
    let driver = driver.killed_and_started().await;
    let copy = restored(&scene, &driver, &snapshot, &source).await;
    driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot with a restored volume");
    assert!(copy.content(&driver, data.len()).await == data);
    driver.delete(&copy.id).await.expect("DeleteVolume");
    scene.assert_empty();
}

#[tokio::test]
async fn a_copy_says_what_it_was_made_from() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
    let request = asks::any(64, block());
    let volume = driver.create(request.clone().of_snapshot(&snapshot.snapshot_id)).await.expect("a restore");
    let named = volume.content_source.and_then(|source| source.r#type);
    assert!(matches!(&named, Some(SourceType::Snapshot(named)) if named.snapshot_id == snapshot.snapshot_id));
    // The same name from elsewhere, or from nowhere, is another volume.
    check(driver.create(request.clone().of_volume(&source.id)).await, Code::AlreadyExists, &request.name);
    check(driver.create(request.clone()).await, Code::AlreadyExists, &request.name);
    let clone = driver.create(asks::any(64, block()).of_volume(&source.id)).await.expect("a clone");
    let named = clone.content_source.and_then(|source| source.r#type);
    assert!(matches!(&named, Some(SourceType::Volume(named)) if named.volume_id == source.id));
}

#[tokio::test]
async fn names_and_ids_of_snapshots_that_cannot_be() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (one, two) =
        (Life::create(&scene, &driver, block()).await, Life::create(&scene, &driver, block()).await);
    let name = unique("snap");
    let snapshot = driver.snapshot(&name, &one.id).await.expect("CreateSnapshot");
    check(driver.snapshot(&name, &two.id).await, Code::AlreadyExists, &name);
    check(driver.snapshot("", &one.id).await, Code::InvalidArgument, "name");
    check(driver.snapshot("s", "").await, Code::InvalidArgument, "source_volume_id");
    driver.delete_snapshot("malformed").await.expect("DeleteSnapshot of a malformed id");
    check(driver.delete_snapshot("").await, Code::InvalidArgument, "snapshot_id");
    driver.delete_snapshot(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    let restore = asks::any(64, block());
    for id in ["malformed", &snapshot.snapshot_id] {
        check(driver.create(restore.clone().of_snapshot(id)).await, Code::NotFound, id);
    }
    let moved = driver.snapshot(&name, &two.id).await.expect("a name that is free again");
    assert_eq!(moved.source_volume_id, two.id);
    assert_ne!(moved.snapshot_id, snapshot.snapshot_id);
}
