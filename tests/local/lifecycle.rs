//! A volume's whole life, for each kind of volume: every call asked twice, everything it changes looked at.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use tonic::Code;

use crate::asks;
use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::csi::{CreateVolumeRequest, VolumeCapability};
use crate::common::driver::Driver;
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::{loops_below, stash};
use crate::common::tools::{check, twice};
use crate::harness::{NODE, Scene};

#[tokio::test]
async fn an_ext4_volume_lives_its_whole_life() {
    whole_life(mount("ext4")).await;
}

#[tokio::test]
async fn an_xfs_volume_lives_its_whole_life() {
    whole_life(mount("xfs")).await;
}

#[tokio::test]
async fn a_block_volume_lives_its_whole_life() {
    whole_life(block()).await;
}

async fn whole_life(capability: VolumeCapability) {
    let scene = Scene::new();
    let driver = scene.start().await;
    let size = capability.usual_mib().unsigned_abs() * MIB;
    let life = created(&scene, &driver, asks::any(capability.usual_mib(), capability)).await;
    twice(|| life.attach(&driver, NODE)).await;
    twice(|| life.stage(&driver)).await;
    assert_staged(&scene, &life);
    twice(|| life.publish(&driver)).await;
    let data = pattern(1, 0);
    life.write(&data).expect("a pod writes");
    life.assert_stats(&driver, size).await;
    twice(|| life.unpublish(&driver)).await;
    assert!(life.published().is_empty() && !life.target.exists(), "the target is left");
    twice(|| life.publish(&driver)).await;
    assert!(life.read(data.len()) == data, "published again, it shows other data");
    twice(|| life.unpublish(&driver)).await;
    twice(|| life.unstage(&driver)).await;
    life.assert_gone();
    assert!(life.content(&driver, data.len()).await == data, "staged again, it shows other data");
    twice(|| life.detach(&driver, NODE)).await;
    twice(|| driver.delete(&life.id)).await;
    scene.assert_empty();
}

async fn created(scene: &Scene, driver: &Driver, request: CreateVolumeRequest) -> Life {
    let volume = twice(|| driver.create(request.clone())).await;
    let size = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
    assert_eq!(volume.capacity_bytes, size);
    let life = Life::create_as(scene, driver, request).await;
    assert_eq!(life.id, volume.volume_id);
    assert!(life.id.starts_with("0001-0005-local-"), "{}", life.id);
    assert_eq!(scene.volumes(), [life.uuid()].into());
    let image = std::fs::metadata(&life.image).expect("its image");
    assert_eq!(image.len(), size.unsigned_abs());
    assert!(allocated(&life.image) < MIB, "the image is not sparse");
    scene.assert_at_rest();
    life
}

fn assert_staged(scene: &Scene, life: &Life) {
    let loops = loops_below(&scene.root);
    assert_eq!(loops.len(), 1, "{loops:?}");
    assert_eq!(loops[0].file.to_string_lossy(), life.image);
    let staged = life.staged();
    assert_eq!(staged.len(), 1, "{staged:?}");
    let device = loops[0].device.to_string_lossy();
    assert!(life.capability.is_block() || staged[0].source == device, "{staged:?} is not from {device}");
    assert!(stash(&life.staging).is_some(), "there is no stash");
}

/// Bytes that a file takes.
fn allocated(file: &str) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(file).expect("a file").blocks() * 512
}

#[tokio::test]
async fn a_mode_that_a_pod_sets_stays() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    let mode = || std::fs::metadata(&life.target).expect("the root").permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o777, "a new volume is for pods of any user");
    std::fs::set_permissions(&life.target, std::fs::Permissions::from_mode(0o750)).expect("a pod decides");
    life.down(&driver).await;
    life.up(&driver).await;
    assert_eq!(mode(), 0o750);
    life.down(&driver).await;
}

#[tokio::test]
async fn a_read_only_publish_refuses_writes() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let life = Life::create(&scene, &driver, mount(fs_type)).await.filled(&driver, b"data").await;
        life.stage(&driver).await.expect("NodeStageVolume");
        twice(|| life.publish_at(&driver, &life.target, true)).await;
        assert!(life.published()[0].has("ro"), "{:?}", life.published());
        let error = life.write(b"more").expect_err("a write through a read-only publish");
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(life.read(4), b"data");
        check(life.publish(&driver).await, Code::AlreadyExists, &life.target.display().to_string());
        life.down(&driver).await;
    }
}

