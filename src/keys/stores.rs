//! Which key store an id names: ceph-csi's configuration of key stores, read anew for each request.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::default::Default;
use super::metadata::Metadata;
use super::secret::Named;
use super::{KeyStore, Passphrase};
use crate::config::Kubernetes;
use crate::error::{Error, Result};

/// The store that needs no configuration.
pub(crate) const DEFAULT: &str = "default";
const METADATA: &str = "metadata";
/// What names the kind of a store; the second one is the newer.
const KIND: [&str; 2] = ["encryptionKMSType", "KMS_PROVIDER"];
/// Of kind metadata: the passphrase is in a Secret of this name, and not in that of the request.
const SECRET: &str = "secretName";
const NAMESPACE: &str = "secretNamespace";

/// The key stores that the configuration names.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyStores {
    path: PathBuf,
    /// Where a passphrase may be that the configuration names a Secret for.
    kubernetes: Kubernetes,
}

/// What a store is, by the configuration.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Default,
    Metadata,
    /// With a passphrase of its own.
    MetadataOf(Named),
}

impl KeyStores {
    pub(crate) fn new(path: PathBuf, kubernetes: Kubernetes) -> Self {
        Self { path, kubernetes }
    }

    /// `passphrase`: of the secret of the request.
    pub(crate) async fn get(&self, id: &str, passphrase: Option<Passphrase>) -> Result<Box<dyn KeyStore>> {
        let kind = if matches!(id, "" | DEFAULT) { Kind::Default } else { self.kind(id)? };
        let given = passphrase.ok_or_else(|| {
            Error::Invalid(format!(
                "the key store {id:?} needs encryptionPassphrase in the secret of the request, and it is not there, or empty: \
                 add it to the secret that the StorageClass names (csi.storage.k8s.io/provisioner-secret-name and \
                 node-stage-secret-name)"
            ))
        });
        Ok(match kind {
            Kind::Default => Box::new(Default { passphrase: given? }),
            Kind::Metadata => Box::new(Metadata::new(given?)),
            Kind::MetadataOf(secret) => Box::new(Metadata::new(secret.read(self.kubernetes.clone()).await?)),
        })
    }

    fn kind(&self, id: &str) -> Result<Kind> {
        let stores = self.read()?;
        let path = self.path.display();
        let store = stores.get(id).ok_or_else(|| {
            let known: Vec<&String> = stores.keys().collect();
            Error::Precondition(format!(
                "encryptionKMSID {id:?} is not in {path}, which has {known:?}: add it there"
            ))
        })?;
        let refuse =
            |what: String| Err(Error::Precondition(format!("encryptionKMSID {id:?} in {path} {what}")));
        let text = |key: &str| store.get(key).and_then(Value::as_str).map(str::to_owned);
        match (KIND.iter().find_map(|key| text(key)).as_deref(), text(SECRET)) {
            (Some(DEFAULT), _) => Ok(Kind::Default),
            (Some(METADATA), None) => Ok(Kind::Metadata),
            (Some(METADATA), Some(name)) => match text(NAMESPACE) {
                Some(namespace) => Ok(Kind::MetadataOf(Named { name, namespace })),
                None => refuse(format!(
                    "has {SECRET} without {NAMESPACE}: this driver does not take the namespace of the claim for it; add {NAMESPACE}"
                )),
            },
            (Some(other), _) => refuse(format!(
                "is of kind {other:?}, which is not built in this version of the driver: it has {DEFAULT:?} and {METADATA:?}"
            )),
            (None, _) => refuse(format!("names no kind: it needs {} or {}", KIND[0], KIND[1])),
        }
    }

    fn read(&self) -> Result<BTreeMap<String, Map<String, Value>>> {
        let path = self.path.display();
        let text = std::fs::read_to_string(&self.path).map_err(|error| {
            Error::Precondition(format!("the configuration of key stores {path} cannot be read: {error}"))
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::Precondition(format!("the configuration of key stores {path} is not valid: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: &str = r#"{"meta": {"encryptionKMSType": "metadata"}, "newer": {"KMS_PROVIDER": "metadata"},
        "plain": {"encryptionKMSType": "default"}, "v": {"encryptionKMSType": "vault", "vaultAddress": "http://x"},
        "far": {"encryptionKMSType": "metadata", "secretName": "s", "secretNamespace": "n"}, "none": {},
        "half": {"encryptionKMSType": "metadata", "secretName": "s"}}"#;

    fn stores(path: PathBuf) -> KeyStores {
        KeyStores::new(path, Kubernetes { host: String::new(), port: 0, account: "/nowhere".into() })
    }

    async fn check(id: &str, config: &str, passphrase: Option<&str>) -> Result<Box<dyn KeyStore>, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), config).expect("written");
        let passphrase = passphrase.map(|text| Passphrase::new(text.as_bytes().to_vec()));
        stores(file.path().into()).get(id, passphrase).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn ceph_csi_s_configuration_is_read() {
        for (id, sealed) in
            [("", false), ("default", false), ("plain", false), ("meta", true), ("newer", true)]
        {
            let store = check(id, CONFIG, Some("p")).await.unwrap_or_else(|error| panic!("{id}: {error}"));
            let key = store.new_key().expect("a key");
            assert_eq!(store.seal("v", &key).await.expect("sealed").is_some(), sealed, "{id}");
        }
    }

    #[tokio::test]
    async fn the_default_store_needs_no_configuration() {
        assert!(stores("/nowhere".into()).get("", Some(Passphrase::new(b"p".to_vec()))).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_missing_or_not_built_is_named() {
        for (id, words) in [
            ("v", ["vault", "\"metadata\""]),
            ("far", ["Secret n/s", "--kubernetes-service-host"]),
            ("half", ["secretName", "secretNamespace"]),
            ("none", ["encryptionKMSType", "KMS_PROVIDER"]),
            ("other", ["\"other\"", "\"newer\""]),
        ] {
            let error = check(id, CONFIG, Some("p")).await.err().expect("refused");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        assert!(check("meta", "[", Some("p")).await.is_err_and(|error| error.contains("not valid")));
        assert!(check("meta", CONFIG, None).await.is_err_and(|error| error.contains("encryptionPassphrase")));
    }

    #[tokio::test]
    async fn the_default_store_keeps_no_key_of_a_volume_s_own() {
        let store = check("", CONFIG, Some("p")).await.map_err(drop).expect("a store");
        let error =
            store.seal("v", &Passphrase::new(b"own".to_vec())).await.expect_err("it cannot").to_string();
        assert!(error.contains("metadata") && !error.contains("own\""), "{error}");
    }

    proptest! {
        #[test]
        fn any_configuration_of_key_stores_names_one_or_says_what_is_wrong(text in "[\\[\\]{}:,\"a-zA-Z0-9 -]{0,60}|\\PC{0,60}", id in "\\PC{1,20}") {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), &text).expect("written");
            prop_assert!(matches!(stores(file.path().into()).kind(&id), Err(Error::Precondition(_))));
        }

        #[test]
        fn any_value_of_a_key_store_is_read_or_refused(key in proptest::sample::select(vec![KIND[0], KIND[1], SECRET, NAMESPACE]), kind in "metadata|default|[a-z]{0,9}", value in "\\PC{0,20}") {
            let file = tempfile::NamedTempFile::new().expect("a file");
            let config = serde_json::json!({ "id": { KIND[0]: kind, key: value, "other": { "deep": [1] } } });
            std::fs::write(file.path(), config.to_string()).expect("written");
            prop_assert!(matches!(stores(file.path().into()).kind("id"), Ok(_) | Err(Error::Precondition(_))));
        }
    }
}
