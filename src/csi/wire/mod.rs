//! All validation: requests into the driver's own types, with a message that says what is wrong. Pure. One file for each
//! family of messages; here is what they share.

pub(crate) mod blocks;
pub(crate) mod capability;
pub(crate) mod health;
pub(crate) mod lists;
pub(crate) mod node;
pub(crate) mod offers;
pub(crate) mod pages;
pub(crate) mod places;
pub(crate) mod snapshots;
pub(crate) mod volumes;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Component, PathBuf};

use prost::Message;
use zeroize::Zeroizing;

use super::proto;
use crate::backend::SizeRange;
use crate::error::{Error, Result};
use crate::id::VolumeId;

/// The CSI specification's limit for names and ids, in bytes.
pub(crate) const MAX_TEXT: usize = 128;
const MAX_PATH: usize = 4096;
/// The specification's limit for a map, keys and values together.
const MAX_MAP: usize = 4096;

type Map = BTreeMap<String, String>;

/// Tells equal requests from others, secrets and all, without keeping them. Maps are ordered (build.rs).
pub(crate) fn fingerprint(request: &impl Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&Zeroizing::new(request.encode_to_vec()));
    hasher.finish()
}

/// None: an id that no CreateVolume of this driver (or of ceph-csi) ever answered.
pub(crate) fn known_id(id: &str) -> Result<Option<VolumeId>> {
    text("volume_id", id)?;
    Ok(VolumeId::parse(id).ok())
}

/// A volume that has to exist.
pub(crate) fn existing_id(field: &str, id: &str) -> Result<VolumeId> {
    text(field, id)?;
    VolumeId::parse(id).map_err(|_| no_such_volume(id))
}

/// A volume as the node requests name it: it becomes a file name.
pub(crate) fn handle(id: &str) -> Result<String> {
    text("volume_id", id)?;
    if id.contains(['/', '\\', '\0']) || id == "." || id == ".." {
        return Err(Error::Invalid(format!("volume_id {id:?}: '/', '\\', \".\" and \"..\" are not allowed")));
    }
    Ok(id.to_owned())
}

/// An absolute path that stays where it says.
pub(crate) fn path(field: &str, value: &str) -> Result<PathBuf> {
    if value.is_empty() {
        return Err(missing(field));
    }
    let path = PathBuf::from(value);
    let plain = path.components().skip(1).all(|component| matches!(component, Component::Normal(_)));
    if !path.is_absolute()
        || !plain
        || path.file_name().is_none()
        || value.len() > MAX_PATH
        || value.contains('\0')
    {
        return Err(Error::Invalid(format!(
            "{field} {value:?}: it has to be an absolute path without \"..\", below the root"
        )));
    }
    Ok(path)
}

/// A path at which a volume is looked for: any path where there is none is NOT_FOUND, even an odd one.
pub(crate) fn volume_path(value: &str) -> Result<PathBuf> {
    if value.is_empty() { Err(missing("volume_path")) } else { Ok(PathBuf::from(value)) }
}

/// The name of something that is to be made.
fn name(name: &str) -> Result<String> {
    let name = text("name", name)?;
    if let Some(odd) = name.chars().find(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        return Err(Error::Invalid(format!("name {name:?}: the control character {odd:?} is not allowed")));
    }
    Ok(name.to_owned())
}

fn size_range(range: Option<proto::CapacityRange>) -> Result<SizeRange> {
    let range = range.unwrap_or_default();
    let bytes = |field: &str, value: i64| {
        u64::try_from(value)
            .map_err(|_| Error::Invalid(format!("capacity_range.{field} {value}: a size is not negative")))
    };
    let required = bytes("required_bytes", range.required_bytes)?;
    let limit = Some(bytes("limit_bytes", range.limit_bytes)?).filter(|limit| *limit > 0);
    if let Some(limit) = limit.filter(|limit| required > *limit) {
        return Err(Error::OutOfRange(format!(
            "capacity_range: required_bytes {required} is more than limit_bytes {limit}"
        )));
    }
    Ok(SizeRange { required, limit })
}

/// A number of bytes or inodes as the wire has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn text<'a>(field: &str, value: &'a str) -> Result<&'a str> {
    match value.len() {
        0 => Err(missing(field)),
        1..=MAX_TEXT => Ok(value),
        length => {
            let start: String = value.chars().take(2 * MAX_TEXT).collect();
            Err(Error::Invalid(format!(
                "{field} {start:?} has {length} bytes: at most {MAX_TEXT} are allowed"
            )))
        }
    }
}

fn map(field: &str, values: Map) -> Result<Map> {
    let size: usize = values.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_MAP {
        return Err(Error::Invalid(format!("{field} has {size} bytes: at most {MAX_MAP} are allowed")));
    }
    Ok(values)
}

fn missing(field: &str) -> Error {
    Error::Invalid(format!("{field} is missing"))
}

fn no_such(kind: &str, id: &str) -> Error {
    Error::NotFound(format!("{kind} {id:?} does not exist: no id of this driver looks like that"))
}

/// Of a static volume nothing is told but the name of an image, where the request carries no volume context: not even
/// its pool.
fn no_such_volume(id: &str) -> Error {
    Error::NotFound(format!(
        "{}; if it is a static volume, this call does not say in which pool its image is: clone, snapshot or resize the \
         image itself (rbd)",
        no_such("volume", id)
    ))
}

fn not_built<T>(what: &str) -> Result<T> {
    Err(Error::Invalid(format!("{what}: not built in this version of the driver")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_handle_is_one_name_in_a_folder(id in "[-./\\\\a\0\n ]{0,6}|\\PC{0,140}") {
            if let Ok(handle) = handle(&id) {
                let path = Path::new("/staging").join(&handle);
                prop_assert_eq!(path.parent(), Some(Path::new("/staging")));
                prop_assert_eq!(path.file_name().and_then(std::ffi::OsStr::to_str), Some(id.as_str()));
            }
        }

        #[test]
        fn a_path_stays_where_it_says(text in "[/.a\0 -]{0,12}|/\\PC{0,60}") {
            if let Ok(path) = path("target_path", &text) {
                prop_assert!(path.is_absolute() && !text.contains('\0'));
                prop_assert!(path.components().skip(1).all(|part| matches!(part, Component::Normal(_))));
            }
        }

        #[test]
        fn what_is_refused_is_told_at_a_bounded_length(text in "\\PC{129,2000}") {
            let told = handle(&text).map_err(|error| error.to_string());
            prop_assert!(told.is_err_and(|told| told.len() < 8 << 10));
        }

        #[test]
        fn any_range_of_sizes_is_possible_or_refused(required_bytes: i64, limit_bytes: i64) {
            let wire = proto::CapacityRange { required_bytes, limit_bytes };
            match size_range(Some(wire)) {
                Ok(range) => prop_assert!(range.limit.is_none_or(|limit| range.required <= limit)),
                Err(error) => prop_assert!(matches!(error, Error::Invalid(_) | Error::OutOfRange(_))),
            }
        }
    }
}
