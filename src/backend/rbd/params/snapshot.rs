//! The parameters of a VolumeSnapshotClass, by ceph-csi's names. Pure.

use crate::backend::CreateSnapshot;
use crate::backend::names::{RESERVED, nearest};
use crate::error::{Error, Result};

use crate::backend::rbd::params::plain;
use crate::backend::rbd::trash::tombstone::TEMPORARY;

const BUILT: &[&str] = &["clusterID", "pool", "snapshotNamePrefix"];

/// ceph-csi's.
const DEFAULT_PREFIX: &str = "csi-snap-";

/// What the name of a snapshot begins with.
pub(crate) fn snapshot_prefix(request: &CreateSnapshot) -> Result<String> {
    request.parameters.iter().try_for_each(|(name, value)| known(request, name, value))?;
    let prefix = plain(&request.parameters, "snapshotNamePrefix")?;
    match prefix {
        Some(prefix) if prefix.starts_with(TEMPORARY) => refuse(
            "snapshotNamePrefix",
            &prefix,
            "the driver's own temporary snapshots are named so: take another",
        ),
        prefix => Ok(prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned())),
    }
}

fn known(request: &CreateSnapshot, name: &str, value: &str) -> Result<()> {
    match name {
        "clusterID" if value != request.source.cluster => refuse(
            name,
            value,
            &format!("the volume is on cluster {:?}, and its snapshots are in it", request.source.cluster),
        ),
        "pool" => {
            tracing::warn!(value, "pool has no meaning in a VolumeSnapshotClass: a snapshot is in its image");
            Ok(())
        }
        _ if BUILT.contains(&name) || name.starts_with(RESERVED) => Ok(()),
        _ => refuse(name, value, &format!("unknown; did you mean {:?}?", nearest(name, BUILT))),
    }
}

fn refuse<T>(name: &str, value: &str, why: &str) -> Result<T> {
    Err(Error::Invalid(format!("VolumeSnapshotClass parameter {name}={value:?}: {why}")))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::backend::Places;
    use crate::cluster::Secrets;
    use crate::id::{Pool, VolumeId};

    fn check(pairs: &[(&str, &str)]) -> Result<String, String> {
        let text = |text: &&str| (*text).to_owned();
        let request = CreateSnapshot {
            name: "n".to_owned(),
            source: VolumeId { cluster: "c".to_owned(), pool: Pool::Id(1), uuid: Uuid::nil() },
            parameters: pairs.iter().map(|(name, value)| (text(name), text(value))).collect(),
            places: Places::default(),
            secrets: Secrets::default(),
        };
        snapshot_prefix(&request).map_err(|error| error.to_string())
    }

    #[test]
    fn the_prefix_is_ceph_csi_s_or_the_one_given() {
        assert_eq!(check(&[("clusterID", "c"), ("pool", "p")]).as_deref(), Ok("csi-snap-"));
        assert_eq!(check(&[("snapshotNamePrefix", "daily-")]).as_deref(), Ok("daily-"));
        let metadata = ("csi.storage.k8s.io/volumesnapshot/name", "s");
        assert_eq!(check(&[metadata]).as_deref(), Ok("csi-snap-"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_name() {
        let wrong = [
            ("clusterID", "d", "\"c\""),
            ("snapshotNamePrefix", "", "snapshotNamePrefix"),
            ("snapshotNamePrefix", "a@b", "a@b"),
            ("snapshotNamePrefix", "csi-clone-", "temporary"),
            ("snapshotnameprefix", "x", "\"snapshotNamePrefix\""),
        ];
        for (name, value, said) in wrong {
            assert!(check(&[(name, value)]).is_err_and(|error| error.contains(said)), "{name}={value:?}");
        }
    }
}
