//! What is counted and measured, in Prometheus' words, and GET of it. One registry for the process: a counter is no
//! state that anything depends on.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

/// Seconds, from a look into memory to a flatten of hours.
const BUCKETS: [f64; 14] =
    [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 120.0, 600.0, 3600.0];

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

pub(crate) struct Metrics {
    registry: Registry,
    calls: Family<Call, Histogram>,
    commands: Family<Run, Histogram>,
    /// Operations that run, whether or not anybody waits for them.
    pub(crate) in_flight: Gauge,
    /// Seconds.
    pub(crate) oldest: Gauge<f64, AtomicU64>,
    /// Images that wait to be flattened, or are.
    pub(crate) flattening: Gauge,
    /// Percent.
    pub(crate) flattened: Gauge,
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
            trash: Family::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("ceph_rbd_csi_build", "What this is", Info::new(version));
        let (calls, commands) = (self.calls.clone(), self.commands.clone());
        registry.register_with_unit(
            "csi_plugin_operations",
            "Calls, by how they ended",
            Unit::Seconds,
            calls,
        );
        let help = "Programs that were run, by how they ended";
        registry.register_with_unit("ceph_rbd_csi_commands", help, Unit::Seconds, commands);
        let help = "Operations that run, whether or not their caller has left";
        registry.register("ceph_rbd_csi_operations_in_flight", help, self.in_flight.clone());
        let help = "For how long the oldest of them has been running";
        registry.register_with_unit(
            "ceph_rbd_csi_oldest_operation_age",
            help,
            Unit::Seconds,
            self.oldest.clone(),
        );
        let help = "Images that are being flattened or wait for it";
        registry.register("ceph_rbd_csi_flatten_queue", help, self.flattening.clone());
        let help = "How far the last flatten that told has come";
        registry.register("ceph_rbd_csi_flatten_percent", help, self.flattened.clone());
        let help = "Images that wait to be removed from the trash";
        registry.register("ceph_rbd_csi_trash_queue", help, self.trash.clone());
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
        let waiting = i64::try_from(waiting).unwrap_or(i64::MAX);
        self.trash.get_or_create(&Place { cluster, pool, namespace }).set(waiting);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!("the metrics cannot be written: {error}");
        }
        text
    }
}

pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let failed = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("listening on {address} for metrics: {error}"))
    };
    TcpListener::bind(address).await.map_err(failed)
}

/// Answers GET of `path` until the process ends. `look`: brings up to date what is not counted as it happens.
pub(crate) async fn serve(
    listener: TcpListener,
    path: &str,
    look: impl Fn() + Clone + Send + Sync + 'static,
) {
    let answer = move || async move {
        look();
        ([(CONTENT_TYPE, OPEN_METRICS)], METRICS.text()).into_response()
    };
    if let Err(error) = axum::serve(listener, Router::new().route(path, get(answer))).await {
        tracing::error!("metrics are told no more: {error}");
    }
}
