//! Spans of agents, sent by OTLP in the shape of real instrumentations.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_client::TraceServiceClient,
    },
    common::v1::{AnyValue, KeyValue, any_value::Value as Any},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span},
};
use serde_json::{Value, json};
use tonic::{Code, Request, codec::CompressionEncoding};
use treering::{domain::*, proto::pb, server::ServeOptions};

use super::{
    harness::*,
    keys::{guarded, key, keyed, refused},
};
use crate::suite::{child, random::Random};

fn attribute(key: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::String(text) => Any::StringValue(text.clone()),
        Value::Number(number) => Any::IntValue(number.as_i64().unwrap()),
        other => panic!("{other}"),
    };
    KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn span(trace: u8, id: u64, attributes: &Value) -> Span {
    let attributes = attributes.as_object().unwrap();
    Span {
        trace_id: vec![trace; 16],
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: vec![1; 8],
        name: "a span".into(),
        start_time_unix_nano: 1_770_000_000_000_000_000 + id * 1_000_000,
        end_time_unix_nano: 1_770_000_000_000_500_000 + id * 1_000_000,
        attributes: attributes.iter().map(|(k, v)| attribute(k, v)).collect(),
        ..Span::default()
    }
}

fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![attribute("service.name", &json!("weather-agent"))],
        ..Resource::default()
    };
    let scope = ScopeSpans {
        spans,
        ..ScopeSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![scope],
            ..ResourceSpans::default()
        }],
    }
}

fn exporter(channel: &AnyNode) -> TraceServiceClient<AnyNode> {
    TraceServiceClient::new(channel.clone()).send_compressed(CompressionEncoding::Gzip)
}

async fn export(server: &TestServer, spans: Vec<Span>) -> ExportTraceServiceResponse {
    let answer = exporter(&server.channel).export(request(spans)).await;
    answer.unwrap().into_inner()
}

/// An agent as Pydantic AI traces it: requests with their history, and tool runs.
struct Agent {
    conversation: Option<&'static str>,
    history: Vec<Value>,
    spans: Vec<Span>,
    next: u64,
}

impl Agent {
    fn new(conversation: Option<&'static str>) -> Self {
        let system = json!({"role": "system",
            "parts": [{"type": "text", "content": "Be brief."}]});
        Self {
            conversation,
            history: vec![system],
            spans: Vec::new(),
            next: 1,
        }
    }

    fn add(&mut self, mut attributes: Value) {
        if let Some(id) = self.conversation {
            attributes["gen_ai.conversation.id"] = id.into();
        }
        self.spans.push(span(7, self.next, &attributes));
        self.next += 1;
    }

    fn asks(&mut self, text: &str) {
        self.history
            .push(json!({"role": "user", "parts": [{"type": "text", "content": text}]}));
    }

    fn answers(&mut self, text: &str, tool: bool) {
        let mut parts = vec![json!({"type": "text", "content": text})];
        let call = format!("call_{}", self.next);
        if tool {
            parts.push(json!({"type": "tool_call", "id": call, "name": "weather",
                "arguments": "{\"city\":\"Lisbon\"}"}));
        }
        let answer = json!({"role": "assistant", "parts": parts, "finish_reason": "stop"});
        self.add(json!({
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4o", "gen_ai.response.model": "gpt-4o",
            "gen_ai.response.id": format!("chatcmpl_{}", self.next),
            "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5,
            "gen_ai.tool.definitions": "[{\"type\":\"function\",\"name\":\"weather\",\
                \"parameters\":{\"type\":\"object\"}}]",
            "gen_ai.input.messages": Value::from(self.history.clone()).to_string(),
            "gen_ai.output.messages": json!([answer]).to_string(),
        }));
        self.history.push(answer);
        if tool {
            let result = format!("{{\"degrees\":{}}}", self.next);
            self.add(json!({
                "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather",
                "gen_ai.tool.call.id": call, "gen_ai.tool.call.arguments": "{\"city\":\"Lisbon\"}",
                "gen_ai.tool.call.result": result,
            }));
            self.history.push(
                json!({"role": "user", "parts": [{"type": "tool_call_response",
                "id": call, "name": "weather",
                "result": serde_json::from_str::<Value>(&result).unwrap()}]}),
            );
        }
    }

