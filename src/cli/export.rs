//! `export`: conversations as files that other tools read.

use clap::{Args, ValueEnum};

use super::{
    connect::Connection,
    error::{CliError, Exit},
    output::{Out, Unit, progress},
    pb, read,
};
use crate::{
    codec::envelope,
    domain::{Namespace, StoredEvent},
    importer::exporter,
};

/// Conversations asked for at once.
const PAGE: u32 = 500;

/// What is written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One conversation a line: {"id", "source", "messages": [...]}.
    OpenaiChat,
}

/// Write conversations out, one a line
///
/// What was imported comes back equal, unknown fields included. Without a
/// conversation: all of them, oldest first.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  treering export --format openai-chat > all.jsonl
  treering export --format openai-chat CONVERSATION | jq .messages[-1]
  treering export --format openai-chat --branch retry CONVERSATION")]
pub struct ExportArgs {
    /// What is written
    #[arg(long, value_enum)]
    format: Format,
    /// Only this branch, with its inherited history
    #[arg(long, short, value_name = "NAME", requires = "conversations")]
    branch: Option<String>,
    /// The conversations: their UUIDs, or their ids at their source
    #[arg(value_name = "CONVERSATION")]
    conversations: Vec<String>,
}

/// Writes the conversations.
///
/// # Errors
/// What the store or the output says; [`CliError::Outcome`] when a conversation
/// cannot be written.
pub async fn run(args: ExportArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    // One format yet; the match reminds whoever adds another.
    match args.format {
        Format::OpenaiChat => {}
    }
    if args.conversations.is_empty() {
        return everything(store, out).await;
    }
    for id in &args.conversations {
        let request = if let Some(branch) = &args.branch {
            read::of_branch(id, branch)
        } else {
            let state = read::state(store, id, "", 0).await?;
            whole(&state.summary.unwrap_or_default())
        };
        one(id, request, store, out).await?;
    }
    Ok(())
}

async fn everything(store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let bar = progress("export", None, Unit::Things);
    let mut page_token = String::new();
    loop {
        let request = pb::ListConversationsRequest {
            page_size: PAGE,
            page_token,
            ascending: true,
            ..Default::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        for summary in &page.conversations {
            one(&summary.conversation_id, whole(summary), store, out).await?;
            bar.inc(1);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            bar.finish_and_clear();
            return Ok(());
        }
    }
}

/// What is imported has its branches in its messages; of any other conversation
/// the active branch is written.
fn whole(summary: &pb::ConversationSummary) -> pb::ReadRequest {
    if summary.source.is_empty() {
        read::of_branch(&summary.conversation_id, "")
    } else {
        read::of_conversation(&summary.conversation_id)
    }
}

async fn one(
    id: &str,
    request: pb::ReadRequest,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let mut answers = read::start(store, request).await?;
    let mut events: Vec<StoredEvent> = Vec::new();
    while let Some(batch) = answers.message().await? {
        for event in batch.events {
            let event = envelope::event_from_pb(event, Namespace::default())
                .map_err(|fault| cannot(id, &fault.to_string()))?;
            events.push(event);
        }
    }
    let line = exporter::export_line(&events).map_err(|fault| cannot(id, &fault.to_string()))?;
    Ok(out.line(line)?)
}

fn cannot(id: &str, why: &str) -> CliError {
    CliError::Outcome {
        what: format!("cannot export {id}: {why}"),
        hint: "run `treering verify`; the other conversations can be exported by their ids".into(),
        exit: Exit::Failed,
    }
}
