//! The command line of `ceph-rbd-csi audit`.

use std::path::PathBuf;

use clap::Parser;

use super::place::{self, Place};

/// Lists what has no counterpart in the pools of a cluster: half-made images, entries of the index, claims, what was deleted
/// and not removed. Nothing is changed without --repair, and never what another driver, another instance of this one or an
/// administrator may have made. Ends with 0 where nothing is left to be done, with 1 where something is, or where it cannot
/// be known, with 2 where the question was wrong.
#[derive(Debug, Clone, Parser)]
#[command(name = "ceph-rbd-csi audit", term_width = 110)]
pub(crate) struct AuditFlags {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Repair what can be repaired
    #[arg(long)]
    pub(crate) repair: bool,
    /// With --repair: say what it would do, and change nothing
    #[arg(long, requires = "repair")]
    pub(crate) dry_run: bool,
    /// Tell it as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write how much was found, by kind, to this file, for the textfile collector of node_exporter
    #[arg(long)]
    pub(crate) metrics_file: Option<PathBuf>,
    /// Handles of all volumes, one on each line (`kubectl get pv -o jsonpath=…`); volumes that none of them names are
    /// listed, and left alone; -: standard input
    #[arg(long)]
    volumes: Option<PathBuf>,
    /// On a node: its kubelet's folder (/var/lib/kubelet): what is mapped and not staged, or staged and not mapped, is told too
    #[arg(long)]
    pub(crate) kubelet_dir: Option<PathBuf>,
    /// With --kubelet-dir: name of the driver
    #[arg(long, default_value = "rbd.csi.ceph.com")]
    pub(crate) drivername: String,
}

impl AuditFlags {
    /// None where the command line is another one. A mistake ends the program with clap's message and code 2.
    pub(crate) fn from_args() -> Option<Self> {
        place::command("audit")
    }

    /// None where nobody gives them.
    pub(crate) fn handles(&self) -> Result<Option<Vec<String>>, String> {
        self.volumes.as_deref().map(|path| self.place.lines("--volumes", path)).transpose()
    }
}
