//! What ceph-csi 3.17 leaves on a cluster and on a node, laid down with plain `rbd`, `rados` and `mount`, in the order in
//! which ceph-csi does it (internal/rbd, internal/journal).

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::common::life::{Life, MIB, map};
use crate::common::sight::eventually;
use crate::common::tools::{run, try_run, unique};
use crate::harness::{CLUSTER, Driver, Scene};
use crate::lab::{POOL, text};
use crate::life::request::Map;

/// A pool beside that of the images.
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const SIZE: u64 = 320 * MIB;
const FEATURES: &str = "layering,exclusive-lock,object-map,fast-diff,deep-flatten";
const FORMAT: &str = "--rbd-default-clone-format=2";

/// A volume or snapshot as the CO knows it, and the image behind it.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    /// The CO's.
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) image: String,
    pub(crate) id: String,
    pub(crate) context: Map,
}

/// What is written of one volume or snapshot before its image is made.
struct Reservation<'a> {
    of: &'static str,
    prefix: &'a str,
    journal: &'a str,
    /// The image that a snapshot is of.
    source: Option<&'a str>,
}

const VOLUME: Reservation<'static> =
    Reservation { of: "volume", prefix: "csi-vol-", journal: POOL, source: None };

pub(crate) fn volume(scene: &Scene) -> Made {
    let made = reserve(scene, &VOLUME);
    create(scene, &made);
    made
}

pub(crate) fn volume_with_prefix(scene: &Scene, prefix: &str) -> Made {
    let made = reserve(scene, &Reservation { prefix, ..VOLUME });
    create(scene, &made);
    made
}

/// Only the image stays, which no test asks after.
pub(crate) fn forgotten(scene: &Scene, made: &Made) {
    rados(scene, POOL, &["rm", &format!("csi.volume.{}", made.uuid)]);
    rados(scene, POOL, &["rmomapkey", "csi.volumes.default", &format!("csi.volume.{}", made.name)]);
}

/// As topologyConstrainedPools makes it: what tells the names is in another pool than the image.
pub(crate) fn volume_journalled_elsewhere(scene: &Scene) -> Made {
    let made = reserve(scene, &Reservation { journal: JOURNAL, ..VOLUME });
    create(scene, &made);
    made
}

/// Reserved, and killed before there was an image.
pub(crate) fn reservation(scene: &Scene) -> Made {
    reserve(scene, &VOLUME)
}

/// Only the image and what tells its id: the end of CreateVolume.
pub(crate) fn create(scene: &Scene, made: &Made) {
    let size = format!("{}M", SIZE / MIB);
    run("rbd", &["create", "--size", &size, "--image-feature", FEATURES, &scene.corner.spec(&made.image)]);
    finish(scene, made);
}

pub(crate) fn snapshot(scene: &Scene, volume: &Made) -> Made {
    snapshot_as(scene, volume, "csi-snap-")
}

/// A snapshot of the volume, an image cloned from that, the snapshot away, and one on the image in its place.
pub(crate) fn snapshot_as(scene: &Scene, volume: &Made, prefix: &str) -> Made {
    let reservation = Reservation { of: "snap", prefix, journal: POOL, source: Some(&volume.image) };
    let made = reserve(scene, &reservation);
    let on_volume = scene.corner.spec(&format!("{}@{}", volume.image, made.image));
    run("rbd", &["snap", "create", "--no-progress", &on_volume]);
    run("rbd", &["clone", FORMAT, &on_volume, &scene.corner.spec(&made.image)]);
    run("rbd", &["snap", "rm", "--no-progress", &on_volume]);
    let own = scene.corner.spec(&format!("{0}@{0}", made.image));
    run("rbd", &["snap", "create", "--no-progress", &own]);
    store_image_id(scene, "snap", &made);
    scene.corner.set_meta(&made.image, "csi.storage.k8s.io/volumesnapshot/name", "backup");
    scene.corner.set_meta(&made.image, "csi.storage.k8s.io/volumesnapshot/namespace", "shop");
    scene.corner.set_meta(&made.image, "csi.storage.k8s.io/volumesnapshotcontent/name", &made.name);
    made
}

pub(crate) fn restored(scene: &Scene, snapshot: &Made) -> Made {
    let made = reserve(scene, &VOLUME);
    let from = scene.corner.spec(&format!("{0}@{0}", snapshot.image));
    run("rbd", &["clone", FORMAT, &from, &scene.corner.spec(&made.image)]);
    finish(scene, &made);
    made
}

/// The temporary image and the snapshot on it stay.
pub(crate) fn clone(scene: &Scene, volume: &Made) -> Made {
    let made = reserve(scene, &VOLUME);
    let temp = format!("{}-temp", made.image);
    let on_volume = scene.corner.spec(&format!("{}@{temp}", volume.image));
    run("rbd", &["snap", "create", "--no-progress", &on_volume]);
    run("rbd", &["clone", FORMAT, &on_volume, &scene.corner.spec(&temp)]);
    run("rbd", &["snap", "rm", "--no-progress", &on_volume]);
    let on_temp = scene.corner.spec(&format!("{temp}@{}", made.image));
    run("rbd", &["snap", "create", "--no-progress", &on_temp]);
    run("rbd", &["clone", FORMAT, &on_temp, &scene.corner.spec(&made.image)]);
    finish(scene, &made);
    made
}

