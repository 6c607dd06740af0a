//! `rbd clone` and what goes with it killed at random instants, and the halves that this leaves: each request is repeated
//! to its end, and every copy is whole, known to its parent, and has the data.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use tonic::{Code, Status};

use crate::common::csi::CreateVolumeRequest;
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block};
use crate::common::tools::{check, run};
use crate::harness::{Driver, Scene};
use crate::life::request;
use crate::sources::{like, snapshot};

const SEED: u32 = 20_261_121;
/// Requests under way together.
const TOGETHER: usize = 16;
/// For one request, kills and the 30 s that the watch of each corpse lasts included.
const PATIENCE: Duration = Duration::from_secs(600);

/// With one chance in two, kills what makes or grows a clone after 0 to 120 ms, once for each verb and what it is about.
const KILL: &str = r#"
case $1 in clone | resize | snap) ;; *) exec "$RBD" "$@" ;; esac
for arg; do [[ $arg != rbd/* ]] || what="$1 $2 $arg"; done
RANDOM=$((SEED + 7919 * $(wc -l <"$CALLS")))
if ((RANDOM % 2)) || grep -qxF "$what" "$CALLS.killed" || [[ "$*" == *" ls "* ]]; then exec "$REAL" "$@"; fi
echo "$what" >>"$CALLS.killed"
"$REAL" "$@" <&0 &
sleep "$(printf 0.%03d $((RANDOM % 121)))"
kill -9 $! && kill -9 $$
wait $!"#;

/// Any other code is final for a provisioner, which then forgets what is there.
async fn to_its_end(driver: &Driver, request: &CreateVolumeRequest) -> String {
    let end = Instant::now() + PATIENCE;
    let passes = |status: &Status| matches!(status.code(), Code::Aborted | Code::DeadlineExceeded);
    let early = |status: &Status| status.code() == Code::Internal && !status.message().contains("half-made");
    loop {
        match driver.create(request.clone()).await {
            Ok(volume) => return volume.volume_context["imageName"].clone(),
            Err(status) => {
                assert!(
                    (passes(&status) || early(&status)) && Instant::now() < end,
                    "it ends with {status:?}"
                );
            }
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// One in three is larger than its source.
fn requests(source: &Life, snapshot: &str, count: usize) -> Vec<CreateVolumeRequest> {
    let one = |number: usize| {
        let mut request = like(source);
        let mib = if number.is_multiple_of(3) { 96 } else { 64 };
        request.capacity_range = request::create("", mib, block()).capacity_range;
        if number.is_multiple_of(2) { request.of_snapshot(snapshot) } else { request.of_volume(&source.id) }
    };
    (0..count).map(one).collect()
}

async fn filled(scene: &Scene, driver: &Driver) -> Life {
    Life::create(scene, driver, block()).await.filled(driver, &pattern(2, 7)).await
}

/// The digest of the source's data alone: what a larger copy has behind it are zeros.
fn content(scene: &Scene, image: &str) -> String {
    let script = "rbd export --no-progress \"$0\" - | head -c 67108864 | sha256sum";
    run("sh", &["-c", script, &scene.corner.spec(image)])
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the seed and the number of kills belong to the result")]
async fn copies_survive_their_rbd() {
    let count = std::env::var("CLUSTER_KILLS").ok().map_or(30, |count| count.parse().expect("CLUSTER_KILLS"));
    let count = usize::min(count, 200);
    let scene = Scene::new();
    let wrapper = scene.wrapper(&format!("SEED={SEED}\n{KILL}"));
    std::fs::write(scene.path("wrapper/calls.killed"), "").expect("an empty list of kills");
    let plain = scene.start().await;
    let source = filled(&scene, &plain).await;
    let taken = snapshot(&scene, &source);
    // Longer than the lock of a corpse lasts: what waits for it would be killed too, and be the next one.
    let driver = scene.on_node("node-b", "controller").flag("--command-timeout=35s");
    let driver = driver.flag("--max-rbd-processes=16").wrapped(&wrapper).start().await;
    let asked = requests(&source, &taken.id, count);
    let images: Vec<String> = futures_util::stream::iter(&asked)
        .map(|request| to_its_end(&driver, request))
        .buffered(TOGETHER)
        .collect()
        .await;
    let (whole, children) = (content(&scene, &source.image), scene.corner.children(&source.image));
    for (image, request) in images.iter().zip(&asked) {
        let size = request.capacity_range.as_ref().expect("a range").required_bytes;
        assert_eq!(scene.corner.size(image), Some(size.unsigned_abs()), "{image}");
        assert!(children.contains(image), "{image} is not known to its parent");
        assert_eq!(content(&scene, image), whole, "{image} has other data");
    }
    assert_eq!(children.len(), count, "something half-made is left");
    assert_eq!(scene.corner.snapshots(&source.image), [taken.name.as_str()], "a temporary snapshot is left");
    let killed = std::fs::read_to_string(scene.path("wrapper/calls.killed")).expect("the list of kills");
    let killed = killed.lines().count();
    eprintln!("seed {SEED}: {count} copies made, {killed} of {} rbd killed", wrapper.calls().len());
    assert!(killed * 3 > count, "only {killed} kills: this proves little");
}

/// What a killed `rbd clone` was seen to leave: an image of the right size without a parent, or a name alone.
#[tokio::test]
async fn halves_are_made_again_when_they_are_old_enough() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=4s").start().await;
    let patient = scene.on_node("node-b", "controller").start().await;
    let source = filled(&scene, &driver).await;
    let taken = snapshot(&scene, &source);
    let content = scene.corner.content(&source.image);
    for half in ["no parent", "a name alone"] {
        for request in [like(&source).of_snapshot(&taken.id), like(&source).of_volume(&source.id)] {
            let volume = driver.create(request.clone()).await.expect("CreateVolume");
            let image = &volume.volume_context["imageName"];
            let spec = scene.corner.spec(image);
            run("rbd", &["rm", "--no-progress", &spec]);
            run("rbd", &["create", "--size=64", &spec]);
            if half == "a name alone" {
                let id = crate::lab::text(&scene.corner.info(image).expect("the half")["id"]);
                let header = format!("rbd_header.{id}");
                run("rados", &["--pool=rbd", "--namespace", &scene.corner.namespace, "rm", &header]);
            }
            check(patient.create(request.clone()).await, Code::Aborted, image);
            assert_eq!(to_its_end(&driver, &request).await, *image);
            assert_eq!(scene.corner.content(image), content, "{half}");
            assert!(scene.corner.children(&source.image).contains(image));
        }
    }
    assert_eq!(scene.corner.snapshots(&source.image), [taken.name.as_str()]);
}

/// No marker and no parent, and yet somebody's data.
#[tokio::test]
async fn what_holds_data_of_its_own_is_never_made_again() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--command-timeout=8s").start().await;
    let source = filled(&scene, &driver).await;
    let taken = snapshot(&scene, &source);
    let request = like(&source).of_snapshot(&taken.id);
    let volume = driver.create(request.clone()).await.expect("CreateVolume");
    let image = &volume.volume_context["imageName"];
    run("rbd", &["flatten", "--no-progress", &scene.corner.spec(image)]);
    // What is to be written behind the answer has been by then.
    tokio::time::sleep(Duration::from_secs(9)).await;
    if scene.corner.marker(image).is_some() {
        scene.corner.remove_meta(image, ".rbd.csi.ceph.com/created");
    }
    check(driver.create(request).await, Code::FailedPrecondition, "holds data");
    assert_eq!(scene.corner.size(image), Some(64 * MIB));
}

/// The request was given up between the clone and the removal of its snapshot.
#[tokio::test]
async fn a_temporary_snapshot_goes_with_the_retry_or_with_the_deletion() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = filled(&scene, &driver).await;
    for deleted in [false, true] {
        let request = like(&source).of_volume(&source.id);
        let volume = driver.create(request.clone()).await.expect("CreateVolume");
        let (id, image) = (&volume.volume_id, &volume.volume_context["imageName"]);
        let temporary = format!("{}@csi-clone-{}", scene.corner.spec(&source.image), &id[id.len() - 36..]);
        run("rbd", &["rm", "--no-progress", &scene.corner.spec(image)]);
        run("rbd", &["snap", "create", "--no-progress", &temporary]);
        run("rbd", &["clone", "--rbd-default-clone-format=2", &temporary, &scene.corner.spec(image)]);
        if deleted {
            driver.delete(id).await.expect("DeleteVolume");
        } else {
            assert_eq!(driver.create(request).await.expect("CreateVolume again"), volume);
            assert!(scene.corner.children(&source.image).contains(image));
        }
        assert!(scene.corner.snapshots(&source.image).is_empty(), "the temporary snapshot is left");
    }
}
