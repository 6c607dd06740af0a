//! The messages of the SnapshotMetadata service.

use crate::backend::{BlockQuery, Blocks, Extent};
use crate::cluster::Secrets;
use crate::csi::proto;
use crate::csi::proto::{BlockMetadata, BlockMetadataType};
use crate::error::{Error, Result};
use crate::id::SnapshotId;

use super::{no_such, signed, text};

/// Extents in one message, where fewer are not asked for: some 20 KB, far below what a client takes.
const MOST: usize = 1024;

/// What is asked, and how many extents a message may have.
pub(crate) fn allocated(request: proto::GetMetadataAllocatedRequest) -> Result<(BlockQuery, usize)> {
    let target = existing("snapshot_id", &request.snapshot_id)?;
    let (from, most) = (offset(request.starting_offset)?, most(request.max_results)?);
    Ok((BlockQuery { base: None, target, from, secrets: Secrets::new(request.secrets) }, most))
}

pub(crate) fn delta(request: proto::GetMetadataDeltaRequest) -> Result<(BlockQuery, usize)> {
    let base = existing("base_snapshot_id", &request.base_snapshot_id)?;
    let target = existing("target_snapshot_id", &request.target_snapshot_id)?;
    let (from, most) = (offset(request.starting_offset)?, most(request.max_results)?);
    if base.source_volume() != target.source_volume() {
        return Err(Error::Invalid(format!(
            "base_snapshot_id {base} and target_snapshot_id {target} are snapshots of two volumes"
        )));
    }
    Ok((BlockQuery { base: Some(base), target, from, secrets: Secrets::new(request.secrets) }, most))
}

/// An answer in pieces of one message each.
pub(crate) struct Pieces {
    blocks: Blocks,
    most: usize,
}

impl Pieces {
    pub(crate) fn of(blocks: Blocks, most: usize) -> Self {
        Self { blocks, most }
    }
}

/// The size of the volume, and extents of it.
type Piece = (u64, Vec<Extent>);

impl Iterator for Pieces {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let extents: Result<Vec<Extent>> = self.blocks.extents.by_ref().take(self.most).collect();
        match extents {
            Ok(extents) if extents.is_empty() => None,
            extents => Some(extents.map(|extents| (self.blocks.size, extents))),
        }
    }
}

pub(crate) fn told_allocated((size, extents): Piece) -> proto::GetMetadataAllocatedResponse {
    proto::GetMetadataAllocatedResponse {
        block_metadata_type: BlockMetadataType::VariableLength.into(),
        volume_capacity_bytes: signed(size),
        block_metadata: extents.into_iter().map(told).collect(),
    }
}

pub(crate) fn told_delta((size, extents): Piece) -> proto::GetMetadataDeltaResponse {
    proto::GetMetadataDeltaResponse {
        block_metadata_type: BlockMetadataType::VariableLength.into(),
        volume_capacity_bytes: signed(size),
        block_metadata: extents.into_iter().map(told).collect(),
    }
}

fn told(extent: Extent) -> BlockMetadata {
    BlockMetadata { byte_offset: signed(extent.offset), size_bytes: signed(extent.length) }
}

fn existing(field: &str, id: &str) -> Result<SnapshotId> {
    SnapshotId::parse(text(field, id)?).map_err(|_| no_such("snapshot", id))
}

fn offset(value: i64) -> Result<u64> {
    let wrong = |_| Error::OutOfRange(format!("starting_offset {value}: an offset is not negative"));
    u64::try_from(value).map_err(wrong)
}

fn most(value: i32) -> Result<usize> {
    match usize::try_from(value) {
        Ok(0) => Ok(MOST),
        Ok(most) => Ok(most.min(MOST)),
        Err(_) => Err(Error::Invalid(format!("max_results {value}: a number of results is not negative"))),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use uuid::Uuid;

    use super::*;
    use crate::id::{Pool, VolumeId};

    fn snapshot(source: u128, uuid: u128) -> String {
        let source = VolumeId { cluster: "c".to_owned(), pool: Pool::Id(1), uuid: Uuid::from_u128(source) };
        SnapshotId::new(&source, Uuid::from_u128(uuid)).to_string()
    }

    fn pieces(extents: Vec<Result<Extent>>, most: usize) -> Vec<Result<usize, Code>> {
        let blocks = Blocks { size: 9, extents: Box::new(extents.into_iter()) };
        let lengths = Pieces::of(blocks, most).map(|piece| piece.map(|(_, extents)| extents.len()));
        lengths.map(|length| length.map_err(|error| error.code())).collect()
    }

    #[test]
    fn a_message_has_at_most_as_many_extents_as_are_asked_for() {
        let some = |count: usize| vec![Ok(Extent { offset: 0, length: 1 }); count];
        assert_eq!(pieces(some(0), 2), []);
        assert_eq!(pieces(some(4), 2), [Ok(2), Ok(2)]);
        assert_eq!(pieces(some(5), 2), [Ok(2), Ok(2), Ok(1)]);
        let broken = vec![Ok(Extent { offset: 0, length: 1 }), Err(Error::broken("cut off"))];
        assert_eq!(pieces(broken, 2), [Err(Code::Internal)], "an error behind extents is no end");
    }

    #[test]
    fn what_is_asked_is_checked() {
        let check = |id: String, starting_offset, max_results| {
            let request = proto::GetMetadataAllocatedRequest {
                snapshot_id: id,
                starting_offset,
                max_results,
                ..Default::default()
            };
            allocated(request).map(|(query, most)| (query.from, most)).map_err(|error| error.code())
        };
        let id = snapshot(1, 2);
        assert_eq!(check(id.clone(), 5, 0), Ok((5, MOST)));
        assert_eq!(check(id.clone(), 0, 7), Ok((0, 7)));
        assert_eq!(check(id.clone(), 0, i32::MAX), Ok((0, MOST)));
        assert_eq!(check(id.clone(), -1, 0), Err(Code::OutOfRange));
        assert_eq!(check(id, 0, -1), Err(Code::InvalidArgument));
        assert_eq!(check(String::new(), 0, 0), Err(Code::InvalidArgument));
        assert_eq!(check("none".to_owned(), 0, 0), Err(Code::NotFound));
    }

    #[test]
    fn snapshots_of_two_volumes_have_no_difference() {
        let check = |base: String, target: String| {
            let request = proto::GetMetadataDeltaRequest {
                base_snapshot_id: base,
                target_snapshot_id: target,
                ..Default::default()
            };
            delta(request).map(|(query, _)| query.base.is_some()).map_err(|error| error.code())
        };
        assert_eq!(check(snapshot(1, 2), snapshot(1, 3)), Ok(true));
        assert_eq!(check(snapshot(1, 2), snapshot(2, 3)), Err(Code::InvalidArgument));
        assert_eq!(check(String::new(), snapshot(1, 3)), Err(Code::InvalidArgument));
        assert_eq!(check(snapshot(1, 2), "none".to_owned()), Err(Code::NotFound));
    }
}
