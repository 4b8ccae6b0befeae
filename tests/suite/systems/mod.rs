//! The five systems whose features Treering provides: one file per system, one test per feature,
//! and one test of the whole system from the command line. Each feature is used through the gRPC
//! services and through the library, and both must give the same result.

mod context_manager;
mod session_memory;
mod tool_context_loop;
mod tool_context_manager;
mod tool_discovery;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use treering::{
    context::Provider,
    domain::*,
    engine::*,
    proto::{
        json as checked,
        pb::{self, contexts_client::ContextsClient},
    },
};

use super::{
    child,
    grpc::harness::{AnyNode, TestServer, batch},
};

/// A store on disk with a server. The library uses the same store.
pub struct World {
    pub server: TestServer,
    dir: tempfile::TempDir,
}

/// A request and its explanation.
pub struct Request {
    pub body: Value,
    pub told: pb::Explanation,
}

impl World {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start(dir.path()).await;
        Self { server, dir }
    }

    /// Closes the store and opens it again.
    pub async fn restart(self) -> Self {
        let Self { server, dir } = self;
        server.stop().done().await;
        let server = TestServer::start(dir.path()).await;
        Self { server, dir }
    }

    pub async fn end(self) {
        self.server.stop().done().await;
    }

    pub fn engine(&self) -> &Engine {
        self.server.engine()
    }

    pub fn contexts(&self) -> ContextsClient<AnyNode> {
        self.server.contexts()
    }

    /// Creates a conversation that begins with these events.
    pub async fn begin(&self, bodies: Vec<EventBody>) -> String {
        let answer = self.server.append(batch("", bodies)).await;
        answer.events[0].conversation_id.clone()
    }

    /// Appends to the active branch. Returns the position of the last event.
    pub async fn then(&self, id: &str, bodies: Vec<EventBody>) -> pb::Position {
        let answer = self.server.append(batch(id, bodies)).await;
        answer.events.last().unwrap().position.unwrap()
    }

    /// Appends to a branch.
    pub async fn on(&self, id: &str, branch: &str, bodies: Vec<EventBody>) {
        let request = pb::AppendRequest {
            branch: branch.into(),
            ..batch(id, bodies)
        };
        self.server.append(request).await;
    }

    /// Builds the request of a query. gRPC and the library must agree.
    pub async fn request(&self, query: pb::BuildRequest) -> Request {
        let provider = provider_of(query.provider());
        let own = BuildQuery {
            as_of: Some(Revision(query.as_of_revision)).filter(|at| *at > Revision::NONE),
            policy: String::from_utf8(query.policy.to_vec()).unwrap(),
            ..BuildQuery::new(
                BranchAddress {
                    namespace: ns(),
                    conversation: conversation(&query.conversation_id),
                    branch: branch(&query.branch),
                },
                provider,
            )
        };
        let answer = self.contexts().build(query).await.unwrap().into_inner();
        let built = self.engine().build(own).await.unwrap();
        assert_eq!(answer.request, built.request, "gRPC and library differ");
        treering_provider_check::assert_legal(provider.as_str(), &built.request);
        let told = answer.explanation.unwrap();
        assert_eq!(told.tokens, built.explanation.tokens);
        assert_eq!(told.warnings, built.explanation.warnings);
        assert_eq!(told.items.len(), built.explanation.items.len());
        Request {
            body: serde_json::from_slice(&answer.request).unwrap(),
            told,
        }
    }

    /// Returns the next request in the neutral form, as lines.
    pub async fn lines(&self, id: &str) -> Vec<String> {
        lines(&self.request(next(id)).await.body)
    }

    /// Returns the state of the active branch.
    pub async fn state(&self, id: &str) -> pb::BranchState {
        self.state_of(id, "").await
    }

    /// Returns the state of a branch. gRPC and the library must agree.
    pub async fn state_of(&self, id: &str, name: &str) -> pb::BranchState {
        let request = pb::GetConversationRequest {
            conversation_id: id.into(),
            branch: name.into(),
            ..Default::default()
        };
        let answer = self.server.conversations().get(request).await.unwrap();
        let state = answer.into_inner().branch.unwrap();
        let named = branch(name);
        let own = self
            .engine()
            .conversation(
                &BranchAddress {
                    branch: named.clone(),
                    ..BranchAddress::active(ns(), conversation(id))
                },
                None,
            )
            .await
            .unwrap()
            .branch;
        assert_eq!(state.head, own.head.0);
        assert_eq!(state.discovered_tools, own.memory.discovered_tools);
        assert_eq!(state.open_calls.len(), own.open_calls.len());
        let keys: Vec<_> = own.active_context.keys().cloned().collect();
        let mut told: Vec<_> = state.active_context.keys().cloned().collect();
        told.sort();
        assert_eq!(told, keys);
        state
    }

    /// Runs a command on the server, which must succeed. Returns its output.
    pub async fn cli(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.try_cli(arguments).await;
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        stdout
    }

    /// Runs a command. Returns the exit code, standard output and standard error.
    pub async fn try_cli(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let url = format!("http://{}", self.server.address);
        let output = child::run(&[arguments, &["--server", &url]].concat()).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    /// Runs a command with `--json`. Returns one object per line.
    pub async fn cli_json(&self, arguments: &[&str]) -> Vec<Value> {
        let printed = self.cli(&[arguments, &["--json"]].concat()).await;
        let parse = |line: &str| serde_json::from_str(line).unwrap();
        printed.lines().map(parse).collect()
    }
}

