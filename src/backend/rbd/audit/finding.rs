//! What the audit finds: a thing without its counterpart, why that is so, and what `--repair` would do about it.

use std::fmt;
use std::time::SystemTime;

use uuid::Uuid;

use crate::backend::Image;

use crate::backend::rbd::ceph_csi::journal::Entry;
use crate::backend::rbd::cli::json::Locker;

/// Declared in the order in which they are repaired: what goes first makes room for what comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    HalfMadeImage,
    StrayName,
    TemporarySnapshot,
    EmptyTombstone,
    UnindexedSnapshot,
    BuriedSnapshot,
    SnapshotEntry,
    PublicationEntry,
    NameEntry,
    DeletedImage,
    TrashEntry,
    Claim,
    Placement,
    JournalEntry,
    Objects,
    UnreadableImage,
    UnnamedVolume,
    TornStash,
    MapWithoutStash,
    StashWithoutMap,
}

impl Kind {
    pub(crate) const ALL: [Self; 20] = [
        Self::HalfMadeImage,
        Self::StrayName,
        Self::TemporarySnapshot,
        Self::EmptyTombstone,
        Self::UnindexedSnapshot,
        Self::BuriedSnapshot,
        Self::SnapshotEntry,
        Self::PublicationEntry,
        Self::NameEntry,
        Self::DeletedImage,
        Self::TrashEntry,
        Self::Claim,
        Self::Placement,
        Self::JournalEntry,
        Self::Objects,
        Self::UnreadableImage,
        Self::UnnamedVolume,
        Self::TornStash,
        Self::MapWithoutStash,
        Self::StashWithoutMap,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HalfMadeImage => "half-made-image",
            Self::StrayName => "stray-name",
            Self::TemporarySnapshot => "temporary-snapshot",
            Self::EmptyTombstone => "empty-tombstone",
            Self::UnindexedSnapshot => "unindexed-snapshot",
            Self::BuriedSnapshot => "buried-snapshot",
            Self::SnapshotEntry => "snapshot-entry",
            Self::PublicationEntry => "publication-entry",
            Self::NameEntry => "name-entry",
            Self::DeletedImage => "deleted-image",
            Self::TrashEntry => "trash-entry",
            Self::Claim => "claim",
            Self::Placement => "placement",
            Self::JournalEntry => "journal-entry",
            Self::Objects => "objects",
            Self::UnreadableImage => "unreadable-image",
            Self::UnnamedVolume => "unnamed-volume",
            Self::TornStash => "torn-stash",
            Self::MapWithoutStash => "map-without-stash",
            Self::StashWithoutMap => "stash-without-map",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    /// What it is, as `rbd` and `rados` name it.
    pub(crate) what: String,
    /// None: nothing tells.
    pub(crate) since: Option<SystemTime>,
    pub(crate) why: String,
    pub(crate) remedy: Remedy,
}

/// Each looks once more before it acts: the report is seconds, or minutes, old.
#[derive(Debug, Clone)]
pub(crate) enum Remedy {
    /// To the trash, by an intent, and out of it.
    Discard(Image),
    /// The name that opens another image, or none.
    DropName(Image),
    RemoveSnapshot {
        image: Image,
        name: String,
        clone: Uuid,
    },
    Bury(Uuid),
    Surface {
        id: String,
        uuid: Uuid,
    },
    WriteKey(String),
    ForgetKey(String),
    ForgetName(Uuid),
    /// Whatever our intents name is removed from the trash, or the intent where it is gone.
    EmptyTrash,
    BreakClaim {
        object: String,
        locker: Option<Locker>,
    },
    RemoveObject(String),
    ForgetEntry(Entry, Uuid),
    /// Left alone, for this reason.
    Never(String),
}

impl Remedy {
    pub(crate) fn is_never(&self) -> bool {
        matches!(self, Self::Never(_))
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discard(_) | Self::Bury(_) => {
                f.write_str("note the intent, move it to the trash, remove it")
            }
            Self::DropName(image) => write!(f, "remove the object rbd_id.{}", image.name),
            Self::RemoveSnapshot { .. } => f.write_str("remove the snapshot"),
            Self::Surface { .. } => f.write_str("take the image out of the trash, as a tombstone"),
            Self::WriteKey(_) => f.write_str("write its key to the index, so that it is listed"),
            Self::ForgetKey(_) => f.write_str("remove the key from the index"),
            Self::ForgetName(_) => f.write_str("remove the key from the index, and the journal's entry"),
            Self::EmptyTrash => f.write_str("remove the image from the trash, and then the intent"),
            Self::BreakClaim { .. } => f.write_str("break the claim, remove the object"),
            Self::RemoveObject(_) => f.write_str("remove the object"),
            Self::ForgetEntry(..) => f.write_str("remove the journal's entry"),
            Self::Never(why) => write!(f, "nothing: {why}"),
        }
    }
}
