//! New keys for an encrypted volume (CSI-Addons), and what older snapshots of it are read with.

use tonic::Code;
use tonic::transport::Endpoint;

use crate::common::addons::encryptionkeyrotation::EncryptionKeyRotateRequest;
use crate::common::addons::encryptionkeyrotation::encryption_key_rotation_controller_client::EncryptionKeyRotationControllerClient as Rotations;
use crate::common::addons::identity::identity_client::IdentityClient;
use crate::common::addons::identity::{GetCapabilitiesRequest, GetIdentityRequest};
use crate::common::life::{Life, mount};
use crate::common::tools::{Answer, check, unique};
use crate::harness::Scene;
use crate::keys::encrypted_life;
use crate::life::request;

use super::machine::machine;
use super::node::Node;

const PORT: u16 = 9001;

async fn rotate(life: &Life) -> Answer {
    let endpoint = format!("http://{}:{PORT}", machine().address);
    let channel = Endpoint::try_from(endpoint).expect("an endpoint").connect_lazy();
    let request = EncryptionKeyRotateRequest {
        volume_id: life.id.clone(),
        secrets: life.secrets.clone(),
        ..EncryptionKeyRotateRequest::default()
    };
    Rotations::new(channel).encryption_key_rotate(request).await.map(drop)
}

async fn assert_offered() {
    let endpoint = format!("http://{}:{PORT}", machine().address);
    let channel = Endpoint::try_from(endpoint).expect("an endpoint").connect_lazy();
    let mut identity = IdentityClient::new(channel);
    let who = identity.get_identity(GetIdentityRequest {}).await.expect("GetIdentity").into_inner();
    assert_eq!(who.name, "rbd.csi.ceph.com");
    let offered = identity.get_capabilities(GetCapabilitiesRequest {}).await.expect("GetCapabilities");
    assert_eq!(offered.into_inner().capabilities.len(), 2);
}

/// Slots of the header that hold a key.
fn slots(node: &Node) -> String {
    node.run("cryptsetup luksDump /dev/rbd0 | grep -c 'luks2$'").trim().to_owned()
}

#[tokio::test]
async fn a_snapshot_is_read_with_the_key_of_its_time() {
    let scene = Scene::new();
    let controller = scene.with_key_stores(scene.on_node("outside", "controller")).start().await;
    let addons = format!("--csi-addons-endpoint=tcp://{}:{PORT}", machine().address);
    let stores = scene.path("key-stores.json");
    let node = Node::start_with(&scene, "", &format!("--kms-config={} {addons}", stores.display())).await;
    assert_offered().await;
    let life = encrypted_life(&scene, &controller, "meta", mount("ext4")).await;
    check(rotate(&life).await, Code::NotFound, "not staged");
    life.up(&node).await;
    let digest = node.write(&life, 2);
    let snapshot = controller.snap(&unique("snap"), &life.id).await.expect("CreateSnapshot");
    rotate(&life).await.expect("a new key");
    rotate(&life).await.expect("another one");
    assert_eq!(slots(&node), "1", "an old key still opens the header");
    life.down(&node).await;
    life.up(&node).await;
    assert_eq!(node.read(&life, 2), digest);
    life.down(&node).await;
    controller.delete(&life.id).await.expect("DeleteVolume");
    let asked = request::create(&unique("pvc"), 64, mount("ext4")).encrypted("meta");
    let restored = Life::create_as(&scene, &controller, asked.of_snapshot(&snapshot.snapshot_id)).await;
    restored.up(&node).await;
    assert_eq!(node.read(&restored, 2), digest);
    restored.down(&node).await;
    node.assert_clean();
}

#[tokio::test]
async fn a_volume_without_a_key_of_its_own_gets_none() {
    let scene = Scene::new();
    let controller = scene.on_node("outside", "controller").start().await;
    let addons = format!("--csi-addons-endpoint=tcp://{}:{PORT}", machine().address);
    let node = Node::start_with(&scene, "", &addons).await;
    let life = Life::create_as(&scene, &controller, request::create(&unique("pvc"), 64, mount("ext4"))).await;
    life.up(&node).await;
    check(rotate(&life).await, Code::FailedPrecondition, "not encrypted");
    life.down(&node).await;
}
