//! What a summariser is told.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use crate::{domain::Namespace, measure::Total};

/// How a summariser works. [`SummariserConfig::new`] has defaults for all but
/// the endpoint.
#[derive(Clone, Debug)]
pub struct SummariserConfig {
    /// Whom to ask.
    pub endpoint: EndpointConfig,
    /// Whose conversations are summarised.
    pub namespaces: Vec<Namespace>,
    /// What is done.
    pub tasks: Tasks,
    /// Results with at least so many bytes of text get a snapshot by the model;
    /// for smaller ones the engine's own extract says enough.
    pub snapshot_bytes_min: usize,
    /// Finished turns after which the dialogue summary is made anew.
    pub dialogue_every_turns: u32,
    /// What happens when a task has failed so often.
    pub fallback: Fallback,
    /// How often a task is tried before the fallback.
    pub tries_max: u32,
    /// How long it waits between tries.
    pub back_off: BackOff,
    /// How long it waits after a message: the calls that belong to it follow.
    pub settle: Duration,
    /// Where it remembers how far it is: one file a namespace.
    pub marks_dir: PathBuf,
    /// How often it writes that down.
    pub mark_every: Duration,
    /// Where it counts what it does.
    pub measures: Arc<SummariserMeasures>,
}

/// What a summariser has done since it was started.
#[derive(Debug, Default)]
pub struct SummariserMeasures {
    /// Texts that the model wrote.
    pub answers: Total,
    /// Questions that the endpoint did not answer.
    pub failures: Total,
}

impl SummariserConfig {
    /// The usual ways, for the default namespace.
    #[must_use]
    pub fn new(endpoint: EndpointConfig, marks_dir: PathBuf) -> Self {
        Self {
            endpoint,
            namespaces: vec![Namespace::default()],
            tasks: Tasks::default(),
            snapshot_bytes_min: 4_096,
            dialogue_every_turns: 5,
            fallback: Fallback::default(),
            tries_max: 5,
            back_off: BackOff::default(),
            settle: Duration::from_secs(1),
            marks_dir,
            mark_every: Duration::from_secs(5),
            measures: Arc::default(),
        }
    }
}

/// An OpenAI-compatible endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// What `/chat/completions` is put after, for example
    /// `https://api.openai.com/v1`.
    pub base_url: String,
    /// The model's name there.
    pub model: String,
    /// Sent as a bearer token; none: nothing is sent.
    pub key: Option<Secret>,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for a whole answer.
    pub timeout: Duration,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
}

impl EndpointConfig {
    /// A model without a key, with the usual patience.
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            key: None,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(120),
            max_tokens: 2_000,
        }
    }
}

/// A key that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a key; none when there is nothing in it.
    #[must_use]
    pub fn new(key: &str) -> Option<Self> {
        let key = key.trim();
        (!key.is_empty()).then(|| Self(key.to_owned()))
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// What a summariser does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Snapshots of large tool results.
    pub snapshots: bool,
    /// Running summaries of the dialogue.
    pub dialogue: bool,
    /// Compactions above the policy's threshold.
    pub compaction: bool,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            snapshots: true,
            dialogue: true,
            compaction: true,
        }
    }
}

/// What happens when a task has failed as often as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fallback {
    /// It waits for the endpoint, however long that takes: what is recorded was
    /// written by the model.
    #[default]
    Retry,
    /// The engine's own extract is recorded, and says by its actor that it is one.
    Extract,
}

/// Waits that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// After the first failure.
    pub first: Duration,
    /// After many.
    pub max: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            max: Duration::from_secs(300),
        }
    }
}

impl BackOff {
    /// The wait after so many failures, between half and one and a half of what
    /// doubling gives, so that many clients do not come back at once.
    pub(super) fn after(self, failures: u32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.max).mul_f64(0.5 + fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key in a log is a key that is lost.
    #[test]
    fn keys_are_not_printed() {
        let mut endpoint = EndpointConfig::new("http://localhost", "m");
        endpoint.key = Secret::new(" sk-1234 \n");
        assert_eq!(endpoint.key.as_ref().unwrap().reveal(), "sk-1234");
        assert!(!format!("{endpoint:?}").contains("1234"));
        assert_eq!(Secret::new(" "), None);
    }

    /// An endpoint that is down for a day is asked every few minutes.
    #[test]
    fn waits_grow_to_a_bound() {
        let back_off = BackOff::default();
        for (failures, seconds) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (4_000, 300)] {
            let wait = back_off.after(failures).as_secs_f64() / f64::from(seconds);
            assert!((0.5..1.5).contains(&wait), "{failures}: {wait}");
        }
    }
}
