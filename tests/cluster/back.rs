//! `ceph-rbd-csi journal`: what it writes of this driver's volumes is what ceph-csi writes of its own, key by key; and what
//! it leaves alone.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crate::ceph_csi::{self, Made, names, rados};
use crate::common::csi::{CreateVolumeRequest, Volume};
use crate::common::life::{Life, block};
use crate::common::sight::eventually;
use crate::common::tools::{run, twice, unique};
use crate::common::wrap::Wrapper;
use crate::harness::{CLUSTER, Driver, Scene};
use crate::keys::encrypted;
use crate::lab::{POOL, lab, text};
use crate::life::request;
use crate::pool::Pool;
use crate::snaps;

const DIRECTORY: &str = "csi.volumes.default";
const NEVER: &str = "csi-vol-1f0d3c52-7a3c-5b0e-9d1e-0a4b6c8d2e10";

/// What the command came to.
struct Told {
    /// None: it was killed.
    code: Option<i32>,
    text: String,
    said: String,
}

impl Told {
    /// Its lines on this image, and the notes below.
    fn of(&self, image: &str) -> String {
        let mut lines = self.text.lines().skip_while(|line| line.starts_with(' ') || !line.contains(image));
        let first = lines.next().unwrap_or_else(|| panic!("nothing of {image} in {}", self.text));
        let notes = lines.take_while(|line| line.starts_with("    "));
        std::iter::once(first).chain(notes).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.text, self.said);
        self
    }
}

fn command(scene: &Scene, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi"));
    command.args(["journal", "--config", &scene.path("config.json").display().to_string()]);
    command.args(args).env_remove("CEPH_CONF").stdin(Stdio::null());
    command
}

fn told(command: &mut Command) -> Told {
    let output = command.output().expect("the command runs");
    let [text, said] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(!text.contains(&lab().key) && !said.contains(&lab().key), "it tells the key");
    Told { code: output.status.code(), text, said }
}

fn in_pool(scene: &Scene, pool: &str, args: &[&str]) -> Command {
    let key = lab().dir.join("csi.key");
    let (cluster, pool) = (format!("--cluster={CLUSTER}"), format!("--pool={pool}"));
    let keyfile = format!("--keyfile={}", key.display());
    command(scene, &[&[cluster.as_str(), &pool, "--user=csi", &keyfile], args].concat())
}

fn journal(scene: &Scene, args: &[&str]) -> Told {
    told(&mut in_pool(scene, POOL, args))
}

/// As external-provisioner asks with `--extra-create-metadata`.
fn labelled(mut request: CreateVolumeRequest) -> CreateVolumeRequest {
    let name = request.name.clone();
    for (key, value) in [("pv/name", name.as_str()), ("pvc/name", "data"), ("pvc/namespace", "shop")] {
        request.parameters.insert(format!("csi.storage.k8s.io/{key}"), value.to_owned());
    }
    request
}

fn plain() -> CreateVolumeRequest {
    labelled(request::create(&unique("pvc"), 64, block()))
}

fn with(mut request: CreateVolumeRequest, name: &str, value: &str) -> CreateVolumeRequest {
    request.parameters.insert(name.to_owned(), value.to_owned());
    request
}

async fn made(driver: &Driver, request: CreateVolumeRequest) -> Made {
    let name = request.name.clone();
    let Volume { volume_id, volume_context, .. } = driver.create(request).await.expect("CreateVolume");
    let uuid = volume_id[volume_id.len() - 36..].to_owned();
    Made { name, uuid, image: volume_context["imageName"].clone(), id: volume_id, context: volume_context }
}

fn value(scene: &Scene, pool: &str, object: &str, key: &str) -> String {
    rados(scene, pool, &["getomapval", object, key, "/dev/stdout"])
}

/// All that the journal says of a volume, with what is different in each put into words.
fn entry(scene: &Scene, pool: &str, volume: &Made) -> BTreeMap<String, String> {
    let object = format!("csi.volume.{}", volume.uuid);
    let (directory_key, spec) = (format!("csi.volume.{}", volume.name), spec(scene, pool, &volume.image));
    let info: serde_json::Value =
        serde_json::from_str(&run("rbd", &["info", &spec, "--format=json"])).expect("JSON");
    let id = text(&info["id"]);
    let in_words = |value: String| match value {
        value if value == volume.name => "its name".to_owned(),
        value if value == volume.uuid => "its uuid".to_owned(),
        value if value == volume.image => "its image".to_owned(),
        value if value == id => "the id of its image".to_owned(),
        value => value,
    };
    let keys = names(scene, pool, &object).into_iter().map(|key| (object.as_str(), key));
    let directory = names(scene, pool, DIRECTORY).into_iter().filter(|key| *key == directory_key);
    let keys = keys.chain(directory.map(|key| (DIRECTORY, key)));
    keys.map(|(object, key)| {
        let said = in_words(value(scene, pool, object, &key));
        (if object == DIRECTORY { "the directory".to_owned() } else { key }, said)
    })
    .collect()
}

