//! Work outlives its caller: cancelled, repeated, contradicted or overtaken by SIGTERM, a create comes to its end.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::common::csi::CreateVolumeRequest;
use crate::common::life::block;
use crate::common::sight::eventually;
use crate::common::tools::{check, unique};
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene};
use crate::life::request;

/// An `rbd import` that takes its time before it makes anything.
const SLOW: &str = r#"[ "$1" != import ] || sleep 2
exec "$RBD" "$@""#;

/// An `rbd import` that does not end by itself.
const STUCK: &str = r#"if [ "$1" = import ]; then
    cd "${CALLS%/*}/.."
    echo $$ >pid.new
    mv pid.new pid
    exec sleep 300
fi
exec "$RBD" "$@""#;

fn volume() -> CreateVolumeRequest {
    request::create(&unique("pvc"), 64, block())
}

/// Started, and at work in `rbd import`.
async fn at_work(
    driver: &Driver,
    wrapper: &Wrapper,
    request: &CreateVolumeRequest,
) -> tokio::task::JoinHandle<String> {
    let (mut controller, request) = (driver.controller(), request.clone());
    let call = tokio::spawn(async move {
        let answer = controller.create_volume(request).await.expect("CreateVolume").into_inner();
        answer.volume.expect("a volume").volume_id
    });
    eventually("an import", || wrapper.count("import") == 1).await;
    call
}

/// The image with its marker, which is written last.
fn is_whole(scene: &Scene, uuid: &str) -> bool {
    let image = format!("csi-vol-{uuid}");
    let whole = scene.corner.size(&image) == Some(64 << 20);
    whole
        && scene
            .corner
            .meta(&image)
            .get(".rbd.csi.ceph.com/created")
            .is_some_and(|marker| marker.contains(uuid))
}

#[tokio::test]
async fn a_create_dropped_by_its_client_ends_and_a_retry_gets_it() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let driver = scene.start_with(&wrapper).await;
    let request = volume();
    let left = timeout(Duration::from_millis(700), driver.create(request.clone())).await;
    assert!(left.is_err(), "it was to be left half-way");
    ends_and_is_got(&scene, &driver, &request).await;
}

#[tokio::test]
async fn a_create_past_its_clients_deadline_ends_and_a_retry_gets_it() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let driver = scene.start_with(&wrapper).await;
    let request = volume();
    let mut limited = tonic::Request::new(request.clone());
    limited.set_timeout(Duration::from_millis(700));
    let status = driver.controller().create_volume(limited).await.expect_err("no answer in time");
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    ends_and_is_got(&scene, &driver, &request).await;
}

async fn ends_and_is_got(scene: &Scene, driver: &Driver, request: &CreateVolumeRequest) {
    eventually("the image that nobody waits for", || scene.corner.images().len() == 1).await;
    let image = scene.corner.images().pop_first().expect("the image");
    let uuid = image.strip_prefix("csi-vol-").expect("our image");
    eventually("a whole image", || is_whole(scene, uuid)).await;
    let volume = driver.create(request.clone()).await.expect("the retry");
    assert!(volume.volume_id.ends_with(uuid), "{} is not {uuid}", volume.volume_id);
    assert_eq!(scene.corner.images().len(), 1);
}

#[tokio::test]
async fn an_identical_request_joins_the_one_at_work() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let driver = scene.start_with(&wrapper).await;
    let request = volume();
    let first = at_work(&driver, &wrapper, &request).await;
    let second = driver.create(request).await.expect("the second call");
    assert_eq!(first.await.expect("the first call"), second.volume_id);
    assert_eq!(wrapper.count("import"), 1);
}

#[tokio::test]
async fn another_request_on_the_same_volume_is_told_what_runs() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let driver = scene.start_with(&wrapper).await;
    let request = volume();
    let id = driver.create(request.clone()).await.expect("CreateVolume").volume_id;
    driver.delete(&id).await.expect("DeleteVolume");
    wrapper.forget();
    let first = at_work(&driver, &wrapper, &request).await;
    let mut larger = request.clone();
    larger.capacity_range.as_mut().expect("a size").required_bytes = 128 << 20;
    check(driver.create(larger.clone()).await, Code::Aborted, "CreateVolume");
    check(driver.delete(&id).await, Code::Aborted, "CreateVolume");
    assert_eq!(first.await.expect("the first call"), id);
    check(driver.create(larger).await, Code::AlreadyExists, &request.name);
}

#[tokio::test]
async fn sigterm_lets_a_create_finish() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let mut driver = scene.start_with(&wrapper).await;
    let call = at_work(&driver, &wrapper, &volume()).await;
    driver.signal(Signal::SIGTERM);
    let id = call.await.expect("an answer from a driver that is going");
    let status = driver.ended().await;
    assert!(status.success(), "{status}\n{}", driver.log());
    assert!(is_whole(&scene, &id[id.len() - 36..]));
}

#[tokio::test]
async fn sigterm_lets_a_create_finish_that_its_client_has_left() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(SLOW);
    let mut driver = scene.start_with(&wrapper).await;
    let call = at_work(&driver, &wrapper, &volume()).await;
    call.abort();
    sleep(Duration::from_millis(200)).await;
    driver.signal(Signal::SIGTERM);
    let status = driver.ended().await;
    assert!(status.success(), "{status}\n{}", driver.log());
    let image = scene.corner.images().pop_first().expect("the image");
    assert!(is_whole(&scene, image.strip_prefix("csi-vol-").expect("our image")));
}

#[tokio::test]
async fn a_killed_driver_takes_its_commands_with_it() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(STUCK);
    let driver = scene.start_with(&wrapper).await;
    let mut controller = driver.controller();
    let call = tokio::spawn(async move { controller.create_volume(volume()).await.map(drop) });
    eventually("an import", || scene.path("pid").exists()).await;
    let pid = std::fs::read_to_string(scene.path("pid")).expect("its pid");
    assert!(runs(pid.trim()));
    drop(driver);
    assert!(call.await.expect("it ends").is_err());
    eventually("no orphan that works on the image", || !runs(pid.trim())).await;
}

fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
