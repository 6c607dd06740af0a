//! Snapshots and deletions that two replicas work on at once, and such as are killed at any step: nothing is given
//! twice, nothing lost, nothing left over.

use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::common::csi::Snapshot;
use crate::common::life::block;
use crate::common::sight::eventually;
use crate::common::tools::{Answer, unique};
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene};
use crate::life::request;
use crate::wrap::real;

/// For one request, its retries included.
const PATIENCE: Duration = Duration::from_secs(240);

async fn volume(driver: &Driver) -> String {
    driver.create(request::create(&unique("pvc"), 16, block())).await.expect("CreateVolume").volume_id
}

/// Asks until the answer is neither "still running" nor `passing`.
async fn settled<T>(passing: &[Code], call: impl AsyncFn() -> Answer<T>) -> Answer<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Err(status) if is_passing(&status, passing) && Instant::now() < end => {}
            answer => return answer,
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn is_passing(status: &Status, passing: &[Code]) -> bool {
    matches!(status.code(), Code::Aborted | Code::DeadlineExceeded) || passing.contains(&status.code())
}

async fn replicas(scene: &Scene) -> [Driver; 2] {
    let start = async |node: &str| scene.on_node(node, "controller").start().await;
    [start("replica-a").await, start("replica-b").await]
}

/// Deletes it in both at once.
async fn unsnap(both: &[Driver; 2], id: &str) {
    let [a, b] = both;
    let (a, b) = tokio::join!(settled(&[], || a.unsnap(id)), settled(&[], || b.unsnap(id)));
    a.and(b).expect("DeleteSnapshot");
}

async fn delete(both: &[Driver; 2], id: &str) {
    let [a, b] = both;
    let passing = [Code::FailedPrecondition];
    let (a, b) = tokio::join!(settled(&passing, || a.delete(id)), settled(&passing, || b.delete(id)));
    a.and(b).expect("DeleteVolume");
}

