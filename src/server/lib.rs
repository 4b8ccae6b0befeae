//! The gRPC services of `proto/treering/v1`, a thin layer over the engine.
//!
//! This crate contains what gRPC needs: conversion of requests (`from_proto`, `append_request`),
//! answers (`to_proto`) and errors (`status`), namespaces and deadlines (`call`), bounded streams,
//! request limits (`admission`), connections (`connection`), access control (`guard`), health,
//! reflection and graceful shutdown. The engine decides what an append may do and what a read
//! returns. All buffers here are bounded.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod admin;
mod admission;
mod append_request;
mod append_stream;
pub mod audit;
pub mod bounds;
mod call;
mod certificate;
mod connection;
mod context;
mod context_proto;
mod conversations;
mod cursor;
mod deadline;
mod events;
mod from_proto;
mod guard;
mod health;
mod items;
mod knowledge;
mod lookup;
mod measures;
pub mod metrics;
mod page_token;
mod read;
mod recent_reads;
mod result_text;
mod router;
mod search;
mod served;
mod shards;
mod ship;
pub mod shutdown;
mod spans;
mod status;
mod subscription;
pub mod tls;
mod to_proto;
mod tools;
mod web;
mod wire;

use std::{future::Future, io, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt, TryStreamExt, future::BoxFuture, stream::BoxStream};
use tokio::{
    io::DuplexStream,
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_util::either::Either;
use tonic::{codec::CompressionEncoding, service::Routes, transport::server::TcpIncoming};
use tonic_health::pb::health_server::HealthServer;

use self::{
    admission::AdmissionControl,
    audit::{Audit, KeyAudit},
    call::ServiceContext,
    connection::Acceptor,
    router::{Dispatch, ShardRouter},
    shutdown::{Phase, StopSignal, Stopper},
    tls::ServerTls,
};
use treering_access::KeyStore;
use treering_domain::Limits;
use treering_engine::Engine;
use treering_proto::{
    DESCRIPTORS, DOCUMENTED_DESCRIPTORS,
    pb::{
        admin_server::AdminServer, backups_server::BackupsServer, contexts_server::ContextsServer,
        conversations_server::ConversationsServer, events_server::EventsServer,
        items_server::ItemsServer, search_server::SearchServer, shards_server::ShardsServer,
        tools_server::ToolsServer,
    },
};

pub use call::NAMESPACE_KEY;
pub use guard::{CERTIFICATE_KEY, bearer, certificate_word};
pub use health::{FOLDER_PROOF, FOLDER_QUESTION};
pub use measures::{MethodCalls, ServerMeasures};
pub use router::{LocalShard, OwnerNode, ShardAway, ShardDirectory, ShardRole, ShardServices};
pub use served::{NodeShards, ServedStore};
pub(crate) use status::ERROR_DOMAIN;
pub use web::{WebPlace, WebRefusal, WebService, shown_by, web_origin};

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How long accepted calls may continue after shutdown began.
    pub grace: Duration,
    /// Interval of HTTP/2 pings on a silent connection.
    pub keepalive_interval: Duration,
    /// A connection that does not answer a ping for this long is closed.
    pub keepalive_timeout: Duration,
    /// Maximum number of concurrent calls on a connection; more wait.
    pub calls_per_connection_max: u32,
    /// Maximum number of concurrent connections. A new one beyond that closes the connection that
    /// has been idle longest; if none is idle, the new one is closed.
    pub connections_max: usize,
    /// A connection without calls for this long is closed. `None`: never, for clients that cannot
    /// reconnect.
    pub idle_max: Option<Duration>,
    /// How long a connection takes new calls; running ones may finish. `None`: without limit.
    pub connection_age_max: Option<Duration>,
    /// Maximum number of bytes of requests received but not yet answered, over all connections.
    /// `None`: 192 MiB, or more where the limits allow messages too large for that.
    pub bytes_in_flight_max: Option<usize>,
    /// Compresses answers for clients that accept it. Costs CPU; meant for slow links.
    pub compress_answers: bool,
    /// The API keys. `None`: everyone may do everything, as through an in-process pipe.
    pub keys: Option<Arc<KeyStore>>,
    /// Another server of this process owns the engine and the keys: it reloads keys, records their
    /// use and closes the engine.
    pub is_beside: bool,
    /// TLS of connections. `None`: unencrypted.
    pub tls: Option<Arc<ServerTls>>,
    /// Counters of calls and connections. `None`: not counted.
    pub measures: Option<Arc<ServerMeasures>>,
    /// Handler of requests on the same port that are not gRPC, from browsers and agents. `None`:
    /// they are refused.
    pub web: Option<WebService>,
    /// Accepts spans of agents by OTLP.
    pub takes_spans: bool,
    /// Describes the services to clients that ask by reflection. Reading the descriptions takes a
    /// third of the instructions of a short command.
    pub reflection: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            calls_per_connection_max: 4_096,
            connections_max: connection::connections_max(),
            idle_max: Some(bounds::IDLE_MAX),
            connection_age_max: Some(bounds::CONNECTION_AGE_MAX),
            bytes_in_flight_max: None,
            compress_answers: false,
            keys: None,
            is_beside: false,
            tls: None,
            measures: None,
            web: None,
            takes_spans: true,
            reflection: true,
        }
    }
}

