//! Volume ids as ceph-csi writes them, snapshot ids, and the uuids behind them. Pure: no cluster is asked.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::error::{Error, Result};

/// The driver's own namespace for UUID v5: fixed for ever, or the same request would mean another image.
const NAMESPACE: Uuid = Uuid::from_u128(0x8a5c_60f2_1f0e_5b7c_9d43_1c51_72b0_e6aa);
const VERSION: &str = "0001";
/// `clusterID` is at most 36 bytes, so that an id fits into the 128 bytes that the CSI specification gives it.
pub(crate) const MAX_CLUSTER_ID: usize = 36;

/// The uuid of the volume that a CreateVolume of this name means: the same request always means the same image.
pub(crate) fn volume_uuid(instance: &str, cluster: &str, name: &str) -> Uuid {
    Uuid::new_v5(&NAMESPACE, format!("{instance}\0{cluster}\0{name}").as_bytes())
}

/// The uuid of the snapshot that a CreateSnapshot of this name means: names of snapshots are not those of volumes.
pub(crate) fn snapshot_uuid(instance: &str, cluster: &str, name: &str) -> Uuid {
    Uuid::new_v5(&NAMESPACE, format!("snapshot\0{instance}\0{cluster}\0{name}").as_bytes())
}

/// A number that tells a node from others, where an id has a pool's.
pub(crate) fn node_number(node: &str) -> u64 {
    Uuid::new_v5(&NAMESPACE, format!("node\0{node}").as_bytes()).as_u64_pair().0
}

/// A volume that CreateVolume made: ours, ceph-csi's, or one that ceph-csi migrated from the in-tree driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct VolumeId {
    pub(crate) cluster: String,
    pub(crate) pool: Pool,
    pub(crate) uuid: Uuid,
}

/// A pool as an id names it: by its number, or, in migrated ids, by its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    Id(u64),
    Name(String),
}

impl VolumeId {
    /// Reads `0001-<4 hex len>-<clusterID>-<16 hex pool id>-<uuid>` or `mig_mons-<hash>_image-<uuid>_<pool hex>`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parsed = if text.starts_with("mig_") { parse_migrated(text) } else { parse_v1(text) };
        parsed.ok_or_else(|| {
            Error::Invalid(format!(
                "volume id {text:?} is not of the form 0001-<length>-<clusterID>-<pool id>-<uuid> (hexadecimal numbers)"
            ))
        })
    }

    /// The name of the image, unless the volume context or ceph-csi's journal says another.
    pub(crate) fn default_image(&self) -> String {
        match self.pool {
            Pool::Id(_) => format!("csi-vol-{}", self.uuid),
            Pool::Name(_) => format!("kubernetes-dynamic-pvc-{}", self.uuid),
        }
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, pool, uuid } = self;
        match pool {
            Pool::Id(pool) => write!(f, "{VERSION}-{:04x}-{cluster}-{pool:016x}-{uuid}", cluster.len()),
            Pool::Name(pool) => {
                write!(f, "mig_mons-{cluster}_image-{uuid}_")?;
                pool.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// A snapshot: written like a volume id, its own uuid in it, with the source's uuid behind. So restore and delete need
/// no index. ceph-csi's has no source behind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SnapshotId {
    /// What a volume in the place of the snapshot would have: cluster and pool of the source (ceph-csi's: of the image
    /// that it is), and the snapshot's uuid.
    pub(crate) own: VolumeId,
    /// The uuid of the source. None: a snapshot that ceph-csi made, as an image of its own.
    pub(crate) source: Option<Uuid>,
}

impl SnapshotId {
    pub(crate) fn new(source: &VolumeId, uuid: Uuid) -> Self {
        Self { own: VolumeId { uuid, ..source.clone() }, source: Some(source.uuid) }
    }

    /// Reads `<volume id>-<source uuid, base64url>`, where the volume id may be a migrated one, or ceph-csi's `<volume id>`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let ceph_csi = || Some(SnapshotId { own: parse_v1(text)?, source: None });
        parse_snapshot(text).or_else(ceph_csi).ok_or_else(|| {
            Error::Invalid(format!(
                "snapshot id {text:?} is not of the form 0001-<length>-<clusterID>-<pool id>-<uuid>-<source, base64url>, \
                 nor ceph-csi's without a source"
            ))
        })
    }

    /// The volume that it was taken of, where the id tells.
    pub(crate) fn source_volume(&self) -> Option<VolumeId> {
        self.source.map(|uuid| VolumeId { uuid, ..self.own.clone() })
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(source) => write!(f, "{}-{}", self.own, URL_SAFE_NO_PAD.encode(source.as_bytes())),
            None => self.own.fmt(f),
        }
    }
}

