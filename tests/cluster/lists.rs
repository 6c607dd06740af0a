//! What only looks, by the credential of the cluster configuration: lists, one volume, health, room.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::common::csi::controller_service_capability::Type as ControllerType;
use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::csi::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerGetVolumeResponse, ControllerListVolumeHealthRequest, CreateVolumeRequest, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, VolumeHealth,
};
use crate::common::life::{Life, MIB, block, map};
use crate::common::tools::{Answer, check, run, unique};
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::POOL;
use crate::life::request;
use crate::pool::Pool;

impl Driver {
    pub(crate) async fn list(&self, max_entries: i32, token: &str) -> Answer<ListVolumesResponse> {
        let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        Ok(self.controller().list_volumes(request).await?.into_inner())
    }

    pub(crate) async fn state(&self, id: &str) -> Answer<ControllerGetVolumeResponse> {
        let request = ControllerGetVolumeRequest { volume_id: id.to_owned() };
        Ok(self.controller().controller_get_volume(request).await?.into_inner())
    }

    pub(crate) async fn health(&self, id: &str, secrets: bool) -> Answer<VolumeHealth> {
        let secrets = if secrets { request::secrets() } else { [].into() };
        let request = ControllerGetVolumeHealthRequest { volume_id: id.to_owned(), secrets };
        let answer = self.controller().controller_get_volume_health(request).await?.into_inner();
        Ok(answer.volume_health.expect("an answer without health"))
    }

    async fn unhealthy(&self) -> Vec<VolumeHealth> {
        let request = ControllerListVolumeHealthRequest::default();
        let answer = self.controller().controller_list_volume_health(request).await;
        answer.expect("ControllerListVolumeHealth").into_inner().entries
    }

    pub(crate) async fn capacity(&self, parameters: &[(&str, &str)]) -> Answer<GetCapacityResponse> {
        let request = GetCapacityRequest { parameters: map(parameters), ..Default::default() };
        Ok(self.controller().get_capacity(request).await?.into_inner())
    }

    pub(crate) async fn nodes(&self, id: &str) -> BTreeSet<String> {
        let listed = self.list(0, "").await.expect("ListVolumes").entries;
        let entry =
            listed.into_iter().find(|entry| entry.volume.as_ref().is_some_and(|one| one.volume_id == id));
        let listed = entry.expect("it is listed").status.expect("a status").published_node_ids;
        let got = self.state(id).await.expect("ControllerGetVolume").status.expect("a status");
        let listed: BTreeSet<String> = listed.into_iter().collect();
        assert_eq!(listed, got.published_node_ids.into_iter().collect());
        listed
    }
}

/// A page of ids, and the token of the next.
async fn page(driver: &Driver, most: i32, token: &str) -> (Vec<String>, String) {
    let answer = driver.list(most, token).await.expect("ListVolumes");
    let ids = answer.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id);
    (ids.collect(), answer.next_token)
}

fn asked(parameters: &[(&str, &str)]) -> CreateVolumeRequest {
    let mut request = request::create(&unique("pvc"), 64, block());
    request.parameters.extend(map(parameters));
    request
}

async fn volumes(scene: &Scene, driver: &Driver, count: usize) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for _ in 0..count {
        ids.insert(Life::create(scene, driver, block()).await.id);
    }
    ids
}

#[tokio::test]
async fn without_a_credential_nothing_is_offered() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let offered = offered(&driver).await;
    for rpc in [3, 4, 10, 11, 12, 16, 17] {
        assert!(!offered.contains(&rpc), "{rpc} is in {offered:?}");
    }
    check(driver.list(0, "").await, Code::Unimplemented, "ListVolumes");
    check(driver.state("x").await, Code::Unimplemented, "ControllerGetVolume");
    check(driver.health("x", true).await, Code::Unimplemented, "ControllerGetVolumeHealth");
    check(driver.capacity(&[]).await, Code::Unimplemented, "GetCapacity");
    let _scene = scene.listing(&[POOL]);
    let driver = driver.killed_and_started().await;
    let offered = self::offered(&driver).await;
    for rpc in [3, 4, 10, 11, 12, 16, 17] {
        assert!(offered.contains(&rpc), "{rpc} is not in {offered:?}");
    }
}

