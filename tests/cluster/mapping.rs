//! How the node maps an image: by krbd or rbd-nbd, with which options, in which network namespace, and what is unmapped
//! of all that again, also of what ceph-csi staged.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tonic::Code;

use crate::common::growth::SIZE;
use crate::common::life::{Life, block, mount};
use crate::common::sight::{eventually, stash};
use crate::common::tools::{check, unique};
use crate::common::wrap::Wrapper;
use crate::harness::{Driver, Scene};
use crate::lab::{POOL, lab, mapped_by};
use crate::life::request;
use crate::wrap::COUNT;

const NBD: (&str, &str) = ("mounter", "rbd-nbd");

/// krbd's answer to an image with a feature that it does not know (Linux 6.1).
pub(crate) const UNSUPPORTED: &str = r#"if [[ $1 == map && $* == *"--device-type krbd"* ]]; then
    echo 'rbd: sysfs write failed' >&2
    echo 'RBD image feature set mismatch. You can disable features unsupported by the kernel with "rbd feature disable".' >&2
    echo 'rbd: map failed: (6) No such device or address' >&2
    exit 6
fi
exec "$RBD" "$@""#;

/// What `rbd` says of rbd-nbd where that is not installed; and one that is broken in another way.
const NOT_INSTALLED: &str = "/usr/bin/rbd-nbd: exec failed: (2) No such file or directory";
const BROKEN: &str = "rbd-nbd: error while loading shared libraries";

fn no_nbd(why: &str) -> String {
    let told = format!("echo '{why}' >&2\n    echo 'rbd: rbd-nbd failed with error' >&2\n    exit 22");
    format!("if [[ $* == *\"--device-type nbd\"* ]]; then\n    {told}\nfi\nexec \"$RBD\" \"$@\"")
}

pub(crate) async fn create(
    scene: &Scene,
    driver: &Driver,
    parameters: &[(&str, &str)],
    filesystem: Option<&str>,
) -> Life {
    let capability = filesystem.map_or_else(block, mount);
    let mut asked = request::create(&unique("pvc"), capability.usual_mib(), capability);
    asked.parameters.extend(request::map(parameters));
    Life::create_as(scene, driver, asked).await
}

/// The records of what is mapped on this driver's node.
fn mappings(driver: &Driver) -> Vec<Value> {
    let folders = fs::read_dir(driver.maps()).into_iter().flatten().flatten();
    let records = folders.filter_map(|folder| fs::read_to_string(folder.path().join("map.json")).ok());
    records.map(|text| serde_json::from_str(&text).expect("a record")).collect()
}

#[track_caller]
fn options(driver: &Driver) -> String {
    let [mapping] = mappings(driver).try_into().expect("one mapping");
    mapping["options"].as_str().expect("its options").to_owned()
}

pub(crate) fn by_nbd(scene: &Scene, driver: &Driver) -> usize {
    mapped_by("nbd", driver.maps(), &scene.corner.namespace).len()
}

pub(crate) async fn gone(scene: &Scene, driver: &Driver, life: &Life) {
    life.assert_gone_from(driver);
    assert_eq!(mappings(driver), Vec::<Value>::new());
    life.detach(driver, "node-a").await.expect("ControllerUnpublishVolume");
    driver.delete(&life.id).await.expect("DeleteVolume");
    eventually("an empty corner", || scene.corner.leftovers().is_empty()).await;
}

#[tokio::test]
async fn a_volume_lives_on_rbd_nbd() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for filesystem in [Some("ext4"), None] {
        let features = ("imageFeatures", "layering,exclusive-lock,journaling");
        let life = create(&scene, &driver, &[NBD, features], filesystem).await;
        life.attach(&driver, "node-a").await.expect("ControllerPublishVolume");
        life.up(&driver).await;
        assert_eq!(by_nbd(&scene, &driver), 1);
        let cookie = format!("reattach-timeout=300,io-timeout=0,cookie={}", life.id);
        assert!(options(&driver).ends_with(&cookie), "{}", options(&driver));
        let argv = mappings(&driver)[0]["argv"].to_string();
        assert!(argv.contains("--keyfile") && !argv.contains(&lab().key), "{argv}");
        assert!(!argv.contains("rados_osd_op_timeout"), "pods would get I/O errors: {argv}");
        let stash = stash(&life.staging).expect("a stash");
        assert_eq!((&stash["accessType"], &stash["device"]), (&json!(true), &mappings(&driver)[0]["device"]));
        life.stage(&driver).await.expect("NodeStageVolume again");
        assert_eq!(by_nbd(&scene, &driver), 1);
        life.down(&driver).await;
        gone(&scene, &driver, &life).await;
    }
}