/// A volume of the in-tree driver, with the context that csi-translation-lib gives its PV: static and migrated at once.
pub(crate) fn migrated(scene: &Scene) -> Made {
    let uuid = new_uuid();
    let image = format!("kubernetes-dynamic-pvc-{uuid}");
    run("rbd", &["create", "--size", "320M", "--image-feature", "layering", &scene.corner.spec(&image)]);
    let pool = POOL.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    let context = map(&[
        ("clusterID", CLUSTER),
        ("pool", POOL),
        ("imageName", &image),
        ("imageFeatures", "layering"),
        ("imageFormat", ""),
        ("journalPool", ""),
        ("migration", "true"),
        ("staticVolume", "true"),
        ("tryOtherMounters", "true"),
    ]);
    Made { name: unique("pv"), id: format!("mig_mons-{CLUSTER}_image-{uuid}_{pool}"), uuid, image, context }
}

/// An image that an administrator made, and the PV for it.
pub(crate) fn static_volume(scene: &Scene) -> Made {
    let image = unique("golden");
    run("rbd", &["create", "--size", "320M", "--image-feature", "layering", &scene.corner.spec(&image)]);
    let context = map(&[
        ("clusterID", CLUSTER),
        ("pool", POOL),
        ("staticVolume", "true"),
        ("imageFeatures", "layering"),
    ]);
    Made { name: unique("pv"), id: image.clone(), uuid: String::new(), image, context }
}

/// `ReserveName`: the empty object beside the image, the key by name, then the keys of the object: these in the pool of
/// the journal, whichever pool the object is in.
fn reserve(scene: &Scene, reservation: &Reservation<'_>) -> Made {
    let Reservation { of, prefix, journal, source } = *reservation;
    let (name, uuid) = (unique("pvc"), new_uuid());
    let (object, image) = (format!("csi.{of}.{uuid}"), format!("{prefix}{uuid}"));
    rados(scene, POOL, &["create", &object]);
    let elsewhere = journal != POOL;
    let value = if elsewhere { format!("{:016x}/{uuid}", pool_id(POOL)) } else { uuid.clone() };
    let mut keys = vec![
        (format!("csi.{of}s.default"), format!("csi.{of}.{name}"), value),
        (object.clone(), format!("csi.{}name", if of == "snap" { "snap" } else { "vol" }), name.clone()),
        (object.clone(), "csi.imagename".to_owned(), image.clone()),
        (object.clone(), "csi.volume.owner".to_owned(), "shop".to_owned()),
    ];
    let more = source.map(|source| ("csi.source", source.to_owned())).into_iter();
    let more = more.chain(elsewhere.then(|| ("csi.journalpool", format!("{:016x}", pool_id(JOURNAL)))));
    keys.extend(more.map(|(key, value)| (object.clone(), key.to_owned(), value)));
    for (object, key, value) in &keys {
        rados(scene, journal, &["setomapval", object, key, value]);
    }
    let id = format!("0001-{:04x}-{CLUSTER}-{:016x}-{uuid}", CLUSTER.len(), pool_id(POOL));
    let mut context = map(&[
        ("clusterID", CLUSTER),
        ("pool", POOL),
        ("journalPool", journal),
        ("imageName", &image),
        ("imageFeatures", FEATURES),
    ]);
    if !scene.corner.namespace.is_empty() {
        context.insert("radosNamespace".to_owned(), scene.corner.namespace.clone());
    }
    Made { name, uuid, image, id, context }
}

fn finish(scene: &Scene, made: &Made) {
    store_image_id(scene, "volume", made);
    for (key, value) in [
        ("csi.storage.k8s.io/pv/name", made.name.as_str()),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.ceph.com/cluster/name", "prod"),
        ("csi.ceph.com/mounter", "rbd"),
    ] {
        scene.corner.set_meta(&made.image, key, value);
    }
}

fn store_image_id(scene: &Scene, of: &str, made: &Made) {
    let info = scene.corner.info(&made.image).expect("the image");
    let object = format!("csi.{of}.{}", made.uuid);
    let pool = made.context.get("journalPool").expect("a journal pool");
    rados(scene, pool, &["setomapval", &object, "csi.imageid", &text(&info["id"])]);
}

/// The volume as a CO's calls name it.
pub(crate) fn life(
    scene: &Scene,
    driver: &Driver,
    made: &Made,
    capability: crate::common::csi::VolumeCapability,
) -> Life {
    Life::known(scene, driver, &made.id, &made.image, capability).with_context(made.context.clone())
}

