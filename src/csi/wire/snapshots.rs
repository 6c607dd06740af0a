//! The messages of snapshots.

use uuid::Uuid;

use crate::backend::{CreateSnapshot, Listing, Offer, Snapshot};
use crate::cluster::Secrets;
use crate::csi::proto;
use crate::csi::proto::list_snapshots_response::Entry;
use crate::error::Result;
use crate::id::{SnapshotId, VolumeId};

use super::{map, name, no_such, pages, places, signed, text};

pub(crate) fn create(request: proto::CreateSnapshotRequest, offers: &[Offer]) -> Result<CreateSnapshot> {
    let name = name(&request.name)?;
    Ok(CreateSnapshot {
        name,
        source: super::existing_id("source_volume_id", &request.source_volume_id)?,
        parameters: map("parameters", request.parameters)?,
        places: places::wanted(request.accessibility_requirements, offers)?,
        secrets: Secrets::new(request.secrets),
    })
}

/// None: an id that no CreateSnapshot of this driver ever answered.
pub(crate) fn known_id(id: &str) -> Result<Option<SnapshotId>> {
    text("snapshot_id", id)?;
    Ok(SnapshotId::parse(id).ok())
}

/// A snapshot that has to exist.
pub(crate) fn existing_id(id: &str) -> Result<SnapshotId> {
    known_id(id)?.ok_or_else(|| no_such("snapshot", id))
}

pub(crate) fn told(snapshot: Snapshot) -> proto::Snapshot {
    proto::Snapshot {
        size_bytes: signed(snapshot.size),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(snapshot.created.into()),
        ready_to_use: true,
        group_snapshot_id: String::new(),
        accessible_topology: places::reached_from(snapshot.reached_from),
    }
}

/// Which snapshots a ListSnapshots asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    All,
    OfVolume(VolumeId),
    /// By its id, if it is of this volume. (ceph-csi's ids do not tell of which they are.)
    One(SnapshotId, Option<VolumeId>),
    /// An id that is none of ours: an empty list.
    Nothing,
}

pub(crate) fn filter(request: &proto::ListSnapshotsRequest) -> Filter {
    let (source, id) = (&request.source_volume_id, &request.snapshot_id);
    let of_volume = VolumeId::parse(source).ok();
    match (SnapshotId::parse(id), of_volume) {
        _ if id.is_empty() && source.is_empty() => Filter::All,
        (_, Some(volume)) if id.is_empty() => Filter::OfVolume(volume),
        (Ok(id), _) if source.is_empty() => Filter::One(id, None),
        (Ok(id), Some(volume)) => Filter::One(id, Some(volume)),
        _ => Filter::Nothing,
    }
}

/// The one snapshot asked for, if it is there, of that volume, and behind the place where the page starts.
pub(crate) fn only(
    snapshot: Option<Snapshot>,
    of: Option<&VolumeId>,
    after: Option<Uuid>,
) -> Listing<Snapshot> {
    let asked = |snapshot: &Snapshot| {
        of.is_none_or(|of| snapshot.source == *of) && after.is_none_or(|after| snapshot.id.own.uuid > after)
    };
    Listing { entries: snapshot.filter(asked).into_iter().collect(), next: None }
}

pub(crate) fn listed(listing: Listing<Snapshot>) -> proto::ListSnapshotsResponse {
    let entry = |snapshot| Entry { snapshot: Some(told(snapshot)) };
    proto::ListSnapshotsResponse {
        entries: listing.entries.into_iter().map(entry).collect(),
        next_token: pages::token(listing.next),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tonic::Code;

    use super::*;
    use crate::id::Pool;

    fn source(number: u128) -> VolumeId {
        VolumeId { cluster: "c".to_owned(), pool: Pool::Id(1), uuid: Uuid::from_u128(number) }
    }

    fn id() -> SnapshotId {
        SnapshotId::new(&source(1), Uuid::from_u128(7))
    }

    fn snapshot() -> Snapshot {
        let created = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        let reached_from = vec![[("n".to_owned(), "a".to_owned())].into()];
        Snapshot { id: id(), source: source(1), size: 5, created, reached_from }
    }

    #[test]
    fn filters_combine_and_ids_of_others_are_ids_of_nothing() {
        let filter = |source: &str, id: &str| {
            super::filter(&proto::ListSnapshotsRequest {
                source_volume_id: source.to_owned(),
                snapshot_id: id.to_owned(),
                ..Default::default()
            })
        };
        let (one, its, other) = (id().to_string(), source(1).to_string(), source(2).to_string());
        assert_eq!(filter("", ""), Filter::All);
        assert_eq!(filter(&its, ""), Filter::OfVolume(source(1)));
        assert_eq!(filter("", &one), Filter::One(id(), None));
        assert_eq!(filter(&its, &one), Filter::One(id(), Some(source(1))));
        assert_eq!(filter(&other, &one), Filter::One(id(), Some(source(2))));
        for (source, id) in [("none", ""), ("", "none"), ("none", &one), (&its, "none")] {
            assert_eq!(filter(source, id), Filter::Nothing, "{source} {id}");
        }
    }

    #[test]
    fn a_snapshot_asked_for_by_id_is_on_the_first_page_alone() {
        let count = |after| only(Some(snapshot()), None, after).entries.len();
        assert_eq!(
            (count(None), count(Some(Uuid::from_u128(6))), count(Some(Uuid::from_u128(7)))),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_snapshot_of_ceph_csi_is_found_by_id_and_compared_by_its_source() {
        let id = SnapshotId { own: source(7), source: None };
        let asked = filter(&proto::ListSnapshotsRequest {
            source_volume_id: source(1).to_string(),
            snapshot_id: id.to_string(),
            ..Default::default()
        });
        assert_eq!(asked, Filter::One(id.clone(), Some(source(1))));
        let snapshot = Snapshot { id, ..snapshot() };
        assert_eq!(only(Some(snapshot.clone()), Some(&source(1)), None).entries.len(), 1);
        assert_eq!(only(Some(snapshot.clone()), Some(&source(2)), None).entries.len(), 0);
        let told = told(snapshot);
        assert_eq!((told.snapshot_id, told.source_volume_id), (source(7).to_string(), source(1).to_string()));
    }

    #[test]
    fn a_snapshot_is_told_whole() {
        let told = told(snapshot());
        assert_eq!((told.size_bytes, told.ready_to_use), (5, true));
        assert_eq!((told.snapshot_id, told.source_volume_id), (id().to_string(), source(1).to_string()));
        let created = told.creation_time.expect("a time");
        assert_eq!((created.seconds, created.nanos), (1, 500_000_000));
        assert_eq!(told.accessible_topology.len(), 1);
    }

    #[test]
    fn ids_that_are_missing_are_told_from_ids_of_nothing() {
        let code = |name: &str, source: &str| {
            let (name, source_volume_id) = (name.to_owned(), source.to_owned());
            let request = proto::CreateSnapshotRequest { name, source_volume_id, ..Default::default() };
            create(request, &[]).map(|create| create.source).map_err(|error| error.code())
        };
        assert_eq!(code("n", &source(1).to_string()), Ok(source(1)));
        assert_eq!(code("", &source(1).to_string()), Err(Code::InvalidArgument));
        assert_eq!(code("n", ""), Err(Code::InvalidArgument));
        assert_eq!(code("n", "none"), Err(Code::NotFound));
        assert_eq!(existing_id("none").map_err(|error| error.code()), Err(Code::NotFound));
        assert_eq!(known_id("none").map_err(|error| error.code()), Ok(None));
        assert_eq!(known_id("").map_err(|error| error.code()), Err(Code::InvalidArgument));
    }
}
