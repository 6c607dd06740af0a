//! A volume's whole life, for each kind of volume: every call asked twice, everything it changes looked at.

use serde_json::json;
use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::csi::{CreateVolumeRequest, VolumeCapability};
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::{eventually, loops_below, stash};
use crate::common::tools::{check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::lab::{Corner, POOL, mapped};
use crate::life::request;
use crate::wrap::COUNT;

#[tokio::test]
async fn an_ext4_volume_lives_its_whole_life() {
    whole_life(mount("ext4"), 64).await;
}

#[tokio::test]
async fn an_xfs_volume_lives_its_whole_life() {
    whole_life(mount("xfs"), 320).await;
}

#[tokio::test]
async fn a_block_volume_lives_its_whole_life() {
    whole_life(block(), 64).await;
}

async fn whole_life(capability: VolumeCapability, mib: i64) {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = created(&scene, &driver, request::create(&unique("pvc"), mib, capability)).await;
    twice(|| life.attach(&driver, "node-a")).await;
    twice(|| life.stage(&driver)).await;
    assert_staged(&scene, &driver, &life);
    twice(|| life.publish(&driver)).await;
    let data: Vec<u8> = (0..MIB).map(|at| (at % 251) as u8).collect();
    life.write(&data).expect("a pod writes");
    life.assert_stats(&driver, mib.unsigned_abs() * MIB).await;
    twice(|| life.unpublish(&driver)).await;
    assert!(life.published().is_empty() && !life.target.exists(), "the target is left");
    twice(|| life.publish(&driver)).await;
    assert!(life.read(data.len()) == data, "published again, it shows other data");
    twice(|| life.unpublish(&driver)).await;
    twice(|| life.unstage(&driver)).await;
    assert_unstaged(&scene, &driver, &life);
    life.up(&driver).await;
    assert!(life.read(data.len()) == data, "staged again, it shows other data");
    life.down(&driver).await;
    twice(|| life.detach(&driver, "node-a")).await;
    twice(|| driver.delete(&life.id)).await;
    assert!(!scene.corner.has(&life.image));
    eventually("an empty namespace", || scene.corner.leftovers().is_empty()).await;
}

async fn created(scene: &Scene, driver: &Driver, request: CreateVolumeRequest) -> Life {
    let volume = twice(|| driver.create(request.clone())).await;
    let size = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
    assert_eq!(volume.capacity_bytes, size);
    let life = Life::create_as(scene, driver, request).await;
    assert_eq!(life.id, volume.volume_id);
    assert_eq!(life.image, format!("csi-vol-{}", life.uuid()));
    assert_eq!(scene.corner.images(), [life.image.clone()].into());
    assert_eq!(scene.corner.size(&life.image), Some(size.unsigned_abs()));
    assert_eq!(scene.corner.watchers(&life.image), Vec::<String>::new());
    life
}

fn assert_staged(scene: &Scene, driver: &Driver, life: &Life) {
    let Corner { namespace } = &scene.corner;
    let mapped = mapped(driver.maps(), namespace);
    assert_eq!(mapped.len(), 1, "{mapped:?}");
    assert_eq!(mapped[0].0, life.image);
    assert_eq!(scene.corner.watchers(&life.image).len(), 1);
    let staged = life.staged();
    assert_eq!(staged.len(), 1, "{staged:?}");
    let block = life.capability == block();
    assert!(block || staged[0].source == mapped[0].1, "{staged:?} is not from {mapped:?}");
    let expected = json!({
        "Version": 3, "pool": POOL, "radosNamespace": namespace, "image": life.image, "unmapOptions": "",
        "accessType": false, "encrypted": false, "device": "", "logDir": "", "logFileStrategy": "",
    });
    let mut stash = stash(&life.staging).expect("a stash");
    let device = stash["device"].take();
    assert!(device == "" || device == mapped[0].1.as_str(), "the stash names device {device}");
    stash["device"] = json!("");
    assert_eq!(stash, expected);
}

fn assert_unstaged(scene: &Scene, driver: &Driver, life: &Life) {
    life.assert_gone_from(driver);
    assert_eq!(loops_below(driver.maps()), vec![]);
    assert_eq!(scene.corner.watchers(&life.image), Vec::<String>::new());
}

#[tokio::test]
async fn a_read_only_publish_refuses_writes() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let life = Life::create(&scene, &driver, mount(fs_type)).await;
        life.up(&driver).await;
        life.write(b"data").expect("a pod writes");
        life.unpublish(&driver).await.expect("NodeUnpublishVolume");
        twice(|| life.publish_at(&driver, &life.target, true)).await;
        assert!(life.published()[0].has("ro"), "{:?}", life.published());
        let error = life.write(b"more").expect_err("a write through a read-only publish");
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(life.read(4), b"data");
        check(life.publish(&driver).await, Code::AlreadyExists, &life.target.display().to_string());
        life.down(&driver).await;
    }
}

