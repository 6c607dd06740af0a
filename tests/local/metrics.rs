//! GET of the metrics, as Prometheus asks.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use tonic::Code;

use crate::asks;
use crate::common::life::mount;
use crate::common::tools::check;
use crate::harness::Scene;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the metrics listen");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[tokio::test]
async fn calls_and_commands_are_counted_by_how_they_ended() {
    let scene = Scene::new();
    let port = free_port();
    let driver = scene.driver().flag(&format!("--metricsport={port}")).flag("--metricspath=/m").start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    check(driver.create(asks::any(-1, mount("ext4"))).await, Code::InvalidArgument, "");
    driver.delete(&volume.volume_id).await.expect("DeleteVolume");
    let answer = get(port, "/m");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for line in [
        r#"csi_plugin_operations_seconds_count{method="CreateVolume",grpc_status_code="Ok"} 1"#,
        r#"csi_plugin_operations_seconds_count{method="CreateVolume",grpc_status_code="InvalidArgument"} 1"#,
        "ceph_rbd_csi_operations_in_flight 0",
        &format!(r#"ceph_rbd_csi_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
        "# EOF",
    ] {
        assert!(answer.lines().any(|there| there == line), "no {line:?} in\n{answer}");
    }
    assert!(get(port, "/").starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn without_a_port_nothing_listens() {
    let scene = Scene::new();
    let driver = scene.start().await;
    assert!(!driver.log().contains("metrics"), "{}", driver.log());
}
