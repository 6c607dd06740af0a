//! Volumes from snapshots and from volumes: the data of their moment, as large as asked for, whatever becomes of the source.

use nix::sys::signal::Signal;
use tonic::Code;

use crate::common::csi::VolumeCapability;
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::eventually;
use crate::common::tools::{check, run, twice, unique};
use crate::harness::Scene;
use crate::life::request;
use crate::sources::{cloned, like, restored, snapshot};
use crate::wrap::COUNT;

fn kinds() -> [VolumeCapability; 3] {
    [mount("ext4"), mount("xfs"), block()]
}

#[tokio::test]
async fn a_restore_and_a_clone_hold_the_data_of_their_moment() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in kinds() {
        let (before, after) = (pattern(2, 1), pattern(2, 2));
        let source = Life::create(&scene, &driver, capability).await.filled(&driver, &before).await;
        let taken = snapshot(&scene, &source);
        let source = source.filled(&driver, &after).await;
        let restored = restored(&scene, &driver, &taken, &source).await;
        let cloned = cloned(&scene, &driver, &source).await;
        for (copy, data) in [(&restored, &before), (&cloned, &after)] {
            assert!(scene.corner.children(&source.image).contains(&copy.image));
            assert!(copy.content(&driver, data.len()).await == *data, "other data is in the copy");
            eventually("a marker", || scene.corner.is_marked(&copy.image)).await;
        }
        let cloned = cloned.filled(&driver, &before).await;
        assert!(source.content(&driver, after.len()).await == after, "the source has other data");
        assert_eq!(
            scene.corner.snapshots(&source.image),
            [taken.name.as_str()],
            "a temporary snapshot is left"
        );
        driver.delete(&restored.id).await.expect("DeleteVolume");
        driver.delete(&cloned.id).await.expect("DeleteVolume");
        run("rbd", &["snap", "rm", "--no-progress", &taken.spec]);
        driver.delete(&source.id).await.expect("DeleteVolume");
    }
    eventually("nothing is left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_clone_of_a_mounted_filesystem_holds_what_was_synced() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let data = pattern(4, 3);
        let source = Life::create(&scene, &driver, mount(fs_type)).await;
        source.up(&driver).await;
        source.write(&data).expect("a pod writes");
        let copy = cloned(&scene, &driver, &source).await;
        // Both filesystems have one uuid, and are mounted on one node.
        copy.up(&driver).await;
        assert!(copy.read(data.len()) == data, "{fs_type}: other data is in the clone");
        assert!(source.read(data.len()) == data);
        copy.down(&driver).await;
        source.down(&driver).await;
    }
}

#[tokio::test]
async fn a_larger_copy_has_a_larger_filesystem_and_the_data() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for fs_type in ["ext4", "xfs"] {
        let data = pattern(2, 4);
        let source = Life::create(&scene, &driver, mount(fs_type)).await.filled(&driver, &data).await;
        let taken = snapshot(&scene, &source);
        let asked = || request::create(&unique("copy"), 512, mount(fs_type));
        for request in [asked().of_snapshot(&taken.id), asked().of_volume(&source.id)] {
            let volume = twice(|| driver.create(request.clone())).await;
            assert_eq!(volume.capacity_bytes, 512 << 20);
            assert_eq!(volume.content_source, request.volume_content_source);
            let copy = Life::create_as(&scene, &driver, request).await;
            assert!(scene.corner.is_marked(&copy.image), "{:?}", scene.corner.marker(&copy.image));
            assert_eq!(scene.corner.size(&copy.image), Some(512 * MIB));
            copy.shows_what_it_grew_to(&driver, &data).await;
        }
    }
}

#[tokio::test]
async fn a_copy_is_never_smaller_than_its_source() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    for small in [1, 0] {
        let mut request = request::create(&unique("copy"), small, block()).of_snapshot(&taken.id);
        assert_eq!(driver.create(request.clone()).await.expect("of its size").capacity_bytes, 64 << 20);
        request.name = unique("copy");
        request.capacity_range.as_mut().expect("a range").limit_bytes = 63 << 20;
        check(driver.create(request.clone()).await, Code::OutOfRange, "67108864");
        check(driver.create(request.of_volume(&source.id)).await, Code::OutOfRange, "67108864");
    }
    assert_eq!(scene.corner.snapshots(&source.image).len(), 1);
    assert_eq!(scene.corner.images().len(), 3);
}

