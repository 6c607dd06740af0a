//! The `rbd` and `rados` commands: argv out, JSON in, exit code to `Error`. Nothing above knows that they are commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::libc::{SIGABRT, SIGSEGV};
use serde::de::DeserializeOwned;

use crate::backend::Image;
use crate::cluster::Access;
use crate::error::{Error, Result};
use crate::host::{Cmd, CmdError, End, Host, Output, Slot};

use super::json::{Info, Named, Snapshot, Watcher};
use super::meta::Meta;

/// errno, which is also `rbd`'s exit status.
pub(super) mod errno {
    pub(in super::super) const PERM: i32 = 1;
    pub(in super::super) const NOENT: i32 = 2;
    pub(in super::super) const ACCES: i32 = 13;
    pub(in super::super) const BUSY: i32 = 16;
    pub(in super::super) const EXIST: i32 = 17;
    pub(in super::super) const INVAL: i32 = 22;
    pub(in super::super) const NOSPC: i32 = 28;
    pub(in super::super) const ROFS: i32 = 30;
    pub(in super::super) const NOTEMPTY: i32 = 39;
    pub(in super::super) const BLOCKLISTED: i32 = 108;
    pub(in super::super) const TIMEDOUT: i32 = 110;
    pub(in super::super) const DQUOT: i32 = 122;
}

/// Where Ceph's own settings come from, if the administrator gives any.
const CEPH_CONF: &str = "/etc/ceph/ceph.conf";

/// Spares `rados` a round trip, after whose failure it would tell no errno.
const NO_MON_CONFIG: &str = "--no-mon-config";

/// What became of an image in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    Removed,
    /// It is not in the trash.
    Absent,
    /// Somebody watches it, or clones live on its snapshots.
    Waits,
}

/// The commands on one cluster, as one user.
pub(super) struct Cli<'a> {
    pub(super) host: &'a dyn Host,
    pub(super) access: &'a Access,
    /// `--command-timeout`.
    pub(super) deadline: Duration,
}

