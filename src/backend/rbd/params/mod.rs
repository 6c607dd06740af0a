//! The parameters of a StorageClass, by ceph-csi's names, and what is built of them. Pure.

pub(crate) mod encryption;
#[cfg(test)]
mod hostile;
pub(crate) mod mapping;
pub(crate) mod qos;
pub(crate) mod snapshot;
pub(crate) mod topology;

use crate::backend::names::{RESERVED, nearest};
use crate::backend::{CreateVolume, Parameters};
use crate::error::{Error, Result};
use crate::id::{is_cluster_id, is_plain};

use crate::backend::rbd::meta;
use crate::backend::rbd::params::mapping::Wanted;
use crate::backend::rbd::params::qos::Qos;
use crate::backend::rbd::volume::modify::no_limits;

pub(crate) use snapshot::snapshot_prefix;
pub(crate) use topology::{Candidate, Candidates};

/// What CreateVolume is asked to make, apart from its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) cluster: String,
    pub(crate) pool: String,
    pub(crate) data_pool: Option<String>,
    /// With `topologyConstrainedPools`: of what `pool` and `data_pool` are chosen, when it is known what is there already.
    pub(crate) candidates: Option<Candidates>,
    /// Empty: ceph-csi's `csi-vol-`.
    pub(crate) prefix: Option<String>,
    pub(crate) features: Vec<String>,
    /// Bytes and count.
    pub(crate) striping: Option<(u64, u64)>,
    /// Bytes.
    pub(crate) object_size: Option<u64>,
    /// Image metadata that tells people whose image it is.
    pub(crate) labels: Vec<(String, String)>,
    /// Of a VolumeAttributesClass.
    pub(crate) qos: Qos,
    /// The key store of a volume that is encrypted.
    pub(crate) key_store: Option<String>,
    /// Mapped by rbd-nbd, which alone heeds limits.
    nbd: bool,
    /// What the node gets back as volume context.
    pub(crate) context: Parameters,
}

const BUILT: &[&str] = &[
    "clusterID",
    "pool",
    "dataPool",
    "volumeNamePrefix",
    "imageFeatures",
    "stripeUnit",
    "stripeCount",
    "objectSize",
    "mkfsOptions",
    "mounter",
    "tryOtherMounters",
    "mapOptions",
    "unmapOptions",
    "cephLogDir",
    "cephLogStrategy",
    "encrypted",
    "encryptionKMSID",
    "encryptionType",
    "encryptionCipher",
    "encryptionKeySize",
    "encryptionSectorSize",
    "topologyConstrainedPools",
];

const UNBUILT: &[&str] =
    &["BaseReadBytesPerSecond", "BaseReadIops", "BaseWriteBytesPerSecond", "BaseWriteIops", "integrityMode"];

/// Names that old examples carry and that ceph-csi ignored.
const IGNORED: &[&str] = &[
    "imageFormat",
    "thickProvision",
    "multiNodeWritable",
    "fsType",
    "adminid",
    "userid",
    "csiNodePublishSecretName",
];

/// Names of the CO that are kept as image metadata.
const LABELS: &[&str] =
    &["csi.storage.k8s.io/pv/name", "csi.storage.k8s.io/pvc/name", "csi.storage.k8s.io/pvc/namespace"];

/// Whether this metadata is of what the volume is for and how quick it may be: a clone has inherited that of its source.
pub(crate) fn is_label(key: &str) -> bool {
    LABELS.contains(&key)
        || [meta::CLUSTER_NAME, meta::TOPOLOGY, meta::MOUNTER].contains(&key)
        || qos::is_kept(key)
}

/// Of the names of images, ceph-csi's.
const DEFAULT_PREFIX: &str = "csi-vol-";

/// What a Ceph cluster enables by default and krbd can map since Linux 5.3; fast-diff also makes the proof that an
/// image is empty instant.
const DEFAULT_FEATURES: &[&str] = &["layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten"];
/// Each feature and the one that it needs.
const FEATURES: &[(&str, Option<&str>)] = &[
    ("layering", None),
    ("exclusive-lock", None),
    ("object-map", Some("exclusive-lock")),
    ("fast-diff", Some("object-map")),
    ("deep-flatten", None),
    ("journaling", Some("exclusive-lock")),
];

impl Plan {
    pub(crate) fn parse(request: &CreateVolume, cluster_name: &str) -> Result<Self> {
        let plan = Self::of(&request.parameters, cluster_name)?;
        let qos = Qos::parse(&request.mutable)?;
        if !qos.is_empty() && !plan.nbd {
            return Err(no_limits("what this StorageClass makes"));
        }
        Ok(Self { qos, ..plan })
    }

    /// Bytes of the image that no pod sees.
    pub(crate) fn header(&self) -> u64 {
        if self.key_store.is_some() { meta::LUKS2_HEADER } else { 0 }
    }

