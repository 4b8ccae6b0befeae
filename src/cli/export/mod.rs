//! `export`: writes conversations as files for other tools or people.

mod page;
mod resume;

use std::{env, fs, path::PathBuf};

use clap::{Args, ValueEnum};
use tonic::Code;
use uuid::Uuid;

use super::{
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    error::{ClientError, Exit},
    output::{Out, Steps},
    pb, read,
    safe::tell,
    text::is_undated,
};
use page::PageFormat;
use treering_domain::{Namespace, StoredEvent};
use treering_import::{
    exporter::{self, ResumeTarget},
    format::Format,
};
use treering_proto::envelope;

/// Number of conversations in one page of the list.
const PAGE: u32 = 500;

/// Format of an export.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    /// One conversation on each line: {"id", "source", "messages": [...]}.
    OpenaiChat,
    /// A branch as a session that Claude Code can continue.
    ClaudeCode,
    /// A branch as a session that Codex can continue.
    Codex,
    /// A branch as a session that Gemini CLI can continue.
    GeminiCli,
    /// A branch as a session that `opencode import` takes.
    #[value(name = "opencode")]
    OpenCode,
    /// A branch as a session that pi can continue.
    Pi,
    /// A branch for people, as Markdown.
    Markdown,
    /// A branch for people, as one HTML page.
    Html,
}

/// Write conversations to files
///
/// openai-chat writes one conversation on each line: an imported one equals its source, including
/// unknown fields. Without a conversation, it writes all of them, oldest first. The other formats
/// write a branch with its inherited history: for people, or as a session of an agent, whatever the
/// branch's source. --resume writes the session where the agent can read it, and prints the command
/// that continues it. An import of the continued session appends what is new to the branch.
/// Sessions have no system messages, reasoning, images or files; those of Claude Code keep images
/// and Anthropic's reasoning. CONVERSATION#REVISION writes up to that event. Of a damaged
/// conversation, the sound part is written, with a message on standard error and another exit code.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering export --format openai-chat > all.jsonl
  treering export --format openai-chat CONVERSATION | jq .messages[-1]
  treering export --format openai-chat --branch retry CONVERSATION
  treering export --format html @last > talk.html
  treering export --format claude-code CONVERSATION --branch retry --resume
  treering export --format codex CONVERSATION#120 --resume
  treering export --format opencode @last > session.json && opencode import session.json")]
pub(crate) struct ExportArgs {
    /// Format of the export
    #[arg(
        long,
        value_enum,
        value_name = "openai-chat|claude-code|codex|gemini-cli|opencode|pi|markdown|html"
    )]
    format: ExportFormat,
    /// With the format of an agent: write the session where that agent can read it, to be continued
    /// in this folder, and print the command that continues it
    #[arg(long)]
    resume: bool,
    /// Export only this branch, with its inherited history
    #[arg(long, short, value_name = "NAME", requires = "conversations")]
    branch: Option<String>,
    /// The conversations: ids or beginnings of them, @last, or words of a title; with #REVISION, up
    /// to that event
    #[arg(value_name = "CONVERSATION")]
    conversations: Vec<String>,
}

impl ExportFormat {
    /// Returns the agent that can continue an export of this format.
    fn agent(self) -> Option<Format> {
        match self {
            Self::ClaudeCode => Some(Format::ClaudeCode),
            Self::Codex => Some(Format::Codex),
            Self::GeminiCli => Some(Format::GeminiCli),
            Self::OpenCode => Some(Format::OpenCode),
            Self::Pi => Some(Format::Pi),
            Self::OpenaiChat | Self::Markdown | Self::Html => None,
        }
    }
}

/// Returns a request for the history of a branch, up to the event in the conversation argument.
fn history(place: &FoundBranch) -> pb::ReadRequest {
    pb::ReadRequest {
        to_revision: place.revision,
        exports: true,
        ..read::of_branch(&place.conversation, &place.branch)
    }
}

impl ExportArgs {
    async fn find(&self, store: &Connection) -> Result<Vec<FoundBranch>, ClientError> {
        let mut found = Vec::new();
        for conversation in &self.conversations {
            let named = BranchArgs {
                conversation: conversation.clone(),
                branch: self.branch.clone(),
            };
            found.push(named.find(store, RevisionArg::Event(0)).await?);
        }
        Ok(found)
    }
}