    fn turns(&mut self, count: usize) {
        for turn in 0..count {
            self.asks(&format!("What is the weather, {turn}?"));
            self.answers(&format!("I look, {turn}."), true);
            self.answers(&format!("Warm, {turn}."), false);
        }
    }
}

/// Returns the events of a branch as lines, in order.
fn said(events: &[pb::Event]) -> Vec<String> {
    let line = |event: &pb::Event| {
        let body = treering::proto::envelope::event_from_pb(event.clone(), Namespace::default());
        let stored = body.unwrap();
        let kind = stored.header.kind().unwrap();
        let bytes = treering::proto::tags::split(&stored.body).1;
        match treering::proto::body::decode(kind, &bytes).unwrap() {
            EventBody::MessageAppended(said) => {
                let texts = said.parts.iter().filter_map(ContentPart::text);
                Some(format!(
                    "{}: {}",
                    said.role.as_str(),
                    texts.collect::<String>()
                ))
            }
            EventBody::ToolCallRequested(call) => Some(format!(
                "{} asks {} {}",
                call.call_id,
                call.tool,
                call.arguments.as_str()
            )),
            EventBody::ToolResultRecorded(result) => {
                let texts = result.parts.iter().filter_map(ContentPart::text);
                Some(format!(
                    "{} gives {}",
                    result.call_id,
                    texts.collect::<String>()
                ))
            }
            _ => None,
        }
    };
    events.iter().filter_map(line).collect()
}

fn expected(turns: usize) -> Vec<String> {
    let turn = |turn: usize| {
        let call = turn * 3 + 1;
        let asks = format!("call_{call} asks weather {{\"city\":\"Lisbon\"}}");
        [
            format!("user: What is the weather, {turn}?"),
            format!("assistant: I look, {turn}."),
            asks,
            format!("call_{call} gives {{\"degrees\":{}}}", call + 1),
            format!("assistant: Warm, {turn}."),
        ]
    };
    (0..turns).flat_map(turn).collect()
}

// An agent without a Treering integration is recorded from its traces alone: as typed events, so
// that requests can be built, and each message once, though every span repeats the history.
#[tokio::test(flavor = "multi_thread")]
async fn spans_of_an_agent_become_its_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut agent = Agent::new(Some("session-1"));
    let mut sizes = Vec::new();
    let mut sent = 0;
    for turn in 0..50 {
        agent.asks(&format!("What is the weather, {turn}?"));
        agent.answers(&format!("I look, {turn}."), true);
        agent.answers(&format!("Warm, {turn}."), false);
        let answer = export(&server, agent.spans[sent..].to_vec()).await;
        assert_eq!(answer.partial_success, None);
        sent = agent.spans.len();
        sizes.push(server.read_all("session-1").await.len());
    }
    // Created, tools, prompt; then the events of each turn.
    assert_eq!(sizes[0], 8);
    assert!(
        sizes.windows(2).all(|pair| pair[1] - pair[0] == 5),
        "{sizes:?}"
    );
    let events = server.read_all("session-1").await;
    assert_eq!(said(&events), expected(50));
    // All of it again, and the agent's own span with the whole history.
    let whole = Value::from(agent.history.clone()).to_string();
    agent.add(json!({"gen_ai.operation.name": "invoke_agent", "pydantic_ai.all_messages": whole}));
    assert_eq!(
        export(&server, agent.spans.clone()).await.partial_success,
        None
    );
    assert_eq!(server.read_all("session-1").await.len(), events.len());

    let got = pb::GetConversationRequest {
        conversation_id: "session-1".into(),
        ..Default::default()
    };
    let got = server.conversations().get(got).await.unwrap().into_inner();
    let info = got.summary.unwrap();
    assert_eq!(info.title, "What is the weather, 0?");
    assert_eq!(
        (info.source.as_str(), info.source_id.as_str()),
        ("otel", "session-1")
    );
    assert_eq!(info.labels["service.name"], "weather-agent");
    let build = pb::BuildRequest {
        conversation_id: "session-1".into(),
        provider: pb::Provider::OpenaiChat.into(),
        model: "gpt-4o".into(),
        ..Default::default()
    };
    let built = server.contexts().build(build).await.unwrap().into_inner();
    let body: Value = serde_json::from_slice(&built.request).unwrap();
    let body = body.to_string();
    for part in [
        "Be brief.",
        "What is the weather, 49?",
        "Warm, 49.",
        "\"weather\"",
    ] {
        assert!(body.contains(part), "{part} is not in {body}");
    }
    server.stop().done().await;
}

