//! Exports traces of calls to a collector, by OTLP over gRPC.
//!
//! A call becomes a span if its caller samples it (W3C `traceparent`) or the ratio selects it; the
//! waits within it are child spans (`traced`). Ended spans go into a queue of fixed length, from
//! which one task sends. A slow or missing collector never delays a call: the queue fills up, and
//! further spans are dropped and counted.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::{TraceContextExt, TracerProvider},
};
use opentelemetry_otlp::WithTonicConfig;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter, SpanProcessor},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, timeout},
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{
    bounds::{
        TRACE_BATCH_SPANS, TRACE_CONNECT_WAIT, TRACE_FLUSH_WAIT, TRACE_QUEUE_SPANS,
        TRACE_SEND_EVERY, TRACE_SEND_WAIT, TRACE_STATE_BYTES_MAX,
    },
    spans::CallSpans,
};
use treering_base::{measure::Total, trace::TARGET};
use treering_domain::with_causes;

const TRACE_STATE: &str = "tracestate";
/// The service name, unless `OTEL_SERVICE_NAME` sets another.
const SERVICE: &str = "treering";
const SERVICE_NAME: &str = "service.name";
const SERVICE_VERSION: &str = "service.version";
const UNNAMED: &str = "unknown_service";

/// Options of the export.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The collector's OTLP address for gRPC, for example `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// A PEM file of CA certificates for the collector; `None`: the public ones that are built in.
    pub ca: Option<PathBuf>,
    /// The share, from 0 to 1, of calls that are traced if the caller does not decide.
    pub ratio: f64,
    /// Records the namespace of each call.
    pub namespaces: bool,
}

/// Why the export could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The address cannot be used.
    #[error("`{endpoint}` is not a collector address: {why}")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// The certificates cannot be read.
    #[error("cannot read {}: {cause}", .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Counters of spans.
#[derive(Debug, Default)]
pub struct TraceMeasures {
    /// Spans that the collector has accepted.
    pub sent: Total,
    /// Spans dropped because the queue was full or the collector failed.
    pub lost: Total,
}

/// A running export.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    measures: Arc<TraceMeasures>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    sending: Mutex<Option<JoinHandle<()>>>,
    ratio: f64,
    namespaces: bool,
    propagator: TraceContextPropagator,
}

impl Traces {
    /// Starts the export. Must be called within a tokio runtime; the collector may be unavailable.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn start(options: &TraceOptions) -> Result<Self, TraceError> {
        let refused = |why: String| TraceError::Endpoint {
            endpoint: options.endpoint.clone(),
            why,
        };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(channel(options)?);
        let mut exporter = exporter
            .build()
            .map_err(|error| refused(with_causes(&error).to_string()))?;
        let resource = resource();
        exporter.set_resource(&resource);
        let measures = Arc::new(TraceMeasures::default());
        let (sender, spans) = mpsc::channel(TRACE_QUEUE_SPANS);
        let (stop, stopped) = oneshot::channel();
        let sending = SendTask {
            spans,
            exporter,
            endpoint: options.endpoint.clone(),
            measures: Arc::clone(&measures),
            fails: AtomicBool::new(false),
        };
        let queue = Queue {
            sender,
            measures: Arc::clone(&measures),
        };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Sampling is decided before a call has a span.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(queue)
            .build();
        Ok(Self {
            provider,
            measures,
            stop: Mutex::new(Some(stop)),
            sending: Mutex::new(Some(tokio::spawn(sending.run(stopped)))),
            ratio: options.ratio,
            namespaces: options.namespaces,
            propagator: TraceContextPropagator::new(),
        })
    }

    /// Returns the layer that exports spans of calls; it ignores other spans and all events.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let only_ours = Targets::new().with_target(TARGET, tracing::Level::DEBUG);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_context_activation(false)
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(only_ours)
    }

    /// Returns the counters.
    #[must_use]
    pub fn measures(&self) -> Arc<TraceMeasures> {
        Arc::clone(&self.measures)
    }

    /// Sends ended spans, for at most two seconds, and stops.
    pub async fn stop(&self) {
        let lock = |error: PoisonError<_>| error.into_inner();
        let sending = self
            .sending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(stop) = self.stop.lock().unwrap_or_else(lock).take() {
            let _ = stop.send(());
        }
        let Some(mut sending) = sending else { return };
        if timeout(TRACE_FLUSH_WAIT, &mut sending).await.is_err() {
            sending.abort();
            tracing::warn!("the last spans were not sent in time");
        }
    }

    fn is_wanted(&self, parent: &Context) -> bool {
        if parent.has_active_span() {
            return parent.span().span_context().is_sampled();
        }
        self.ratio > 0.0 && fastrand::f64() < self.ratio
    }
}

