//! The `rbd`, `rados` and `ceph` commands: argv out, JSON in, exit code to `Error`. Nothing above knows that they are commands.
//! One file for each kind of thing; here is how each of them is run.

mod ceph;
mod device;
mod image;
pub(crate) mod json;
mod rados;
mod snapshot;
mod trash;

use std::fs::File;
use std::io::Seek as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::libc::{SIGABRT, SIGSEGV};
use serde::de::DeserializeOwned;

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, End, Host, Output, Slot};

pub(crate) use image::Renamed;
pub(crate) use trash::{Removal, Restored};

/// errno, which is also `rbd`'s exit status.
pub(crate) mod errno {
    pub(crate) const PERM: i32 = 1;
    pub(crate) const NOENT: i32 = 2;
    pub(crate) const NXIO: i32 = 6;
    pub(crate) const ACCES: i32 = 13;
    pub(crate) const BUSY: i32 = 16;
    pub(crate) const EXIST: i32 = 17;
    pub(crate) const INVAL: i32 = 22;
    pub(crate) const NOSPC: i32 = 28;
    pub(crate) const ROFS: i32 = 30;
    pub(crate) const NOSYS: i32 = 38;
    pub(crate) const NOTEMPTY: i32 = 39;
    pub(crate) const BLOCKLISTED: i32 = 108;
    pub(crate) const TIMEDOUT: i32 = 110;
    pub(crate) const STALE: i32 = 116;
    pub(crate) const DQUOT: i32 = 122;
}

/// Where Ceph's own settings come from, if the administrator gives any.
const CEPH_CONF: &str = "/etc/ceph/ceph.conf";

/// The commands on one cluster, as one user.
pub(crate) struct Cli<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) access: &'a Access,
    /// `--command-timeout`.
    pub(crate) deadline: Duration,
}

impl Cli<'_> {
    pub(crate) fn image(&self, pool: &str, name: &str) -> Image {
        Image { pool: pool.to_owned(), namespace: self.access.namespace.clone(), name: name.to_owned() }
    }

    async fn json_if_there<T: DeserializeOwned>(
        &self,
        verb: &str,
        image: &Image,
        more: &[&str],
    ) -> Result<Option<T>> {
        let spec = image.to_string();
        self.json(verb, &spec, [spec.as_str()].iter().chain(more)).await
    }

    /// For images in the trash, which have an id and no name.
    async fn json_by_id<T: DeserializeOwned>(
        &self,
        verb: &str,
        pool: &str,
        id: &str,
        more: &[&str],
    ) -> Result<Option<T>> {
        let namespace = &self.access.namespace;
        let place = ["--pool", pool, "--namespace", namespace, "--image-id", id];
        self.json(verb, &format!("image {id} in {}", self.pool(pool)), place.iter().chain(more)).await
    }

    async fn json<'a, T: DeserializeOwned>(
        &self,
        verb: &'a str,
        of: &str,
        args: impl Iterator<Item = &'a &'a str>,
    ) -> Result<Option<T>> {
        let what = format!("rbd {verb} {of}");
        let args = verb.split(' ').chain(args.copied()).chain(["--format=json"]);
        let output = self.run("rbd", args, |cmd| cmd).await;
        absent_is_none(output)
            .map_err(|error| explain(&what, error))?
            .map(|output| parse(&what, &output))
            .transpose()
    }

    async fn run<S: Into<String>>(
        &self,
        program: &'static str,
        args: impl IntoIterator<Item = S>,
        with: impl FnOnce(Cmd) -> Cmd,
    ) -> Result<Output, CmdError> {
        let mut cmd = with(Cmd::new(program, args).slot(Slot::Cluster));
        // Behind `--` a value is a value, whatever it begins with.
        let at = cmd.args.iter().position(|arg| arg == "--").unwrap_or(cmd.args.len());
        cmd.args.splice(at..at, self.connection());
        let repeatable = cmd.args[0] != "import";
        let mut result = self.host.run(cmd.clone()).await;
        if let Err(error) = &result
            && repeatable
            && matches!(error.end, End::Signal(SIGSEGV | SIGABRT))
        {
            // `rbd` 16.2 aborts once in some thousand runs, often after its work is done (seen).
            tracing::warn!("rbd {} crashed; it is run once more", error.verb);
            result = self.host.run(cmd).await;
        }
        result.map_err(|error| self.redacted(error))
    }

    /// What may be more than memory holds, read from a file that has no name. In `Long`.
    async fn run_to_file<S: Into<String>>(
        &self,
        program: &'static str,
        args: impl IntoIterator<Item = S>,
        what: &str,
    ) -> Result<File> {
        let file = tempfile::tempfile().map_err(|error| {
            Error::internal(format!("{what}: a temporary file is needed, in $TMPDIR or /tmp"), error)
        })?;
        let file = Arc::new(file);
        let long = |cmd: Cmd| cmd.slot(Slot::Long).deadline(self.deadline * 10).stdout(file.clone());
        self.run(program, args, long).await.map_err(|error| explain(what, error))?;
        let mut file =
            Arc::into_inner(file).ok_or_else(|| Error::broken(format!("{what}: it is still written")))?;
        file.rewind().map_err(|error| Error::internal(what, error))?;
        Ok(file)
    }

    fn redacted(&self, error: CmdError) -> CmdError {
        CmdError { said: self.access.redact(&error.said), ..error }
    }

    /// Without these time-outs a command waits 300 s for a dead monitor, and for ever for a dead OSD.
    fn connection(&self) -> [String; 11] {
        let Access { user, monitors, .. } = self.access;
        let conf = if Path::new(CEPH_CONF).exists() { CEPH_CONF } else { "/dev/null" };
        let (mount, op) = (self.deadline.as_secs() / 4, self.deadline.as_secs() / 2);
        [
            "-c".to_owned(),
            conf.to_owned(),
            "--id".to_owned(),
            user.clone(),
            "-m".to_owned(),
            monitors.clone(),
            "--keyfile".to_owned(),
            self.access.key_file(),
            format!("--client_mount_timeout={mount}"),
            format!("--rados_mon_op_timeout={op}"),
            format!("--rados_osd_op_timeout={op}"),
        ]
    }

    pub(crate) fn pool(&self, pool: &str) -> String {
        let namespace = &self.access.namespace;
        if namespace.is_empty() { pool.to_owned() } else { format!("{pool}/{namespace}") }
    }
}