fn spec(scene: &Scene, pool: &str, image: &str) -> String {
    let namespace = &scene.corner.namespace;
    if namespace.is_empty() { format!("{pool}/{image}") } else { format!("{pool}/{namespace}/{image}") }
}

/// All objects of the journals and what is in them.
fn journals(scene: &Scene) -> BTreeMap<String, String> {
    let objects = rados(scene, POOL, &["ls"]);
    let objects = objects.lines().filter(|object| object.starts_with("csi."));
    let keys = objects
        .flat_map(|object| names(scene, POOL, object).into_iter().map(move |key| (object.to_owned(), key)));
    keys.map(|(object, key)| (format!("{object} {key}"), value(scene, POOL, &object, &key))).collect()
}

#[tokio::test]
async fn a_volume_gets_the_keys_that_ceph_csi_gives_its_own() {
    let scene = Scene::new();
    let driver = scene.start_with_keys().await;
    let data = Pool::of_its_own(&scene.corner);
    let own = ceph_csi::volume(&scene);
    let golden = ceph_csi::static_volume(&scene);
    let source = made(&driver, plain()).await;
    let mut volumes = vec![
        made(&driver, with(plain(), "volumeNamePrefix", "team-")).await,
        made(&driver, with(plain(), "dataPool", &data.name)).await,
        made(&driver, plain().of_volume(&source.id)).await,
        source,
    ];
    let sealed =
        [made(&driver, labelled(encrypted("meta"))).await, made(&driver, labelled(encrypted(""))).await];
    let clone = volumes[2].image.clone();
    eventually("the labels of the clone", || {
        scene.corner.meta(&clone).get("csi.storage.k8s.io/pv/name") == Some(&volumes[2].name)
    })
    .await;
    let before = journals(&scene);
    let dry = journal(&scene, &[]).ends(0);
    assert_eq!(journals(&scene), before, "a look has changed something");
    assert!(dry.text.contains("6 volumes of this driver can go back (6 lack keys"), "{}", dry.text);
    assert!(dry.of(&clone).contains("note: it shares data with"), "{}", dry.text);
    for other in [&own, &golden] {
        assert!(!dry.text.contains(&other.image), "{}", dry.text);
    }
    journal(&scene, &["--write"]).ends(0);
    let expected = entry(&scene, POOL, &own);
    for volume in &volumes {
        assert_eq!(entry(&scene, POOL, volume), expected, "{volume:?}");
    }
    for (volume, store) in sealed.iter().zip(["meta", "default"]) {
        let mut expected = expected.clone();
        expected.insert("csi.volume.encryptKMS".to_owned(), store.to_owned());
        expected.insert("csi.volume.encryptionType".to_owned(), "block".to_owned());
        assert_eq!(entry(&scene, POOL, volume), expected, "{volume:?}");
    }
    let written = journals(&scene);
    let again = journal(&scene, &["--write"]).ends(0);
    assert!(again.of(&clone).contains(": ready") && !again.text.contains("written"), "{}", again.text);
    assert_eq!(journals(&scene), written);
    volumes.extend(sealed);
    for volume in volumes.iter().chain([&own]) {
        twice(|| driver.delete(&volume.id)).await;
    }
    run("rbd", &["rm", "--no-progress", &scene.corner.spec(&golden.image)]);
    ceph_csi::nothing_is_left(&scene).await;
}

#[tokio::test]
async fn outside_of_a_namespace_the_keys_are_the_same() {
    let scene = Scene::shared();
    let pool = Pool::of_its_own(&scene.corner);
    let driver = scene.start().await;
    let volume = made(&driver, with(plain(), "pool", &pool.name)).await;
    let told = told(&mut in_pool(&scene, &pool.name, &["--write"])).ends(0);
    assert!(told.of(&volume.image).contains("ready, 5 keys written"), "{}", told.text);
    let other = Scene::new();
    let own = ceph_csi::volume(&other);
    assert_eq!(entry(&scene, &pool.name, &volume), entry(&other, POOL, &own));
    driver.delete(&volume.id).await.expect("DeleteVolume");
    let left = names(&scene, &pool.name, DIRECTORY);
    assert!(left.is_empty(), "{left:?}");
}

