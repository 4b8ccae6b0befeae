//! The door by HTTP (`serve --mcp`): streamable HTTP at `/mcp`, without sessions, so that there
//! is none to take over and none to lose.
//!
//! Each request is asked of the server's own gRPC services as whoever sends it, by the key that
//! it brings: what a key may do there it may do here, and no more. A request from a page in a
//! browser is refused unless its origin was named, and so is one for a host that this is not.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CONNECTION, CONTENT_TYPE, HOST,
        ORIGIN, VARY, WWW_AUTHENTICATE,
    },
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::{JoinHandle, JoinSet},
};

use super::{
    bounds::{
        ACCEPT_PAUSE, HTTP_BODY_MAX, HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX,
        HTTP_HEAD_BYTES_MAX, HTTP_HEAD_MAX, HTTP_PREFLIGHT_SECONDS, MESSAGE_BYTES_MAX,
    },
    message,
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
/// What a page may send beside what every page may.
const PAGE_HEADERS: &str = "authorization, content-type, accept, mcp-protocol-version, \
                            mcp-session-id, mcp-method, mcp-name, last-event-id, \
                            treering-namespace";
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
        let origins = origins(address, &options);
        let service = service(&callers, address, options.hosts, &origins, options.allowed);
        let gate = Gate {
            service,
            origins: origins.into(),
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

/// Origins of pages that may ask: those that were named, and what is served here itself.
fn origins(address: SocketAddr, options: &HttpOptions) -> Vec<String> {
    let port = address.port();
    let own = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("http://{host}:{port}"));
    let named = options.origins.iter();
    let named = named.filter_map(|named| origin(named).ok());
    own.into_iter().chain(named).collect()
}

/// An origin as browsers write it: in small letters, without a port that is the usual one.
///
/// # Errors
/// What it has to be.
pub fn origin(text: &str) -> Result<String, String> {
    let takes = || "an origin is https://HOST or https://HOST:PORT".to_owned();
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| takes())?;
    let (Some(scheme), Some(authority), "/") = (uri.scheme_str(), uri.authority(), uri.path())
    else {
        return Err(takes());
    };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(takes()),
    };
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(takes());
    }
    let host = authority.host().to_ascii_lowercase();
    Ok(match authority.port_u16() {
        Some(port) if port != usual => format!("{scheme}://{host}:{port}"),
        _ => format!("{scheme}://{host}"),
    })
}

fn service(
    callers: &Arc<Callers>,
    address: SocketAddr,
    hosts: Vec<String>,
    origins: &[String],
    allowed: Allowed,
) -> Service {
    let door = AgentDoor::of_server(Arc::clone(callers), allowed);
    let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let hosts = own
        .into_iter()
        .chain([address.ip().to_string()])
        .chain(hosts);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_allowed_hosts(hosts)
        .with_allowed_origins(origins.to_vec())
        .enforce_origin_validation()
        .with_max_request_body_bytes(MESSAGE_BYTES_MAX);
    let manager = Arc::new(NeverSessionManager::default());
    StreamableHttpService::new(move || Ok(door.clone()), manager, config)
}

/// What a request passes before the protocol sees it.
#[derive(Clone)]
struct Gate {
    service: Service,
    origins: Arc<[String]>,
    callers: Arc<Callers>,
}

impl Gate {
    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Answer {
        if request.uri().path() != PATH {
            return told(StatusCode::NOT_FOUND, format!("there is {PATH} here\n"));
        }
        let origin = match self.page(request.headers()) {
            Ok(origin) => origin,
            Err(refused) => return *refused,
        };
        // A browser asks first whether a page may ask, and brings no key with that.
        let is_preflight = origin.is_some() && request.method() == Method::OPTIONS;
        let mut answer = match is_preflight {
            true => preflight(),
            false => self
                .checked(request, place)
                .await
                .unwrap_or_else(|refused| *refused),
        };
        if let Some(origin) = origin {
            let headers = answer.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            let exposed = HeaderValue::from_static("mcp-protocol-version, www-authenticate");
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        answer
    }

    /// The origin of the page that asks; none: it is no page.
    fn page(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, Box<Answer>> {
        if let Some(twice) = [HOST, ORIGIN]
            .into_iter()
            .find(|name| is_unclear(headers, name))
        {
            let text = format!("the header {twice} is not clear\n");
            return Err(told(StatusCode::BAD_REQUEST, text).into());
        }
        let Some(named) = headers.get(ORIGIN) else {
            return Ok(None);
        };
        let known = named.to_str().ok().and_then(|text| origin(text).ok());
        match known.is_some_and(|known| self.origins.contains(&known)) {
            true => Ok(Some(named.clone())),
            false => {
                let text = "pages of this origin may not ask: `serve --mcp-origin` names those \
                            that may\n";
                Err(told(StatusCode::FORBIDDEN, text.into()).into())
            }
        }
    }

    async fn checked(
        &self,
        request: Request<Incoming>,
        place: &Place,
    ) -> Result<Answer, Box<Answer>> {
        if let Err(refusal) = self.callers.check_key(request.headers()) {
            let mut answer = told(StatusCode::UNAUTHORIZED, format!("{refusal}\n"));
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return Err(answer.into());
        }
        let (parts, body) = request.into_parts();
        let body = body_of(body).await?;
        if parts.method == Method::POST
            && let Some(refusal) = message::refusal(&body)
        {
            return Err(unread(refusal).into());
        }
        let _asking = place.asking();
        let request = Request::from_parts(parts, Full::new(body));
        Ok(self.service.handle(request).await)
    }
}

/// Several of a header, or a host with a name before it: what is checked is not what is meant.
fn is_unclear(headers: &HeaderMap, name: &HeaderName) -> bool {
    let mut values = headers.get_all(name).iter();
    let has_at = |value: &HeaderValue| value.as_bytes().contains(&b'@');
    values.next().is_some_and(has_at) || values.next().is_some()
}

/// A body, whole and mended.
async fn body_of(body: Incoming) -> Result<Bytes, Box<Answer>> {
    let body = Limited::new(body, MESSAGE_BYTES_MAX).collect();
    let (status, text) = match tokio::time::timeout(HTTP_BODY_MAX, body).await {
        Ok(Ok(body)) => return Ok(message::mended(&body.to_bytes()).into_owned().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a body has at most {MESSAGE_BYTES_MAX} bytes\n"),
        ),
        Ok(Err(error)) => (
            StatusCode::BAD_REQUEST,
            format!("the body broke off: {error}\n"),
        ),
        Err(_) => (
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the body did not come within {} s\n",
                HTTP_BODY_MAX.as_secs()
            ),
        ),
    };
    let mut answer = told(status, text);
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    Err(answer.into())
}

fn preflight() -> Answer {
    let mut answer = told(StatusCode::NO_CONTENT, String::new());
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("POST"),
    );
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(PAGE_HEADERS),
    );
    headers.insert(ACCESS_CONTROL_MAX_AGE, HTTP_PREFLIGHT_SECONDS.into());
    answer
}

