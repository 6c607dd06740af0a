//! Pools that are reached from one zone each: which one a volume is made in, and that it is made once.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::json;
use tonic::Code;

use crate::common::csi::plugin_capability::Type;
use crate::common::csi::plugin_capability::service::Type as Service;
use crate::common::csi::{
    CreateSnapshotRequest, CreateVolumeRequest, GetPluginCapabilitiesRequest, NodeGetInfoRequest, Topology,
    TopologyRequirement, Volume,
};
use crate::common::life::{Life, block, map, mount};
use crate::common::sight::{PATIENCE, within};
use crate::common::tools::{check, run, try_run, twice, unique};
use crate::harness::{Driver, Scene, Start};
use crate::lab::POOL;
use crate::life::request;
use crate::snaps;

/// A pool for each zone; `zc` keeps its data elsewhere.
const ZONES: &[(&str, &str)] = &[("za", "topo-a"), ("zb", "topo-b"), ("zc", "topo-c")];
const DATA: &str = "topo-data";
const KEY: &str = "topology.rbd.csi.ceph.com/zone";
const FLAG: &str = "--domainlabels=topology.kubernetes.io/zone=za";

/// The pools of these tests, once for all of them.
fn pools() {
    static POOLS: OnceLock<()> = OnceLock::new();
    POOLS.get_or_init(|| {
        for pool in ZONES.iter().map(|(_, pool)| pool).chain([&DATA]) {
            run("ceph", &["osd", "pool", "create", pool, "8", "8"]);
            run("rbd", &["pool", "init", pool]);
        }
        let end = Instant::now() + PATIENCE;
        while !ZONES.iter().all(|(_, pool)| run("rados", &["df"]).contains(&format!("{pool} "))) {
            assert!(Instant::now() < end, "the new pools are not in `rados df`");
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

/// A scene whose namespace is in each pool.
fn scene() -> Scene {
    pools();
    let scene = Scene::new();
    for (_, pool) in ZONES {
        run("rbd", &["namespace", "create", &format!("{pool}/{}", scene.corner.namespace)]);
    }
    scene
}

fn start(scene: &Scene) -> Start {
    scene.driver().flag(FLAG)
}

fn place(zone: &str) -> Topology {
    Topology { segments: map(&[(KEY, zone)]) }
}

fn entry(zone: &str, pool: &str, data: Option<&str>) -> serde_json::Value {
    let domains = json!([{ "domainLabel": "zone", "value": zone }]);
    match data {
        Some(data) => json!({ "poolName": pool, "dataPool": data, "domainSegments": domains }),
        None => json!({ "poolName": pool, "domainSegments": domains }),
    }
}

/// A volume for one of these zones, the best first.
fn wanted(preferred: &[&str], requisite: &[&str]) -> CreateVolumeRequest {
    let places = |zones: &[&str]| zones.iter().map(|zone| place(zone)).collect();
    let mut request = request::create(&unique("pvc"), 16, block());
    let entries: Vec<_> =
        ZONES.iter().map(|(zone, pool)| entry(zone, pool, (*zone == "zc").then_some(DATA))).collect();
    request.parameters.remove("pool");
    request.parameters.insert("topologyConstrainedPools".to_owned(), json!(entries).to_string());
    let requirement = TopologyRequirement { requisite: places(requisite), preferred: places(preferred) };
    request.accessibility_requirements = Some(requirement);
    request
}

/// The same volume, asked when other places are preferred.
fn again(request: &CreateVolumeRequest, preferred: &[&str], requisite: &[&str]) -> CreateVolumeRequest {
    let CreateVolumeRequest { accessibility_requirements, .. } = wanted(preferred, requisite);
    CreateVolumeRequest { accessibility_requirements, ..request.clone() }
}

/// What is in each pool, locks and journal included.
fn objects(scene: &Scene) -> BTreeMap<&'static str, Vec<String>> {
    let namespace = &scene.corner.namespace;
    let list = |pool: &str| {
        let listed = run("rados", &["ls", "--pool", pool, "--namespace", namespace]);
        let ours = |name: &&str| {
            ["rbd_id.", "csi.rbd.place", "csi.volume."].iter().any(|kind| name.starts_with(kind))
        };
        listed.lines().filter(ours).map(str::to_owned).collect()
    };
    ZONES.iter().map(|(_, pool)| (*pool, list(pool))).collect()
}

/// The one image there is, and nothing else, is in this pool.
#[track_caller]
fn assert_only_in(scene: &Scene, pool: &str, volume: &Volume) {
    let name = &volume.volume_context["imageName"];
    let found = objects(scene);
    for (_, other) in ZONES {
        let expected = if *other == pool { vec![format!("rbd_id.{name}")] } else { Vec::new() };
        let mut there = found[other].clone();
        there.retain(|object| !object.starts_with("csi.volume."));
        assert_eq!(there, expected, "in {other}");
    }
    assert_eq!(volume.volume_context["pool"], pool);
    assert_eq!(volume.volume_context["journalPool"], pool);
}

fn assert_nothing(scene: &Scene) {
    assert!(objects(scene).values().all(Vec::is_empty), "{:?}", objects(scene));
}

/// Asked until the answer is not "ask again".
async fn created(driver: &Driver, request: &CreateVolumeRequest) -> Volume {
    let end = Instant::now() + PATIENCE;
    loop {
        match driver.create(request.clone()).await {
            Ok(volume) => return volume,
            Err(status) => assert!(status.code() == Code::Aborted && Instant::now() < end, "{status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_volume_is_made_where_it_is_wanted_most() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let request = CreateVolumeRequest {
        volume_capabilities: vec![mount("ext4")],
        ..wanted(&["zc", "za"], &["za", "zb", "zc"])
    };
    let volume = twice(|| driver.create(request.clone())).await;
    assert_eq!(volume.accessible_topology, [place("zc")]);
    assert_only_in(&scene, "topo-c", &volume);
    assert_eq!(volume.volume_context["dataPool"], DATA);
    assert!(!volume.volume_context.contains_key("topologyConstrainedPools"));
    let (id, name) = (&volume.volume_id, &volume.volume_context["imageName"]);
    // Snapshots are where their source is, and their class does not say where that is.
    let image = format!("topo-c/{}/{name}", scene.corner.namespace);
    let noted = run("rbd", &["image-meta", "get", &image, ".rbd.csi.ceph.com/topology"]);
    assert_eq!(noted.trim(), format!("{} [{{\"{KEY}\":\"zc\"}}]", &id[id.len() - 36..]));
    let life =
        Life::known(&scene, &driver, id, name, mount("ext4")).with_context(volume.volume_context.clone());
    life.up(&driver).await;
    life.write(b"zone").expect("a volume in use");
    life.down(&driver).await;
    driver.delete(id).await.expect("DeleteVolume");
    assert_nothing(&scene);
    let unplaced = CreateVolumeRequest { accessibility_requirements: None, ..wanted(&[], &[]) };
    let volume = driver.create(unplaced.clone()).await.expect("without a place: the first");
    assert_eq!(volume.accessible_topology, [place("za")]);
    let mut with_pool = CreateVolumeRequest { name: unique("pvc"), ..unplaced };
    with_pool.parameters.insert("pool".to_owned(), "topo-b".to_owned());
    let volume = driver.create(with_pool).await.expect("without a place: what `pool` names");
    assert_eq!(
        (&volume.volume_context["pool"][..], &volume.accessible_topology[..]),
        ("topo-b", &[place("zb")][..])
    );
}

#[tokio::test]
async fn other_wishes_find_the_same_volume() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let request = wanted(&["zb", "za"], &["za", "zb", "zc"]);
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    let driver = driver.killed_and_started().await;
    for preferred in [&["za", "zb"][..], &["zc"], &[]] {
        let found = driver.create(again(&request, preferred, &["za", "zb", "zc"])).await;
        assert_eq!(found.expect("CreateVolume again"), volume, "{preferred:?}");
    }
    let unplaced = CreateVolumeRequest { accessibility_requirements: None, ..request.clone() };
    assert_eq!(driver.create(unplaced).await.expect("without a place"), volume);
    check(driver.create(again(&request, &["za"], &["za"])).await, Code::ResourceExhausted, "topo-b");
    assert_only_in(&scene, "topo-b", &volume);
}

#[tokio::test]
async fn a_volume_with_a_name_of_its_own_is_found_too() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let mut request = wanted(&["zc"], &["za", "zc"]);
    request.parameters.insert("volumeNamePrefix".to_owned(), "db-".to_owned());
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    assert!(volume.volume_context["imageName"].starts_with("db-"));
    assert_only_in(&scene, "topo-c", &volume);
    let image = format!("topo-c/{}/{}", scene.corner.namespace, volume.volume_context["imageName"]);
    // Killed between the recorded name and the image.
    run("rbd", &["rm", "--no-progress", &image]);
    let other = again(&request, &["za"], &["za", "zc"]);
    assert_eq!(driver.create(other).await.expect("CreateVolume again"), volume);
    assert_only_in(&scene, "topo-c", &volume);
}

#[tokio::test]
async fn a_half_made_volume_is_made_again_and_in_one_pool() {
    let scene = scene();
    let driver = start(&scene).flag("--command-timeout=4s").start().await;
    let request = wanted(&["zb"], &["za", "zb"]);
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    let image = format!("topo-b/{}/{}", scene.corner.namespace, volume.volume_context["imageName"]);
    run("rbd", &["image-meta", "remove", &image, ".rbd.csi.ceph.com/created"]);
    let made = created(&driver, &again(&request, &["za"], &["za", "zb"])).await;
    // Where it was, unless its removal took so long that other replicas were let in.
    let pool = &made.volume_context["pool"];
    assert_only_in(&scene, pool, &made);
    let image = image.replace("topo-b", pool);
    assert!(run("rbd", &["image-meta", "list", &image]).contains("created"));
}

#[tokio::test]
async fn data_pools_tell_zones_apart_under_one_pool() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let entries = json!([entry("za", "topo-a", Some(DATA)), entry("zb", "topo-a", Some("topo-b"))]);
    let mut request = wanted(&["zb"], &["za", "zb"]);
    request.parameters.insert("topologyConstrainedPools".to_owned(), entries.to_string());
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    assert_eq!(volume.volume_context["dataPool"], "topo-b");
    assert_eq!(volume.accessible_topology, [place("zb")]);
    let other = again(&request, &["za"], &["za", "zb"]);
    assert_eq!(driver.create(other).await.expect("CreateVolume again"), volume);
}

#[tokio::test]
async fn where_no_pool_is_nothing_is_made() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let nowhere = driver.create(wanted(&["zx"], &["zx", "zy"])).await;
    check(nowhere, Code::ResourceExhausted, &format!("{KEY}=zx or {KEY}=zy"));
    let mut missing = wanted(&["za"], &["za"]);
    let entries = json!([entry("za", "topo-a", None), entry("zb", "no-such-pool", None)]);
    missing.parameters.insert("topologyConstrainedPools".to_owned(), entries.to_string());
    check(driver.create(missing).await, Code::FailedPrecondition, "no-such-pool");
    let mut misspelt = wanted(&["za"], &["za"]);
    let entries =
        json!([{ "poolName": "topo-a", "domainSegments": [{ "domainLabel": "zoen", "value": "za" }] }]);
    misspelt.parameters.insert("topologyConstrainedPools".to_owned(), entries.to_string());
    check(driver.create(misspelt).await, Code::FailedPrecondition, "\"zoen\"");
    assert_nothing(&scene);
}

/// Two replicas whose sidecars lead at once, after a failover, and see different nodes.
#[tokio::test]
async fn two_replicas_with_different_wishes_make_one_volume() {
    let scene = scene();
    let one = start(&scene).start().await;
    let two = scene.on_node("node-b", "controller").flag(FLAG).start().await;
    for _ in 0..5 {
        let request = wanted(&["za"], &["za", "zb"]);
        let other = again(&request, &["zb"], &["za", "zb"]);
        let (a, b) = tokio::join!(created(&one, &request), created(&two, &other));
        assert_eq!(a, b);
        assert_only_in(&scene, &a.volume_context["pool"], &a);
        one.delete(&a.volume_id).await.expect("DeleteVolume");
    }
    within(PATIENCE, "nothing left", || objects(&scene).values().all(Vec::is_empty)).await;
}

#[tokio::test]
async fn a_replica_killed_while_it_chose_holds_nobody_up_for_long() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let request = wanted(&["zb"], &["za", "zb"]);
    let id = driver.create(request.clone()).await.expect("CreateVolume").volume_id;
    driver.delete(&id).await.expect("DeleteVolume");
    let object = format!("csi.rbd.place.{}", &id[id.len() - 36..]);
    let args = ["--pool", "topo-a", "--namespace", &scene.corner.namespace];
    let claimed = |seconds| {
        let lock = ["lock", "get", &object, "claim", "--lock-duration", seconds];
        try_run(Command::new("rados").args(args).args(lock)).expect("the claim of another replica");
    };
    claimed("4");
    check(driver.create(request.clone()).await, Code::Aborted, "another replica");
    let volume = created(&driver, &request).await;
    assert_eq!(volume.volume_id, id);
    assert_only_in(&scene, "topo-b", &volume);
    // Killed behind the image: it is whole, and nobody has to wait.
    claimed("600");
    assert_eq!(driver.create(request).await.expect("CreateVolume again"), volume);
    assert_only_in(&scene, "topo-b", &volume);
}

