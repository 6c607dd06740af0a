//! Volumes that are only read, by any number of nodes: restored from a snapshot that was taken while somebody wrote.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::common::csi::volume_capability::access_mode::Mode;
use crate::common::csi::{ControllerPublishVolumeRequest, VolumeCapability};
use crate::common::life::{Life, block, mount};
use crate::common::sight::{PATIENCE, eventually};
use crate::common::tools::{Answer, check, run, twice, unique};
use crate::harness::{Driver, Scene};

pub(crate) const REPLAYED: &str = ".rbd.csi.ceph.com/replayed";
/// Holds whoever says that a journal was replayed, until there is a file `go`.
const HOLD: &str = r#"
if [[ $* == *set*/replayed* ]]; then until [ -e "$(dirname "$CALLS")/go" ]; do sleep 0.1; done; fi
exec "$RBD" "$@""#;

/// A volume from a snapshot of another one as that is now.
async fn restored(scene: &Scene, driver: &Driver, source: &Life, capability: VolumeCapability) -> Life {
    let life = Life::create(scene, driver, source.capability.clone()).await;
    let snapshot = format!("{}@{}", scene.corner.spec(&source.image), unique("csi-snap"));
    run("rbd", &["snap", "create", "--no-progress", &snapshot]);
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&life.image)]);
    run("rbd", &["clone", "--rbd-default-clone-format=2", &snapshot, &scene.corner.spec(&life.image)]);
    Life { capability, ..life }
}

/// A volume with this text in it, nowhere in use.
async fn filled(scene: &Scene, driver: &Driver, capability: VolumeCapability, text: &[u8]) -> Life {
    let life = Life::create(scene, driver, capability).await;
    life.up(driver).await;
    life.write(text).expect("a pod writes");
    life.down(driver).await;
    life
}

/// Asks until it succeeds, as kubelet does while another node makes the volume ready.
async fn staged_in_the_end(life: &Life, driver: &Driver) {
    let end = Instant::now() + PATIENCE;
    while let Err(status) = life.stage(driver).await {
        assert!(status.code() == Code::Aborted && Instant::now() < end, "{status:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Writes numbered files on a thread of its own, each fsynced with its folder before the next.
struct Writer {
    synced: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(folder: &Path) -> Self {
        let (synced, stopping) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (folder, count, stop) = (folder.to_owned(), synced.clone(), stopping.clone());
        let thread = std::thread::spawn(move || {
            for number in (1..).take_while(|_| !stop.load(Ordering::SeqCst)) {
                let mut file = fs::File::create(folder.join(number.to_string())).expect("a new file");
                file.write_all(number.to_string().repeat(100).as_bytes()).expect("written");
                file.sync_all().expect("fsync");
                fs::File::open(&folder).and_then(|folder| folder.sync_all()).expect("fsync of the folder");
                count.store(number, Ordering::SeqCst);
            }
        });
        Self { synced, stopping, thread }
    }

    /// The files up to this number were fsynced.
    fn synced(&self) -> usize {
        self.synced.load(Ordering::SeqCst)
    }

    fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.thread.join().expect("every write succeeds");
    }
}

#[tokio::test]
async fn every_fsynced_file_is_there_for_every_reader() {
    let scene = Scene::new();
    let controller = scene.on_node("controller", "controller").start().await;
    let driver = scene.on_node("node-a", "node").start().await;
    let other = scene.on_node("node-b", "node").start().await;
    for fs_type in ["ext4", "xfs"] {
        let source = Life::create(&scene, &controller, mount(fs_type)).await.on(&scene, &driver);
        source.up(&driver).await;
        let writer = Writer::start(&source.target);
        eventually("files are written", || writer.synced() > 20).await;
        let known = writer.synced();
        let life =
            restored(&scene, &controller, &source, mount(fs_type).with(Mode::MultiNodeReaderOnly)).await;
        writer.stop();
        let (here, there) = (life.on(&scene, &driver), life.on(&scene, &other));
        for node in ["node-a", "node-b"] {
            life.attach(&controller, node).await.expect("ControllerPublishVolume");
        }
        tokio::join!(staged_in_the_end(&here, &driver), staged_in_the_end(&there, &other));
        for (life, node) in [(&here, &driver), (&there, &other)] {
            twice(|| life.stage(node)).await;
            twice(|| life.publish(node)).await;
            for number in 1..=known {
                let text = fs::read_to_string(life.target.join(number.to_string()));
                assert_eq!(text.expect("a file that was fsynced"), number.to_string().repeat(100));
            }
            let error = life.write(b"x").expect_err("a reader writes");
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        }
        check(controller.delete(&life.id).await, Code::FailedPrecondition, "");
        for (life, node, name) in [(&here, &driver, "node-a"), (&there, &other, "node-b")] {
            life.down(node).await;
            life.assert_gone_from(node);
            life.detach(&controller, name).await.expect("ControllerUnpublishVolume");
        }
        controller.delete(&life.id).await.expect("DeleteVolume");
        source.down(&driver).await;
    }
}

#[tokio::test]
async fn another_node_waits_while_one_replays_the_journal() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(HOLD);
    let driver = scene.start_with(&wrapper).await;
    let other = scene.on_node("node-b", "node").start().await;
    let source = filled(&scene, &driver, mount("ext4"), b"text").await;
    let many = mount("ext4").with(Mode::MultiNodeReaderOnly);
    let here = restored(&scene, &driver, &source, many).await;
    let there = here.on(&scene, &other);
    let (staged, ()) = tokio::join!(here.stage(&driver), async {
        while !wrapper.calls().iter().any(|call| call.contains(REPLAYED)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        check(there.stage(&other).await, Code::Aborted, "made ready to be read");
        there.assert_gone_from(&other);
        fs::write(wrapper.folder().join("go"), "").expect("go");
    });
    staged.expect("NodeStageVolume");
    there.up(&other).await;
    assert_eq!(there.read(4), b"text");
    here.unstage(&driver).await.expect("NodeUnstageVolume");
    there.down(&other).await;
}

#[tokio::test]
async fn a_replay_that_was_killed_is_taken_up_or_taken_back() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(HOLD);
    let source = filled(&scene, &scene.start().await, mount("xfs"), b"text").await;
    for up in [true, false] {
        let _ = fs::remove_file(wrapper.folder().join("go"));
        wrapper.forget();
        let driver = scene.start_with(&wrapper).await;
        let many = mount("xfs").with(Mode::MultiNodeReaderOnly);
        let life = restored(&scene, &driver, &source, many).await;
        let staging = tokio::time::timeout(PATIENCE, async {
            let asked = wrapper.calls().len();
            tokio::select! {
                answer = life.stage(&driver) => panic!("{answer:?}"),
                () = async { while !wrapper.calls()[asked..].iter().any(|call| call.contains(REPLAYED)) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                } } => {}
            }
        });
        staging.await.expect("the replay begins");
        let driver = driver.killed_and_started().await;
        fs::write(wrapper.folder().join("go"), "").expect("go");
        if up {
            life.up(&driver).await;
            assert_eq!(life.read(4), b"text");
            life.down(&driver).await;
        } else {
            life.unstage(&driver).await.expect("NodeUnstageVolume");
        }
        life.assert_gone_from(&driver);
    }
}