/// What a failed command means to the caller. By the number; by the text only where the number may mean anything.
pub(crate) fn explain(what: &str, error: CmdError) -> Error {
    let code = match error.program {
        "rados" => rados_errno(&error),
        "ceph" => ceph::errno_of(&error),
        _ => error.exit(),
    };
    let text = format!("{what}: {error}");
    match (code, &error.end) {
        (Some(errno::NOENT), _) => Error::NotFound(text),
        (Some(errno::PERM | errno::ACCES), _) => Error::Denied(format!(
            "{text}: the cluster refuses this user: check userID, userKey and the caps of the user"
        )),
        // 22: base64, and no key.
        _ if error.said.contains("failed to decode key") => Error::Denied(format!(
            "{text}: userKey is no Ceph key: copy it anew (ceph auth get-key client.<userID>)"
        )),
        (Some(errno::NOSPC | errno::DQUOT), _) => Error::NoSpace(text),
        (Some(errno::BUSY | errno::ROFS | errno::NOTEMPTY), _) => Error::Precondition(text),
        (Some(errno::TIMEDOUT), _) | (_, End::Deadline(_)) => Error::TimedOut(format!(
            "{text}: the cluster does not answer: check the monitors and the network"
        )),
        (Some(errno::BLOCKLISTED), _) => Error::Precondition(format!(
            "{text}: this client is on the cluster's blocklist; one that was just made is there by its whole IP: see `ceph osd blocklist ls`"
        )),
        _ => Error::internal(what.to_owned(), error),
    }
}

/// `rados` exits with 1 for everything and writes the number in brackets; an absent key it only tells in words.
pub(crate) fn rados_errno(error: &CmdError) -> Option<i32> {
    error.exit()?;
    if error.said.contains("No such key:") {
        return Some(errno::NOENT);
    }
    let numbers = error.said.rmatches('(').count();
    let bracketed = |part: &str| part.split_once(')').and_then(|(number, _)| number.parse::<i32>().ok());
    (numbers > 0).then(|| error.said.rsplit('(').find_map(bracketed))?.map(i32::abs)
}

fn absent_is_none(result: Result<Output, CmdError>) -> Result<Option<Output>, CmdError> {
    match result {
        Ok(output) => Ok(Some(output)),
        Err(error) if error.exit() == Some(errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `image-meta list` of an image without metadata prints nothing.
fn parse<T: DeserializeOwned>(what: &str, output: &Output) -> Result<T> {
    let text = output.stdout.trim_ascii();
    serde_json::from_slice(if text.is_empty() { b"{}" } else { text }).map_err(|error| {
        let start: String = String::from_utf8_lossy(text).chars().take(200).collect();
        Error::internal(format!("{what}: the answer is not what this driver knows: {start:?}"), error)
    })
}
