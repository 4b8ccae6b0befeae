//! Measures the cost of the policies for finished tool calls. Real conversations are replayed;
//! before each answer of the model its request is built under each policy. The rows count the
//! tokens that are sent, and those that a provider's prefix cache would serve.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{
    Setup, failed,
    row::{Row, Unit},
    stores,
};
use treering::{
    context::{Provider, policy::CONTEXT_POLICY},
    domain::{BranchName, EventBody, Limits, Namespace, NewEvent, Role, TimestampMicros},
    engine::{BranchAddress, BuildQuery, Engine},
    import::{ImportedConversation, openai_chat, source::LineSource},
};
use treering_client::error::ClientError;

/// How long a provider keeps a prefix, in microseconds.
const CACHE_MICROS: i64 = 5 * 60 * 1_000_000;
/// Price of a token that the cache serves, as a share of the full price. Anthropic and OpenAI's
/// newer models charge a tenth.
const CACHED_PRICE: f64 = 0.1;
/// Conversations that are taken from each file, spread evenly.
const CONVERSATIONS: usize = 40;
const QUICK_CONVERSATIONS: usize = 4;
/// Maximum number of requests of one conversation.
const REQUESTS_MAX: usize = 400;
/// Files that only add volume.
const LEFT_OUT: &str = "agentdojo-rest";

/// The policies: row id, description, JSON.
const POLICIES: [(&str, &str, &str); 3] = [
    (
        "turns.keep",
        "until a compaction",
        r#"{"tool_results":"keep"}"#,
    ),
    (
        "turns.end",
        "at the end of their turn",
        r#"{"tool_results":"turn_end"}"#,
    ),
    (
        "turns.older",
        "when 3 turns old",
        r#"{"tool_results":{"older_than_turns":3}}"#,
    ),
];

/// Token counts of one policy.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    requests: u64,
    sent: u64,
    cached: u64,
}

impl Sum {
    /// Returns the cost, in tokens at full price.
    fn cost(self) -> f64 {
        (self.sent - self.cached) as f64 + self.cached as f64 * CACHED_PRICE
    }
}

/// Measures the rows of this group. Returns none if there are no real conversations.
///
/// # Errors
/// When a conversation cannot be replayed.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let files = source_files(setup);
    if files.is_empty() {
        setup.left_out("turns", "real conversations");
        return Ok(Vec::new());
    }
    let take = setup.or_quick(CONVERSATIONS, QUICK_CONVERSATIONS);
    let mut sums = [Sum::default(); POLICIES.len()];
    let mut conversations = 0;
    for file in &files {
        for conversation in spread(file, take)? {
            conversations += 1;
            setup.doing("turns");
            for (sum, (_, _, policy)) in sums.iter_mut().zip(POLICIES) {
                live(&conversation, policy, sum).await?;
            }
        }
    }
    Ok(rows(&sums, conversations))
}

/// Returns the files with real conversations, without those that only add volume.
pub(super) fn source_files(setup: &Setup) -> Vec<PathBuf> {
    let mut files = setup.trajectory_files();
    files.retain(|file| !file.to_string_lossy().contains(LEFT_OUT));
    files
}

/// Returns at most `take` conversations of a file, evenly spread.
pub(super) fn spread(file: &Path, take: usize) -> Result<Vec<ImportedConversation>, ClientError> {
    let mut all = Vec::new();
    for line in lines(file)? {
        all.push(line);
    }
    let step = all.len().div_ceil(take).max(1);
    Ok(all
        .iter()
        .step_by(step)
        .filter_map(|line| openai_chat::import_line(line).ok())
        .collect())
}

fn lines(file: &Path) -> Result<Vec<Bytes>, ClientError> {
    let source = LineSource::open(file, |_| {}).map_err(|cause| ClientError::ReadFile {
        path: PathBuf::from(file),
        cause,
    })?;
    source
        .map(|(_, line)| line.map_err(|error| failed("reading a trajectory", error)))
        .collect()
}

/// Appends a conversation's events one by one. Builds a request before each answer of the model.
async fn live(
    conversation: &ImportedConversation,
    policy: &str,
    sum: &mut Sum,
) -> Result<(), ClientError> {
    let engine = Engine::in_memory(Limits::default())
        .await
        .map_err(|error| failed("opening a store in memory", error))?;
    let mut last_at: Option<TimestampMicros> = None;
    let mut requests = 0;
    for event in &conversation.events {
        if answers(event) && requests < REQUESTS_MAX {
            requests += 1;
            let warm = match (last_at, event.occurred_at) {
                (Some(last), Some(now)) => now.0 - last.0 <= CACHE_MICROS,
                // Without times, the cache is assumed to be warm.
                _ => true,
            };
            last_at = event.occurred_at.or(last_at);
            count(&engine, conversation, event.branch.as_ref(), warm, sum).await?;
        }
        stores::append(&engine, vec![with_policy(event, policy)]).await?;
    }
    engine.close().await;
    Ok(())
}

pub(super) fn answers(event: &NewEvent) -> bool {
    matches!(&event.body, EventBody::MessageAppended(message) if message.role == Role::Assistant)
}

/// Returns a copy of the event; the first event of a conversation gets the policy.
fn with_policy(event: &NewEvent, policy: &str) -> NewEvent {
    let mut event = event.clone();
    if let EventBody::ConversationCreated(created) = &mut event.body {
        created
            .policies
            .insert(CONTEXT_POLICY.to_owned(), policy.to_owned());
    }
    event
}

async fn count(
    engine: &Engine,
    conversation: &ImportedConversation,
    branch: Option<&BranchName>,
    warm: bool,
    sum: &mut Sum,
) -> Result<(), ClientError> {
    let query = BuildQuery {
        ..BuildQuery::new(
            BranchAddress {
                namespace: Namespace::default(),
                conversation: conversation.conversation,
                branch: branch.cloned(),
            },
            Provider::Anthropic,
        )
    };
    let built = engine
        .build(query)
        .await
        .map_err(|error| failed("building a request", error))?;
    sum.requests += 1;
    sum.sent += built.explanation.tokens;
    if warm && let Some(shared) = built.explanation.shared_prefix {
        sum.cached += shared.tokens;
    }
    Ok(())
}

fn rows(sums: &[Sum], conversations: usize) -> Vec<Row> {
    let keep = sums.first().copied().unwrap_or_default();
    let mut rows = Vec::new();
    for ((id, when, _), sum) in POLICIES.into_iter().zip(sums) {
        let requests = sum.requests.max(1) as f64;
        let share = sum.cached as f64 / sum.sent.max(1) as f64;
        let row = Row::new(
            id,
            format!("cost of a request, results in full {when}, in full-price tokens"),
            sum.cost() / requests,
            Unit::Plain,
        );
        rows.push(
            row.beside(
                "until a compaction",
                keep.cost() / requests,
                sum.cost() / keep.cost().max(1.0),
            )
            .note(format!(
                "{:.0} tokens sent per request, {:.1} % of them served by a 5-minute prefix cache \
                 at a tenth of the price; {} requests of {conversations} real conversations",
                sum.sent as f64 / requests,
                share * 100.0,
                sum.requests,
            )),
        );
    }
    rows
}
