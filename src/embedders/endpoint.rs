//! A model behind an OpenAI-compatible endpoint.

use std::{fmt, time::Duration};

use serde::Deserialize;
use serde_json::json;
use treering_meaning::{EmbedError, Embedder, TextRole};
use ureq::Agent;

/// Maximum number of bytes of an answer: 256 vectors of 4,096 dimensions, written as text.
const ANSWER_BYTES_MAX: u64 = 32 << 20;
/// Maximum number of texts of a request.
const TEXTS_MAX: usize = 64;
/// Longest pause that an endpoint may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// Maximum number of bytes of an endpoint's message that an error repeats.
const MESSAGE_BYTES_MAX: usize = 200;

/// Which endpoint, and how long to wait for it.
#[derive(Clone)]
pub struct EndpointOptions {
    /// URL before `/embeddings`, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// Name of the model at the endpoint.
    pub model: String,
    /// Bearer token; empty: no authorization header is sent.
    pub key: String,
    /// Timeout for a whole answer.
    pub timeout: Duration,
}

impl fmt::Debug for EndpointOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointOptions")
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// A model that answers `POST /embeddings` as OpenAI's API does.
#[derive(Debug)]
pub struct EmbeddingEndpoint {
    options: EndpointOptions,
    url: String,
    name: String,
    agent: Agent,
}

impl EmbeddingEndpoint {
    /// Makes a client. Does not connect.
    #[must_use]
    pub fn new(options: EndpointOptions) -> Self {
        let base = options.base_url.trim_end_matches('/');
        let agent = Agent::config_builder()
            .timeout_global(Some(options.timeout))
            .http_status_as_error(false)
            // The key must not be sent to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("treering/", env!("CARGO_PKG_VERSION")));
        Self {
            url: format!("{base}/embeddings"),
            name: format!("{} at {base}", options.model),
            agent: agent.build().new_agent(),
            options,
        }
    }

    fn post(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let body = json!({
            "model": self.options.model,
            "input": texts,
            "encoding_format": "float",
        });
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if !self.options.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.options.key));
        }
        let mut response = request.send(body.to_string()).map_err(unavailable)?;
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        let answer = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .lossy_utf8(true)
            .read_to_string();
        if status == 200 {
            return self.vectors_of(&answer.map_err(unavailable)?, texts.len());
        }
        let said = answer.unwrap_or_default();
        let said = said[..said.floor_char_boundary(MESSAGE_BYTES_MAX)].trim();
        let message = format!("{} answered with status {status}: {said}", self.url);
        match status {
            408 | 409 | 425 | 429 | 500.. => Err(EmbedError::Unavailable {
                message,
                retry_after,
            }),
            400 | 413 | 422 => Err(EmbedError::Refused { message }),
            _ => Err(EmbedError::Failed { message }),
        }
    }

    fn vectors_of(&self, answer: &str, texts: usize) -> Result<Vec<Vec<f32>>, EmbedError> {
        let unusable = |what: &str| EmbedError::Failed {
            message: format!("the answer from {} is unusable: {what}", self.url),
        };
        let answer: Answer =
            serde_json::from_str(answer).map_err(|error| unusable(&error.to_string()))?;
        let mut vectors = vec![Vec::new(); texts];
        for item in answer.data {
            let place = vectors.get_mut(item.index);
            let place = place.ok_or_else(|| unusable("the index of a vector matches no text"))?;
            *place = item.embedding;
        }
        let dimensions = vectors.first().map_or(0, Vec::len);
        if dimensions == 0 || vectors.iter().any(|vector| vector.len() != dimensions) {
            return Err(unusable(
                "a text has no vector, or the vectors differ in length",
            ));
        }
        Ok(vectors)
    }
}

impl Embedder for EmbeddingEndpoint {
    fn model(&self) -> &str {
        &self.name
    }

    fn embed(&self, texts: &[&str], _role: TextRole) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for texts in texts.chunks(TEXTS_MAX) {
            vectors.extend(self.post(texts)?);
        }
        Ok(vectors)
    }
}

fn unavailable(error: ureq::Error) -> EmbedError {
    EmbedError::Unavailable {
        message: error.to_string(),
        retry_after: None,
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    index: usize,
    embedding: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Answers one request on loopback, and returns that request.
    fn answering(
        status: &'static str,
        body: &'static str,
    ) -> (EmbeddingEndpoint, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base_url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let served = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            let mut buffer = [0; 4_096];
            while !String::from_utf8_lossy(&asked).ends_with('}') {
                let read = socket.read(&mut buffer).unwrap();
                asked.extend_from_slice(&buffer[..read]);
            }
            let head = format!("HTTP/1.1 {status}\r\nretry-after: 7\r\nconnection: close\r\n");
            let length = format!("content-length: {}\r\n\r\n", body.len());
            socket
                .write_all(format!("{head}{length}{body}").as_bytes())
                .unwrap();
            String::from_utf8(asked).unwrap()
        });
        let options = EndpointOptions {
            base_url,
            model: "small".into(),
            key: "k-1".into(),
            timeout: Duration::from_secs(10),
        };
        (EmbeddingEndpoint::new(options), served)
    }

    // Endpoints may return vectors in any order. If a text got another text's vector, searches
    // would find nonsense.
    #[test]
    fn vectors_are_given_to_their_texts() {
        let body = r#"{"data": [
            {"index": 1, "embedding": [0.5, 1]}, {"index": 0, "embedding": [2, 3]}]}"#;
        let (endpoint, asked) = answering("200 OK", body);
        let vectors = endpoint.embed(&["one", "two"], TextRole::Passage).unwrap();
        assert_eq!(vectors, [[2.0, 3.0], [0.5, 1.0]]);
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("POST /v1/embeddings "), "{asked}");
        assert!(asked.to_lowercase().contains("authorization: bearer k-1"));
        assert!(asked.contains(r#""input":["one","two"]"#), "{asked}");
        assert!(!format!("{endpoint:?}").contains("k-1"));
    }

    #[test]
    fn rate_limit_says_when_to_try_again() {
        let (endpoint, _) = answering("429 Too Many Requests", "slow down");
        match endpoint.embed(&["one"], TextRole::Query) {
            Err(EmbedError::Unavailable {
                message,
                retry_after,
            }) => {
                assert_eq!(retry_after, Some(Duration::from_secs(7)));
                assert!(message.contains("429") && message.contains("slow down"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unusable_answers_are_refused() {
        for body in [
            "{}",
            r#"{"data": []}"#,
            r#"{"data": [{"index": 5, "embedding": [1]}]}"#,
            r#"{"data": [{"index": 0, "embedding": [1]}]}"#,
            r#"{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}"#,
        ] {
            let (endpoint, _) = answering("200 OK", body);
            let refused = endpoint.embed(&["one", "two"], TextRole::Passage);
            assert!(matches!(refused, Err(EmbedError::Failed { .. })), "{body}");
        }
        let (endpoint, _) = answering("401 Unauthorized", "no such key");
        let refused = endpoint.embed(&["one"], TextRole::Query);
        assert!(matches!(refused, Err(EmbedError::Failed { .. })));
    }

    #[test]
    fn silent_endpoint_is_unavailable() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = EndpointOptions {
            base_url: format!("http://{}", listener.local_addr().unwrap()),
            model: "small".into(),
            key: String::new(),
            timeout: Duration::from_millis(100),
        };
        let silent = EmbeddingEndpoint::new(options).embed(&["one"], TextRole::Query);
        assert!(matches!(silent, Err(EmbedError::Unavailable { .. })));
    }
}