fn parse_snapshot(text: &str) -> Option<SnapshotId> {
    // The base64 text may hold dashes itself; its length is fixed.
    let (own, source) = text.split_at_checked(text.len().checked_sub(22)?)?;
    let source = Uuid::from_slice(&URL_SAFE_NO_PAD.decode(source).ok()?).ok()?;
    let own = own.strip_suffix('-')?;
    let own = if own.starts_with("mig_") { parse_migrated(own) } else { parse_v1(own) };
    Some(SnapshotId { own: own?, source: Some(source) })
}

fn parse_v1(text: &str) -> Option<VolumeId> {
    let rest = text.strip_prefix(VERSION)?.strip_prefix('-')?;
    let (length, rest) = (hex(rest.get(..4)?)?, rest.get(4..)?.strip_prefix('-')?);
    let length = usize::try_from(length).ok().filter(|length| (1..=MAX_CLUSTER_ID).contains(length))?;
    let (cluster, rest) = (rest.get(..length)?, rest.get(length..)?.strip_prefix('-')?);
    let (pool, uuid) = (hex(rest.get(..16)?)?, rest.get(16..)?.strip_prefix('-')?);
    is_cluster_id(cluster).then_some(())?;
    Some(VolumeId { cluster: cluster.to_owned(), pool: Pool::Id(pool), uuid: hyphenated(uuid)? })
}

fn parse_migrated(text: &str) -> Option<VolumeId> {
    let (cluster, rest) = text.strip_prefix("mig_mons-")?.split_once("_image-")?;
    let (uuid, pool) = rest.split_once('_')?;
    is_cluster_id(cluster).then_some(())?;
    let bytes: Option<Vec<u8>> = pool
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::try_from(hex(std::str::from_utf8(pair).ok()?)?).ok())
        .collect();
    let pool = String::from_utf8(bytes.filter(|bytes| !bytes.is_empty() && pool.len() % 2 == 0)?).ok()?;
    is_plain(&pool).then_some(())?;
    Some(VolumeId { cluster: cluster.to_owned(), pool: Pool::Name(pool), uuid: hyphenated(uuid)? })
}

/// What ceph-csi 3.17 takes for a cluster id inside a volume id: nothing that could leave a path or an argument.
pub(crate) fn is_cluster_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.len() <= MAX_CLUSTER_ID && text.bytes().all(plain)
}

/// A pool or image name that is nothing else in an image spec (`pool/namespace/image@snapshot`) or a command line.
pub(crate) fn is_plain(name: &str) -> bool {
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '@' | '\\');
    (1..=128).contains(&name.len()) && !name.starts_with(['-', '.']) && !name.contains(odd)
}

/// Hexadecimal without sign or prefix (`from_str_radix` alone would take "+1").
fn hex(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

/// A uuid in its one written form; the braces, urn and upper-case forms would name another image.
pub(crate) fn hyphenated(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text).ok().filter(|uuid| uuid.to_string() == text)
}

