//! `--type=liveness`: asks the driver at an endpoint again and again whether it is ready, and tells that as a metric of
//! ceph-csi's name.

use std::sync::LazyLock;

use http::uri::PathAndQuery;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::client::Grpc;
use tonic::transport::Endpoint as Dialled;
use tonic_prost::ProstCodec;

use crate::config::{Endpoint, Poll};
use crate::csi::proto::{ProbeRequest, ProbeResponse};
use crate::error::chain;
use crate::metrics;

/// Apart from the driver's own registry: here nothing else is counted.
static ALIVE: LazyLock<(Gauge, Registry)> = LazyLock::new(|| {
    let (alive, mut registry) = (Gauge::default(), Registry::default());
    registry.register("csi_liveness", "Whether the driver answered the last probe: 1 or 0", alive.clone());
    (alive, registry)
});

/// Until the process ends.
pub(crate) async fn watch(endpoint: &Endpoint, poll: Poll, listener: TcpListener, path: &str) {
    tokio::join!(metrics::serve(listener, path, text), ask(endpoint, poll));
}

async fn ask(endpoint: &Endpoint, poll: Poll) {
    let mut turn = interval(poll.every);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        turn.tick().await;
        let probed = timeout(poll.within, probe(endpoint)).await;
        let now = probed.unwrap_or_else(|_| Err(format!("no answer within {:?}", poll.within)));
        ALIVE.0.set(now.is_ok().into());
        if before.as_ref() != Some(&now) {
            tell(endpoint, &now);
            before = Some(now);
        }
    }
}

/// A connection for each question: a driver that was started anew has another socket by the same name.
async fn probe(endpoint: &Endpoint) -> Result<(), String> {
    let dialled = Dialled::try_from(endpoint.uri()).map_err(|error| chain(&error))?;
    let mut client = Grpc::new(dialled.connect().await.map_err(|error| chain(&error))?);
    client.ready().await.map_err(|error| chain(&error))?;
    let path = PathAndQuery::from_static("/csi.v1.Identity/Probe");
    let codec = ProstCodec::<ProbeRequest, ProbeResponse>::default();
    let answer = client.unary(tonic::Request::new(ProbeRequest {}), path, codec).await;
    let answer = answer.map_err(|status| format!("{:?}: {}", status.code(), status.message()))?;
    match answer.into_inner().ready {
        Some(false) => Err("it is not ready".to_owned()),
        Some(true) | None => Ok(()),
    }
}

fn tell(endpoint: &Endpoint, now: &Result<(), String>) {
    match now {
        Ok(()) => tracing::info!(?endpoint, "the driver answers"),
        Err(why) => tracing::warn!(?endpoint, "the driver is down: {why}"),
    }
}

fn text() -> String {
    let mut text = String::new();
    if let Err(error) = encode(&mut text, &ALIVE.1) {
        tracing::error!("the metric cannot be written: {error}");
    }
    text
}
