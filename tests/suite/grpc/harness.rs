//! A server to test against, and helpers that build requests.

use std::{
    collections::BTreeMap,
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use prost::Message;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tonic::{Request, Status, body::Body, transport::Channel};
use tonic_types::StatusExt;
use tower::{Service, ServiceExt};
use treering::{
    access::KeyStore,
    domain::*,
    engine::{Engine, OpenOptions, ShardPlace, shard_of},
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
use treering_log::EventLog;
use treering_log_postgres::{PostgresLog, PostgresLogOptions, create_schema, set_objects};

use super::memory::{MemoryCluster, ServingNode, StoppingNode};

/// A grace period that is longer than any passing test waits.
pub const GRACE: Duration = Duration::from_secs(20);

/// If this variable is set, a [`TestServer`] is a cluster.
pub const IN_CLUSTER: &str = "TREERING_TEST_IN_CLUSTER";
/// If this variable is set too, the log of a cluster is in a database of its own on this PostgreSQL
/// server, and everything moves to object storage at once.
pub const POSTGRES: &str = "TREERING_TEST_POSTGRES";
/// The nodes of the cluster.
const NODES: [&str; 3] = ["one", "two", "three"];
const SHARDS: u32 = 6;

/// The logs of the clusters, by the folder of the store.
static CLUSTERS: Mutex<BTreeMap<PathBuf, Arc<MemoryCluster>>> = Mutex::new(BTreeMap::new());

/// A running server, or a cluster of several. Stopped by [`TestServer::stop`].
pub struct TestServer {
    running: Running,
    /// The address of the server, or of one of them.
    pub address: SocketAddr,
    pub channel: AnyNode,
}

enum Running {
    Store {
        engine: Engine,
        stop: oneshot::Sender<()>,
        served: JoinHandle<Result<(), ServeError>>,
    },
    Cluster(Vec<ServingNode>),
}

/// Connections to the nodes. Each call goes to the next node.
#[derive(Clone)]
pub struct AnyNode {
    nodes: Arc<[Channel]>,
    next: Arc<AtomicUsize>,
}

impl AnyNode {
    fn of(nodes: Vec<Channel>) -> Self {
        Self {
            nodes: nodes.into(),
            next: Arc::default(),
        }
    }
}

impl Service<http::Request<Body>> for AnyNode {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let node = self.nodes[next % self.nodes.len()].clone();
        Box::pin(node.oneshot(request))
    }
}

/// Creates a database with a log, whose objects are in the folder of the store.
async fn log_on(server: &str, dir: &Path) -> Arc<dyn EventLog> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("log{number}");
    let existing = format!("--maintenance-db={server}/postgres");
    let created = Command::new("createdb").args([&existing, &name]).status();
    assert!(created.unwrap().success());
    let url = format!("{server}/{name}");
    create_schema(&url, SHARDS).await.unwrap();
    let objects = dir.join("objects");
    let address = objects.to_str().unwrap();
    set_objects(&url, address, Some(0)).await.unwrap();
    let options = PostgresLogOptions {
        accept_single_copy: true,
        ..PostgresLogOptions::default()
    };
    Arc::new(PostgresLog::open(&url, options).await.unwrap())
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
        match env::var_os(IN_CLUSTER) {
            None => Self::of_store(opening, options).await,
            Some(_) => Self::of_cluster(&opening, &options).await,
        }
    }

    async fn of_store(opening: OpenOptions, options: ServeOptions) -> Self {
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
        let served = tokio::spawn(serving);
        Self {
            running: Running::Store {
                engine,
                stop,
                served,
            },
            address,
            channel: connect(address).await,
        }
    }

    async fn of_cluster(opening: &OpenOptions, options: &ServeOptions) -> Self {
        let dir = &opening.data_dir;
        let known = CLUSTERS.lock().unwrap().get(dir).cloned();
        let cluster = match known {
            Some(cluster) => cluster,
            None => {
                let cluster = match env::var(POSTGRES) {
                    Ok(server) => MemoryCluster::over(log_on(&server, dir).await, SHARDS),
                    Err(_) => MemoryCluster::new(SHARDS),
                };
                let mut clusters = CLUSTERS.lock().unwrap();
                clusters.insert(dir.clone(), Arc::clone(&cluster));
                cluster
            }
        };
        let serving = || {
            let keys = options.keys.as_ref();
            // Each node reads the file of keys itself, and counts the calls of a key.
            let keys = keys.map(|keys| KeyStore::open(keys.dir()).unwrap());
            ServeOptions {
                keys,
                ..options.clone()
            }
        };
        let nodes = ServingNode::start_together(&cluster, &NODES, opening, serving).await;
        let channels = nodes.iter().map(ServingNode::channel);
        Self {
            address: nodes[0].address,
            channel: AnyNode::of(channels.collect()),
            running: Running::Cluster(nodes),
        }
    }

    /// Returns the engine of the store.
    pub fn engine(&self) -> &Engine {
        match &self.running {
            Running::Store { engine, .. } => engine,
            Running::Cluster(_) => panic!("a cluster has an engine for each shard"),
        }
    }

    /// Returns an id for a new conversation of the same tree. In a cluster, a tree has one shard.
    pub fn id_beside(&self, other: ConversationId) -> ConversationId {
        let id = ConversationId::generate();
        let shard = shard_of(other, SHARDS);
        let shards = SHARDS;
        match self.running {
            Running::Store { .. } => id,
            Running::Cluster(_) => ShardPlace { shard, shards }.place(id),
        }
    }

    /// Returns the number of events in the log.
    pub fn events_stored(&self) -> u64 {
        let nodes = match &self.running {
            Running::Store { engine, .. } => return engine.head().offset,
            Running::Cluster(nodes) => nodes,
        };
        let heads = nodes.iter().flat_map(|own| {
            let shards = own.node.served().into_iter();
            shards.map(|shard| own.node.shard(shard).unwrap().engine().head().offset)
        });
        heads.sum()
    }

    pub fn events(&self) -> EventsClient<AnyNode> {
        EventsClient::new(self.channel.clone())
            .max_decoding_message_size(server::bounds::MESSAGE_BYTES_MAX)
    }

    pub fn conversations(&self) -> ConversationsClient<AnyNode> {
        ConversationsClient::new(self.channel.clone())
    }

    pub fn contexts(&self) -> ContextsClient<AnyNode> {
        ContextsClient::new(self.channel.clone())
            .max_decoding_message_size(server::bounds::MESSAGE_BYTES_MAX)
    }

    pub fn items(&self) -> ItemsClient<AnyNode> {
        ItemsClient::new(self.channel.clone())
    }

    pub fn tools(&self) -> ToolsClient<AnyNode> {
        ToolsClient::new(self.channel.clone())
    }

    pub fn search(&self) -> SearchClient<AnyNode> {
        SearchClient::new(self.channel.clone())
    }

    pub fn admin(&self) -> AdminClient<AnyNode> {
        AdminClient::new(self.channel.clone())
    }

    /// Asks the server to stop; [`StoppingServer::done`] waits for it.
    pub fn stop(self) -> StoppingServer {
        match self.running {
            Running::Store { stop, served, .. } => {
                stop.send(()).unwrap();
                StoppingServer::Store(served)
            }
            Running::Cluster(nodes) => {
                let nodes = nodes.into_iter().map(ServingNode::stop);
                StoppingServer::Cluster(nodes.collect())
            }
        }
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
pub enum StoppingServer {
    Store(JoinHandle<Result<(), ServeError>>),
    Cluster(Vec<StoppingNode>),
}

impl StoppingServer {
    pub async fn done(self) {
        match self {
            Self::Store(served) => served.await.unwrap().unwrap(),
            Self::Cluster(nodes) => {
                join_all(nodes.into_iter().map(StoppingNode::done)).await;
            }
        }
    }
}

/// Connects to one server.
pub async fn connect(address: SocketAddr) -> AnyNode {
    let uri = format!("http://{address}");
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    AnyNode::of(vec![endpoint.connect().await.unwrap()])
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
pub async fn read<C>(
    mut events: EventsClient<C>,
    request: pb::ReadRequest,
) -> Result<Vec<pb::Event>, Status>
where
    C: Service<http::Request<Body>, Response = http::Response<Body>>,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let mut stream = events.read(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(response) = stream.message().await? {
        all.extend(response.events);
    }
    Ok(all)
}

/// Returns the entries of the audit, which a cluster has in several conversations. `key` may read it.
pub async fn audit_entries(server: &TestServer, key: &str) -> Vec<serde_json::Value> {
    fn as_key<T>(key: &str, message: T) -> Request<T> {
        let mut request = within(server::audit::SYSTEM_NAMESPACE, message);
        let value = format!("Bearer {key}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        request
    }
    let list = pb::ListConversationsRequest {
        title: server::audit::AUDIT_TITLE.into(),
        ..Default::default()
    };
    let audits = server.conversations().list(as_key(key, list)).await;
    let mut entries = Vec::new();
    for audit in audits.unwrap().into_inner().conversations {
        let request = pb::ReadRequest {
            source: Some(conversation_source(&audit.conversation_id)),
            ..Default::default()
        };
        let pages = server.events().read(as_key(key, request)).await;
        let mut pages = pages.unwrap().into_inner();
        while let Some(page) = pages.message().await.unwrap() {
            for event in page.events {
                if let Some(pb::event::Body::Custom(body)) = event.body {
                    let custom = pb::Custom::decode(body).unwrap();
                    entries.push(serde_json::from_slice(&custom.data).unwrap());
                }
            }
        }
    }
    entries
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
