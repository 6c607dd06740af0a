//! What ceph-csi made: its journal beside the images, its snapshots, and the volumes that it made for a name. And the way
//! back: what it would have written of the volumes of this driver.

pub(crate) mod adopt;
pub(crate) mod back;
pub(crate) mod journal;
mod report;
pub(crate) mod snapshot;
