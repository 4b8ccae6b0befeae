//! The door by HTTP (`serve --mcp`): streamable HTTP at `/mcp`, without sessions, so that there
//! is none to take over and none to lose.
//!
//! Each request is asked of the server's own gRPC services as whoever sends it, by the key that
//! it brings: what a key may do there it may do here, and no more. A request from a page in a
//! browser is refused unless its origin was named, and so is one for a host that this is not.

use std::{convert::Infallible, fmt, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, WWW_AUTHENTICATE},
};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use super::{
    bounds::{
        ACCEPT_PAUSE, HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX,
        MESSAGE_BYTES_MAX,
    },
    server::AgentDoor,
    tools::Allowed,
};
use crate::{
    access::{KeyRefusal, KeyRing},
    cli::{CliError, Connection},
    engine::Engine,
    server::{NAMESPACE_KEY, bearer},
};

/// Where it is.
const PATH: &str = "/mcp";
/// The namespace of who names none.
const NAMESPACE: &str = "default";

type Answer = Response<BoxBody<Bytes, Infallible>>;
type Service = StreamableHttpService<AgentDoor, NeverSessionManager>;

/// How it is served.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// What agents may do besides looking.
    pub allowed: Allowed,
    /// Hosts that requests may be for, besides this machine's own names.
    pub hosts: Vec<String>,
    /// Origins of pages that may send requests.
    pub origins: Vec<String>,
}

/// A store's server, asked as whoever calls.
pub struct Callers {
    store: Connection,
    keys: Arc<KeyRing>,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

impl Callers {
    /// The store for a request with these headers.
    ///
    /// # Errors
    /// [`CliError::Usage`] for what is no namespace.
    pub fn connection(&self, headers: Option<&HeaderMap>) -> Result<Arc<Connection>, CliError> {
        let namespace = headers.and_then(|headers| headers.get(NAMESPACE_KEY));
        let namespace = match namespace.map(HeaderValue::to_str) {
            None => NAMESPACE,
            // It is refused by name.
            Some(namespace) => namespace.unwrap_or("?"),
        };
        let key = headers.and_then(bearer);
        self.store.as_caller(namespace, key).map(Arc::new)
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), KeyRefusal> {
        self.keys.look();
        if self.keys.is_open() {
            return Ok(());
        }
        let key = bearer(headers).ok_or(KeyRefusal::Missing)?;
        self.keys.holder(key).map(|_| ())
    }
}

/// A listener that serves.
#[derive(Debug)]
pub struct HttpDoor {
    address: SocketAddr,
    callers: Arc<Callers>,
    serving: JoinHandle<()>,
}

impl HttpDoor {
    /// Begins to serve an engine.
    ///
    /// # Errors
    /// When the listener has no address, or the engine cannot be reached.
    pub async fn open(
        listener: TcpListener,
        engine: Engine,
        keys: Arc<KeyRing>,
        options: HttpOptions,
    ) -> Result<Self, CliError> {
        let address = listener.local_addr()?;
        let store = Connection::to_engine(engine, Arc::clone(&keys)).await?;
        let callers = Arc::new(Callers { store, keys });
        let service = service(&callers, address, options);
        let gate = Gate {
            service,
            callers: Arc::clone(&callers),
        };
        Ok(Self {
            address,
            callers,
            serving: tokio::spawn(serve(listener, gate)),
        })
    }

    /// Where agents on this machine reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Ends it. The engine is the server's, which ends it itself.
    pub async fn close(self) {
        self.serving.abort();
        // It is over either way.
        let _ended = self.serving.await;
        if let Some(callers) = Arc::into_inner(self.callers)
            && let Err(error) = callers.store.close().await
        {
            tracing::warn!(%error, "the door for agents was not closed cleanly");
        }
    }
}

fn service(callers: &Arc<Callers>, address: SocketAddr, options: HttpOptions) -> Service {
    let door = AgentDoor::of_server(Arc::clone(callers), options.allowed);
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let hosts = own
        .into_iter()
        .chain([address.ip().to_string()])
        .chain(options.hosts);
    // A page of this very address is none of somebody else's.
    let port = address.port();
    let pages = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("http://{host}:{port}"));
    let origins = pages.into_iter().chain(options.origins);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_allowed_hosts(hosts)
        .with_allowed_origins(origins)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MESSAGE_BYTES_MAX);
    let manager = Arc::new(NeverSessionManager::default());
    StreamableHttpService::new(move || Ok(door.clone()), manager, config)
}

/// What a request passes before the protocol sees it.
#[derive(Clone)]
struct Gate {
    service: Service,
    callers: Arc<Callers>,
}

impl Gate {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if request.uri().path() != PATH {
            return told(StatusCode::NOT_FOUND, format!("there is {PATH} here\n"));
        }
        // A browser asks first whether it may; it may not unless the protocol says so.
        if request.method() != Method::OPTIONS
            && let Err(refusal) = self.callers.check_key(request.headers())
        {
            let mut answer = told(StatusCode::UNAUTHORIZED, format!("{refusal}\n"));
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return answer;
        }
        self.service.handle(request).await
    }
}

fn told(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed());
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    answer
}

async fn serve(listener: TcpListener, gate: Gate) {
    let room = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the door for agents cannot accept; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let gate = gate.clone();
        connections.spawn(async move {
            let served = one_connection(TokioIo::new(stream), gate);
            let _ended = tokio::time::timeout(HTTP_CONNECTION_MAX, served).await;
            drop(permit);
        });
    }
}

async fn one_connection(io: TokioIo<TcpStream>, gate: Gate) {
    let service = service_fn(|request: Request<Incoming>| {
        let gate = &gate;
        async move { Ok::<_, Infallible>(gate.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // It panics under a clock before 1970 or far ahead.
        .auto_date_header(false)
        .max_buf_size(HTTP_HEAD_BYTES_MAX)
        .serve_connection(io, service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of an agent broke");
    }
}
