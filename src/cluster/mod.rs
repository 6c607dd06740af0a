//! config.json (clusterID to monitors, in ceph-csi's format) and secrets, made into what a command needs to reach a
//! cluster. The key itself lives in memory only.

mod credential;
mod mapping;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::error::{Error, Result};

use credential::{Credential, is_key, keep_in_memory};

pub(crate) use credential::Secrets;

/// Where the clusters are described. The file is read anew each time: a changed `ConfigMap` counts at once.
#[derive(Debug, Clone)]
pub(crate) struct Clusters {
    path: PathBuf,
}

/// One entry of config.json.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    #[serde(rename = "clusterID")]
    id: String,
    #[serde(default)]
    monitors: Vec<String>,
    #[serde(default)]
    rbd: Rbd,
    /// Where releases of ceph-csi before 3.11 had it.
    #[serde(default, rename = "radosNamespace")]
    rados_namespace: String,
    #[serde(rename = "readAffinity")]
    read_affinity: Option<ReadAffinity>,
    /// Where it stands in for another cluster: its pools' numbers, by those of the other's.
    #[serde(skip)]
    pool_numbers: BTreeMap<u64, u64>,
}

/// Whether nodes read from replicas that are near, and the labels of a node that say where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct ReadAffinity {
    #[serde(default)]
    pub(crate) enabled: bool,
    #[serde(default, rename = "crushLocationLabels")]
    pub(crate) labels: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Rbd {
    #[serde(default, rename = "radosNamespace")]
    rados_namespace: String,
    #[serde(default, rename = "mirrorDaemonCount")]
    mirror_daemons: usize,
    #[serde(default, rename = "netNamespaceFilePath")]
    net_namespace: String,
    credential: Option<Credential>,
}

/// A cluster that can be looked at without secrets, and the pools that hold volumes there. None named (a request's secrets say who we are): any.
pub(crate) struct Listed {
    pub(crate) access: Access,
    pub(crate) pools: Vec<String>,
}

/// A cluster, and who we are on it: enough for any command.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) cluster: String,
    pub(crate) monitors: String,
    pub(crate) namespace: String,
    /// Watchers that rbd-mirror holds on each image.
    pub(crate) mirror_daemons: usize,
    /// The network namespace that nodes map images in; empty: the driver's own.
    pub(crate) net_namespace: String,
    /// None: as the flags say.
    pub(crate) read_affinity: Option<ReadAffinity>,
    pub(crate) user: String,
    key: Arc<File>,
    pool_numbers: BTreeMap<u64, u64>,
}

impl Access {
    /// The pool here that an id means by this number.
    pub(crate) fn pool_number(&self, number: u64) -> u64 {
        self.pool_numbers.get(&number).copied().unwrap_or(number)
    }

    /// The text with the key, wherever a program printed it, made unreadable.
    pub(crate) fn redact(&self, text: &str) -> String {
        let key = Zeroizing::new(std::fs::read_to_string(self.key_file()).unwrap_or_default());
        if key.is_empty() { text.to_owned() } else { text.replace(key.as_str(), "***") }
    }

    /// A path under which a child of ours reads the key; it names a memfd, so nothing is on disk.
    pub(crate) fn key_file(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.key.as_raw_fd())
    }
}

impl Clusters {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// As the user of the secrets; where there are none, as that of the configuration. Fails with `Precondition` where the
    /// cluster is not described: that may be mended in the file at any time.
    pub(crate) fn access(&self, cluster: &str, secrets: &Secrets) -> Result<Access> {
        let entry = self.entry(cluster)?;
        match &entry.rbd.credential {
            Some(credential) if secrets.is_empty() => {
                let key = credential.key()?;
                let user = credential.user.clone();
                self.enter(entry, &user, &key)
            }
            _ => {
                let (user, key) = secrets.credential()?;
                self.enter(entry, user, key)
            }
        }
    }

    /// None where neither the request nor the configuration says who we are.
    pub(crate) fn access_if_any(&self, cluster: &str, secrets: &Secrets) -> Result<Option<Access>> {
        if secrets.is_empty() && self.entry(cluster)?.rbd.credential.is_none() {
            return Ok(None);
        }
        self.access(cluster, secrets).map(Some)
    }

    /// The clusters that the configuration has a credential for.
    pub(crate) fn listed(&self) -> Result<Vec<Listed>> {
        let with =
            self.entries()?.into_iter().filter_map(|entry| Some((entry.rbd.credential.clone()?, entry)));
        with.map(|(credential, entry)| {
            if credential.pools.is_empty() {
                return Err(Error::Precondition(format!(
                    "rbd.credential of cluster {:?} in {} names no pools: name those that hold volumes",
                    entry.id,
                    self.path.display()
                )));
            }
            let access = self.enter(entry, &credential.user, &credential.key()?)?;
            Ok(Listed { access, pools: credential.pools })
        })
        .collect()
    }

