//! The trash behind the answers: no image in it waits for another one.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::life::block;
use crate::common::sight::{eventually, within};
use crate::common::tools::{run, unique};
use crate::harness::{Driver, Scene};
use crate::lab::POOL;
use crate::life::request;

/// Holds up the removal of the first image until there is a file `go`; where there is one `broken`, that removal fails.
const FIRST: &str = r#"if [ "$1 $2" = "trash rm" ]; then
    mkdir "$CALLS.once" 2>/dev/null && echo "$3" >"$CALLS.first"
    if [ "$(cat "$CALLS.first")" = "$3" ]; then
        folder=${CALLS%/*}/..
        [ ! -e "$folder/broken" ] || exit 5
        until [ -e "$folder/go" ]; do sleep 0.1; done
    fi
fi
exec "$RBD" "$@""#;

/// Well below what an image is left alone after a failure.
const SOON: Duration = Duration::from_secs(15);

async fn volume(driver: &Driver) -> (String, String) {
    let id =
        driver.create(request::create(&unique("pvc"), 16, block())).await.expect("CreateVolume").volume_id;
    let image = format!("csi-vol-{}", &id[id.len() - 36..]);
    (id, image)
}

#[tokio::test]
async fn a_slow_removal_does_not_hold_up_what_is_deleted_after_it() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(FIRST);
    let driver = scene.start_with(&wrapper).await;
    let (slow, slow_image) = volume(&driver).await;
    driver.delete(&slow).await.expect("DeleteVolume");
    eventually("its removal", || wrapper.count("trash rm") == 1).await;
    for _ in 0..2 {
        let (id, _) = volume(&driver).await;
        driver.delete(&id).await.expect("DeleteVolume");
        within(SOON, "only the slow one", || scene.corner.trash() == [slow_image.clone()]).await;
    }
    fs::write(scene.path("go"), "").expect("a file");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn an_image_that_cannot_be_removed_does_not_hold_up_others() {
    let scene = Scene::new();
    fs::write(scene.path("broken"), "").expect("a file");
    let wrapper = scene.wrapper(FIRST);
    let driver = scene.start_with(&wrapper).await;
    let (broken, broken_image) = volume(&driver).await;
    driver.delete(&broken).await.expect("DeleteVolume");
    eventually("its removal", || wrapper.count("trash rm") == 1).await;
    let (parent, parent_image) = volume(&driver).await;
    let snapshot = format!("{}@s", scene.corner.spec(&parent_image));
    let (clone, clone_image) = volume(&driver).await;
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&clone_image)]);
    run("rbd", &["snap", "create", "--no-progress", &snapshot]);
    run("rbd", &["clone", "--rbd-default-clone-format=2", &snapshot, &scene.corner.spec(&clone_image)]);
    run("rbd", &["snap", "rm", "--no-progress", &snapshot]);
    driver.delete(&parent).await.expect("DeleteVolume");
    within(SOON, "a try to remove the parent", || wrapper.count("trash rm") == 2).await;
    driver.delete(&clone).await.expect("DeleteVolume");
    within(SOON, "only the broken one", || scene.corner.trash() == [broken_image.clone()]).await;
    fs::remove_file(scene.path("broken")).expect("a file");
    fs::write(scene.path("go"), "").expect("a file");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn what_was_left_is_removed_at_the_next_start_where_there_is_a_credential() {
    let scene = Scene::new().listing(&[POOL]);
    let wrapper = scene.wrapper(FIRST);
    let driver = scene.start_with(&wrapper).await;
    let (id, image) = volume(&driver).await;
    driver.delete(&id).await.expect("DeleteVolume");
    eventually("its removal", || wrapper.count("trash rm") == 1).await;
    driver.signal(Signal::SIGKILL);
    assert_eq!(scene.corner.trash(), [image]);
    fs::write(scene.path("go"), "").expect("a file");
    let _started = driver.killed_and_started().await;
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}