impl CallSpans for Traces {
    fn begin(&self, method: &str, headers: &HeaderMap) -> Span {
        let parent = self
            .propagator
            .extract_with_context(&Context::new(), &Carrier(headers));
        if !self.is_wanted(&parent) {
            return Span::none();
        }
        let (service, name) = method.split_once('/').unwrap_or(("", method));
        let span = tracing::debug_span!(
            target: TARGET,
            parent: None,
            "call",
            otel.name = method,
            otel.kind = "server",
            otel.status_code = tracing::field::Empty,
            rpc.system = "grpc",
            rpc.service = service,
            rpc.method = name,
            rpc.grpc.status_code = tracing::field::Empty,
            treering.namespace = tracing::field::Empty,
        );
        if parent.has_active_span() {
            // Setting a parent cannot fail, since the span is new.
            let _ = span.set_parent(parent);
        }
        span
    }

    fn tells_namespaces(&self) -> bool {
        self.namespaces
    }
}

/// The headers with trace context, without values that are too long.
struct Carrier<'a>(&'a HeaderMap);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        let is_long = key == TRACE_STATE && value.len() > TRACE_STATE_BYTES_MAX;
        (!is_long).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

fn channel(options: &TraceOptions) -> Result<Channel, TraceError> {
    let refused = |why: String| TraceError::Endpoint {
        endpoint: options.endpoint.clone(),
        why,
    };
    let endpoint = Endpoint::from_shared(options.endpoint.clone());
    let endpoint = endpoint.map_err(|error| refused(with_causes(&error).to_string()))?;
    let scheme = endpoint.uri().scheme_str().unwrap_or_default().to_owned();
    let endpoint = endpoint
        .connect_timeout(TRACE_CONNECT_WAIT)
        .tcp_nodelay(true);
    let endpoint = match scheme.as_str() {
        "http" => endpoint,
        "https" => {
            let tls = match &options.ca {
                None => ClientTlsConfig::new().with_webpki_roots(),
                Some(path) => {
                    let pem = fs::read(path).map_err(|cause| TraceError::Certificates {
                        path: path.clone(),
                        cause,
                    })?;
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
                }
            };
            let endpoint = endpoint.tls_config(tls);
            endpoint.map_err(|error| refused(with_causes(&error).to_string()))?
        }
        _ => return Err(refused("it must begin with http:// or https://".into())),
    };
    Ok(endpoint.connect_lazy())
}

/// Returns the resource. Its service name comes from the environment; the default is that of this
/// program.
fn resource() -> Resource {
    let told = Resource::builder().build();
    let name = told.get(&SERVICE_NAME.into()).map(|name| name.to_string());
    let name = name.filter(|name| !name.starts_with(UNNAMED));
    Resource::builder()
        .with_attribute(KeyValue::new(SERVICE_VERSION, env!("CARGO_PKG_VERSION")))
        .with_service_name(name.unwrap_or_else(|| SERVICE.to_owned()))
        .build()
}

/// The queue of spans to be sent.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<SpanData>,
    measures: Arc<TraceMeasures>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.measures.lost.add_one();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends queued spans.
struct SendTask<E> {
    spans: mpsc::Receiver<SpanData>,
    exporter: E,
    endpoint: String,
    measures: Arc<TraceMeasures>,
    /// The last batch was lost, and that was logged.
    fails: AtomicBool,
}

