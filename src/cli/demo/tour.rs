//! The output of the demo: what was done, what can be found, and commands to try next.

use super::{
    super::{
        connect::Connection,
        error::ClientError,
        output::{Out, Tone},
        pb,
        text::{count, first_line, printable, short_id},
    },
    agent::{DemoRun, OTHER_WAY},
};
use treering_context::Provider;

/// Maximum number of hits in the tour.
const HITS: u32 = 3;
/// Providers and models for which the tour builds requests.
const REQUESTS: [(Provider, &str); 2] = [
    (Provider::OpenAiChat, "gpt-4o"),
    (Provider::Anthropic, "claude-sonnet-4-5"),
];

/// How to reach the store after the tour.
#[derive(Debug)]
pub(crate) struct StoreLocation {
    /// The command as the user typed it.
    pub(crate) command: String,
    /// `--server URL` or `--data DIR`.
    pub(crate) store: String,
}

impl StoreLocation {
    fn line(&self, rest: &str) -> String {
        format!("  {} {} {rest}", self.command, self.store)
    }
}

/// Prints what the agent did.
pub(crate) fn story(story: &DemoRun, out: &mut Out) -> Result<(), ClientError> {
    out.heading("What the agent did (its tools really ran here)")?;
    let paint = out.paint;
    let width = out.width.saturating_sub(10);
    for (revision, what) in &story.steps {
        let place = paint.text(Tone::Name, format!("{:>6}", format!("#{revision}")));
        out.line(format!("{place}  {}", first_line(what, width)))?;
    }
    Ok(())
}

/// Searches, and prints the best hits.
pub(crate) async fn search(
    query: &str,
    conversation: &str,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let paint = out.paint;
    let head = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
    let request = pb::SearchRequest {
        query: query.to_owned(),
        limit: HITS,
        conversation_id: conversation.to_owned(),
        at_least: head.head,
        ..Default::default()
    };
    let answer = store.search().search(request).await?.into_inner();
    out.heading(format!(
        "Searching for {query} in all tool results and messages"
    ))?;
    for hit in &answer.hits {
        let tool = if hit.tool.is_empty() {
            "message"
        } else {
            &hit.tool
        };
        let place = paint.text(Tone::Name, format!("{:>6}", format!("#{}", hit.revision)));
        out.line(format!(
            "{place}  {} on {}, line {}: {}",
            paint.text(Tone::Tool, tool),
            hit.branch,
            hit.line,
            first_line(&printable(&hit.snippet), out.width.saturating_sub(40))
        ))?;
    }
    if answer.hits.is_empty() {
        out.line("        nothing found")?;
    }
    Ok(())
}

/// Compares the two branches.
pub(crate) async fn diff(
    story: &DemoRun,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let request = pb::DiffRequest {
        conversation_id: story.conversation.clone(),
        left_branch: "main".into(),
        right_branch: OTHER_WAY.into(),
        headers_only: true,
        limit: 0,
    };
    let diff = store.conversations().diff(request).await?.into_inner();
    out.heading("Comparing the branches")?;
    out.line(format!(
        "        both share everything up to #{}; then main has {} events of its own, {OTHER_WAY} {}",
        diff.ancestor_revision,
        count(diff.left.len() as u64),
        count(diff.right.len() as u64)
    ))?;
    Ok(())
}

/// Builds the fork's next request for two providers.
pub(crate) async fn requests(
    story: &DemoRun,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    out.heading(format!(
        "The next request of {OTHER_WAY}, for two providers"
    ))?;
    for (provider, model) in REQUESTS {
        let request = pb::BuildRequest {
            conversation_id: story.conversation.clone(),
            branch: OTHER_WAY.into(),
            provider: provider.number(),
            model: model.into(),
            ..Default::default()
        };
        let built = store.contexts().build(request).await?.into_inner();
        let body: serde_json::Value = serde_json::from_slice(&built.request).unwrap_or_default();
        let messages = body["messages"].as_array().map_or(0, Vec::len);
        let told = built.explanation.unwrap_or_default();
        let about = match told.basis {
            Some(basis) if basis.estimate => "about ",
            _ => "",
        };
        out.line(format!(
            "        {provider}, {model}: {about}{} tokens in {messages} messages and {} tools",
            count(told.tokens),
            body["tools"].as_array().map_or(0, Vec::len)
        ))?;
    }
    Ok(())
}

/// Prints the commands to try next on the scripted conversation.
pub(crate) fn next_commands(
    story: &DemoRun,
    reach: &StoreLocation,
    out: &mut Out,
) -> Result<(), ClientError> {
    let id = short_id("", &story.conversation);
    out.heading("Try next")?;
    for rest in [
        format!("show {id}"),
        format!("log {id} --branch {OTHER_WAY}"),
        format!("replay {id} --speed 1"),
        format!("diff {id} main {OTHER_WAY}"),
        format!("fork {id} --at {} --name my-way", story.fork_revision),
        format!("context {id} --branch {OTHER_WAY} --provider anthropic --explain"),
        format!("tools {id} --snapshots"),
        format!("search -n 5 {}", story.word),
        "ls --json".to_owned(),
    ] {
        out.line(reach.line(&rest))?;
    }
    Ok(())
}

/// Prints the commands to try next on imported conversations.
pub(crate) fn next_for_imported(
    conversation: &str,
    reach: &StoreLocation,
    out: &mut Out,
) -> Result<(), ClientError> {
    let conversation = short_id("", conversation);
    out.heading("Try next")?;
    for rest in [
        "ls --limit 20".to_owned(),
        format!("show {conversation}"),
        format!("log {conversation} --reverse --limit 20"),
        "search -n 5 --failed error".to_owned(),
        "stats".to_owned(),
    ] {
        out.line(reach.line(&rest))?;
    }
    Ok(())
}
