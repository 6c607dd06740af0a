//! Expansion: the image by `rbd resize`, then what is on it; online where the kernel can, and never without need.

use std::path::Path;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::common::csi::ControllerExpandVolumeRequest;
use crate::common::growth::{SIZE, pattern};
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::{PATIENCE, eventually};
use crate::common::tools::{Answer, check, run, twice, unique};
use crate::harness::{Driver, Scene};
use crate::lab::lab;
use crate::life::request;
use crate::wrap::COUNT;

/// Kills the first resize before it does anything, and the next ones each a little later: in its midst, or behind it.
const KILL_HALF_WAY: &str = r#"[ "$1" = resize ] || exec "$RBD" "$@"
number=$(grep -c ^resize "$CALLS")
((number > 1)) || kill -9 $$
((number <= 8)) || exec "$RBD" "$@"
"$REAL" "$@" &
sleep "$(printf 0.%03d $((number * 10)))"
kill -9 $! $$"#;

/// Ends the first resize by a signal when its work is done.
const KILL_BEHIND: &str = r#"[ "$1" = resize ] || exec "$RBD" "$@"
"$RBD" "$@" || exit
(($(grep -c ^resize "$CALLS") > 1)) || kill -$SIGNAL $$"#;

/// Of a new block volume.
const SMALL: u64 = 64 * MIB;

#[track_caller]
fn assert_size(scene: &Scene, life: &Life, size: u64) {
    assert_eq!(scene.corner.size(&life.image), Some(size), "rbd info {}", life.image);
}

#[track_caller]
fn assert_grown(scene: &Scene, life: &Life) {
    assert_size(scene, life, SIZE.unsigned_abs());
}

/// Asks until the answer is not that of a killed `rbd` or of what it left behind: its watch and its lock.
async fn to_its_end(call: impl AsyncFn() -> Answer<(i64, bool)>) -> i64 {
    let end = Instant::now() + PATIENCE;
    let passes = |status: &Status| {
        matches!(status.code(), Code::Internal | Code::DeadlineExceeded | Code::FailedPrecondition)
    };
    loop {
        match call().await {
            Ok((size, _)) => return size,
            Err(status) => assert!(passes(&status) && Instant::now() < end, "it ends with {status:?}"),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn xfs_and_block_volumes_grow_while_they_are_used() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("xfs"), block()] {
        let life = Life::create(&scene, &driver, capability).await;
        // The kernel's device follows the image, so whoever has the raw device sees it at once.
        assert_eq!(life.grows_while_it_is_used(&driver).await, life.capability.is_block());
        assert_grown(&scene, &life);
        life.assert_gone_from(&driver);
    }
}

#[tokio::test]
async fn either_path_tells_which_volume_grows() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("xfs")).await;
    life.grows_at_either_path(&driver).await;
    assert_size(&scene, &life, 2 * SIZE.unsigned_abs());
}

#[tokio::test]
async fn ext4_has_its_new_size_after_the_next_stage_at_the_latest() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.has_its_new_size_after_the_next_stage(&driver).await;
    assert_grown(&scene, &life);
}

#[tokio::test]
async fn an_unstaged_volume_grows_too() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), mount("xfs"), block()] {
        let data = pattern(1, 3);
        let life = Life::create(&scene, &driver, capability).await.filled(&driver, &data).await;
        assert_eq!(twice(|| life.expand(&driver, SIZE)).await, (SIZE, true));
        assert_grown(&scene, &life);
        life.shows_what_it_grew_to(&driver, &data).await;
    }
}

/// The controller and the node are two drivers there.
#[tokio::test]
async fn a_volume_grows_on_the_node_that_has_it() {
    let scene = Scene::new();
    let (controller, node) =
        (scene.on_node("node-a", "controller").start().await, scene.on_node("node-b", "node").start().await);
    let life = Life::create(&scene, &controller, mount("xfs")).await.on(&scene, &node);
    life.up(&node).await;
    assert_eq!(life.expand(&controller, SIZE).await.expect("ControllerExpandVolume"), (SIZE, true));
    assert_eq!(life.expand_at(&node, &life.target, SIZE).await.expect("NodeExpandVolume"), SIZE);
    assert!(life.shown_size(&node).await > 400 * MIB);
    life.down(&node).await;
}

