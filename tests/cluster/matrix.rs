//! The node service killed just before and just after every step of every call, and what the CO does then: the same call
//! again, or its negation. The driver tells its steps and dies by itself (`KILL_FILE`, src/host/killing.rs).

use std::io::Write as _;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::common::client::Client;
use crate::common::csi::VolumeCapability;
use crate::common::life::{Life, block, mount};
use crate::common::tools::Answer;
use crate::harness::{Driver, Scene};

const PATIENCE: Duration = Duration::from_secs(150);

/// A node service that dies as it is ordered, and is started again.
pub(crate) trait Mortal {
    fn client(&self) -> &Client;
    /// Forgets the steps taken so far.
    fn order(&self, text: &str);
    fn steps(&self) -> Vec<String>;
    async fn revive(&mut self);
    /// Writes to the published volume what `read` finds again, a digest.
    fn write(&self, life: &Life) -> String;
    fn read(&self, life: &Life) -> String;
    /// Nothing is mapped, mounted or noted any more.
    fn assert_clean(&self, life: &Life);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Stage,
    Publish,
    Unpublish,
    Unstage,
}

impl Call {
    const ALL: [Self; 4] = [Self::Stage, Self::Publish, Self::Unpublish, Self::Unstage];

    async fn ask(self, client: &Client, life: &Life) -> Answer {
        match self {
            Self::Stage => life.stage(client).await,
            Self::Publish => life.publish(client).await,
            Self::Unpublish => life.unpublish(client).await,
            Self::Unstage => life.unstage(client).await,
        }
    }

    fn negation(self) -> Self {
        match self {
            Self::Stage => Self::Unstage,
            Self::Publish => Self::Unpublish,
            Self::Unpublish => Self::Publish,
            Self::Unstage => Self::Stage,
        }
    }

    /// What has to have succeeded before.
    fn needs(self) -> &'static [Self] {
        match self {
            Self::Stage => &[],
            Self::Publish | Self::Unstage => &[Self::Stage],
            Self::Unpublish => &[Self::Stage, Self::Publish],
        }
    }
}

/// What is tried: which steps, and both answers of a CO to each death, or one in turn.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub(crate) what: &'static str,
    pub(crate) dies_at: fn(&str) -> bool,
    pub(crate) both: bool,
    /// Only the first stage of a volume, which has all steps of the later ones but fsck.
    pub(crate) once: bool,
}

impl Matrix {
    /// `KILLS=all`: the whole of it.
    pub(crate) fn new(what: &'static str, dies_at: fn(&str) -> bool) -> Self {
        let all = std::env::var("KILLS").is_ok_and(|kills| kills == "all");
        Self { what, dies_at: if all { |_| true } else { dies_at }, both: all, once: false }
    }

    /// Where each call takes its time.
    pub(crate) fn short(what: &'static str, dies_at: fn(&str) -> bool) -> Self {
        let matrix = Self::new(what, dies_at);
        Self { once: !matrix.both, ..matrix }
    }

    /// `new`: a volume that was never staged.
    pub(crate) async fn run(&self, node: &mut impl Mortal, new: impl AsyncFn() -> Life) {
        let old = new().await;
        let digest = self.fill(node, &old).await;
        for call in Call::ALL {
            if call == Call::Stage {
                let steps = self.steps(node, &new().await, call).await;
                self.deaths(node, call, &steps, true, async || (new().await, None)).await;
                if self.once {
                    continue;
                }
            }
            let steps = self.steps(node, &old, call).await;
            self.deaths(node, call, &steps, false, async || (old.clone(), Some(digest.clone()))).await;
        }
    }

    async fn fill(&self, node: &impl Mortal, life: &Life) -> String {
        up(node, life).await;
        let digest = node.write(life);
        down(node, life).await;
        digest
    }

    /// The steps of a call that is not disturbed.
    async fn steps(&self, node: &impl Mortal, life: &Life, call: Call) -> Vec<String> {
        for before in call.needs() {
            before.ask(node.client(), life).await.expect("what comes before");
        }
        node.order("");
        call.ask(node.client(), life).await.expect("an undisturbed call");
        let steps = node.steps();
        down(node, life).await;
        steps
    }

