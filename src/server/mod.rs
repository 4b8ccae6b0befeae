//! The gRPC services of `proto/treering/v1`, thin over the engine.
//!
//! Here lives what gRPC needs: fields to values (`from_proto`,
//! `append_request`), answers to messages (`to_proto`), errors to status
//! (`status`), namespaces and deadlines (`call`), streams of a bounded size,
//! requests within bounds (`intake`), connections and their ends (`connection`),
//! who may call what (`guard`), health, reflection, and the clean end. What an append may do and what a read
//! finds is the engine's matter. Nothing here buffers without bound.

mod admin;
mod append_request;
mod append_stream;
pub mod audit;
pub mod bounds;
mod call;
mod connection;
mod context;
mod context_proto;
mod conversations;
mod deadline;
mod events;
mod from_proto;
mod guard;
mod health;
mod intake;
mod items;
mod knowledge;
mod lookup;
mod measures;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
mod page_token;
mod read;
mod result_text;
mod search;
mod ship;
pub mod shutdown;
#[cfg(feature = "otlp-receiver")]
mod spans;
mod status;
mod subscription;
pub mod tls;
mod to_proto;
mod tools;
mod web;
mod whole_reads;

use std::{future::Future, io, sync::Arc, time::Duration};

use futures::Stream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::Instant,
};
use tonic::{codec::CompressionEncoding, service::Routes, transport::server::TcpIncoming};
use tonic_health::pb::health_server::HealthServer;

use self::{
    audit::Audit,
    call::Shared,
    connection::Acceptor,
    intake::Intake,
    shutdown::{Phase, StopSignal, Stopper},
    tls::ServerTls,
};
use crate::{
    access::KeyRing,
    codec::pb::{
        admin_server::AdminServer, backups_server::BackupsServer, contexts_server::ContextsServer,
        conversations_server::ConversationsServer, events_server::EventsServer,
        items_server::ItemsServer, search_server::SearchServer, tools_server::ToolsServer,
    },
    domain::Limits,
    engine::Engine,
};

pub use call::NAMESPACE_KEY;
pub use guard::{CERTIFICATE_KEY, bearer, certificate_word};
pub use health::{LIVE, READY};
pub use measures::{CallSpans, MethodCalls, ServerMeasures};
pub use status::ERROR_DOMAIN;
pub use web::{WebPlace, WebRefusal, WebService, shown_by, web_origin};

/// What reflection serves: the descriptors of `proto/treering/v1`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/treering_descriptor.bin"));

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How long calls that were accepted may go on after the shutdown began.
    pub grace: Duration,
    /// Between HTTP/2 pings of a silent connection.
    pub keepalive_interval: Duration,
    /// A connection that does not answer a ping for so long is closed.
    pub keepalive_timeout: Duration,
    /// Most calls at once on a connection; more wait.
    pub calls_per_connection_max: u32,
    /// Most connections at once. When one more comes, the one that has been idle
    /// longest is closed for it; when none is idle, the new one is.
    pub connections_max: usize,
    /// A connection without a call for so long is closed. None: never, for
    /// clients that cannot connect again.
    pub idle_max: Option<Duration>,
    /// A connection takes new calls for so long; those it has may finish. None:
    /// for ever.
    pub connection_age_max: Option<Duration>,
    /// Requests of all connections that were received and not answered yet, in
    /// bytes. None: 192 MiB, or more where the limits allow larger messages than
    /// that has room for.
    pub bytes_in_flight_max: Option<usize>,
    /// Compress answers for clients that accept it. Costs CPU; for slow links.
    pub compress_answers: bool,
    /// Who may call what. None: everybody everything, as through a pipe of this process.
    pub keys: Option<Arc<KeyRing>>,
    /// Another server of this process has the engine and the keys: that one looks for changes of
    /// keys, notes when they were used, and closes the engine.
    pub is_beside: bool,
    /// Connections are encrypted. None: they are not.
    pub tls: Option<Arc<ServerTls>>,
    /// Where calls and connections are counted. None: they are not.
    pub measures: Option<Arc<ServerMeasures>>,
    /// What answers requests on the same port that are no calls: browsers', and agents'. None:
    /// they are refused.
    pub web: Option<WebService>,
    /// Spans of agents are taken by OTLP, where that is built in.
    pub takes_spans: bool,
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
        }
    }
}

