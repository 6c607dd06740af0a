//! Random and hostile requests of every call, and the driver killed among them: it answers each truthfully, keeps to its own
//! folders, and in the end nothing is left of them.

use crate::asks;
use crate::common::driver::Driver;
use crate::common::fuzz::{self, Canary, OPTIONS, World};
use crate::common::life::{Life, Map, block, mount};
use crate::harness::{NODE, Scene};

/// Calls of each fact; `FUZZ_CALLS` for more.
const CALLS: u64 = 600;
/// A call in so many hundred is the driver's last.
const DOOM: u64 = 5;

fn world(scene: &Scene) -> World {
    World::new(&scene.path("kubelet"), NODE, Map::new(), Map::new())
        .parameter("volumeType", &["image", "directory"])
        .parameter("directIO", &["true", "false"])
        .parameter("mkfsOptions", &["-m 0", "-O ^has_journal"])
}

#[tokio::test]
async fn whatever_is_asked_the_driver_stays_and_keeps_to_its_own() {
    let scene = Scene::new();
    let canary = Canary::planted(&scene.path("kubelet"));
    let wrapper = scene.wrapper(&["setpriv"], OPTIONS);
    let driver = scene.driver().wrapped(&wrapper).start().await;
    let mut world = world(&scene);
    for _ in 0..fuzz::calls(CALLS) {
        world.ask(&driver).await;
    }
    world.tell();
    for call in ["create_volume", "create_snapshot", "node_stage_volume", "node_publish_volume"] {
        assert!(world.successes(call) > 0, "no {call} ever succeeded");
    }
    assert_eq!(wrapper.calls(), Vec::<String>::new(), "a text of a request became an option");
    world.end(&driver).await;
    canary.sings();
    lives(&scene, &driver).await;
}

#[tokio::test]
async fn a_driver_that_is_killed_among_any_requests_leaves_nothing() {
    let scene = Scene::new();
    let canary = Canary::planted(&scene.path("kubelet"));
    let (mut driver, mut world) = (scene.start().await, world(&scene));
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
async fn lives(scene: &Scene, driver: &Driver) {
    assert!(!driver.log().contains("panicked"), "{}", driver.log());
    scene.assert_empty();
    for capability in [mount("ext4"), block()] {
        let made = driver.create(asks::any(64, capability.clone())).await.expect("CreateVolume");
        let life = Life::of(scene, &made, capability);
        life.up(driver).await;
        life.write(b"alive").expect("written");
        life.down(driver).await;
        life.up(driver).await;
        assert_eq!(life.read(5), b"alive");
        life.down(driver).await;
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    scene.assert_empty();
}
