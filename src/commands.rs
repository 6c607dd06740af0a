//! What the program does beside the driver: one question about the pools of a cluster, and its answer.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::backend::Staging;
use crate::backend::rbd::{Audit, Rbd, Report, WayBack};
use crate::cluster::{Clusters, Listed, Secrets};
use crate::config::{AuditFlags, Journal, Place};
use crate::error::{Error, chain};
use crate::host::files;
use crate::host::linux::{self, Linux};
use crate::keys::KeyStores;
use crate::node;
use crate::ops::Ops;

/// Runs a command, which says what it tells and whether all is well. 0: it is; 1: it is not, or nobody knows; 2: wrong usage.
pub(crate) fn run(command: impl FnOnce() -> Result<(String, bool), Error>) -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match command() {
        Ok((report, fine)) => {
            let told = std::io::stdout().write_all(report.as_bytes()).is_ok();
            ExitCode::from(u8::from(!(fine && told)))
        }
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(if matches!(error, Error::Invalid(_)) { 2 } else { 1 })
        }
    }
}

/// The way back to ceph-csi: all is well where every volume can go.
pub(crate) fn journal(asked: &Journal) -> Result<(String, bool), Error> {
    let names = asked.names().map_err(Error::Invalid)?;
    let (place, deadline) = (listed(&asked.place)?, asked.place.command_timeout);
    let (instance, write) = (asked.place.instanceid.clone(), asked.write);
    let host = Arc::new(Linux::new(8, deadline));
    let report = wait_for(WayBack { host, deadline, instance, place, names, write }.go())?;
    Ok((report.to_string(), report.is_fine()))
}

/// What has no counterpart: all is well where nothing is left.
pub(crate) fn audit(asked: &AuditFlags) -> Result<(String, bool), Error> {
    let (place, handles) = (listed(&asked.place)?, asked.handles().map_err(Error::Invalid)?);
    let Place { config, instanceid, command_timeout, .. } = asked.place.clone();
    let ops = Ops::default();
    // What it does, it does before it tells: nothing runs behind.
    ops.stop();
    let (host, stores) = (Arc::new(Linux::new(8, command_timeout)), KeyStores::default());
    let rbd = Rbd::new(host, Clusters::new(config), stores, instanceid, String::new(), command_timeout, ops);
    let driver = asked.drivername.clone();
    let stagings = asked.kubelet_dir.clone().map(|kubelet| -> Box<dyn Fn() -> Vec<Staging>> {
        Box::new(move || node::stagings(&kubelet, &driver))
    });
    let audit = Audit { rbd, place, handles, repair: asked.repair, dry: asked.dry_run, stagings };
    let report = wait_for(audit.go())?;
    if let Some(path) = &asked.metrics_file {
        write_metrics(path, &report)?;
    }
    Ok((if asked.json { report.json() } else { report.to_string() }, report.is_clean()))
}

/// The cluster that a command is about.
fn listed(place: &Place) -> Result<Listed, Error> {
    let missing = linux::missing(&["setpriv", "rbd", "rados"]);
    if !missing.is_empty() {
        return Err(Error::Precondition(format!("these programs are not on PATH: {}", missing.join(", "))));
    }
    let key = place.key().map_err(Error::Invalid)?;
    let secrets = place.user.clone().zip(key).map(|(user, key)| [("userID", user), ("userKey", key)]);
    let secrets = secrets.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect();
    let listed =
        Clusters::new(place.config.clone()).place(&place.cluster, &Secrets::new(secrets), &place.pools);
    listed.map_err(|error| Error::Invalid(chain(&error)))
}

fn wait_for<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| Error::internal("starting", error))?.block_on(work)
}

fn write_metrics(asked: &Path, report: &Report) -> Result<(), Error> {
    let invalid = |what: String| Error::Invalid(format!("--metrics-file={}: {what}", asked.display()));
    let path = std::path::absolute(asked).map_err(|error| invalid(error.to_string()))?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(invalid("it names no file".to_owned()));
    };
    files::replace(folder, name, 0o644, report.metrics().as_bytes())
        .map_err(|error| invalid(error.to_string()))
}