async fn offered(driver: &Driver) -> Vec<i32> {
    let answer = driver.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
    let kinds = answer.expect("capabilities").into_inner().capabilities.into_iter();
    kinds.filter_map(|one| one.r#type).map(|ControllerType::Rpc(rpc)| rpc.r#type).collect()
}

#[tokio::test]
async fn pages_go_through_deletions_and_a_restart() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start().await;
    assert_eq!(page(&driver, 0, "").await, (vec![], String::new()));
    let all = volumes(&scene, &driver, 6).await;
    let (ids, token) = page(&driver, 0, "").await;
    assert_eq!((ids.into_iter().collect::<BTreeSet<_>>(), token), (all.clone(), String::new()));
    let (first, token) = page(&driver, 3, "").await;
    assert_eq!((first.len(), token.is_empty()), (3, false));
    let rest: BTreeSet<String> = all.into_iter().filter(|id| !first.contains(id)).collect();
    for id in first.iter().chain(rest.first()) {
        driver.delete(id).await.expect("DeleteVolume");
    }
    let driver = driver.killed_and_started().await;
    let (second, token) = page(&driver, 3, &token).await;
    let left: BTreeSet<String> = rest.into_iter().skip(1).collect();
    assert_eq!((second.into_iter().collect::<BTreeSet<_>>(), token), (left, String::new()));
    check(driver.list(0, "no token").await, Code::Aborted, "no token");
    check(driver.list(-1, "").await, Code::InvalidArgument, "-1");
}

#[tokio::test]
async fn only_volumes_are_listed_whatever_their_prefix() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start().await;
    let plain = Life::create(&scene, &driver, block()).await;
    let prefixed = Life::create_as(&scene, &driver, asked(&[("volumeNamePrefix", "mine-")])).await;
    assert_eq!(prefixed.image, format!("mine-{}", prefixed.uuid()));
    let uuid = plain.uuid();
    for image in [
        "of-an-administrator".to_owned(),
        format!("mine-{uuid}"),
        format!("csi-vol-{uuid}-temp"),
        format!("csi-del-{uuid}-12ab"),
        "csi-snap-6f7e1f9c-2a53-4c7e-9d0b-0123456789ab".to_owned(),
    ] {
        run("rbd", &["create", "--size=1M", &scene.corner.spec(&image)]);
    }
    let (ids, _) = page(&driver, 0, "").await;
    let expected: BTreeSet<String> = [plain.id.clone(), prefixed.id.clone()].into();
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), expected);
    driver.delete(&prefixed.id).await.expect("DeleteVolume");
    assert_eq!(page(&driver, 0, "").await.0, [plain.id]);
    assert!(!scene.corner.leftovers().iter().any(|left| left.contains(&prefixed.uuid())));
}

#[tokio::test]
async fn published_nodes_come_and_go_and_outlive_the_driver() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.on_node("controller", "controller").start().await;
    let life = Life::create(&scene, &driver, block()).await.with(Mode::MultiNodeMultiWriter);
    assert_eq!(driver.nodes(&life.id).await, [].into());
    let odd = "node b ä %2e";
    for node in ["node-a", odd] {
        life.attach(&driver, node).await.expect("ControllerPublishVolume");
    }
    let both: BTreeSet<String> = ["node-a".to_owned(), odd.to_owned()].into();
    assert_eq!(driver.nodes(&life.id).await, both);
    let driver = driver.killed_and_started().await;
    assert_eq!(driver.nodes(&life.id).await, both);
    life.detach(&driver, odd).await.expect("ControllerUnpublishVolume");
    assert_eq!(driver.nodes(&life.id).await, ["node-a".to_owned()].into());
    // Of every node.
    life.detach(&driver, "").await.expect("ControllerUnpublishVolume");
    assert_eq!(driver.nodes(&life.id).await, [].into());
    driver.delete(&life.id).await.expect("DeleteVolume");
    check(driver.state(&life.id).await, Code::NotFound, &life.id);
}

