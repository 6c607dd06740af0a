//! What the commands beside the driver are told of a cluster: which one, as whom, and which pools.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use clap::{Args, Parser};

/// In place of a file.
const STDIN: &str = "-";

#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// The cluster: a clusterID of --config
    #[arg(long)]
    pub(crate) cluster: String,
    /// A pool that holds volumes; may be given more than once [default: those of rbd.credential]
    #[arg(long = "pool")]
    pub(crate) pools: Vec<String>,
    /// Cluster configuration: clusterID to monitors, in ceph-csi's format
    #[arg(long, default_value = "/etc/ceph-csi-config/config.json")]
    pub(crate) config: PathBuf,
    /// That of the driver that made the volumes (and, for journal, of the ceph-csi that is to have them)
    #[arg(long, default_value = "default")]
    pub(crate) instanceid: String,
    /// Ceph user, without `client.` [default: that of rbd.credential]
    #[arg(long, requires = "keyfile")]
    pub(crate) user: Option<String>,
    /// File with its key alone, as `ceph auth get-key` prints it; -: standard input
    #[arg(long, requires = "user")]
    keyfile: Option<PathBuf>,
    /// Deadline of one command
    #[arg(long, default_value = "60s", value_parser = deadline)]
    pub(crate) command_timeout: Duration,
}

impl Place {
    /// Of the user, where one is named.
    pub(crate) fn key(&self) -> Result<Option<String>, String> {
        let Some(path) = self.keyfile.as_deref() else { return Ok(None) };
        let key = read(path)?;
        if key.trim().is_empty() {
            return Err(format!("--keyfile={}: it is empty: give the key of the user there", path.display()));
        }
        Ok(Some(key.trim().to_owned()))
    }

    /// Of the file that this flag names, without what `kubectl get -o name` writes before a name.
    pub(super) fn lines(&self, flag: &str, path: &Path) -> Result<Vec<String>, String> {
        if path == Path::new(STDIN) && self.keyfile.as_deref() == Some(path) {
            return Err(format!(
                "--keyfile and {flag} cannot both be standard input: give one of them a file"
            ));
        }
        let text = read(path)?;
        let names = text.lines().map(|line| line.trim().trim_start_matches("persistentvolume/"));
        Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
}

/// None where the command line is not that of this command. A mistake ends the program with clap's message and code 2.
pub(super) fn command<T: Parser>(name: &str) -> Option<T> {
    let mut args = std::env::args_os();
    let program = args.next();
    (args.next().as_deref() == Some(OsStr::new(name))).then(|| T::parse_from(program.into_iter().chain(args)))
}

/// What is older than some of them is taken for abandoned, so that it cannot be any.
fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    (deadline >= Duration::from_secs(4))
        .then_some(deadline)
        .ok_or_else(|| "give a command at least 4s".to_owned())
}

fn read(path: &Path) -> Result<String, String> {
    let text =
        if path == Path::new(STDIN) { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
