//! Random sequences of calls, in any order and with duplicates, against a plain model in memory: every code, every size
//! and every byte is what the model says, and in the end nothing is left.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::common::life::MIB;
use crate::harness::Scene;
use crate::plain::{From, SNAPSHOTS, Step, VOLUMES};
use crate::play::Stage;

/// Cases of each test; `LOCAL_CASES` for more.
const CASES: u32 = 12;
const STEPS: usize = 80;

fn volume() -> impl Strategy<Value = usize> {
    0..VOLUMES
}

fn from() -> impl Strategy<Value = Option<From>> {
    prop_oneof![
        3 => Just(None),
        2 => (0..SNAPSHOTS).prop_map(|snapshot| Some(From::Snapshot(snapshot))),
        2 => volume().prop_map(|volume| Some(From::Volume(volume))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let target = 0..2_usize;
    prop_oneof![
        12 => (volume(), 1..9_u64, from()).prop_map(|(volume, mib, from)| Step::Create { volume, mib, from }),
        4 => volume().prop_map(Step::Delete),
        5 => (volume(), 1..13_u64).prop_map(|(volume, mib)| Step::Expand(volume, mib)),
        3 => volume().prop_map(Step::NodeExpand),
        7 => (0..SNAPSHOTS, volume()).prop_map(|(snapshot, of)| Step::Snapshot { snapshot, of }),
        3 => (0..SNAPSHOTS).prop_map(Step::DeleteSnapshot),
        4 => (volume(), any::<bool>()).prop_map(|(volume, read_only)| Step::Attach { volume, read_only }),
        3 => volume().prop_map(Step::Detach),
        9 => volume().prop_map(Step::Stage),
        5 => volume().prop_map(Step::Unstage),
        10 => (volume(), target.clone()).prop_map(|(volume, target)| Step::Publish { volume, target }),
        7 => (volume(), target).prop_map(|(volume, target)| Step::Unpublish { volume, target }),
        12 => (volume(), 0..12_u64, 1..=255_u8)
            .prop_map(|(volume, place, byte)| Step::Write { volume, place, byte }),
        1 => Just(Step::Restart),
    ]
}

/// A driver and a root of its own for each case, so that a failing one shrinks.
fn holds(scene: impl Fn() -> Scene) {
    let cases = std::env::var("LOCAL_CASES").ok();
    let cases = cases.map_or(CASES, |cases| cases.parse().expect("LOCAL_CASES: a number"));
    let config = Config { cases, max_shrink_iters: 150, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let sequences = proptest::collection::vec(step(), 1..STEPS);
    let result = runner.run(&sequences, |steps| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(play(&scene(), &steps)).map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

async fn play(scene: &Scene, steps: &[Step]) -> Result<(), String> {
    let mut stage = Stage::new(scene).await;
    for (number, step) in steps.iter().enumerate() {
        stage = stage.step(step).await.map_err(|error| format!("step {number}, {step:?}: {error}"))?;
    }
    stage.end().await.map_err(|error| format!("behind the last step: {error}"))?;
    let left = scene.leftovers();
    if left.is_empty() { Ok(()) } else { Err(format!("left over: {left:?}")) }
}

#[test]
fn any_sequence_of_calls_does_what_the_model_says() {
    holds(Scene::new);
}

/// Other random ones: tests run side by side, the cases of one do not.
#[test]
fn any_other_sequence_of_calls_does_so_too() {
    holds(Scene::new);
}

#[test]
fn it_does_so_where_files_share_blocks() {
    holds(|| Scene::on("xfs", 320));
}

/// The strategy itself: each kind of step comes, and all sizes fit the root.
#[test]
fn the_steps_that_are_tried_are_of_all_kinds() {
    let mut runner = TestRunner::deterministic();
    let mut kinds = std::collections::BTreeSet::new();
    for _ in 0..2000 {
        let step = step().new_tree(&mut runner).expect("a step").current();
        if let Step::Create { mib, .. } | Step::Expand(_, mib) = step {
            assert!(mib * MIB < 64 * MIB);
        }
        let text = format!("{step:?}");
        kinds.insert(text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_owned());
    }
    assert_eq!(kinds.len(), 14, "{kinds:?}");
}
