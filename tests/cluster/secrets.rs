//! The key of the cluster is in the driver's memory and nowhere else: no argument, no log line, no file.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::life::{Life, block, mount};
use crate::common::tools::unique;
use crate::harness::{Driver, Scene};
use crate::keys::{DEK, encrypted, encrypted_life, passphrase};
use crate::lab::lab;

/// Larger ones are images of disks and binaries.
const LARGEST: u64 = 64 << 20;

/// Looks at the arguments and the environment of every process, again and again.
struct Watch {
    stop: Arc<AtomicBool>,
    seen: JoinHandle<Vec<String>>,
}

impl Watch {
    fn start(needle: &str) -> Self {
        let (stop, needle) = (Arc::new(AtomicBool::new(false)), needle.to_owned());
        let stopped = stop.clone();
        let seen = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                seen.extend(processes_with(&needle));
            }
            seen
        });
        Self { stop, seen }
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.seen.join().expect("the watch goes on to its end")
    }
}

fn processes_with(needle: &str) -> Vec<String> {
    let numbered =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok());
    let processes = fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| numbered(path));
    let files = processes.flat_map(|process| [process.join("cmdline"), process.join("environ")]);
    let found = files.filter(|file| fs::read(file).is_ok_and(|text| holds(&text, needle)));
    found.map(|file| file.display().to_string()).collect()
}

/// The files below these folders that were changed since then and hold the needle. It stays out of mounts: they are
/// other tests' volumes, and a look inside would keep them busy.
fn files_with(needle: &str, folders: &[PathBuf], since: i64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for top in folders {
        let Ok(device) = top.metadata().map(|meta| meta.dev()) else { continue };
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
                if meta.dev() != device || path == lab().dir {
                    continue;
                }
                if meta.is_dir() {
                    folders.push(path);
                } else if changed(&meta, since) && file_holds(&path, needle) {
                    found.push(path);
                }
            }
        }
    }
    found
}

fn changed(meta: &Metadata, since: i64) -> bool {
    meta.is_file() && meta.ctime() >= since && meta.len() < LARGEST
}

fn file_holds(path: &Path, needle: &str) -> bool {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    read.is_ok() && holds(&text, needle)
}

fn holds(text: &[u8], needle: &str) -> bool {
    text.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Where a careless program leaves things; of the lab, whose administrator has keys in files, only what nodes keep.
fn places(driver: &Driver) -> Vec<PathBuf> {
    let common = ["/tmp", "/run", "/var/tmp", "/var/log", "/var/lib/ceph", "/dev/shm", "/etc/ceph"];
    let own = [
        std::env::temp_dir(),
        driver.maps().to_owned(),
        std::env::current_dir().expect("a folder").join("tests"),
    ];
    common.iter().map(PathBuf::from).chain(own).collect()
}

async fn whole_life(scene: &Scene, driver: &Driver, look: impl Fn()) {
    for life in [Life::create(scene, driver, mount("ext4")).await, Life::create(scene, driver, block()).await]
    {
        life.attach(driver, "node-a").await.expect("ControllerPublishVolume");
        life.up(driver).await;
        look();
        life.down(driver).await;
        life.detach(driver, "node-a").await.expect("ControllerUnpublishVolume");
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}

fn now() -> i64 {
    i64::try_from(std::time::UNIX_EPOCH.elapsed().expect("a time").as_secs()).expect("a time")
}

async fn is_nowhere_but_in_memory(verbosity: &str) {
    let (scene, key, since) = (Scene::new(), lab().key.clone(), now() - 1);
    let driver = scene.driver().flag(verbosity).start().await;
    let watch = Watch::start(&key);
    whole_life(&scene, &driver, || {
        // The stand-in for a kernel may give the key to its own daemon in a pipe; in a file it may not.
        assert_eq!(files_with(&key, &places(&driver), since), Vec::<PathBuf>::new());
    })
    .await;
    assert_eq!(watch.end(), Vec::<String>::new(), "the key was shown to every process");
    assert_eq!(files_with(&key, &places(&driver), since), Vec::<PathBuf>::new());
    assert!(!driver.log().contains(&key), "the key is in the log");
    assert!(driver.log().contains("CreateVolume"), "there is no log to look at");
}

/// An encrypted volume, its copy, and what both are asked for with.
#[tokio::test]
async fn what_opens_an_encrypted_volume_is_nowhere_but_in_memory() {
    let (scene, since) = (Scene::new(), now() - 1);
    let driver = scene.with_key_stores(scene.driver().flag("--v=6")).start().await;
    let watch = Watch::start(passphrase());
    let life = encrypted_life(&scene, &driver, "meta", block()).await;
    let key = scene.corner.key(&life.image, DEK, &life.id).expect("a key");
    let watched = Watch::start(&key);
    let copy = driver.create(encrypted("meta").of_volume(&life.id)).await.expect("CreateVolume");
    let refused = driver.create(encrypted("other").of_volume("0001-0003-lab-0000000000000001-none")).await;
    let forgotten = life.saying("encryptionKMSID", Some("vault")).stage(&driver).await;
    life.expand(&driver, 96 << 20).await.expect("ControllerExpandVolume");
    let sealed = scene.corner.meta(&copy.volume_context["imageName"]).remove(DEK).expect("a key");
    assert!(
        !driver.log().contains(&sealed),
        "a sealed key is in the log: whoever reads it can try passphrases"
    );
    for needle in [passphrase(), &key] {
        assert!(!driver.log().contains(needle), "it is in the log");
        assert_eq!(files_with(needle, &places(&driver), since), Vec::<PathBuf>::new());
        for status in [refused.as_ref().err(), forgotten.as_ref().err()] {
            assert!(!status.expect("refused").message().contains(needle), "it is told");
        }
    }
    assert_eq!((watch.end(), watched.end()), (vec![], vec![]), "it was shown to every process");
    driver.delete(&copy.volume_id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn the_key_is_nowhere_but_in_memory() {
    is_nowhere_but_in_memory("--v=0").await;
}

#[tokio::test]
async fn the_key_is_in_no_trace_either() {
    is_nowhere_but_in_memory("--v=6").await;
}

/// The search itself: what it looks for, it finds.
#[test]
fn a_planted_key_is_found() {
    let (scene, needle, since) = (Scene::new(), unique("planted"), now() - 1);
    let file = scene.path("deep/er/log");
    fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    fs::write(&file, format!("some text, key={needle}\n")).expect("planted");
    assert_eq!(files_with(&needle, &[scene.path("")], since), [file]);
    let watch = Watch::start(&needle);
    let script = Command::new("sh").args(["-c", "sleep 1", &needle]).status();
    assert!(script.expect("sh").success());
    assert!(watch.end().iter().any(|path| path.ends_with("cmdline")), "it does not see a process");
}