/// What an index says wrongly, a kill in between being the reason, is put right by the retry and by the deletion.
#[tokio::test]
async fn an_index_that_lags_behind_is_put_right() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    life.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    let key = format!("pub.{}.node-a", life.uuid());
    let index = |args: &[&str]| {
        let place = ["--pool", POOL, "--namespace", &scene.corner.namespace];
        run("rados", &[&place, args].concat())
    };
    index(&["rmomapkey", "csi.rbd.index.default", &key]);
    life.attach(&driver, "node-a").await.expect("ControllerPublishVolume, again");
    assert_eq!(driver.nodes(&life.id).await, ["node-a".to_owned()].into());
    life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
    index(&["setomapval", "csi.rbd.index.default", &key, ""]);
    life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume, again");
    assert_eq!(driver.nodes(&life.id).await, [].into());
    index(&["setomapval", "csi.rbd.index.default", &key, ""]);
    driver.delete(&life.id).await.expect("DeleteVolume");
    assert!(!index(&["listomapkeys", "csi.rbd.index.default"]).contains(&key));
    index(&["setomapval", "csi.rbd.index.default", &key, ""]);
    life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume of a deleted volume");
    assert!(!index(&["listomapkeys", "csi.rbd.index.default"]).contains(&key));
}

#[tokio::test]
async fn one_volume_is_told_with_its_size_and_place() {
    let scene = Scene::new();
    let pool = Pool::of_its_own(&scene.corner);
    let scene = scene.listing(&[POOL, &pool.name]);
    let driver = scene.start().await;
    let here = Life::create(&scene, &driver, block()).await;
    let there = Life::create_as(&scene, &driver, asked(&[("pool", &pool.name)])).await;
    let split = Life::create_as(&scene, &driver, asked(&[("dataPool", &pool.name)])).await;
    let expected: BTreeSet<String> = [&here, &there, &split].map(|life| life.id.clone()).into();
    let (mut ids, token) = page(&driver, 2, "").await;
    ids.extend(page(&driver, 2, &token).await.0);
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), expected);
    for life in [&here, &there, &split] {
        let state = driver.state(&life.id).await.expect("ControllerGetVolume");
        let volume = state.volume.expect("a volume");
        assert_eq!((&volume.volume_id, volume.capacity_bytes), (&life.id, 64 << 20));
        assert_eq!(volume.volume_context, life.context);
        assert!(state.status.and_then(|status| status.volume_condition).is_some_and(|told| !told.abnormal));
    }
    let absent = format!("{}00000000-0000-0000-0000-000000000000", &here.id[..here.id.len() - 36]);
    check(driver.state(&absent).await, Code::NotFound, &absent);
    check(driver.state("malformed").await, Code::NotFound, "malformed");
    driver.delete(&split.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn a_pool_that_is_not_there_is_not_an_empty_one() {
    let scene = Scene::new().listing(&[POOL, "no-such-pool"]);
    let driver = scene.start().await;
    check(driver.list(0, "").await, Code::FailedPrecondition, "no-such-pool");
    check(
        driver.capacity(&[("clusterID", CLUSTER), ("pool", "no-such-pool")]).await,
        Code::FailedPrecondition,
        "no-such-pool",
    );
}

#[tokio::test]
async fn health_is_told_with_secrets_and_without() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    for secrets in [true, false] {
        let told = driver.health(&life.id, secrets).await.expect("ControllerGetVolumeHealth");
        assert_eq!((told.volume_id.as_str(), told.health_statuses), (life.id.as_str(), vec![]));
    }
    assert_eq!(driver.unhealthy().await, vec![]);
    // What a killed command leaves: the name, and no image behind it.
    let id = scene.corner.info(&life.image).expect("an image")["id"].as_str().expect("an id").to_owned();
    let place = ["--pool", POOL, "--namespace", &scene.corner.namespace, "rm"];
    run("rados", &[&place[..], &[&format!("rbd_header.{id}")]].concat());
    let told = driver.health(&life.id, false).await.expect("ControllerGetVolumeHealth");
    assert_eq!(reasons(&told), ["ImageUnreadable"]);
    driver.delete(&life.id).await.expect("DeleteVolume");
    check(driver.health(&life.id, true).await, Code::NotFound, &life.id);
}

