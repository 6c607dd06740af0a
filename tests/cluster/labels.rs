//! Labels of the node, read from a Kubernetes API.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tonic::Code;

use crate::common::csi::{NodeGetInfoRequest, ProbeRequest, Topology};
use crate::common::life::{Map, map};
use crate::common::sight::{PATIENCE, within};
use crate::common::tools::{Answer, check};
use crate::harness::{Driver, Scene, Start};
use crate::kubernetes::{Api, TOKEN, account, authority};

const NODE: &str = "node-a";
const ZONE: &str = "topology.kubernetes.io/zone";

impl Api {
    fn has_labels(&self, labels: &Map) {
        let node = json!({ "kind": "PartialObjectMetadata", "metadata": { "name": NODE, "labels": labels } });
        self.answers("200 OK", &node.to_string());
    }
}

fn node(scene: &Scene, account: &Path, port: u16) -> Start {
    scene.on_node(NODE, "node").flag(&format!("--domainlabels={ZONE},rack=r1")).asking(account, port)
}

async fn place(driver: &Driver) -> Answer<Map> {
    let info = driver.node().node_get_info(NodeGetInfoRequest {}).await?.into_inner();
    Ok(info.accessible_topology.map(|Topology { segments }| segments).unwrap_or_default())
}

/// Within the time of a few tries.
async fn placed_in(driver: &Driver, zone: &str) {
    let expected = map(&[("topology.rbd.csi.ceph.com/rack", "r1"), ("topology.rbd.csi.ceph.com/zone", zone)]);
    let end = Instant::now() + PATIENCE;
    loop {
        match place(driver).await {
            Ok(segments) => return assert_eq!(segments, expected),
            Err(status) => assert!(Instant::now() < end, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_node_is_where_its_object_says() {
    let scene = Scene::new();
    let authority_of_api = scene.path("authority");
    authority(&authority_of_api);
    let api = Api::start(&authority_of_api);
    api.has_labels(&map(&[(ZONE, "a"), ("kubernetes.io/hostname", NODE), ("rack", "r9")]));
    let account = account(&scene, &authority_of_api);
    // A proxy is for the world outside: one that is dead or hostile changes nothing.
    let start = node(&scene, &account, api.port).flag("--v=6").variable("HTTPS_PROXY", "http://127.0.0.1:1");
    let driver = start.start().await;
    // The first answer waits for the first try: a registrar that asks at once is not sent away.
    let expected = map(&[("topology.rbd.csi.ceph.com/rack", "r1"), ("topology.rbd.csi.ceph.com/zone", "a")]);
    assert_eq!(place(&driver).await.expect("NodeGetInfo"), expected);
    assert_eq!(place(&driver).await.expect("NodeGetInfo again"), expected);
    let heads = api.heads();
    assert_eq!(heads.len(), 1, "asked once: {heads:?}");
    assert!(heads[0].starts_with(&format!("GET /api/v1/nodes/{NODE} HTTP/1.1\r\n")), "{}", heads[0]);
    assert!(heads[0].to_lowercase().contains(&format!("authorization: bearer {TOKEN}\r\n").to_lowercase()));
    assert!(!driver.log().contains(TOKEN), "the token is in the log");
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_believed() {
    let scene = Scene::new();
    let (ours, other) = (scene.path("ours"), scene.path("other"));
    authority(&ours);
    authority(&other);
    let api = Api::start(&ours);
    api.has_labels(&map(&[(ZONE, "a")]));
    let account = account(&scene, &other);
    let driver = node(&scene, &account, api.port).start().await;
    check(place(&driver).await, Code::FailedPrecondition, "ca.crt");
    assert_eq!(api.heads(), Vec::<String>::new(), "the token was shown to a stranger");
    fs::copy(ours.join("ca.crt"), account.join("ca.crt")).expect("the right certificate");
    placed_in(&driver, "a").await;
}

#[tokio::test]
async fn a_refusal_says_what_is_missing_and_is_asked_again() {
    let scene = Scene::new();
    let folder = scene.path("authority");
    authority(&folder);
    let api = Api::start(&folder);
    let account = account(&scene, &folder);
    let said = |message: &str| json!({ "kind": "Status", "message": message }).to_string();
    let no_zone = json!({ "metadata": { "labels": { "kubernetes.io/hostname": NODE } } }).to_string();
    let forbidden = "nodes \"node-a\" is forbidden";
    for (status, body, words) in [
        ("401 Unauthorized", said("Unauthorized"), &["token", "Unauthorized"][..]),
        ("403 Forbidden", said(forbidden), &["ClusterRole", "\"nodes\"", "\"get\"", forbidden]),
        ("404 Not Found", said("nodes \"node-a\" not found"), &["no such Node object", "--nodeid"]),
        ("503 Service Unavailable", "not json".to_owned(), &["503"]),
        ("200 OK", "not json".to_owned(), &["not what this driver knows"]),
        ("200 OK", no_zone, &[ZONE, "kubernetes.io/hostname"]),
    ] {
        api.answers(status, &body);
        let driver = node(&scene, &account, api.port).start().await;
        for word in words {
            check(place(&driver).await, Code::FailedPrecondition, word);
        }
    }
    let driver = node(&scene, &account, api.port).start().await;
    check(place(&driver).await, Code::FailedPrecondition, ZONE);
    api.has_labels(&map(&[(ZONE, "b")]));
    placed_in(&driver, "b").await;
}

/// kubelet unmounts pods while the API is away, and a restart of the driver would change nothing.
#[tokio::test]
async fn an_api_that_is_down_keeps_the_driver_from_nothing_else() {
    let scene = Scene::new();
    let folder = scene.path("authority");
    authority(&folder);
    let account = account(&scene, &folder);
    let driver = node(&scene, &account, 1).start().await;
    check(place(&driver).await, Code::FailedPrecondition, "cannot be reached");
    let ready = driver.identity().probe(ProbeRequest {}).await.expect("Probe").into_inner().ready;
    assert_eq!(ready, Some(true));
    within(PATIENCE, "a second try", || driver.log().matches("next try").count() > 1).await;
}

#[tokio::test]
async fn a_label_without_a_value_outside_of_kubernetes_is_told_at_once() {
    let scene = Scene::new();
    let start = scene.on_node(NODE, "node").flag(&format!("--domainlabels={ZONE}"));
    let mut driver = start.launch();
    assert_eq!(driver.ended().await.code(), Some(2));
    assert!(driver.log().contains(&format!("{ZONE}=…")), "{}", driver.log());
}