/// Staged and published by ceph-csi's node plugin, which is gone now. Answers the device.
pub(crate) fn staged(scene: &Scene, driver: &Driver, life: &Life, fs_type: &str) -> String {
    let mut map = Command::new("rbd");
    map.args(["map", &scene.corner.spec(&life.image), "--device-type", "krbd", "--options", "noudev"]);
    let device = try_run(map.env("RBD_STANDIN_DIR", driver.maps())).expect("rbd map").trim().to_owned();
    let mkfs: &[&str] = if fs_type == "xfs" { &["-K"] } else { &["-m0", "-Enodiscard,lazy_itable_init=1"] };
    run(&format!("mkfs.{fs_type}"), &[mkfs, &[device.as_str()]].concat());
    let (place, target) = (life.staging.join(&life.id), life.target.clone());
    for folder in [&place, &target] {
        fs::create_dir_all(folder).expect("a mount point");
    }
    let options = if fs_type == "xfs" { "defaults,nouuid" } else { "defaults" };
    let (place, target) = (place.display().to_string(), target.display().to_string());
    run("mount", &["-t", fs_type, "-o", options, &device, &place]);
    run("mount", &["--bind", &place, &target]);
    write_stash(life, &stash_of(scene, life, 3, &device));
    let (volume, user) = (&life.id, "csi");
    scene.corner.set_meta(&life.image, &format!(".rbd.csi.ceph.com/userid/{volume}/node-a"), user);
    scene.corner.set_meta(
        &life.image,
        &format!(".rbd.csi.ceph.com/clientaddress/{volume}/node-a"),
        "10.0.0.1",
    );
    device
}

/// Of releases 1.2 to 2.0, 2.1 to 3.0, and 3.5 to 3.17.
pub(crate) fn stash_of(scene: &Scene, life: &Life, version: u32, device: &str) -> Value {
    let mut stash = json!({ "Version": version, "pool": POOL, "image": life.image, "accessType": false });
    if version >= 2 {
        stash["encrypted"] = json!(false);
    }
    if version >= 3 {
        stash["radosNamespace"] = json!(scene.corner.namespace);
        stash["unmapOptions"] = json!("");
        stash["device"] = json!(device);
        stash["logDir"] = json!("/var/log/ceph");
        stash["logFileStrategy"] = json!("remove");
    }
    stash
}

pub(crate) fn write_stash(life: &Life, stash: &Value) {
    fs::write(life.staging.join("image-meta.json"), stash.to_string()).expect("the stash");
}

/// All that is left of images and names, in both pools. The emptied directories stay, as with ceph-csi.
pub(crate) fn left(scene: &Scene) -> BTreeSet<String> {
    let mut left: BTreeSet<String> = scene.corner.leftovers().into_iter().collect();
    for directory in ["csi.volumes.default", "csi.snaps.default"] {
        left.remove(directory);
        for pool in [POOL, JOURNAL] {
            left.extend(names(scene, pool, directory));
        }
    }
    let elsewhere = try_run(&mut rados_command(scene, JOURNAL, &["ls"])).unwrap_or_default();
    left.extend(elsewhere.lines().filter(|object| *object != "csi.volumes.default").map(str::to_owned));
    left
}

pub(crate) async fn nothing_is_left(scene: &Scene) {
    eventually("an empty namespace", || left(scene).is_empty()).await;
}

/// What the cluster has of these alone, and nothing of others.
pub(crate) fn names(scene: &Scene, pool: &str, directory: &str) -> Vec<String> {
    let listed = try_run(&mut rados_command(scene, pool, &["listomapkeys", directory])).unwrap_or_default();
    listed.lines().map(str::to_owned).collect()
}

pub(crate) fn rados(scene: &Scene, pool: &str, args: &[&str]) -> String {
    if pool == JOURNAL {
        journal_pool();
    }
    try_run(&mut rados_command(scene, pool, args)).unwrap_or_else(|error| panic!("{error}"))
}

fn rados_command(scene: &Scene, pool: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rados");
    command.args(["--pool", pool, "--namespace", &scene.corner.namespace]).args(args);
    command
}

/// Makes it, once; waits until the driver can see it.
fn journal_pool() -> u64 {
    static ID: OnceLock<u64> = OnceLock::new();
    *ID.get_or_init(|| {
        run("ceph", &["osd", "pool", "create", JOURNAL, "8", "8"]);
        run("ceph", &["osd", "pool", "application", "enable", JOURNAL, "rbd"]);
        let end = std::time::Instant::now() + crate::common::sight::PATIENCE;
        while listed_id(JOURNAL).is_none() {
            assert!(std::time::Instant::now() < end, "pool {JOURNAL} is not in `rados df`");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        listed_id(JOURNAL).expect("its number")
    })
}

pub(crate) fn pool_id(pool: &str) -> u64 {
    if pool == JOURNAL { journal_pool() } else { listed_id(pool).expect("a listed pool") }
}

fn listed_id(pool: &str) -> Option<u64> {
    let pools: Value = serde_json::from_str(&run("rados", &["df", "--format=json"])).expect("JSON");
    let pools = pools["pools"].as_array().cloned().unwrap_or_default();
    let id = pools.iter().find(|one| one["name"] == pool)?["id"].clone();
    id.as_u64().or_else(|| id.as_str()?.parse().ok())
}

fn new_uuid() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a uuid").trim().to_owned()
}
