//! Images and snapshots that are made by hand, and the questions for their blocks.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::common::csi::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
};
use crate::common::life::{Life, block};
use crate::common::tools::{Answer, run};
use crate::harness::{Driver, Scene};
use crate::life::request;

pub(super) const FEATURES: &str = "layering,exclusive-lock,object-map,fast-diff,deep-flatten";

/// What happens to an image between two snapshots.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { offset: u64, length: u64, byte: u8 },
    Discard { offset: u64, length: u64 },
    Grow(u64),
}

/// An image of a volume that no CreateVolume made.
pub(super) struct Subject<'a> {
    scene: &'a Scene,
    /// Of ids: all but the uuid.
    head: String,
    pub(super) uuid: Uuid,
}

/// One of its snapshots.
pub(super) struct Taken {
    pub(super) id: String,
    pub(super) spec: String,
    pub(super) content: Vec<u8>,
}

impl<'a> Subject<'a> {
    /// Of this size, with options for `rbd create`.
    pub(super) async fn new(scene: &'a Scene, driver: &Driver, bytes: u64, options: &[&str]) -> Self {
        let subject = Self::unmade(scene, driver).await;
        let size = format!("{bytes}B");
        run("rbd", &[&["create", "--size", &size, &subject.spec()], options].concat());
        subject
    }

    pub(super) async fn unmade(scene: &'a Scene, driver: &Driver) -> Self {
        let life = Life::create(scene, driver, block()).await;
        let head = life.id[..life.id.len() - 36].to_owned();
        let named = Uuid::parse_str(&life.uuid()).expect("a uuid");
        Self { scene, head, uuid: Uuid::from_u128(named.as_u128() ^ 1) }
    }

    /// A clone of a snapshot, as a restore makes it.
    pub(super) fn clone_of(&self, taken: &Taken) -> Self {
        let clone = Self { uuid: Uuid::from_u128(self.uuid.as_u128() ^ 2), head: self.head.clone(), ..*self };
        let features = format!("--image-feature={FEATURES}");
        run("rbd", &["clone", "--rbd-default-clone-format=2", &features, &taken.spec, &clone.spec()]);
        clone
    }

    pub(super) fn image(&self) -> String {
        format!("csi-vol-{}", self.uuid)
    }

    pub(super) fn spec(&self) -> String {
        self.scene.corner.spec(&self.image())
    }

    pub(super) fn size(&self) -> u64 {
        self.scene.corner.size(&self.image()).expect("rbd info")
    }

    pub(super) fn change(&self, changes: &[Change]) {
        for change in changes {
            if let Change::Grow(bytes) = change {
                run("rbd", &["resize", "--no-progress", "--size", &format!("{bytes}B"), &self.spec()]);
            }
        }
        import(&self.spec(), &stream(changes, self.size()));
    }

    pub(super) fn take(&self, number: u128) -> Taken {
        let uuid = Uuid::from_u128(number);
        let spec = format!("{}@csi-snap-{uuid}", self.spec());
        run("rbd", &["snap", "create", "--no-progress", &spec]);
        Taken { id: self.snapshot_id(uuid), content: content(&spec), spec }
    }

    /// As src/id.rs writes it.
    pub(super) fn snapshot_id(&self, uuid: Uuid) -> String {
        format!("{}{uuid}-{}", self.head, URL_SAFE_NO_PAD.encode(self.uuid.as_bytes()))
    }
}

/// doc/dev/rbd-diff.rst of Ceph.
fn stream(changes: &[Change], size: u64) -> Vec<u8> {
    let mut stream = b"rbd diff v1\ns".to_vec();
    stream.extend(size.to_le_bytes());
    for change in changes {
        let (kind, offset, length) = match *change {
            Change::Write { offset, length, .. } => (b'w', offset, length),
            Change::Discard { offset, length } => (b'z', offset, length),
            Change::Grow(_) => continue,
        };
        let length = length.min(size.saturating_sub(offset));
        stream.push(kind);
        stream.extend(offset.to_le_bytes());
        stream.extend(length.to_le_bytes());
        if let Change::Write { byte, .. } = change {
            stream.extend((0..length).map(|at| byte ^ (at % 251) as u8));
        }
    }
    stream.push(b'e');
    stream
}

fn import(spec: &str, stream: &[u8]) {
    let mut command = Command::new("rbd");
    command.args(["import-diff", "--no-progress", "-", spec]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("rbd import-diff");
    child.stdin.take().expect("its input").write_all(stream).expect("it reads");
    assert!(child.wait().expect("its end").success(), "rbd import-diff {spec}");
}

fn content(spec: &str) -> Vec<u8> {
    let output =
        Command::new("rbd").args(["export", "--no-progress", spec, "-"]).output().expect("rbd export");
    assert!(output.status.success(), "rbd export {spec}");
    output.stdout
}

/// What is told: the capacity of the volume, and its blocks, message by message.
pub(super) type Told = Vec<(i64, Vec<BlockMetadata>)>;

/// All blocks of a snapshot, or those that differ from a base.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) base: Option<String>,
    pub(super) target: String,
    pub(super) from: i64,
    pub(super) most: i32,
}

impl Ask {
    pub(super) fn allocated(target: &str) -> Self {
        Self { base: None, target: target.to_owned(), from: 0, most: 0 }
    }

    pub(super) fn delta(base: &str, target: &str) -> Self {
        Self { base: Some(base.to_owned()), ..Self::allocated(target) }
    }

    pub(super) fn from(&self, from: u64) -> Self {
        Self { from: from.cast_signed(), ..self.clone() }
    }

    pub(super) async fn told(&self, driver: &Driver) -> Answer<Told> {
        let (mut told, variable) = (Vec::new(), i32::from(BlockMetadataType::VariableLength));
        if let Some(base) = &self.base {
            let request = GetMetadataDeltaRequest {
                base_snapshot_id: base.clone(),
                target_snapshot_id: self.target.clone(),
                starting_offset: self.from,
                max_results: self.most,
                secrets: request::secrets(),
            };
            let mut stream = driver.blocks().get_metadata_delta(request).await?.into_inner();
            while let Some(piece) = stream.message().await? {
                assert_eq!(piece.block_metadata_type, variable);
                told.push((piece.volume_capacity_bytes, piece.block_metadata));
            }
        } else {
            let request = GetMetadataAllocatedRequest {
                snapshot_id: self.target.clone(),
                starting_offset: self.from,
                max_results: self.most,
                secrets: request::secrets(),
            };
            let mut stream = driver.blocks().get_metadata_allocated(request).await?.into_inner();
            while let Some(piece) = stream.message().await? {
                assert_eq!(piece.block_metadata_type, variable);
                told.push((piece.volume_capacity_bytes, piece.block_metadata));
            }
        }
        Ok(told)
    }

    /// Offsets and lengths.
    pub(super) async fn blocks(&self, driver: &Driver) -> Answer<Vec<(u64, u64)>> {
        let told = self.told(driver).await?;
        let bytes = |number: i64| u64::try_from(number).expect("a number of bytes");
        let blocks = told.into_iter().flat_map(|(_, blocks)| blocks);
        Ok(blocks.map(|block| (bytes(block.byte_offset), bytes(block.size_bytes))).collect())
    }
}
