//! What takes long is told while it lasts: its age, and what it waits for.

use crate::common::life::{Life, mount};
use crate::common::sight::eventually;
use crate::harness::Scene;

/// Waits until it is let go.
const HELD: &str = r#"echo "$*" >>"$CALLS"
while [[ ! -e $CALLS.go ]]; do sleep 0.1; done
PATH=${PATH#*:} exec "${0##*/}" "$@""#;

#[tokio::test]
async fn a_slow_operation_and_its_callers_are_told_with_what_they_wait_for() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(&["mkfs.ext4"], HELD);
    let driver = scene.driver().wrapped(&wrapper).flag("--logslowopinterval=1s").start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    let told = |words: &[&str]| {
        driver
            .log()
            .lines()
            .any(|line| line.contains("slow: ") && words.iter().all(|word| line.contains(word)))
    };
    let watch = async {
        eventually("the operation, with the command that it waits for", || {
            told(&["NodeStageVolume of ", "has been running for", "it waits for mkfs.ext4 "])
        })
        .await;
        eventually("the call that joined it", || {
            told(&["NodeStageVolume has not been answered", "begun", "before by another call"])
        })
        .await;
        std::fs::write(wrapper.folder().join("calls.go"), "").expect("let go");
    };
    let (first, second, ()) = tokio::join!(life.stage(&driver), life.stage(&driver), watch);
    first.and(second).expect("NodeStageVolume");
    assert_eq!(wrapper.calls().len(), 1);
    life.unstage(&driver).await.expect("NodeUnstageVolume");
}
