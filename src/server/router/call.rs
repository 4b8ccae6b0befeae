//! A call that is being routed: its head, its first message, and whether it can be sent twice.

use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{
    HeaderValue, Request,
    header::{CONTENT_LENGTH, HeaderName},
    request::Parts,
};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use futures::StreamExt;

use super::spans::EXPORT;
use crate::{call, guard::Caller};
use treering_domain::Namespace;
use treering_proto::{
    access,
    pb::{Access, RouteTo},
    route::{self, MethodRoute},
};

/// gRPC's message prefix: a compression flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// A call that is being routed.
pub(super) struct RoutedCall {
    pub(super) head: CallHead,
    body: RequestBody,
}

/// What a call says besides its messages.
pub(super) struct CallHead {
    parts: Parts,
    pub(super) route: &'static MethodRoute,
    pub(super) namespace: Namespace,
    /// The client's deadline.
    pub(super) deadline: Option<Instant>,
    /// The method may be executed twice: it changes nothing, or changes nothing the second time.
    pub(super) may_repeat: bool,
}

enum RequestBody {
    /// The only message, with its prefix.
    Whole(Bytes),
    /// The first message, and the stream of the others.
    Stream(Bytes, Body),
    /// A stream that was passed on.
    Gone,
}

impl RoutedCall {
    /// Reads the first message of a call, and the end of a call with one message. Of a stream,
    /// nothing is read unless its first message decides the shard (`reads_first`): a client may
    /// wait for the head of the answer before it sends anything.
    ///
    /// # Errors
    /// Why the message was refused.
    pub(super) async fn read(
        request: Request<Body>,
        route: &'static MethodRoute,
        reads_first: bool,
    ) -> Result<Self, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller = caller.ok_or_else(|| Status::internal("the call has no caller"))?;
        let namespace = caller.namespace.clone();
        let deadline = call::timeout_of(request.headers());
        let deadline = deadline.map(|timeout| Instant::now() + timeout);
        let may_repeat = may_repeat(request.uri().path());
        let (parts, mut body) = request.into_parts();
        let first = match route.client_streams && !reads_first {
            true => Bytes::new(),
            false => next_data(&mut body).await?.unwrap_or_default(),
        };
        let body = match route.client_streams {
            true => RequestBody::Stream(first, body),
            false => {
                // Admission refuses a second message here.
                while next_data(&mut body).await?.is_some() {}
                RequestBody::Whole(first)
            }
        };
        let head = CallHead {
            parts,
            route,
            namespace,
            deadline,
            may_repeat,
        };
        Ok(Self { head, body })
    }

    /// Returns all messages.
    pub(super) fn into_stream(mut self) -> Body {
        self.request().map_or_else(Body::empty, Request::into_body)
    }

    /// Returns the first message without its prefix; empty if there is none.
    pub(super) fn message(&self) -> Bytes {
        match &self.body {
            RequestBody::Whole(first) | RequestBody::Stream(first, _) => {
                first.slice(PREFIX_BYTES.min(first.len())..)
            }
            RequestBody::Gone => Bytes::new(),
        }
    }

    /// Replaces the only message.
    pub(super) fn replace(&mut self, message: Bytes) {
        self.body = RequestBody::Whole(with_prefix(&message));
    }

    /// Returns true if the client's deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        let deadline = self.head.deadline;
        deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns true if the request can be sent (again).
    pub(super) fn can_be_sent(&self) -> bool {
        !matches!(self.body, RequestBody::Gone)
    }

    /// Returns the request to send, with what is left of the deadline. `None` if its stream was
    /// passed on before.
    pub(super) fn request(&mut self) -> Option<Request<Body>> {
        let body = match std::mem::replace(&mut self.body, RequestBody::Gone) {
            RequestBody::Whole(message) => {
                self.body = RequestBody::Whole(message.clone());
                match message.is_empty() {
                    true => Body::empty(),
                    false => Body::new(Full::new(message)),
                }
            }
            RequestBody::Stream(first, rest) => {
                let first = Some(first).filter(|first| !first.is_empty());
                let first = first.map(|first| Ok::<_, Status>(http_body::Frame::data(first)));
                let rest = rest
                    .into_data_stream()
                    .map(|data| data.map(http_body::Frame::data));
                Body::new(StreamBody::new(futures::stream::iter(first).chain(rest)))
            }
            RequestBody::Gone => return None,
        };
        let mut parts = self.head.parts.clone();
        // The body was decompressed, and clients need not send the length.
        parts.headers.remove(CONTENT_LENGTH);
        if let Some(deadline) = self.head.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            parts.headers.insert(TIMEOUT, timeout_header(left));
        }
        Some(Request::from_parts(parts, body))
    }
}