#[tokio::test]
async fn what_was_made_from_something_else_is_in_the_way() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let (first, second) = (snapshot(&scene, &source), snapshot(&scene, &source));
    let request = like(&source).of_snapshot(&first.id);
    let made = twice(|| driver.create(request.clone())).await;
    // Before and after the marker is written.
    for _ in 0..2 {
        for other in [request.clone().of_snapshot(&second.id), request.clone().of_volume(&source.id)] {
            check(driver.create(other).await, Code::AlreadyExists, &first.uuid);
        }
        let empty = request::create(&request.name, 64, block());
        check(driver.create(empty).await, Code::AlreadyExists, "an empty one");
        let image = made.volume_context["imageName"].clone();
        eventually("a marker", || scene.corner.is_marked(&image)).await;
    }
    let larger = request::create(&request.name, 128, block()).of_snapshot(&first.id);
    check(driver.create(larger).await, Code::AlreadyExists, "67108864");
    let empty = request::create(&unique("pvc"), 64, block());
    driver.create(empty.clone()).await.expect("an empty one");
    check(driver.create(empty.of_snapshot(&first.id)).await, Code::AlreadyExists, "made from nothing");
    assert_eq!(driver.create(request).await.expect("the same again"), made);
}

#[tokio::test]
async fn a_source_that_is_gone_is_not_found_and_leaves_nothing() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    run("rbd", &["snap", "rm", "--no-progress", &taken.spec]);
    check(driver.create(like(&source).of_snapshot(&taken.id)).await, Code::NotFound, &taken.id);
    driver.delete(&source.id).await.expect("DeleteVolume");
    check(driver.create(like(&source).of_snapshot(&taken.id)).await, Code::NotFound, &taken.id);
    check(driver.create(like(&source).of_volume(&source.id)).await, Code::NotFound, &source.id);
    eventually("nothing is left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_retry_finds_its_copy_when_the_source_is_gone() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    let requests = [like(&source).of_snapshot(&taken.id), like(&source).of_volume(&source.id)];
    let mut made = Vec::new();
    for request in &requests {
        made.push(driver.create(request.clone()).await.expect("CreateVolume"));
    }
    run("rbd", &["snap", "rm", "--no-progress", &taken.spec]);
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!(twice(|| driver.create(request.clone())).await, *made);
    }
    let source_id = scene.corner.info(&source.image).expect("the source")["id"].clone();
    driver.delete(&source.id).await.expect("DeleteVolume: its snapshots are deleted, though kept by clones");
    for (request, made) in requests.iter().zip(&made) {
        assert_eq!(twice(|| driver.create(request.clone())).await, *made);
        let image = &made.volume_context["imageName"];
        assert_eq!(scene.corner.info(image).expect("the copy")["parent"]["id"], source_id);
        eventually("a marker", || scene.corner.is_marked(image)).await;
        scene.corner.remove_meta(image, ".rbd.csi.ceph.com/created");
        assert_eq!(twice(|| driver.create(request.clone())).await, *made, "without its marker");
    }
}

#[tokio::test]
async fn a_restore_is_one_process() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    let requests: Vec<_> = (0..12).map(|_| like(&source).of_snapshot(&taken.id)).collect();
    wrapper.forget();
    let calls = requests.iter().map(|request| driver.create(request.clone()));
    let made = futures_util::future::join_all(calls).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    assert_eq!(wrapper.count("clone"), 12);
    // One look at the snapshot for all of them.
    let others = |wrapper: &crate::common::wrap::Wrapper| {
        wrapper.count("snap") + wrapper.count("info") + wrapper.count("children")
    };
    assert!(others(&wrapper) <= 4, "{:#?}", wrapper.calls());
    for volume in made.iter().flatten() {
        let image = volume.volume_context["imageName"].clone();
        eventually("a marker", || scene.corner.is_marked(&image)).await;
    }
}

