//! The command line of `ceph-rbd-csi journal`, the way back to ceph-csi.

use std::path::PathBuf;

use clap::Parser;

use super::place::{self, Place};

/// Tells, for each volume of this driver, what ceph-csi lacks to go on with it; with --write it is written: the keys of
/// ceph-csi's journal. What is there already is never changed. Ends with 0 where all volumes can go back, with 1 where one
/// cannot, with 2 where the question was wrong.
#[derive(Debug, Clone, Parser)]
#[command(name = "ceph-rbd-csi journal", term_width = 110)]
pub(crate) struct Journal {
    /// Write what is missing; without it nothing is changed
    #[arg(long)]
    pub(crate) write: bool,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Names of volumes, one on each line, for images that do not tell theirs (`kubectl get pv -o name`); -: standard input
    #[arg(long)]
    names: Option<PathBuf>,
}

impl Journal {
    /// None where the command line is another one. A mistake ends the program with clap's message and code 2.
    pub(crate) fn from_args() -> Option<Self> {
        place::command("journal")
    }

    /// As CreateVolume got them, which are those of the PersistentVolumes.
    pub(crate) fn names(&self) -> Result<Vec<String>, String> {
        self.names.as_deref().map_or(Ok(Vec::new()), |path| self.place.lines("--names", path))
    }
}