#[tokio::test]
async fn a_volume_on_rbd_nbd_grows_while_it_is_used() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = create(&scene, &driver, &[NBD], None).await;
    life.up(&driver).await;
    life.expand(&driver, SIZE).await.expect("ControllerExpandVolume");
    assert_eq!(life.expand_at(&driver, &life.target, SIZE).await.expect("NodeExpandVolume"), SIZE);
    life.down(&driver).await;
    gone(&scene, &driver, &life).await;
}

#[tokio::test]
async fn rbd_nbd_maps_what_krbd_cannot_where_others_may_be_tried() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(UNSUPPORTED)).await;
    let alone = create(&scene, &driver, &[], Some("ext4")).await;
    check(alone.stage(&driver).await, Code::FailedPrecondition, "tryOtherMounters");
    alone.assert_gone_from(&driver);
    driver.delete(&alone.id).await.expect("DeleteVolume");
    let life = create(&scene, &driver, &[("tryOtherMounters", "true")], Some("ext4")).await;
    life.up(&driver).await;
    assert_eq!(by_nbd(&scene, &driver), 1);
    assert_eq!(stash(&life.staging).expect("a stash")["accessType"], json!(true));
    life.down(&driver).await;
    gone(&scene, &driver, &life).await;
}

#[tokio::test]
async fn a_driver_killed_after_rbd_nbd_has_mapped_finds_it_again() {
    let scene = Scene::new();
    let mut driver = scene.start().await;
    let logs = scene.path("logs").display().to_string();
    let life = create(&scene, &driver, &[NBD, ("cephLogDir", &logs)], Some("ext4")).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    driver = driver.killed_and_started().await;
    // As if the kill had come before the mount.
    nix::mount::umount(&life.staged()[0].path).expect("unmounted");
    life.stage(&driver).await.expect("NodeStageVolume again");
    assert_eq!(by_nbd(&scene, &driver), 1);
    fs::remove_file(life.staging.join("image-meta.json")).expect("the stash is lost");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    gone(&scene, &driver, &life).await;
}

/// rbd-nbd takes a device away from under whoever uses it.
#[tokio::test]
async fn a_device_of_rbd_nbd_that_is_held_stays() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let life = create(&scene, &driver, &[NBD], None).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    let device = mappings(&driver)[0]["device"].as_str().expect("a device").to_owned();
    let holder = File::open(&device).expect("the device");
    check(life.unstage(&driver).await, Code::FailedPrecondition, &format!("process {}", std::process::id()));
    assert_eq!((wrapper.count("unmap"), by_nbd(&scene, &driver)), (0, 1));
    drop(holder);
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    gone(&scene, &driver, &life).await;
}

#[tokio::test]
async fn a_node_without_rbd_nbd_maps_by_krbd_and_is_not_stuck() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(&no_nbd(NOT_INSTALLED))).await;
    let life = create(&scene, &driver, &[], Some("ext4")).await;
    life.up(&driver).await;
    let kept = fs::read_to_string(life.staging.join("image-meta.json")).expect("the stash");
    fs::write(
        life.staging.join("image-meta.json"),
        kept.replace("\"accessType\":false", "\"accessType\":true"),
    )
    .expect("a stash of rbd-nbd");
    life.unpublish(&driver).await.expect("NodeUnpublishVolume");
    // The kernel has no nbd: whatever the stash says, nothing is mapped by it.
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    gone(&scene, &driver, &life).await;
}