#[tokio::test]
async fn a_block_volume_is_read_only_when_its_map_is() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.up(&driver).await;
    life.write(b"data").expect("a pod writes");
    life.unpublish(&driver).await.expect("NodeUnpublishVolume");
    check(life.publish_at(&driver, &life.target, true).await, Code::FailedPrecondition, "read-only");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    let reader = life.on(&scene, &driver).with(Mode::SingleNodeReaderOnly);
    reader.up(&driver).await;
    assert_eq!(reader.read(4), b"data");
    assert!(reader.write(b"more").is_err(), "a write through a read-only map");
    reader.down(&driver).await;
}

#[tokio::test]
async fn publish_before_stage_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    check(life.publish(&driver).await, Code::FailedPrecondition, "not staged");
    assert!(life.published().is_empty() && !life.target.exists());
}

#[tokio::test]
async fn a_single_writer_has_one_target_and_a_multi_writer_several() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for mode in [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter] {
        let life = Life::create(&scene, &driver, mount("ext4").with(mode)).await;
        life.shows_at_as_many_paths_as(mode, &driver).await;
    }
}

#[tokio::test]
async fn an_image_says_whose_it_is() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--clustername=east").start().await;
    let mut request = request::create(&unique("pvc"), 64, mount("ext4"));
    let labels = [
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
    ];
    request.parameters.extend(request::map(&labels));
    let life = Life::create_as(&scene, &driver, request).await;
    let meta = scene.corner.meta(&life.image);
    for (key, value) in labels.into_iter().chain([("csi.ceph.com/cluster/name", "east")]) {
        assert_eq!(meta.get(key).map(String::as_str), Some(value), "{key}");
    }
}

#[tokio::test]
async fn creating_a_plain_volume_starts_one_rbd_process() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    Life::create(&scene, &driver, mount("ext4")).await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        // Behind the answer the driver looks once for images to remove; that ends before the count begins.
        eventually("no more rbd", || wrapper.settled()).await;
        wrapper.forget();
        Life::create(&scene, &driver, capability).await;
        let calls = wrapper.calls();
        assert_eq!(calls.len(), 1, "{calls:#?}");
        assert!(calls[0].starts_with("import "), "{calls:#?}");
    }
}

