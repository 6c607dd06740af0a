//! kill -9 of the driver at random instants, from inside its programs and from outside: a CO that repeats each call
//! until it succeeds gets whole volumes with their data, and in the end nothing is left.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use nix::sys::signal::Signal;
use tokio::sync::RwLock;
use tonic::Code;

use crate::asks;
use crate::common::csi::{CreateVolumeRequest, ProbeRequest, Volume, VolumeCapability};
use crate::common::driver::{Driver, Start};
use crate::common::growth::pattern;
use crate::common::life::{Life, MIB, block, mount};
use crate::common::sight::{PATIENCE, eventually};
use crate::common::tools::{Answer, unique};
use crate::harness::{NODE, Scene};

const SEED: u32 = 20_261_121;
/// Volumes that live at once.
const TOGETHER: usize = 3;
const PROGRAMS: &[&str] = &["losetup", "cp", "mkfs.ext4", "fsck.ext4", "resize2fs", "fsfreeze", "blkid"];

/// With one chance in six, kills the driver before the real program, behind it, or while it runs.
const KILL: &str = r#"
program=${0##*/} PATH=${PATH#*:} driver=$PPID
is_driver() { [[ $(readlink "/proc/$driver/exe") == */ceph-rbd-csi ]]; }
RANDOM=$((SEED + 7919 * $(wc -l <"$CALLS")))
echo "$program $*" >>"$CALLS"
if ((RANDOM % 6)) || ! is_driver; then exec "$program" "$@"; fi
echo "$program $*" >>"$CALLS.killed"
case $((RANDOM % 3)) in
0) kill -9 "$driver" ;;
1) "$program" "$@" && kill -9 "$driver" ;;
*)
    { sleep "0.0$((RANDOM % 90 + 10))"; ! is_driver || kill -9 "$driver"; } </dev/null &>/dev/null &
    exec "$program" "$@"
    ;;
esac"#;

/// A container orchestrator: it starts the driver again whenever it has died, and repeats its calls.
struct Co {
    start: Start,
    driver: RwLock<Driver>,
    /// Drivers that have died.
    deaths: AtomicUsize,
}

impl Co {
    async fn new(start: Start) -> Self {
        let driver = RwLock::new(until_it_lives(&start).await);
        Self { start, driver, deaths: AtomicUsize::new(0) }
    }

