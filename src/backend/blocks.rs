//! Which blocks of a snapshot a backup has to read. Plain types.

use crate::cluster::Secrets;
use crate::error::Result;
use crate::id::SnapshotId;

/// A question for the blocks of a snapshot: of all that were written, or of those that differ from `base`.
pub(crate) struct BlockQuery {
    pub(crate) base: Option<SnapshotId>,
    pub(crate) target: SnapshotId,
    /// Bytes before this one are of no interest.
    pub(crate) from: u64,
    pub(crate) secrets: Secrets,
}

/// The answer, which is read piece by piece: a large volume has millions of blocks.
pub(crate) struct Blocks {
    /// Of the snapshot, in bytes.
    pub(crate) size: u64,
    /// In rising order, none touching the next, all between `from` and `size`.
    pub(crate) extents: Box<dyn Iterator<Item = Result<Extent>> + Send>,
}

/// A range of bytes, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}
