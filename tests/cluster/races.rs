//! Two controller services on one cluster, asked for the same names at once: empty volumes, restores and clones, each with
//! its deletion. They agree, and nothing is left over.

use std::time::{Duration, Instant};

use tonic::Code;

use crate::common::csi::CreateVolumeRequest;
use crate::common::life::{Life, block};
use crate::common::sight::eventually;
use crate::common::tools::{Answer, unique};
use crate::harness::{Driver, Scene};
use crate::life::request;
use crate::snaps;

/// For one request, its retries included: the watch of a killed or slow command lasts 30 s.
const PATIENCE: Duration = Duration::from_secs(300);
const ROUNDS: usize = 3;

/// What a sidecar asks again.
async fn to_its_end<T>(call: impl AsyncFn() -> Answer<T>) -> Answer<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = call().await;
        let again = |code| {
            matches!(code, Code::Aborted | Code::DeadlineExceeded | Code::Internal | Code::FailedPrecondition)
        };
        match answer {
            Err(status) if again(status.code()) && Instant::now() < end => {}
            answer => return answer,
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn created(driver: &Driver, request: &CreateVolumeRequest) -> Answer<String> {
    to_its_end(|| driver.create(request.clone())).await.map(|volume| volume.volume_id)
}

async fn deleted(both: &[Driver; 2], id: &str) {
    let [a, b] = both;
    let (a, b) = tokio::join!(to_its_end(|| a.delete(id)), to_its_end(|| b.delete(id)));
    a.and(b).expect("DeleteVolume");
}

/// The requests of one round: of nothing, of a snapshot, of a volume.
fn asked(source: &Life, snapshot: &str) -> [CreateVolumeRequest; 3] {
    let one = || request::create(&unique("race"), 16, block());
    [one(), one().of_snapshot(snapshot), one().of_volume(&source.id)]
}

#[tokio::test]
async fn two_controllers_agree_on_volumes_restores_clones_and_their_deletion() {
    let scene = Scene::new();
    let start = async |node: &str| scene.on_node(node, "controller").start().await;
    let both = [start("replica-a").await, start("replica-b").await];
    let [a, b] = &both;
    let node = scene.on_node("node-a", "node").start().await;
    let request = request::create(&unique("pvc"), 16, block());
    let source =
        Life::create_as(&scene, a, request).await.on(&scene, &node).filled(&node, b"of the source").await;
    let snapshot = a.take(snaps::asked(&unique("snap"), &source.id)).await.expect("CreateSnapshot");
    for _ in 0..ROUNDS {
        for request in asked(&source, &snapshot.snapshot_id) {
            let (one, two) = tokio::join!(created(a, &request), created(b, &request));
            let (one, two) = (one.expect("CreateVolume"), two.expect("CreateVolume in the other"));
            assert_eq!(one, two);
            let image = format!("csi-vol-{}", &one[one.len() - 36..]);
            if request.volume_content_source.is_some() {
                assert_eq!(scene.corner.content(&image), scene.corner.content(&source.image));
                assert!(scene.corner.children(&source.image).contains(&image), "no child of its source");
            }
            // While one makes it again, the other deletes it: it is there, or it is not.
            let (again, gone) = tokio::join!(created(a, &request), to_its_end(|| b.delete(&one)));
            gone.expect("DeleteVolume");
            assert_eq!(again.expect("CreateVolume"), one);
            deleted(&both, &one).await;
            assert!(!scene.corner.has(&image), "{image} is left");
        }
    }
    assert_eq!(scene.corner.snapshots(&source.image).len(), 1, "a temporary snapshot is left");
    a.unsnap(&snapshot.snapshot_id).await.expect("DeleteSnapshot");
    deleted(&both, &source.id).await;
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}
