//! The interface over HTTP, on the port of the services: streamable HTTP at `/mcp`. It has no
//! sessions, so none can be hijacked or lost.
//!
//! Each request is sent to the server's own gRPC services with the caller's key or client
//! certificate, so the same permissions apply. A request from a web page is refused unless its
//! origin is the server's own or an allowed one. A request for another host name is refused too.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, CONNECTION, CONTENT_TYPE, VARY,
        WWW_AUTHENTICATE,
    },
    request::Parts,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use rmcp::{
    ServerHandler,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};
use tokio::sync::{Notify, Semaphore};
use tonic::body::Body;

use super::{
    bounds::{
        HTTP_BODIES_MAX, HTTP_BODY_MAX, HTTP_PREFLIGHT_SECONDS, HTTP_REFUSED_BYTES,
        HTTP_REFUSED_WAIT, HTTP_REQUESTS_MAX, MESSAGE_BYTES_MAX,
    },
    message,
    server::AgentHandler,
    tools::AgentPermissions,
};
use treering_access::{CallerProof, KeyRefusal, KeyStore};
use treering_client::{ClientError, Connection};
use treering_server::{NAMESPACE_KEY, ServedStore, WebPlace, WebRefusal, WebService, shown_by};

/// The path of the interface.
pub const MCP_PATH: &str = "/mcp";
/// Headers that pages may send besides the standard ones.
const PAGE_HEADERS: &str = "authorization, content-type, accept, mcp-protocol-version, \
                            mcp-session-id, mcp-method, mcp-name, last-event-id, \
                            treering-namespace";
/// The default namespace.
const NAMESPACE: &str = "default";

type Answer = Response<Body>;

/// Options of this interface.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// What agents may do besides reading.
    pub allowed: AgentPermissions,
    /// Origins whose pages may send requests, as browsers write them.
    pub origins: Vec<String>,
}

/// The store of a server, used with each caller's permissions.
pub(crate) struct Callers {
    store: Connection,
    keys: Arc<KeyStore>,
}

impl fmt::Debug for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callers").finish_non_exhaustive()
    }
}

impl Callers {
    async fn of(store: ServedStore, keys: Arc<KeyStore>) -> Result<Arc<Self>, ClientError> {
        let store = Connection::beside(store, Arc::clone(&keys)).await?;
        Ok(Arc::new(Self { store, keys }))
    }

    /// Returns a connection for the caller of a request.
    ///
    /// # Errors
    /// [`ClientError::Usage`] when the namespace is not valid.
    pub(crate) fn connection(
        &self,
        request: Option<&Parts>,
    ) -> Result<Arc<Connection>, ClientError> {
        let namespace = request.and_then(|parts| parts.headers.get(NAMESPACE_KEY));
        let namespace = match namespace.map(HeaderValue::to_str) {
            None => NAMESPACE,
            // An unreadable name becomes `?`, which is refused with an error.
            Some(namespace) => namespace.unwrap_or("?"),
        };
        // Unreadable credentials count as none: the services refuse the call if they require a key.
        let proof = request.and_then(|parts| self.proof(parts).ok());
        let proof = proof.unwrap_or(CallerProof::Nothing);
        self.store.as_caller(namespace, &proof).map(Arc::new)
    }

    fn proof(&self, request: &Parts) -> Result<CallerProof, KeyRefusal> {
        self.keys.reload_if_changed();
        if self.keys.is_open() {
            return Ok(CallerProof::Nothing);
        }
        let shown = shown_by(&request.headers, &request.extensions)?;
        shown.ok_or(KeyRefusal::Missing)
    }

    fn check(&self, request: &Parts) -> Result<(), KeyRefusal> {
        self.proof(request)?.holder(&self.keys).map(|_| ())
    }
}

/// The interface of a server.
#[derive(Debug)]
pub struct HttpEndpoint {
    gate: Arc<Gate>,
}

impl HttpEndpoint {
    /// Opens the interface for a store that this process serves at this address.
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn open(
        store: ServedStore,
        keys: Arc<KeyStore>,
        place: WebPlace,
        options: HttpOptions,
    ) -> Result<Self, ClientError> {
        let callers = Callers::of(store, keys).await?;
        let door = AgentHandler::of_server(Arc::clone(&callers), options.allowed);
        Ok(Self::to(door, callers, place, options.origins))
    }