#[tokio::test]
async fn a_listing_of_rbd_nbd_that_fails_is_no_empty_one() {
    let scene = Scene::new();
    let driver = scene.start_with(&scene.wrapper(&no_nbd(BROKEN))).await;
    let life = create(&scene, &driver, &[], None).await;
    check(life.stage(&driver).await, Code::Aborted, "shared libraries");
    assert_eq!(mappings(&driver), Vec::<Value>::new());
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn each_client_gets_its_own_options() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let given = ("mapOptions", "krbd:lock_on_read,queue_depth=64;nbd:notrim,io-timeout=90");
    for (parameters, expected) in [
        (vec![], "noudev"),
        (vec![given], "noudev,lock_on_read,queue_depth=64"),
        (vec![given, NBD], "notrim,io-timeout=90"),
    ] {
        let life = create(&scene, &driver, &parameters, None).await;
        life.stage(&driver).await.expect("NodeStageVolume");
        let options = options(&driver);
        assert!(options.ends_with(expected) && options.matches("io-timeout").count() <= 1, "{options}");
        life.unstage(&driver).await.expect("NodeUnstageVolume");
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}

#[tokio::test]
async fn options_that_break_a_promise_are_refused_by_both_services() {
    let scene = Scene::new();
    let driver = scene.start().await;
    let life = create(&scene, &driver, &[], None).await;
    for (name, value, fragment) in [
        ("mapOptions", "exclusive", "grow"),
        ("mapOptions", "krbd:ro", "access mode"),
        ("mapOptions", "crc --id=admin", "no option"),
        ("mapOptions", "nbd:--conf=/tmp/x", "no option"),
        ("mapOptions", "nbd:keyfile=/etc/shadow", "keyfile"),
        ("mapOptions", "nbd:quiesce-hook=/bin/sh", "program"),
        ("mapOptions", "crush_location=zone:a", "krbd:"),
        ("unmapOptions", "nbd:device=/dev/sda", "device"),
        ("mounter", "fuse", "fuse"),
        ("cephLogDir", "/var/../etc", "/var/../etc"),
        ("cephLogStrategy", "shred", "shred"),
    ] {
        let mut asked = request::create(&unique("pvc"), 64, block());
        asked.parameters.extend(request::map(&[(name, value)]));
        check(driver.create(asked).await, Code::InvalidArgument, fragment);
        let mut context = life.context.clone();
        context.insert(name.to_owned(), value.to_owned());
        check(life.clone().with_context(context).stage(&driver).await, Code::InvalidArgument, fragment);
        life.assert_gone_from(&driver);
    }
    driver.delete(&life.id).await.expect("DeleteVolume");
}

/// The PVs of ceph-csi's own example carry it, and nobody can change a PV.
#[tokio::test]
async fn force_is_refused_to_new_volumes_and_never_used_for_old_ones() {
    let scene = Scene::new();
    let wrapper = scene.wrapper(COUNT);
    let driver = scene.start_with(&wrapper).await;
    let mut asked = request::create(&unique("pvc"), 64, block());
    asked.parameters.extend(request::map(&[("unmapOptions", "krbd:force;nbd:force")]));
    check(driver.create(asked).await, Code::InvalidArgument, "force");
    let life = create(&scene, &driver, &[], None).await;
    let mut context = life.context.clone();
    context.insert("unmapOptions".to_owned(), "krbd:force;nbd:force".to_owned());
    let life = life.with_context(context);
    life.stage(&driver).await.expect("NodeStageVolume");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    let unmap = wrapper.calls().into_iter().find(|call| call.starts_with("unmap")).expect("an unmap");
    assert!(unmap.ends_with("--options noudev"), "{unmap}");
    gone(&scene, &driver, &life).await;
}

/// As each release wrote it, of a volume that it had mapped by rbd-nbd.
fn stashes_of_ceph_csi(life: &Life) -> [Value; 4] {
    let image = &life.image;
    [
        json!({"Version": 1, "pool": POOL, "image": image, "accessType": true}),
        json!({"Version": 2, "pool": POOL, "image": image, "accessType": true, "encrypted": false}),
        json!({"Version": 3, "pool": POOL, "radosNamespace": "", "image": image, "unmapOptions": "force",
            "accessType": true, "encrypted": false}),
        json!({"Version": 3, "pool": POOL, "radosNamespace": "", "image": image, "unmapOptions": "",
            "accessType": true, "encrypted": false, "device": "/dev/nbd0", "logDir": "/nowhere",
            "logFileStrategy": "remove"}),
    ]
}

#[tokio::test]
async fn what_ceph_csi_staged_by_rbd_nbd_is_unstaged() {
    // The pool itself: the oldest stashes know no namespace.
    let scene = Scene::shared();
    let driver = scene.start().await;
    let logs = scene.path("logs").display().to_string();
    let life = create(&scene, &driver, &[NBD, ("cephLogDir", &logs)], Some("ext4")).await;
    for stash in stashes_of_ceph_csi(&life) {
        life.stage(&driver).await.expect("NodeStageVolume");
        fs::write(life.staging.join("image-meta.json"), stash.to_string()).expect("the stash");
        life.unstage(&driver).await.unwrap_or_else(|status| panic!("{stash}: {status:?}"));
        life.assert_gone_from(&driver);
        assert!(!life.staging.join("image-meta.json").exists());
    }
    driver.delete(&life.id).await.expect("DeleteVolume");
}

/// Each file of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_log_of_rbd_nbd_goes_as_its_strategy_says() {
    let scene = Scene::new();
    let driver = scene.start().await;
    for (strategy, suffix) in [("", None), ("compress", Some(".log.gz")), ("preserve", Some(".log"))] {
        let folder = scene.path(&unique("logs"));
        let dir = folder.to_string_lossy();
        let mut parameters = vec![NBD, ("cephLogDir", &dir)];
        parameters.extend((!strategy.is_empty()).then_some(("cephLogStrategy", strategy)));
        let life = create(&scene, &driver, &parameters, None).await;
        for _ in 0..2 {
            life.stage(&driver).await.expect("NodeStageVolume");
            let log = folder.join(format!("rbd-nbd-{}.log", life.id));
            assert!(files(&folder).contains(&log), "{:?}", files(&folder));
            life.unstage(&driver).await.expect("NodeUnstageVolume");
            let left: Vec<_> =
                suffix.iter().map(|end| folder.join(format!("rbd-nbd-{}{end}", life.id))).collect();
            assert_eq!(files(&folder), left, "{strategy:?}");
        }
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}

#[tokio::test]
async fn an_image_is_mapped_in_the_network_namespace_of_its_cluster() {
    let scene = Scene::new();
    let script = "echo \"$*\" >>$CALLS\nexec /usr/bin/nsenter \"$@\"";
    let nsenter = Wrapper::new(scene.path("nsenter"), &["nsenter"], script);
    // That of the driver, by another name.
    scene.configure_with(&lab().monitors, json!({}), json!({ "netNamespaceFilePath": "/proc/self/ns/net" }));
    let driver = scene.driver().wrapped(&nsenter).start().await;
    for parameters in [vec![], vec![NBD]] {
        let life = create(&scene, &driver, &parameters, None).await;
        life.stage(&driver).await.expect("NodeStageVolume");
        life.unstage(&driver).await.expect("NodeUnstageVolume");
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
    let calls = nsenter.calls();
    let inside = |call: &String| call.starts_with("--net=/proc/self/ns/net -- rbd map rbd/");
    assert!(calls.len() == 2 && calls.iter().all(inside), "{calls:?}");
    scene.configure_with(&lab().monitors, json!({}), json!({ "netNamespaceFilePath": "../net" }));
    let asked = request::create(&unique("pvc"), 64, block());
    check(driver.create(asked).await, Code::FailedPrecondition, "netNamespaceFilePath");
}

#[tokio::test]
async fn krbd_is_told_the_protocol_where_all_monitors_speak_the_new_one() {
    let scene = Scene::new();
    let (ip, _) = lab().monitors.rsplit_once(':').expect("an address and its port");
    scene.configure(&format!("v2:{ip}:3300"));
    let driver = scene.start().await;
    for (parameters, expected) in [
        (vec![], "noudev,ms_mode=prefer-crc"),
        (vec![("mapOptions", "ms_mode=secure")], "noudev,ms_mode=secure"),
        (vec![NBD], "io-timeout=0"),
    ] {
        let life = create(&scene, &driver, &parameters, None).await;
        life.stage(&driver).await.expect("NodeStageVolume");
        assert!(options(&driver).contains(expected), "{}", options(&driver));
        assert_eq!(options(&driver).matches("ms_mode").count(), usize::from(!parameters.contains(&NBD)));
        life.unstage(&driver).await.expect("NodeUnstageVolume");
        driver.delete(&life.id).await.expect("DeleteVolume");
    }
}

#[tokio::test]
async fn a_node_reads_from_what_is_near() {
    let scene = Scene::new();
    let flags = ["--enable-read-affinity=true", "--crush-location-labels=topology.kubernetes.io/zone=a.b"];
    let driver = scene.driver().flag(flags[0]).flag(flags[1]).start().await;
    let life = create(&scene, &driver, &[], None).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    assert_eq!(options(&driver), "noudev,read_from_replica=localize,crush_location=zone:a-b");
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    driver.delete(&life.id).await.expect("DeleteVolume");
}

#[tokio::test]
async fn a_node_whose_labels_nobody_tells_reads_from_primaries_and_says_so() {
    let scene = Scene::new();
    let affinity = json!({ "enabled": true, "crushLocationLabels": ["topology.kubernetes.io/zone"] });
    scene.configure_with(&lab().monitors, json!({ "readAffinity": affinity }), json!({}));
    let driver = scene.start().await;
    let life = create(&scene, &driver, &[], None).await;
    life.stage(&driver).await.expect("NodeStageVolume");
    assert_eq!(options(&driver), "noudev");
    assert!(driver.log().contains("read affinity"), "{}", driver.log());
    life.unstage(&driver).await.expect("NodeUnstageVolume");
    driver.delete(&life.id).await.expect("DeleteVolume");
}
