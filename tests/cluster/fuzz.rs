//! Random and hostile requests of every call, and the driver killed among them: it answers each truthfully, keeps to its own
//! folders and images, and in the end nothing is left of them.

use std::path::Path;
use std::time::Duration;

use crate::common::fuzz::{self, Canary, OPTIONS, World};
use crate::common::life::{Life, mount};
use crate::common::sight::within;
use crate::common::wrap::Wrapper;
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::POOL;
use crate::life::request;

/// Calls of each fact; `FUZZ_CALLS` for more.
const CALLS: u64 = 120;
/// A call in so many hundred is the driver's last.
const DOOM: u64 = 8;
/// The watch of a command that died with its driver lasts for half a minute.
const PATIENCE: Duration = Duration::from_secs(300);

fn world(folder: &Path) -> World {
    let needed = request::map(&[("clusterID", CLUSTER), ("pool", POOL)]);
    World::new(folder, "node-a", needed, request::secrets())
        .parameter("imageFeatures", &["layering", "layering,exclusive-lock"])
        .parameter("mapOptions", &["krbd:alloc_size=4096"])
        .parameter("mkfsOptions", &["-m 0"])
        .parameter("volumeNamePrefix", &["pre-"])
        .parameter("dataPool", &[])
        .parameter("topologyConstrainedPools", &[])
}

#[tokio::test]
#[ignore = "minutes, and other moments each time: make test-all"]
async fn whatever_is_asked_no_text_becomes_an_option_or_another_image() {
    let scene = Scene::new().listing(&[POOL]);
    let folder = scene.path("kubelet");
    let canary = Canary::planted(&folder);
    let wrapper = Wrapper::new(scene.path("wrapper"), &["setpriv"], OPTIONS);
    let driver = scene.driver().wrapped(&wrapper).start().await;
    let mut world = world(&folder);
    for _ in 0..fuzz::calls(CALLS) {
        world.ask(&driver).await;
    }
    world.tell();
    for call in ["create_volume", "node_stage_volume"] {
        assert!(world.successes(call) > 0, "no {call} ever succeeded");
    }
    assert_eq!(wrapper.calls(), Vec::<String>::new(), "a text of a request became an option");
    world.end(&driver).await;
    canary.sings();
    lives(&scene, &driver).await;
}

#[tokio::test]
#[ignore = "minutes, and other moments each time: make test-all"]
async fn a_driver_that_is_killed_among_any_requests_leaves_nothing() {
    let scene = Scene::new().listing(&[POOL]);
    let folder = scene.path("kubelet");
    let canary = Canary::planted(&folder);
    let mut driver = scene.start().await;
    let mut world = world(&folder);
    for _ in 0..fuzz::calls(CALLS) {
        if world.ask_at_risk(&driver, DOOM).await {
            driver = driver.killed_and_started().await;
        }
    }
    world.tell();
    world.end(&driver).await;
    canary.sings();
    lives(&scene, &driver).await;
}

/// Nothing is left, no call has panicked, and the life of volumes goes on as ever.
#[expect(clippy::print_stderr, reason = "what was left is told with the failure")]
async fn lives(scene: &Scene, driver: &Driver) {
    assert!(!driver.log().contains("panicked"), "{}", driver.log());
    assert_eq!(driver.mapped(), Vec::<String>::new());
    let mut left = Vec::new();
    let empty = || {
        let now = scene.corner.leftovers();
        if left != now {
            eprintln!("left in the pool: {now:?}");
            left = now;
        }
        left.is_empty()
    };
    within(PATIENCE, "an empty pool", empty).await;
    let life = Life::create(scene, driver, mount("ext4")).await;
    life.up(driver).await;
    life.write(b"alive").expect("written");
    assert_eq!(life.read(5), b"alive");
    life.down(driver).await;
    driver.delete(&life.id).await.expect("DeleteVolume");
}