fn reasons(health: &VolumeHealth) -> Vec<&str> {
    health.health_statuses.iter().map(|one| one.reason.as_str()).collect()
}

#[tokio::test]
async fn a_quota_bounds_the_room_and_its_end_is_told() {
    let scene = Scene::new();
    let pool = Pool::of_its_own(&scene.corner);
    let scene = scene.listing(&[POOL, &pool.name]);
    let driver = scene.start().await;
    let in_pool = [("clusterID", CLUSTER), ("pool", pool.name.as_str())];
    let room = async |driver: &Driver| driver.capacity(&in_pool).await.expect("GetCapacity");
    let free = room(&driver).await;
    assert!(free.available_capacity > 10 << 30, "{free:?}");
    assert_eq!(free.minimum_volume_size, Some(1 << 20));
    assert_eq!(free.maximum_volume_size, Some(free.available_capacity >> 20 << 20));
    let life = Life::create_as(&scene, &driver, asked(&[("pool", &pool.name)])).await;
    pool.set_quota(100 * MIB);
    pool.fill(10);
    let driver = driver.killed_and_started().await;
    let bounded = room(&driver).await.available_capacity;
    assert!((80 << 20..=90 << 20).contains(&bounded), "{bounded}");
    let data = [("clusterID", CLUSTER), ("pool", POOL), ("dataPool", pool.name.as_str())];
    let of_data = driver.capacity(&data).await.expect("GetCapacity").available_capacity;
    assert_eq!(of_data, bounded);
    let any = driver.capacity(&[]).await.expect("GetCapacity").available_capacity;
    assert!(any > 10 << 30, "{any}");
    pool.set_quota(5 * MIB);
    pool.until_sick("POOL_FULL");
    let driver = driver.killed_and_started().await;
    assert_eq!(room(&driver).await.available_capacity, 0);
    assert_eq!(reasons(&driver.health(&life.id, true).await.expect("its health")), ["PoolQuotaReached"]);
    let told = driver.unhealthy().await;
    assert_eq!(told.iter().map(|one| one.volume_id.as_str()).collect::<Vec<_>>(), [life.id.as_str()]);
    pool.set_quota(0);
}

#[tokio::test]
async fn placement_groups_that_serve_nobody_are_told() {
    let scene = Scene::new();
    let pool = Pool::of_its_own(&scene.corner);
    let scene = scene.listing(&[&pool.name]);
    let driver = scene.start().await;
    let life = Life::create_as(&scene, &driver, asked(&[("pool", &pool.name)])).await;
    run("ceph", &["config", "set", "mgr", "mon_pg_stuck_threshold", "1"]);
    pool.set("size", "3");
    pool.set("min_size", "3");
    pool.until_sick("PG_AVAILABILITY");
    let driver = driver.killed_and_started().await;
    let asked = Instant::now();
    let told = driver.health(&life.id, false).await.expect("its health");
    assert_eq!(reasons(&told), ["PlacementGroupsInactive"]);
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    pool.set("min_size", "1");
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn parameters_of_get_capacity_are_those_of_create_volume() {
    let scene = Scene::new().listing(&[POOL]);
    let driver = scene.start().await;
    let with = |name: &'static str, value: &'static str| {
        let driver = &driver;
        async move { driver.capacity(&[("clusterID", CLUSTER), ("pool", POOL), (name, value)]).await }
    };
    check(with("imageFeature", "layering").await, Code::InvalidArgument, "imageFeatures");
    check(with("encrypted", "yes").await, Code::InvalidArgument, "encrypted");
    check(driver.capacity(&[("clusterID", CLUSTER)]).await, Code::InvalidArgument, "pool");
    check(
        driver.capacity(&[("clusterID", "other"), ("pool", POOL)]).await,
        Code::FailedPrecondition,
        "other",
    );
    let small = with("objectSize", "4096").await.expect("GetCapacity");
    let limit = 4096 * 256_000_000;
    assert!(small.maximum_volume_size.is_some_and(|most| most <= limit), "{small:?}");
}