#[tokio::test]
async fn a_volume_with_a_name_prefix_is_found_and_leaves_nothing() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let mut request = request::create(&unique("pvc"), 64, mount("ext4"));
    request.parameters.extend(request::map(&[("volumeNamePrefix", "shop-")]));
    let volume = twice(|| driver.create(request.clone())).await;
    let life = Life::create_as(&scene, &driver, request).await;
    assert_eq!((&life.id, &life.image), (&volume.volume_id, &format!("shop-{}", life.uuid())));
    assert!(scene.corner.has(&life.image) && scene.corner.has_journal(&life.uuid()));
    twice(|| life.attach(&driver, "node-a")).await;
    life.up(&driver).await;
    life.down(&driver).await;
    twice(|| life.detach(&driver, "node-a")).await;
    twice(|| driver.delete(&life.id)).await;
    eventually("an empty namespace", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn an_image_is_made_as_the_storage_class_says() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let data_pool = unique("data");
    run("ceph", &["osd", "pool", "create", &data_pool, "1", "1"]);
    run("ceph", &["osd", "pool", "application", "enable", &data_pool, "rbd"]);
    let mut request = request::create(&unique("pvc"), 64, mount("ext4"));
    request.parameters.extend(request::map(&[
        ("dataPool", &data_pool),
        ("stripeUnit", "65536"),
        ("stripeCount", "4"),
        ("objectSize", "1048576"),
        ("imageFeatures", "layering,exclusive-lock"),
    ]));
    twice(|| driver.create(request.clone())).await;
    let life = Life::create_as(&scene, &driver, request).await;
    let info = scene.corner.info(&life.image).expect("its info");
    assert_eq!(info["data_pool"], json!(data_pool));
    assert_eq!((&info["stripe_unit"], &info["stripe_count"]), (&json!(65536), &json!(4)));
    assert_eq!(info["object_size"], json!(MIB));
    let features: Vec<&str> =
        info["features"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
    assert_eq!(features, ["layering", "striping", "exclusive-lock", "data-pool"]);
    assert_eq!(life.context.get("radosNamespace"), Some(&scene.corner.namespace));
    driver.delete(&life.id).await.expect("DeleteVolume");
}

/// What takes a refused stage back leaves the device of the first one alone: another volume would get its number.
#[tokio::test]
async fn a_refused_second_stage_takes_nothing_from_the_first() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.up(&driver).await;
    let second = life.on(&scene, &driver);
    check(second.stage(&driver).await, Code::FailedPrecondition, "staged at");
    second.unstage(&driver).await.expect("NodeUnstageVolume of what was refused");
    let mut keyless = second.clone();
    keyless.secrets.insert("userKey".to_owned(), "AQBSdFlnAAAAABAAMLQwS3AxMTExMTExMTExMQ==".to_owned());
    keyless.stage(&driver).await.expect_err("a wrong key");
    assert_eq!(driver.mapped(), [life.image.as_str()]);
    life.write(b"of the first").expect("a pod writes");
    life.down(&driver).await;
    life.assert_gone_from(&driver);
}

/// The name is written down, by `rados`, to which it is no option.
#[tokio::test]
async fn a_name_that_looks_like_an_option_is_a_name() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let file = scene.path("written-by-rados");
    let mut request = request::create(&format!("--log-file={}", file.display()), 16, block());
    request.parameters.insert("volumeNamePrefix".to_owned(), "team-".to_owned());
    let volume = driver.create(request).await.expect("CreateVolume");
    assert!(!file.exists(), "rados has taken the name for an option");
    driver.delete(&volume.volume_id).await.expect("DeleteVolume");
    assert_eq!(scene.corner.leftovers(), [""; 0]);
}

#[tokio::test]
async fn what_is_written_of_a_name_goes_with_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let prefixed = |prefix: &str| {
        let mut request = request::create(&unique("pvc"), 16, block());
        request.parameters.insert("volumeNamePrefix".to_owned(), prefix.to_owned());
        request
    };
    let volume = driver.create(prefixed("csi-vol-")).await.expect("CreateVolume");
    driver.delete(&volume.volume_id).await.expect("DeleteVolume");
    eventually("nothing is left", || scene.corner.leftovers().is_empty()).await;
    let absent = volume.volume_id;
    let answer = driver.create(prefixed("team-").of_volume(&absent)).await;
    check(answer, Code::NotFound, "does not exist");
    assert_eq!(scene.corner.leftovers(), [""; 0]);
}
