//! `sub`: spawns, returns and lists sub-contexts of a conversation.

use std::collections::{BTreeMap, HashSet};

use clap::{Args, Subcommand};
use prost::Message;

use super::{
    approve::person,
    args::pair,
    branch_args::{BranchArgs, RevisionArg, find_conversation},
    connect::Connection,
    error::ClientError,
    json::{self, Object},
    output::{Out, Tone},
    pb, read,
    text::{count, first_line},
    text_arg::{free_text, text_of},
};
use treering_domain::EventKind;

/// Spawn, return and list sub-contexts: tasks with their own conversation
///
/// A sub-context has its own model, prompt and history. When it returns, it is sealed, and in the
/// same step its parent gets one summary, which is also the result of the call that asked for it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering sub spawn CONVERSATION --call call_7 --purpose 'find the tides' --model gpt-5-mini
  treering sub return CHILD --summary 'high tide at 18:15'
  treering sub return CHILD --failed --summary 'no table for that port'
  treering sub ls CONVERSATION")]
pub(crate) struct SubArgs {
    #[command(subcommand)]
    what: SubContextCommand,
}

impl SubArgs {
    /// Returns true if it appends events.
    pub(crate) fn appends(&self) -> bool {
        !matches!(self.what, SubContextCommand::Ls(_))
    }
}

#[derive(Subcommand, Debug, Clone)]
enum SubContextCommand {
    Spawn(SpawnArgs),
    Return(ReturnArgs),
    Ls(LsArgs),
}

