//! A server to test against, and helpers that build requests.

use std::{net::SocketAddr, path::Path, time::Duration};

use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tonic::{Request, Status, transport::Channel};
use tonic_types::StatusExt;
use treering::{
    domain::*,
    engine::{Engine, OpenOptions},
    proto::{
        body, envelope, json,
        pb::{
            self, admin_client::AdminClient, contexts_client::ContextsClient,
            conversations_client::ConversationsClient, events_client::EventsClient,
            items_client::ItemsClient, search_client::SearchClient, tools_client::ToolsClient,
        },
    },
    server::{self, ServeError, ServeOptions},
};

/// A grace period that is longer than any passing test waits.
pub const GRACE: Duration = Duration::from_secs(20);

/// A running server. Stopped by [`TestServer::stop`].
pub struct TestServer {
    pub engine: Engine,
    pub address: SocketAddr,
    pub channel: Channel,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServeError>>,
}

impl TestServer {
    pub async fn start(dir: &Path) -> Self {
        Self::with(dir, Limits::default(), GRACE).await
    }

    pub async fn with(dir: &Path, limits: Limits, grace: Duration) -> Self {
        let options = ServeOptions {
            grace,
            ..ServeOptions::default()
        };
        Self::serving(dir, limits, options).await
    }

    pub async fn serving(dir: &Path, limits: Limits, options: ServeOptions) -> Self {
        let mut opening = OpenOptions::new(dir);
        opening.limits = limits;
        Self::opened(opening, options).await
    }

    pub async fn opened(opening: OpenOptions, options: ServeOptions) -> Self {
        let engine = Engine::open(opening).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = server::serve(
            engine.clone(),
            listener,
            async {
                let _gone = stopped.await;
            },
            options,
        );
        Self {
            engine,
            address,
            stop,
            served: tokio::spawn(serving),
            channel: connect(address).await,
        }
    }

    pub fn events(&self) -> EventsClient<Channel> {
        EventsClient::new(self.channel.clone())
            .max_decoding_message_size(server::bounds::MESSAGE_BYTES_MAX)
    }

    pub fn conversations(&self) -> ConversationsClient<Channel> {
        ConversationsClient::new(self.channel.clone())
    }

    pub fn contexts(&self) -> ContextsClient<Channel> {
        ContextsClient::new(self.channel.clone())
            .max_decoding_message_size(server::bounds::MESSAGE_BYTES_MAX)
    }

    pub fn items(&self) -> ItemsClient<Channel> {
        ItemsClient::new(self.channel.clone())
    }

    pub fn tools(&self) -> ToolsClient<Channel> {
        ToolsClient::new(self.channel.clone())
    }

    pub fn search(&self) -> SearchClient<Channel> {
        SearchClient::new(self.channel.clone())
    }

    pub fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel.clone())
    }

    /// Asks the server to stop; [`StoppingServer::done`] waits for it.
    pub fn stop(self) -> StoppingServer {
        self.stop.send(()).unwrap();
        StoppingServer(self.served)
    }

    /// Appends a batch, and panics if it is refused.
    pub async fn append(&self, request: pb::AppendRequest) -> pb::AppendResponse {
        self.events().append(request).await.unwrap().into_inner()
    }

    /// Creates a conversation with a user message and two calls by the assistant. The first call
    /// needs an approval. The head is revision 5.
    pub async fn conversation(&self) -> String {
        let request = batch("", opening());
        let response = self.append(request).await;
        assert_eq!(response.events.len(), 5);
        response.events[0].conversation_id.clone()
    }

    /// Returns all events of a conversation.
    pub async fn read_all(&self, id: &str) -> Vec<pb::Event> {
        let request = pb::ReadRequest {
            source: Some(conversation_source(id)),
            ..Default::default()
        };
        read(self.events(), request).await.unwrap()
    }
}

/// A server that is stopping.
pub struct StoppingServer(JoinHandle<Result<(), ServeError>>);

