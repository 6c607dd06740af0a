//! What volumes are made from: snapshots taken with plain `rbd`, requests that name a source, and what Ceph knows of both.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::common::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::common::csi::{CreateVolumeRequest, VolumeContentSource};
use crate::common::life::Life;
use crate::common::tools::{run, unique};
use crate::harness::{Driver, Scene};
use crate::lab::{Corner, text};
use crate::life::request;

/// A snapshot, and what CreateSnapshot would have answered.
pub(crate) struct Taken {
    pub(crate) id: String,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// `pool/namespace/image@snapshot`
    pub(crate) spec: String,
}

pub(crate) fn snapshot(scene: &Scene, of: &Life) -> Taken {
    let source = Uuid::try_parse(&of.uuid()).expect("a uuid");
    let uuid = Uuid::new_v5(&source, unique("snap").as_bytes()).to_string();
    let head = &of.id[..of.id.len() - 36];
    let id = format!("{head}{uuid}-{}", URL_SAFE_NO_PAD.encode(source.as_bytes()));
    let name = format!("csi-snap-{uuid}");
    let spec = format!("{}@{name}", scene.corner.spec(&of.image));
    run("rbd", &["snap", "create", "--no-progress", &spec]);
    Taken { id, uuid, name, spec }
}

impl CreateVolumeRequest {
    pub(crate) fn of_snapshot(self, id: &str) -> Self {
        self.of(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
    }

    pub(crate) fn of_volume(self, id: &str) -> Self {
        self.of(Type::Volume(VolumeSource { volume_id: id.to_owned() }))
    }

    fn of(self, source: Type) -> Self {
        Self { volume_content_source: Some(VolumeContentSource { r#type: Some(source) }), ..self }
    }
}

/// A volume as large as its source.
pub(crate) fn like(source: &Life) -> CreateVolumeRequest {
    request::create(&unique("copy"), source.capability.usual_mib(), source.capability.clone())
}

pub(crate) async fn restored(scene: &Scene, driver: &Driver, taken: &Taken, source: &Life) -> Life {
    Life::create_as(scene, driver, like(source).of_snapshot(&taken.id)).await
}

pub(crate) async fn cloned(scene: &Scene, driver: &Driver, source: &Life) -> Life {
    Life::create_as(scene, driver, like(source).of_volume(&source.id)).await
}

impl Corner {
    /// `rbd children --all`.
    pub(crate) fn children(&self, image: &str) -> Vec<String> {
        let children = run("rbd", &["children", "--all", &self.spec(image), "--format=json"]);
        let children: serde_json::Value = serde_json::from_str(&children).expect("a list");
        children.as_array().into_iter().flatten().map(|child| text(&child["image"])).collect()
    }

    /// With those in its trash.
    pub(crate) fn count_snapshots(&self, image: &str) -> usize {
        let snapshots = run("rbd", &["snap", "ls", "--all", &self.spec(image), "--format=json"]);
        let snapshots: serde_json::Value = serde_json::from_str(&snapshots).expect("a list");
        snapshots.as_array().map_or(0, Vec::len)
    }

    pub(crate) fn has_parent(&self, image: &str) -> bool {
        self.info(image).is_some_and(|info| info["parent"].is_object())
    }

    pub(crate) fn marker(&self, image: &str) -> Option<String> {
        self.meta(image).remove(".rbd.csi.ceph.com/created")
    }

    /// Whether the marker of the clone names its own uuid.
    pub(crate) fn is_marked(&self, image: &str) -> bool {
        let uuid = &image[image.len() - 36..];
        self.marker(image).is_some_and(|marker| marker.starts_with(uuid) && marker.split(' ').count() == 4)
    }
}
