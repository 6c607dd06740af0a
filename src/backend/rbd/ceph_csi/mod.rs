//! What ceph-csi made: its journal beside the images, its snapshots, and the volumes that it made for a name.

pub(crate) mod adopt;
pub(crate) mod journal;
pub(crate) mod snapshot;
