//! `append`: one event or a few from the command line, so that a shell script can
//! be an agent.

mod bodies;

use clap::{Args, Subcommand};

use super::{
    approve::person,
    connect::Connection,
    error::CliError,
    found_by::TagsArgs,
    json::{self, Object},
    named::Named,
    output::{Out, Tone},
    pb, read,
    time_arg::term,
};
use bodies::{Call, CallResult, Config, Message, Prompt, Tools, Words};

/// Append an event: what was said, called, returned, found
///
/// The events are on disk when the command returns. Texts are given as they are, as
/// @FILE, or as - for standard input. `new` as the conversation begins one and
/// prints its id.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  id=$(treering append new message user 'Where is the port set?' --json | jq -r .events[0].conversation)
  treering append $id call call_1 grep '{\"pattern\": \"PORT\"}'
  grep -rn PORT src | treering append $id result call_1 -
  treering append $id tools @tools.json
  treering append $id custom app.state @state.json --event-key state --delta-of state
  treering append $id --branch retry system-prompt 'Answer in one sentence.'
  treering context $id --provider anthropic")]
pub struct AppendArgs {
    /// The conversation: an id or the beginning of one, @last, words of its title, or
    /// `new`
    conversation: String,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME", global = true)]
    branch: Option<String>,
    /// Who appends it [default: $USER, else `treering-cli`]
    #[arg(long, value_name = "NAME", global = true)]
    actor: Option<String>,
    /// Appending again with the same key of idempotency changes nothing
    #[arg(long, value_name = "KEY", global = true)]
    key: Option<String>,
    /// The key is known for so long, and forgotten then: 30s, 12h, 90d [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = life_seconds, requires = "key", global = true)]
    key_life: Option<u32>,
    /// Only when the branch's head is this revision
    #[arg(long, value_name = "REVISION", global = true)]
    expect: Option<u64>,
    #[command(flatten)]
    tags: TagsArgs,
    #[command(subcommand)]
    what: BodyArgs,
}

/// How long a key is known, in whole seconds.
fn life_seconds(text: &str) -> Result<u32, String> {
    let seconds = term(text)?.as_secs();
    match u32::try_from(seconds) {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err("a key is known for a second at least, and 136 years at most".to_owned()),
    }
}

impl AppendArgs {
    /// True when it begins a conversation, and so may begin a store.
    pub fn begins(&self) -> bool {
        self.conversation == NEW
    }

    /// What it names.
    pub fn named(&mut self) -> Option<Named<'_>> {
        if self.begins() {
            return None;
        }
        Some(Named::new(&mut self.conversation).branch(&mut self.branch))
    }
}

#[derive(Subcommand, Debug, Clone)]
enum BodyArgs {
    /// Something that was said
    Message(Message),
    /// A call that the model asks for
    Call(Call),
    /// What a call returned
    Result(CallResult),
    /// The branch's system prompt
    SystemPrompt(Prompt),
    /// The branch's user prompt
    UserPrompt(Prompt),
    /// Model, mode and parameters
    Config(Config),
    /// The tools on offer from now on
    Tools(Tools),
    /// Tools that were discovered
    Discovered(Words),
    /// How to use a tool: TOOL TEXT
    Guidance(bodies::Guidance),
    /// Something that the conversation is about: ID KIND NAME
    Entity(bodies::Entity),
    /// A summary of the dialogue
    Summary(Prompt),
    /// A finished call in short, in place of the engine's extract
    Snapshot(bodies::Snapshot),
    /// An event of a program's own: TYPE DATA
    Custom(bodies::Custom),
}

impl BodyArgs {
    fn body(&self) -> Result<pb::new_event::Body, CliError> {
        match self {
            Self::Message(message) => message.body(),
            Self::Call(call) => call.checked()?.body(),
            Self::Result(result) => result.body(),
            Self::SystemPrompt(prompt) => prompt.system(),
            Self::UserPrompt(prompt) => prompt.user(),
            Self::Config(config) => Ok(config.body()),
            Self::Tools(tools) => tools.body(),
            Self::Discovered(words) => Ok(words.discovered()),
            Self::Guidance(guidance) => guidance.body(),
            Self::Entity(entity) => Ok(entity.body()),
            Self::Summary(text) => text.summary(),
            Self::Snapshot(snapshot) => snapshot.body(),
            Self::Custom(custom) => custom.body(),
        }
    }
}

/// The conversation that is to be begun.
const NEW: &str = "new";

/// Appends, and prints where.
///
/// # Errors
/// What the store or the output says; [`CliError::Usage`] for what cannot be read.
pub async fn run(args: AppendArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let mut body = args.what.body()?;
    let begins = args.begins();
    if let pb::new_event::Body::SummaryRecorded(_) = &body {
        body = bodies::covering_all(body, head(&args, store).await?);
    }
    let mut bodies = vec![body];
    if begins {
        bodies.insert(0, bodies::created());
    }
    let actor = person(args.actor);
    let events = bodies.into_iter().map(|body| pb::NewEvent {
        actor: actor.clone(),
        body: Some(body),
        ..Default::default()
    });
    let mut events: Vec<_> = events.collect();
    if let Some(event) = events.last_mut() {
        args.tags.give(event)?;
    }
    let request = pb::AppendRequest {
        conversation_id: if begins {
            String::new()
        } else {
            args.conversation
        },
        branch: args.branch.unwrap_or_default(),
        events,
        idempotency_key: args.key.unwrap_or_default(),
        key_life_seconds: args.key_life.unwrap_or_default(),
        expected: args.expect.map(exactly),
        ..Default::default()
    };
    let answer = read::append(store, request).await?;
    if out.json {
        let text = json::appended(
            &answer.events,
            answer.repeated_key,
            &answer.warnings,
            Object::new(),
        );
        return Ok(out.line(text)?);
    }
    if let Some(last) = answer.events.last() {
        let place = format!("{}#{}", last.conversation_id, last.revision);
        out.line(out.paint.text(Tone::Name, place))?;
    }
    for warning in &answer.warnings {
        out.line(format!("warning: {}", super::text::printable(warning)))?;
    }
    Ok(())
}

fn exactly(revision: u64) -> pb::ExpectedRevision {
    pb::ExpectedRevision {
        expected: Some(pb::expected_revision::Expected::Revision(revision)),
    }
}

/// The branch's last revision.
async fn head(args: &AppendArgs, store: &Connection) -> Result<u64, CliError> {
    let request = pb::GetConversationRequest {
        conversation_id: args.conversation.clone(),
        branch: args.branch.clone().unwrap_or_default(),
        as_of_revision: 0,
        ..Default::default()
    };
    let state = store.conversations().get(request).await?.into_inner();
    Ok(state.branch.map_or(0, |branch| branch.head))
}