impl Cli<'_> {
    pub(super) fn image(&self, pool: &str, name: &str) -> Image {
        Image { pool: pool.to_owned(), namespace: self.access.namespace.clone(), name: name.to_owned() }
    }

    /// Makes an image from an export stream. False where one of that name exists.
    pub(super) async fn import(
        &self,
        image: &Image,
        options: Vec<String>,
        stream: Vec<u8>,
    ) -> Result<bool, CmdError> {
        let mut args = vec!["import".to_owned(), "--export-format=2".to_owned(), "--no-progress".to_owned()];
        args.extend(options);
        args.extend(["-".to_owned(), image.to_string()]);
        match self.run("rbd", args, |cmd| cmd.stdin(stream)).await {
            Ok(_) => Ok(true),
            Err(error) if error.exit() == Some(errno::EXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// None where there is no such image, or only half of one.
    pub(super) async fn info(&self, image: &Image) -> Result<Option<Info>> {
        self.json_if_there("info", image, &[]).await
    }

    /// Clients that hold the image open for writing. None where there is no such image.
    pub(super) async fn watchers(&self, image: &Image) -> Result<Option<Vec<Watcher>>> {
        let status = self.json_if_there::<super::json::Status>("status", image, &[]).await?;
        Ok(status.map(|status| status.watchers))
    }

    /// Snapshots, those in the trash too.
    pub(super) async fn snapshots(&self, image: &Image) -> Result<Vec<Snapshot>> {
        Ok(self.json_if_there("snap ls", image, &["--all"]).await?.unwrap_or_default())
    }

    pub(super) async fn meta(&self, image: &Image) -> Result<Option<Meta>> {
        self.json_if_there("image-meta list", image, &[]).await
    }

    pub(super) async fn set_meta(&self, image: &Image, key: &str, value: &str) -> Result<()> {
        let args = ["image-meta", "set", &image.to_string(), key, value];
        self.run("rbd", args, |cmd| cmd)
            .await
            .map(drop)
            .map_err(|error| explain(&format!("writing {key} to {image}"), error))
    }

    /// A key that is not there is success.
    pub(super) async fn remove_meta(&self, image: &Image, key: &str) -> Result<()> {
        let removed = self.run("rbd", ["image-meta", "remove", &image.to_string(), key], |cmd| cmd).await;
        absent_is_none(removed)
            .map(drop)
            .map_err(|error| explain(&format!("removing {key} from {image}"), error))
    }

    /// Makes an image larger; `rbd` refuses to make it smaller. Work that grows with the image, where it has an object map.
    pub(super) async fn resize(&self, image: &Image, size: u64) -> Result<()> {
        let args = ["resize", "--no-progress", "--size", &format!("{size}B"), &image.to_string()];
        let resized = self.run("rbd", args, |cmd| cmd.deadline(self.deadline * 2)).await;
        resized.map(drop).map_err(|error| explain(&format!("growing {image} to {size} bytes"), error))
    }

    /// Moves an image, or what a killed command left of one, to the trash. False where there is nothing of that name.
    pub(super) async fn trash_move(&self, image: &Image) -> Result<bool> {
        let moved = self.run("rbd", ["trash", "mv", &image.to_string()], |cmd| cmd).await;
        let moved =
            absent_is_none(moved).map_err(|error| explain(&format!("moving {image} to the trash"), error))?;
        Ok(moved.is_some())
    }

    /// Frees what is in the trash: work that grows with the image.
    pub(super) async fn trash_remove(&self, pool: &str, id: &str) -> Result<Removal> {
        let spec = format!("{}/{id}", self.pool(pool));
        let slow = |cmd: Cmd| cmd.slot(Slot::Trash).deadline(self.deadline * 10);
        let removed = self.run("rbd", ["trash", "rm", &spec], slow).await;
        match removed.map_err(|error| (error.exit(), error)) {
            Ok(_) => Ok(Removal::Removed),
            Err((Some(errno::NOENT), _)) => Ok(Removal::Absent),
            Err((Some(errno::NOTEMPTY | errno::BUSY), _)) => Ok(Removal::Waits),
            Err((_, error)) => Err(explain(&format!("removing image {id} from the trash of {pool}"), error)),
        }
    }

    /// Whether no block, parents included, was ever written. Instant with fast-diff; else it looks at each object.
    pub(super) async fn is_empty(&self, image: &Image) -> Result<bool> {
        let args = ["diff", "--whole-object", "--format=json", &image.to_string()];
        let long = |cmd: Cmd| cmd.slot(Slot::Long).deadline(self.deadline * 10);
        let output = self
            .run("rbd", args, long)
            .await
            .map_err(|error| explain(&format!("looking for data in {image}"), error))?;
        Ok(output.stdout.trim_ascii() == b"[]")
    }

    /// Maps the image with krbd; answers its device. `noudev`: in a container `rbd map` waits for udev for ever.
    pub(super) async fn map(&self, image: &Image, read_only: bool) -> Result<String> {
        let spec = image.to_string();
        let mut args = vec!["map", &spec, "--device-type", "krbd", "--options", "noudev"];
        args.extend(read_only.then_some("--read-only"));
        let output = self
            .run("rbd", args, |cmd| cmd)
            .await
            .map_err(|error| explain(&format!("mapping {image}"), error))?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !Path::new(&device).is_absolute() {
            return Err(Error::broken(format!(
                "mapping {image}: rbd answered {device:?}, which is no device"
            )));
        }
        Ok(device)
    }

    /// Pool names by id.
    pub(super) async fn pools(&self) -> Result<BTreeMap<u64, String>> {
        let what = format!("listing the pools of cluster {}", self.access.cluster);
        let output = self
            .run("rados", ["df", "--format=json", NO_MON_CONFIG], |cmd| cmd)
            .await
            .map_err(|error| explain(&what, error))?;
        let pools: super::json::Pools = parse(&what, &output)?;
        Ok(pools.pools.into_iter().map(|pool| (pool.id, pool.name)).collect())
    }

    pub(super) async fn namespaces(&self, pool: &str) -> Result<Vec<String>> {
        let what = format!("listing the namespaces of {pool}");
        let args = ["namespace", "ls", pool, "--format=json"];
        let output = self.run("rbd", args, |cmd| cmd).await.map_err(|error| explain(&what, error))?;
        let names: Vec<Named> = parse(&what, &output)?;
        Ok(names.into_iter().map(|namespace| namespace.name).collect())
    }

    /// When the object was last written; None where there is no such object (or no such pool).
    pub(super) async fn object_time(&self, pool: &str, object: &str) -> Result<Option<SystemTime>> {
        let Some(output) = self.rados(pool, &["stat", object]).await? else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stdout);
        let time = text.split_once(" mtime ").and_then(|(_, rest)| rest.get(..19));
        let time = time.and_then(|time| humantime::parse_rfc3339_weak(time).ok());
        time.map(Some)
            .ok_or_else(|| Error::broken(format!("rados stat {object} answered {text:?}, which has no time")))
    }

    pub(super) async fn object(&self, pool: &str, object: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.rados(pool, &["get", object, "-"]).await?.map(|output| output.stdout))
    }

    pub(super) async fn remove_object(&self, pool: &str, object: &str) -> Result<()> {
        self.rados(pool, &["rm", object]).await.map(drop)
    }

    pub(super) async fn omap_get(&self, pool: &str, object: &str, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.rados(pool, &["getomapval", object, key, "/dev/stdout"]).await?.map(|output| output.stdout))
    }

    pub(super) async fn omap_set(&self, pool: &str, object: &str, key: &str, value: &str) -> Result<()> {
        self.rados(pool, &["setomapval", object, key, value]).await.map(drop)
    }

    pub(super) async fn omap_remove(&self, pool: &str, object: &str, key: &str) -> Result<()> {
        self.rados(pool, &["rmomapkey", object, key]).await.map(drop)
    }

    pub(super) async fn omap_keys(&self, pool: &str, object: &str) -> Result<Vec<String>> {
        let output = self.rados(pool, &["listomapkeys", object]).await?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// None where the pool, the object or the key is absent.
    async fn rados(&self, pool: &str, args: &[&str]) -> Result<Option<Output>> {
        match self.rados_raw(pool, args).await {
            Ok(output) => Ok(Some(output)),
            Err(error) if rados_errno(&error) == Some(errno::NOENT) => Ok(None),
            Err(error) => Err(explain(&format!("rados {} in {pool}", args.join(" ")), error)),
        }
    }

    async fn rados_raw(&self, pool: &str, args: &[&str]) -> Result<Output, CmdError> {
        let mut args = args.to_vec();
        args.extend(["--pool", pool, NO_MON_CONFIG]);
        if !self.access.namespace.is_empty() {
            args.extend(["--namespace", &self.access.namespace]);
        }
        self.run("rados", args, |cmd| cmd).await
    }

    async fn json_if_there<T: DeserializeOwned>(
        &self,
        verb: &str,
        image: &Image,
        more: &[&str],
    ) -> Result<Option<T>> {
        let what = format!("rbd {verb} {image}");
        let spec = image.to_string();
        let args = verb.split(' ').chain([spec.as_str(), "--format=json"]).chain(more.iter().copied());
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
        cmd.args.extend(self.connection());
        let repeatable = !matches!(cmd.args[0].as_str(), "import" | "map");
        let mut result = self.host.run(cmd.clone()).await;
        if let Err(error) = &result
            && repeatable
            && matches!(error.end, End::Signal(SIGSEGV | SIGABRT))
        {
            // `rbd` 16.2 aborts once in some thousand runs, often after its work is done (seen).
            tracing::warn!("rbd {} crashed; it is run once more", error.verb);
            result = self.host.run(cmd).await;
        }
        result.map_err(|error| CmdError { said: self.access.redact(&error.said), ..error })
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

    fn pool(&self, pool: &str) -> String {
        let namespace = &self.access.namespace;
        if namespace.is_empty() { pool.to_owned() } else { format!("{pool}/{namespace}") }
    }
}

/// What a failed command means to the caller. By the number, not by the text.
pub(super) fn explain(what: &str, error: CmdError) -> Error {
    let code = if error.program == "rados" { rados_errno(&error) } else { error.exit() };
    let text = format!("{what}: {error}");
    match (code, &error.end) {
        (Some(errno::NOENT), _) => Error::NotFound(text),
        (Some(errno::PERM | errno::ACCES), _) => Error::Denied(format!(
            "{text}: the cluster refuses this user: check userID, userKey and the caps of the user"
        )),
        (Some(errno::NOSPC | errno::DQUOT), _) => Error::NoSpace(text),
        (Some(errno::BUSY | errno::ROFS | errno::NOTEMPTY), _) => Error::Precondition(text),
        (Some(errno::TIMEDOUT), _) | (_, End::Deadline(_)) => Error::TimedOut(format!(
            "{text}: the cluster does not answer: check the monitors and the network"
        )),
        (Some(errno::BLOCKLISTED), _) => {
            Error::broken(format!("{text}: this client is on the cluster's blocklist"))
        }
        _ => Error::internal(what.to_owned(), error),
    }
}

/// `rados` exits with 1 for everything and writes the number in brackets; an absent key it only tells in words.
pub(super) fn rados_errno(error: &CmdError) -> Option<i32> {
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
