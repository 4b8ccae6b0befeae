//! Passes requests on and answers back.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use serde_json::json;
use treering_domain::TimestampMicros;
use treering_import::model_call::CallFormat;

use super::{
    CONVERSATION_HEADER,
    exchange::SentRequest,
    queue::CallQueue,
    session::is_id,
    tee::{AnswerCopy, TeeBody},
    upstream::{Upstreams, end_to_end, format_of, request_headers},
};

/// Largest request that is recorded, in bytes. A larger one is passed on as it comes.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Longest wait for a connection to a provider.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of an answer.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, reqwest::Error>;

/// Passes requests on.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder {
    client: reqwest::Client,
    upstreams: Arc<Upstreams>,
    queue: CallQueue,
}

/// The body of a request.
enum RequestBody {
    /// All of it.
    Whole(Bytes),
    /// It is passed on as it comes, because it is not recorded.
    Streamed(reqwest::Body),
}

impl Forwarder {
    /// Makes a forwarder to these providers. The calls to be recorded go into the queue.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn new(upstreams: Upstreams, queue: CallQueue) -> reqwest::Result<Self> {
        // This fails if an embedding program has installed its own provider, which is then used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        Ok(Self {
            client,
            upstreams: Arc::new(upstreams),
            queue,
        })
    }

    /// Answers a request with the provider's answer.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let sent_at = TimestampMicros::now();
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let url = self.upstreams.target(path, &parts.headers);
        let mut format = format_of(&parts.method, parts.uri.path());
        if format.is_none() {
            tracing::debug!(path = parts.uri.path(), "forwarded without recording");
        }
        let body = match format {
            Some(_) => match whole_or_rest(body).await {
                Ok(body) => body,
                Err(error) => {
                    tracing::debug!(%error, "the request was interrupted");
                    return failed(StatusCode::BAD_REQUEST, "the request was interrupted");
                }
            },
            None => RequestBody::Streamed(reqwest::Body::wrap_stream(body.into_data_stream())),
        };
        if matches!(body, RequestBody::Streamed(_)) && format.take().is_some() {
            let max = REQUEST_BYTES_MAX;
            tracing::debug!(max, "a call is not recorded: its request is too large");
        }
        let mut headers = request_headers(&parts.headers, format.is_some());
        let sent = format.zip(body.whole());
        let sent = sent.map(|(format, body)| sent_request(format, body, &parts.headers, sent_at));
        let outgoing = self.client.request(parts.method, &url);
        let outgoing = match body {
            RequestBody::Whole(body) => {
                headers.remove(header::CONTENT_LENGTH);
                outgoing.body(body)
            }
            // A request without a body is also sent without one.
            RequestBody::Streamed(_) if !has_body(&parts.headers) => outgoing,
            RequestBody::Streamed(body) => outgoing.body(body),
        };
        match outgoing.headers(headers).send().await {
            Ok(answer) => self.pass_back(answer, sent),
            Err(error) => {
                let cause = causes(&error.without_url());
                tracing::warn!(url = host_of(&url), cause, "the provider cannot be reached");
                let what = format!("the provider cannot be reached: {cause}");
                failed(StatusCode::BAD_GATEWAY, &what)
            }
        }
    }

    fn pass_back(
        &self,
        answer: reqwest::Response,
        sent: Option<SentRequest>,
    ) -> Response<AnswerBody> {
        let status = answer.status();
        let headers = end_to_end(answer.headers());
        let length = headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        // An error answer has no message to record.
        let copy = sent.filter(|_| status.is_success()).map(|request| {
            let text = |name| text_of(&headers, name);
            let (encoding, kind) = (text(header::CONTENT_ENCODING), text(header::CONTENT_TYPE));
            AnswerCopy::new(request, encoding, kind, self.queue.clone())
        });
        let body = TeeBody::new(answer.bytes_stream().boxed(), copy, length);
        let mut passed = Response::new(body.boxed_unsync());
        *passed.status_mut() = status;
        *passed.headers_mut() = headers;
        passed
    }
}

impl RequestBody {
    fn whole(&self) -> Option<Bytes> {
        match self {
            Self::Whole(body) => Some(body.clone()),
            Self::Streamed(_) => None,
        }
    }
}

/// Reads a body, unless it is too large.
async fn whole_or_rest(body: Incoming) -> Result<RequestBody, hyper::Error> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut pieces = body.into_data_stream();
    let mut whole = BytesMut::new();
    if expected <= REQUEST_BYTES_MAX {
        while let Some(piece) = pieces.next().await {
            whole.extend_from_slice(&piece?);
            if whole.len() > REQUEST_BYTES_MAX {
                return Ok(streamed(whole.freeze(), pieces));
            }
        }
        return Ok(RequestBody::Whole(whole.freeze()));
    }
    Ok(streamed(whole.freeze(), pieces))
}

fn streamed(
    first: Bytes,
    rest: impl Stream<Item = Result<Bytes, hyper::Error>> + Send + 'static,
) -> RequestBody {
    let all = stream::once(async { Ok(first) }).chain(rest);
    RequestBody::Streamed(reqwest::Body::wrap_stream(all))
}

fn sent_request(
    format: CallFormat,
    body: Bytes,
    headers: &HeaderMap,
    sent_at: TimestampMicros,
) -> SentRequest {
    let conversation = text_of(headers, CONVERSATION_HEADER).trim().to_owned();
    SentRequest {
        format,
        body,
        encoding: text_of(headers, header::CONTENT_ENCODING),
        conversation: Some(conversation).filter(|id| is_id(id)),
        client: text_of(headers, header::USER_AGENT),
        sent_at,
    }
}

fn text_of(headers: &HeaderMap, name: impl header::AsHeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    let is_empty = length.is_some_and(|length| length.as_bytes() == b"0");
    (length.is_some() && !is_empty) || headers.contains_key(header::TRANSFER_ENCODING)
}

/// Returns an answer of the proxy itself, in the form of the providers' errors.
fn failed(status: StatusCode, what: &str) -> Response<AnswerBody> {
    let message = format!("treering proxy: {what}");
    let error = json!({"type": "proxy_error", "message": message});
    let body = json!({"type": "error", "error": error}).to_string();
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}
