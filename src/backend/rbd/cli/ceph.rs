//! What only the monitors know of a cluster: `ceph`.

use crate::error::{Error, Result};
use crate::host::CmdError;

use crate::backend::rbd::cli::{Cli, explain};
use crate::backend::rbd::pool::stats::{QUESTIONS, Report};

/// Seconds; five years. A frozen client sends what it had under way whenever it wakes up.
const FOR_GOOD: &str = "157784760";

impl Cli<'_> {
    /// Some 0.3 s: ask seldom.
    pub(crate) async fn report(&self) -> Result<Report> {
        let what = format!("asking cluster {} about its pools", self.access.cluster);
        let ask = self.run("ceph", ["--format=json"], |cmd| cmd.stdin(QUESTIONS.as_bytes().to_vec())).await;
        let output = ask.map_err(|error| explain(&what, error))?;
        Report::read(&output.stdout).ok_or_else(|| {
            let said: String = String::from_utf8_lossy(&output.stderr).chars().take(300).collect();
            Error::Denied(format!(
                "{what}: it tells user {:?} nothing of its pools ({}): the user needs the caps mon 'profile rbd'",
                self.access.user,
                self.access.redact(said.trim())
            ))
        })
    }

    /// Shuts one client, `ip:port/nonce`, out of the cluster. Its watches end with that. Whoever is on the list already keeps
    /// the end that it was given (seen).
    pub(crate) async fn blocklist(&self, address: &str) -> Result<()> {
        let args = ["osd", "blocklist", "add", address, FOR_GOOD];
        let added = self.run("ceph", args, |cmd| cmd).await;
        added.map(drop).map_err(|error| explain(&format!("blocklisting the client {address}"), error))
    }
}

/// `ceph` exits with 1 where it reaches no cluster, and writes `[errno 110]`; else with the number that the monitors answer.
pub(crate) fn errno_of(error: &CmdError) -> Option<i32> {
    let written = error.said.split_once("[errno ").and_then(|(_, rest)| rest.split_once(']'));
    let exit = error.exit()?;
    written.and_then(|(number, _)| number.parse().ok()).or_else(|| Some(exit).filter(|exit| *exit != 1))
}
