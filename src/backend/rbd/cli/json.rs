//! What `rbd` and `rados` print as JSON, read liberally: releases differ in shape and in what they add. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer};

use crate::backend::rbd::DEFAULT_OBJECT_SIZE;

/// As asctime(3) has them.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Info {
    pub(crate) id: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes.
    #[serde(default = "default_object_size")]
    pub(crate) object_size: u64,
    #[serde(default)]
    pub(crate) snapshot_count: u64,
    #[serde(default)]
    pub(crate) features: Vec<String>,
    /// What is wrong with its object map.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    #[serde(default)]
    pub(crate) data_pool: Option<String>,
    #[serde(default)]
    pub(crate) parent: Option<Parent>,
    #[serde(default)]
    mirroring: Option<Mirroring>,
}

/// The snapshot that an image is a clone of. Its name changes when it is removed: `id` and the list of all snapshots tell.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Parent {
    pub(crate) pool: String,
    #[serde(default)]
    pub(crate) pool_namespace: String,
    pub(crate) image: String,
    /// Of the image.
    #[serde(default)]
    pub(crate) id: String,
    pub(crate) snapshot: String,
}

/// A clone of an image.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Child {
    pub(crate) pool: String,
    #[serde(default)]
    pub(crate) pool_namespace: String,
    pub(crate) image: String,
    #[serde(default)]
    pub(crate) trash: bool,
}

fn default_object_size() -> u64 {
    DEFAULT_OBJECT_SIZE
}

impl Info {
    /// Watchers that rbd-mirror may hold: the cluster's daemons where it follows this image.
    pub(crate) fn mirrors(&self, daemons: usize) -> usize {
        let mirrored = self.mirroring.as_ref().is_some_and(|mirroring| mirroring.state != "disabled");
        if mirrored { daemons } else { 0 }
    }
}

#[derive(Debug, Clone, Deserialize)]
struct Mirroring {
    #[serde(default)]
    state: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Status {
    #[serde(default, deserialize_with = "list_or_map")]
    pub(crate) watchers: Vec<Watcher>,
}

/// A client that holds an image open.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Watcher {
    /// `ip:port/nonce`, exactly as `/sys/bus/rbd/devices/N/client_addr` has it.
    pub(crate) address: String,
}

/// What `rbd lock ls` prints.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Locks(#[serde(deserialize_with = "list_or_map")] pub(crate) Vec<Lock>);

/// Who has the exclusive lock of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct Lock {
    /// As of a watcher.
    pub(crate) address: String,
}

/// What `rbd du` prints.
#[derive(Debug, Deserialize)]
pub(crate) struct Used {
    #[serde(default)]
    pub(crate) images: Vec<UsedBy>,
}

/// An image, or one snapshot of it.
#[derive(Debug, Deserialize)]
pub(crate) struct UsedBy {
    #[serde(default)]
    pub(crate) used_size: u64,
}

/// A namespace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Snapshot {
    /// Rises with each snapshot of an image.
    #[serde(default)]
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Bytes.
    #[serde(default)]
    pub(crate) size: u64,
    /// As asctime(3) prints it, in UTC.
    #[serde(default)]
    pub(crate) timestamp: String,
    /// As clones of format 1 need it.
    #[serde(default, deserialize_with = "truth_or_text")]
    pub(crate) protected: bool,
    #[serde(default)]
    namespace: Option<SnapshotKind>,
}

impl Snapshot {
    /// The name that it was made with.
    pub(crate) fn original_name(&self) -> &str {
        self.namespace.as_ref().and_then(|kind| kind.original_name.as_deref()).unwrap_or(&self.name)
    }

    /// When it was taken. None where `rbd` says that in a way that this driver does not know.
    pub(crate) fn taken(&self) -> Option<SystemTime> {
        let mut words = self.timestamp.split_ascii_whitespace().skip(1);
        let (month, day, time, year) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let month = MONTHS.iter().position(|name| *name == month)? + 1;
        humantime::parse_rfc3339_weak(&format!("{year}-{month:02}-{day:0>2} {time}")).ok()
    }

    /// Not one that a clone alone keeps, in the trash of the image.
    pub(crate) fn is_of_a_user(&self) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| namespace.kind != "trash")
    }
}

#[derive(Debug, Clone, Deserialize)]
struct SnapshotKind {
    #[serde(rename = "type", default)]
    kind: String,
    /// Of one in the trash.
    #[serde(default)]
    original_name: Option<String>,
}

/// An image in the trash.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Trashed {
    pub(crate) id: String,
    /// That it had.
    pub(crate) name: String,
}

/// What `rados lock info` prints.
#[derive(Debug, Deserialize)]
pub(crate) struct Claim {
    #[serde(default)]
    pub(crate) lockers: Vec<Locker>,
}

