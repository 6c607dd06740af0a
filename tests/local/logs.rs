//! What the log says: how much of it by a signal, and of which call by its id.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::signal::Signal;
use tonic::Code;

use crate::asks;
use crate::common::driver::Driver;
use crate::common::life::{Life, mount};
use crate::common::sight::eventually;
use crate::common::tools::check;
use crate::harness::Scene;

/// The ids of requests that stand in lines with all of these words.
fn requests(driver: &Driver, words: &[&str]) -> BTreeSet<String> {
    let log = driver.log();
    let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    lines
        .filter_map(|line| Some(line.split_once("request=")?.1.split([' ', '}']).next()?.to_owned()))
        .collect()
}

async fn says(driver: &Driver, words: &str) {
    eventually(words, || driver.log().contains(words)).await;
}

#[tokio::test]
async fn signals_make_the_log_louder_and_as_it_was() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    let life = Life::at(&scene.path("node"), &volume.volume_id, "", mount("ext4"));
    let life = life.with_context(volume.volume_context);
    assert!(!driver.log().contains(" DEBUG "), "{}", driver.log());
    driver.signal(Signal::SIGUSR1);
    says(&driver, "the log level is debug now").await;
    life.up(&driver).await;
    assert!(driver.log().contains("command succeeded"), "{}", driver.log());
    driver.signal(Signal::SIGUSR1);
    says(&driver, "the log level is trace now").await;
    driver.signal(Signal::SIGUSR2);
    says(&driver, "the log level is info now").await;
    let before = driver.log().matches(" DEBUG ").count();
    life.down(&driver).await;
    assert_eq!(driver.log().matches(" DEBUG ").count(), before);
}

#[tokio::test]
async fn one_id_leads_to_all_that_was_done_for_a_call() {
    let scene = Scene::new();
    let script = "until [[ -e $CALLS.go ]]; do sleep 0.05; done\nPATH=${PATH#*:} exec mkfs.ext4 \"$@\"";
    let slow = scene.wrapper(&["mkfs.ext4"], script);
    let driver = scene.driver().wrapped(&slow).flag("--v=5").start().await;
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    let life = Life::at(&scene.path("node"), &volume.volume_id, "", mount("ext4"));
    let life = life.with_context(volume.volume_context);
    let staged = async {
        eventually("the stage has come to its mkfs", || driver.log().contains("blkid")).await;
        // The same call joins, another one is told whose work is in its way; both leave again.
        let twin = life.stage(&driver);
        tokio::pin!(twin);
        let waits = "waits for the answer to request ";
        tokio::select! {
            answer = &mut twin => panic!("{answer:?}"),
            () = says(&driver, waits) => {}
        }
        let asked =
            driver.log().split_once(waits).and_then(|(_, rest)| Some(rest.split_once(',')?.0.to_owned()));
        let busy = life.unstage(&driver).await;
        fs::write(slow.folder().join("calls.go"), "").expect("mkfs may go on");
        twin.await.expect("the twin's answer");
        (asked.expect("whose answer it waits for"), busy)
    };
    let (first, (asked, busy)) = tokio::join!(life.stage(&driver), staged);
    first.expect("NodeStageVolume");
    check(busy, Code::Aborted, &format!("(request {asked})"));
    assert_eq!(requests(&driver, &["mkfs.ext4", "command"]), [asked.clone()].into());
    let done = requests(&driver, &["NodeStageVolume", "done"]);
    assert!(done.contains(&asked) && done.len() == 2, "{done:?}");
    life.publish(&driver).await.expect("NodePublishVolume");
    life.down(&driver).await;
}
