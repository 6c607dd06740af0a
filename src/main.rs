//! ceph-rbd-csi: a CSI driver for Ceph RBD, or for the disk of one node; one daemon for the controller and the node.
//!
//! - `config`: every flag, checked; `cluster`: config.json and secrets; `id`: volume ids; `keys`: passphrases and their stores; `error`: the one error; `metrics`: what is counted
//! - `commands`: what it does beside the driver: the audit, and the way back to ceph-csi
//! - `liveness`: asks a driver whether it is ready, in its stead
//! - `server`: the listener and the log line of each call (`authority`: TCP for clients of grpc-go); `csi`: the gRPC services, all validation in `csi::wire`
//! - `logs`: lines and how many; `request`: which call work is done for; `traces`: what a collector is sent of it
//! - `labels`: what the Node object says of where this node is; `kubernetes`: one question to its API
//! - `socket`: the Unix socket; `ops`: work that outlives its caller, under locks; `slow`: what takes long, and what it waits for
//! - `node`: stage, publish, expand, stats, health and the way back; `fs`: filesystems; `luks`: encrypted devices
//! - `backend`: the trait of a storage system; `backend::rbd`: images, through the `rbd` command; `backend::local`: files of this node
//! - `host`: the machine: programs, mounts, who holds a device, files that are whole at any instant
//!
//! This file puts them together and waits for the signal.

mod authority;
mod backend;
mod cluster;
mod commands;
mod config;
mod csi;
mod error;
mod fs;
mod host;
mod id;
mod keys;
mod kubernetes;
mod labels;
mod liveness;
mod logs;
mod luks;
mod metrics;
mod node;
mod ops;
mod request;
mod server;
mod slow;
mod socket;
mod traces;

use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::Routes;

use backend::Backend;
use backend::local::{Local, Names};
use backend::rbd::{Rbd, Topology};
use cluster::{Clusters, ReadAffinity};
use config::{AuditFlags, Config, Endpoint, Journal, Label, Poll};
use csi::addons_proto;
use csi::proto::controller_server::ControllerServer;
use csi::proto::identity_server::IdentityServer;
use csi::proto::node_server::NodeServer;
use csi::proto::snapshot_metadata_server::SnapshotMetadataServer;
use csi::{Addons, Controller, Identity, NodeService, SnapshotMetadata};
use error::chain;
use host::kernel::{Kernel, Module};
use host::linux::{self, Linux};
use host::{Host, cgroup};
use keys::KeyStores;
use labels::NodeLabels;
use logs::Loudness;
use metrics::METRICS;
use node::Node;
use ops::Ops;
use traces::Traces;

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    if let Some(asked) = Journal::from_args() {
        return commands::run(|| commands::journal(&asked));
    }
    if let Some(asked) = AuditFlags::from_args() {
        return commands::run(|| commands::audit(&asked));
    }
    let config = Config::from_args();
    let loudness = logs::start(&config.shown);
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    match start(&config, loudness) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: &Config, loudness: Loudness) -> Result<(), AnyError> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let inside = runtime.enter();
    let traces = config.shown.collector.as_deref().map(|collector| traces(config, collector)).transpose()?;
    let louder = loudness.by_signals()?;
    drop(inside);
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = run(config) => ended,
            () = louder => Ok(()),
        }
    });
    if let Some(traces) = traces {
        traces.end();
    }
    // A mount that hangs in the kernel does not hold the shutdown.
    runtime.shutdown_background();
    ended
}

fn traces(config: &Config, collector: &str) -> Result<Traces, AnyError> {
    let version = ("service.version", env!("CARGO_PKG_VERSION"));
    let names = [("csi.driver", config.driver_name.as_str()), ("k8s.node.name", config.node_id.as_str())];
    let names = names.into_iter().filter(|(_, name)| !name.is_empty());
    let whose: Vec<_> = names.chain([version]).collect();
    Traces::to(collector, &whose)
        .map_err(|error| format!("--otlp-endpoint={collector}: {}", chain(&error)).into())
}

