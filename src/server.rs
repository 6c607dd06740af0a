//! The listener, the services, one layer around each call (a log line, no panic gets through), and the shutdown.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join, try_join_all};
use futures_util::{FutureExt as _, TryStreamExt as _};
use http::{Request, Response};
use tokio::net::{TcpListener, UnixListener};
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
        let all = listeners.into_iter().map(|(at, routes)| listen(at, routes, stopping.cancelled()));
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
    stopped: impl Future<Output = ()>,
) -> Result<(), AnyError> {
    let server = Server::builder().layer(LogLayer).add_routes(routes);
    match endpoint {
        Endpoint::Unix(path) => {
            let listener = UnixListenerStream::new(listen_unix(path)?);
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

/// Replaces a socket that an earlier run left; never anything else.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let context =
        |error: io::Error| io::Error::new(error.kind(), format!("listening on {}: {error}", path.display()));
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(context(io::Error::other("there is a file that is no socket")));
        }
        fs::remove_file(path).map_err(context)?;
    }
    let listener = UnixListener::bind(path).map_err(context)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(context)?;
    Ok(listener)
}

/// One line for each call: what was asked, of which volume, how it ended and how long it took.
#[derive(Clone)]
struct LogLayer;

impl<S> Layer<S> for LogLayer {
    type Service = LogCalls<S>;

    fn layer(&self, inner: S) -> LogCalls<S> {
        LogCalls { inner }
    }
}

#[derive(Clone)]
struct LogCalls<S> {
    inner: S,
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
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let span = tracing::info_span!("call", method, volume = Empty);
        let call = self.inner.call(request);
        Box::pin(logged(call, method, span.clone()).instrument(span))
    }
}

async fn logged(
    call: impl Future<Output = Result<Response<Body>, Infallible>>,
    method: String,
    span: Span,
) -> Result<Response<Body>, Infallible> {
    // Written when the client leaves before the answer and this future is dropped.
    let mut left = Left { method, since: Instant::now(), span, answered: false };
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
    METRICS.called(method, &format!("{:?}", status.code()), took);
    Ok(response)
}

fn log(method: &str, status: &Status, took: Duration) {
    let (code, ms) = (format!("{:?}", status.code()), took.as_millis());
    let routine = matches!(
        method,
        "Probe"
            | "GetPluginInfo"
            | "GetPluginCapabilities"
            | "NodeGetCapabilities"
            | "ControllerGetCapabilities"
            | "NodeGetVolumeStats"
            | "NodeGetVolumeHealth"
            | "NodeGetStorageHealth"
            | "ControllerGetVolume"
            | "ControllerGetVolumeHealth"
            | "ControllerListVolumeHealth"
            | "ListVolumes"
            | "ListSnapshots"
            | "GetCapacity"
    );
    match status.code() {
        Code::Ok if routine => tracing::debug!(code, ms, "done"),
        Code::Ok => tracing::info!(code, ms, "done"),
        Code::Internal | Code::Unknown | Code::DataLoss => tracing::error!(code, ms, "{}", status.message()),
        _ => tracing::warn!(code, ms, "{}", status.message()),
    }
}

struct Left {
    method: String,
    since: Instant,
    span: Span,
    answered: bool,
}

impl Drop for Left {
    fn drop(&mut self) {
        if !self.answered {
            let _entered = self.span.enter();
            tracing::warn!(
                ms = self.since.elapsed().as_millis(),
                "the caller left before the answer; what runs goes on"
            );
        }
    }
}
