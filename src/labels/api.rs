//! The labels of a Node object, from the Kubernetes API.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Kubernetes;
use crate::error::{Error, Result};
use crate::kubernetes::{self, Object};

/// The object without what it is made of: its status alone can be some 100 KB.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// Blocks, no longer than a deadline. Each failure may pass by itself or be mended.
pub(super) fn labels(node: &str, kubernetes: &Kubernetes) -> Result<BTreeMap<String, String>> {
    if !kubernetes::is_name(node) {
        return Err(Error::Precondition(format!(
            "--nodeid={node:?} is not the name of a Node object: give spec.nodeName"
        )));
    }
    let object = Object {
        what: format!("Node {node:?}"),
        path: format!("nodes/{node}"),
        accept: METADATA,
        needs: format!(
            "its ClusterRole needs the rule apiGroups [\"\"], resources [\"nodes\"], resourceNames [] or [{node:?}], verbs \
             [\"get\"]"
        ),
        absent: "there is no such Node object: --nodeid has to be its name (spec.nodeName)".to_owned(),
    };
    kubernetes::get(kubernetes, &object).map(|node: Node| node.metadata.labels)
}
