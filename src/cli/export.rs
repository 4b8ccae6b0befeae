//! `export`: conversations as files that other tools read.

use std::io::Write;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use tonic::Code;

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
/// conversation: all of them, oldest first. Of a damaged conversation its sound part is
/// written, and standard error says so; the exit code tells it too.
#[derive(Args, Debug, Clone)]
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
/// What the store or the output says; [`CliError::Outcome`] at the end when a
/// conversation could not be written whole.
pub async fn run(args: ExportArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    // One format yet; the match reminds whoever adds another.
    match args.format {
        Format::OpenaiChat => {}
    }
    let mut export = Export {
        store,
        out,
        bar: progress("export", None, Unit::Things),
        damaged: 0,
        failed: 0,
    };
    if args.conversations.is_empty() {
        export.everything().await?;
    }
    for id in &args.conversations {
        let request = if let Some(branch) = &args.branch {
            read::of_branch(id, branch)
        } else {
            let state = read::state(store, id, "", 0).await?;
            whole(&state.summary.unwrap_or_default())
        };
        export.one(id, request).await?;
    }
    export.end()
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

/// An export that goes on past what cannot be written.
struct Export<'a> {
    store: &'a Connection,
    out: &'a mut Out,
    bar: ProgressBar,
    /// Conversations of which something is damaged.
    damaged: u64,
    /// Conversations that could not be written for another reason.
    failed: u64,
}

impl Export<'_> {
    async fn everything(&mut self) -> Result<(), CliError> {
        let mut page_token = String::new();
        loop {
            let request = pb::ListConversationsRequest {
                page_size: PAGE,
                page_token,
                ascending: true,
                ..Default::default()
            };
            let page = self.store.conversations().list(request).await?.into_inner();
            for summary in &page.conversations {
                self.one(&summary.conversation_id, whole(summary)).await?;
                self.bar.inc(1);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn one(&mut self, id: &str, request: pb::ReadRequest) -> Result<(), CliError> {
        let mut events = Vec::new();
        let damage = match self.read(request, &mut events).await {
            Ok(()) => None,
            Err(CliError::Status(status)) if status.code() == Code::DataLoss => {
                Some(status.message().to_owned())
            }
            Err(error) => return Err(error),
        };
        let line = exporter::export_line(&events);
        match (line, damage) {
            (Ok(line), None) => return Ok(self.out.line(line)?),
            (Ok(line), Some(damage)) => {
                self.out.line(line)?;
                self.damaged += 1;
                self.tell(&format!("{id} is exported up to its damage: {damage}"));
            }
            (Err(_), Some(damage)) => {
                self.damaged += 1;
                self.tell(&format!("{id} cannot be exported: {damage}"));
            }
            (Err(fault), None) => {
                self.failed += 1;
                self.tell(&format!("{id} cannot be exported: {fault}"));
            }
        }
        Ok(())
    }

    /// Adds the events that can be read, also when an error follows.
    async fn read(
        &self,
        request: pb::ReadRequest,
        events: &mut Vec<StoredEvent>,
    ) -> Result<(), CliError> {
        let mut answers = read::start(self.store, request).await?;
        while let Some(batch) = answers.message().await? {
            for event in batch.events {
                let event = envelope::event_from_pb(event, Namespace::default());
                events.push(event.map_err(|_| CliError::Answer {
                    call: "Read",
                    part: "event",
                })?);
            }
        }
        Ok(())
    }

    fn tell(&self, what: &str) {
        // With standard error gone there is nobody left to tell.
        let tell = || writeln!(std::io::stderr().lock(), "{what}");
        let _ = self.bar.suspend(tell);
    }

    fn end(self) -> Result<(), CliError> {
        self.bar.finish_and_clear();
        let (damaged, failed) = (self.damaged, self.failed);
        if damaged + failed == 0 {
            return Ok(());
        }
        let exit = if damaged > 0 {
            Exit::Damaged
        } else {
            Exit::Failed
        };
        Err(CliError::Outcome {
            what: format!(
                "{} conversations could not be exported whole",
                damaged + failed
            ),
            hint: "all others are; for these, restore a backup, or see `treering verify` and \
                   `treering salvage`"
                .into(),
            exit,
        })
    }
}