    /// Of a StorageClass alone.
    pub(crate) fn of(parameters: &Parameters, cluster_name: &str) -> Result<Self> {
        parameters.iter().try_for_each(|(name, value)| known(name, value))?;
        let wanted = Wanted::parse(parameters)?;
        let mut labels: Vec<_> = parameters
            .iter()
            .filter(|(name, _)| LABELS.contains(&name.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        if !cluster_name.is_empty() {
            labels.push((meta::CLUSTER_NAME.to_owned(), cluster_name.to_owned()));
        }
        let context = parameters
            .iter()
            .filter(|(name, _)| !name.starts_with(RESERVED) && *name != "topologyConstrainedPools");
        let (pool, data_pool) = (plain(parameters, "pool")?, plain(parameters, "dataPool")?);
        let candidates = Candidates::parse(parameters, pool.as_ref(), data_pool.as_ref())?;
        let first = candidates.as_ref().and_then(Candidates::first).map(|first| first.pool.clone());
        labels.push(meta::mounter(wanted.nbd));
        Ok(Self {
            cluster: cluster_id(parameters)?,
            pool: pool.or(first).ok_or_else(|| missing("pool"))?,
            data_pool,
            candidates,
            key_store: encryption::key_store(parameters)?,
            nbd: wanted.nbd,
            prefix: plain(parameters, "volumeNamePrefix")?.filter(|prefix| prefix != DEFAULT_PREFIX),
            features: features(parameters.get("imageFeatures"), wanted.nbd)?,
            striping: striping(parameters)?,
            object_size: object_size(parameters)?,
            labels,
            qos: Qos::default(),
            context: context.map(|(name, value)| (name.clone(), value.clone())).collect(),
        })
    }
}

/// Refuses a name that we do not know or have not built, and a value that asks for what is not built.
fn known(name: &str, value: &str) -> Result<()> {
    let refuse = |what: &str| Err(Error::Invalid(format!("StorageClass parameter {name}={value:?}: {what}")));
    match name {
        _ if BUILT.contains(&name) || name.starts_with(RESERVED) => Ok(()),
        _ if qos::is_mutable(name) => refuse(
            "it is a mutable parameter: give it in a VolumeAttributesClass (ceph-csi moved it there in 3.17)",
        ),
        _ if UNBUILT.contains(&name) => refuse("not built in this version of the driver: leave it out"),
        _ if IGNORED.contains(&name) => {
            tracing::warn!(name, value, "this StorageClass parameter has no meaning and is ignored");
            Ok(())
        }
        _ => refuse(&format!("unknown; did you mean {:?}?", nearest(name, BUILT.iter().chain(UNBUILT)))),
    }
}

fn missing(name: &str) -> Error {
    Error::Invalid(format!(
        "StorageClass parameter {name} is missing: the driver cannot know where to make the volume"
    ))
}

fn cluster_id(parameters: &Parameters) -> Result<String> {
    let id = parameters.get("clusterID").filter(|id| !id.is_empty()).ok_or_else(|| missing("clusterID"))?;
    if !is_cluster_id(id) {
        let rule = "1 to 36 letters, digits, '-' and '_'";
        return Err(Error::Invalid(format!(
            "StorageClass parameter clusterID={id:?}: a cluster id is {rule}"
        )));
    }
    Ok(id.clone())
}

/// A name that becomes part of an image spec (`pool/namespace/image@snapshot`) or of an argument. Present but empty
/// is a mistake, as it is for ceph-csi.
fn plain(parameters: &Parameters, name: &str) -> Result<Option<String>> {
    let Some(value) = parameters.get(name) else { return Ok(None) };
    check_plain(name, value)?;
    Ok(Some(value.clone()))
}

/// Refuses what would be read as something else in an image spec or a command line.
pub(crate) fn check_plain(name: &str, value: &str) -> Result<()> {
    if !is_plain(value) {
        let rule = "1 to 128 bytes without space, '/', '@' or '\\', and no '-' or '.' in front";
        return Err(Error::Invalid(format!("{name}={value:?}: a name here is {rule}")));
    }
    Ok(())
}

fn features(given: Option<&String>, nbd: bool) -> Result<Vec<String>> {
    let Some(given) = given else {
        return Ok(DEFAULT_FEATURES.iter().map(|&name| name.to_owned()).collect());
    };
    let names: Vec<&str> = given.split(',').map(str::trim).collect();
    for name in &names {
        let refuse = |what: String| {
            Err(Error::Invalid(format!("StorageClass parameter imageFeatures={given:?}: {what}")))
        };
        match FEATURES.iter().find(|(known, _)| known == name) {
            Some(_) if *name == "journaling" && !nbd => {
                return refuse("journaling needs mounter=rbd-nbd: krbd cannot map such an image".to_owned());
            }
            None => {
                return refuse(format!(
                    "{name:?} is none of {:?}",
                    FEATURES.iter().map(|(name, _)| name).collect::<Vec<_>>()
                ));
            }
            Some((_, Some(needs))) if !names.contains(needs) => {
                return refuse(format!("{name} needs {needs}: add it"));
            }
            Some(_) => {}
        }
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

fn striping(parameters: &Parameters) -> Result<Option<(u64, u64)>> {
    match (number(parameters, "stripeUnit")?, number(parameters, "stripeCount")?) {
        (None, None) => Ok(None),
        (Some(unit), Some(count)) => Ok(Some((unit, count))),
        _ => Err(Error::Invalid(
            "StorageClass parameters stripeUnit and stripeCount go together: give both or none".to_owned(),
        )),
    }
}

/// librbd takes 4 KiB to 32 MiB, a power of two.
fn object_size(parameters: &Parameters) -> Result<Option<u64>> {
    let size = number(parameters, "objectSize")?;
    match size {
        Some(size) if !size.is_power_of_two() || !(1 << 12..=1 << 25).contains(&size) => {
            Err(Error::Invalid(format!(
                "StorageClass parameter objectSize={size}: it is a power of two from 4096 to 33554432 bytes"
            )))
        }
        size => Ok(size),
    }
}

fn number(parameters: &Parameters, name: &str) -> Result<Option<u64>> {
    let Some(value) = parameters.get(name) else { return Ok(None) };
    let number = value.parse::<u64>().ok().filter(|number| *number > 0);
    number.map(Some).ok_or_else(|| {
        Error::Invalid(format!("StorageClass parameter {name}={value:?}: it is a whole number above 0"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Places, SizeRange};
    use crate::cluster::Secrets;

    fn check(pairs: &[(&str, &str)]) -> Result<Plan, String> {
        let base = [("clusterID", "c"), ("pool", "p")];
        let parameters =
            base.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let size = SizeRange { required: 1, limit: None };
        let request = CreateVolume {
            name: "n".to_owned(),
            size,
            capabilities: Vec::new(),
            parameters,
            mutable: Parameters::new(),
            source: None,
            places: Places::default(),
            secrets: Secrets::default(),
        };
        Plan::parse(&request, "k8s").map_err(|error| error.to_string())
    }

    #[test]
    fn the_context_keeps_all_but_the_names_of_the_co() {
        let plan = check(&[("csi.storage.k8s.io/pv/name", "pv"), ("csi.storage.k8s.io/fstype", "xfs")])
            .expect("a plan");
        assert_eq!(plan.context.keys().collect::<Vec<_>>(), ["clusterID", "pool"]);
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            plan.labels,
            [
                label("csi.storage.k8s.io/pv/name", "pv"),
                label(meta::CLUSTER_NAME, "k8s"),
                label("csi.ceph.com/mounter", "rbd"),
            ]
        );
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_nearest_known() {
        let error = check(&[("imageFeature", "layering")]).expect_err("unknown");
        assert!(error.contains("imageFeature") && error.contains("\"imageFeatures\""), "{error}");
    }

    #[test]
    fn a_mutable_parameter_is_sent_to_its_class() {
        for name in ["baseReadIops", "baseVolSizeBytes"] {
            assert!(
                check(&[(name, "1")]).is_err_and(|error| error.contains("VolumeAttributesClass")),
                "{name}"
            );
        }
    }

    #[test]
    fn nothing_is_silently_ignored() {
        let (on, integrity) = (("encrypted", "true"), ("integrityMode", "hmac-sha256"));
        assert!(check(&[on, integrity]).is_err_and(|error| error.contains("not built")));
        assert!(check(&[("encrypted", "false"), ("mounter", "rbd"), ("imageFormat", "2")]).is_ok());
    }

    #[test]
    fn journaling_is_for_rbd_nbd() {
        let nbd = ("mounter", "rbd-nbd");
        let plan = check(&[nbd, ("imageFeatures", "exclusive-lock,journaling")]).expect("a plan");
        assert_eq!(plan.features, ["exclusive-lock", "journaling"]);
        assert!(
            check(&[nbd, ("imageFeatures", "journaling")])
                .is_err_and(|error| error.contains("exclusive-lock"))
        );
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let wrong = [
            ("pool", "-p"),
            ("pool", "a/b"),
            ("pool", "a@b"),
            ("pool", ""),
            ("pool", "a b"),
            ("dataPool", ""),
            ("volumeNamePrefix", ""),
            ("imageFeatures", ""),
            ("imageFeatures", "fast-diff"),
            ("imageFeatures", "exclusive-lock,journaling"),
            ("mounter", "nbd"),
            ("mapOptions", "exclusive"),
            ("unmapOptions", "force"),
            ("cephLogDir", "../log"),
            ("stripeUnit", "4096"),
            ("objectSize", "5000"),
            ("objectSize", "x"),
            ("clusterID", "../x"),
        ];
        for (name, value) in wrong {
            assert!(check(&[(name, value)]).is_err(), "{name}={value:?} was taken");
        }
    }
}
