//! Encrypted volumes that ceph-csi made, and opened on this node: taken over in use, closed, and opened again.

use crate::ceph_csi::{self, Made, SIZE};
use crate::common::life::{Life, mount};
use crate::common::tools::twice;
use crate::harness::{Driver, Scene};
use crate::keys::{DEK, ENCRYPTED, HEADER, passphrase, seal};
use crate::lab::{POOL, lab};

use super::encrypted::Wrapper;
use super::node::{GUEST, Node};

/// What a release leaves.
struct Release {
    /// The id of its key store; `default` has the passphrase itself for a key.
    store: &'static str,
    /// Before its keys of metadata: older ones began with a dot.
    dot: &'static str,
    /// Since 3.15 the header has a size of its own, which is written down.
    sizes: &'static str,
    fs_type: &'static str,
}

/// Of kind `metadata`.
const NEWEST: Release = Release {
    store: "meta",
    dot: "",
    sizes: "--luks2-metadata-size 4096k --luks2-keyslots-size 8192k",
    fs_type: "ext4",
};
const OLDER: Release = Release { store: "default", dot: ".", sizes: "", fs_type: "xfs" };

impl Release {
    fn key(&self) -> &str {
        if self.store == "default" { passphrase() } else { "Y2VwaC1jc2kncyBvd24ga2V5" }
    }

    /// What it writes of an encrypted volume, beside what it writes of every volume.
    fn write_down(&self, scene: &Scene, made: &Made) {
        let object = format!("csi.volume.{}", made.uuid);
        for (key, value) in [("csi.volume.encryptKMS", self.store), ("csi.volume.encryptionType", "block")] {
            ceph_csi::rados(scene, POOL, &["setomapval", &object, key, value]);
        }
        let set = |key: &str, value: &str| scene.corner.set_meta(&made.image, key, value);
        set(&format!("{}{ENCRYPTED}", self.dot), "encrypted");
        if self.store != "default" {
            set(&format!("{}{DEK}", self.dot), &seal(self.key(), &made.id));
        }
        if !self.sizes.is_empty() {
            set("rbd.csi.ceph.com/luks2HeaderSize", &HEADER.to_string());
        }
    }

    /// Staged and published by its node plugin, which is gone now. Keys that cost next to nothing are as good here.
    fn stage(&self, scene: &Scene, node: &Node, life: &Life) {
        let mkfs = if self.fs_type == "xfs" { "-K" } else { "-m0 -Enodiscard,lazy_itable_init=1" };
        let options = if self.fs_type == "xfs" { "defaults,nouuid" } else { "defaults" };
        let (key, name, place) = (self.key(), life.mapper(), life.staging.join(&life.id));
        node.run(&format!(
            "d=$(CEPH_CONF={}/ceph.conf rbd map {} --device-type krbd --options noudev) &&
             cost='--pbkdf-memory 32768 --pbkdf-force-iterations 4' &&
             echo -n {key} | cryptsetup -q luksFormat --type luks2 --hash sha256 {} $cost $d -d - &&
             echo -n {key} | cryptsetup luksOpen $d {name} --disable-keyring -d - &&
             mkfs.{} -q {mkfs} /dev/mapper/{name} &&
             mkdir -p {place} {target} && mount -t {} -o _netdev,{options} /dev/mapper/{name} {place} &&
             mount --bind {place} {target}",
            lab().dir.display(),
            scene.corner.spec(&life.image),
            self.sizes,
            self.fs_type,
            self.fs_type,
            place = place.display(),
            target = life.target.display(),
        ));
        // Of krbd it stashes no device.
        let mut stash = ceph_csi::stash_of(scene, life, 3, "");
        stash["encrypted"] = true.into();
        node.run(&format!("echo '{stash}' >{}/image-meta.json", life.staging.display()));
    }

    fn volume(&self, scene: &Scene, controller: &Driver) -> Life {
        let made = ceph_csi::volume(scene);
        self.write_down(scene, &made);
        let life = ceph_csi::life(scene, controller, &made, mount(self.fs_type));
        let mut life = life.saying("encrypted", Some("true"));
        if self.store != "default" {
            life = life.saying("encryptionKMSID", Some(self.store));
        }
        life.secrets.insert("encryptionPassphrase".to_owned(), passphrase().to_owned());
        life
    }
}

async fn taken_over(release: &Release) {
    let scene = Scene::new();
    let controller = scene.with_key_stores(scene.on_node("outside", "controller")).start().await;
    let node = Wrapper::new(&scene).start(&scene).await;
    let life = release.volume(&scene, &controller);
    life.attach(&controller, GUEST).await.expect("ControllerPublishVolume");
    release.stage(&scene, &node, &life);
    let digest = node.write(&life, 2);
    twice(|| life.stage(&node)).await;
    twice(|| life.publish(&node)).await;
    assert_eq!((node.mappers(), node.read(&life, 2)), (vec![life.mapper()], digest.clone()));
    life.down(&node).await;
    node.assert_clean();
    life.up(&node).await;
    assert_eq!(node.read(&life, 2), digest, "opened anew, it shows other data");
    life.down(&node).await;
    node.assert_clean();
    assert_eq!(scene.corner.size(&life.image), Some(SIZE));
    life.detach(&controller, GUEST).await.expect("ControllerUnpublishVolume");
    controller.delete(&life.id).await.expect("DeleteVolume");
    ceph_csi::nothing_is_left(&scene).await;
}

#[tokio::test]
async fn a_volume_that_ceph_csi_encrypted_is_taken_over_in_use() {
    taken_over(&NEWEST).await;
}

#[tokio::test]
#[ignore = "minutes under emulation: make test-all"]
async fn a_volume_that_an_older_ceph_csi_encrypted_is_taken_over_in_use() {
    taken_over(&OLDER).await;
}
