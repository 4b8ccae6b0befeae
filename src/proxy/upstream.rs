//! The target of a request, and the headers that are passed on with it.

use http::{HeaderMap, HeaderName, Method, header};
use reqwest::Url;
use treering_import::model_call::CallFormat;

use super::CONVERSATION_HEADER;

/// Headers of one connection, which are never passed on.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that must not appear in logs of any level.
const SECRETS: [&str; 4] = ["authorization", "x-api-key", "api-key", "cookie"];

/// Encodings from which a recorded answer can be decoded.
const READ_ENCODINGS: [&str; 5] = ["gzip", "x-gzip", "deflate", "zstd", "identity"];

/// Why the address of a provider cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamFault {
    /// It is not a URL.
    #[error("`{0}` is not a URL")]
    NotAUrl(String),
    /// It is not an HTTP URL, or it has a query or fragment.
    #[error("`{0}` is not an http:// or https:// URL without query")]
    NotHttp(String),
}

/// The providers.
#[derive(Clone, Debug)]
pub struct Upstreams {
    openai: String,
    anthropic: String,
}

impl Upstreams {
    /// Checks the base URLs.
    ///
    /// # Errors
    /// [`UpstreamFault`] for the first URL that cannot be used.
    pub fn new(openai: &str, anthropic: &str) -> Result<Self, UpstreamFault> {
        Ok(Self {
            openai: base(openai)?,
            anthropic: base(anthropic)?,
        })
    }

    /// Returns the URL for a request. Requests of Anthropic's clients go to Anthropic, all others
    /// to the provider with OpenAI's API.
    pub(crate) fn target(&self, path_and_query: &str, headers: &HeaderMap) -> String {
        let path = path_and_query.split('?').next().unwrap_or_default();
        let is_messages = path == "/v1/messages" || path.starts_with("/v1/messages/");
        let mut names = headers.keys();
        let is_anthropic = is_messages || names.any(|name| name.as_str().starts_with("anthropic-"));
        let base = match is_anthropic {
            true => &self.anthropic,
            false => &self.openai,
        };
        // Both the base URL and the path may have the version.
        let rest = match path_and_query.strip_prefix("/v1") {
            Some(rest) if base.ends_with("/v1") && rest.starts_with(['/', '?']) => rest,
            _ => path_and_query,
        };
        format!("{base}{rest}")
    }
}

fn base(url: &str) -> Result<String, UpstreamFault> {
    let parsed = Url::parse(url).map_err(|_| UpstreamFault::NotAUrl(url.to_owned()))?;
    let is_http = matches!(parsed.scheme(), "http" | "https") && parsed.has_host();
    if !is_http || parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(UpstreamFault::NotHttp(url.to_owned()));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Returns the format of a call that is recorded; `None` for any other request.
pub(crate) fn format_of(method: &Method, path: &str) -> Option<CallFormat> {
    if method != Method::POST {
        return None;
    }
    match path.strip_prefix("/v1").unwrap_or(path) {
        "/chat/completions" => Some(CallFormat::ChatCompletions),
        "/responses" => Some(CallFormat::Responses),
        "/messages" => Some(CallFormat::Messages),
        _ => None,
    }
}

/// Returns the request headers to pass on, including the client's API key.
pub(crate) fn request_headers(headers: &HeaderMap, is_recorded: bool) -> HeaderMap {
    let mut passed = end_to_end(headers);
    for name in [header::HOST, header::EXPECT] {
        passed.remove(name);
    }
    passed.remove(CONVERSATION_HEADER);
    for name in SECRETS {
        if let Some(secret) = passed.get_mut(name) {
            secret.set_sensitive(true);
        }
    }
    if is_recorded {
        limit_encodings(&mut passed);
    }
    passed
}

/// Returns the headers that are not specific to one connection.
pub(crate) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut passed = headers.clone();
    let named = headers.get_all(header::CONNECTION).iter();
    let named = named.filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        if let Ok(name) = HeaderName::try_from(name.trim()) {
            passed.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        passed.remove(name);
    }
    passed
}

/// Removes accepted encodings that cannot be decoded.
fn limit_encodings(headers: &mut HeaderMap) {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let accepted: Vec<String> = accepted
        .flat_map(|names| names.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| {
            let encoding = name.split(';').next().unwrap_or_default().trim();
            READ_ENCODINGS.contains(&encoding.to_ascii_lowercase().as_str())
        })
        .collect();
    if !headers.contains_key(header::ACCEPT_ENCODING) {
        return;
    }
    headers.remove(header::ACCEPT_ENCODING);
    let accepted = match accepted.is_empty() {
        true => "identity".to_owned(),
        false => accepted.join(", "),
    };
    if let Ok(value) = accepted.try_into() {
        headers.insert(header::ACCEPT_ENCODING, value);
    }
}
