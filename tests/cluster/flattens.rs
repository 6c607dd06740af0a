//! A flatten takes hours: what it stands in the way of meanwhile, and what cuts it off.

use std::fs;

use crate::common::growth::pattern;
use crate::common::life::{Life, block};
use crate::common::sight::eventually;
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene};
use crate::sources::{cloned, like};

/// An `rbd` whose flatten begins when it is let, and notes its process until then.
const GATE: &str = r#"[ "$1" = flatten ] || exec "$RBD" "$@"
folder=$(dirname "$CALLS")
echo $$ >"$folder/waiting"
until [ -e "$folder/open" ]; do sleep 0.2; done
exec "$RBD" "$@""#;

impl Wrapper {
    fn open(&self) {
        fs::write(self.folder().join("open"), "").expect("an open gate");
    }

    /// Whether the last flatten still runs.
    fn flattening(&self) -> bool {
        let process = fs::read_to_string(self.folder().join("waiting")).unwrap_or_default();
        let state = fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
        !process.is_empty() && !state.is_empty() && !state.contains(") Z ")
    }

    /// The images whose flattening was begun.
    fn begun(&self) -> Vec<String> {
        let calls = self.calls();
        let specs = calls.iter().filter_map(|call| call.strip_prefix("flatten "));
        let name =
            |spec: &str| spec.split(' ').next().and_then(|spec| spec.rsplit('/').next()).map(str::to_owned);
        specs.filter_map(name).collect()
    }
}

async fn gated(scene: &Scene, flags: &[&str]) -> (Wrapper, Driver) {
    let wrapper = scene.wrapper(GATE);
    let start = flags.iter().fold(scene.driver().wrapped(&wrapper), |start, flag| start.flag(flag));
    (wrapper, start.start().await)
}

async fn source(scene: &Scene, driver: &Driver) -> Life {
    Life::create(scene, driver, block()).await.filled(driver, &pattern(2, 1)).await
}

/// Three clones, marked whole, which keep as many deleted snapshots of their source.
async fn three_copies(scene: &Scene, driver: &Driver, source: &Life) -> Vec<Life> {
    let mut copies = Vec::new();
    for _ in 0..3 {
        let copy = cloned(scene, driver, source).await;
        eventually("a marker", || scene.corner.is_marked(&copy.image)).await;
        copies.push(copy);
    }
    copies
}

const FEW_SNAPSHOTS: [&str; 2] = ["--maxsnapshotsonimage=3", "--minsnapshotsonimage=1"];

#[tokio::test]
async fn the_source_is_free_while_its_clone_is_flattened() {
    let scene = Scene::new();
    let (gate, driver) = gated(&scene, &["--rbdhardmaxclonedepth=1", "--rbdsoftmaxclonedepth=1"]).await;
    let first = source(&scene, &driver).await;
    let second = cloned(&scene, &driver, &first).await;
    let meanwhile = async {
        eventually("a flatten", || gate.flattening()).await;
        second.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
        second.up(&driver).await;
        second.down(&driver).await;
        second.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
        driver.delete(&second.id).await.expect("DeleteVolume");
        gate.open();
    };
    let (third, ()) = tokio::join!(driver.create(like(&second).of_volume(&second.id)), meanwhile);
    let image = &third.expect("CreateVolume").volume_context["imageName"];
    assert!(!scene.corner.has_parent(image));
    assert_eq!(scene.corner.content(image), scene.corner.content(&first.image));
}

#[tokio::test]
async fn trimming_lets_go_of_a_clone_that_is_deleted() {
    let scene = Scene::new();
    let (gate, driver) = gated(&scene, &FEW_SNAPSHOTS).await;
    let source = source(&scene, &driver).await;
    let copies = three_copies(&scene, &driver, &source).await;
    cloned(&scene, &driver, &source).await;
    eventually("a flatten", || gate.flattening()).await;
    let begun = gate.begun().remove(0);
    let deleted = copies.iter().find(|copy| copy.image == begun).expect("a clone");
    driver.delete(&deleted.id).await.expect("DeleteVolume");
    eventually("the next one's turn", || gate.begun().len() == 2).await;
    gate.open();
    eventually("few snapshots", || scene.corner.count_snapshots(&source.image) <= 2).await;
}

/// It may be on its way to a node, or mapped read-only, which leaves no watch.
#[tokio::test]
async fn a_published_volume_is_not_flattened() {
    let scene = Scene::new();
    let driver = FEW_SNAPSHOTS.iter().fold(scene.driver(), |driver, flag| driver.flag(flag)).start().await;
    let source = source(&scene, &driver).await;
    let copies = three_copies(&scene, &driver, &source).await;
    for published in &copies[..2] {
        published.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
    }
    cloned(&scene, &driver, &source).await;
    eventually("a flat clone", || !scene.corner.has_parent(&copies[2].image)).await;
    assert!(copies[..2].iter().all(|published| scene.corner.has_parent(&published.image)));
}

#[tokio::test]
async fn a_publish_in_another_replica_cuts_a_flatten_off() {
    let scene = Scene::new();
    let (gate, driver) = gated(&scene, &["--rbdsoftmaxclonedepth=1"]).await;
    let twin = scene.on_node("node-b", "rbd").start().await;
    let first = source(&scene, &driver).await;
    let second = cloned(&scene, &driver, &first).await;
    let third = cloned(&scene, &driver, &second).await;
    eventually("a flatten", || gate.flattening()).await;
    third.attach(&twin, "node-b").await.expect("ControllerPublishVolume");
    eventually("no flatten", || !gate.flattening()).await;
    gate.open();
    assert!(scene.corner.has_parent(&third.image), "it was flattened while it was in use");
}
