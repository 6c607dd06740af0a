//! What is written beside the data of a volume or snapshot: one small JSON, replaced atomically, written last.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::backend::{FormatMark, Parameters, Source};
use crate::error::{Error, Result};
use crate::host::files;
use crate::id::{SnapshotId, VolumeId};

use super::params::Kind;

const FILE: &str = "meta.json";
const VERSION: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Meta {
    version: u32,
    /// The whole id: a volume of the same name on another node has the same uuid.
    pub(super) id: String,
    /// As CreateVolume or CreateSnapshot named it.
    pub(super) name: String,
    /// Bytes.
    pub(super) size: u64,
    pub(super) kind: Kind,
    /// What it was made from; of a snapshot, its volume.
    pub(super) source: Option<Origin>,
    pub(super) context: Parameters,
    pub(super) direct_io: bool,
    pub(super) format: FormatMark,
    /// Its blocks are those of its source, until either is written to.
    pub(super) shared: bool,
    /// Seconds since 1970.
    created: u64,
    pub(super) published: Option<Published>,
    /// Of a directory volume with a size limit: the number of its project quota.
    pub(super) project: Option<u32>,
}

/// An id that CSI names a source by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Origin {
    Snapshot(String),
    Volume(String),
}

/// What ControllerPublishVolume noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Published {
    pub(super) node: String,
    pub(super) read_only: bool,
}

impl Meta {
    pub(super) fn new(id: String, name: String, kind: Kind, size: u64) -> Self {
        Self {
            version: VERSION,
            id,
            name,
            size,
            kind,
            source: None,
            context: Parameters::new(),
            direct_io: true,
            format: FormatMark::Never,
            shared: false,
            created: UNIX_EPOCH.elapsed().unwrap_or_default().as_secs(),
            published: None,
            project: None,
        }
    }

    pub(super) fn created(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.created)
    }

    pub(super) fn source(&self) -> Result<Option<Source>> {
        Ok(match &self.source {
            None => None,
            Some(Origin::Snapshot(id)) => Some(Source::Snapshot(SnapshotId::parse(id)?)),
            Some(Origin::Volume(id)) => Some(Source::Volume(VolumeId::parse(id)?)),
        })
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let failed = |error| super::failed(&format!("writing {}", folder.join(FILE).display()), error);
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(io::Error::other(error)))?;
        files::replace(folder, FILE, 0o666, &text).map_err(failed)
    }

    /// None where there is no such object. One that cannot be read is an error, never "none".
    pub(super) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.exists() => return Ok(None),
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let meta: Self = serde_json::from_slice(&text).map_err(|error| unreadable(&path, &error))?;
        if meta.version != VERSION {
            let text = format!("version {}, where this driver knows {VERSION}", meta.version);
            return Err(unreadable(&path, &text));
        }
        Ok(Some(meta))
    }
}

impl Origin {
    /// In words.
    pub(super) fn named(origin: Option<&Self>) -> String {
        match origin {
            None => "nothing".to_owned(),
            Some(Self::Snapshot(id)) => format!("snapshot {id}"),
            Some(Self::Volume(id)) => format!("volume {id}"),
        }
    }
}

impl From<&Source> for Origin {
    fn from(source: &Source) -> Self {
        match source {
            Source::Snapshot(id) => Self::Snapshot(id.to_string()),
            Source::Volume(id) => Self::Volume(id.to_string()),
        }
    }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::broken(format!(
        "the metadata {} cannot be used ({why}): its data is left alone; put the file back from a backup, or remove its \
         folder by hand to give the data up",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta() -> Meta {
        Meta::new("id".to_owned(), "pvc-1".to_owned(), Kind::Image, 1 << 20)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut meta = meta();
        meta.format = FormatMark::Done("ext4".to_owned());
        meta.source = Some(Origin::Volume("x".to_owned()));
        meta.write(folder.path()).expect("written");
        let read = Meta::read(folder.path()).expect("read").expect("there");
        assert_eq!(format!("{read:?}"), format!("{meta:?}"));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_lost_file_is_told_from_a_lost_volume() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Meta::read(folder.path()).is_err());
        assert!(Meta::read(&folder.path().join("gone")).expect("nothing").is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic_and_never_taken_for_nothing(bytes: Vec<u8>) {
            let folder = tempfile::tempdir().expect("a folder");
            fs::write(folder.path().join(FILE), bytes).expect("written");
            prop_assert!(!matches!(Meta::read(folder.path()), Ok(None)));
        }
    }
}