// Two exporters send the spans of one session at the same time, in any order and some of them
// twice. Nothing may be stored twice, or missing.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_exporters_record_each_message_once() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start(dir.path()).await;
        let mut agent = Agent::new(Some("session-1"));
        agent.turns(6);
        let both = (0..2).map(|exporter_index| {
            let mut random = Random(seed * 2 + exporter_index + 1);
            let mut spans = agent.spans.clone();
            for last in (1..spans.len()).rev() {
                spans.swap(last, random.below(last as u64 + 1) as usize);
            }
            let channel = server.channel.clone();
            async move {
                for some in spans.chunks(3) {
                    let answer = exporter(&channel).export(request(some.to_vec())).await;
                    assert_eq!(answer.unwrap().into_inner().partial_success, None);
                }
            }
        });
        futures::future::join_all(both).await;
        let events = server.read_all("session-1").await;
        let count = |lines: &[String]| {
            lines.iter().fold(BTreeMap::new(), |mut counts, line| {
                *counts.entry(line.clone()).or_insert(0) += 1;
                counts
            })
        };
        assert_eq!(count(&said(&events)), count(&expected(6)), "seed {seed}");
        let branches: BTreeSet<_> = events.iter().map(|event| event.branch.clone()).collect();
        assert_eq!(branches.len(), 1);
        let verified = server.admin().verify(pb::VerifyRequest::default()).await;
        assert!(verified.is_ok(), "{verified:?}");
        server.stop().done().await;
    }
}

// Model calls without a parent span are traces of their own. They must continue one conversation,
// and not start another with the whole history.
#[tokio::test(flavor = "multi_thread")]
async fn calls_without_an_agent_continue_their_history() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut agent = Agent::new(None);
    agent.turns(3);
    agent.spans.retain(|span| {
        span.attributes
            .iter()
            .any(|it| it.key == "gen_ai.input.messages")
    });
    for (index, span) in agent.spans.iter_mut().enumerate() {
        span.trace_id = vec![index as u8 + 1; 16];
        span.parent_span_id.clear();
    }
    export(&server, agent.spans.clone()).await;
    let events = server.read_all(&"01".repeat(16)).await;
    assert_eq!(said(&events), expected(3));
    let mut conversations = server.conversations();
    let list = conversations.list(pb::ListConversationsRequest::default());
    let list = list.await.unwrap().into_inner().conversations;
    assert_eq!(list.len(), 1);
    server.stop().done().await;
}

// The valid part of a request is recorded, and the answer reports the rest to the exporter's log.
// Spans of other things are ignored without an error.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_spans_are_reported_and_the_rest_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let other = span(1, 1, &json!({"http.request.method": "GET"}));
    assert_eq!(export(&server, vec![other]).await.partial_success, None);
    let without = span(1, 2, &json!({"gen_ai.operation.name": "chat"}));
    let broken = span(
        1,
        3,
        &json!({"gen_ai.operation.name": "chat",
        "gen_ai.input.messages": "no JSON"}),
    );
    let mut agent = Agent::new(None);
    agent.turns(1);
    let mut spans = vec![without, broken];
    spans.extend(agent.spans);
    let told = export(&server, spans).await.partial_success.unwrap();
    assert_eq!(told.rejected_spans, 1);
    for part in ["gen_ai.input.messages", "CAPTURE_MESSAGE_CONTENT"] {
        assert!(told.error_message.contains(part), "{told:?}");
    }
    let events = server.read_all(&"07".repeat(16)).await;
    assert_eq!(said(&events), expected(1));
    let sealed = pb::SealRequest {
        conversation_id: "07".repeat(16),
        ..Default::default()
    };
    server.conversations().seal(sealed).await.unwrap();
    let mut agent = Agent::new(None);
    agent.turns(2);
    let told = export(&server, agent.spans).await.partial_success.unwrap();
    assert!(
        told.rejected_spans > 0 && told.error_message.contains("sealed"),
        "{told:?}"
    );
    server.stop().done().await;
}

