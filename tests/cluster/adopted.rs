//! Volumes that ceph-csi made, and static ones: taken over in use, and taken through every call to their end. Nothing of
//! them is left behind, and nothing of others is touched.

use std::fs;

use tonic::Code;

use crate::ceph_csi::{self, Made, SIZE, left, life, nothing_is_left};
use crate::common::csi::{CreateSnapshotRequest, ValidateVolumeCapabilitiesRequest};
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, mount};
use crate::common::tools::{check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::lab::POOL;
use crate::life::request;

const GROWN: i64 = 512 << 20;

/// Staged and in use under ceph-csi with such a stash, then this driver's.
async fn taken_over(scene: &Scene, fs_type: &str, stash: impl Fn(&Life, &str)) {
    let driver = scene.start().await;
    let made = ceph_csi::volume(scene);
    let life = life(scene, &driver, &made, mount(fs_type));
    let device = ceph_csi::staged(scene, &driver, &life, fs_type);
    let data = pattern(2, 5);
    life.write(&data).expect("a pod writes");
    stash(&life, &device);
    life.assert_stats(&driver, SIZE).await;
    twice(|| life.stage(&driver)).await;
    twice(|| life.publish(&driver)).await;
    assert_eq!(driver.mapped(), std::slice::from_ref(&life.image));
    twice(|| life.unpublish(&driver)).await;
    twice(|| life.unstage(&driver)).await;
    life.assert_gone_from(&driver);
    twice(|| life.detach(&driver, "node-a")).await;
    assert!(life.content(&driver, data.len()).await == data, "staged anew, it shows other data");
    twice(|| driver.delete(&life.id)).await;
    nothing_is_left(scene).await;
}

#[tokio::test]
async fn a_volume_in_use_is_taken_over() {
    for fs_type in ["ext4", "xfs"] {
        taken_over(&Scene::new(), fs_type, |_, _| {}).await;
    }
}

#[tokio::test]
async fn a_volume_in_use_with_a_lost_or_torn_stash_is_taken_over() {
    let file = |life: &Life| life.staging.join("image-meta.json");
    taken_over(&Scene::new(), "ext4", |life, _| fs::remove_file(file(life)).expect("deleted")).await;
    taken_over(&Scene::new(), "ext4", |life, _| {
        let whole = fs::read(file(life)).expect("a stash");
        fs::write(file(life), &whole[..whole.len() / 2]).expect("torn");
    })
    .await;
}

/// The first two know no namespace, so this is in the pool itself, which others share.
#[tokio::test]
async fn each_release_s_stash_is_read() {
    let scene = Scene::shared();
    let driver = scene.start().await;
    for version in 1..=3 {
        let made = ceph_csi::volume(&scene);
        let life = life(&scene, &driver, &made, mount("ext4"));
        let device = ceph_csi::staged(&scene, &driver, &life, "ext4");
        ceph_csi::write_stash(&life, &ceph_csi::stash_of(&scene, &life, version, &device));
        life.down(&driver).await;
        life.assert_gone_from(&driver);
        driver.delete(&life.id).await.expect("DeleteVolume");
        assert!(!ceph_csi::names(&scene, POOL, "csi.volumes.default").contains(&key(&made)));
    }
}

fn key(made: &Made) -> String {
    format!("csi.volume.{}", made.name)
}

/// Every call that names a volume by its id alone, then its way through a node.
async fn lives_its_whole_life(scene: &Scene, driver: &Driver, made: &Made) {
    let life = life(scene, driver, made, mount("xfs"));
    twice(|| life.attach(driver, "node-a")).await;
    validate(driver, made).await;
    life.up(driver).await;
    let data = pattern(1, 4);
    life.write(&data).expect("a pod writes");
    assert_eq!(twice(|| life.expand(driver, GROWN)).await, (GROWN, true));
    assert_eq!(twice(|| life.expand_at(driver, &life.target, GROWN)).await, GROWN);
    life.assert_stats(driver, GROWN.unsigned_abs()).await;
    life.down(driver).await;
    assert!(life.content(driver, data.len()).await == data);
    check(driver.delete(&life.id).await, Code::FailedPrecondition, "published on node \"node-a\"");
    twice(|| life.detach(driver, "node-a")).await;
    twice(|| driver.delete(&life.id)).await;
}

async fn validate(driver: &Driver, made: &Made) {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: made.id.clone(),
        volume_capabilities: vec![mount("xfs")],
        volume_context: made.context.clone(),
        secrets: request::secrets(),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = driver.controller().validate_volume_capabilities(request).await;
    assert!(answer.expect("ValidateVolumeCapabilities").into_inner().confirmed.is_some());
}

#[tokio::test]
async fn a_volume_lives_its_whole_life_and_no_name_is_left() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let bystander = ceph_csi::volume(&scene);
    let before = left(&scene);
    lives_its_whole_life(&scene, &driver, &ceph_csi::volume(&scene)).await;
    crate::common::sight::eventually("what was there before", || left(&scene) == before).await;
    driver.delete(&bystander.id).await.expect("DeleteVolume");
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_volume_with_a_prefix_of_its_own_is_found_by_its_id() {
    let scene = Scene::new();
    let driver = scene.start().await;
    lives_its_whole_life(&scene, &driver, &ceph_csi::volume_with_prefix(&scene, "team-a-")).await;
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_volume_whose_journal_is_in_another_pool() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::volume_journalled_elsewhere(&scene);
    assert_eq!(ceph_csi::names(&scene, ceph_csi::JOURNAL, "csi.volumes.default"), [key(&made)]);
    lives_its_whole_life(&scene, &driver, &made).await;
    nothing_is_left(&scene).await;
}

/// csi-translation-lib calls it static, and names it by an id all the same.
#[tokio::test]
async fn a_volume_of_the_in_tree_driver_lives_its_whole_life() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::migrated(&scene);
    lives_its_whole_life(&scene, &driver, &made).await;
    nothing_is_left(&scene).await;
}

