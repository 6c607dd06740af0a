//! The command line of `ceph-rbd-csi journal`, the way back to ceph-csi.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use clap::Parser;

/// In place of a file.
const STDIN: &str = "-";

/// Tells, for each volume of this driver, what ceph-csi lacks to go on with it; with --write it is written: the keys of
/// ceph-csi's journal. What is there already is never changed. Ends with 0 where all volumes can go back, with 1 where one
/// cannot, with 2 where the question was wrong.
#[derive(Debug, Clone, Parser)]
#[command(name = "ceph-rbd-csi journal", term_width = 110)]
pub(crate) struct Journal {
    /// Write what is missing; without it nothing is changed
    #[arg(long)]
    pub(crate) write: bool,
    /// The cluster: a clusterID of --config
    #[arg(long)]
    pub(crate) cluster: String,
    /// A pool that holds volumes; may be given more than once [default: those of rbd.credential]
    #[arg(long = "pool")]
    pub(crate) pools: Vec<String>,
    /// Cluster configuration: clusterID to monitors, in ceph-csi's format
    #[arg(long, default_value = "/etc/ceph-csi-config/config.json")]
    pub(crate) config: PathBuf,
    /// That of the driver that made the volumes, and of the ceph-csi that is to have them
    #[arg(long, default_value = "default")]
    pub(crate) instanceid: String,
    /// Ceph user, without `client.` [default: that of rbd.credential]
    #[arg(long, requires = "keyfile")]
    pub(crate) user: Option<String>,
    /// File with its key alone, as `ceph auth get-key` prints it; -: standard input
    #[arg(long, requires = "user")]
    keyfile: Option<PathBuf>,
    /// Names of volumes, one on each line, for images that do not tell theirs (`kubectl get pv -o name`); -: standard input
    #[arg(long)]
    names: Option<PathBuf>,
    /// Deadline of one command
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) command_timeout: Duration,
}

impl Journal {
    /// None where the command line is another one. A mistake ends the program with clap's message and code 2.
    pub(crate) fn from_args() -> Option<Self> {
        let mut args = std::env::args_os();
        let program = args.next();
        (args.next().as_deref() == Some(OsStr::new("journal")))
            .then(|| Self::parse_from(program.into_iter().chain(args)))
    }

    /// Of the user, where one is named.
    pub(crate) fn key(&self) -> Result<Option<String>, String> {
        let Some(path) = self.keyfile.as_deref() else { return Ok(None) };
        let key = read(path)?;
        if key.trim().is_empty() {
            return Err(format!("--keyfile={}: it is empty: give the key of the user there", path.display()));
        }
        Ok(Some(key.trim().to_owned()))
    }

    /// As CreateVolume got them, which are those of the PersistentVolumes.
    pub(crate) fn names(&self) -> Result<Vec<String>, String> {
        let Some(path) = self.names.as_deref() else { return Ok(Vec::new()) };
        if path == Path::new(STDIN) && self.keyfile.as_deref() == Some(path) {
            return Err(
                "--keyfile and --names cannot both be standard input: give one of them a file".to_owned()
            );
        }
        let text = read(path)?;
        let names = text.lines().map(|line| line.trim().trim_start_matches("persistentvolume/"));
        Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
}

fn read(path: &Path) -> Result<String, String> {
    let text =
        if path == Path::new(STDIN) { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