    async fn deaths(
        &self,
        node: &mut impl Mortal,
        call: Call,
        steps: &[String],
        first: bool,
        volume: impl AsyncFn() -> (Life, Option<String>),
    ) {
        for (number, step) in steps.iter().enumerate().filter(|(_, step)| (self.dies_at)(step)) {
            for (turn, when) in ["before", "after"].into_iter().enumerate() {
                let ways = [call, call.negation()];
                let ways = if self.both { &ways[..] } else { &ways[(number + turn) % 2..][..1] };
                for then in ways {
                    let title = format!("Node{call:?}Volume{}", if first { ", first" } else { "" });
                    let row = format!(
                        "| {} | {title} | {}. {step} | {when} | Node{then:?}Volume |",
                        self.what,
                        number + 1
                    );
                    let (life, digest) = volume().await;
                    one(node, &life, call, &format!("{number} {when}"), *then, &row).await;
                    settle(node, &life, digest, &row).await;
                    let _ = writeln!(std::io::stderr(), "{row} nothing left, data there |");
                }
            }
        }
    }
}

/// One death, and what the CO does then.
async fn one(node: &mut impl Mortal, life: &Life, call: Call, order: &str, then: Call, row: &str) {
    for before in call.needs() {
        before.ask(node.client(), life).await.unwrap_or_else(|status| panic!("{row} before it: {status:?}"));
    }
    node.order(order);
    let answer = call.ask(node.client(), life).await;
    assert!(answer.is_err(), "{row} it did not die");
    node.revive().await;
    to_its_end(node, life, then, row).await;
}

/// The volume is usable, its data is there, and nothing is left of it on the node.
async fn settle(node: &impl Mortal, life: &Life, digest: Option<String>, row: &str) {
    for call in [Call::Stage, Call::Publish] {
        to_its_end(node, life, call, row).await;
    }
    let digest = digest.unwrap_or_else(|| node.write(life));
    assert_eq!(node.read(life), digest, "{row}");
    for call in [Call::Unpublish, Call::Unstage] {
        to_its_end(node, life, call, row).await;
    }
    node.assert_clean(life);
}

/// Asks as a CO does, which takes ABORTED for "ask again": the watch of a dead client lasts 30 s.
async fn to_its_end(node: &impl Mortal, life: &Life, call: Call, row: &str) {
    let end = Instant::now() + PATIENCE;
    while let Err(status) = call.ask(node.client(), life).await {
        let passes = matches!(status.code(), Code::Aborted | Code::FailedPrecondition);
        assert!(passes && Instant::now() < end, "{row} {call:?}: {status:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn up(node: &impl Mortal, life: &Life) {
    life.up(node.client()).await;
}

async fn down(node: &impl Mortal, life: &Life) {
    life.down(node.client()).await;
}

/// The node service on this machine.
struct Here<'a> {
    scene: &'a Scene,
    driver: Option<Driver>,
}

impl Here<'_> {
    fn driver(&self) -> &Driver {
        self.driver.as_ref().expect("a driver")
    }
}

impl Mortal for Here<'_> {
    fn client(&self) -> &Client {
        self.driver()
    }

    fn order(&self, text: &str) {
        let _ = std::fs::remove_file(self.scene.path("kill.steps"));
        std::fs::write(self.scene.path("kill"), text).expect("the order");
    }

    fn steps(&self) -> Vec<String> {
        let steps = std::fs::read_to_string(self.scene.path("kill.steps")).unwrap_or_default();
        steps.lines().map(str::to_owned).collect()
    }

    async fn revive(&mut self) {
        let driver = self.driver.take().expect("a driver");
        self.driver = Some(driver.killed_and_started().await);
    }

    fn write(&self, life: &Life) -> String {
        life.write(life.id.as_bytes()).expect("a pod writes");
        life.id.clone()
    }

    fn read(&self, life: &Life) -> String {
        String::from_utf8_lossy(&life.read(life.id.len())).into_owned()
    }

    fn assert_clean(&self, life: &Life) {
        life.assert_gone_from(self.driver());
    }
}

async fn dies_here(what: &'static str, capability: VolumeCapability) {
    let scene = Scene::new();
    let start = scene.driver().variable("KILL_FILE", &scene.path("kill").display().to_string());
    let driver = start.start().await;
    let controller = scene.on_node("controller", "controller").start().await;
    let mut node = Here { scene: &scene, driver: Some(driver) };
    let new = async || Life::create(&scene, &controller, capability.clone()).await;
    Matrix::new(what, |_| true).run(&mut node, new).await;
}

#[tokio::test]
async fn a_driver_killed_at_any_step_leaves_an_ext4_volume_whole() {
    dies_here("ext4", mount("ext4")).await;
}

#[tokio::test]
async fn a_driver_killed_at_any_step_leaves_a_block_volume_whole() {
    dies_here("block", block()).await;
}