/// Writes the conversations.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Outcome`] at the end if a conversation was not
/// completely written.
pub(crate) async fn run(
    args: ExportArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let places = args.find(store).await?;
    if args.format != ExportFormat::OpenaiChat {
        return branches(&args, places, store, out).await;
    }
    let mut export = Export {
        store,
        out,
        bar: Steps::start("export"),
        damaged: 0,
        failed: 0,
    };
    if places.is_empty() {
        export.everything().await?;
    }
    for place in &places {
        let id = &place.conversation;
        let request = match place.branch.is_empty() && place.revision == 0 {
            true => {
                let state = read::state(store, id, "", 0).await?;
                whole(&state.summary.unwrap_or_default())
            }
            false => history(place),
        };
        export.one(id, request).await?;
    }
    export.end()
}

/// Writes a branch of each conversation, in a format for one branch.
async fn branches(
    args: &ExportArgs,
    places: Vec<FoundBranch>,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    if places.is_empty() {
        return Err(ClientError::Usage {
            what: "this format needs a conversation, and none is named".into(),
            hint: "name one, for example @last; --format openai-chat exports all of them".into(),
        });
    }
    let agent = args.format.agent();
    if args.resume && agent.is_none() {
        return Err(ClientError::Usage {
            what: "--resume works only with sessions of agents".into(),
            hint: "use the format of an agent, for example claude-code, or omit --resume".into(),
        });
    }
    for mut place in places {
        let state = read::state(store, &place.conversation, &place.branch, 0).await?;
        place.branch = state.branch.map(|branch| branch.name).unwrap_or_default();
        let chosen = ExportSelection {
            events: history(&place),
            summary: state.summary.unwrap_or_default(),
            branch: place.branch,
        };
        match (args.format, agent) {
            (_, Some(agent)) => session(agent, chosen, args.resume, store, out).await?,
            (ExportFormat::Html, _) => page(PageFormat::Html, chosen, store, out).await?,
            _ => page(PageFormat::Markdown, chosen, store, out).await?,
        }
    }
    Ok(())
}

/// The part of a conversation to write.
struct ExportSelection {
    summary: pb::ConversationSummary,
    branch: String,
    events: pb::ReadRequest,
}

async fn page(
    page: PageFormat,
    chosen: ExportSelection,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    out.lines(page.head(&chosen.summary, &chosen.branch))?;
    let mut events = read::start(store, chosen.events).await?;
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            out.lines(page.event(event, is_undated(&chosen.summary)))?;
        }
    }
    Ok(out.lines(page.end())?)
}

/// Writes a branch as a session of an agent.
async fn session(
    agent: Format,
    chosen: ExportSelection,
    resume: bool,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let ExportSelection {
        summary,
        branch,
        events: history,
    } = chosen;
    let mut events = Vec::new();
    read_into(store, history, &mut events).await?;
    let cwd = env::current_dir()
        .map_err(|cause| ClientError::ReadFile {
            path: PathBuf::from("."),
            cause,
        })?
        .display()
        .to_string();
    let title = match &branch[..] {
        "main" => summary.title.clone(),
        branch => format!("{} ({branch})", summary.title),
    };
    // A new session each time, because agents append to the file.
    let session = Uuid::new_v4();
    let resumed = ResumeTarget {
        session,
        cwd: &cwd,
        title: &title,
    };
    let lines = exporter::session_lines(agent, &events, &resumed);
    let lines = lines.map_err(|fault| ClientError::Outcome {
        what: format!("the branch cannot be exported as a session: {fault}"),
        hint: "`treering verify` shows what is damaged".into(),
        exit: Exit::Failed,
    })?;
    if lines.is_empty() {
        return Err(ClientError::NotFound {
            what: format!("no messages on the branch {branch}"),
            hint: "`treering log` shows its events".into(),
        });
    }
    if !resume {
        for line in lines {
            out.json(line)?;
        }
        return Ok(());
    }
    let place = resume::place(agent, &resumed)?;
    let written = fs::create_dir_all(&place.folder)
        .and_then(|()| fs::write(place.file(), lines.join("\n") + "\n"));
    written.map_err(|cause| ClientError::Outcome {
        what: format!("cannot write {}: {cause}", place.file().display()),
        hint: format!("set {} to a writable folder", place.variable),
        exit: Exit::Failed,
    })?;
    out.line(format!(
        "Wrote {}",
        super::text::printable(&place.file().display().to_string())
    ))?;
    out.line(format!(
        "To continue in this folder: {}",
        super::text::printable(&place.command)
    ))?;
    if let Some(other) = other_folder(&summary, &cwd) {
        out.line(format!(
            "The conversation took place in {}: to continue there, run this command there",
            super::text::printable(&other)
        ))?;
    }
    Ok(())
}

