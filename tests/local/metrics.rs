//! GET of the metrics, as Prometheus asks.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tonic::Code;

use crate::asks;
use crate::common::life::{Life, mount};
use crate::common::sight::eventually;
use crate::common::tools::check;
use crate::harness::Scene;

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

/// As Prometheus' scraper asks.
const OPEN_METRICS: &str =
    "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";

/// The whole answer.
pub(crate) fn get(port: u16, path: &str, headers: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The metrics of a driver that listens.
fn metrics(port: u16) -> String {
    get(port, "/metrics", "").expect("an answer")
}

#[track_caller]
fn assert_lines(answer: &str, lines: &[&str]) {
    for line in lines {
        assert!(answer.lines().any(|there| there == *line), "no {line:?} in\n{answer}");
    }
}

#[tokio::test]
async fn calls_and_commands_are_counted_by_how_they_ended() {
    let scene = Scene::new();
    let port = free_port();
    let driver = scene.driver().flag(&format!("--metricsport={port}")).flag("--metricspath=/m").start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    check(driver.create(asks::any(-1, mount("ext4"))).await, Code::InvalidArgument, "");
    driver.delete(&volume.volume_id).await.expect("DeleteVolume");
    let answer = get(port, "/m", OPEN_METRICS).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("application/openmetrics-text"),
        "{answer}"
    );
    assert_lines(
        &answer,
        &[
            r#"csi_plugin_operations_seconds_count{method="CreateVolume",grpc_status_code="OK"} 1"#,
            r#"csi_plugin_operations_seconds_count{method="CreateVolume",grpc_status_code="InvalidArgument"} 1"#,
            "ceph_rbd_csi_operations_in_flight 0",
            r#"ceph_rbd_csi_process_slots{queue="cluster"} 8"#,
            &format!(r#"ceph_rbd_csi_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
            "# EOF",
        ],
    );
    assert!(get(port, "/", "").expect("an answer").starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn who_does_not_ask_for_open_metrics_gets_the_older_format() {
    let scene = Scene::new();
    let port = free_port();
    let _driver = scene.driver().flag(&format!("--metricsport={port}")).start().await;
    let answer = metrics(port);
    assert!(answer.contains("text/plain; version=0.0.4") && answer.contains("# TYPE "), "{answer}");
    assert!(!answer.contains("# UNIT") && !answer.contains("# EOF"), "{answer}");
}

#[tokio::test]
async fn what_is_staged_is_counted_and_what_ails_it() {
    let scene = Scene::new();
    let port = free_port();
    let driver = scene.driver().flag(&format!("--metricsport={port}")).start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    let life = Life::at(&scene.path("node"), &volume.volume_id, "", mount("ext4"));
    let life = life.with_context(volume.volume_context);
    life.up(&driver).await;
    let staged = value(&metrics(port), "ceph_rbd_csi_volumes_staged ");
    assert!(staged >= 1.0, "{staged}");
    let uuid = &volume.volume_id[volume.volume_id.len() - 36..];
    let there = scene.volume(uuid);
    std::fs::rename(&there, scene.path("away")).expect("its folder is taken away");
    let unhealthy = value(&metrics(port), "ceph_rbd_csi_volumes_unhealthy{");
    std::fs::rename(scene.path("away"), &there).expect("and put back");
    assert!(unhealthy >= 1.0, "{unhealthy}");
    life.down(&driver).await;
}

#[tokio::test]
async fn a_call_whose_caller_left_is_counted_as_such() {
    let scene = Scene::new();
    let port = free_port();
    let script = "until [[ -e $CALLS.go ]]; do sleep 0.05; done\nPATH=${PATH#*:} exec mkfs.ext4 \"$@\"";
    let slow = scene.wrapper(&["mkfs.ext4"], script);
    let driver = scene.driver().wrapped(&slow).flag(&format!("--metricsport={port}")).start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    let life = Life::at(&scene.path("node"), &volume.volume_id, "", mount("ext4"));
    let life = life.with_context(volume.volume_context);
    let left = tokio::time::timeout(Duration::from_millis(200), life.stage(&driver)).await;
    assert!(left.is_err(), "staged already: {left:?}");
    std::fs::write(slow.folder().join("calls.go"), "").expect("mkfs may go on");
    let canceled =
        r#"csi_plugin_operations_seconds_count{method="NodeStageVolume",grpc_status_code="Canceled"} 1"#;
    eventually("the caller is seen to have left", || metrics(port).lines().any(|there| there == canceled))
        .await;
    life.up(&driver).await;
    life.down(&driver).await;
}

/// The sum of the samples whose lines begin so.
fn value(answer: &str, start: &str) -> f64 {
    let samples = answer.lines().filter(|line| line.starts_with(start));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn without_a_port_nothing_listens() {
    let scene = Scene::new();
    let driver = scene.start().await;
    assert!(!driver.log().contains("metrics"), "{}", driver.log());
}