#[tokio::test]
async fn a_volume_that_is_large_enough_costs_no_resize() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let life = Life::create(&scene, &driver, block()).await;
    let size = 64 << 20;
    for bytes in [0, 1, 1 << 20, size] {
        assert_eq!(life.expand(&driver, bytes).await.expect("it is large enough"), (size, true));
    }
    assert_eq!(life.expand_within(&driver, size, size).await.expect("exactly its size"), (size, true));
    assert_eq!(wrapper.count("resize"), 0, "{:#?}", wrapper.calls());
    assert_eq!(twice(|| life.expand(&driver, size + 1)).await.0, 65 << 20, "no whole MiB");
    assert_eq!(wrapper.count("resize"), 1, "{:#?}", wrapper.calls());
    assert_size(&scene, &life, 65 * MIB);
}

#[tokio::test]
async fn what_cannot_grow_stays_as_it_is() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    // librbd's object map counts at most 256 million objects, here of 4 MiB.
    let most = 256_000_000 * (4 << 20);
    for bytes in [most + 1, i64::MAX - MIB.cast_signed(), i64::MAX] {
        check(life.expand(&driver, bytes).await, Code::OutOfRange, "bytes");
    }
    check(life.expand(&driver, -1).await, Code::InvalidArgument, "-1");
    let rangeless = ControllerExpandVolumeRequest { capacity_range: None, ..life.expansion(0, 0) };
    check(driver.ask_to_expand(rangeless).await, Code::InvalidArgument, "capacity_range");
    check(life.expand_within(&driver, 0, 32 << 20).await, Code::OutOfRange, "67108864");
    check(life.expand_within(&driver, 1 << 20, 32 << 20).await, Code::OutOfRange, "67108864");
    check(life.expand_within(&driver, 128 << 20, 100 << 20).await, Code::OutOfRange, "limit_bytes");
    let between = ((100 << 20) + 1, (100 << 20) + 2);
    check(life.expand_within(&driver, between.0, between.1).await, Code::OutOfRange, "104857602");
    assert_size(&scene, &life, SMALL);
}

#[tokio::test]
async fn what_is_no_volume_does_not_grow() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let head = &life.id[..life.id.len() - 36];
    let absent = format!("{head}00000000-0000-0000-0000-000000000000");
    let foreign = life.id.replacen("-lab-", "-far-", 1);
    let named = |id: &str| Life { id: id.to_owned(), ..life.clone() };
    for id in ["malformed", "0001-0003-lab", "../../etc", &absent] {
        check(named(id).expand(&driver, SIZE).await, Code::NotFound, id);
    }
    check(named(&foreign).expand(&driver, SIZE).await, Code::FailedPrecondition, "\"far\"");
    check(named("").expand(&driver, SIZE).await, Code::InvalidArgument, "volume_id");
    assert_size(&scene, &life, SMALL);
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&life.image)]);
    check(life.expand(&driver, SIZE).await, Code::NotFound, &life.image);
    assert!(scene.corner.images().is_empty(), "{:?}", scene.corner.images());
}

#[tokio::test]
async fn a_volume_whose_prefixed_image_is_gone_does_not_grow() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = prefixed(&scene, &driver).await;
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&life.image)]);
    check(life.expand(&driver, SIZE).await, Code::NotFound, &life.id);
    assert!(scene.corner.images().is_empty(), "{:?}", scene.corner.images());
}

async fn prefixed(scene: &Scene, driver: &Driver) -> Life {
    let mut request = request::create(&unique("pvc"), 320, mount("xfs"));
    request.parameters.extend(request::map(&[("volumeNamePrefix", "shop-")]));
    Life::create_as(scene, driver, request).await
}

#[tokio::test]
async fn a_volume_with_a_name_prefix_grows() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = prefixed(&scene, &driver).await;
    assert_eq!(life.image, format!("shop-{}", life.uuid()));
    life.grows_while_it_is_used(&driver).await;
    assert_grown(&scene, &life);
}

