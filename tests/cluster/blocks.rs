//! Which blocks a backup has to read (the SnapshotMetadata service): the blocks that are told, laid over what a backup
//! has already, are the snapshot, byte for byte. Images and snapshots are made by hand here.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::common::csi::GetPluginCapabilitiesRequest;
use crate::common::csi::plugin_capability::{Type, service};
use crate::common::life::MIB;
use crate::common::sight::eventually;
use crate::common::tools::{check, run};
use crate::harness::{Driver, Scene};
use crate::subject::{Ask, Change, FEATURES, Subject, Taken, Told};
use crate::wrap::COUNT;

const OBJECT: u64 = 4 * MIB;

/// The told blocks of `target` over what a backup has already.
fn laid_over(had: &[u8], blocks: &[(u64, u64)], target: &[u8]) -> Vec<u8> {
    let mut laid = had.to_vec();
    laid.resize(target.len(), 0);
    for (offset, length) in blocks {
        let range =
            usize::try_from(*offset).expect("an offset")..usize::try_from(offset + length).expect("an end");
        laid[range.clone()].copy_from_slice(&target[range]);
    }
    laid
}

/// Each snapshot is what its blocks make of zeros, and of each older one.
async fn proved(driver: &Driver, taken: &[Taken]) {
    for (number, target) in taken.iter().enumerate() {
        let blocks = Ask::allocated(&target.id).blocks(driver).await.expect("GetMetadataAllocated");
        assert!(laid_over(&[], &blocks, &target.content) == target.content, "{}: {blocks:?}", target.spec);
        for base in &taken[..number] {
            let blocks = Ask::delta(&base.id, &target.id).blocks(driver).await.expect("GetMetadataDelta");
            assert!(
                laid_over(&base.content, &blocks, &target.content) == target.content,
                "{} over {}: {blocks:?}",
                target.spec,
                base.spec
            );
        }
    }
}

/// What holds for the answer to one question, asked again from another offset and in smaller pieces.
async fn clipped_and_cut(driver: &Driver, ask: &Ask, size: u64, from: u64, most: i32) {
    let whole = ask.blocks(driver).await.expect("blocks");
    assert!(whole.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "they touch: {whole:?}");
    assert!(whole.iter().all(|(offset, length)| *length > 0 && offset + length <= size), "{whole:?}");
    let clip = |(offset, length): &(u64, u64)| {
        let start = from.max(*offset);
        (start < offset + length).then(|| (start, offset + length - start))
    };
    let wanted: Vec<_> = whole.iter().filter_map(clip).collect();
    let told = Ask { most, ..ask.from(from) }.told(driver).await.expect("the same from an offset");
    for (capacity, blocks) in &told {
        assert_eq!(*capacity, size.cast_signed());
        assert!(!blocks.is_empty() && blocks.len() <= most.unsigned_abs() as usize, "{}", blocks.len());
    }
    assert_eq!(Ask { most, ..ask.from(from) }.blocks(driver).await.expect("blocks"), wanted);
}

fn changes(size: u64) -> impl Strategy<Value = Vec<Change>> {
    let place = (0..size, 1..size / 4).prop_map(|(offset, length)| (offset & !511, (length | 511) + 1));
    let change = prop_oneof![
        3 => (place.clone(), any::<u8>())
            .prop_map(|((offset, length), byte)| Change::Write { offset, length, byte }),
        2 => place.prop_map(|(offset, length)| Change::Discard { offset, length }),
    ];
    prop::collection::vec(change, 0..4)
}

/// An image's life: its `rbd create`, and what happens to it before each snapshot.
#[derive(Debug)]
struct Story {
    striped: bool,
    object: u64,
    cloned: bool,
    /// Before the last snapshot.
    flattened: bool,
    before: Vec<(Vec<Change>, bool)>,
    from: u64,
    most: i32,
}