#[tokio::test]
async fn a_read_only_block_volume_stops_writes() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await.filled(&driver, b"data").await;
    life.stage(&driver).await.expect("NodeStageVolume");
    check(life.publish_at(&driver, &life.target, true).await, Code::FailedPrecondition, "read-only");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    let reader = life.again(&scene).with(Mode::SingleNodeReaderOnly);
    reader.up(&driver).await;
    assert_eq!(reader.read(4), b"data");
    assert!(reader.write(b"more").is_err(), "a write through a read-only device");
    reader.down(&driver).await;
    assert_eq!(life.content(&driver, 4).await, b"data");
}

#[tokio::test]
async fn publish_before_stage_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    check(life.publish(&driver).await, Code::FailedPrecondition, "not staged");
    life.assert_gone();
}

#[tokio::test]
async fn a_single_writer_has_one_target_and_a_multi_writer_several() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for mode in [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
        for capability in [mount("ext4"), block()] {
            let life = Life::create(&scene, &driver, capability.with(mode)).await;
            life.shows_at_as_many_paths_as(mode, &driver).await;
        }
    }
}

#[tokio::test]
async fn what_is_in_use_is_not_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
        check(driver.delete(&life.id).await, Code::FailedPrecondition, NODE);
        life.stage(&driver).await.expect("NodeStageVolume");
        check(driver.delete(&life.id).await, Code::FailedPrecondition, &life.id);
        check(life.detach(&driver, NODE).await, Code::FailedPrecondition, &life.id);
        life.publish(&driver).await.expect("NodePublishVolume");
        life.write(b"data").expect("a pod writes");
        check(driver.delete(&life.id).await, Code::FailedPrecondition, &life.id);
        life.unpublish(&driver).await.expect("NodeUnpublishVolume");
        life.unstage(&driver).await.expect("NodeUnstageVolume");
        life.detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
        driver.delete(&life.id).await.expect("DeleteVolume");
        scene.assert_empty();
    }
}

/// Staged without ControllerPublishVolume, as COs without that capability do.
#[tokio::test]
async fn what_is_staged_and_not_published_to_a_node_is_not_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    let driver = driver.killed_and_started().await;
    check(driver.delete(&life.id).await, Code::FailedPrecondition, &life.id);
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    driver.delete(&life.id).await.expect("DeleteVolume");
    scene.assert_empty();
}

#[tokio::test]
async fn another_volume_under_the_same_name() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let first = asks::any(64, mount("ext4"));
    let life = Life::create_as(&scene, &driver, first.clone()).await;
    let mib = i64::try_from(MIB).expect("a size");
    for other in [first.clone().sized(128 * mib, 0), first.clone().sized(mib, 32 * mib)] {
        check(driver.create(other).await, Code::AlreadyExists, &first.name);
    }
    let directory = first.clone().with_parameters(&[("volumeType", "directory")]);
    check(driver.create(directory).await, Code::AlreadyExists, &first.name);
    check(driver.create(first.clone().of_volume(&life.id)).await, Code::AlreadyExists, &first.name);
    let within = driver.create(first.sized(mib, 64 * mib)).await.expect("a range that holds its size");
    assert_eq!(within.volume_id, life.id);
    assert_eq!(scene.volumes(), [life.uuid()].into());
}

#[tokio::test]
async fn parameters_and_sizes_that_cannot_be_meant() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let with = |name, value| asks::any(64, mount("ext4")).with_parameters(&[(name, value)]);
    let sized = |required, limit| asks::any(64, mount("ext4")).sized(required, limit);
    let mut mutable = asks::any(64, block());
    mutable.mutable_parameters = BTreeMap::from([("speed".to_owned(), "9".to_owned())]);
    for (request, code, fragment) in [
        (with("volumetype", "image"), Code::InvalidArgument, "volumeType"),
        (with("volumeType", "folder"), Code::InvalidArgument, "folder"),
        (with("directIO", "yes"), Code::InvalidArgument, "yes"),
        (with("pool", "rbd"), Code::InvalidArgument, "pool"),
        (mutable, Code::InvalidArgument, "speed"),
        (sized(-5, 0), Code::InvalidArgument, "-5"),
        (sized(2 << 30, 1 << 30), Code::OutOfRange, "2147483648"),
        (sized(0, 5), Code::OutOfRange, "5"),
        (asks::any(64, mount("ntfs")), Code::InvalidArgument, "ntfs"),
        (asks::any(64, mount("ext4").with(Mode::MultiNodeMultiWriter)), Code::InvalidArgument, "Multi"),
    ] {
        check(driver.create(request).await, code, fragment);
    }
    scene.assert_empty();
    let tagged = with("csi.storage.k8s.io/pvc/name", "data");
    driver.create(tagged).await.expect("what the provisioner adds");
}