/// Whoever tried ceph-csi and comes back finds this driver at work as before.
#[tokio::test]
async fn this_driver_goes_on_with_what_was_written_and_tidies_it() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let request = plain();
    let volume = made(&driver, request.clone()).await;
    journal(&scene, &["--write"]).ends(0);
    assert_eq!(made(&driver, request).await.id, volume.id);
    let life =
        Life::known(&scene, &driver, &volume.id, &volume.image, block()).with_context(volume.context.clone());
    assert_eq!(twice(|| life.expand(&driver, 128 << 20)).await.0, 128 << 20);
    life.up(&driver).await;
    life.down(&driver).await;
    let clone = made(&driver, plain().of_volume(&volume.id)).await;
    twice(|| driver.delete(&volume.id)).await;
    twice(|| driver.delete(&clone.id)).await;
    ceph_csi::nothing_is_left(&scene).await;
}

#[tokio::test]
async fn snapshots_and_what_is_left_for_them_keep_a_volume_here() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (kept, free, own) =
        (made(&driver, plain()).await, made(&driver, plain()).await, ceph_csi::volume(&scene));
    let mut snapshots = Vec::new();
    for volume in [&kept, &own] {
        let id = driver.snap(&unique("backup"), &volume.id).await.expect("CreateSnapshot").snapshot_id;
        snapshots.push((format!("csi-snap-{}", snaps::uuid(&id)), id, volume.image.clone()));
    }
    let refused = journal(&scene, &["--write"]).ends(1);
    for (snapshot, _, image) in &snapshots {
        let line = refused.of(image);
        assert!(line.contains("cannot go back") && line.contains(snapshot), "{line}");
    }
    assert!(!scene.corner.has_journal(&kept.uuid) && scene.corner.has_journal(&free.uuid));
    driver.delete(&kept.id).await.expect("DeleteVolume");
    let tombstone = scene.corner.tombstones().remove(0);
    let line = journal(&scene, &[]).ends(1).of(&tombstone);
    assert!(line.contains("cannot go back") && line.contains(&snapshots[0].0), "{line}");
    for (_, id, _) in &snapshots {
        driver.unsnap(id).await.expect("DeleteSnapshot");
    }
    journal(&scene, &[]).ends(0);
}

/// Its own blocks are free when the last clone is gone, and ceph-csi does not look after it.
#[tokio::test]
async fn what_waits_in_the_trash_is_told() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let source = made(&driver, plain()).await;
    made(&driver, plain().of_volume(&source.id)).await;
    driver.delete(&source.id).await.expect("DeleteVolume");
    let line = journal(&scene, &[]).ends(0).of(&source.image);
    assert!(line.contains("rbd trash rm"), "{line}");
}

#[tokio::test]
async fn half_a_volume_is_no_volume() {
    let scene = Scene::new();
    run("rbd", &["create", "--size", "64M", &scene.corner.spec(NEVER)]);
    let line = journal(&scene, &["--write"]).ends(1).of(NEVER);
    assert!(line.contains("no whole volume"), "{line}");
    assert!(journals(&scene).is_empty());
}

/// Killed before each of its writes in turn, it leaves no name that leads to less than a whole entry.
#[tokio::test]
async fn killed_half_way_it_is_gone_on_with() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (volume, own) = (made(&driver, plain()).await, ceph_csi::volume(&scene));
    let expected = entry(&scene, POOL, &own);
    let script = r#"if [[ " $* " == *" setomapval "* ]]; then
    echo write >>"$CALLS"
    (($(wc -l <"$CALLS") != KILL_AT)) || { kill -9 "$PPID"; exit 1; }
fi
PATH=${PATH#*:} exec rados "$@""#;
    let wrapper = Wrapper::new(scene.path("killer"), &["rados"], script);
    let mut killed = 0;
    for at in [1, 2, 1, 2, 1, 1] {
        wrapper.forget();
        let mut command = in_pool(&scene, POOL, &["--write"]);
        let told = told(command.env("PATH", wrapper.path()).env("KILL_AT", at.to_string()));
        killed += usize::from(told.code.is_none());
        let (now, named) = (entry(&scene, POOL, &volume), format!("csi.volume.{}", volume.name));
        assert!(now == expected || !names(&scene, POOL, DIRECTORY).contains(&named), "{now:?}");
    }
    assert!(killed >= 4, "killed {killed} times");
    journal(&scene, &["--write"]).ends(0);
    assert_eq!(entry(&scene, POOL, &volume), expected);
}