    /// One cluster as the user of the secrets, or of its credential; with these pools, or those of its credential.
    pub(crate) fn place(&self, cluster: &str, secrets: &Secrets, pools: &[String]) -> Result<Listed> {
        let credential = self.entry(cluster)?.rbd.credential;
        let without = |what: &str| {
            let path = self.path.display();
            Error::Invalid(format!("cluster {cluster:?} has no rbd.credential in {path} that names {what}"))
        };
        if secrets.is_empty() && credential.is_none() {
            return Err(without("a user: give --user and --keyfile"));
        }
        let pools = match credential {
            Some(credential) if pools.is_empty() => credential.pools,
            _ => pools.to_vec(),
        };
        if pools.is_empty() {
            return Err(without("pools: give --pool"));
        }
        Ok(Listed { access: self.access(cluster, secrets)?, pools })
    }

    /// Whether the configuration has a credential for this cluster.
    pub(crate) fn is_listed(&self, cluster: &str) -> bool {
        self.entry(cluster).is_ok_and(|entry| entry.rbd.credential.is_some())
    }

    /// The same; where there are none, the one cluster that is described, as the user of the secrets.
    pub(crate) fn listed_with(&self, secrets: &Secrets) -> Result<Vec<Listed>> {
        let listed = self.listed()?;
        if !listed.is_empty() {
            return Ok(listed);
        }
        match self.entries()?.as_slice() {
            [only] if !secrets.is_empty() => {
                Ok(vec![Listed { access: self.access(&only.id, secrets)?, pools: Vec::new() }])
            }
            _ => Err(Error::Precondition(format!(
                "no cluster in {} has a credential to list with: name one there (rbd.credential with userID, keyFile and pools)",
                self.path.display()
            ))),
        }
    }

    /// Whether any cluster can be listed. What the configuration does not tell, it may tell later: then start anew.
    pub(crate) fn any_listed(&self) -> bool {
        self.entries().is_ok_and(|entries| entries.iter().any(|entry| entry.rbd.credential.is_some()))
    }

    /// The labels that clusters name for read affinity; None where no cluster wants that.
    pub(crate) fn crush_labels(&self) -> Option<Vec<String>> {
        let wanted = self.entries().unwrap_or_default().into_iter().filter_map(|entry| entry.read_affinity);
        let labels: Vec<_> = wanted.filter(|wanted| wanted.enabled).map(|wanted| wanted.labels).collect();
        (!labels.is_empty()).then(|| labels.concat())
    }

    /// Whether nodes map the images of all clusters in a network namespace that the configuration names.
    pub(crate) fn all_name_a_network(&self) -> bool {
        let entries = self.entries().unwrap_or_default();
        !entries.is_empty() && entries.iter().all(|entry| !entry.rbd.net_namespace.is_empty())
    }

    fn enter(&self, entry: Entry, user: &str, key: &str) -> Result<Access> {
        is_key(key)?;
        if !is_file_path(&entry.rbd.net_namespace) {
            return Err(Error::Precondition(format!(
                "cluster {:?} has netNamespaceFilePath={:?} in {}: it is an absolute path without '..'",
                entry.id,
                entry.rbd.net_namespace,
                self.path.display()
            )));
        }
        if entry.monitors.is_empty() {
            let (cluster, path) = (entry.id, self.path.display());
            return Err(Error::Precondition(format!(
                "cluster {cluster:?} has no monitors in {path}: add them there"
            )));
        }
        let newer = Some(entry.rbd.rados_namespace).filter(|namespace| !namespace.is_empty());
        Ok(Access {
            cluster: entry.id,
            monitors: entry.monitors.join(","),
            namespace: newer.unwrap_or(entry.rados_namespace),
            mirror_daemons: entry.rbd.mirror_daemons,
            net_namespace: entry.rbd.net_namespace,
            read_affinity: entry.read_affinity,
            user: user.to_owned(),
            key: Arc::new(keep_in_memory(key)?),
            pool_numbers: entry.pool_numbers,
        })
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let path = self.path.display();
        let text = std::fs::read_to_string(&self.path).map_err(|error| {
            Error::Precondition(format!("the cluster configuration {path} cannot be read: {error}"))
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::Precondition(format!("the cluster configuration {path} is not valid: {error}"))
        })
    }

    fn entry(&self, cluster: &str) -> Result<Entry> {
        let path = self.path.display();
        let entries = self.entries()?;
        let known: Vec<String> = entries.iter().map(|entry| entry.id.clone()).collect();
        let described = |id: &str| entries.iter().find(|entry| entry.id == id).cloned();
        if let Some(entry) = described(cluster) {
            return Ok(entry);
        }
        for standin in mapping::standins(&self.path, cluster)? {
            if let Some(entry) = described(&standin.cluster) {
                return Ok(Entry { pool_numbers: standin.pools, ..entry });
            }
        }
        Err(Error::Precondition(format!(
            "clusterID {cluster:?} is not in {path}, which has {known:?}: add it there"
        )))
    }
}