/// A name that somebody was given anew is not the deleted volume's any more.
#[tokio::test]
async fn a_name_that_means_another_volume_by_now_stays() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (first, second) = (ceph_csi::volume(&scene), ceph_csi::volume(&scene));
    let args = ["setomapval", "csi.volumes.default", &key(&first), &second.uuid];
    ceph_csi::rados(&scene, POOL, &args);
    driver.delete(&first.id).await.expect("DeleteVolume");
    assert!(ceph_csi::names(&scene, POOL, "csi.volumes.default").contains(&key(&first)));
    assert!(!scene.corner.has_journal(&first.uuid) && scene.corner.has_journal(&second.uuid));
}

#[tokio::test]
async fn a_clone_takes_its_temporary_image_with_it_and_outlives_its_source() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = ceph_csi::volume(&scene);
    let from = life(&scene, &driver, &source, mount("ext4"));
    let data = pattern(1, 6);
    let from = from.filled(&driver, &data).await;
    let (clone, other) = (ceph_csi::clone(&scene, &source), ceph_csi::clone(&scene, &source));
    twice(|| driver.delete(&from.id)).await;
    let life = life(&scene, &driver, &clone, mount("ext4"));
    assert!(life.content(&driver, data.len()).await == data, "a clone lost its source's data");
    twice(|| driver.delete(&clone.id)).await;
    let images = [other.image.clone(), format!("{}-temp", other.image)];
    assert_eq!(scene.corner.images(), images.into());
    twice(|| driver.delete(&other.id)).await;
    nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_temporary_image_goes_also_where_a_kill_left_it_alone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let clone = ceph_csi::clone(&scene, &ceph_csi::volume(&scene));
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&clone.image)]);
    driver.delete(&clone.id).await.expect("DeleteVolume");
    assert!(!scene.corner.has(&format!("{}-temp", clone.image)));
    assert!(!scene.corner.has_journal(&clone.uuid));
}

#[tokio::test]
async fn a_snapshot_that_somebody_made_of_a_temporary_image_keeps_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let clone = ceph_csi::clone(&scene, &ceph_csi::volume(&scene));
    let mine = scene.corner.spec(&format!("{}-temp@mine", clone.image));
    run("rbd", &["snap", "create", "--no-progress", &mine]);
    check(driver.delete(&clone.id).await, Code::FailedPrecondition, "[\"mine\"]");
    run("rbd", &["snap", "rm", "--no-progress", &mine]);
    driver.delete(&clone.id).await.expect("DeleteVolume");
    assert!(!scene.corner.has_journal(&clone.uuid));
}

