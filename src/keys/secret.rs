//! A passphrase in a Secret of its own, which the configuration of a key store names: read from the Kubernetes API for each
//! request, and in memory alone.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::Passphrase;
use crate::config::Kubernetes;
use crate::error::{Error, Result};
use crate::kubernetes::{self, Object};

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) namespace: String,
}

#[derive(Default, Deserialize)]
struct Secret {
    #[serde(default)]
    data: Data,
}

#[derive(Default, Deserialize)]
struct Data {
    #[serde(default, rename = "encryptionPassphrase")]
    passphrase: Option<String>,
}

impl Named {
    pub(super) async fn read(self, kubernetes: Kubernetes) -> Result<Passphrase> {
        // A client that blocks; its deadline is its own.
        let read = tokio::task::spawn_blocking(move || self.ask(&kubernetes)).await;
        read.map_err(|error| Error::internal("reading a Secret", error))?
    }

    fn ask(&self, kubernetes: &Kubernetes) -> Result<Passphrase> {
        let Self { name, namespace } = self;
        if !kubernetes::is_name(name) || !kubernetes::is_name(namespace) {
            return Err(Error::Precondition(format!(
                "secretName {name:?} and secretNamespace {namespace:?} of a key store are not the names of a Secret and its namespace"
            )));
        }
        let what = format!("Secret {namespace}/{name}");
        if kubernetes.host.is_empty() {
            return Err(Error::Precondition(format!(
                "{what} of a key store is read from the Kubernetes API, and nothing says where that is: give \
                 --kubernetes-service-host, or leave secretName out and put encryptionPassphrase into the secret of the StorageClass"
            )));
        }
        let object = Object {
            path: format!("namespaces/{namespace}/secrets/{name}"),
            accept: "application/json",
            needs: format!(
                "a Role in namespace {namespace:?} needs the rule apiGroups [\"\"], resources [\"secrets\"], resourceNames [{name:?}], \
                 verbs [\"get\"], for the controller and for the nodes"
            ),
            absent:
                "there is no such Secret: make it, or mend secretName and secretNamespace of the key store"
                    .to_owned(),
            what: what.clone(),
        };
        let secret: Secret = kubernetes::get(kubernetes, &object)?;
        let text = secret.data.passphrase.map(Zeroizing::new);
        let bytes = text.and_then(|text| STANDARD.decode(text.as_bytes()).ok());
        let bytes = bytes.filter(|bytes| !bytes.is_empty()).ok_or_else(|| {
            Error::Precondition(format!("{what} has no encryptionPassphrase, or an empty one: add it"))
        })?;
        Ok(Passphrase::new(bytes))
    }
}
