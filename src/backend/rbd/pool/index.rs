//! The index of a pool: an omap object in each pool and namespace, whose keys are the intents of the trash and the
//! snapshots. All that is told of a snapshot is in its key, so that one command lists them. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::backend::{Listing, Page, Snapshot};
use crate::id::{Pool, SnapshotId, VolumeId};

const SNAPSHOT: &str = "snap.";

/// The object that holds the keys of this instance of the driver.
pub(crate) fn index_object(instance: &str) -> String {
    format!("csi.rbd.index.{instance}")
}

/// The key of a snapshot: `snap.<uuid>.<uuid of the source>.<bytes>.<seconds since 1970>`.
pub(crate) fn snapshot_key(snapshot: &Snapshot) -> String {
    let seconds = snapshot.created.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (own, source, size) = (snapshot.id.own.uuid, snapshot.source.uuid, snapshot.size);
    format!("{}{size}.{seconds}", key_prefix(own, source))
}

/// What all keys of a snapshot begin with: it is alone the same in each.
pub(crate) fn key_prefix(own: Uuid, source: Uuid) -> String {
    format!("{SNAPSHOT}{own}.{source}.")
}

/// The snapshots among the keys of the index of a pool.
pub(crate) fn indexed(keys: &[String], cluster: &str, pool: u64) -> Vec<Snapshot> {
    keys.iter().filter_map(|key| read(key, cluster, pool)).collect()
}

fn read(key: &str, cluster: &str, pool: u64) -> Option<Snapshot> {
    let mut parts = key.strip_prefix(SNAPSHOT)?.split('.');
    let mut part = || parts.next();
    let (own, source) = (Uuid::try_parse(part()?).ok()?, Uuid::try_parse(part()?).ok()?);
    let (size, seconds) = (part()?.parse().ok()?, part()?.parse().ok()?);
    let source = VolumeId { cluster: cluster.to_owned(), pool: Pool::Id(pool), uuid: source };
    let created: SystemTime = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    Some(Snapshot { id: SnapshotId::new(&source, own), source, size, created, reached_from: Vec::new() })
}

/// One page of all these, by uuid, each once.
pub(crate) fn page_of(mut snapshots: Vec<Snapshot>, page: &Page) -> Listing<Snapshot> {
    snapshots.retain(|snapshot| page.after.is_none_or(|after| snapshot.id.own.uuid > after));
    snapshots.sort_by_key(|snapshot| (snapshot.id.own.uuid, snapshot.id.source));
    snapshots.dedup_by(|a, b| a.id == b.id);
    let most = page.most.unwrap_or(usize::MAX);
    let more = snapshots.len() > most;
    snapshots.truncate(most);
    let next = snapshots.last().filter(|_| more).map(|snapshot| snapshot.id.own.uuid);
    Listing { entries: snapshots, next }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(own: u128, source: u128, size: u64, seconds: u64) -> Snapshot {
        let source = VolumeId { cluster: "c".to_owned(), pool: Pool::Id(3), uuid: Uuid::from_u128(source) };
        let created = UNIX_EPOCH + Duration::from_secs(seconds);
        Snapshot {
            id: SnapshotId::new(&source, Uuid::from_u128(own)),
            source,
            size,
            created,
            reached_from: Vec::new(),
        }
    }

    fn uuids(listing: &Listing<Snapshot>) -> Vec<u128> {
        listing.entries.iter().map(|snapshot| snapshot.id.own.uuid.as_u128()).collect()
    }

    #[test]
    fn pages_join_to_the_whole_list_whatever_is_deleted_between_them() {
        let all: Vec<Snapshot> = [5, 1, 3, 3, 2, 4].map(|number| snapshot(number, 9, 1, 1)).into();
        let first = page_of(all.clone(), &Page { after: None, most: Some(2) });
        assert_eq!(uuids(&first), [1, 2]);
        let left: Vec<Snapshot> =
            all.iter().filter(|one| one.id.own.uuid != Uuid::from_u128(2)).cloned().collect();
        let second = page_of(left, &Page { after: first.next, most: Some(3) });
        assert_eq!((uuids(&second), second.next), (vec![3, 4, 5], None));
        assert_eq!(uuids(&page_of(all, &Page::default())), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn other_keys_are_no_snapshots() {
        let keys = ["del.12ab.1795269600", "snap.", "snap.x.y.1.2", "snap.1.2.3", ""].map(str::to_owned);
        assert!(indexed(&keys, "c", 3).is_empty());
    }

    proptest! {
        #[test]
        fn a_key_tells_all_of_a_snapshot(own: u128, source: u128, size: u64, seconds in 0..1_u64 << 40) {
            let snapshot = snapshot(own, source, size, seconds);
            let key = snapshot_key(&snapshot);
            prop_assert!(key.starts_with(&key_prefix(snapshot.id.own.uuid, snapshot.source.uuid)));
            let read = indexed(&[key], "c", 3);
            prop_assert_eq!((&read[0].id, read[0].size, read[0].created), (&snapshot.id, size, snapshot.created));
        }

        #[test]
        fn any_key_is_read_without_panic(key in "(snap\\.)?\\PC*") {
            let _ = indexed(&[key], "c", 3);
        }
    }
}
