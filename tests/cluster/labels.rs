//! Labels of the node, read from a Kubernetes API: a TLS server with an authority of its own that answers what a test wants.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, Stream};
use serde_json::json;
use tonic::Code;

use crate::common::csi::{NodeGetInfoRequest, ProbeRequest, Topology};
use crate::common::life::{Map, map};
use crate::common::sight::{PATIENCE, within};
use crate::common::tools::{Answer, check, try_run};
use crate::harness::{Driver, Scene, Start};

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.of-a-test";
const NODE: &str = "node-a";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What is answered, and the heads of the requests that came.
#[derive(Default)]
struct Talk {
    answer: String,
    heads: Vec<String>,
}

struct Api {
    talk: Arc<Mutex<Talk>>,
    port: u16,
}

impl Api {
    /// With the certificate in this folder.
    fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (talk, config) = (Arc::new(Mutex::new(Talk::default())), Arc::new(tls(folder)));
        let shared = talk.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that does not trust us goes away in the midst.
                let _ = serve(stream, &config, &shared);
            }
        });
        Self { talk, port }
    }

    fn answers(&self, status: &str, body: &str) {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        self.talk.lock().expect("the talk").answer = answer;
    }

    fn has_labels(&self, labels: &Map) {
        let node = json!({ "kind": "PartialObjectMetadata", "metadata": { "name": NODE, "labels": labels } });
        self.answers("200 OK", &node.to_string());
    }

    fn heads(&self) -> Vec<String> {
        self.talk.lock().expect("the talk").heads.clone()
    }
}

fn tls(folder: &Path) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(folder.join("server.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key")
}

fn serve(mut stream: TcpStream, config: &Arc<ServerConfig>, talk: &Mutex<Talk>) -> std::io::Result<()> {
    let mut connection = ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
    let mut stream = Stream::new(&mut connection, &mut stream);
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..length]);
    }
    let answer = {
        let mut talk = talk.lock().expect("the talk");
        talk.heads.push(String::from_utf8_lossy(&head).into_owned());
        talk.answer.clone()
    };
    stream.write_all(answer.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// An authority and a server's certificate of it.
fn authority(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let openssl = |args: &str| {
        let run = try_run(Command::new("openssl").args(args.split(' ')).current_dir(folder));
        run.unwrap_or_else(|error| panic!("{error}"));
    };
    fs::write(folder.join("san"), "subjectAltName=IP:127.0.0.1\n").expect("an extension");
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca",
    );
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj /CN=api",
    );
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san -out server.crt",
    );
}

/// A service account's folder with this authority's certificate.
fn account(scene: &Scene, authority: &Path) -> PathBuf {
    let folder = scene.path("account");
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(authority.join("ca.crt"), folder.join("ca.crt")).expect("its certificate");
    fs::write(folder.join("token"), format!("{TOKEN}\n")).expect("a token");
    folder
}

fn node(scene: &Scene, account: &Path, port: u16) -> Start {
    scene
        .on_node(NODE, "node")
        .flag(&format!("--domainlabels={ZONE},rack=r1"))
        .flag(&format!("--service-account={}", account.display()))
        .flag("--kubernetes-service-host=127.0.0.1")
        .flag(&format!("--kubernetes-service-port={port}"))
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