/// Why a server did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] io::Error),
    /// The descriptors in the binary cannot be read.
    #[error("the descriptors of the services cannot be read: {0}")]
    Descriptors(#[from] prost::DecodeError),
    /// The descriptors in the binary cannot be read.
    #[error("the descriptors for reflection cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// All services, with health and reflection. Who may call them, deadlines of unary calls,
/// the bounds of what is received, and the clean end are the work of [`serve`].
fn routes(
    engine: Engine,
    stop: StopSignal,
    audit: Audit,
    options: &ServeOptions,
) -> Result<Routes, ServeError> {
    // The bounds of each method are the intake's; this is the largest.
    let bytes_max = intake::message_bytes_max(engine.limits());
    let shared = Shared {
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
    let backups = BackupsServer::new(ship::BackupsService(shared.clone()));
    let described = vec![DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET];
    #[cfg(feature = "otlp-receiver")]
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
    let routes = Routes::new(tuned!(events));
    #[cfg(feature = "otlp-receiver")]
    let routes = match options.takes_spans {
        true => routes.add_service(tuned!(spans::server(shared.clone()))),
        false => routes,
    };
    Ok(routes
        .add_service(tuned!(conversations))
        .add_service(tuned!(contexts))
        .add_service(tuned!(items))
        .add_service(tuned!(tools))
        .add_service(tuned!(search))
        .add_service(tuned!(admin))
        .add_service(tuned!(backups))
        .add_service(HealthServer::new(health::HealthService::new(shared)?))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

/// Serves on a TCP listener until `shutdown`, then ends cleanly: takes no more
/// calls, finishes those that were accepted within the grace period, and closes
/// the engine.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    engine: Engine,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
    options: ServeOptions,
) -> Result<(), ServeError> {
    engine.announce(&listener.local_addr()?.to_string());
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    serve_on(engine, incoming, shutdown, options).await
}

/// The same on any stream of connections, for example one end of a
/// [`tokio::io::duplex`]. When the stream ends, the connections go on until
/// `shutdown`.
///
/// # Errors
/// [`ServeError`].
pub async fn serve_on<IO>(
    engine: Engine,
    incoming: impl Stream<Item = io::Result<IO>> + Send,
    shutdown: impl Future<Output = ()> + Send,
    options: ServeOptions,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stopper, stop) = Stopper::new();
    let audit = Audit::new(engine.clone());
    let routes = routes(engine.clone(), stop.clone(), audit.clone(), &options)?;
    let intake = intake(engine.limits(), &options)?;
    let mut acceptor = Acceptor::new(routes, intake, &options, stop);
    let signal = async {
        shutdown.await;
        tracing::info!("shutting down");
        stopper.advance(Phase::Draining);
    };
    let own_keys = options.keys.clone().filter(|_| !options.is_beside);
    if let Some(keys) = own_keys.as_ref().filter(|keys| !keys.is_open()) {
        // Before anybody is let in: the audit exists then. What fails is logged, and tried again.
        audit.keys_changed(keys).await;
    }
    let watch = tokio::spawn(watch(own_keys.clone(), options.tls.clone(), audit));
    acceptor.accept(incoming, signal).await;
    if tokio::time::timeout(options.grace, acceptor.ended())
        .await
        .is_err()
    {
        tracing::warn!(
            grace_ms = options.grace.as_millis(),
            "the grace period is over"
        );
        stopper.advance(Phase::Cut);
        // What does not end itself then is cut off with the acceptor.
        let _late = tokio::time::timeout(bounds::CUT_WAIT, acceptor.ended()).await;
    }
    drop(acceptor);
    watch.abort();
    if let Some(keys) = own_keys {
        note_uses(keys).await;
    }
    if !options.is_beside {
        engine.close().await;
    }
    Ok(())
}

/// Looks for keys and certificates that have changed, and writes down when keys were used.
async fn watch(keys: Option<Arc<KeyRing>>, tls: Option<Arc<ServerTls>>, audit: Audit) {
    let (mut noted, mut looked) = (Instant::now(), Instant::now());
    let (mut told, mut tell) = (None, Instant::now());
    while keys.is_some() || tls.is_some() {
        tokio::time::sleep(bounds::KEYS_LOOK_EVERY).await;
        if let Some(tls) = &tls
            && looked.elapsed() >= bounds::TLS_LOOK_EVERY
        {
            looked = Instant::now();
            tls.look();
        }
        let Some(keys) = &keys else { continue };
        keys.look();
        let changes = Some(keys.changes());
        if told != changes && !keys.is_open() && Instant::now() >= tell {
            match audit.keys_changed(keys).await {
                true => told = changes,
                false => tell = Instant::now() + bounds::KEY_USES_EVERY,
            }
        }
        if noted.elapsed() >= bounds::KEY_USES_EVERY {
            noted = Instant::now();
            note_uses(Arc::clone(keys)).await;
        }
    }
}

async fn note_uses(keys: Arc<KeyRing>) {
    let noted = tokio::task::spawn_blocking(move || keys.note_uses()).await;
    if let Ok(Err(error)) = noted {
        tracing::warn!(%error, "when keys were used last could not be written down");
    }
}

fn intake(limits: &Limits, options: &ServeOptions) -> Result<Intake, ServeError> {
    let in_flight = options.bytes_in_flight_max;
    let in_flight = in_flight.unwrap_or_else(|| bytes_in_flight_max(limits));
    Ok(Intake::new(&served(), limits, in_flight)?)
}

/// What requests under way may hold together, unless it is set: enough for one of the
/// largest batches that the limits allow, as it was received and as it is decoded.
fn bytes_in_flight_max(limits: &Limits) -> usize {
    let twice = limits.batch_bytes_max.saturating_mul(2);
    let largest = intake::message_bytes_max(limits).max(twice);
    let largest = largest.saturating_add(bounds::CONNECTION_SHARE_BYTES);
    let parts = largest.div_ceil(bounds::CONNECTION_HOLDS_OF_FREE);
    let for_one = parts.saturating_mul(bounds::CONNECTION_HOLDS_OF_FREE + 1);
    bounds::BYTES_IN_FLIGHT_MAX.max(for_one)
}

/// The descriptors of everything that is served.
fn served() -> Vec<&'static [u8]> {
    vec![
        DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        #[cfg(feature = "otlp-receiver")]
        spans::descriptors(),
    ]
}
