//! `--type=liveness` beside a driver that comes, hangs and goes.

use nix::sys::signal::Signal;
use tokio::net::UnixListener;

use crate::common::driver::{Driver, Start};
use crate::common::sight::eventually;
use crate::harness::{NODE, Scene};
use crate::metrics::{free_port, get};

/// One that asks what is at the socket of the scene's driver, ten times a second.
fn watch(scene: &Scene) -> (Driver, u16) {
    let port = free_port();
    let folder = scene.root.parent().expect("the test's folder");
    let watch = Start::new(folder, NODE, "liveness")
        .flag("--polltime=100ms")
        .flag("--timeout=300ms")
        .flag("--metricspath=/m")
        .flag(&format!("--metricsport={port}"));
    (watch.launch(), port)
}

async fn tells(port: u16, alive: u8) {
    let line = format!("csi_liveness {alive}");
    let told = || get(port, "/m", "").is_ok_and(|answer| answer.lines().any(|there| there == line));
    eventually(&line, told).await;
}

#[tokio::test]
async fn a_driver_is_alive_while_it_answers() {
    let scene = Scene::new();
    let (mut watch, port) = watch(&scene);
    tells(port, 0).await;
    let driver = scene.start().await;
    tells(port, 1).await;
    driver.signal(Signal::SIGSTOP);
    tells(port, 0).await;
    driver.signal(Signal::SIGCONT);
    tells(port, 1).await;
    let driver = driver.killed_and_started().await;
    tells(port, 1).await;
    drop(driver);
    tells(port, 0).await;
    watch.signal(Signal::SIGTERM);
    assert!(watch.ended().await.success());
}

#[tokio::test]
async fn what_takes_connections_and_never_answers_is_down() {
    let scene = Scene::new();
    let (watch, port) = watch(&scene);
    let _silent = UnixListener::bind(scene.path(&format!("{NODE}.sock"))).expect("a socket");
    tells(port, 0).await;
    eventually("it says why", || watch.log().contains("no answer within 300ms")).await;
}

#[tokio::test]
async fn what_tells_nothing_of_the_driver_has_none_of_its_metrics() {
    let scene = Scene::new();
    let (_watch, port) = watch(&scene);
    tells(port, 0).await;
    let answer = get(port, "/m", "").expect("an answer");
    assert!(!answer.contains("ceph_rbd_csi_"), "{answer}");
}