pub fn ns() -> Namespace {
    Namespace::default()
}

pub fn conversation(id: &str) -> ConversationId {
    id.parse().unwrap()
}

pub fn branch(name: &str) -> Option<BranchName> {
    (!name.is_empty()).then(|| BranchName::new(name).unwrap())
}

fn provider_of(provider: pb::Provider) -> Provider {
    match provider {
        pb::Provider::Unspecified | pb::Provider::Neutral => Provider::Neutral,
        pb::Provider::OpenaiChat => Provider::OpenAiChat,
        pb::Provider::OpenaiResponses => Provider::OpenAiResponses,
        pb::Provider::Anthropic => Provider::Anthropic,
        pb::Provider::Gemini => Provider::Gemini,
    }
}

/// Returns a query for the next request of the active branch, in the neutral form.
pub fn next(id: &str) -> pb::BuildRequest {
    pb::BuildRequest {
        conversation_id: id.into(),
        ..Default::default()
    }
}

/// Returns the same query for a provider.
pub fn next_for(id: &str, provider: pb::Provider) -> pb::BuildRequest {
    pb::BuildRequest {
        provider: provider.into(),
        ..next(id)
    }
}

/// Returns the same query with a policy.
pub fn next_by(id: &str, policy: &Value) -> pb::BuildRequest {
    pb::BuildRequest {
        policy: policy.to_string().into(),
        ..next(id)
    }
}

/// Returns a neutral request as lines: `user: …`, `assistant: …`, `tool(arguments) = …`,
/// `tool(arguments) ~ snapshot`, `tool(arguments) ? why there is no result`.
pub fn lines(body: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for instruction in list(&body["instructions"]) {
        lines.push(format!("system: {}", text(&instruction["text"])));
    }
    for item in list(&body["items"]) {
        if item["type"] == "message" {
            let said = texts(&item["parts"]);
            lines.push(format!("{}: {said}", text(&item["role"])));
        }
        for block in list(&item["blocks"]) {
            lines.push(match text(&block["type"]) {
                "call" => call_line(block),
                _ => format!("assistant: {}", text(&block["text"])),
            });
        }
    }
    lines
}

