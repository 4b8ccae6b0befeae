//! Configuration of a summariser.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use treering_base::measure::Total;
use treering_domain::Namespace;

/// How a summariser works. [`SummariserConfig::new`] has defaults for everything except the
/// endpoint and the folder of the marks.
#[derive(Clone, Debug)]
pub struct SummariserConfig {
    /// The model's endpoint.
    pub endpoint: EndpointConfig,
    /// The namespaces whose conversations are summarised.
    pub namespaces: Vec<Namespace>,
    /// What is summarised.
    pub tasks: Tasks,
    /// Minimum size of a result's text, in bytes, for which the model writes a snapshot. For
    /// smaller ones, the engine's own extract is enough.
    pub snapshot_bytes_min: usize,
    /// Finished turns after which the dialogue summary is rewritten.
    pub dialogue_every_turns: u32,
    /// What happens when a task has failed `tries_max` times.
    pub fallback: Fallback,
    /// How often a task is tried before the fallback.
    pub tries_max: u32,
    /// Pauses between tries.
    pub back_off: BackOff,
    /// Delay after a message, because its calls follow it.
    pub settle: Duration,
    /// Folder of the marks, which store the progress: one file per namespace.
    pub marks_dir: PathBuf,
    /// How often the progress is written.
    pub mark_every: Duration,
    /// Metrics of this summariser.
    pub measures: Arc<SummariserMeasures>,
}

/// Metrics of a summariser since its start.
#[derive(Debug, Default)]
pub struct SummariserMeasures {
    /// Texts that the model wrote.
    pub answers: Total,
    /// Questions to which the endpoint gave no usable answer.
    pub failures: Total,
}

impl SummariserConfig {
    /// Returns the default configuration, for the default namespace.
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
    /// URL before `/chat/completions`, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// Name of the model at the endpoint.
    pub model: String,
    /// Bearer token; `None`: no authorization header is sent.
    pub key: Option<Secret>,
    /// Timeout for connecting.
    pub connect_timeout: Duration,
    /// Timeout for a whole answer.
    pub timeout: Duration,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
}

impl EndpointConfig {
    /// Returns the configuration of a model without a key, with default timeouts.
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

/// A key that debug output does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Makes a secret; `None` when the key is empty.
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

/// Which tasks a summariser does.
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

/// What happens when a task has used up its tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fallback {
    /// Keeps trying, however long that takes: only texts of the model are recorded.
    #[default]
    Retry,
    /// Records the engine's own extract, with an actor that says so.
    Extract,
}

/// Exponential pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Pause after the first failure.
    pub first: Duration,
    /// Longest pause, before the random factor.
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
    /// Returns the pause after this many failures. The pause doubles with each failure, up to the
    /// longest. It is multiplied by a random factor from 0.5 to 1.5, so that clients do not return
    /// all at once.
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

    /// A key in a log is compromised.
    #[test]
    fn debug_output_hides_the_endpoint_key() {
        let mut endpoint = EndpointConfig::new("http://localhost", "m");
        endpoint.key = Secret::new(" sk-1234 \n");
        assert_eq!(endpoint.key.as_ref().unwrap().reveal(), "sk-1234");
        assert!(!format!("{endpoint:?}").contains("1234"));
        assert_eq!(Secret::new(" "), None);
    }

    /// An endpoint that is down for a day must be tried every few minutes.
    #[test]
    fn back_off_grows_to_a_maximum() {
        let back_off = BackOff::default();
        for (failures, seconds) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (4_000, 300)] {
            let wait = back_off.after(failures).as_secs_f64() / f64::from(seconds);
            assert!((0.5..1.5).contains(&wait), "{failures}: {wait}");
        }
    }
}
