//! Pools, and plain objects of theirs: `rados`, where `ceph` would take ten times as long.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::host::{CmdError, Output};

use crate::backend::rbd::cli::json::{Claim, Locker, Named, Pools};
use crate::backend::rbd::cli::{Cli, errno, explain, parse, rados_errno};

/// Spares `rados` a round trip, after whose failure it would tell no errno.
const NO_MON_CONFIG: &str = "--no-mon-config";
/// The lock of an object that stands for a name: who holds it has the name.
const CLAIM: &str = "claim";

impl Cli<'_> {
    /// Pool names by id.
    pub(crate) async fn pools(&self) -> Result<BTreeMap<u64, String>> {
        let what = format!("listing the pools of cluster {}", self.access.cluster);
        let output = self
            .run("rados", ["df", "--format=json", NO_MON_CONFIG], |cmd| cmd)
            .await
            .map_err(|error| explain(&what, error))?;
        let pools: Pools = parse(&what, &output)?;
        Ok(pools.pools.into_iter().map(|pool| (pool.id, pool.name)).collect())
    }

    pub(crate) async fn namespaces(&self, pool: &str) -> Result<Vec<String>> {
        let what = format!("listing the namespaces of {pool}");
        let args = ["namespace", "ls", pool, "--format=json"];
        let output = self.run("rbd", args, |cmd| cmd).await.map_err(|error| explain(&what, error))?;
        let names: Vec<Named> = parse(&what, &output)?;
        Ok(names.into_iter().map(|namespace| namespace.name).collect())
    }

    /// When the object was last written; None where there is no such object (or no such pool).
    pub(crate) async fn object_time(&self, pool: &str, object: &str) -> Result<Option<SystemTime>> {
        let Some(output) = self.rados(pool, &["stat", object]).await? else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stdout);
        let time = text.split_once(" mtime ").and_then(|(_, rest)| rest.get(..19));
        let time = time.and_then(|time| humantime::parse_rfc3339_weak(time).ok());
        time.map(Some)
            .ok_or_else(|| Error::broken(format!("rados stat {object} answered {text:?}, which has no time")))
    }

    /// The names of all objects, one after the other: there may be more than memory holds.
    pub(crate) async fn each_object(&self, pool: &str, mut tell: impl FnMut(&str)) -> Result<()> {
        let what = format!("listing the objects of {}", self.pool(pool));
        let file = self.run_to_file("rados", self.in_pool(&["ls"], pool), &what).await?;
        for line in BufReader::new(file).lines() {
            tell(&line.map_err(|error| Error::internal(what.clone(), error))?);
        }
        Ok(())
    }

    pub(crate) async fn object(&self, pool: &str, object: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.rados(pool, &["get", object, "-"]).await?.map(|output| output.stdout))
    }

    pub(crate) async fn remove_object(&self, pool: &str, object: &str) -> Result<()> {
        self.rados(pool, &["rm", object]).await.map(drop)
    }

    pub(crate) async fn omap_get(&self, pool: &str, object: &str, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.rados(pool, &["getomapval", object, key, "/dev/stdout"]).await?.map(|output| output.stdout))
    }

    pub(crate) async fn omap_set(&self, pool: &str, object: &str, key: &str, value: &str) -> Result<()> {
        self.rados(pool, &["setomapval", object, key, "--", value]).await.map(drop)
    }

    pub(crate) async fn omap_remove(&self, pool: &str, object: &str, key: &str) -> Result<()> {
        self.rados(pool, &["rmomapkey", object, key]).await.map(drop)
    }

    pub(crate) async fn omap_keys(&self, pool: &str, object: &str) -> Result<Vec<String>> {
        let output = self.rados(pool, &["listomapkeys", object]).await?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Takes the object for `cookie`, for ever, if nobody has: one atomic step. False where somebody has it.
    pub(crate) async fn claim(&self, pool: &str, object: &str, cookie: &str) -> Result<bool> {
        let args = ["lock", "get", object, CLAIM, "--lock-cookie", cookie];
        match self.rados_raw(pool, &args).await {
            Ok(_) => Ok(true),
            Err(error) if rados_errno(&error) == Some(errno::BUSY) => Ok(false),
            Err(error) => Err(explain(&format!("claiming {object} in {pool}"), error)),
        }
    }

    /// Takes the object for so long, by the clock of the cluster. False where somebody has it.
    pub(crate) async fn claim_for(&self, pool: &str, object: &str, lasts: Duration) -> Result<bool> {
        let lasts = lasts.as_secs().to_string();
        match self.rados_raw(pool, &["lock", "get", object, CLAIM, "--lock-duration", &lasts]).await {
            Ok(_) => Ok(true),
            Err(error) if rados_errno(&error) == Some(errno::BUSY) => Ok(false),
            Err(error) => Err(explain(&format!("claiming {object} in {pool}"), error)),
        }
    }

    /// Who has claimed the object, if anybody.
    pub(crate) async fn claimant(&self, pool: &str, object: &str) -> Result<Option<Locker>> {
        let args = ["lock", "info", object, CLAIM, "--format=json"];
        let Some(output) = self.rados(pool, &args).await? else { return Ok(None) };
        let claim: Claim = parse(&format!("asking who has claimed {object} in {pool}"), &output)?;
        Ok(claim.lockers.into_iter().next())
    }

    /// Takes a claim from exactly this one. False where it is not his any more.
    pub(crate) async fn break_claim(&self, pool: &str, object: &str, locker: &Locker) -> Result<bool> {
        let args = ["lock", "break", object, CLAIM, &locker.name, "--lock-cookie", &locker.cookie];
        Ok(self.rados(pool, &args).await?.is_some())
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
        let (words, value) = args.split_at(args.iter().position(|arg| *arg == "--").unwrap_or(args.len()));
        let mut args = self.in_pool(words, pool);
        args.extend(value);
        self.run("rados", args, |cmd| cmd).await
    }

    fn in_pool<'a>(&'a self, words: &[&'a str], pool: &'a str) -> Vec<&'a str> {
        let namespace = Some(self.access.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let place = ["--pool", pool, NO_MON_CONFIG].into_iter();
        let place = place.chain(namespace.into_iter().flat_map(|namespace| ["--namespace", namespace]));
        words.iter().copied().chain(place).collect()
    }
}