fn call_line(call: &Value) -> String {
    let outcome = &call["outcome"];
    let came = match text(&outcome["type"]) {
        "result" if outcome["success"] == false => {
            format!(
                "! {}{}",
                text(&outcome["error_message"]),
                texts(&outcome["parts"])
            )
        }
        "result" => format!("= {}", texts(&outcome["parts"])),
        "snapshot" => format!("~ {}", text(&outcome["result_summary"])),
        _ => format!("? {}", text(&outcome["why"])),
    };
    format!("{}({}) {came}", text(&call["tool_name"]), call["arguments"])
}

fn texts(parts: &Value) -> String {
    let texts: Vec<_> = list(parts).iter().map(|part| text(&part["text"])).collect();
    texts.join("\n")
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the content of a tag in a request's lines.
pub fn tagged(lines: &[String], tag: &str) -> Option<String> {
    let open = format!("<{tag}>\n");
    let close = format!("\n</{tag}>");
    let inside = |line: &String| {
        let (_, rest) = line.split_once(&open)?;
        Some(rest.strip_suffix(&close)?.to_owned())
    };
    lines.iter().find_map(inside)
}

/// Returns the content of a tag, as JSON.
pub fn tagged_json(lines: &[String], tag: &str) -> Option<Value> {
    tagged(lines, tag).map(|text| serde_json::from_str(&text).unwrap())
}

pub fn user(text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(Role::User, text))
}

pub fn assistant(text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(Role::Assistant, text))
}

/// Returns a call that needs no approval.
pub fn call(call_id: &str, tool: &str, arguments: &Value) -> EventBody {
    super::grpc::harness::call(call_id, tool, &arguments.to_string(), false)
}

/// Returns a call that needs an approval.
pub fn risky(call_id: &str, tool: &str, arguments: &Value) -> EventBody {
    super::grpc::harness::call(call_id, tool, &arguments.to_string(), true)
}

pub fn result(call_id: &str, text: &str) -> EventBody {
    EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, text))
}

pub fn failure(call_id: &str, error: &str) -> EventBody {
    EventBody::ToolResultRecorded(ToolResultRecorded::failure(call_id, error))
}

pub fn created(title: &str) -> ConversationCreated {
    ConversationCreated {
        title: title.into(),
        config: Config {
            model_id: "gpt-4o".into(),
            mode: "agent".into(),
            parameters: BTreeMap::from([("temperature".into(), "0.2".into())]),
        },
        ..Default::default()
    }
}

/// Returns the first event of a conversation with this policy.
pub fn created_with(title: &str, policy: &str, value: &Value) -> EventBody {
    EventBody::ConversationCreated(ConversationCreated {
        policies: [(policy.to_owned(), value.to_string())].into(),
        ..created(title)
    })
}

pub fn system_prompt(content: &str) -> EventBody {
    EventBody::SystemPromptSet(PromptSet {
        id: "system".into(),
        content: content.into(),
    })
}

pub fn key(key: &str, value: &Value, provider: &str) -> pb::ContextSet {
    pb::ContextSet {
        key: key.into(),
        value: value.to_string().into(),
        provider: provider.into(),
    }
}

/// Returns a request that sets keys of a conversation's active branch, or without a conversation
/// those of the namespace.
pub fn set(id: &str, keys: Vec<pb::ContextSet>) -> pb::SetContextRequest {
    pb::SetContextRequest {
        conversation_id: id.into(),
        set: keys,
        ..Default::default()
    }
}

pub fn tool(name: &str, description: &str, properties: &Value) -> ToolDefinition {
    let schema = json!({"type": "object", "properties": properties});
    ToolDefinition {
        name: name.into(),
        description: description.into(),
        input_schema: checked::check(schema.to_string().as_bytes()).unwrap(),
        source: String::new(),
        needs_approval: false,
        guidance: String::new(),
        discoverable: false,
        strict: None,
    }
}

/// Returns a tool that is offered, with its guidance, once it was discovered.
pub fn hidden(name: &str, description: &str, guidance: &str) -> ToolDefinition {
    ToolDefinition {
        guidance: guidance.into(),
        discoverable: true,
        ..tool(name, description, &json!({}))
    }
}