    /// Opens the interface for tools other than the store's: requests pass the same checks, and
    /// this handler answers them.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_to(
        handler: impl ServerHandler + Clone,
        store: ServedStore,
        keys: Arc<KeyStore>,
        place: WebPlace,
    ) -> Result<Self, ClientError> {
        let callers = Callers::of(store, keys).await?;
        Ok(Self::to(handler, callers, place, Vec::new()))
    }

    fn to(
        handler: impl ServerHandler + Clone,
        callers: Arc<Callers>,
        place: WebPlace,
        origins: Vec<String>,
    ) -> Self {
        Self {
            gate: Arc::new(Gate {
                protocol: protocol(handler),
                place,
                origins,
                callers,
                coming: IncomingBodies::default(),
                requests: Semaphore::new(HTTP_REQUESTS_MAX),
            }),
        }
    }

    /// Returns the web service that answers agents.
    #[must_use]
    pub fn web(&self) -> WebService {
        let gate = Arc::clone(&self.gate);
        WebService::new(move |request| {
            let gate = Arc::clone(&gate);
            async move { gate.answer(request).await }
        })
    }

    /// Closes the interface. The store belongs to the server, which closes it.
    pub async fn close(self) {
        // `into_inner` returns `None` while requests are still being answered. In that case, the
        // last of them drops the connection.
        let callers = Arc::into_inner(self.gate).map(|gate| {
            drop(gate.protocol);
            gate.callers
        });
        if let Some(callers) = callers.and_then(Arc::into_inner)
            && let Err(error) = callers.store.close().await
        {
            tracing::warn!(%error, "the MCP endpoint was not closed cleanly");
        }
    }
}

/// Returns the protocol service. Hosts and origins are checked by the gate.
fn protocol(handler: impl ServerHandler + Clone) -> WebService {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(MESSAGE_BYTES_MAX);
    let manager = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(handler.clone()), manager, config);
    let service = Arc::new(service);
    WebService::new(move |request| {
        let service = Arc::clone(&service);
        async move { service.handle(request).await.map(Body::new) }
    })
}

/// The checks before the protocol.
struct Gate {
    protocol: WebService,
    place: WebPlace,
    origins: Vec<String>,
    callers: Arc<Callers>,
    coming: IncomingBodies,
    requests: Semaphore,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    async fn answer(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        if parts.uri.path() != MCP_PATH {
            discard_body(&parts, body).await;
            return told(
                StatusCode::NOT_FOUND,
                format!("unknown path; use {MCP_PATH}\n"),
            );
        }
        let (headers, method) = (&parts.headers, &parts.method);
        let page = self.place.host(headers, &parts.uri).and_then(|host| {
            self.place
                .check_origin(&host, method, headers, &self.origins)
        });
        let origin = match page {
            Ok(origin) => origin,
            Err(refusal) => {
                discard_body(&parts, body).await;
                return turned_away(&refusal);
            }
        };
        // A preflight request of a browser, which has no key.
        let is_preflight = origin.is_some() && *method == Method::OPTIONS;
        let mut answer = match is_preflight {
            true => preflight(),
            false => self
                .checked(parts, body)
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

    async fn checked(&self, parts: Parts, body: Body) -> Result<Answer, Box<Answer>> {
        if let Err(refusal) = self.callers.check(&parts) {
            discard_body(&parts, body).await;
            let mut answer = told(StatusCode::UNAUTHORIZED, format!("{refusal}\n"));
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return Err(answer.into());
        }
        let body = self.coming.whole(body).await.map_err(|mut refused| {
            // The rest of the body is not read, so the connection must close. HTTP/2 closes only
            // the stream.
            if parts.version < Version::HTTP_2 {
                let close = HeaderValue::from_static("close");
                refused.headers_mut().insert(CONNECTION, close);
            }
            refused
        })?;
        if parts.method == Method::POST
            && let Some(refusal) = message::refusal(&body)
        {
            return Err(unread(refusal).into());
        }
        let Ok(_permit) = self.requests.try_acquire() else {
            let text = "too many requests are running: retry in a moment\n";
            return Err(told(StatusCode::SERVICE_UNAVAILABLE, text.into()).into());
        };
        let request = Request::from_parts(parts, Body::new(Full::new(body)));
        Ok(self.protocol.answer(request).await)
    }
}

/// Bodies that are being received, in order of arrival. A client that never finishes one cannot
/// keep others out: the oldest is cancelled.
#[derive(Debug, Default)]
struct IncomingBodies {
    next: AtomicU64,
    bodies: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

/// A body that is being received.
struct IncomingBody<'a> {
    coming: &'a IncomingBodies,
    number: u64,
    away: Arc<Notify>,
}

impl Drop for IncomingBody<'_> {
    fn drop(&mut self) {
        self.coming.with(|bodies| bodies.remove(&self.number));
    }
}

impl IncomingBodies {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<u64, Arc<Notify>>) -> T) -> T {
        work(&mut self.bodies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn one(&self) -> IncomingBody<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let away = Arc::new(Notify::new());
        self.with(|bodies| {
            if bodies.len() >= HTTP_BODIES_MAX
                && let Some((_, oldest)) = bodies.pop_first()
            {
                oldest.notify_one();
            }
            bodies.insert(number, Arc::clone(&away));
        });
        IncomingBody {
            coming: self,
            number,
            away,
        }
    }