/// Who holds a lock of an object.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Locker {
    /// `client.<number>`
    pub(crate) name: String,
    pub(crate) cookie: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Pool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pool {
    #[serde(deserialize_with = "number_or_text")]
    pub(crate) id: u64,
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Devices(#[serde(deserialize_with = "list_or_map")] pub(crate) Vec<Device>);

/// A mapped image.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Device {
    /// Mapped by rbd-nbd, not by krbd: they are listed apart.
    #[serde(skip)]
    pub(crate) nbd: bool,
    pub(crate) pool: String,
    #[serde(default)]
    pub(crate) namespace: String,
    #[serde(alias = "image")]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) snap: String,
    #[serde(rename = "device")]
    pub(crate) path: String,
}

/// Older releases print `{"0": {…}}` or `{"watcher": {…}}` where newer ones print `[{…}]`.
fn list_or_map<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        List(Vec<T>),
        Map(BTreeMap<String, T>),
    }
    Ok(match Either::deserialize(from)? {
        Either::List(list) => list,
        Either::Map(map) => map.into_values().collect(),
    })
}

/// `true`, or `"true"`.
fn truth_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Truth(bool),
        Text(String),
    }
    Ok(match Either::deserialize(from)? {
        Either::Truth(truth) => truth,
        Either::Text(text) => text == "true",
    })
}

fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }
    match Either::deserialize(from)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_time_of_a_snapshot_is_read_as_utc() {
        let taken = |timestamp: &str| {
            let text = format!(r#"{{"name":"s","timestamp":"{timestamp}"}}"#);
            let snapshot: Snapshot = serde_json::from_str(&text).expect("a snapshot");
            snapshot.taken().map(|time| humantime::format_rfc3339(time).to_string())
        };
        assert_eq!(taken("Sat Nov 21 19:16:39 2026").as_deref(), Some("2026-11-21T19:16:39Z"));
        assert_eq!(taken("Sun Feb  1 00:00:00 2026").as_deref(), Some("2026-02-01T00:00:00Z"));
        for odd in ["", "Sat", "Sat Foo 21 19:16:39 2026", "2026-11-21 19:16:39"] {
            assert_eq!(taken(odd), None, "{odd}");
        }
    }

    #[test]
    fn lists_of_old_and_new_releases_are_read() {
        let old = r#"{"0":{"pool":"p","name":"i","snap":"-","device":"/dev/rbd0"}}"#;
        let new = r#"[{"id":"0","pool":"p","namespace":"","name":"i","snap":"-","device":"/dev/rbd0"}]"#;
        for text in [old, new] {
            let devices: Devices = serde_json::from_str(text).expect("devices");
            assert_eq!(devices.0[0].path, "/dev/rbd0");
        }
        let nbd = r#"[{"id":379,"pool":"p","namespace":"","image":"i","snap":"","device":"/dev/nbd0","cookie":"c"}]"#;
        let devices: Devices = serde_json::from_str(nbd).expect("devices");
        assert_eq!((devices.0[0].name.as_str(), devices.0[0].path.as_str()), ("i", "/dev/nbd0"));
        for text in [
            r#"{"watchers":{"watcher":{"address":"a"}}}"#,
            r#"{"watchers":[{"address":"a","client":1,"cookie":2}]}"#,
        ] {
            let status: Status = serde_json::from_str(text).expect("a status");
            assert_eq!(status.watchers, [Watcher { address: "a".to_owned() }]);
        }
    }

    /// Each shape, of a text that may be anything.
    fn read_as_anything(text: &[u8]) {
        let read = [
            serde_json::from_slice::<Info>(text).is_ok(),
            serde_json::from_slice::<Vec<Child>>(text).is_ok(),
            serde_json::from_slice::<Status>(text).is_ok(),
            serde_json::from_slice::<Locks>(text).is_ok(),
            serde_json::from_slice::<Used>(text).is_ok(),
            serde_json::from_slice::<Vec<Named>>(text).is_ok(),
            serde_json::from_slice::<Vec<Trashed>>(text).is_ok(),
            serde_json::from_slice::<Claim>(text).is_ok(),
            serde_json::from_slice::<Pools>(text).is_ok(),
            serde_json::from_slice::<Devices>(text).is_ok(),
        ];
        let snapshots = serde_json::from_slice::<Vec<Snapshot>>(text).unwrap_or_default();
        assert!(
            snapshots
                .iter()
                .all(|snapshot| snapshot.taken() >= None && snapshot.original_name().len() < 1 << 20)
        );
        assert!(read.iter().filter(|read| **read).count() < read.len(), "no text is of every shape");
    }

    /// JSON with the names that `rbd` uses, each with a value of any kind.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let names = [
            "id",
            "size",
            "name",
            "pool",
            "image",
            "snap",
            "snapshot",
            "device",
            "parent",
            "watchers",
            "address",
            "timestamp",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            let map = proptest::collection::btree_map(
                proptest::sample::select(names.to_vec()),
                inner.clone(),
                0..8,
            );
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(Value::from),
                map.prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_and_any_bytes_are_read_or_refused(json in json(), bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            read_as_anything(json.to_string().as_bytes());
            read_as_anything(&bytes);
        }

        #[test]
        fn any_time_of_a_snapshot_is_read_or_unknown(words in proptest::collection::vec("[A-Za-z0-9:+é-]{0,9}", 0..7)) {
            let text = serde_json::json!({ "name": "s", "timestamp": words.join(" ") }).to_string();
            let _ = serde_json::from_str::<Snapshot>(&text).expect("a snapshot").taken();
        }
    }

    #[test]
    fn json_that_is_nested_without_end_is_refused() {
        for text in ["[", "{\"parent\":", "[{\"namespace\":"] {
            read_as_anything(text.repeat(1 << 18).as_bytes());
        }
    }
}
