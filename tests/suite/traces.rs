//! Traces of calls, as a collector receives them by OTLP.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span, span::SpanKind},
};
use tokio::{net::TcpListener, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, metadata::MetadataValue, transport::Channel};
use treering::proto::pb;

use super::{
    child::{self, PATIENCE},
    metrics::MetricsServer,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector that accepts everything, or hangs.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<ResourceSpans>>>,
    hangs: bool,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let spans = request.into_inner().resource_spans;
        self.spans.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start(hangs: bool) -> (Self, String) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(any).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self {
            hangs,
            ..Self::default()
        };
        let service = TraceServiceServer::new(collector.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, url)
    }

    fn spans(&self) -> Vec<Span> {
        let all = self.spans.lock().unwrap();
        let scopes = all.iter().flat_map(|it| &it.scope_spans);
        scopes.flat_map(|it| it.spans.clone()).collect()
    }

    fn named(&self, name: &str) -> Vec<Span> {
        let mut spans = self.spans();
        spans.retain(|span| span.name == name);
        spans
    }

    /// Returns everything it received, as text.
    fn said(&self) -> String {
        format!("{:?}", self.spans.lock().unwrap())
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    let of = attributes.iter().find(|it| it.key == key)?;
    of.value.clone().and_then(|AnyValue { value }| value)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a request of a caller with a trace, sampled or not.
fn of_caller<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{PARENT}-{flags}");
    let parent = MetadataValue::try_from(parent).unwrap();
    request.metadata_mut().insert("traceparent", parent);
    request
}

async fn admin(url: &str) -> pb::admin_client::AdminClient<Channel> {
    let url = url.to_owned();
    pb::admin_client::AdminClient::connect(url).await.unwrap()
}

// The cause of a slow answer is in the caller's trace. The call must be a child of the caller's
// span, with its waits as children and its status code, and without any content.
#[tokio::test(flavor = "multi_thread")]
async fn call_is_a_span_in_the_trace_of_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let (collector, endpoint) = Collector::start(false).await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_SERVICE_NAME", "context-of-tests"),
    ];
    let server = MetricsServer::start(dir.path(), &[], &variables).await;
    let words = ["append", "new", "message", "user", "hushword"];
    assert!(server.cli(&words).await.status.success());
    assert!(server.cli(&["search", "hushword"]).await.status.success());
    assert!(server.cli(&["context", "@last"]).await.status.success());
    assert!(server.cli(&["log", "@last"]).await.status.success());
    let mut client = admin(&server.url).await;
    client
        .stats(of_caller(pb::StatsRequest {}, "01"))
        .await
        .unwrap();
    client
        .stats(of_caller(pb::StatsRequest {}, "00"))
        .await
        .unwrap();
    let missing = pb::GetConversationRequest {
        conversation_id: "hushed-id".into(),
        ..Default::default()
    };
    let mut conversations =
        pb::conversations_client::ConversationsClient::connect(server.url.clone())
            .await
            .unwrap();
    conversations
        .get(of_caller(missing, "01"))
        .await
        .unwrap_err();
    // Ended spans are sent before the server ends.
    server.end().await;

    let of_caller = |span: &&Span| hex(&span.trace_id) == TRACE;
    let spans = collector.spans();
    let called: Vec<_> = spans.iter().filter(of_caller).collect();
    let names: Vec<_> = called.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(
        names.len(),
        2,
        "the caller did not sample the third: {names:?}"
    );
    for span in &called {
        assert_eq!(hex(&span.parent_span_id), PARENT);
        assert_eq!(span.kind(), SpanKind::Server);
    }
    let stats = called
        .iter()
        .find(|span| span.name == "treering.v1.Admin/Stats")
        .unwrap();
    assert_eq!(
        text(&stats.attributes, "rpc.service").unwrap(),
        "treering.v1.Admin"
    );
    assert_eq!(text(&stats.attributes, "rpc.method").unwrap(), "Stats");
    let code = |span: &Span| value(&span.attributes, "rpc.grpc.status_code");
    assert_eq!(code(stats), Some(Value::IntValue(0)));
    let get = called
        .iter()
        .find(|span| span.name == "treering.v1.Conversations/Get")
        .unwrap();
    assert_eq!(code(get), Some(Value::IntValue(5)));
    assert_eq!(
        get.status.as_ref().map_or(0, |status| status.code),
        0,
        "the caller's fault"
    );

    let append = collector.named("treering.v1.Events/Append");
    let append = append.first().unwrap_or_else(|| panic!("{spans:#?}"));
    for (name, parent) in [
        ("append.queue", "treering.v1.Events/Append"),
        ("append.commit", "treering.v1.Events/Append"),
        ("append.fsync", "append.commit"),
        ("search.query", "treering.v1.Search/Search"),
        ("context.build", "treering.v1.Contexts/Build"),
        ("events.read", "treering.v1.Events/Read"),
    ] {
        let parents = collector.named(parent);
        let all = collector.named(name);
        assert!(!all.is_empty(), "no {name}: {spans:#?}");
        for span in all {
            let of = parents.iter().find(|it| it.span_id == span.parent_span_id);
            let of = of.unwrap_or_else(|| panic!("{name} is of no {parent}: {spans:#?}"));
            assert_eq!(of.trace_id, span.trace_id);
            assert!(
                of.start_time_unix_nano <= span.start_time_unix_nano,
                "{name}"
            );
            assert!(
                span.end_time_unix_nano >= span.start_time_unix_nano,
                "{name}"
            );
        }
    }
    assert_eq!(
        append.parent_span_id,
        [] as [u8; 0],
        "the span has no parent"
    );
    let resources = collector.spans.lock().unwrap().clone();
    let resource = resources[0].resource.clone().unwrap();
    assert_eq!(
        text(&resource.attributes, "service.name").unwrap(),
        "context-of-tests"
    );
    let said = collector.said();
    for hushed in ["hushword", "hushed-id", "treering.namespace", "default"] {
        assert!(!said.contains(hushed), "{hushed} in {said}");
    }
}