/// Of a file that need not be there on every node: absolute and going nowhere upwards, or empty.
fn is_file_path(text: &str) -> bool {
    let path = Path::new(text);
    let upward = path.components().any(|part| part == Component::ParentDir);
    text.is_empty() || (path.is_absolute() && !upward && !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        Secrets::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    fn check(config: &str, cluster: &str) -> Result<Access> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), config).expect("written");
        Clusters::new(file.path().into())
            .access(cluster, &secrets(&[("userID", "u"), ("userKey", "c2VjcmV0")]))
    }

    #[test]
    fn ceph_csi_s_configuration_is_read() {
        let config = r#"[{"clusterID":"a","monitors":["1.2.3.4:6789","[::1]:3300"],
            "cephFS":{"subvolumeGroup":"g"},"rbd":{"radosNamespace":"ns","mirrorDaemonCount":2}}]"#;
        let access = check(config, "a").expect("access");
        assert_eq!((access.monitors.as_str(), access.namespace.as_str()), ("1.2.3.4:6789,[::1]:3300", "ns"));
        assert_eq!(access.mirror_daemons, 2);
        assert_eq!(std::fs::read_to_string(access.key_file()).expect("the key"), "c2VjcmV0");
    }

    #[test]
    fn a_network_namespace_is_an_absolute_path() {
        let config = |path: &str| {
            format!(r#"[{{"clusterID":"a","monitors":["m"],"rbd":{{"netNamespaceFilePath":"{path}"}}}}]"#)
        };
        let path = "/var/lib/kubelet/plugins/rbd.csi.ceph.com/a.net.ns";
        assert_eq!(check(&config(path), "a").expect("access").net_namespace, path);
        for path in ["a.net.ns", "/a/../b", "--target=1"] {
            assert!(check(&config(path), "a").is_err(), "{path} was taken");
        }
    }

    #[test]
    fn a_cluster_stands_in_for_one_that_is_not_described() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config.json");
        std::fs::write(&config, r#"[{"clusterID":"west","monitors":["m"]}]"#).expect("written");
        let secrets = secrets(&[("userID", "u"), ("userKey", "c2VjcmV0")]);
        let access = || Clusters::new(config.clone()).access("east", &secrets);
        assert!(access().is_err());
        let mapping = r#"[{"clusterIDMapping":{"east":"west"},"RBDPoolIDMapping":[{"1":"2"}]}]"#;
        std::fs::write(folder.path().join("cluster-mapping.json"), mapping).expect("written");
        let access = access().expect("access");
        assert_eq!((access.cluster.as_str(), access.pool_number(1), access.pool_number(7)), ("west", 2, 7));
    }

    #[test]
    fn an_unknown_cluster_is_named_with_the_known_ones() {
        let error = check(r#"[{"clusterID":"a","monitors":["m"]}]"#, "b").err().expect("an error");
        assert!(
            matches!(&error, Error::Precondition(text) if text.contains("\"b\"") && text.contains("[\"a\"]"))
        );
    }

    #[test]
    fn a_key_is_checked_and_never_told() {
        for key in ["c2VjcmV", "c2Vj!mV0", "c===", "c2VjcmV0c"] {
            let error = is_key(key).expect_err("no key").to_string();
            assert!(!error.contains(key), "{error}");
        }
        assert!(is_key("AQC0uvZmAAAAABAAvY9d1JQ3l5k0Yc1nKzQ0bA==").is_ok());
        let access = check(r#"[{"clusterID":"a","monitors":["m"]}]"#, "a").expect("access");
        assert_eq!(access.redact("cannot decode 'c2VjcmV0'"), "cannot decode '***'");
    }

    proptest! {
        #[test]
        fn any_configuration_gives_access_or_says_what_is_wrong_with_it(text in "[\\[\\]{}:,\"a-z0-9 -]{0,40}|\\PC{0,40}", cluster in "\\PC{0,40}") {
            prop_assert!(matches!(check(&text, &cluster), Err(Error::Precondition(_))));
        }

        #[test]
        fn whatever_a_cluster_is_called_its_entry_is_found(cluster in "\\PC{1,40}", namespace in "[a-z]{0,8}") {
            let config = serde_json::json!([{ "clusterID": cluster, "monitors": ["m"], "rbd": { "radosNamespace": namespace } }]);
            let access = check(&config.to_string(), &cluster).expect("access");
            prop_assert_eq!((access.cluster, access.namespace), (cluster, namespace));
        }

        #[test]
        fn a_path_of_a_namespace_never_leads_upwards(text in "[./a-z\\n-]{0,12}") {
            prop_assert!(!is_file_path(&text) || text.is_empty() || (text.starts_with('/') && !text.split('/').any(|part| part == "..")));
        }
    }
}
