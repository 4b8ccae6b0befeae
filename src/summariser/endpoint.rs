//! Queries a model at an OpenAI-compatible endpoint.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::sync::oneshot;
use ureq::Agent;

use super::config::EndpointConfig;

/// Largest answer in bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Longest pause that an endpoint may request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Why there is no answer. Never contains the question or the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The endpoint could not be reached, or did not answer in time.
    #[error("the endpoint cannot be reached: {what}")]
    Unreachable {
        /// The cause.
        what: String,
    },
    /// The endpoint answered with a status other than 200.
    #[error("the endpoint answered with status {status}")]
    Status {
        /// HTTP status.
        status: u16,
        /// The pause that it requests.
        retry_after: Option<Duration>,
    },
    /// The answer cannot be used.
    #[error("the endpoint's answer is unusable: {what}")]
    Answer {
        /// What is wrong with it.
        what: &'static str,
    },
}

impl EndpointError {
    /// True when the endpoint fails for every question now; false when it fails only for this one.
    pub(super) fn is_about_the_endpoint(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            // No credit, no key, no such model: these affect every question.
            Self::Status { status, .. } => {
                *status >= 500 || matches!(status, 401 | 402 | 403 | 404 | 408 | 429)
            }
            Self::Answer { .. } => false,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A client of the endpoint. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    config: Arc<EndpointConfig>,
    url: Arc<str>,
    agent: Agent,
    /// Whether to use `max_completion_tokens`, which newer models require; older servers know only
    /// `max_tokens`.
    uses_max_completion_tokens: Arc<AtomicBool>,
}

impl Endpoint {
    pub(crate) fn new(config: EndpointConfig) -> Self {
        let url = format!("{}/chat/completions", config.base_url.trim_end_matches('/'));
        let mut agent = Agent::config_builder()
            .timeout_connect(Some(config.connect_timeout))
            .timeout_global(Some(config.timeout))
            .http_status_as_error(false)
            // The key must not be sent to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("treering/", env!("CARGO_PKG_VERSION")));
        if is_this_machine(&config.base_url) {
            agent = agent.proxy(None);
        }
        Self {
            config: Arc::new(config),
            url: url.into(),
            agent: agent.build().new_agent(),
            uses_max_completion_tokens: Arc::default(),
        }
    }

    /// Returns the model's answer. Dropping the future does not wait for the answer.
    pub(crate) async fn ask(&self, system: String, user: String) -> Result<String, EndpointError> {
        let endpoint = self.clone();
        let (tell, told) = oneshot::channel();
        // A dedicated thread, because the shutdown of a runtime waits for its blocking tasks, and
        // an endpoint may take minutes.
        let thread = std::thread::Builder::new().name("summariser-http".to_owned());
        let spawned = thread.spawn(move || {
            // Fails if nobody waits any more; then the answer is lost, as in a crash.
            let _ = tell.send(endpoint.ask_blocking(&system, &user));
        });
        if spawned.is_err() {
            return Err(unreachable("the thread cannot be started"));
        }
        told.await
            .unwrap_or_else(|_| Err(unreachable("the request was aborted")))
    }

    fn ask_blocking(&self, system: &str, user: &str) -> Result<String, EndpointError> {
        let uses_max_completion_tokens = self.uses_max_completion_tokens.load(Ordering::Relaxed);
        match self.post(system, user, uses_max_completion_tokens)? {
            Reply::Text(text) => Ok(text),
            Reply::NeedsNewerLimitName if uses_max_completion_tokens => {
                Err(EndpointError::Status {
                    status: 400,
                    retry_after: None,
                })
            }
            Reply::NeedsNewerLimitName => {
                self.uses_max_completion_tokens
                    .store(true, Ordering::Relaxed);
                match self.post(system, user, true)? {
                    Reply::Text(text) => Ok(text),
                    Reply::NeedsNewerLimitName => Err(EndpointError::Status {
                        status: 400,
                        retry_after: None,
                    }),
                }
            }
        }
    }

    fn post(
        &self,
        system: &str,
        user: &str,
        uses_max_completion_tokens: bool,
    ) -> Result<Reply, EndpointError> {
        let limit = if uses_max_completion_tokens {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        let body = json!({
            "model": self.config.model,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
            limit: self.config.max_tokens,
        });
        let mut request = self.agent.post(&*self.url).content_type("application/json");
        if let Some(key) = &self.config.key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let mut response = request.send(body.to_string()).map_err(failed)?;
        let status = response.status().as_u16();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let body = body.lossy_utf8(true).read_to_string();
        match status {
            200 => text_of(&body.map_err(failed)?).map(Reply::Text),
            400 if body.is_ok_and(|body| body.contains("max_completion_tokens")) => {
                Ok(Reply::NeedsNewerLimitName)
            }
            status => Err(EndpointError::Status {
                status,
                retry_after,
            }),
        }
    }
}

enum Reply {
    Text(String),
    /// The endpoint requires the newer name of the limit.
    NeedsNewerLimitName,
}

fn unreachable(what: &str) -> EndpointError {
    EndpointError::Unreachable {
        what: what.to_owned(),
    }
}

fn failed(error: ureq::Error) -> EndpointError {
    match error {
        ureq::Error::BodyExceedsLimit(_) => EndpointError::Answer {
            what: "it is too large",
        },
        error => unreachable(&error.to_string()),
    }
}

/// Returns the text of a chat completion.
fn text_of(body: &str) -> Result<String, EndpointError> {
    let wrong = |what| EndpointError::Answer { what };
    let answer: Value = serde_json::from_str(body).map_err(|_| wrong("it is not JSON"))?;
    let text = match &answer["choices"][0]["message"]["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => return Err(wrong("it has no message with text")),
    };
    let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let text: String = text.chars().filter(plain).collect();
    match text.trim() {
        "" => Err(wrong("its text is empty")),
        text => Ok(text.to_owned()),
    }
}

fn is_this_machine(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.split(['/', '?']).next().unwrap_or_default();
    let bare = host.rsplit_once(':').map_or(host, |(host, _)| host);
    matches!(bare, "localhost" | "[::1]") || bare.starts_with("127.")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Servers differ in what they send; an answer without text is not an answer.
    #[test]
    fn endpoint_answers_are_parsed_or_refused() {
        let of = |message: &str| text_of(&format!(r#"{{"choices":[{{"message":{message}}}]}}"#));
        assert_eq!(
            of(r#"{"content":" All \u0007well.\n"}"#),
            Ok("All well.".to_owned())
        );
        let parts = r#"{"content":[{"type":"text","text":"All "},{"type":"text","text":"well."}]}"#;
        assert_eq!(of(parts), Ok("All well.".to_owned()));
        for none in [r#"{"content":null}"#, r#"{"content":" "}"#, "{}"] {
            assert!(
                matches!(of(none), Err(EndpointError::Answer { .. })),
                "{none}"
            );
        }
        assert!(matches!(
            text_of("<html>"),
            Err(EndpointError::Answer { .. })
        ));
    }

    #[test]
    fn loopback_endpoint_bypasses_the_proxy() {
        for (url, expected) in [
            ("http://127.0.0.1:8080/v1", true),
            ("http://localhost/v1", true),
            ("http://[::1]:80", true),
            ("https://api.example.org/v1", false),
        ] {
            assert_eq!(is_this_machine(url), expected, "{url}");
        }
    }
}
