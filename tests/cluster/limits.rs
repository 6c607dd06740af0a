//! Chains of clones stay short, and images keep room for snapshots: what is too much is flattened, unless it is in use.

use tonic::Code;

use crate::common::growth::pattern;
use crate::common::life::{Life, block};
use crate::common::sight::eventually;
use crate::common::tools::{check, run, twice};
use crate::harness::Scene;
use crate::sources::{cloned, like, restored, snapshot};

#[tokio::test]
async fn a_clone_beyond_the_hard_limit_has_no_parents() {
    let scene = Scene::new();
    let flags = ["--rbdhardmaxclonedepth=2", "--rbdsoftmaxclonedepth=2"];
    let driver = flags.iter().fold(scene.driver(), |driver, flag| driver.flag(flag)).start().await;
    let data = pattern(2, 1);
    let first = Life::create(&scene, &driver, block()).await.filled(&driver, &data).await;
    let second = cloned(&scene, &driver, &first).await;
    let third = restored(&scene, &driver, &snapshot(&scene, &second), &second).await;
    assert!(scene.corner.has_parent(&third.image));
    let (taken, asked) = (snapshot(&scene, &third), like(&third));
    for request in [asked.of_snapshot(&taken.id), like(&third).of_volume(&third.id)] {
        let volume = twice(|| driver.create(request.clone())).await;
        let image = &volume.volume_context["imageName"];
        assert!(!scene.corner.has_parent(image), "{image} was not flattened");
        assert_eq!(scene.corner.content(image), scene.corner.content(&first.image));
        let other = snapshot(&scene, &third);
        check(driver.create(request.of_snapshot(&other.id)).await, Code::AlreadyExists, "made from");
    }
}

#[tokio::test]
async fn a_flatten_that_is_killed_is_finished_by_the_retry() {
    let scene = Scene::new();
    let once = r#"[ "$1" = flatten ] || exec "$RBD" "$@"
(($(grep -c ^flatten "$CALLS") > 1)) || kill -9 $$
exec "$RBD" "$@""#;
    let wrapper = scene.wrapper(once);
    let flags = ["--rbdhardmaxclonedepth=1", "--rbdsoftmaxclonedepth=1"];
    let driver = flags.iter().fold(scene.driver().wrapped(&wrapper), |driver, flag| driver.flag(flag));
    let driver = driver.start().await;
    let first = Life::create(&scene, &driver, block()).await.filled(&driver, &pattern(2, 1)).await;
    let second = cloned(&scene, &driver, &first).await;
    let request = like(&second).of_volume(&second.id);
    check(driver.create(request.clone()).await, Code::Aborted, "flatten");
    let volume = twice(|| driver.create(request.clone())).await;
    let image = &volume.volume_context["imageName"];
    assert!(!scene.corner.has_parent(image));
    assert_eq!(scene.corner.content(image), scene.corner.content(&first.image));
    assert!(scene.corner.snapshots(&second.image).is_empty());
}

#[tokio::test]
async fn a_clone_beyond_the_soft_limit_is_flattened_behind_the_answer() {
    let scene = Scene::new();
    let driver = scene.driver().flag("--rbdsoftmaxclonedepth=1").start().await;
    let first = Life::create(&scene, &driver, block()).await.filled(&driver, &pattern(2, 1)).await;
    let second = cloned(&scene, &driver, &first).await;
    let request = like(&second).of_volume(&second.id);
    let third = driver.create(request.clone()).await.expect("CreateVolume");
    let image = &third.volume_context["imageName"];
    eventually("flat", || !scene.corner.has_parent(image)).await;
    assert_eq!(scene.corner.content(image), scene.corner.content(&first.image));
    assert_eq!(driver.create(request).await.expect("the same again"), third);
    assert!(scene.corner.has_parent(&second.image));
}

/// The snapshots of deleted clones' sources count; what is mapped is not flattened.
#[tokio::test]
async fn too_many_snapshots_flatten_clones_that_nobody_uses() {
    let scene = Scene::new();
    let flags = ["--maxsnapshotsonimage=3", "--minsnapshotsonimage=1"];
    let driver = flags.iter().fold(scene.driver(), |driver, flag| driver.flag(flag)).start().await;
    let source = Life::create(&scene, &driver, block()).await.filled(&driver, &pattern(2, 1)).await;
    let mut copies = Vec::new();
    for _ in 0..3 {
        let copy = cloned(&scene, &driver, &source).await;
        eventually("a marker", || scene.corner.is_marked(&copy.image)).await;
        copies.push(copy);
    }
    copies[0].up(&driver).await;
    assert_eq!(scene.corner.count_snapshots(&source.image), 3);
    let fourth = cloned(&scene, &driver, &source).await;
    eventually("few snapshots", || scene.corner.count_snapshots(&source.image) <= 2).await;
    assert!(scene.corner.has_parent(&copies[0].image), "it was flattened while it was in use");
    for copy in copies.iter().chain([&fourth]) {
        assert_eq!(scene.corner.content(&copy.image), scene.corner.content(&source.image));
    }
    copies[0].down(&driver).await;
}

#[tokio::test]
async fn an_image_that_is_full_of_snapshots_is_said_to_be() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = Life::create(&scene, &driver, block()).await;
    let spec = scene.corner.spec(&source.image);
    // One that waits for another's lock asks twice at times, and is told by 18.2 that its own snapshot is there (17).
    let one = "rbd snap create --no-progress \"$0@s-$1\" || [ $? = 17 ]";
    let script = format!("seq 500 | xargs -P 8 -I{{}} sh -c '{one}' \"$0\" {{}}");
    run("sh", &["-c", &script, &spec]);
    check(driver.create(like(&source).of_volume(&source.id)).await, Code::ResourceExhausted, "500");
    assert_eq!(scene.corner.images().len(), 1);
    run("rbd", &["snap", "rm", "--no-progress", &format!("{spec}@s-1")]);
    cloned(&scene, &driver, &source).await;
}

#[tokio::test]
async fn a_chain_goes_on_when_its_first_images_are_deleted() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let data = pattern(2, 1);
    let mut last = Life::create(&scene, &driver, block()).await.filled(&driver, &data).await;
    let content = scene.corner.content(&last.image);
    for _ in 0..9 {
        let next = cloned(&scene, &driver, &last).await;
        driver.delete(&last.id).await.expect("DeleteVolume");
        last = next;
    }
    assert_eq!(scene.corner.content(&last.image), content);
    driver.delete(&last.id).await.expect("DeleteVolume");
}