async fn capabilities(driver: &Driver) -> Vec<Service> {
    let answer = driver.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await;
    let kinds = answer.expect("GetPluginCapabilities").into_inner().capabilities.into_iter();
    let service = |kind| match kind {
        Some(Type::Service(service)) => Some(service.r#type()),
        _ => None,
    };
    kinds.filter_map(|capability| service(capability.r#type)).collect()
}

/// The controller needs the names of the labels, and nothing of Kubernetes.
#[tokio::test]
async fn topology_is_offered_where_nodes_have_it() {
    let scene = scene();
    let controller = scene.on_node("node-b", "controller");
    let plain = controller.clone().start().await;
    let none = capabilities(&plain).await;
    assert_eq!(none, [Service::ControllerService, Service::SnapshotMetadataService]);
    check(plain.create(wanted(&["za"], &["za"])).await, Code::InvalidArgument, "--domainlabels");
    let unasked = CreateVolumeRequest { accessibility_requirements: None, ..wanted(&[], &[]) };
    check(plain.create(unasked).await, Code::FailedPrecondition, "--domainlabels");
    drop(plain);
    let driver = controller.flag("--domainlabels=topology.kubernetes.io/zone").start().await;
    let both = [Service::VolumeAccessibilityConstraints, Service::SnapshotAccessibilityConstraints];
    let more: Vec<_> = capabilities(&driver).await.into_iter().filter(|one| !none.contains(one)).collect();
    assert_eq!(more, both);
    // A class with one pool for all: the cluster is reached from everywhere.
    let anywhere = CreateVolumeRequest {
        parameters: request::create("", 1, block()).parameters,
        ..wanted(&["zx"], &["zx"])
    };
    let volume = driver.create(anywhere).await.expect("CreateVolume");
    assert_eq!((&volume.accessible_topology[..], &volume.volume_context["pool"][..]), (&[][..], POOL));
}

#[tokio::test]
async fn a_snapshot_is_where_its_volume_is_and_a_copy_may_be_elsewhere() {
    let scene = scene();
    let driver = start(&scene).start().await;
    let volume = driver.create(wanted(&["zb"], &["zb"])).await.expect("CreateVolume");
    let asked = |zone: &str| {
        let places = TopologyRequirement { requisite: vec![place(zone)], preferred: Vec::new() };
        let (name, accessibility_requirements) = (format!("snap-{zone}-{}", volume.volume_id), Some(places));
        CreateSnapshotRequest { accessibility_requirements, ..snaps::asked(&name, &volume.volume_id) }
    };
    check(driver.take(asked("za")).await, Code::ResourceExhausted, "zone");
    let snapshot = twice(|| driver.take(asked("zb"))).await;
    assert_eq!(snapshot.accessible_topology, [place("zb")]);
    let told = driver.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot");
    assert_eq!(told.accessible_topology, [place("zb")]);
    let copy = driver.create(wanted(&["za"], &["za"]).of_snapshot(&snapshot.snapshot_id)).await;
    let copy = copy.expect("CreateVolume in another zone");
    assert_eq!((&copy.volume_context["pool"][..], copy.accessible_topology), ("topo-a", vec![place("za")]));
    driver.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    driver.delete(&volume.volume_id).await.expect("DeleteVolume");
    driver.delete(&copy.volume_id).await.expect("DeleteVolume of the copy");
}

#[tokio::test]
async fn a_node_tells_its_place_by_the_driver_s_name() {
    let scene = Scene::new();
    let info = async |driver: &Driver| {
        driver.node().node_get_info(NodeGetInfoRequest {}).await.expect("NodeGetInfo").into_inner()
    };
    let plain = scene.start().await;
    assert_eq!(info(&plain).await.accessible_topology, None);
    drop(plain);
    let driver = scene
        .driver()
        .flag("--drivername=RBD.example.org")
        .flag("--domainlabels=failure-domain/region=r1,zone=z1")
        .start()
        .await;
    let expected = map(&[("topology.rbd.example.org/region", "r1"), ("topology.rbd.example.org/zone", "z1")]);
    assert_eq!(info(&driver).await.accessible_topology, Some(Topology { segments: expected }));
}
