//! `--otlp-endpoint`: what a collector gets of a call, and that nobody waits for one that is not there.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::asks;
use crate::common::driver::Driver;
use crate::common::life::{Life, mount};
use crate::common::sight::eventually;
use crate::common::tools::check;
use crate::harness::Scene;
use crate::metrics::free_port;

/// Keeps the spans that it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans);
        self.0.lock().expect("the spans").extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn listen(&self, port: u16) {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).expect("tokio's"));
        let service = TraceServiceServer::new(self.clone());
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("the spans").clone()
    }

    fn has(&self, name: &str) -> bool {
        self.spans().iter().any(|span| span.name == name)
    }
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        other => format!("{other:?}"),
    };
    let pair = |pair: KeyValue| (pair.key, text(pair.value));
    span.attributes.iter().cloned().map(pair).collect()
}

async fn staged(scene: &Scene, driver: &Driver) -> Life {
    let volume = driver.create(asks::any(64, mount("ext4"))).await.expect("CreateVolume");
    let life = Life::at(&scene.path("node"), &volume.volume_id, "", mount("ext4"));
    let life = life.with_context(volume.volume_context);
    life.up(driver).await;
    life
}

async fn terminated(driver: &mut Driver) {
    driver.signal(Signal::SIGTERM);
    assert!(driver.ended().await.success(), "{}", driver.log());
}

#[tokio::test]
async fn a_collector_gets_a_span_of_each_call_and_of_each_command_below_it() {
    let scene = Scene::new();
    let (collector, port) = (Collector::default(), free_port());
    collector.listen(port);
    let flag = format!("--otlp-endpoint=http://127.0.0.1:{port}");
    let mut driver = scene.driver().flag(&flag).start().await;
    let life = staged(&scene, &driver).await;
    check(driver.create(asks::any(-1, mount("ext4"))).await, Code::InvalidArgument, "");
    life.down(&driver).await;
    terminated(&mut driver).await;
    let spans = collector.spans();
    let stage = spans.iter().find(|span| span.name == "csi.v1.Node/NodeStageVolume").expect("the call");
    let told = attributes(stage);
    assert_eq!((told["csi.volume"].as_str(), told["rpc.method"].as_str()), (&*life.id, "NodeStageVolume"));
    assert!(driver.log().contains(&format!("request={}", told["request"])), "{told:?}");
    let commands: Vec<_> = spans.iter().filter(|span| span.parent_span_id == stage.span_id).collect();
    let mkfs = commands.iter().find(|span| span.name == "mkfs.ext4").expect("its mkfs");
    assert_eq!((mkfs.trace_id == stage.trace_id, attributes(mkfs)["exit"].as_str()), (true, "0"));
    let failed = spans.iter().filter(|span| span.name.ends_with("/CreateVolume"));
    let failed: Vec<_> = failed.filter_map(|span| span.status.clone()).map(|status| status.message).collect();
    assert!(failed.iter().any(|message| message.starts_with("InvalidArgument: ")), "{failed:?}");
    assert!(!collector.has("csi.v1.Identity/Probe"));
}

#[tokio::test]
async fn a_collector_that_is_not_there_is_told_once_and_holds_nobody() {
    let scene = Scene::new();
    let port = free_port();
    let flag = format!("--otlp-endpoint=http://127.0.0.1:{port}");
    let mut driver = scene.driver().flag(&flag).variable("OTEL_BSP_SCHEDULE_DELAY", "100").start().await;
    let lost = "traces are lost until the collector takes them";
    let life = staged(&scene, &driver).await;
    eventually("it is told", || driver.log().contains(lost)).await;
    let collector = Collector::default();
    collector.listen(port);
    life.down(&driver).await;
    eventually("it is sent traces again", || collector.has("csi.v1.Node/NodeUnstageVolume")).await;
    assert_eq!(driver.log().matches(lost).count(), 1, "{}", driver.log());
    terminated(&mut driver).await;
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_the_shutdown() {
    let scene = Scene::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let flag = format!("--otlp-endpoint=http://{}", silent.local_addr().expect("its address"));
    let mut driver = scene.driver().flag(&flag).start().await;
    staged(&scene, &driver).await.down(&driver).await;
    terminated(&mut driver).await;
}