/// At the end of the name of an image or a snapshot.
pub(crate) fn trailing_uuid(name: &str) -> Option<Uuid> {
    hyphenated(name.get(name.len().checked_sub(36)?..)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CEPH_CSI: &str = "0001-0009-rook-ceph-0000000000000002-50d53503-e5e8-11e9-a0e9-0242ac110002";

    #[test]
    fn an_id_of_ceph_csi_is_read_and_written_alike() {
        let id = VolumeId::parse(CEPH_CSI).expect("a good id");
        assert_eq!(id.cluster, "rook-ceph");
        assert_eq!(id.pool, Pool::Id(2));
        assert_eq!(id.default_image(), "csi-vol-50d53503-e5e8-11e9-a0e9-0242ac110002");
        assert_eq!(id.to_string(), CEPH_CSI);
    }

    #[test]
    fn a_migrated_id_is_read_and_written_alike() {
        let text = "mig_mons-b7f67366bb43f32e07d8a261a7840da9_image-e0b45b52-7e09-47d3-8f1b-806995fa4412_7265706c6963617061";
        let id = VolumeId::parse(text).expect("a good id");
        assert_eq!(id.pool, Pool::Name("replicapa".to_owned()));
        assert_eq!(id.default_image(), "kubernetes-dynamic-pvc-e0b45b52-7e09-47d3-8f1b-806995fa4412");
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let upper = CEPH_CSI.to_uppercase();
        let slash = CEPH_CSI.replace("rook-ceph", "rook/../h");
        for text in [
            "",
            "vol",
            "0002-0001-a-0000000000000001-x",
            &CEPH_CSI[..70],
            &upper,
            &slash,
            "mig_x",
            "mig_mons-a_image-e0b45b52-7e09-47d3-8f1b-806995fa4412_2d78", // pool "-x"
            "0001-+009-",
        ] {
            assert!(VolumeId::parse(text).is_err(), "{text:?} was taken for an id");
        }
    }

    #[test]
    fn the_uuid_of_a_request_never_changes() {
        let uuid = volume_uuid("default", "rook-ceph", "pvc-1");
        assert_eq!(uuid.to_string(), "e7ccfe3e-4472-56f2-844e-c1346fb29169");
        assert_ne!(uuid, volume_uuid("default", "rook-cep", "hpvc-1"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = VolumeId::parse(&text);
            let _ = SnapshotId::parse(&text);
        }

        #[test]
        fn every_snapshot_id_survives_the_way_to_text_and_back(cluster in "[a-zA-Z0-9_-]{1,36}", pool: u64, uuid: u128, source: u128) {
            let source = VolumeId { cluster, pool: Pool::Id(pool), uuid: Uuid::from_u128(source) };
            let id = SnapshotId::new(&source, Uuid::from_u128(uuid));
            prop_assert!(id.to_string().len() <= 128);
            prop_assert_eq!(SnapshotId::parse(&id.to_string()).expect("its own id"), id.clone());
            prop_assert_eq!(id.source_volume(), Some(source));
            prop_assert!(VolumeId::parse(&id.to_string()).is_err());
        }

        #[test]
        fn a_snapshot_id_of_ceph_csi_is_a_volume_id_in_form(cluster in "[a-zA-Z0-9_-]{1,36}", pool: u64, uuid: u128) {
            let own = VolumeId { cluster, pool: Pool::Id(pool), uuid: Uuid::from_u128(uuid) };
            let id = SnapshotId { own: own.clone(), source: None };
            prop_assert_eq!(id.to_string(), own.to_string());
            prop_assert_eq!(SnapshotId::parse(&id.to_string()).expect("ceph-csi's id"), id.clone());
            prop_assert_eq!(id.source_volume(), None);
        }

        #[test]
        fn every_id_survives_the_way_to_text_and_back(cluster in "[a-zA-Z0-9_-]{1,36}", pool: u64, uuid: u128) {
            let id = VolumeId { cluster, pool: Pool::Id(pool), uuid: Uuid::from_u128(uuid) };
            prop_assert!(id.to_string().len() <= 128);
            prop_assert_eq!(VolumeId::parse(&id.to_string()).expect("its own id"), id);
        }
    }
}