#[tokio::test]
async fn secrets_that_open_nothing_grow_nothing() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let mut wrong = lab().key.clone();
    let other = if &wrong[24..25] == "A" { "B" } else { "A" };
    wrong.replace_range(24..25, other);
    let keyed = |user: &str, key: &str| Life {
        secrets: request::map(&[("userID", user), ("userKey", key)]),
        ..life.clone()
    };
    check(keyed("csi", &wrong).expand(&driver, SIZE).await, Code::Unauthenticated, "userKey");
    check(keyed("nobody", &wrong).expand(&driver, SIZE).await, Code::Unauthenticated, "userID");
    let keyless = Life { secrets: request::Map::new(), ..life.clone() };
    check(keyless.expand(&driver, SIZE).await, Code::InvalidArgument, "userID");
    assert_size(&scene, &life, SMALL);
}

/// As with an image that is mapped with `-o exclusive`.
#[tokio::test]
async fn an_image_that_somebody_else_has_locked_waits_for_him() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    let spec = scene.corner.spec(&life.image);
    run("rbd", &["lock", "add", &spec, "mine"]);
    check(life.expand(&driver, SIZE).await, Code::FailedPrecondition, &life.image);
    assert_size(&scene, &life, SMALL);
    let locks = run("rbd", &["lock", "ls", &spec]);
    let locker = locks.split_whitespace().find(|word| word.starts_with("client.")).expect("a locker");
    run("rbd", &["lock", "rm", &spec, "mine", locker]);
    assert_eq!(life.expand(&driver, SIZE).await.expect("ControllerExpandVolume").0, SIZE);
    assert_grown(&scene, &life);
}

#[tokio::test]
async fn a_resize_killed_half_way_is_finished_by_a_later_call() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(KILL_HALF_WAY);
    let driver = scene.start_with(&wrapper).await;
    let data = pattern(1, 4);
    let life = Life::create(&scene, &driver, mount("xfs")).await.filled(&driver, &data).await;
    check(life.expand(&driver, SIZE).await, Code::Internal, &life.image);
    assert_size(&scene, &life, 320 * MIB);
    assert_eq!(to_its_end(async || life.expand(&driver, SIZE).await).await, SIZE);
    assert_grown(&scene, &life);
    assert_eq!(twice(|| life.expand(&driver, SIZE)).await, (SIZE, true));
    assert!(wrapper.count("resize") > 1, "{:#?}", wrapper.calls());
    eventually("no watch of what was killed", || scene.corner.watchers(&life.image).is_empty()).await;
    life.shows_what_it_grew_to(&driver, &data).await;
}

/// `rbd` 16.2 aborts once in some thousand runs, and it refuses the size that an image has.
#[tokio::test]
async fn a_resize_that_dies_when_its_work_is_done_has_done_it() {
    for signal in ["KILL", "ABRT"] {
        let scene = Scene::new();
        let wrapper = scene.wrapper(&format!("SIGNAL={signal}\n{KILL_BEHIND}"));
        let driver = scene.start_with(&wrapper).await;
        let life = Life::create(&scene, &driver, mount("xfs")).await;
        life.up(&driver).await;
        assert_eq!(twice(|| life.expand(&driver, SIZE)).await, (SIZE, true), "{signal}");
        assert_grown(&scene, &life);
        assert_eq!(life.expand_at(&driver, &life.target, SIZE).await.expect("NodeExpandVolume"), SIZE);
        assert!(life.shown_size(&driver).await > 400 * MIB);
        life.down(&driver).await;
    }
}

#[tokio::test]
async fn a_node_expands_only_what_it_has() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, block()).await;
    check(life.expand_at(&driver, &life.target, SIZE).await, Code::NotFound, &life.id);
    check(life.expand_at(&driver, Path::new(""), SIZE).await, Code::InvalidArgument, "volume_path");
    life.up(&driver).await;
    check(life.expand_at(&driver, &life.target, SIZE).await, Code::FailedPrecondition, "controller first");
    life.down(&driver).await;
    assert_size(&scene, &life, SMALL);
}