impl<E: SpanExporter> SendTask<E> {
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        let mut stopped = std::pin::pin!(stopped);
        let (mut batch, mut due) = (Vec::new(), None);
        loop {
            let room = TRACE_BATCH_SPANS - batch.len();
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                got = self.spans.recv_many(&mut batch, room) => {
                    if got == 0 {
                        break;
                    }
                    due.get_or_insert_with(|| Instant::now() + TRACE_SEND_EVERY);
                    if batch.len() < TRACE_BATCH_SPANS {
                        continue;
                    }
                }
                () = until(due) => {}
            }
            due = None;
            self.send(std::mem::take(&mut batch)).await;
        }
        loop {
            while batch.len() < TRACE_BATCH_SPANS
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&self, batch: Vec<SpanData>) {
        let spans = batch.len() as u64;
        let sent = timeout(TRACE_SEND_WAIT, self.exporter.export(batch)).await;
        let why = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(with_causes(&error).to_string()),
            Err(_) => Some(format!("no answer within {} s", TRACE_SEND_WAIT.as_secs())),
        };
        let endpoint = &self.endpoint;
        match why {
            None => {
                self.measures.sent.add(spans);
                if self.fails.swap(false, Ordering::Relaxed) {
                    tracing::info!(endpoint, "spans are sent again");
                }
            }
            Some(why) => {
                self.measures.lost.add(spans);
                if !self.fails.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        why,
                        endpoint,
                        "spans cannot be sent and are dropped until the collector answers; calls \
                         are not affected"
                    );
                }
            }
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer};
    use tokio::time;

    use super::*;

    fn options(endpoint: &str) -> TraceOptions {
        TraceOptions {
            endpoint: endpoint.to_owned(),
            ca: None,
            ratio: 1.0,
            namespaces: false,
        }
    }

    /// An exporter that never answers.
    #[derive(Debug)]
    struct HangingExporter;

    impl SpanExporter for HangingExporter {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            std::future::pending().await
        }
    }

    // A hanging collector must cost no more than a full queue: ending a span never waits, and each
    // span without room is counted.
    #[tokio::test(start_paused = true)]
    async fn spans_over_the_queue_limit_are_dropped_and_counted() {
        let measures = Arc::new(TraceMeasures::default());
        let (sender, spans) = mpsc::channel(TRACE_QUEUE_SPANS);
        let queue = Queue {
            sender,
            measures: Arc::clone(&measures),
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .build();
        let tracer = provider.tracer("test");
        for _ in 0..TRACE_QUEUE_SPANS + 7 {
            tracer.start("a").end();
        }
        assert_eq!(measures.lost.get(), 7);
        let sending = SendTask {
            spans,
            exporter: HangingExporter,
            endpoint: String::new(),
            measures: Arc::clone(&measures),
            fails: AtomicBool::new(false),
        };
        let (_stop, stopped) = oneshot::channel();
        let sending = tokio::spawn(sending.run(stopped));
        time::sleep(TRACE_SEND_WAIT * 2 + TRACE_SEND_EVERY).await;
        let batches = 2 * TRACE_BATCH_SPANS as u64;
        assert_eq!(measures.lost.get(), 7 + batches);
        assert_eq!(measures.sent.get(), 0);
        sending.abort();
    }

    // Headers are untrusted. An invalid `traceparent` is ignored, so the call starts a new trace. A
    // `tracestate` that is too long is dropped, and the caller's trace continues without it.
    #[tokio::test]
    async fn invalid_trace_headers_start_a_new_trace() {
        let traces = Traces::start(&TraceOptions {
            ratio: 0.0,
            ..options("http://127.0.0.1:9")
        });
        let traces = traces.unwrap();
        let wanted = |headers: &[(&'static str, String)]| {
            let headers = headers.iter();
            let headers =
                headers.map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()));
            let headers: HeaderMap = headers.collect();
            let parent = traces
                .propagator
                .extract_with_context(&Context::new(), &Carrier(&headers));
            let state = parent.span().span_context().trace_state().header();
            (traces.is_wanted(&parent), state)
        };
        let parent = |flags: &str| {
            let value = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            ("traceparent", value)
        };
        assert_eq!(wanted(&[]), (false, String::new()));
        assert_eq!(wanted(&[parent("01")]), (true, String::new()));
        assert_eq!(wanted(&[parent("00")]), (false, String::new()));
        assert!(!wanted(&[("traceparent", "00-zz-zz-01".into())]).0);
        let state = ("tracestate", "a=1".to_owned());
        assert_eq!(wanted(&[parent("01"), state]), (true, "a=1".into()));
        let long = (
            "tracestate",
            format!("a={}", "x".repeat(TRACE_STATE_BYTES_MAX)),
        );
        assert_eq!(wanted(&[parent("01"), long]), (true, String::new()));
    }

    #[tokio::test]
    async fn invalid_collector_address_is_refused_at_start() {
        for wrong in ["", "collector:4317", "ftp://h:1", "http://"] {
            let refused = Traces::start(&options(wrong));
            assert!(
                matches!(refused, Err(TraceError::Endpoint { .. })),
                "{wrong:?}"
            );
        }
        let ca = TraceOptions {
            ca: Some("/nowhere".into()),
            ..options("https://127.0.0.1:9")
        };
        assert!(matches!(
            Traces::start(&ca),
            Err(TraceError::Certificates { .. })
        ));
        Traces::start(&options("https://127.0.0.1:9")).unwrap();
    }
}