    /// Asks until it succeeds. What an answer of a living driver may be is what no CO takes for final.
    async fn ask<T>(&self, what: &str, call: impl AsyncFn(&Driver) -> Answer<T>) -> T {
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let (answer, deaths) = {
                let driver = self.driver.read().await;
                (call(&driver).await, self.deaths.load(Ordering::Relaxed))
            };
            let status = match answer {
                Ok(answer) => return answer,
                Err(status) => status,
            };
            self.revive().await;
            let died = self.deaths.load(Ordering::Relaxed) > deaths;
            let passing = matches!(status.code(), Code::Aborted | Code::DeadlineExceeded);
            assert!(died || passing, "{what} ends with {status:?}");
            assert!(Instant::now() < end, "{what} comes to no end: {status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts another driver where it has died.
    async fn revive(&self) {
        let mut driver = self.driver.write().await;
        if tokio::time::timeout(Duration::from_millis(200), driver.ended()).await.is_ok() {
            *driver = until_it_lives(&self.start).await;
            self.deaths.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn create(&self, request: CreateVolumeRequest) -> Volume {
        self.ask("CreateVolume", async |driver| driver.create(request.clone()).await).await
    }

    async fn up(&self, life: &Life) {
        self.ask("ControllerPublishVolume", async |driver| life.attach(driver, NODE).await).await;
        self.ask("NodeStageVolume", async |driver| life.stage(driver).await).await;
        self.ask("NodePublishVolume", async |driver| life.publish(driver).await).await;
    }

    async fn down(&self, life: &Life) {
        self.ask("NodeUnpublishVolume", async |driver| life.unpublish(driver).await).await;
        self.ask("NodeUnstageVolume", async |driver| life.unstage(driver).await).await;
        self.ask("ControllerUnpublishVolume", async |driver| life.detach(driver, NODE).await).await;
        life.assert_gone();
    }

    async fn delete(&self, life: &Life) {
        self.ask("DeleteVolume", async |driver| driver.delete(&life.id).await).await;
    }
}

/// It may be killed by a program that it starts with.
async fn until_it_lives(start: &Start) -> Driver {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut driver = start.launch();
        while tokio::time::timeout(Duration::from_millis(20), driver.ended()).await.is_err() {
            if driver.identity().probe(ProbeRequest {}).await.is_ok() {
                return driver;
            }
        }
        assert!(Instant::now() < end, "no driver lives for long enough to answer\n{}", driver.log());
    }
}

/// One volume, its snapshot, a larger volume restored from it and a clone.
async fn live(scene: &Scene, co: &Co, number: u8) {
    let capability = if number.is_multiple_of(2) { mount("ext4") } else { block() };
    let (data, size) = (pattern(2, number), 48 << 20);
    let source = Life::of(scene, &co.create(asks::any(32, capability.clone())).await, capability.clone());
    co.up(&source).await;
    source.write(&data).expect("a pod writes");
    let grown = co.ask("ControllerExpandVolume", async |driver| driver.expand(&source.id, size).await).await;
    assert_eq!(grown.0, size);
    let name = unique("snap");
    if capability.is_block() {
        let target = &source.target;
        co.ask("NodeExpandVolume", async |driver| source.expand_at(driver, target, size).await).await;
        co.down(&source).await;
    }
    let snapshot =
        co.ask("CreateSnapshot", async |driver| driver.snapshot(&name, &source.id).await).await.snapshot_id;
    for request in [
        asks::any(64, capability.clone()).of_snapshot(&snapshot),
        asks::any(48, capability.clone()).of_volume(&source.id),
    ] {
        assert_copy(scene, co, request, &data).await;
    }
    if !capability.is_block() {
        assert!(source.read(data.len()) == data, "a mounted volume lost its data");
        co.down(&source).await;
    }
    co.up(&source).await;
    assert!(source.read(data.len()) == data, "a volume lost its data");
    co.down(&source).await;
    co.delete(&source).await;
    co.ask("DeleteSnapshot", async |driver| driver.delete_snapshot(&snapshot).await).await;
}

async fn assert_copy(scene: &Scene, co: &Co, request: CreateVolumeRequest, data: &[u8]) {
    let capability: VolumeCapability = request.volume_capabilities[0].clone();
    let size = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
    let volume = co.create(request).await;
    assert_eq!(volume.capacity_bytes, size);
    let copy = Life::of(scene, &volume, capability);
    co.up(&copy).await;
    assert!(copy.read(data.len()) == data, "a copy has other data");
    let stats = co.ask("NodeGetVolumeStats", async |driver| copy.stats(driver, &copy.target).await).await;
    if copy.capability.is_block() {
        assert_eq!(stats.usage[0].total, size);
    }
    co.down(&copy).await;
    co.delete(&copy).await;
}

/// `LOCAL_KILLS` volumes, with their copies.
fn lives() -> u8 {
    std::env::var("LOCAL_KILLS").ok().map_or(6, |count| count.parse().expect("LOCAL_KILLS: 1 to 255"))
}

async fn live_all(scene: &Scene, co: &Co) {
    let lives = futures_util::stream::iter(0..lives()).map(|number| live(scene, co, number));
    lives.buffer_unordered(TOGETHER).collect::<Vec<()>>().await;
    scene.assert_empty();
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the seed and the number of kills belong to the result")]
async fn volumes_survive_kills_from_within() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(PROGRAMS, &format!("SEED={SEED}\n{KILL}"));
    let killed = wrapper.folder().join("calls.killed");
    fs::write(&killed, "").expect("an empty list of kills");
    let co = Co::new(scene.driver().wrapped(&wrapper)).await;
    live_all(&scene, &co).await;
    let killed = fs::read_to_string(killed).expect("the list of kills").lines().count();
    eprintln!("seed {SEED}: {} volumes, {killed} kills in {} programs", lives(), wrapper.calls().len());
    assert!(killed >= usize::from(lives()), "only {killed} kills: this proves little");
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the number of kills belongs to the result")]
async fn volumes_survive_kills_from_outside() {
    let scene = Scene::new();
    let co = Arc::new(Co::new(scene.driver()).await);
    let killer = tokio::spawn({
        let co = co.clone();
        async move {
            for count in 1_u64.. {
                let random = (u64::from(SEED) * count).wrapping_mul(2_654_435_761) % 150;
                // Now and then for so long that a slow machine gets on.
                let pause = if count.is_multiple_of(8) { 1000 + random } else { 15 + random };
                tokio::time::sleep(Duration::from_millis(pause)).await;
                co.driver.read().await.signal(Signal::SIGKILL);
            }
        }
    });
    live_all(&scene, &co).await;
    killer.abort();
    let deaths = co.deaths.load(Ordering::Relaxed);
    eprintln!("{} volumes, {deaths} kills from outside", lives());
    assert!(2 * deaths >= usize::from(lives()), "only {deaths} kills: this proves little");
}

/// The pod's writes hang from the freeze on; nobody but the driver would ever thaw it.
#[tokio::test]
async fn a_driver_killed_while_a_filesystem_is_frozen_thaws_it() {
    ends_while_frozen("KILL").await;
}

/// A pod that hangs so cannot be ended, and the next driver may be long in coming.
#[tokio::test]
async fn a_driver_that_ends_while_a_filesystem_is_frozen_thaws_it_before() {
    ends_while_frozen("TERM").await;
}

async fn ends_while_frozen(signal: &str) {
    let scene = Scene::on("ext4", 512);
    let script = r#"PATH=${PATH#*:}
[[ " $* " != *" --reflink=always "* && ! -e $CALLS.once ]] || exec "${0##*/}" "$@"
touch "$CALLS.once"
kill -SIGNAL $PPID
sleep 60"#;
    let script = script.replace("SIGNAL", signal);
    let wrapper = scene.wrapper(&["cp"], &script);
    let mut driver = scene.driver().wrapped(&wrapper).start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await;
    life.up(&driver).await;
    life.write(b"before").expect("a pod writes");
    driver.snapshot("one", &life.id).await.expect_err("the driver is dead");
    driver.ended().await;
    if signal == "TERM" {
        life.write(b"between").expect("a pod writes, and no driver is there");
    }
    let driver = driver.killed_and_started().await;
    let writer = {
        let life = life.clone();
        std::thread::spawn(move || life.write(b"behind"))
    };
    eventually("a filesystem that can be written to", || writer.is_finished()).await;
    writer.join().expect("it ends").expect("it is written");
    let snapshot = driver.snapshot("one", &life.id).await.expect("CreateSnapshot again");
    assert_eq!(snapshot.size_bytes.unsigned_abs(), 64 * MIB);
    life.down(&driver).await;
    scene.assert_at_rest();
}
