//! The listener, the services, one layer around each call (a log line, no panic gets through), and the shutdown.

use std::convert::Infallible;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join, try_join_all};
use futures_util::{FutureExt as _, TryStreamExt as _};
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::authority::Tcp;
use crate::config::Endpoint;
use crate::metrics::METRICS;
use crate::ops::Ops;
use crate::traces::Span as Trace;
use crate::{request, slow, socket};

type AnyError = Box<dyn std::error::Error>;

/// Serves at each endpoint what belongs there until `stop`, then lets the operations in flight end, at most for `grace`.
pub(crate) async fn serve(
    listeners: Vec<(&Endpoint, Routes)>,
    ops: Ops,
    grace: Duration,
    stop: impl Future<Output = ()>,
) -> Result<(), AnyError> {
    let stopping = CancellationToken::new();
    let stopped = async {
        stop.await;
        tracing::info!(?grace, "stopping: no new calls, those in flight may end");
        ops.stop();
        stopping.cancel();
        Ok(())
    };
    // A client that keeps its connection open does not hold the shutdown.
    let overdue = async {
        stopping.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    let served = async {
        let slow = ops.slow();
        let all = listeners.into_iter().map(|(at, routes)| listen(at, routes, slow, stopping.cancelled()));
        try_join(try_join_all(all), stopped).await?;
        ops.drained().await;
        Ok(())
    };
    tokio::select! {
        result = served => result,
        () = overdue => {
            tracing::warn!("what still runs after the grace period is cut: the next retry takes up what it left");
            Ok(())
        }
    }
}

async fn listen(
    endpoint: &Endpoint,
    routes: Routes,
    slow: Duration,
    stopped: impl Future<Output = ()>,
) -> Result<(), AnyError> {
    let server = Server::builder().layer(LogLayer { slow }).add_routes(routes);
    match endpoint {
        Endpoint::Unix(path) => {
            let listener = UnixListenerStream::new(socket::listen(path)?);
            server.serve_with_incoming_shutdown(listener, stopped).await?;
            fs::remove_file(path)?;
        }
        Endpoint::Tcp(address) => {
            let listener = TcpListenerStream::new(TcpListener::bind(address).await?).map_ok(Tcp::new);
            server.serve_with_incoming_shutdown(listener, stopped).await?;
        }
    }
    Ok(())
}

/// One line for each call: what was asked, of which volume, how it ended and how long it took.
#[derive(Clone)]
struct LogLayer {
    /// From what age on a call that runs is told, and how often: see `slow`.
    slow: Duration,
}

impl<S> Layer<S> for LogLayer {
    type Service = LogCalls<S>;

    fn layer(&self, inner: S) -> LogCalls<S> {
        LogCalls { inner, slow: self.slow }
    }
}

#[derive(Clone)]
struct LogCalls<S> {
    inner: S,
    slow: Duration,
}

impl<S> Service<Request<Body>> for LogCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path().trim_start_matches('/');
        let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
        let work = request::Request::new(trace_of(service, method));
        let span = tracing::info_span!("call", request = %work.id, method, volume = Empty);
        let (left, asked) = (Left::new(method, span.clone(), work.span.clone()), method.to_owned());
        let call = slow::watched(self.slow, self.inner.call(request), move |age, what| {
            tracing::warn!("slow: {asked} has not been answered for {age}: it waits for {what}");
        });
        Box::pin(work.carries(logged(call, left)).instrument(span))
    }
}

/// What a CO asks every few seconds is no news in a trace.
fn trace_of(service: &str, method: &str) -> Trace {
    if is_small_talk(method) {
        return Trace::default();
    }
    let trace = Trace::root(&format!("{service}/{method}"));
    trace.set("rpc.system", "grpc");
    trace.set("rpc.service", service.to_owned());
    trace.set("rpc.method", method.to_owned());
    trace
}

async fn logged(
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
    mut left: Left,
) -> Result<Response<Body>, Infallible> {
    let response = match AssertUnwindSafe(call).catch_unwind().await {
        Ok(response) => response?,
        Err(_) => Status::internal(format!("{} panicked, a bug in the driver", left.method)).into_http(),
    };
    left.answered = true;
    let status = Status::from_header_map(response.headers()).unwrap_or_else(|| Status::ok(""));
    let took = left.since.elapsed();
    log(&left.method, &status, took);
    // Anybody may name a method that there is not.
    let method = if status.code() == Code::Unimplemented { "other" } else { left.method.as_str() };
    METRICS.called(method, &told(status.code()), took);
    end(&left.trace, status.code(), status.message());
    Ok(response)
}

fn end(trace: &Trace, code: Code, message: &str) {
    trace.set("rpc.grpc.status_code", code as i64);
    trace.end((code != Code::Ok).then(|| format!("{}: {message}", told(code))));
}

/// As Go's gRPC spells it, and so the metrics of the sidecars and of other drivers.
fn told(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

fn log(method: &str, status: &Status, took: Duration) {
    let (code, ms) = (format!("{:?}", status.code()), took.as_millis());
    let routine = is_small_talk(method) || is_routine(method);
    match status.code() {
        Code::Ok if routine => tracing::debug!(code, ms, "done"),
        Code::Ok => tracing::info!(code, ms, "done"),
        Code::Internal | Code::Unknown | Code::DataLoss => tracing::error!(code, ms, "{}", status.message()),
        _ => tracing::warn!(code, ms, "{}", status.message()),
    }
}

/// Asked again and again, about the driver and no volume.
fn is_small_talk(method: &str) -> bool {
    matches!(
        method,
        "Probe"
            | "GetPluginInfo"
            | "GetPluginCapabilities"
            | "NodeGetCapabilities"
            | "ControllerGetCapabilities"
    )
}

fn is_routine(method: &str) -> bool {
    matches!(
        method,
        "NodeGetVolumeStats"
            | "NodeGetVolumeHealth"
            | "NodeGetStorageHealth"
            | "ControllerGetVolume"
            | "ControllerGetVolumeHealth"
            | "ControllerListVolumeHealth"
            | "ListVolumes"
            | "ListSnapshots"
            | "GetCapacity"
    )
}

/// Tells that the client left before the answer, when that is so and the call is dropped.
struct Left {
    method: String,
    since: Instant,
    span: Span,
    trace: Trace,
    answered: bool,
}

impl Left {
    fn new(method: &str, span: Span, trace: Trace) -> Self {
        Self { method: method.to_owned(), since: Instant::now(), span, trace, answered: false }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if !self.answered {
            let _entered = self.span.enter();
            let took = self.since.elapsed();
            tracing::warn!(ms = took.as_millis(), "the caller left before the answer; what runs goes on");
            METRICS.called(&self.method, &told(Code::Cancelled), took);
            end(&self.trace, Code::Cancelled, "the caller left");
        }
    }
}