impl CallHead {
    /// Returns who calls.
    pub(super) fn caller(&self) -> Option<Caller> {
        self.parts.extensions.get::<Caller>().cloned()
    }

    /// Returns the method.
    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// Returns true if the call has this metadata.
    pub(super) fn has(&self, key: &HeaderName) -> bool {
        self.parts.headers.contains_key(key)
    }

    /// Sets metadata.
    pub(super) fn insert(&mut self, key: HeaderName, value: HeaderValue) {
        self.parts.headers.insert(key, value);
    }

    /// Removes metadata.
    pub(super) fn remove(&mut self, key: &HeaderName) {
        self.parts.headers.remove(key);
    }

    /// Returns the head of a call whose answer this node reads itself.
    pub(super) fn read_here(&self) -> Self {
        let mut parts = self.parts.clone();
        // The answer must not be compressed.
        parts.headers.remove("grpc-accept-encoding");
        parts.headers.remove("grpc-encoding");
        Self {
            parts,
            route: self.route,
            namespace: self.namespace.clone(),
            deadline: self.deadline,
            may_repeat: self.may_repeat,
        }
    }

    /// Returns a call of a method with one message, from the same caller. Its answer is read here.
    pub(super) fn beside(&self, path: &str, message: Bytes) -> RoutedCall {
        let mut head = self.read_here();
        head.parts.uri = path.parse().unwrap_or_default();
        head.route = route::of(path).unwrap_or(&NOWHERE);
        head.may_repeat = may_repeat(path);
        let body = RequestBody::Whole(message);
        RoutedCall { head, body }
    }

    /// Returns this call with a stream of messages.
    pub(super) fn with_stream(self, messages: Body) -> RoutedCall {
        RoutedCall {
            head: self,
            body: RequestBody::Stream(Bytes::new(), messages),
        }
    }
}

/// Returns the next data of a body; `None` at its end.
pub(super) async fn next_data(body: &mut Body) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Returns a message with its prefix.
pub(super) fn prefixed(message: &impl prost::Message) -> Bytes {
    with_prefix(&message.encode_to_vec())
}

/// Returns an encoded message with its prefix.
pub(super) fn with_prefix(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}

/// Decodes the first message of an answer.
///
/// # Errors
/// `INTERNAL` if there is none.
pub(super) fn decoded<M: prost::Message + Default>(mut answer: Bytes) -> Result<M, Status> {
    let broken = || Status::internal("a node sent an answer that cannot be decoded");
    if answer.len() < PREFIX_BYTES || answer[0] != 0 {
        return Err(broken());
    }
    answer.advance(PREFIX_BYTES);
    M::decode(answer).map_err(|_| broken())
}

/// Returns the value of `grpc-timeout`, which has at most eight digits. It is rounded up: a forwarded
/// call that ended before the client's deadline would look like the loss of the owner.
fn timeout_header(left: Duration) -> HeaderValue {
    const DIGITS_8: u128 = 99_999_999;
    let text = match left.as_nanos().div_ceil(1_000_000) {
        millis @ 0..=DIGITS_8 => format!("{millis}m"),
        millis => format!("{}S", millis.div_ceil(1_000).min(DIGITS_8)),
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("99999999S"))
}

fn may_repeat(path: &str) -> bool {
    let access = access::METHODS.iter().find(|(method, _)| *method == path);
    path == EXPORT || access.is_some_and(|(_, access)| *access == Access::Reader)
}

/// The route of methods that are not of `treering.v1` but change a store.
pub(super) const NOWHERE: MethodRoute = MethodRoute {
    conversation: &[],
    to: RouteTo::Nowhere,
    client_streams: false,
    server_streams: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    // A client waited for a decision for 200 ms, through a node that does not own the shard. The
    // forwarded call ended less than a millisecond early, and the client got an error about a lost
    // owner instead of DEADLINE_EXCEEDED.
    #[test]
    fn forwarded_deadline_is_never_earlier() {
        let sent = |micros| timeout_header(Duration::from_micros(micros));
        assert_eq!(sent(199_001), "200m");
        assert_eq!(sent(200_000), "200m");
        assert_eq!(sent(99_999_999_001), "100000S");
        assert_eq!(sent(u64::MAX), "99999999S");
    }
}