/// Why a server did not start or stopped with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] io::Error),
    /// The binary's service descriptors cannot be read.
    #[error("the descriptors of the services cannot be read: {0}")]
    Descriptors(#[from] prost::DecodeError),
    /// The binary's descriptors for reflection cannot be read.
    #[error("the descriptors for reflection cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Returns all services, with health and reflection. [`serve`] adds access control, deadlines of
/// unary calls, request limits and graceful shutdown.
fn routes(
    engine: Engine,
    stop: StopSignal,
    audit: Audit,
    options: &ServeOptions,
) -> Result<Routes, ServeError> {
    // The largest limit of any method. Admission control has the limit of each method.
    let bytes_max = admission::message_bytes_max(engine.limits());
    let shared = ServiceContext {
        engine,
        stop,
        audit,
    };
    macro_rules! tuned {
        ($service:expr) => {{
            let service = $service
                .max_decoding_message_size(bytes_max)
                .accept_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Zstd);
            if options.compress_answers {
                service
                    .send_compressed(CompressionEncoding::Zstd)
                    .send_compressed(CompressionEncoding::Gzip)
            } else {
                service
            }
        }};
    }
    let events = EventsServer::new(events::EventsService(shared.clone()));
    let conversations =
        ConversationsServer::new(conversations::ConversationsService(shared.clone()));
    let contexts = ContextsServer::new(context::ContextsService(shared.clone()));
    let items = ItemsServer::new(items::ItemsService(shared.clone()));
    let tools = ToolsServer::new(tools::ToolsService(shared.clone()));
    let search = SearchServer::new(search::SearchService(shared.clone()));
    let admin = AdminServer::new(admin::AdminService(shared.clone()));
    let shards = ShardsServer::new(shards::ShardsService(shared.clone()));
    let backups = BackupsServer::new(ship::BackupsService(shared.clone()));
    let routes = Routes::new(tuned!(events));
    let routes = match options.takes_spans {
        true => routes.add_service(tuned!(spans::server(shared.clone()))),
        false => routes,
    };
    let routes = routes
        .add_service(tuned!(conversations))
        .add_service(tuned!(contexts))
        .add_service(tuned!(items))
        .add_service(tuned!(tools))
        .add_service(tuned!(search))
        .add_service(tuned!(admin))
        .add_service(tuned!(backups))
        .add_service(tuned!(shards))
        .add_service(HealthServer::new(health::HealthService::new(shared)?));
    with_reflection(routes, options)
}

/// Adds reflection, if the options ask for it.
fn with_reflection(routes: Routes, options: &ServeOptions) -> Result<Routes, ServeError> {
    if !options.reflection {
        return Ok(routes);
    }
    let described = vec![
        DOCUMENTED_DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
    ];
    let described = match options.takes_spans {
        true => [described, vec![spans::descriptors()]].concat(),
        false => described,
    };
    let reflection = || {
        let sets = described.iter();
        sets.fold(
            tonic_reflection::server::Builder::configure(),
            |reflection, set| reflection.register_encoded_file_descriptor_set(set),
        )
    };
    Ok(routes
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

/// Serves on a TCP listener until `shutdown`, then stops gracefully: refuses new calls, finishes
/// accepted ones within the grace period, and closes the engine.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    engine: Engine,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    options: ServeOptions,
) -> Result<(), ServeError> {
    engine.announce(&listener.local_addr()?.to_string());
    serve_on(
        engine.into(),
        ConnectionStream::tcp(listener),
        shutdown.boxed(),
        options,
    )
    .await
}

/// A connection: a TCP stream, or one end of an in-memory pipe.
pub(crate) type ConnectionIo = Either<TcpStream, DuplexStream>;

/// A stream of incoming connections.
pub struct ConnectionStream(BoxStream<'static, io::Result<ConnectionIo>>);

impl std::fmt::Debug for ConnectionStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectionStream")
    }
}