/// Returns the folder of the session, according to its source, if that is not the current folder.
fn other_folder(summary: &pb::ConversationSummary, cwd: &str) -> Option<String> {
    let meta: serde_json::Value = serde_json::from_slice(&summary.source_meta).ok()?;
    let held_in = meta["cwd"].as_str()?;
    (!held_in.is_empty() && held_in != cwd).then(|| held_in.to_owned())
}

/// Adds the readable events, even if an error follows.
async fn read_into(
    store: &Connection,
    request: pb::ReadRequest,
    events: &mut Vec<StoredEvent>,
) -> Result<(), ClientError> {
    let mut answers = read::start(store, request).await?;
    while let Some(batch) = answers.message().await? {
        for event in batch.events {
            let event = envelope::event_from_pb(event, Namespace::default());
            events.push(event.map_err(|_| ClientError::Answer {
                call: "Read",
                part: "event",
            })?);
        }
    }
    Ok(())
}

/// Returns a request for a whole conversation. An imported one is read with all its branches, since
/// the export must contain what was imported; any other one is read on its active branch.
fn whole(summary: &pb::ConversationSummary) -> pb::ReadRequest {
    let read = if summary.source.is_empty() {
        read::of_branch(&summary.conversation_id, "")
    } else {
        read::of_conversation(&summary.conversation_id)
    };
    pb::ReadRequest {
        exports: true,
        ..read
    }
}

/// An export that continues after a conversation that cannot be written.
struct Export<'a> {
    store: &'a Connection,
    out: &'a mut Out,
    bar: Steps,
    /// Number of conversations with damage.
    damaged: u64,
    /// Number of conversations that failed for another reason.
    failed: u64,
}

impl Export<'_> {
    async fn everything(&mut self) -> Result<(), ClientError> {
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
                self.bar.one_more();
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(());
            }
        }
    }

    async fn one(&mut self, id: &str, request: pb::ReadRequest) -> Result<(), ClientError> {
        let mut events = Vec::new();
        let damage = match read_into(self.store, request, &mut events).await {
            Ok(()) => None,
            Err(ClientError::Status(status)) if status.code() == Code::DataLoss => {
                Some(status.message().to_owned())
            }
            Err(error) => return Err(error),
        };
        let line = exporter::export_line(&events);
        let id = super::text::short_id("", id);
        match (line, damage) {
            (Ok(line), None) => return Ok(self.out.json(line)?),
            (Ok(line), Some(damage)) => {
                self.out.json(line)?;
                self.damaged += 1;
                self.tell(&format!("{id} is exported only up to its damage: {damage}"));
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

    fn tell(&self, what: &str) {
        self.bar.suspend(|| tell!("{what}"));
    }

    fn end(self) -> Result<(), ClientError> {
        drop(self.bar);
        let (damaged, failed) = (self.damaged, self.failed);
        if damaged + failed == 0 {
            return Ok(());
        }
        let exit = if damaged > 0 {
            Exit::Damaged
        } else {
            Exit::Failed
        };
        Err(ClientError::Outcome {
            what: format!(
                "{} conversations could not be exported completely",
                damaged + failed
            ),
            hint: "all others are exported; for these, restore a backup, or use `treering verify` \
                   and `treering salvage`"
                .into(),
            exit,
        })
    }
}