// Spans are appends: they need a writer's key, have its name as the actor, and stay in its
// namespace.
#[tokio::test(flavor = "multi_thread")]
async fn spans_require_a_writer_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = guarded(dir.path()).await;
    let writer = key(dir.path(), "agents", &["writer:team"]);
    let reader = key(dir.path(), "eyes", &["reader:team"]);
    let mut agent = Agent::new(Some("session-1"));
    agent.turns(1);
    let of = |key: &str, namespace: &str| {
        let mut sent = keyed(key, request(agent.spans.clone()));
        let headers = sent.metadata_mut();
        headers.insert("treering-namespace", namespace.parse().unwrap());
        sent
    };
    let mut client = exporter(&server.channel);
    let denied = client.export(of(&reader, "team")).await;
    refused(denied, Code::PermissionDenied, "ROLE_MISSING");
    let denied = client.export(of(&writer, "other")).await;
    refused(denied, Code::PermissionDenied, "ROLE_MISSING");
    let denied = client.export(Request::new(request(Vec::new()))).await;
    refused(denied, Code::Unauthenticated, "KEY_MISSING");
    client.export(of(&writer, "team")).await.unwrap();
    let read = pb::ReadRequest {
        source: Some(conversation_source("session-1")),
        ..Default::default()
    };
    let mut read = keyed(&reader, read);
    let headers = read.metadata_mut();
    headers.insert("treering-namespace", "team".parse().unwrap());
    let mut events = server.events().read(read).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap();
    assert!(first.events.iter().all(|event| event.actor == "agents"));
    server.stop().done().await;
}

// The operator can disable it.
#[tokio::test(flavor = "multi_thread")]
async fn span_recording_can_be_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServeOptions {
        takes_spans: false,
        ..ServeOptions::default()
    };
    let server = TestServer::serving(dir.path(), Limits::default(), options).await;
    let answer = exporter(&server.channel).export(request(Vec::new())).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    server.stop().done().await;
}

// The process is killed while agents send spans. Acknowledged spans must be stored, and an exporter
// sends the others again: nothing may be missing, or stored twice.
#[tokio::test(flavor = "multi_thread")]
async fn killed_server_loses_no_acknowledged_span() {
    const TURNS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = Agent::new(Some("session-1"));
    agent.turns(TURNS);
    let mut random = Random(11);
    let mut left = &agent.spans[..];
    while !left.is_empty() {
        let server = child::Server::start(dir.path()).await;
        let address = server.url.strip_prefix("http://").unwrap();
        let channel = connect(address.parse().unwrap()).await;
        let until = 1 + random.below(12) as usize;
        let mut sending = tokio::spawn({
            let left = left.to_vec();
            async move {
                let mut answered = 0;
                for some in left.chunks(3) {
                    if exporter(&channel)
                        .export(request(some.to_vec()))
                        .await
                        .is_err()
                    {
                        break;
                    }
                    answered += some.len();
                }
                answered
            }
        });
        let patience = std::time::Duration::from_millis(until as u64 * 20);
        let answered = match tokio::time::timeout(patience, &mut sending).await {
            Ok(answered) => {
                server.kill().await;
                answered.unwrap()
            }
            Err(_) => {
                server.kill().await;
                sending.await.unwrap()
            }
        };
        left = &left[answered..];
    }
    let server = TestServer::start(dir.path()).await;
    let events = server.read_all("session-1").await;
    assert_eq!(said(&events), expected(TURNS));
    server.stop().done().await;
}