impl ConnectionStream {
    /// Returns the connections that a listener accepts.
    #[must_use]
    pub fn tcp(listener: TcpListener) -> Self {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Self(incoming.map_ok(Either::Left).boxed())
    }

    /// Returns the server's ends of in-process pipes ([`tokio::io::duplex`]).
    pub fn pipes(incoming: impl Stream<Item = io::Result<DuplexStream>> + Send + 'static) -> Self {
        Self(incoming.map_ok(Either::Right).boxed())
    }
}

/// Serves incoming connections. When the stream ends, open connections continue until `shutdown`.
///
/// Not generic, so that the protocols are compiled once, in this crate.
///
/// # Errors
/// [`ServeError`].
#[must_use = "a future does nothing unless it is polled"]
pub fn serve_on(
    store: ServedStore,
    incoming: ConnectionStream,
    shutdown: BoxFuture<'static, ()>,
    options: ServeOptions,
) -> BoxFuture<'static, Result<(), ServeError>> {
    match store {
        ServedStore::Engine(engine) => serve_engine(engine, incoming, shutdown, options).boxed(),
        ServedStore::Node(node) => serve_node(*node, incoming, shutdown, options).boxed(),
    }
}

async fn serve_engine(
    engine: Engine,
    incoming: ConnectionStream,
    shutdown: BoxFuture<'static, ()>,
    options: ServeOptions,
) -> Result<(), ServeError> {
    let (stopper, stop) = Stopper::new();
    let audit = Audit::new(engine.clone());
    let routes = routes(engine.clone(), stop.clone(), audit.clone(), &options)?;
    let server = Server {
        dispatch: Dispatch::Store(routes.prepare()),
        intake: intake(engine.limits(), &options)?,
        audit: KeyAudit::Store(audit),
        stopper: Arc::new(stopper),
        stop,
    };
    let closes = !options.is_beside;
    server.run(incoming, shutdown, options).await;
    if closes {
        engine.close().await;
    }
    Ok(())
}

/// Serves the shards of a cluster on a TCP listener until `shutdown`, then stops gracefully. This
/// node serves its own shards, and forwards all other calls to their owners.
///
/// # Errors
/// [`ServeError`].
pub async fn serve_shards(
    node: NodeShards,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
    options: ServeOptions,
) -> Result<(), ServeError> {
    let incoming = ConnectionStream::tcp(listener);
    serve_on(node.into(), incoming, shutdown.boxed(), options).await
}

async fn serve_node(
    node: NodeShards,
    incoming: ConnectionStream,
    shutdown: BoxFuture<'static, ()>,
    options: ServeOptions,
) -> Result<(), ServeError> {
    let (stopper, stop) = match options.is_beside {
        true => {
            let (stopper, stop) = Stopper::new();
            (Arc::new(stopper), stop)
        }
        false => (Arc::clone(&node.stopper), node.stop.clone()),
    };
    let health = health::NodeHealth::new(Arc::clone(&node.directory), stop.clone())?;
    let own = with_reflection(Routes::new(HealthServer::new(health)), &options)?;
    let ended = Arc::clone(&stopper);
    let server = Server {
        intake: intake(&node.limits, &options)?,
        audit: KeyAudit::Shards(Arc::clone(&node.directory)),
        dispatch: Dispatch::Shards(ShardRouter::new(node, own, options.clone())),
        stopper,
        stop,
    };
    server.run(incoming, shutdown, options).await;
    // Other servers of the node keep the stopper.
    ended.advance(Phase::Cut);
    Ok(())
}

/// A server that is ready to accept connections.
struct Server {
    dispatch: Dispatch,
    intake: AdmissionControl,
    audit: KeyAudit,
    stopper: Arc<Stopper>,
    stop: StopSignal,
}