#[tokio::test]
async fn one_name_is_given_to_one_of_two_volumes() {
    let scene = Scene::new();
    let both = replicas(&scene).await;
    let [a, b] = &both;
    let (first, second) = (volume(a).await, volume(b).await);
    for round in 0..6 {
        let name = format!("s{round}");
        let (one, two) =
            tokio::join!(settled(&[], || a.snap(&name, &first)), settled(&[], || b.snap(&name, &second)));
        let (taken, refused) = if one.is_ok() { (one, two) } else { (two, one) };
        let taken: Snapshot = taken.expect("one of them gets the name");
        assert_eq!(refused.map_err(|status| status.code()), Err(Code::AlreadyExists));
        unsnap(&both, &taken.snapshot_id).await;
    }
    delete(&both, &first).await;
    delete(&both, &second).await;
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn one_snapshot_asked_for_twice_is_one() {
    let scene = Scene::new();
    let both = replicas(&scene).await;
    let [a, b] = &both;
    let source = volume(a).await;
    for round in 0..4 {
        let name = format!("s{round}");
        let (one, two) =
            tokio::join!(settled(&[], || a.snap(&name, &source)), settled(&[], || b.snap(&name, &source)));
        let (one, two) = (one.expect("CreateSnapshot"), two.expect("CreateSnapshot"));
        assert_eq!(one, two);
        unsnap(&both, &one.snapshot_id).await;
    }
    delete(&both, &source).await;
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_snapshot_taken_while_its_volume_goes_is_there_or_is_not() {
    let scene = Scene::new();
    let both = replicas(&scene).await;
    let [a, b] = &both;
    for round in 0..8_u64 {
        let (source, name) = (volume(a).await, format!("s{round}"));
        let late = async {
            tokio::time::sleep(Duration::from_millis(round * 120)).await;
            settled(&[Code::FailedPrecondition], || b.delete(&source)).await
        };
        let (snapshot, deleted) = tokio::join!(settled(&[], || a.snap(&name, &source)), late);
        deleted.expect("DeleteVolume");
        match snapshot {
            Ok(snapshot) => {
                assert_eq!(b.get_snap(&snapshot.snapshot_id).await.expect("GetSnapshot"), snapshot);
                unsnap(&both, &snapshot.snapshot_id).await;
            }
            Err(status) => assert_eq!(status.code(), Code::NotFound, "{status:?}"),
        }
    }
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

/// Kills the driver at the command whose number is in `$CALLS.at`, before it or behind it.
const STRIKE: &str = r#"
at=$(<"$CALLS.at")
case ${0##*/} in rbd) real=$REAL ;; *) real=$RADOS ;; esac
echo $$ >>"$CALLS"
if (($(wc -l <"$CALLS") == at)); then
    [[ $WHEN = before ]] || "$real" "$@" <&0
    kill -9 $PPID
    exit 1
fi
exec "$real" "$@""#;

fn striking(scene: &Scene, when: &str) -> Wrapper {
    let head = format!("WHEN={when}\nREAL={}\nRADOS={}", real().display(), rados().display());
    Wrapper::new(scene.path("wrapper"), &["rbd", "rados"], &format!("{head}\n{STRIKE}"))
}

fn rados() -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("rados")).find(|file| file.is_file());
    found.expect("rados on PATH")
}

/// One call in which the driver dies at its n-th command (0: never); then it is repeated to its end.
async fn struck<T>(
    scene: &Scene,
    driver: &mut Option<Driver>,
    at: usize,
    call: impl AsyncFn(&Driver) -> Answer<T>,
) -> T {
    std::fs::write(scene.path("wrapper/calls"), "").expect("an empty list of calls");
    std::fs::write(scene.path("wrapper/calls.at"), at.to_string()).expect("when to strike");
    let running = driver.take().expect("a driver");
    let first = call(&running).await;
    std::fs::write(scene.path("wrapper/calls.at"), "0").expect("no further strike");
    let dead = matches!(&first, Err(status) if matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled));
    let running = if dead { running.killed_and_started().await } else { running };
    let passing = [Code::FailedPrecondition];
    let answer = match first {
        Ok(answer) => answer,
        Err(_) => settled(&passing, || call(&running)).await.expect("the retry"),
    };
    *driver = Some(running);
    answer
}

async fn lives_on_when_struck(when: &str) {
    let scene = Scene::new();
    let wrapper = striking(&scene, when);
    std::fs::write(scene.path("wrapper/calls.at"), "0").expect("no strike");
    let start = scene.on_node("node-a", "controller").flag("--command-timeout=8s").wrapped(&wrapper);
    let mut driver = Some(start.start().await);
    for at in 1..=9 {
        let source = volume(driver.as_ref().expect("a driver")).await;
        let name = unique("s");
        let snapshot =
            struck(&scene, &mut driver, at, async |driver| driver.snap(&name, &source).await).await;
        struck(&scene, &mut driver, at, async |driver| driver.delete(&source).await).await;
        let id = &snapshot.snapshot_id;
        let found = driver.as_ref().expect("a driver").get_snap(id).await.expect("GetSnapshot");
        assert_eq!(found, snapshot, "strike {at}");
        struck(&scene, &mut driver, at, async |driver| driver.unsnap(id).await).await;
    }
    // A request brings the key for what an interrupted one left in the trash.
    let driver = driver.expect("a driver");
    let last = volume(&driver).await;
    driver.delete(&last).await.expect("DeleteVolume");
    eventually("nothing left", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_driver_killed_before_any_of_its_commands_is_taken_up() {
    lives_on_when_struck("before").await;
}

#[tokio::test]
async fn a_driver_killed_behind_any_of_its_commands_is_taken_up() {
    lives_on_when_struck("behind").await;
}

/// With one chance in two, kills what changes something after 0 to 150 ms, at most once for each verb and object.
const KILL: &str = r#"
case ${0##*/} in rbd) real=$REAL ;; *) real=$RADOS ;; esac
what="$1 $2 $3"
case $1 in snap | rename | trash | lock | setomapval | rmomapkey | rm) ;; *) exec "$real" "$@" ;; esac
echo "$what" >>"$CALLS"
if ((RANDOM % 2)) || (($(grep -cxF "$what" "$CALLS.killed") >= 1)); then exec "$real" "$@"; fi
echo "$what" >>"$CALLS.killed"
"$real" "$@" <&0 &
sleep "$(printf 0.%03d $((RANDOM % 151)))"
kill -9 $! && kill -9 $$
wait $!"#;

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the number of kills belongs to the result")]
async fn snapshots_survive_the_kills_of_their_commands() {
    let scene = Scene::new();
    let head = format!("REAL={}\nRADOS={}", real().display(), rados().display());
    let wrapper = Wrapper::new(scene.path("wrapper"), &["rbd", "rados"], &format!("{head}\n{KILL}"));
    std::fs::write(scene.path("wrapper/calls.killed"), "").expect("an empty list of kills");
    let start = scene.on_node("node-a", "controller").flag("--command-timeout=6s").wrapped(&wrapper);
    let driver = start.start().await;
    let passing = [Code::Internal, Code::FailedPrecondition];
    let one = async || {
        let create = request::create(&unique("pvc"), 16, block());
        let source =
            settled(&passing, || driver.create(create.clone())).await.expect("CreateVolume").volume_id;
        let names = [unique("s"), unique("s")];
        let mut snapshots = Vec::new();
        for name in &names {
            snapshots.push(settled(&[], || driver.snap(name, &source)).await.expect("CreateSnapshot"));
        }
        settled(&passing, || driver.delete(&source)).await.expect("DeleteVolume");
        for snapshot in &snapshots {
            let id = &snapshot.snapshot_id;
            let found = settled(&[Code::Internal], || driver.get_snap(id)).await.expect("GetSnapshot");
            assert_eq!(&found, snapshot);
            settled(&passing, || driver.unsnap(id)).await.expect("DeleteSnapshot");
        }
    };
    futures_util::future::join_all((0..5).map(|_| one())).await;
    let killed = std::fs::read_to_string(scene.path("wrapper/calls.killed")).expect("the list of kills");
    let killed = killed.lines().count();
    eprintln!("{killed} of {} commands killed", wrapper.calls().len());
    assert!(killed > 10, "only {killed} kills: this proves little");
    let last = driver.create(request::create(&unique("pvc"), 16, block())).await.expect("CreateVolume");
    settled(&passing, || driver.delete(&last.volume_id)).await.expect("DeleteVolume");
    crate::common::sight::within(PATIENCE, "nothing left", || scene.corner.leftovers().is_empty()).await;
}
