//! Every flag and variable of the driver in one place, spelt as ceph-csi spells them. Nothing else reads either.

mod audit;
mod ceph_csi;
mod endpoint;
mod journal;
mod labels;
mod limits;
mod observing;
mod place;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory as _, Parser, ValueEnum};

pub(crate) use audit::AuditFlags;
pub(crate) use endpoint::Endpoint;
pub(crate) use journal::Journal;
pub(crate) use labels::{Kubernetes, Label};
pub(crate) use limits::Limits;
use observing::Observing;
pub(crate) use observing::{LogFormat, Poll, Shown};
pub(crate) use place::Place;

/// What the program serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Type {
    /// The controller and the node service, narrowed by --controllerserver or --nodeserver
    Rbd,
    /// The controller service alone (with no --endpoint: ceph-csi's omap generator container, which idles)
    Controller,
    /// The node service alone
    Node,
    /// Both services on folders and loop devices of this node, without a cluster
    Local,
    /// No service: asks the driver at --endpoint whether it is ready, and tells that as the metric csi_liveness
    Liveness,
}

/// CSI driver for Ceph RBD.
#[derive(Debug, Clone, Parser)]
#[command(name = "ceph-rbd-csi", version, disable_version_flag = true)]
#[command(next_line_help = false, term_width = 110)]
#[command(
    after_help = "Commands of their own: ceph-rbd-csi audit --help (what has no counterpart), ceph-rbd-csi journal --help (the way back to ceph-csi)"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a manifest sets by its own name")]
pub(crate) struct Flags {
    /// What to serve
    #[arg(long = "type", value_enum)]
    kind: Type,
    /// CSI socket: unix:///path, unix:/path, a bare path, or tcp://host:port [default: unix:///tmp/csi.sock]
    #[arg(long, env = "CSI_ENDPOINT")]
    endpoint: Option<String>,
    /// Where the services of CSI-Addons listen, with the same spellings: EncryptionKeyRotate, on nodes [default: nowhere]
    #[arg(long, env = "CSI_ADDONS_ENDPOINT")]
    csi_addons_endpoint: Option<String>,
    /// Name of the driver [default: rbd.csi.ceph.com; with --type=local: local.csi.ceph.com]
    #[arg(long, default_value = "", hide_default_value = true)]
    drivername: String,
    /// Name of this node, unique in the cluster; the node service needs it
    #[arg(long, env = "NODE_ID", default_value = "", hide_default_value = true)]
    nodeid: String,
    /// With --type=rbd: serve the controller service
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    controllerserver: bool,
    /// With --type=rbd: serve the node service
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    nodeserver: bool,
    /// Cluster configuration: clusterID to monitors, in ceph-csi's format
    #[arg(long, default_value = "/etc/ceph-csi-config/config.json")]
    config: PathBuf,
    /// Key stores of encrypted volumes: id to kind, in ceph-csi's format
    #[arg(long, default_value = "/etc/ceph-csi-encryption-kms-config/config.json")]
    kms_config: PathBuf,
    /// Tells several drivers on one Ceph cluster apart; part of every derived image name
    #[arg(long, default_value = "default")]
    instanceid: String,
    /// Name of the container cluster, written to the metadata of each image
    #[arg(long, default_value = "", hide_default_value = true)]
    clustername: String,
    /// How many rbd processes run at once (each takes some 35 MB); the rest queue
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    max_rbd_processes: u16,
    /// Deadline of one command; work that grows with the data (removals, checks, copies) has one of its own
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    command_timeout: Duration,
    /// What runs for longer is logged, with its age and what it waits for, and again after as long; 0: never
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    logslowopinterval: Duration,
    /// How long SIGTERM waits for the operations in flight
    #[arg(long, default_value = "25s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// How many volumes this node takes at most; 0: as many as the container orchestrator likes
    #[arg(long, default_value_t = 0)]
    max_volumes_per_node: u32,
    /// How many processes and threads the control group of the node service may hold; -1: any, 0: as it is
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=4_194_304))]
    pidlimit: i32,
    /// Labels of the Node object that say where this node is, [prefix/]name[=value]; one with a value is not read there
    #[arg(long, default_value = "", hide_default_value = true)]
    domainlabels: String,
    /// The Kubernetes API, where labels and Secrets of key stores are read
    #[arg(long, env, default_value = "", hide_default_value = true)]
    kubernetes_service_host: String,
    /// Its port
    #[arg(long, env, default_value_t = 443)]
    kubernetes_service_port: u16,
    /// Folder with the service account's token and ca.crt
    #[arg(long, default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    service_account: PathBuf,
    #[command(flatten)]
    limits: Limits,
    /// Nodes read from replicas that are near, as far as their labels and config.json tell what is
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    enable_read_affinity: bool,
    /// Labels of the Node object that say where this node is in the CRUSH map, as --domainlabels has them
    #[arg(long, default_value = "", hide_default_value = true)]
    crush_location_labels: String,
    /// The controller blocklists the client of a node that still holds a volume when it is taken from that node
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    enable_fencing: bool,
    /// With --type=local: the folder that holds the volumes, on a filesystem with room for them
    #[arg(long, default_value = "/var/lib/ceph-rbd-csi")]
    local_root: PathBuf,
    /// With --type=local: how many times the real room may be promised to volumes (1: what is promised is there)
    #[arg(long, default_value_t = 1.0)]
    local_overcommit: f64,
    #[command(flatten)]
    observing: Observing,
    /// For tests: see `host::killing`
    #[cfg(debug_assertions)]
    #[arg(long, env = "KILL_FILE", hide = true)]
    kill_file: Option<PathBuf>,
    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// The flags, checked: what every other module may rely on.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a manifest sets by its own name")]