#[tokio::test]
async fn a_volume_goes_before_the_snapshots_that_ceph_csi_took_of_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = ceph_csi::volume(&scene);
    let snapshot = ceph_csi::snapshot(&scene, &volume);
    let restored = ceph_csi::restored(&scene, &snapshot);
    twice(|| driver.delete(&volume.id)).await;
    assert_eq!(scene.corner.images(), [snapshot.image.clone(), restored.image.clone()].into());
    lives_its_whole_life(&scene, &driver, &restored).await;
    assert_eq!(scene.corner.images(), [snapshot.image].into());
}

#[tokio::test]
async fn a_static_volume_is_used_and_grown_but_never_formatted_or_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::static_volume(&scene);
    let life = life(&scene, &driver, &made, mount("xfs"));
    twice(|| life.attach(&driver, "node-a")).await;
    validate(&driver, &made).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "never formatted");
    life.assert_gone_from(&driver);
    assert!(scene.corner.is_empty(&life.image));
    ceph_csi::staged(&scene, &driver, &life, "xfs");
    life.down(&driver).await;
    life.up(&driver).await;
    let data = pattern(1, 7);
    life.write(&data).expect("a pod writes");
    run("rbd", &["resize", "--no-progress", "--size", "512M", &scene.corner.spec(&life.image)]);
    assert_eq!(twice(|| life.expand_at(&driver, &life.target, 0)).await, GROWN);
    assert!(life.shown_size(&driver).await > 400 * MIB && life.read(data.len()) == data);
    life.down(&driver).await;
    twice(|| life.detach(&driver, "node-a")).await;
    twice(|| driver.delete(&life.id)).await;
    assert_eq!(scene.corner.images(), [life.image.clone()].into());
    assert!(driver.log().contains("nothing to delete"), "{}", driver.log());
}

/// Those requests carry no volume context, without which nobody can tell its pool.
#[tokio::test]
async fn what_cannot_be_done_to_a_static_volume_is_refused_in_words() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let made = ceph_csi::static_volume(&scene);
    let life = life(&scene, &driver, &made, mount("ext4"));
    check(life.expand(&driver, GROWN).await, Code::NotFound, "static volume");
    let snapshot = CreateSnapshotRequest {
        name: unique("snapshot"),
        source_volume_id: made.id.clone(),
        secrets: request::secrets(),
        ..CreateSnapshotRequest::default()
    };
    check(driver.controller().create_snapshot(snapshot).await, Code::NotFound, "static volume");
}

/// Where it is killed, ceph-csi leaves the snapshot that it takes on a volume for a moment. No request ever names it.
#[tokio::test]
async fn a_snapshot_that_a_killed_ceph_csi_left_does_not_keep_its_volume() {
    for (kind, temp) in [("csi-snap-", ""), ("csi-vol-", "-temp")] {
        let scene = Scene::new();
        let driver = scene.driver().flag("--command-timeout=4s").start().await;
        let (volume, cloned) = (ceph_csi::volume(&scene), ceph_csi::volume(&scene));
        let name = format!("{kind}{}{temp}", ceph_csi::reservation(&scene).uuid);
        let left = |made: &Made| scene.corner.spec(&format!("{}@{name}", made.image));
        for made in [&volume, &cloned] {
            run("rbd", &["snap", "create", "--no-progress", &left(made)]);
        }
        let clone = scene.corner.spec("a-clone");
        run("rbd", &["clone", "--rbd-default-clone-format=2", &left(&cloned), &clone]);
        check(driver.delete(&volume.id).await, Code::Aborted, &name);
        twice(|| driver.delete(&cloned.id)).await;
        tokio::time::sleep(std::time::Duration::from_secs(9)).await;
        twice(|| driver.delete(&volume.id)).await;
        assert_eq!(scene.corner.images(), ["a-clone".to_owned()].into());
        crate::common::sight::eventually("the parent alone", || {
            scene.corner.trash() == [cloned.image.clone()]
        })
        .await;
    }
}
