//! The gRPC services of `proto/treering/v1`, thin over the engine.
//!
//! Here lives what gRPC needs: fields to values (`from_proto`,
//! `append_request`), answers to messages (`to_proto`), errors to status
//! (`status`), namespaces and deadlines (`call`), streams of a bounded size,
//! health, reflection, and the clean end. What an append may do and what a read
//! finds is the engine's matter. Nothing here buffers without bound.

mod admin;
mod append_request;
mod append_stream;
pub mod bounds;
mod call;
mod context;
mod context_proto;
mod conversations;
mod deadline;
mod events;
mod from_proto;
mod health;
mod knowledge;
mod read;
mod result_text;
mod search;
pub mod shutdown;
mod status;
mod subscription;
mod to_proto;
mod tools;

use std::{future::Future, io, time::Duration};

use futures::{Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tonic::{
    codec::CompressionEncoding,
    service::Routes,
    transport::{
        Server,
        server::{Connected, TcpIncoming},
    },
};
use tonic_health::pb::health_server::HealthServer;

use self::{
    call::Shared,
    shutdown::{Phase, StopSignal, Stopper},
};
use crate::{
    codec::pb::{
        admin_server::AdminServer, contexts_server::ContextsServer,
        conversations_server::ConversationsServer, events_server::EventsServer,
        search_server::SearchServer, tools_server::ToolsServer,
    },
    engine::Engine,
};

pub use call::NAMESPACE_KEY;
pub use health::{LIVE, READY};
pub use status::ERROR_DOMAIN;

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
    /// Compress answers for clients that accept it. Costs CPU; for slow links.
    pub compress_answers: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            calls_per_connection_max: 4_096,
            compress_answers: false,
        }
    }
}

/// Why a server did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener cannot be used.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] io::Error),
    /// The transport failed.
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The descriptors in the binary cannot be read.
    #[error("the descriptors for reflection cannot be read: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The same, for health.
    #[error("the descriptors for health cannot be read: {0}")]
    Descriptors(#[from] prost::DecodeError),
}

/// All services, with health and reflection, to be served by any transport.
/// Deadlines of unary calls and the clean end are the work of [`serve`].
///
/// # Errors
/// [`ServeError::Reflection`] and [`ServeError::Descriptors`].
pub fn routes(
    engine: Engine,
    stop: StopSignal,
    options: &ServeOptions,
) -> Result<Routes, ServeError> {
    let limits = engine.limits();
    let bytes_max = bounds::MESSAGE_BYTES_MAX.max(
        limits
            .batch_bytes_max
            .saturating_add(bounds::ENVELOPE_BYTES_MAX),
    );
    let shared = Shared { engine, stop };
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
    let tools = ToolsServer::new(tools::ToolsService(shared.clone()));
    let search = SearchServer::new(search::SearchService(shared.clone()));
    let admin = AdminServer::new(admin::AdminService(shared.clone()));
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(tuned!(events))
        .add_service(tuned!(conversations))
        .add_service(tuned!(contexts))
        .add_service(tuned!(tools))
        .add_service(tuned!(search))
        .add_service(tuned!(admin))
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
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let (stopper, stop) = Stopper::new();
    let routes = routes(engine.clone(), stop.clone(), &options)?;
    let incoming = incoming.chain(futures::stream::pending());
    let signal = async {
        shutdown.await;
        tracing::info!("shutting down");
        stopper.advance(Phase::Draining);
    };
    let mut server = std::pin::pin!(
        builder(&options)
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, signal)
    );
    let grace_over = async {
        stop.reached(Phase::Draining).await;
        tokio::time::sleep(options.grace).await;
    };
    let served = tokio::select! {
        served = &mut server => served,
        () = grace_over => {
            tracing::warn!(grace_ms = options.grace.as_millis(), "the grace period is over");
            stopper.advance(Phase::Cut);
            tokio::time::timeout(bounds::CUT_WAIT, server).await.unwrap_or(Ok(()))
        }
    };
    engine.close().await;
    Ok(served?)
}

fn builder(
    options: &ServeOptions,
) -> Server<tower::layer::util::Stack<deadline::DeadlineLayer, tower::layer::util::Identity>> {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(options.keepalive_interval))
        .http2_keepalive_timeout(Some(options.keepalive_timeout))
        .max_concurrent_streams(options.calls_per_connection_max)
        .initial_stream_window_size(bounds::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(bounds::CONNECTION_WINDOW_BYTES)
        .trace_fn(|request| {
            let namespace = request.headers().get(NAMESPACE_KEY);
            let namespace = namespace.and_then(|name| name.to_str().ok());
            tracing::debug_span!("call", path = request.uri().path(), namespace)
        })
        .layer(deadline::DeadlineLayer)
}