#[tokio::test]
async fn a_key_that_says_something_else_is_left_and_told() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (one, two) = (made(&driver, plain()).await, made(&driver, plain()).await);
    let object = format!("csi.volume.{}", one.uuid);
    let named = format!("csi.volume.{}", two.name);
    rados(&scene, POOL, &["setomapval", &object, "csi.imagename", "another-image"]);
    rados(&scene, POOL, &["setomapval", DIRECTORY, &named, &one.uuid]);
    let before = journals(&scene);
    let told = journal(&scene, &["--write"]).ends(1);
    assert_eq!(journals(&scene), before);
    for (image, key) in [(&one.image, "csi.imagename"), (&two.image, named.as_str())] {
        let line = told.of(image);
        assert!(line.contains("cannot go back") && line.contains(key), "{line}");
    }
}

/// A name is believed where it leads to the uuid of the volume.
#[tokio::test]
async fn a_name_that_no_image_tells_may_be_given() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let (silent, misled) = (request::create(&unique("pvc"), 64, block()), plain());
    let volumes = [made(&driver, silent).await, made(&driver, misled).await];
    scene.corner.set_meta(&volumes[1].image, "csi.storage.k8s.io/pv/name", "pvc-of-another");
    let told = journal(&scene, &["--write"]).ends(0);
    for volume in &volumes {
        let (line, entry) = (told.of(&volume.image), entry(&scene, POOL, volume));
        assert!(line.contains("note: its name is not known (see --names)"), "{line}");
        let keys: Vec<&str> = entry.keys().map(String::as_str).collect();
        assert_eq!(keys, ["csi.imageid", "csi.imagename"]);
    }
    let list = volumes.iter().map(|volume| format!("persistentvolume/{}\n", volume.name));
    let list = list.chain(["persistentvolume/pvc-elsewhere\n".to_owned()]).collect::<String>();
    fs::write(scene.path("names"), list).expect("the names");
    journal(&scene, &["--write", "--names", &scene.path("names").display().to_string()]).ends(0);
    for volume in &volumes {
        let entry = entry(&scene, POOL, volume);
        assert_eq!(
            (entry["csi.volname"].as_str(), entry["the directory"].as_str()),
            ("its name", "its uuid")
        );
    }
    // With another instance no name fits, and nothing is written by one.
    let other = journal(&scene, &["--write", "--instanceid=other"]).ends(0);
    assert!(other.of(&volumes[0].image).contains("its name is not known"), "{}", other.text);
    assert!(names(&scene, POOL, "csi.volumes.other").is_empty());
}

#[tokio::test]
async fn the_credential_of_the_configuration_will_do() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let volume = made(&driver, plain()).await;
    let cluster = format!("--cluster={CLUSTER}");
    for (args, fragment) in [
        (vec![cluster.as_str(), "--pool=rbd"], "--user"),
        (vec!["--cluster=elsewhere", "--pool=rbd"], "elsewhere"),
        (vec!["--pool=rbd"], "--cluster"),
        (vec![cluster.as_str(), "--pool=rbd", "--user=csi"], "--keyfile"),
        (vec![cluster.as_str(), "--pools=rbd"], "--pools"),
    ] {
        let told = told(&mut command(&scene, &args)).ends(2);
        assert!(told.said.contains(fragment) && told.text.is_empty(), "{args:?}: {}", told.said);
    }
    let both = [cluster.as_str(), "--pool=rbd", "--user=csi", "--keyfile=-", "--names=-"];
    assert!(told(&mut command(&scene, &both)).ends(2).said.contains("--names"));
    assert!(told(&mut command(&scene, &both[..4])).ends(2).said.contains("--keyfile=-: it is empty"));
    let key = fs::File::open(lab().dir.join("csi.key")).expect("the key");
    told(command(&scene, &both[..4]).stdin(key)).ends(0);
    let scene = scene.listing(&[POOL]);
    let told = told(&mut command(&scene, &[&cluster])).ends(0);
    assert!(told.of(&volume.image).contains("5 keys to write"), "{}", told.text);
    let absent = self::told(&mut command(&scene, &[&cluster, "--pool=no-such-pool"])).ends(1);
    assert!(absent.said.contains("no-such-pool"), "{}", absent.said);
}

#[test]
fn the_document_names_flags_that_there_are() {
    let document = include_str!("../../deploy/docs/takeover.md");
    let help =
        told(Command::new(env!("CARGO_BIN_EXE_ceph-rbd-csi")).args(["journal", "--help"])).ends(0).text;
    let commands = document.lines().filter_map(|line| line.split_once("ceph-rbd-csi journal "));
    let words = commands.flat_map(|(_, args)| args.split(' ')).filter(|word| word.starts_with("--"));
    let flags: Vec<&str> = words.filter_map(|word| word.split(['=', '\'']).next()).collect();
    assert!(flags.len() > 10, "{flags:?}");
    for flag in flags {
        assert!(help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")), "{flag}: {help}");
    }
}