async fn run(config: &Config) -> Result<(), AnyError> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    let Some(endpoint) = &config.endpoint else {
        tracing::warn!(
            "--type=controller without --endpoint is ceph-csi's omap generator, which this driver does not need: idle"
        );
        stop.await;
        return Ok(());
    };
    if let Some(poll) = config.shown.liveness {
        return tell_liveness(config, endpoint, poll, stop).await;
    }
    let missing = linux::missing(&programs(config));
    if !missing.is_empty() {
        return Err(format!("programs that the driver needs are not on PATH: {}", missing.join(", ")).into());
    }
    let ops = Ops::telling(config.slow);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        driver = config.driver_name,
        ?endpoint,
        config.controller,
        config.node,
        "serving"
    );
    look_at_this_node(config);
    let metrics = match &config.shown.metrics {
        Some((address, path)) => Some((metrics::listen(*address).await?, path.clone())),
        None => None,
    };
    let (routes, node) = services(config, &ops);
    if let Some((listener, path)) = metrics {
        let text = told(node.clone(), ops.clone());
        ops.background(async move { metrics::serve(listener, &path, text).await });
    }
    let mut listeners = vec![(endpoint, routes)];
    let addons = node.map(|node| addons(config, &ops, node));
    listeners.extend(config.addons.as_ref().zip(addons));
    server::serve(listeners, ops, config.grace, stop).await
}

/// The metrics, and before them what is not counted as it happens.
fn told(node: Option<Arc<Node>>, ops: Ops) -> impl Fn() -> String + Clone + Send + Sync + 'static {
    move || {
        let (running, oldest) = ops.oldest();
        METRICS.operations(running, oldest);
        if let Some(node) = &node {
            node.count();
        }
        METRICS.text()
    }
}

async fn tell_liveness(
    config: &Config,
    endpoint: &Endpoint,
    poll: Poll,
    stop: impl Future<Output = ()>,
) -> Result<(), AnyError> {
    let Some((address, path)) = &config.shown.metrics else { return Ok(()) };
    let listener = metrics::listen(*address).await?;
    tracing::info!(?endpoint, every = ?poll.every, within = ?poll.within, "asking whether the driver is ready");
    tokio::select! {
        () = liveness::watch(endpoint, poll, listener, path) => {}
        () = stop => {}
    }
    Ok(())
}

/// Those of CSI, and the node behind them, where there is one.
fn services(config: &Config, ops: &Ops) -> (Routes, Option<Arc<Node>>) {
    let host = Linux::new(config.max_rbd_processes, config.command_timeout);
    #[cfg(debug_assertions)]
    let host = host::killing::Killing::around(host, config.kill_file.clone());
    let host: Arc<dyn Host> = Arc::new(host);
    let backend = backend(config, &host, ops);
    let identity = Identity {
        driver_name: config.driver_name.clone(),
        controller: config.controller,
        offers: backend.offers().to_vec(),
        ops: ops.clone(),
    };
    let mut routes = Routes::new(IdentityServer::new(identity));
    if config.controller {
        let only_node = config.serves_both().then(|| config.node_id.clone());
        routes = routes.add_service(ControllerServer::new(Controller {
            backend: backend.clone(),
            ops: ops.clone(),
            only_node,
        }));
        let metadata = SnapshotMetadata { backend: backend.clone() };
        routes = routes.add_service(SnapshotMetadataServer::new(metadata));
    }
    let node = config
        .node
        .then(|| Arc::new(Node::new(host, backend, config.node_id.clone(), config.max_volumes_per_node)));
    if let Some(node) = node.clone() {
        if config.local.is_none() {
            ops.background(node.clone().keep_served(ops.clone()));
        }
        routes = routes.add_service(NodeServer::new(NodeService { node, ops: ops.clone() }));
    }
    (routes, node)
}

/// Those of CSI-Addons, which have an endpoint of their own, on nodes.
fn addons(config: &Config, ops: &Ops, node: Arc<Node>) -> Routes {
    let addons = Addons { driver_name: config.driver_name.clone(), node, ops: ops.clone() };
    Routes::new(addons_proto::identity::identity_server::IdentityServer::new(addons.clone())).add_service(
        addons_proto::encryptionkeyrotation::encryption_key_rotation_controller_server::EncryptionKeyRotationControllerServer::new(addons),
    )
}