/// The answer to a message that cannot be read.
fn unread(refusal: String) -> Answer {
    let mut answer = told(StatusCode::BAD_REQUEST, refusal);
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}

fn told(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)).boxed());
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    answer
}

/// A connection among all.
#[derive(Debug, Default)]
struct Place {
    /// A whole request came, and its answer is made.
    is_asking: AtomicBool,
    /// It has to give way.
    away: Notify,
}

impl Place {
    fn asking(&self) -> Asking<'_> {
        self.is_asking.store(true, Ordering::Relaxed);
        Asking(self)
    }
}

/// While an answer is made.
struct Asking<'a>(&'a Place);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::Relaxed);
    }
}

/// The connections, in the order that they came.
#[derive(Clone, Debug, Default)]
struct Places(Arc<Mutex<BTreeMap<u64, Arc<Place>>>>);

impl Places {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<u64, Arc<Place>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends the oldest one away that asks nothing: who begins a request and does not end it
    /// keeps nobody out.
    fn make_room(&self) {
        let oldest = self.with(|places| {
            let idle = |place: &Place| !place.is_asking.load(Ordering::Relaxed);
            let (number, _) = places.iter().find(|(_, place)| idle(place))?;
            let number = *number;
            places.remove(&number)
        });
        if let Some(oldest) = oldest {
            oldest.away.notify_one();
        }
    }
}

async fn serve(listener: TcpListener, gate: Gate) {
    let room = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
    let places = Places::default();
    let mut connections = JoinSet::new();
    for number in 0_u64.. {
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the door for agents cannot accept; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if room.available_permits() == 0 {
            places.make_room();
        }
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let place = Arc::new(Place::default());
        places.with(|places| places.insert(number, Arc::clone(&place)));
        let (gate, places) = (gate.clone(), places.clone());
        connections.spawn(async move {
            let served = one_connection(TokioIo::new(stream), gate, &place);
            tokio::select! {
                _ended = tokio::time::timeout(HTTP_CONNECTION_MAX, served) => {}
                () = place.away.notified() => {}
            }
            places.with(|places| places.remove(&number));
            drop(permit);
        });
    }
}

async fn one_connection(io: TokioIo<TcpStream>, gate: Gate, place: &Place) {
    let service = service_fn(|request: Request<Incoming>| {
        let gate = &gate;
        async move { Ok::<_, Infallible>(gate.answer(request, place).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HTTP_HEAD_MAX)
        // It panics under a clock before 1970 or far ahead.
        .auto_date_header(false)
        .max_buf_size(HTTP_HEAD_BYTES_MAX)
        .serve_connection(io, service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection of an agent broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What no browser ever sends was taken as an origin, and let in nobody.
    #[test]
    fn origins_are_as_browsers_write_them() {
        for (text, expected) in [
            ("https://App.example", "https://app.example"),
            ("https://app.example:443/", "https://app.example"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(expected));
        }
        for wrong in [
            "foo",
            "null",
            "",
            "*",
            "https://",
            "ftp://a",
            "https://a/b",
            "https://b@a",
            "https://a?b",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    // Who is answered is not sent away for who comes.
    #[test]
    fn who_asks_keeps_its_place() {
        let places = Places::default();
        let one = |number| {
            let place = Arc::new(Place::default());
            places.with(|places| places.insert(number, Arc::clone(&place)));
            place
        };
        let (first, _second) = (one(1), one(2));
        let asking = first.asking();
        places.make_room();
        assert_eq!(
            places.with(|places| places.keys().copied().collect::<Vec<_>>()),
            [1]
        );
        places.make_room();
        assert_eq!(places.with(|places| places.len()), 1);
        drop(asking);
        places.make_room();
        assert!(places.with(|places| places.is_empty()));
    }
}
