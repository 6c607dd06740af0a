//! What only the monitors know of a cluster: `ceph`.

use crate::error::{Error, Result};
use crate::host::CmdError;

use crate::backend::rbd::cli::{Cli, explain};
use crate::backend::rbd::pool::stats::{QUESTIONS, Report};

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
}

/// `ceph` exits with 1 for most failures and writes `[errno 110]`.
pub(crate) fn errno_of(error: &CmdError) -> Option<i32> {
    let written = error.said.split_once("[errno ").and_then(|(_, rest)| rest.split_once(']'));
    error.exit()?;
    written.and_then(|(number, _)| number.parse().ok())
}