fn backend(config: &Config, host: &Arc<dyn Host>, ops: &Ops) -> Arc<dyn Backend> {
    let Some(root) = &config.local else {
        let rbd = Rbd::new(
            host.clone(),
            Clusters::new(config.clusters.clone()),
            KeyStores::new(config.key_stores.clone(), config.kubernetes.clone()),
            config.instance_id.clone(),
            config.cluster_name.clone(),
            config.command_timeout,
            ops.clone(),
        );
        let affinity = ReadAffinity {
            enabled: config.read_affinity,
            labels: config.crush_labels.iter().map(|label| label.key.clone()).collect(),
        };
        let rbd = rbd.with_limits(config.limits).with_read_affinity(affinity, crush_labels(config, ops));
        let rbd =
            if config.fencing { rbd.with_fencing(config.node.then(|| config.node_id.clone())) } else { rbd };
        let rbd = match topology(config, ops) {
            Some(topology) => rbd.with_topology(topology),
            None => rbd,
        };
        if config.controller {
            rbd.take_up_trash();
        }
        return Arc::new(rbd);
    };
    let names = Names {
        driver: config.driver_name.clone(),
        instance: config.instance_id.clone(),
        node: config.node_id.clone(),
    };
    let local = Arc::new(Local::new(host.clone(), ops.clone(), root, names, config.max_volumes_per_node));
    let recovered = local.clone();
    ops.background(async move { recovered.recover().await });
    local
}

/// The labels that say where this node is in the CRUSH map, where any cluster is read from what is near.
fn crush_labels(config: &Config, ops: &Ops) -> Option<NodeLabels> {
    let mut wanted = config.crush_labels.clone();
    let named = Clusters::new(config.clusters.clone()).crush_labels();
    if !config.node || !(config.read_affinity || named.is_some()) {
        return None;
    }
    for key in named.unwrap_or_default() {
        if wanted.iter().all(|label| label.key != key) {
            wanted.push(Label { key, value: None });
        }
    }
    let (values, reading) = NodeLabels::read(wanted, config.node_id.clone(), config.kubernetes.clone());
    ops.background(reading);
    Some(values)
}

/// Where nodes are. The controller needs the names of the labels alone, and so no Kubernetes.
fn topology(config: &Config, ops: &Ops) -> Option<Topology> {
    let labels = &config.domain_labels;
    if labels.is_empty() {
        return None;
    }
    let node = config.node.then(|| {
        let node = config.node_id.clone();
        let (values, reading) = NodeLabels::read(labels.clone(), node, config.kubernetes.clone());
        ops.background(reading);
        values
    });
    Some(Topology::new(&config.driver_name, labels, node))
}

/// What the node service needs of its machine, and what is wrong there that shows only later. None of it stops the driver:
/// what is staged works on, and may be all that this node ever needs.
fn look_at_this_node(config: &Config) {
    if config.pid_limit != 0 {
        limit_processes(config);
    }
    // A controller's socket is in a volume of its pod: everybody may write there, and nobody else sees it.
    for endpoint in [&config.endpoint, &config.addons].into_iter().flatten().filter(|_| config.node) {
        if let Endpoint::Unix(path) = endpoint
            && let Some(danger) = socket::danger(path)
        {
            tracing::warn!("{danger}");
        }
    }
    if !config.node || config.local.is_some() {
        return;
    }
    let kernel = Kernel::of_this_node();
    if let Some(obstacle) = kernel.obstacle(Module::Rbd) {
        tracing::warn!("volumes cannot be mapped by krbd: {obstacle}");
    }
    let clusters = Clusters::new(config.clusters.clone());
    if kernel.is_first_network() == Some(false) && !clusters.all_name_a_network() {
        tracing::warn!(
            "this driver is not in the network of the machine: when the pod ends whose network it is, whatever krbd has mapped \
             from here hangs until the machine is started anew: set hostNetwork: true, or rbd.netNamespaceFilePath for \
             each cluster"
        );
    }
}

fn limit_processes(config: &Config) {
    let limit = config.pid_limit;
    if !config.node {
        tracing::warn!(
            "--pidlimit={limit} is for the node service alone: --max-rbd-processes bounds what runs here"
        );
        return;
    }
    match cgroup::limit_processes(limit) {
        Ok(was) => {
            tracing::info!(
                was,
                "--pidlimit={limit}: the driver's control group may hold as many processes now"
            );
        }
        Err(error) => tracing::warn!("--pidlimit={limit}: the limit of processes stays as it is: {error}"),
    }
}

/// What has to be there before anything is promised.
fn programs(config: &Config) -> Vec<&'static str> {
    let mut programs = match config.local {
        None => vec!["setpriv", "rbd", "rados"],
        Some(_) => vec!["setpriv", "losetup", "cp", "rm", "fsfreeze", "chattr", "lsattr", "xfs_quota"],
    };
    let asks_monitors = config.fencing || Clusters::new(config.clusters.clone()).any_listed();
    if config.controller && config.local.is_none() && asks_monitors {
        programs.push("ceph");
    }
    if config.node {
        programs.extend(["blkid", "mkfs.ext4", "mkfs.xfs", "fsck.ext4", "resize2fs", "xfs_growfs"]);
    }
    programs
}