pub(crate) struct Config {
    /// None: the omap generator container of ceph-csi, which idles.
    pub(crate) endpoint: Option<Endpoint>,
    /// None: CSI-Addons is not served.
    pub(crate) addons: Option<Endpoint>,
    pub(crate) controller: bool,
    pub(crate) node: bool,
    pub(crate) driver_name: String,
    pub(crate) node_id: String,
    pub(crate) clusters: PathBuf,
    pub(crate) key_stores: PathBuf,
    pub(crate) instance_id: String,
    pub(crate) cluster_name: String,
    pub(crate) max_rbd_processes: usize,
    pub(crate) command_timeout: Duration,
    pub(crate) grace: Duration,
    /// From what age on something is slow, and how often that is told; zero: never.
    pub(crate) slow: Duration,
    /// 0: no limit.
    pub(crate) max_volumes_per_node: u32,
    /// -1: no limit; 0: as it is.
    pub(crate) pid_limit: i32,
    /// Where nodes are is told by these labels; none: volumes are reached from everywhere.
    pub(crate) domain_labels: Vec<Label>,
    pub(crate) kubernetes: Kubernetes,
    pub(crate) limits: Limits,
    /// Whether nodes read from replicas that are near, where config.json does not say for a cluster.
    pub(crate) read_affinity: bool,
    /// What says what is near.
    pub(crate) crush_labels: Vec<Label>,
    /// Whether clients of lost nodes are shut out of the cluster.
    pub(crate) fencing: bool,
    /// Some: the embedded backend.
    pub(crate) local: Option<LocalRoot>,
    pub(crate) shown: Shown,
    #[cfg(debug_assertions)]
    pub(crate) kill_file: Option<PathBuf>,
    /// One line for each flag that is accepted and does nothing.
    pub(crate) warnings: Vec<String>,
}

/// The folder of the embedded backend, and how many times its room may be promised.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LocalRoot {
    pub(crate) path: PathBuf,
    pub(crate) overcommit: f64,
}