impl StoppingServer {
    pub async fn done(self) {
        self.0.await.unwrap().unwrap();
    }
}

pub async fn connect(address: SocketAddr) -> Channel {
    let uri = format!("http://{address}");
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    endpoint.connect().await.unwrap()
}

/// Returns the events of [`TestServer::conversation`].
pub fn opening() -> Vec<EventBody> {
    vec![
        created("trip"),
        message(Role::User, "What is the weather in Lisbon?"),
        message(Role::Assistant, "I look it up."),
        call(
            "call_1",
            "weather",
            r#"{"city": "Lisbon", "days": 2}"#,
            true,
        ),
        call("call_2", "clock", "{}", false),
    ]
}

pub fn created(title: &str) -> EventBody {
    EventBody::ConversationCreated(ConversationCreated {
        title: title.into(),
        ..Default::default()
    })
}

pub fn message(role: Role, text: &str) -> EventBody {
    EventBody::MessageAppended(MessageAppended::text(role, text))
}

pub fn call(call_id: &str, tool: &str, arguments: &str, needs_approval: bool) -> EventBody {
    let arguments = json::check(arguments.as_bytes()).unwrap();
    EventBody::ToolCallRequested(ToolCallRequested {
        call_id: call_id.into(),
        tool: tool.into(),
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        arguments,
        message_revision: None,
        needs_approval,
        ..ToolCallRequested::default()
    })
}

pub fn decision(call_id: &str, arguments: &str, decision: Decision) -> EventBody {
    EventBody::ApprovalDecided(ApprovalDecided {
        call_id: call_id.into(),
        decision,
        arguments_hash: ContentHash(blake3::hash(arguments.as_bytes()).into()),
        decided_by: "ada".into(),
        reason: "looks right".into(),
    })
}

pub fn result(call_id: &str, text: &str) -> EventBody {
    EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id, text))
}

pub fn new_event(body: &EventBody) -> pb::NewEvent {
    pb::NewEvent {
        body: Some(envelope::new_arm(body.kind(), body::encode(body))),
        ..Default::default()
    }
}

/// Returns a batch for a conversation, without expectations.
pub fn batch(id: &str, bodies: impl IntoIterator<Item = EventBody>) -> pb::AppendRequest {
    pb::AppendRequest {
        conversation_id: id.into(),
        events: bodies.into_iter().map(|body| new_event(&body)).collect(),
        ..Default::default()
    }
}

pub fn exactly(revision: u64) -> Option<pb::ExpectedRevision> {
    use pb::expected_revision::Expected;
    Some(pb::ExpectedRevision {
        expected: Some(Expected::Revision(revision)),
    })
}

pub fn conversation_source(id: &str) -> pb::read_request::Source {
    pb::read_request::Source::Conversation(pb::ConversationSource {
        conversation_id: id.into(),
    })
}

pub fn branch_source(id: &str, branch: &str) -> pb::read_request::Source {
    pb::read_request::Source::Branch(pb::BranchSource {
        conversation_id: id.into(),
        branch: branch.into(),
    })
}

/// Returns all events of a read.
pub async fn read(
    mut events: EventsClient<Channel>,
    request: pb::ReadRequest,
) -> Result<Vec<pb::Event>, Status> {
    let mut stream = events.read(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(response) = stream.message().await? {
        all.extend(response.events);
    }
    Ok(all)
}

/// Returns a request in another namespace.
pub fn within<T>(namespace: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value = namespace.parse().unwrap();
    let metadata = request.metadata_mut();
    metadata.insert(server::NAMESPACE_KEY, value);
    request
}

/// Returns `ErrorInfo.reason`.
pub fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map_or_else(String::new, |info| info.reason.clone())
}

/// Returns the field that a `BadRequest` names.
pub fn bad_field(status: &Status) -> String {
    let details = status.get_error_details();
    let violations = details.bad_request().map(|bad| &bad.field_violations);
    violations
        .and_then(|violations| violations.first())
        .map_or_else(String::new, |violation| violation.field.clone())
}
