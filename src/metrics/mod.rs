//! What is counted and measured, in Prometheus' words. One registry for the process: a counter is no state that anything
//! depends on.

mod http;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use http::{listen, serve};

/// Seconds, from a look into memory to a flatten of hours.
const BUCKETS: [f64; 14] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 120.0, 600.0, 3600.0];

pub(crate) static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// One label: its name and its value.
type Label = [(&'static str, &'static str); 1];

/// How many have an ailment, by its reason.
pub(crate) type Ailing = BTreeMap<&'static str, usize>;

pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<Call, Histogram>,
    commands: Family<Run, Histogram>,
    in_flight: Gauge,
    /// Seconds.
    oldest: Gauge<f64, AtomicU64>,
    /// Images that wait to be flattened, or are.
    pub(crate) flattening: Gauge,
    /// From 0 to 1.
    pub(crate) flattened: Gauge<f64, AtomicU64>,
    /// Programs that run, that wait for a slot, and the slots that there are.
    running: Family<Label, Gauge>,
    waiting: Family<Label, Gauge>,
    slots: Family<Label, Gauge>,
    /// Volumes that are staged on this node.
    staged: Gauge,
    /// How many of them are unwell.
    unhealthy: Family<Label, Gauge>,
    /// What is wrong with the storage of them all.
    storage: Family<Label, Gauge>,
    /// Images that wait to be removed from the trash, in one pool.
    trash: Family<Place, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: String,
    grpc_status_code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Run {
    program: &'static str,
    verb: String,
    /// "0", another exit status, "signal", "deadline" or "start".
    exit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Place {
    cluster: String,
    pool: String,
    namespace: String,
}

impl Metrics {
    fn new() -> Self {
        let histogram = || Histogram::new(BUCKETS);
        let mut metrics = Self {
            registry: Registry::default(),
            calls: Family::new_with_constructor(histogram),
            commands: Family::new_with_constructor(histogram),
            in_flight: Gauge::default(),
            oldest: Gauge::default(),
            flattening: Gauge::default(),
            flattened: Gauge::default(),
            running: Family::default(),
            waiting: Family::default(),
            slots: Family::default(),
            staged: Gauge::default(),
            unhealthy: Family::default(),
            storage: Family::default(),
            trash: Family::default(),
        };
        metrics.register();
        metrics
    }

    /// Gauges and histograms alone: see `http::plain`.
    fn register(&mut self) {
        let registry = &mut self.registry;
        let build = Family::<Label, Gauge>::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("ceph_rbd_csi_build_info", "What this is", build);
        let help = "Operations that run, whether or not their caller has left";
        registry.register("ceph_rbd_csi_operations_in_flight", help, self.in_flight.clone());
        let help = "Images that are being flattened or wait for it";
        registry.register("ceph_rbd_csi_flatten_queue", help, self.flattening.clone());
        let help = "How far the last flatten that told has come, from 0 to 1";
        registry.register("ceph_rbd_csi_flatten_ratio", help, self.flattened.clone());
        let help = "Images that wait to be removed from the trash";
        registry.register("ceph_rbd_csi_trash_queue", help, self.trash.clone());
        let help = "Programs that run in the slots of a queue";
        registry.register("ceph_rbd_csi_processes_running", help, self.running.clone());
        let help = "Programs that wait for a slot of a queue";
        registry.register("ceph_rbd_csi_processes_waiting", help, self.waiting.clone());
        let help = "How many programs may run at once in a queue";
        registry.register("ceph_rbd_csi_process_slots", help, self.slots.clone());
        let help = "Volumes that are staged on this node";
        registry.register("ceph_rbd_csi_volumes_staged", help, self.staged.clone());
        let help = "Volumes staged on this node with something wrong, by what that is";
        registry.register("ceph_rbd_csi_volumes_unhealthy", help, self.unhealthy.clone());
        let help = "What is wrong with the storage of all volumes of this node";
        registry.register("ceph_rbd_csi_storage_unhealthy", help, self.storage.clone());
        self.register_seconds();
    }

    fn register_seconds(&mut self) {
        let registry = &mut self.registry;
        let help = "Calls, by how they ended";
        registry.register_with_unit("csi_plugin_operations", help, Unit::Seconds, self.calls.clone());
        let help = "Programs that were run, by how they ended";
        registry.register_with_unit("ceph_rbd_csi_commands", help, Unit::Seconds, self.commands.clone());
        let (name, help) =
            ("ceph_rbd_csi_oldest_operation_age", "For how long the oldest of them has been running");
        registry.register_with_unit(name, help, Unit::Seconds, self.oldest.clone());
    }

    /// A call that was answered.
    pub(crate) fn called(&self, method: &str, code: &str, took: Duration) {
        let call = Call { method: method.to_owned(), grpc_status_code: code.to_owned() };
        self.calls.get_or_create(&call).observe(took.as_secs_f64());
    }

    /// A program that has ended.
    pub(crate) fn ran(&self, program: &'static str, verb: &str, exit: String, took: Duration) {
        let command = Run { program, verb: verb.to_owned(), exit };
        self.commands.get_or_create(&command).observe(took.as_secs_f64());
    }

    /// How many images wait in the trash of a pool.
    pub(crate) fn in_trash(&self, cluster: &str, pool: &str, namespace: &str, waiting: usize) {
        let [cluster, pool, namespace] = [cluster, pool, namespace].map(str::to_owned);
        self.trash.get_or_create(&Place { cluster, pool, namespace }).set(count(waiting));
    }

    /// So many programs may run at once in a queue.
    pub(crate) fn has_slots(&self, queue: &'static str, slots: usize) {
        self.slots.get_or_create(&[("queue", queue)]).set(count(slots));
    }

    /// A program waits for a slot, as long as what is returned lives.
    pub(crate) fn waits(&self, queue: &'static str) -> Counted {
        Counted::of(&self.waiting, queue)
    }

    /// A program holds a slot, as long as what is returned lives.
    pub(crate) fn runs(&self, queue: &'static str) -> Counted {
        Counted::of(&self.running, queue)
    }

    /// How many operations run, and for how long the oldest has.
    pub(crate) fn operations(&self, running: usize, oldest: Duration) {
        self.in_flight.set(count(running));
        self.oldest.set(oldest.as_secs_f64());
    }

    /// What is staged on this node, and how many volumes and storages have which ailment.
    pub(crate) fn staged(&self, volumes: usize, unhealthy: &Ailing, storage: &Ailing) {
        self.staged.set(count(volumes));
        for (family, ailing) in [(&self.unhealthy, unhealthy), (&self.storage, storage)] {
            family.clear();
            for (reason, volumes) in ailing {
                family.get_or_create(&[("reason", *reason)]).set(count(*volumes));
            }
        }
    }

    /// In OpenMetrics' format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!("the metrics cannot be written: {error}");
        }
        text
    }
}

/// Counts one as long as it lives, also where its work is cut off.
pub(crate) struct Counted(Gauge);

impl Counted {
    fn of(family: &Family<Label, Gauge>, queue: &'static str) -> Self {
        let gauge = family.get_or_create_owned(&[("queue", queue)]);
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn count(things: usize) -> i64 {
    i64::try_from(things).unwrap_or(i64::MAX)
}