impl Config {
    /// Reads the command line; a mistake ends the program with clap's message and code 2.
    pub(crate) fn from_args() -> Self {
        Self::parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn parse(args: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let invalid = |message| Flags::command().error(ErrorKind::ValueValidation, message);
        let (args, warnings) = ceph_csi::without_ignored(args.map(ceph_csi::go_spelling));
        Flags::try_parse_from(args)?.validate(warnings).map_err(invalid)
    }

    pub(crate) fn serves_both(&self) -> bool {
        self.controller && self.node
    }
}

impl Flags {
    fn validate(self, mut warnings: Vec<String>) -> Result<Config, String> {
        let (controller, node) = self.services()?;
        let endpoint = self.endpoint.as_deref().filter(|text| !text.is_empty());
        let idle = self.kind == Type::Controller && endpoint.is_none();
        let endpoint =
            if idle { None } else { Some(Endpoint::parse(endpoint.unwrap_or("unix:///tmp/csi.sock"))?) };
        let addons = self.csi_addons_endpoint.as_deref().filter(|text| !text.is_empty());
        let addons = addons.map(Endpoint::parse).transpose()?;
        if addons.is_some() && !node {
            warnings
                .push("--csi-addons-endpoint: nothing of CSI-Addons is served by a controller".to_owned());
        }
        if node && !idle && (self.nodeid.is_empty() || self.nodeid.len() > 192) {
            return Err(format!(
                "--nodeid={:?}: the node service needs a node name of 1 to 192 bytes",
                self.nodeid
            ));
        }
        if self.nodeid.contains('/') {
            return Err(format!("--nodeid={:?}: a node name holds no '/'", self.nodeid));
        }
        if self.command_timeout < Duration::from_secs(4) {
            return Err("--command-timeout: give a command at least 4s".to_owned());
        }
        self.limits.validate()?;
        let (local, shown) = (self.local()?, self.observing.validate(self.kind == Type::Liveness)?);
        let driver_name = driver_name(&self.drivername, self.kind)?;
        let domain_labels = self.domain_labels(&driver_name, node)?;
        let kubernetes = self.kubernetes();
        let crush_labels = self.crush_labels(node)?;
        Ok(Config {
            endpoint,
            addons,
            controller,
            node,
            driver_name,
            node_id: self.nodeid,
            clusters: self.config,
            key_stores: self.kms_config,
            instance_id: self.instanceid,
            cluster_name: self.clustername,
            max_rbd_processes: self.max_rbd_processes.into(),
            command_timeout: self.command_timeout,
            grace: self.grace,
            slow: self.logslowopinterval,
            max_volumes_per_node: self.max_volumes_per_node,
            pid_limit: self.pidlimit,
            domain_labels,
            kubernetes,
            limits: self.limits,
            read_affinity: self.enable_read_affinity,
            crush_labels,
            fencing: self.enable_fencing,
            local,
            shown,
            #[cfg(debug_assertions)]
            kill_file: self.kill_file,
            warnings,
        })
    }

    fn local(&self) -> Result<Option<LocalRoot>, String> {
        if self.kind != Type::Local {
            return Ok(None);
        }
        if self.enable_fencing {
            return Err("--enable-fencing: --type=local has no clients to shut out: leave it out".to_owned());
        }
        if !self.local_root.is_absolute() {
            return Err(format!("--local-root={}: give an absolute path", self.local_root.display()));
        }
        if !(1.0..=1000.0).contains(&self.local_overcommit) {
            return Err(format!(
                "--local-overcommit={}: give a number from 1 to 1000",
                self.local_overcommit
            ));
        }
        Ok(Some(LocalRoot { path: self.local_root.clone(), overcommit: self.local_overcommit }))
    }

    /// Which services to serve; none asked for means both.
    fn services(&self) -> Result<(bool, bool), String> {
        let (controller, node) = match self.kind {
            Type::Rbd => (self.controllerserver, self.nodeserver),
            Type::Controller if self.nodeserver => {
                return Err("--type=controller excludes --nodeserver".to_owned());
            }
            Type::Node if self.controllerserver => {
                return Err("--type=node excludes --controllerserver".to_owned());
            }
            // Its locks are in one process.
            Type::Local if self.controllerserver != self.nodeserver => {
                return Err("--type=local serves controller and node in one process: leave --controllerserver and --nodeserver out".to_owned());
            }
            Type::Liveness => return Ok((false, false)),
            Type::Local => (true, true),
            Type::Controller => (true, false),
            Type::Node => (false, true),
        };
        Ok(if controller || node { (controller, node) } else { (true, true) })
    }
}

/// GetPluginInfo's rule: at most 63 characters, letters and digits at the ends, dashes and dots between.
fn driver_name(text: &str, kind: Type) -> Result<String, String> {
    let name = match text {
        "" if kind == Type::Local => "local.csi.ceph.com",
        "" => "rbd.csi.ceph.com",
        given => given,
    };
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let ends = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() > 63 || !ends || !name.bytes().all(inner) {
        return Err(format!(
            "--drivername={name}: at most 63 letters, digits, '-' and '.', a letter or digit at each end"
        ));
    }
    Ok(name.to_owned())
}
