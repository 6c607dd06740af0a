//! ListVolumes and ListSnapshots: pages whose tokens survive deletions, filters, and what each entry says.

use std::collections::BTreeSet;

use tonic::Code;

use crate::asks;
use crate::common::csi::{GetSnapshotRequest, ListSnapshotsRequest};
use crate::common::driver::Driver;
use crate::common::life::{Life, block};
use crate::common::tools::{check, unique};
use crate::harness::{NODE, Scene};

async fn volumes(driver: &Driver, count: usize) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for _ in 0..count {
        ids.insert(driver.create(asks::any(1, block())).await.expect("CreateVolume").volume_id);
    }
    ids
}

/// A page of ids, and the token of the next.
async fn page(driver: &Driver, most: i32, token: &str) -> (Vec<String>, String) {
    let answer = driver.list(most, token).await.expect("ListVolumes");
    let ids = answer.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id);
    (ids.collect(), answer.next_token)
}

async fn snapshot_page(driver: &Driver, request: ListSnapshotsRequest) -> (Vec<String>, String) {
    let answer = driver.list_snapshots(request).await.expect("ListSnapshots");
    let ids = answer.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot").snapshot_id);
    (ids.collect(), answer.next_token)
}

#[tokio::test]
async fn all_volumes_are_listed_in_pages() {
    let scene = Scene::new();
    let driver = scene.start().await;
    assert_eq!(page(&driver, 0, "").await, (vec![], String::new()));
    let all = volumes(&driver, 5).await;
    let (ids, token) = page(&driver, 0, "").await;
    assert_eq!((ids.len(), token), (5, String::new()));
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (ids, next) = page(&driver, 2, &token).await;
        assert!(ids.len() <= 2, "{ids:?}");
        seen.extend(ids);
        pages += 1;
        token = next;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (5, 3));
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all);
}

#[tokio::test]
async fn a_token_survives_deletions_and_a_restart() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let all = volumes(&driver, 6).await;
    let (first, token) = page(&driver, 3, "").await;
    let rest: BTreeSet<String> = all.into_iter().filter(|id| !first.contains(id)).collect();
    for id in first.iter().chain(rest.first()) {
        driver.delete(id).await.expect("DeleteVolume");
    }
    let driver = driver.killed_and_started().await;
    let (second, token) = page(&driver, 3, &token).await;
    let left: BTreeSet<String> = rest.into_iter().skip(1).collect();
    assert_eq!((second.into_iter().collect::<BTreeSet<_>>(), token), (left, String::new()));
}

#[tokio::test]
async fn tokens_and_numbers_that_cannot_be() {
    let scene = Scene::new();
    let driver = scene.start().await;
    volumes(&driver, 1).await;
    check(driver.list(0, "no token").await, Code::Aborted, "no token");
    check(driver.list(-1, "").await, Code::InvalidArgument, "-1");
    let request = |max_entries, starting_token: &str| ListSnapshotsRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
        ..Default::default()
    };
    check(driver.list_snapshots(request(0, "no token")).await, Code::Aborted, "no token");
    check(driver.list_snapshots(request(-1, "")).await, Code::InvalidArgument, "-1");
}

#[tokio::test]
async fn an_entry_says_what_the_volume_is_and_where_it_is_published() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let entry = || async {
        let entry = driver.list(0, "").await.expect("ListVolumes").entries.remove(0);
        let (status, state) =
            (entry.status.expect("a status"), driver.state(&life.id).await.expect("its state"));
        assert_eq!(entry.volume, state.volume);
        let one = state.status.expect("a status");
        assert_eq!(status.published_node_ids, one.published_node_ids);
        assert_eq!(status.volume_condition, one.volume_condition);
        (entry.volume.expect("a volume"), status)
    };
    let (volume, status) = entry().await;
    assert_eq!((volume.volume_id, volume.capacity_bytes), (life.id.clone(), 64 << 20));
    assert_eq!(status.published_node_ids, Vec::<String>::new());
    assert!(status.volume_condition.is_some_and(|condition| !condition.abnormal));
    life.attach(&driver, NODE).await.expect("ControllerPublishVolume");
    assert_eq!(entry().await.1.published_node_ids, [NODE]);
    life.detach(&driver, NODE).await.expect("ControllerUnpublishVolume");
    assert_eq!(entry().await.1.published_node_ids, Vec::<String>::new());
    driver.delete(&life.id).await.expect("DeleteVolume");
    check(driver.state(&life.id).await, Code::NotFound, &life.id);
}

#[tokio::test]
async fn snapshots_are_listed_in_pages_that_survive_deletions() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let mut all = BTreeSet::new();
    for _ in 0..5 {
        let snapshot = driver.snapshot(&unique("snap"), &source.id).await.expect("CreateSnapshot");
        all.insert(snapshot.snapshot_id);
    }
    let two =
        |token: String| ListSnapshotsRequest { max_entries: 2, starting_token: token, ..Default::default() };
    let (mut seen, token) = snapshot_page(&driver, two(String::new())).await;
    assert_eq!(seen.len(), 2);
    driver.delete_snapshot(&seen[1]).await.expect("DeleteSnapshot");
    driver.delete(&source.id).await.expect("DeleteVolume");
    let (more, token) = snapshot_page(&driver, two(token)).await;
    seen.extend(more);
    let (last, token) = snapshot_page(&driver, two(token)).await;
    seen.extend(last);
    assert_eq!((seen.into_iter().collect::<BTreeSet<_>>(), token), (all, String::new()));
}

#[tokio::test]
async fn snapshots_are_found_by_id_and_by_source() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (one, two) =
        (Life::create(&scene, &driver, block()).await, Life::create(&scene, &driver, block()).await);
    let of_one = driver.snapshot(&unique("snap"), &one.id).await.expect("CreateSnapshot");
    let of_two = driver.snapshot(&unique("snap"), &two.id).await.expect("CreateSnapshot").snapshot_id;
    let asked = |source: &str, id: &str| ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    let absent = format!("{}{}", &one.id[..one.id.len() - 36], "00000000-0000-0000-0000-000000000000");
    for (source, id, expected) in [
        (one.id.as_str(), "", vec![&of_one.snapshot_id]),
        (&two.id, "", vec![&of_two]),
        ("", of_two.as_str(), vec![&of_two]),
        (&two.id, &of_two, vec![&of_two]),
        (&one.id, &of_two, vec![]),
        (&absent, "", vec![]),
        ("malformed", "", vec![]),
        ("", "malformed", vec![]),
    ] {
        let (found, token) = snapshot_page(&driver, asked(source, id)).await;
        assert_eq!((found.iter().collect::<Vec<_>>(), token), (expected, String::new()), "{source} {id}");
    }
    let get = |id: &str| {
        let request = GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let mut controller = driver.controller();
        async move { controller.get_snapshot(request).await.map(|answer| answer.into_inner().snapshot) }
    };
    assert_eq!(get(&of_one.snapshot_id).await.expect("GetSnapshot"), Some(of_one.clone()));
    driver.delete_snapshot(&of_one.snapshot_id).await.expect("DeleteSnapshot");
    check(get(&of_one.snapshot_id).await, Code::NotFound, &of_one.snapshot_id);
}