/// The mark says that nobody has written since.
#[tokio::test]
async fn a_writer_makes_the_next_reader_replay_again() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = filled(&scene, &driver, mount("ext4"), b"first").await;
    let reader = life.clone().with(Mode::SingleNodeReaderOnly);
    reader.up(&driver).await;
    assert_eq!(reader.read(5), b"first");
    reader.down(&driver).await;
    assert_eq!(scene.corner.meta(&life.image).get(REPLAYED), Some(&life.uuid()));
    life.up(&driver).await;
    assert_eq!(scene.corner.meta(&life.image).get(REPLAYED), None);
    life.write(b"other").expect("a pod writes");
    life.down(&driver).await;
    reader.up(&driver).await;
    assert_eq!(reader.read(5), b"other");
    reader.down(&driver).await;
}

#[tokio::test]
async fn block_volumes_are_read_on_several_nodes_and_written_on_none() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let other = scene.on_node("node-b", "node").start().await;
    let source = filled(&scene, &driver, block(), b"text").await;
    let life = restored(&scene, &driver, &source, block().with(Mode::MultiNodeReaderOnly)).await;
    for (life, node) in [(life.on(&scene, &driver), &driver), (life.on(&scene, &other), &other)] {
        life.up(node).await;
        assert_eq!(life.read(4), b"text");
        let error = life.write(b"x").expect_err("a reader writes");
        assert!(
            matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem),
            "{error:?}"
        );
    }
}

/// A filesystem is never made for readers.
#[tokio::test]
async fn an_empty_volume_is_not_staged_for_readers() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = Life::create(&scene, &driver, mount("ext4")).await.with(Mode::SingleNodeReaderOnly);
    check(life.stage(&driver).await, Code::FailedPrecondition, "holds nothing");
    life.assert_gone_from(&driver);
    assert!(scene.corner.is_empty(&life.image));
}

async fn publish(life: &Life, driver: &Driver, readonly: bool) -> Answer {
    let request = ControllerPublishVolumeRequest {
        volume_id: life.id.clone(),
        node_id: "node-a".to_owned(),
        volume_capability: Some(life.capability.clone()),
        readonly,
        secrets: life.secrets.clone(),
        volume_context: life.context.clone(),
    };
    driver.controller().controller_publish_volume(request).await.map(drop)
}

#[tokio::test]
async fn what_the_controller_gave_read_only_stays_so_on_the_node() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for capability in [mount("ext4"), block()] {
        let life = filled(&scene, &driver, capability, b"text").await;
        twice(|| publish(&life, &driver, true)).await;
        check(publish(&life, &driver, false).await, Code::AlreadyExists, "node-a");
        twice(|| life.stage(&driver)).await;
        twice(|| life.publish_at(&driver, &life.target, true)).await;
        assert_eq!(life.read(4), b"text");
        life.write(b"x").expect_err("a write to a volume that was given read-only");
        life.down(&driver).await;
        life.detach(&driver, "node-a").await.expect("ControllerUnpublishVolume");
        publish(&life, &driver, false).await.expect("ControllerPublishVolume, to be written");
        life.up(&driver).await;
        life.write(b"more").expect("a write");
        life.down(&driver).await;
    }
}
