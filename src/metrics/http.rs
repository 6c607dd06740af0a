//! GET of the metrics: OpenMetrics for those who ask for it, Prometheus' older text format for the rest.

use std::net::SocketAddr;

use axum::Router;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::net::TcpListener;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let failed = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("listening on {address} for metrics: {error}"))
    };
    TcpListener::bind(address).await.map_err(failed)
}

/// Answers GET of `path` until the process ends. `text`: the metrics as they are now, in OpenMetrics' format; it may
/// look at files, and so runs where it holds nobody.
pub(crate) async fn serve(
    listener: TcpListener,
    path: &str,
    text: impl Fn() -> String + Clone + Send + Sync + 'static,
) {
    let answer = move |headers: HeaderMap| async move {
        match tokio::task::spawn_blocking(text).await {
            Ok(text) => told(&headers, text),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    };
    if let Err(error) = axum::serve(listener, Router::new().route(path, get(answer))).await {
        tracing::error!("metrics are told no more: {error}");
    }
}

fn told(headers: &HeaderMap, text: String) -> Response {
    let accepts = |value: &str| value.contains("application/openmetrics-text");
    if headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).any(accepts) {
        return ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response();
    }
    ([(CONTENT_TYPE, PLAIN)], plain(&text)).into_response()
}

/// Gauges and histograms, which are all there is, read the same in both formats but for these lines.
fn plain(text: &str) -> String {
    let newer = |line: &&str| line.starts_with("# UNIT ") || *line == "# EOF";
    text.lines().filter(|line| !newer(line)).flat_map(|line| [line, "\n"]).collect()
}