fn stories(size: u64) -> impl Strategy<Value = Story> {
    let objects = prop::sample::select(vec![64 << 10, 256 << 10, MIB]);
    let before = prop::collection::vec((changes(size), any::<bool>()), 3);
    (any::<bool>(), objects, any::<bool>(), any::<bool>(), before, 0..size, 1..5i32).prop_map(
        |(striped, object, cloned, flattened, before, from, most)| Story {
            striped,
            object,
            cloned,
            flattened,
            before,
            from,
            most,
        },
    )
}

async fn lives(scene: &Scene, driver: &Driver, story: &Story, size: u64) {
    let (object, unit) = (format!("--object-size={}B", story.object), format!("--stripe-unit={}B", 16 << 10));
    let features = format!("--image-feature={FEATURES}");
    let mut options = vec![features.as_str(), &object];
    if story.striped {
        options.extend([unit.as_str(), "--stripe-count=3"]);
    }
    let mut subject = Subject::new(scene, driver, size, &options).await;
    if story.cloned {
        subject.change(&[Change::Write { offset: size / 3, length: size / 3, byte: 77 }]);
        subject = subject.clone_of(&subject.take(1000));
    }
    let mut taken = Vec::new();
    for (number, (changes, grows)) in story.before.iter().enumerate() {
        if *grows {
            // Not by a whole number of objects.
            subject.change(&[Change::Grow(subject.size() + (48 << 10))]);
        }
        subject.change(changes);
        if story.cloned && story.flattened && number == 2 {
            run("rbd", &["flatten", "--no-progress", &subject.spec()]);
        }
        taken.push(subject.take(number as u128 + 1));
    }
    proved(driver, &taken).await;
    let (size, last) = (taken[2].content.len() as u64, &taken[2].id);
    for ask in [Ask::allocated(last), Ask::delta(&taken[0].id, last), Ask::delta(&taken[1].id, last)] {
        clipped_and_cut(driver, &ask, size, story.from, story.most).await;
    }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "the story explains why the test failed")]
async fn what_is_told_makes_the_snapshot_of_what_was_there_before() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (mut runner, size) = (TestRunner::new(ProptestConfig::default()), 3 * MIB);
    for _ in 0..4 {
        let story = stories(size).new_tree(&mut runner).expect("a story").current();
        eprintln!("{story:?}");
        lives(&scene, &driver, &story, size).await;
    }
}

#[tokio::test]
async fn whole_objects_are_told_and_gone_ones_are_changes_only() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 10 * OBJECT - MIB, &[&features]).await;
    let write = |object: u64| Change::Write { offset: object * OBJECT + 4096, length: 512, byte: 3 };
    let empty = subject.take(1);
    subject.change(&[write(0), write(1), write(5), write(9)]);
    let first = subject.take(2);
    subject.change(&[write(7), Change::Discard { offset: 5 * OBJECT, length: OBJECT }]);
    let second = subject.take(3);
    let blocks = async |ask: Ask| ask.blocks(&driver).await.expect("blocks");
    let object = |number: u64| (number * OBJECT, OBJECT);
    let last = (9 * OBJECT, OBJECT - MIB);
    assert_eq!(blocks(Ask::allocated(&empty.id)).await, []);
    let written = [(0, 2 * OBJECT), object(5), last];
    assert_eq!(blocks(Ask::allocated(&first.id)).await, written);
    assert_eq!(blocks(Ask::delta(&empty.id, &first.id)).await, written);
    assert_eq!(blocks(Ask::allocated(&second.id)).await, [(0, 2 * OBJECT), object(7), last]);
    assert_eq!(blocks(Ask::delta(&first.id, &second.id)).await, [object(5), object(7)]);
    assert!(blocks(Ask::delta(&empty.id, &second.id)).await.contains(&object(7)));
    let end = first.content.len() as u64;
    assert_eq!(
        blocks(Ask::allocated(&first.id).from(end)).await,
        [],
        "where an interrupted answer had ended"
    );
    check(Ask::allocated(&first.id).from(end + 1).told(&driver).await, Code::OutOfRange, "40894465");
    let negative = Ask { from: -1, ..Ask::allocated(&first.id) };
    check(negative.told(&driver).await, Code::OutOfRange, "-1");
    proved(&driver, &[empty, first, second]).await;
}