    /// Receives a complete body and repairs its JSON.
    async fn whole(&self, body: Body) -> Result<Bytes, Box<Answer>> {
        let place = self.one();
        tokio::select! {
            body = body_of(body) => body,
            () = place.away.notified() => {
                let text = "too many incomplete requests: this one was the oldest\n";
                Err(told(StatusCode::SERVICE_UNAVAILABLE, text.into()).into())
            }
        }
    }
}

async fn body_of(body: Body) -> Result<Bytes, Box<Answer>> {
    let body = Limited::new(body, MESSAGE_BYTES_MAX).collect();
    let (status, text) = match tokio::time::timeout(HTTP_BODY_MAX, body).await {
        Ok(Ok(body)) => return Ok(message::repair_json(&body.to_bytes()).into_owned().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than {MESSAGE_BYTES_MAX} bytes\n"),
        ),
        Ok(Err(error)) => (
            StatusCode::BAD_REQUEST,
            format!("the body was interrupted: {error}\n"),
        ),
        Err(_) => (
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the body did not arrive within {} s\n",
                HTTP_BODY_MAX.as_secs()
            ),
        ),
    };
    Err(told(status, text).into())
}

/// Discards the rest of a refused request's body. In HTTP/2, a stream that ends before its body was
/// received is reset, and some clients report that instead of the answer.
async fn discard_body(parts: &Parts, body: Body) {
    if parts.version < Version::HTTP_2 {
        return;
    }
    let mut body = Limited::new(body, HTTP_REFUSED_BYTES);
    let passing = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(HTTP_REFUSED_WAIT, passing).await;
}

fn turned_away(refusal: &WebRefusal) -> Answer {
    let hint = match refusal {
        WebRefusal::OtherSite => ": allow the site with `serve --mcp-origin`",
        WebRefusal::OtherHost(_) => ": allow the name with `serve --web-host`",
        WebRefusal::NoHost | WebRefusal::Unclear(_) => "",
    };
    told(refusal.status(), format!("{refusal}{hint}\n"))
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

/// Returns the answer to an unreadable message.
fn unread(refusal: String) -> Answer {
    let mut answer = told(StatusCode::BAD_REQUEST, refusal);
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}

fn told(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Body::new(Full::new(Bytes::from(text))));
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    // Clients that began requests and never finished them kept all others out: the oldest must be
    // cancelled, and a finished one must leave nothing behind.
    #[tokio::test]
    async fn oldest_request_body_is_cancelled_at_the_limit() {
        let coming = IncomingBodies::default();
        let mut bodies: Vec<_> = (0..HTTP_BODIES_MAX).map(|_| coming.one()).collect();
        let one_more = coming.one();
        bodies[0].away.notified().await;
        assert_eq!(coming.with(|bodies| bodies.len()), HTTP_BODIES_MAX);
        drop(one_more);
        bodies.clear();
        assert!(coming.with(|bodies| bodies.is_empty()));
    }
}