/// A clone inherits all metadata of its source.
#[tokio::test]
async fn a_copy_has_labels_of_its_own() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--clustername=k8s").start().await;
    let labels = |pv: &str| request::map(&[("csi.storage.k8s.io/pv/name", pv)]);
    let mut request = request::create(&unique("pvc"), 64, mount("ext4"));
    request.parameters.extend(labels("pv-1"));
    request.parameters.insert("csi.storage.k8s.io/pvc/name".to_owned(), "claim".to_owned());
    let source = Life::create_as(&scene, &driver, request).await;
    source.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    source.clone().filled(&driver, &pattern(1, 1)).await;
    let mut request = like(&source).of_volume(&source.id);
    request.parameters.extend(labels("pv-2"));
    let copy = Life::create_as(&scene, &driver, request).await;
    eventually("a marker", || scene.corner.is_marked(&copy.image)).await;
    let meta = scene.corner.meta(&copy.image);
    assert_eq!(meta.get("csi.storage.k8s.io/pv/name").map(String::as_str), Some("pv-2"));
    assert_eq!(meta.get("csi.ceph.com/cluster/name").map(String::as_str), Some("k8s"));
    assert_eq!(meta.get("csi.storage.k8s.io/pvc/name"), None);
    // The source is published and was formatted; its copy is not, and goes without a word.
    copy.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    copy.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
    driver.delete(&copy.id).await.expect("DeleteVolume");
    check(driver.delete(&source.id).await, Code::FailedPrecondition, "node-a");
}

#[tokio::test]
async fn a_marker_that_was_lost_is_written_at_publish() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let copy = cloned(&scene, &driver, &source).await;
    eventually("a marker", || scene.corner.is_marked(&copy.image)).await;
    let marker = scene.corner.marker(&copy.image);
    scene.corner.remove_meta(&copy.image, ".rbd.csi.ceph.com/created");
    copy.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    eventually("the marker again", || scene.corner.marker(&copy.image) == marker).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_what_is_written_behind_the_answers() {
    let scene = Scene::new();
    let mut driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    let requests: Vec<_> = (0..4).map(|_| like(&source).of_snapshot(&taken.id)).collect();
    let calls = requests.iter().map(|request| driver.create(request.clone()));
    let made = futures_util::future::join_all(calls).await;
    driver.signal(Signal::SIGTERM);
    assert!(driver.ended().await.success());
    for volume in made {
        let image = &volume.expect("CreateVolume").volume_context["imageName"];
        assert!(scene.corner.is_marked(image), "{:?}", scene.corner.marker(image));
    }
}

#[tokio::test]
async fn a_copy_of_a_volume_that_was_never_staged_is_formatted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, mount("xfs")).await;
    let copy = cloned(&scene, &driver, &source).await;
    let data = pattern(1, 5);
    let copy = copy.filled(&driver, &data).await;
    assert!(copy.content(&driver, data.len()).await == data);
}

#[tokio::test]
async fn a_copy_may_have_other_features_but_not_without_layering() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let taken = snapshot(&scene, &source);
    let with = |features: &str| {
        let mut request = like(&source).of_snapshot(&taken.id);
        request.parameters.insert("imageFeatures".to_owned(), features.to_owned());
        request
    };
    check(driver.create(with("exclusive-lock")).await, Code::InvalidArgument, "layering");
    let fewer = with("layering,exclusive-lock");
    let volume = twice(|| driver.create(fewer.clone())).await;
    let info = scene.corner.info(&volume.volume_context["imageName"]).expect("the copy");
    let features = info["features"].as_array().expect("features").clone();
    assert_eq!(features, ["layering", "exclusive-lock", "operations"]);
    let mut far = like(&source).of_snapshot(&taken.id);
    far.parameters.insert("dataPool".to_owned(), "no-such-data".to_owned());
    check(driver.create(far.clone()).await, Code::FailedPrecondition, "data pool");
    check(driver.create(far.of_volume(&source.id)).await, Code::FailedPrecondition, "data pool");
    assert_eq!(scene.corner.snapshots(&source.image), [taken.name.as_str()]);
}

/// What a clone is of is told by the end of a name: a prefix may hold anything.
#[tokio::test]
async fn a_prefix_that_looks_like_a_uuid_misleads_nobody() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let mut request = request::create(&unique("pvc"), 16, block());
    let prefix = "9b2e1f5a-0c4d-4e8f-a111-222233334444-";
    request.parameters.insert("volumeNamePrefix".to_owned(), prefix.to_owned());
    let source = Life::create_as(&scene, &driver, request).await;
    let copy = like(&source).of_volume(&source.id);
    twice(|| driver.create(copy.clone())).await;
    let image = driver.create(copy.clone()).await.expect("CreateVolume").volume_context["imageName"].clone();
    eventually("the marker is written", || scene.corner.is_marked(&image)).await;
    twice(|| driver.create(copy.clone())).await;
}