#[tokio::test]
async fn a_snapshot_of_a_deleted_volume_is_told_and_compared_with_none_of_its_successor() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    subject.change(&[Change::Write { offset: 0, length: 512, byte: 1 }]);
    let (first, second) = (subject.take(1), subject.take(2));
    let info = scene.corner.info(&subject.image()).expect("rbd info");
    let tombstone = format!("csi-del-{}-{}", subject.uuid, info["id"].as_str().expect("an id"));
    run("rbd", &["rename", &subject.spec(), &scene.corner.spec(&tombstone)]);
    let blocks = Ask::allocated(&first.id).blocks(&driver).await;
    assert_eq!(blocks.expect("a tombstone is read"), [(0, OBJECT)]);
    run("rbd", &["create", "--size=16M", &features, &subject.spec()]);
    let new = subject.take(3);
    check(Ask::delta(&second.id, &new.id).told(&driver).await, Code::FailedPrecondition, "two images");
    assert_eq!(Ask::delta(&first.id, &second.id).blocks(&driver).await.expect("blocks"), []);
}

#[tokio::test]
async fn what_cannot_be_told_is_refused() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let plain = "--image-feature=layering,exclusive-lock";
    let subject = Subject::new(&scene, &driver, 2 * OBJECT, &[plain]).await;
    subject.change(&[Change::Write { offset: 0, length: 512, byte: 1 }]);
    let first = subject.take(1);
    let refused =
        async |ask: &Ask, code: Code, fragment: &str| check(ask.told(&driver).await, code, fragment);
    let allocated = Ask::allocated(&first.id);
    refused(&allocated, Code::FailedPrecondition, "fast-diff").await;
    run("rbd", &["feature", "enable", &subject.spec(), "object-map", "fast-diff"]);
    run("rbd", &["object-map", "rebuild", "--no-progress", &subject.spec()]);
    let second = subject.take(2);
    refused(&allocated, Code::FailedPrecondition, "object map invalid").await;
    let delta = Ask::delta(&first.id, &second.id);
    refused(&delta, Code::FailedPrecondition, "object map invalid").await;
    Ask::allocated(&second.id).told(&driver).await.expect("this one has an object map");
    run("rbd", &["object-map", "rebuild", "--no-progress", &first.spec]);
    delta.told(&driver).await.expect("now both have");

    refused(&Ask::delta(&second.id, &first.id), Code::InvalidArgument, "not older").await;
    refused(&Ask::delta(&first.id, &first.id), Code::InvalidArgument, "not older").await;
    let other = Subject::unmade(&scene, &driver).await.snapshot_id(Uuid::from_u128(1));
    refused(&Ask::delta(&first.id, &other), Code::InvalidArgument, "two volumes").await;
    let absent = subject.snapshot_id(Uuid::from_u128(9));
    refused(&Ask::allocated(&absent), Code::NotFound, &absent).await;
    refused(&Ask::delta(&absent, &first.id), Code::NotFound, &absent).await;
    refused(&Ask::allocated("none"), Code::NotFound, "none").await;
    refused(&Ask::allocated(""), Code::InvalidArgument, "snapshot_id").await;
    refused(&Ask { most: -1, ..allocated.clone() }, Code::InvalidArgument, "max_results").await;
    scene.corner.set_meta(&subject.image(), "rbd.csi.ceph.com/encrypted", "encrypted");
    refused(&allocated, Code::FailedPrecondition, "encrypted").await;
}

