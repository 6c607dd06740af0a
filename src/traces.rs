//! Traces: a span for each call, and below it one for each command that it runs, sent to an OpenTelemetry collector by
//! OTLP over gRPC. Where no collector is named, no span is made. One that does not answer slows nobody: what does not
//! find room in a queue is dropped.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::{Status, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};

use crate::error::chain;

/// Of one batch, and of what is left at the end.
const SEND_WITHIN: Duration = Duration::from_secs(5);
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// Sends as long as it lives.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// To the collector at `endpoint`, by the runtime that this is called in; `whose`: attributes of all spans.
    pub(crate) fn to(endpoint: &str, whose: &[(&'static str, &str)]) -> Result<Self, ExporterBuildError> {
        let grpc = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(SEND_WITHIN)
            .build()?;
        let sender = Sender { grpc, endpoint: endpoint.to_owned(), fails: AtomicBool::new(false) };
        let whose = whose.iter().map(|(key, value)| KeyValue::new(*key, (*value).to_owned()));
        let resource = Resource::builder().with_service_name("ceph-rbd-csi").with_attributes(whose).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(sender).with_resource(resource).build();
        TRACER.get_or_init(|| provider.tracer("ceph-rbd-csi"));
        Ok(Self(provider))
    }

    /// Sends what is left, if the collector takes it in time.
    pub(crate) fn end(&self) {
        let _ = self.0.shutdown_with_timeout(FLUSH_WITHIN);
    }
}

/// Says once that the collector is not to be had, and once that it is again.
#[derive(Debug)]
struct Sender {
    grpc: opentelemetry_otlp::SpanExporter,
    endpoint: String,
    fails: AtomicBool,
}

impl SpanExporter for Sender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.grpc.export(batch).await;
        let failed = self.fails.swap(sent.is_err(), Ordering::Relaxed);
        match &sent {
            Err(error) if !failed => {
                tracing::warn!(
                    self.endpoint,
                    "traces are lost until the collector takes them: {}",
                    chain(error)
                );
            }
            Ok(()) if failed => tracing::info!(self.endpoint, "the collector takes traces again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.grpc.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.grpc.set_resource(resource);
    }
}

/// One span, or none where nothing is traced. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Span(Option<Context>);

impl Span {
    /// Of a call that came in.
    pub(crate) fn root(name: &str) -> Self {
        Self(TRACER.get().map(|tracer| within(tracer, &Context::new(), name)))
    }

    /// Of a part of it. Work that no traced call asked for has none.
    pub(crate) fn child(&self, name: &str) -> Self {
        Self(self.0.as_ref().zip(TRACER.get()).map(|(parent, tracer)| within(tracer, parent, name)))
    }

    pub(crate) fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    pub(crate) fn end(&self, failure: Option<String>) {
        let Some(context) = &self.0 else { return };
        if let Some(why) = failure {
            context.span().set_status(Status::error(why));
        }
        context.span().end();
    }
}

fn within(tracer: &SdkTracer, parent: &Context, name: &str) -> Context {
    parent.with_span(tracer.start_with_context(name.to_owned(), parent))
}