/// Spawn a sub-context
#[derive(Args, Debug, Clone)]
struct SpawnArgs {
    #[command(flatten)]
    parent: BranchArgs,
    /// The open call that requests it
    #[arg(long, value_name = "CALL_ID")]
    call: Option<String>,
    /// Its task
    #[arg(long, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    purpose: Option<String>,
    /// Its title [default: the purpose]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Its model [default: the parent's settings]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Its mode, for example `research`
    #[arg(long, value_name = "NAME", requires = "model")]
    mode: Option<String>,
    /// Its system prompt: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    system_prompt: Option<String>,
    /// A policy for it as NAME=JSON (may be given again)
    #[arg(long, value_name = "NAME=JSON", value_parser = pair)]
    policy: Vec<(String, String)>,
    /// A label for it as NAME=TEXT (may be given again)
    #[arg(long, value_name = "NAME=TEXT", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Idempotency key: repeating the command with it returns the first result
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Return a sub-context to its parent
#[derive(Args, Debug, Clone)]
struct ReturnArgs {
    /// The sub-context
    conversation: String,
    /// Its result: text, @FILE, or - [default: the last message of its assistant]
    #[arg(long, value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    summary: Option<String>,
    /// It failed; so does the call that requested it
    #[arg(long)]
    failed: bool,
    /// Idempotency key: repeating the command with it returns the first result
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// List the sub-contexts of a conversation
#[derive(Args, Debug, Clone)]
struct LsArgs {
    /// The parent: an id or its beginning, @last, or words of its title
    conversation: String,
}

/// Spawns, returns or lists.
pub(crate) async fn run(
    args: SubArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    match args.what {
        SubContextCommand::Spawn(args) => spawn(args, store, out).await,
        SubContextCommand::Return(args) => end(args, store, out).await,
        SubContextCommand::Ls(args) => list(&args, store, out).await,
    }
}

async fn spawn(args: SpawnArgs, store: &Connection, out: &mut Out) -> Result<(), ClientError> {
    let config = args.model.map(|model_id| pb::Config {
        model_id,
        mode: args.mode.unwrap_or_default(),
        parameters: BTreeMap::new(),
    });
    let prompt = args.system_prompt.as_deref().map(text_of).transpose()?;
    let purpose = args.purpose.unwrap_or_default();
    let parent = args.parent.find(store, RevisionArg::None).await?;
    let request = pb::SpawnRequest {
        conversation_id: parent.conversation,
        branch: parent.branch,
        call_id: args.call.unwrap_or_default(),
        title: args.title.unwrap_or_else(|| purpose.clone()),
        purpose,
        config,
        system_prompt: prompt.unwrap_or_default(),
        policies: args.policy.into_iter().collect(),
        labels: args.label.into_iter().collect(),
        child_id: String::new(),
        idempotency_key: args.key.unwrap_or_default(),
        actor: person(None),
    };
    let answer = store.contexts().spawn(request).await?.into_inner();
    if out.json {
        let mut object = Object::new();
        object.string("child", &answer.child_id);
        let text = json::appended(&answer.events, answer.repeated_key, &[], object);
        return Ok(out.line(text)?);
    }
    let child = out.paint.text(Tone::Name, &answer.child_id);
    let at = answer.events.last().map_or(0, |event| event.revision);
    Ok(out.line(format!("Spawned {child}, recorded at #{at} of its parent"))?)
}

async fn end(args: ReturnArgs, store: &Connection, out: &mut Out) -> Result<(), ClientError> {
    let summary = args.summary.as_deref().map(text_of).transpose()?;
    let child = find_conversation(store, &args.conversation).await?;
    let request = pb::ReturnRequest {
        conversation_id: child.conversation,
        summary: summary.unwrap_or_default(),
        success: Some(!args.failed),
        idempotency_key: args.key.unwrap_or_default(),
        actor: person(None),
    };
    let answer = store.contexts().r#return(request).await?.into_inner();
    if out.json {
        return Ok(out.appended(&answer.events, answer.repeated_key, &answer.warnings)?);
    }
    let last = answer.events.last().cloned().unwrap_or_default();
    let parent = out.paint.text(Tone::Name, &last.conversation_id);
    let call = if answer.events.len() > 2 {
        ", with the result of its call"
    } else {
        ""
    };
    out.line(format!("Returned to {parent} at #{}{call}", last.revision))?;
    Ok(out.warnings(&answer.warnings)?)
}

async fn list(args: &LsArgs, store: &Connection, out: &mut Out) -> Result<(), ClientError> {
    let parent = find_conversation(store, &args.conversation).await?;
    let request = pb::LineageRequest {
        conversation_id: parent.conversation.clone(),
        branch: String::new(),
    };
    let children = store
        .conversations()
        .lineage(request)
        .await?
        .into_inner()
        .children;
    let returned = returned(&parent.conversation, store).await?;
    for child in &children {
        let state = read::state(store, child, "", 0).await?;
        let summary = state.summary.unwrap_or_default();
        let has_returned = returned.contains(child);
        if out.json {
            let mut object = Object::new();
            object.fields(&summary).boolean("returned", has_returned);
            out.line(object.finish())?;
        } else {
            let line = row(&summary, has_returned, out);
            out.line(line)?;
        }
    }
    if children.is_empty() && !out.json {
        out.line("Nothing was spawned or forked from this conversation.")?;
    }
    Ok(())
}

/// Returns the sub-contexts that have returned. An imported one may have returned without being
/// sealed, because its session may still grow.
async fn returned(parent: &str, store: &Connection) -> Result<HashSet<String>, ClientError> {
    let request = pb::ReadRequest {
        kinds: vec![i32::from(EventKind::SubContextReturned.number())],
        ..read::of_conversation(parent)
    };
    let events = read::all(store, request).await?.into_iter();
    let child = |event: pb::Event| match event.body? {
        pb::event::Body::SubContextReturned(body) => {
            let child = pb::SubContextReturned::decode(body);
            child.map(|child| child.conversation_id).ok()
        }
        _ => None,
    };
    Ok(events.filter_map(child).collect())
}

fn row(summary: &pb::ConversationSummary, has_returned: bool, out: &Out) -> String {
    let paint = out.paint;
    let state = match (summary.shares_history, summary.sealed || has_returned) {
        (true, _) => paint.text(Tone::Dim, "a fork "),
        (false, true) => paint.text(Tone::Good, "ended  "),
        (false, false) => paint.text(Tone::Wait, "runs   "),
    };
    let parent = summary.parent.clone().unwrap_or_default();
    let call = match parent.call_id.as_str() {
        "" => String::new(),
        call_id => format!(" by {call_id}"),
    };
    format!(
        "{}  {state}  {:>6}  {}  {}  {}",
        paint.text(Tone::Name, &summary.conversation_id),
        count(summary.head),
        out.zone().day_clock(summary.updated_at.as_ref()),
        first_line(&summary.title, out.width.saturating_sub(72).max(16)),
        paint.text(Tone::Dim, format!("from #{}{call}", parent.revision)),
    )
}