/// Prints 600,000 objects, some 35 MB.
const LARGE: &str = r#"[ "$1" = diff ] || exec "$RBD" "$@"
exec awk 'BEGIN { printf "["
for (i = 0; i < 600000; i++) printf "%s{\"offset\":%.0f,\"length\":4096,\"exists\":\"true\"}", i ? "," : "", i * 8192
print "]" }'"#;
/// Prints a list that was cut off behind an entry, and succeeds.
const CUT: &str = r#"[ "$1" = diff ] || exec "$RBD" "$@"
echo '[{"offset":0,"length":4096,"exists":"true"}'"#;
const HANG: &str = r#"[ "$1" = diff ] || exec "$RBD" "$@"
echo "pid $$" >>$CALLS
exec sleep 600"#;

/// Of its life so far, in KiB.
fn peak_memory(driver: &Driver) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", driver.pid())).expect("its status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    peak.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
async fn a_large_answer_takes_little_memory() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(LARGE)).await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    run("rbd", &["resize", "--no-progress", "--size=5G", &subject.spec()]);
    run("rbd", &["snap", "create", "--no-progress", &format!("{}@csi-snap-{}", subject.spec(), Uuid::nil())]);
    let before = peak_memory(&driver);
    let told = Ask::allocated(&subject.snapshot_id(Uuid::nil())).told(&driver).await.expect("all of them");
    assert_eq!(told.iter().map(|(_, blocks)| blocks.len()).sum::<usize>(), 600_000);
    let grown = peak_memory(&driver) - before;
    assert!(grown < 16 << 10, "{grown} KiB for an answer of 35 MB");
}

#[tokio::test]
async fn an_answer_that_was_cut_off_does_not_end_well() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(CUT)).await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    let taken = subject.take(1);
    check(Ask::allocated(&taken.id).told(&driver).await, Code::Internal, "no end");
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_work() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(HANG);
    let driver = scene.start_with(&wrapper).await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    let ask = Ask::allocated(&subject.take(1).id);
    // More of them than may run at once.
    for number in 1..=3 {
        tokio::select! {
            told = ask.told(&driver) => panic!("it does not hang: {told:?}"),
            () = eventually("rbd diff runs", || wrapper.count("pid") == number) => {}
        }
    }
    let pids: Vec<String> =
        wrapper.calls().iter().filter_map(|call| call.strip_prefix("pid ").map(str::to_owned)).collect();
    eventually("no rbd diff is left", || {
        pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_that_goes_while_it_is_read_is_not_told() {
    let scene = Scene::new();
    let behind = r#"[ "$1" = diff ] || exec "$RBD" "$@"
"$RBD" "$@" && "$REAL" snap rm --no-progress "$4" "${@:5}""#;
    let driver = scene.start_with(&scene.wrapper(behind)).await;
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    let ask = Ask::allocated(&subject.take(1).id);
    check(ask.told(&driver).await, Code::Aborted, "ask again");
    check(ask.told(&driver).await, Code::NotFound, "does not exist");
}

#[tokio::test]
async fn the_service_is_told_and_costs_few_commands() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let capabilities = driver.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await;
    let capabilities = capabilities.expect("GetPluginCapabilities").into_inner().capabilities;
    let metadata = i32::from(service::Type::SnapshotMetadataService);
    assert!(
        capabilities
            .iter()
            .any(|one| matches!(&one.r#type, Some(Type::Service(service)) if service.r#type == metadata))
    );
    let features = format!("--image-feature={FEATURES}");
    let subject = Subject::new(&scene, &driver, 4 * OBJECT, &[&features]).await;
    let (first, second) = (subject.take(1), subject.take(2));
    wrapper.forget();
    let empty: Result<Told, Status> = Ask::delta(&first.id, &second.id).told(&driver).await;
    assert_eq!(empty.expect("GetMetadataDelta"), []);
    let verbs = ["snap ls", "info", "image-meta list", "diff"].map(|verb| wrapper.count(verb));
    assert_eq!(verbs, [4, 2, 1, 1], "{:#?}", wrapper.calls());
}
