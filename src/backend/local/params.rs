//! The parameters of a StorageClass for node-local volumes, and of a VolumeAttributesClass. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::backend::names::{RESERVED, nearest};
use crate::backend::{Access, CreateVolume, Parameters};
use crate::error::{Error, Result};

/// What a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// A sparse file behind a loop device: any filesystem, raw block, snapshots, clones.
    Image,
    /// A folder, shown as it is: no filesystem of its own, no snapshots.
    Directory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Directory => "directory",
        })
    }
}

/// What CreateVolume is asked to make, apart from its size and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) direct_io: bool,
    /// What the node gets back as volume context.
    pub(super) context: Parameters,
}

const BUILT: &[&str] = &["volumeType", "mkfsOptions", "directIO"];
/// What ControllerModifyVolume can change.
const MUTABLE: &[&str] = &["directIO"];

impl Plan {
    pub(super) fn parse(request: &CreateVolume) -> Result<Self> {
        let kind = kind(&request.parameters)?;
        if kind == Kind::Directory {
            as_directory(request)?;
        }
        let direct_io = direct_io(&request.parameters)?.unwrap_or(true);
        let kept = |name: &str| !name.starts_with(RESERVED) && !MUTABLE.contains(&name);
        let context = request.parameters.iter().filter(|(name, _)| kept(name));
        Ok(Self {
            kind,
            direct_io: mutable(&request.mutable)?.unwrap_or(direct_io),
            context: context.map(|(name, value)| (name.clone(), value.clone())).collect(),
        })
    }
}

/// The volume type that parameters ask for; refuses names that are unknown.
pub(super) fn kind(parameters: &Parameters) -> Result<Kind> {
    known(parameters, "StorageClass parameter", BUILT)?;
    match parameters.get("volumeType").map(String::as_str) {
        None | Some("" | "image") => Ok(Kind::Image),
        Some("directory") => Ok(Kind::Directory),
        Some(other) => Err(Error::Invalid(format!("volumeType={other:?}: it is \"image\" or \"directory\""))),
    }
}

/// What mutable parameters ask for, whether loop devices use direct I/O; None where they leave it as it is.
pub(super) fn mutable(parameters: &Parameters) -> Result<Option<bool>> {
    known(parameters, "mutable parameter", MUTABLE)?;
    direct_io(parameters)
}

fn direct_io(parameters: &Parameters) -> Result<Option<bool>> {
    let Some(value) = parameters.get("directIO") else { return Ok(None) };
    let parsed =
        value.parse().map_err(|_| Error::Invalid(format!("directIO={value:?}: it is \"true\" or \"false\"")));
    parsed.map(Some)
}

fn known(parameters: &Parameters, what: &str, names: &[&'static str]) -> Result<()> {
    let odd = parameters.keys().find(|name| !names.contains(&name.as_str()) && !name.starts_with(RESERVED));
    match odd {
        Some(name) => Err(Error::Invalid(format!(
            "{what} {name:?} is not known to --type=local; did you mean {:?}?",
            nearest(name, names)
        ))),
        None => Ok(()),
    }
}

fn as_directory(request: &CreateVolume) -> Result<()> {
    let refuse = |what: &str| Err(Error::Invalid(format!("volumeType=directory: {what}")));
    if request.capabilities.iter().any(|capability| capability.access == Access::Block) {
        return refuse("a folder is no block device: use volumeType=image");
    }
    if request.source.is_some() {
        return refuse("a folder is not made from a snapshot or another volume: use volumeType=image");
    }
    if request.parameters.contains_key("mkfsOptions") {
        return refuse("a folder has no filesystem of its own: leave mkfsOptions out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Parameters {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let error = kind(&map(&[("volumetype", "image")])).expect_err("a misspelt name").to_string();
        assert!(error.contains("\"volumetype\"") && error.contains("\"volumeType\""), "{error}");
        assert!(kind(&map(&[("volumeType", "file")])).is_err());
        assert!(kind(&map(&[("csi.storage.k8s.io/pv/name", "x")])).is_ok());
    }

    #[test]
    fn only_what_is_mutable_can_be_changed() {
        assert_eq!(mutable(&map(&[])).expect("nothing"), None);
        assert_eq!(mutable(&map(&[("directIO", "false")])).expect("a change"), Some(false));
        assert!(mutable(&map(&[("directIO", "no")])).is_err());
        assert!(mutable(&map(&[("volumeType", "image")])).is_err());
    }
}