impl Server {
    async fn run(
        self,
        incoming: ConnectionStream,
        shutdown: BoxFuture<'static, ()>,
        options: ServeOptions,
    ) {
        let Self {
            dispatch,
            intake,
            audit,
            stopper,
            stop,
        } = self;
        let mut acceptor = Acceptor::new(dispatch, intake, &options, stop);
        let signal = async {
            shutdown.await;
            tracing::info!("shutting down");
            stopper.advance(Phase::Draining);
        };
        let own_keys = options.keys.clone().filter(|_| !options.is_beside);
        if let Some(keys) = own_keys.as_ref().filter(|keys| !keys.is_open())
            && let Some(audit) = audit.of_changes()
        {
            // The audit must exist before the first caller. A failure is logged and retried.
            audit.keys_changed(keys).await;
        }
        let watching = watch(own_keys.clone(), options.tls.clone(), audit.clone());
        let watch = tokio::spawn(watching);
        acceptor.accept(incoming.0, signal).await;
        if tokio::time::timeout(options.grace, acceptor.ended())
            .await
            .is_err()
        {
            tracing::warn!(
                grace_ms = options.grace.as_millis(),
                "the grace period has ended"
            );
            stopper.advance(Phase::Cut);
            // Connections that are still open then are dropped with the acceptor.
            let _late = tokio::time::timeout(bounds::CUT_WAIT, acceptor.ended()).await;
        }
        drop(acceptor);
        watch.abort();
        if let Some(keys) = own_keys {
            if let Some(audit) = audit.of_reads() {
                audit.keys_read(&keys).await;
            }
            note_uses(keys).await;
        }
    }
}

/// Reloads changed keys and certificates. Records key changes, times of last use, and keys that
/// have read an unusually large amount.
async fn watch(keys: Option<Arc<KeyStore>>, tls: Option<Arc<ServerTls>>, audit: KeyAudit) {
    let (mut noted, mut looked) = (Instant::now(), Instant::now());
    let (mut told, mut tell) = (None, Instant::now());
    let mut count_from = Instant::now();
    while keys.is_some() || tls.is_some() {
        tokio::time::sleep(bounds::KEYS_LOOK_EVERY).await;
        if let Some(tls) = &tls
            && looked.elapsed() >= bounds::TLS_LOOK_EVERY
        {
            looked = Instant::now();
            tls.look();
        }
        let Some(keys) = &keys else { continue };
        keys.reload_if_changed();
        let changes = Some(keys.changes());
        if told != changes
            && !keys.is_open()
            && Instant::now() >= tell
            && let Some(audit) = audit.of_changes()
        {
            match audit.keys_changed(keys).await {
                true => told = changes,
                false => tell = Instant::now() + bounds::KEY_USES_EVERY,
            }
        }
        if Instant::now() >= count_from
            && let Some(audit) = audit.of_reads()
            && !audit.keys_read(keys).await
        {
            count_from = Instant::now() + bounds::KEY_USES_EVERY;
        }
        if noted.elapsed() >= bounds::KEY_USES_EVERY {
            noted = Instant::now();
            note_uses(Arc::clone(keys)).await;
        }
    }
}

async fn note_uses(keys: Arc<KeyStore>) {
    let noted = tokio::task::spawn_blocking(move || keys.note_uses()).await;
    if let Ok(Err(error)) = noted {
        tracing::warn!(%error, "the last uses of keys could not be recorded");
    }
}

fn intake(limits: &Limits, options: &ServeOptions) -> Result<AdmissionControl, ServeError> {
    let in_flight = options.bytes_in_flight_max;
    let in_flight = in_flight.unwrap_or_else(|| bytes_in_flight_max(limits));
    Ok(AdmissionControl::new(&served(options), limits, in_flight)?)
}

/// Returns the default bytes in flight: enough for one of the largest batches that the limits
/// allow, both received and decoded.
fn bytes_in_flight_max(limits: &Limits) -> usize {
    let twice = limits.batch_bytes_max.saturating_mul(2);
    let largest = admission::message_bytes_max(limits).max(twice);
    let largest = largest.saturating_add(bounds::CONNECTION_SHARE_BYTES);
    let parts = largest.div_ceil(bounds::CONNECTION_HOLDS_OF_FREE);
    let for_one = parts.saturating_mul(bounds::CONNECTION_HOLDS_OF_FREE + 1);
    bounds::BYTES_IN_FLIGHT_MAX.max(for_one)
}

/// Returns the descriptors of everything that is served. The default options serve everything.
fn served(options: &ServeOptions) -> Vec<&'static [u8]> {
    let mut described = vec![DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET];
    if options.reflection {
        described.extend([
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ]);
    }
    if options.takes_spans {
        described.push(spans::descriptors());
    }
    described
}