#[tokio::test]
async fn ids_of_no_volume() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let absent = format!("{}{}", &life.id[..life.id.len() - 36], "00000000-0000-0000-0000-000000000000");
    let foreign = absent.replacen("-0005-local-", "-0003-far-", 1);
    for id in ["malformed", "../../etc", &absent] {
        driver.delete(id).await.expect("DeleteVolume of what is not there");
        let strange = Life { id: id.to_owned(), ..life.again(&scene) };
        check(strange.attach(&driver, NODE).await, Code::NotFound, id);
        check(driver.expand(id, 128 << 20).await, Code::NotFound, id);
        check(driver.snapshot("s", id).await, Code::NotFound, id);
        check(driver.create(asks::any(64, mount("ext4")).of_volume(id)).await, Code::NotFound, id);
        let staged = strange.stage(&driver).await.expect_err("a volume that is not there");
        assert!(matches!(staged.code(), Code::NotFound | Code::InvalidArgument), "{staged:?}");
    }
    let strange = Life { id: foreign.clone(), ..life.again(&scene) };
    assert!(strange.stage(&driver).await.is_err(), "a volume of another cluster was staged");
    assert!(driver.state(&foreign).await.is_err());
    assert_eq!(scene.volumes(), [life.uuid()].into());
    life.assert_gone();
}

#[tokio::test]
async fn a_driver_killed_between_any_two_steps_goes_on() {
    let scene = Scene::new();
    let mut driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        driver = driver.killed_and_started().await;
        life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
        driver = driver.killed_and_started().await;
        twice(|| life.stage(&driver)).await;
        driver = driver.killed_and_started().await;
        twice(|| life.stage(&driver)).await;
        life.publish(&driver).await.expect("NodePublishVolume");
        life.write(b"data").expect("a pod writes");
        driver = driver.killed_and_started().await;
        twice(|| life.publish(&driver)).await;
        assert_eq!(life.read(4), b"data");
        life.unpublish(&driver).await.expect("NodeUnpublishVolume");
        driver = driver.killed_and_started().await;
        twice(|| life.unstage(&driver)).await;
        driver = driver.killed_and_started().await;
        life.detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
        driver = driver.killed_and_started().await;
        twice(|| driver.delete(&life.id)).await;
        scene.assert_empty();
    }
}

/// Each damage to the stash leaves the way back open.
#[tokio::test]
async fn a_lost_or_torn_stash_keeps_nothing_attached() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (text, capability) in
        [(None, mount("ext4")), (None, block()), (Some(""), mount("ext4")), (Some("{\"Ver"), block())]
    {
        let life = Life::create(&scene, &driver, capability).await;
        let other = Life::create(&scene, &driver, block()).await;
        life.up(&driver).await;
        other.up(&driver).await;
        let stash = life.staging.join("image-meta.json");
        match text {
            None => std::fs::remove_file(stash),
            Some(text) => std::fs::write(stash, text),
        }
        .expect("damage");
        life.down(&driver).await;
        life.assert_gone();
        assert_eq!(loops_below(&scene.root).len(), 1, "another volume was detached");
        other.down(&driver).await;
    }
}

/// kubelet has one staging path for each volume; a CO that asks for a second one is told so.
#[tokio::test]
async fn a_volume_has_one_staging_path() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        life.up(&driver).await;
        life.write(b"data").expect("a pod writes");
        let second = life.again(&scene);
        let status = second.stage(&driver).await.expect_err("a second staging path");
        assert!(matches!(status.code(), Code::FailedPrecondition | Code::AlreadyExists), "{status:?}");
        second.assert_unmounted();
        assert_eq!(life.read(4), b"data");
        life.down(&driver).await;
        life.assert_gone();
    }
}

#[tokio::test]
async fn a_mount_option_that_the_filesystem_does_not_know_is_named() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, asks::mount_with("ext4", "nonsense")).await;
    check(life.stage(&driver).await, Code::FailedPrecondition, "nonsense");
    life.assert_gone();
    driver.delete(&life.id).await.expect("DeleteVolume");
    scene.assert_empty();
}