// A span has the namespace only if enabled, and only of an admitted call.
#[tokio::test(flavor = "multi_thread")]
async fn spans_have_the_namespace_only_if_enabled() {
    let dir = tempfile::tempdir().unwrap();
    let (collector, endpoint) = Collector::start(false).await;
    let asked = [
        "--otlp-endpoint",
        &endpoint,
        "--otlp-namespaces",
        "--otlp-ratio",
        "0",
    ];
    let server = MetricsServer::start(dir.path(), &asked, &[]).await;
    assert!(server.cli(&["ls"]).await.status.success());
    let mut client = admin(&server.url).await;
    for namespace in ["team-red", "no legal name"] {
        let mut request = of_caller(pb::StatsRequest {}, "01");
        let name = MetadataValue::try_from(namespace).unwrap();
        request.metadata_mut().insert("treering-namespace", name);
        assert_eq!(client.stats(request).await.is_ok(), namespace == "team-red");
    }
    server.end().await;
    let spans = collector.spans();
    assert_eq!(
        spans.len(),
        2,
        "a ratio of 0 leaves those of callers: {spans:#?}"
    );
    let told = spans
        .iter()
        .filter_map(|span| text(&span.attributes, "treering.namespace"));
    assert_eq!(told.collect::<Vec<_>>(), ["team-red"]);
}

// If the collector hangs or is unreachable, no call may wait for it. Lost spans are counted and
// reported once, and the server must stop when requested.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_collector_delays_no_call() {
    let (_hanging, hangs) = Collector::start(true).await;
    for endpoint in [hangs.as_str(), "http://127.0.0.1:9"] {
        let dir = tempfile::tempdir().unwrap();
        let server = MetricsServer::start(dir.path(), &["--otlp-endpoint", endpoint], &[]).await;
        let mut client = admin(&server.url).await;
        // More than fit into the queue and the batch that hangs.
        for _ in 0..6_000 {
            let stats = client.stats(of_caller(pb::StatsRequest {}, "01"));
            timeout(PATIENCE, stats).await.expect("it waits").unwrap();
        }
        let mut lost = 0.0;
        for _ in 0..600 {
            lost = server.scrape().await.get("treering_trace_spans_lost_total");
            if lost > 0.0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(lost > 0.0, "{endpoint}");
        let said = server.end().await;
        let told = said.matches("spans cannot be sent").count();
        assert!(told <= 1, "{said}");
        assert!(
            told == 1 || said.contains("the last spans were not sent in time"),
            "{said}"
        );
    }
}

// An invalid address stops the start, with the expected form. The standard variable that disables
// tracing is honoured.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_collector_address_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    for (more, told) in [
        (
            ["--otlp-endpoint", "collector:4317"],
            "is not a collector address",
        ),
        (["--otlp-ratio", "1.5"], "a number from 0 (none) to 1 (all)"),
    ] {
        let line = [
            &["serve", "--data", data, "--listen", "127.0.0.1:0"][..],
            &more,
        ]
        .concat();
        let refused = child::run(&line).await;
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(told), "{said}");
    }
    let (collector, endpoint) = Collector::start(false).await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_SDK_DISABLED", "true"),
    ];
    let server = MetricsServer::start(dir.path(), &[], &variables).await;
    admin(&server.url)
        .await
        .stats(of_caller(pb::StatsRequest {}, "01"))
        .await
        .unwrap();
    server.end().await;
    assert_eq!(collector.spans().len(), 0);
}
