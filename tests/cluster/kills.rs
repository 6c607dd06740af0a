//! `rbd` killed at random instants: each request is repeated to its end, and nothing is half-made or left over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tonic::{Code, Status};

use crate::audit::finds_nothing;
use crate::common::life::{MIB, block};
use crate::common::sight::within;
use crate::common::tools::{Answer, unique};
use crate::harness::{Driver, Scene};
use crate::life::request;

const SEED: u32 = 20_260_917;
/// Requests under way together.
const TOGETHER: usize = 16;
/// For one request, kills and the 30 s that the watch of each corpse lasts included.
const PATIENCE: Duration = Duration::from_secs(600);

/// With one chance in two, kills what creates or removes an image after 0 to 120 ms, at most `$RISKS` times for each
/// verb and image, so that the end comes in sight.
const KILL: &str = r#"
case $1 in import | trash) ;; *) exec "$RBD" "$@" ;; esac
for arg; do [[ $arg != rbd/* ]] || what="$1 $2 $arg"; done
RANDOM=$((SEED + 7919 * $(wc -l <"$CALLS")))
if ((RANDOM % 2)) || (($(grep -cxF "$what" "$CALLS.killed") >= RISKS)); then exec "$REAL" "$@"; fi
echo "$what" >>"$CALLS.killed"
"$REAL" "$@" <&0 &
sleep "$(printf 0.%03d $((RANDOM % 121)))"
kill -9 $! && kill -9 $$
wait $!"#;

/// Asks until it succeeds, as a sidecar does with answers that `may` come.
async fn to_its_end<T>(call: impl AsyncFn() -> Answer<T>, may: impl Fn(&Status) -> bool) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(status) => assert!(may(&status) && Instant::now() < end, "it ends with {status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// Any other code than the first two is final for a provisioner: the volume would be lost, if there is any of it.
fn may_create_answer(scene: &Scene, status: &Status) -> bool {
    let (code, message) = (status.code(), status.message());
    let image = message.find("csi-vol-").and_then(|at| message.get(at..at + 44));
    let nothing_there = || image.is_some_and(|image| !scene.corner.has(image) && !scene.corner.has_id(image));
    matches!(code, Code::Aborted | Code::DeadlineExceeded) || code == Code::Internal && nothing_there()
}

/// A provisioner repeats all of these.
fn may_delete_answer(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Aborted | Code::FailedPrecondition | Code::DeadlineExceeded | Code::Internal
    )
}

async fn create_all(scene: &Scene, driver: &Driver, count: usize) -> BTreeSet<String> {
    let one = |_| async {
        let request = request::create(&unique("pvc"), 16, block());
        let may = |status: &Status| may_create_answer(scene, status);
        to_its_end(|| driver.create(request.clone()), may).await.volume_id
    };
    futures_util::stream::iter(0..count).map(one).buffer_unordered(TOGETHER).collect().await
}

async fn delete_all(driver: &Driver, ids: &BTreeSet<String>) {
    let delete = |id: String| async move { to_its_end(|| driver.delete(&id), may_delete_answer).await };
    futures_util::stream::iter(ids.clone()).map(delete).buffer_unordered(TOGETHER).collect::<Vec<()>>().await;
}

/// `CLUSTER_KILLS` creates and deletes together.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "the seed and the number of kills belong to the result")]
async fn creates_and_deletes_survive_their_rbd() {
    let count = std::env::var("CLUSTER_KILLS")
        .ok()
        .map_or(60, |count| count.parse().expect("CLUSTER_KILLS: a number"))
        / 2;
    let risks = if count > 50 { 2 } else { 1 };
    let scene = Scene::new();
    let wrapper = scene.wrapper(&format!("SEED={SEED} RISKS={risks}\n{KILL}"));
    std::fs::write(scene.path("wrapper/calls.killed"), "").expect("an empty list of kills");
    let driver = scene
        .driver()
        .flag("--command-timeout=4s")
        .flag("--max-rbd-processes=16")
        .wrapped(&wrapper)
        .start()
        .await;
    let ids = create_all(&scene, &driver, count).await;
    let uuids: BTreeSet<String> = ids.iter().map(|id| id[id.len() - 36..].to_owned()).collect();
    assert_eq!(scene.corner.images(), uuids.iter().map(|uuid| format!("csi-vol-{uuid}")).collect());
    for uuid in &uuids {
        let image = format!("csi-vol-{uuid}");
        assert_eq!(scene.corner.size(&image), Some(16 * MIB), "{image} is not whole");
        let marker = scene.corner.meta(&image).remove(".rbd.csi.ceph.com/created");
        assert_eq!(marker, Some(format!("{uuid} {}", 16 * MIB)), "{image} is not whole");
    }
    delete_all(&driver, &ids).await;
    assert!(scene.corner.images().is_empty(), "{:?}", scene.corner.images());
    within(PATIENCE, "an empty trash", || scene.corner.leftovers().is_empty()).await;
    finds_nothing(&scene);
    let killed = std::fs::read_to_string(scene.path("wrapper/calls.killed"))
        .expect("the list of kills")
        .lines()
        .count();
    eprintln!(
        "seed {SEED}: {count} volumes created and deleted, {killed} of {} rbd killed",
        wrapper.calls().len()
    );
    assert!(killed * 3 > count, "only {killed} kills: this proves little");
}
