//! `serve`'s options for a summariser: a model that writes summaries in the background.

use std::{path::Path, time::Duration};

use clap::{Args, ValueEnum};

use super::error::ClientError;
use treering_domain::Namespace;
use treering_summariser::{EndpointConfig, Fallback, Secret, SummariserConfig, Tasks};

/// Folder of the summariser's marks, in the data folder.
const MARKS_DIR: &str = "summariser";

/// A model that writes summaries in the background; off without `--summariser-url`.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Summaries by a model (off without --summariser-url)")]
pub(crate) struct SummariserArgs {
    /// URL of an OpenAI-compatible endpoint, up to `/chat/completions`
    #[arg(long, value_name = "URL", requires = "summariser_model")]
    summariser_url: Option<String>,
    /// Name of the model at the endpoint
    #[arg(long, value_name = "NAME", requires = "summariser_url")]
    summariser_model: Option<String>,
    /// Environment variable with the endpoint's key
    #[arg(long, value_name = "NAME", default_value = "TREERING_SUMMARISER_KEY")]
    summariser_key_env: String,
    /// Its tasks; their order does not matter
    #[arg(
        long,
        value_name = "TASK",
        value_delimiter = ',',
        default_value = "snapshots,dialogue,compaction"
    )]
    summariser_tasks: Vec<Task>,
    /// Namespace whose conversations it summarises (may be given several times)
    #[arg(long, value_name = "NAME", value_parser = namespace, default_value = "default")]
    summariser_namespace: Vec<Namespace>,
    /// Minimum size in bytes of a result that gets a digest by the model
    #[arg(long, value_name = "BYTES", default_value_t = 4_096)]
    summariser_result_bytes: usize,
    /// Finished turns after which the dialogue summary is renewed
    #[arg(long, value_name = "TURNS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    summariser_every_turns: u32,
    /// Maximum length of an answer, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    summariser_max_tokens: u32,
    /// Maximum wait for an answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    summariser_timeout: u64,
    /// What to do after a task has failed five times
    #[arg(long, value_enum, default_value_t = FallbackArg::Retry)]
    summariser_fallback: FallbackArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    /// Digests of large tool results
    Snapshots,
    /// The running summary of the dialogue
    Dialogue,
    /// Compaction above the threshold of a conversation's policy
    Compaction,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FallbackArg {
    /// Wait for the endpoint, however long that takes
    Retry,
    /// Record the engine's own extract
    Extract,
}

impl SummariserArgs {
    /// Returns the configuration of the summariser, or `None` if it is off.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for an invalid URL.
    pub(crate) fn config(&self, data_dir: &Path) -> Result<Option<SummariserConfig>, ClientError> {
        let (Some(url), Some(model)) = (&self.summariser_url, &self.summariser_model) else {
            return Ok(None);
        };
        if !["http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme))
        {
            return Err(ClientError::Usage {
                what: format!("--summariser-url {url:?} is not an http or https address"),
                hint: "use the endpoint's base URL, for example http://127.0.0.1:11434/v1".into(),
            });
        }
        let key = std::env::var(&self.summariser_key_env).unwrap_or_default();
        let endpoint = EndpointConfig {
            key: Secret::new(&key),
            timeout: Duration::from_secs(self.summariser_timeout),
            max_tokens: self.summariser_max_tokens,
            ..EndpointConfig::new(url, model)
        };
        let does = |task| self.summariser_tasks.contains(&task);
        Ok(Some(SummariserConfig {
            namespaces: self.namespaces(),
            tasks: Tasks {
                snapshots: does(Task::Snapshots),
                dialogue: does(Task::Dialogue),
                compaction: does(Task::Compaction),
            },
            snapshot_bytes_min: self.summariser_result_bytes,
            dialogue_every_turns: self.summariser_every_turns,
            fallback: match self.summariser_fallback {
                FallbackArg::Retry => Fallback::Retry,
                FallbackArg::Extract => Fallback::Extract,
            },
            ..SummariserConfig::new(endpoint, data_dir.join(MARKS_DIR))
        }))
    }

    /// Returns the namespaces without duplicates: two workers for one namespace would double the
    /// cost.
    fn namespaces(&self) -> Vec<Namespace> {
        let mut namespaces = self.summariser_namespace.clone();
        namespaces.sort();
        namespaces.dedup();
        namespaces
    }
}

fn namespace(name: &str) -> Result<Namespace, String> {
    Namespace::new(name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug, Clone)]
    struct Line {
        #[command(flatten)]
        summariser: SummariserArgs,
    }

    fn config(line: &[&str]) -> Result<Option<SummariserConfig>, ClientError> {
        let line = std::iter::once(&"serve").chain(line);
        Line::try_parse_from(line)
            .unwrap()
            .summariser
            .config(Path::new("data"))
    }

    /// Without an endpoint, nothing may be sent.
    #[test]
    fn summariser_is_off_without_a_url() {
        assert!(config(&[]).unwrap().is_none());
        assert!(
            config(&["--summariser-fallback", "extract"])
                .unwrap()
                .is_none()
        );
        let half = Line::try_parse_from(["serve", "--summariser-url", "http://h/v1"]);
        assert!(half.is_err());
    }

    #[test]
    fn summariser_options_set_the_config() {
        let url = ["--summariser-url", "http://h/v1", "--summariser-model", "m"];
        let more = [
            "--summariser-tasks",
            "dialogue",
            "--summariser-namespace",
            "b",
        ];
        let twice = ["--summariser-namespace", "a", "--summariser-namespace", "b"];
        let line: Vec<&str> = [&url[..], &more, &twice].concat();
        let config = config(&line).unwrap().unwrap();
        let only = Tasks {
            snapshots: false,
            dialogue: true,
            compaction: false,
        };
        assert_eq!((config.tasks, config.fallback), (only, Fallback::Retry));
        let names: Vec<_> = config.namespaces.iter().map(Namespace::as_str).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(config.marks_dir, Path::new("data").join("summariser"));
        let wrong = super::tests::config(&["--summariser-url", "h", "--summariser-model", "m"]);
        assert!(matches!(wrong, Err(ClientError::Usage { .. })));
    }
}
