//! `append`: appends one or a few events from the command line, so that a shell script can be an
//! agent.

pub(crate) mod bodies;

use clap::{Args, Subcommand};

use super::{
    approve::person,
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    error::ClientError,
    output::{Out, Tone},
    pb, read,
    tag_args::TagsArgs,
    time_arg::term,
};
use bodies::{Call, CallResult, Config, Message, Prompt, Tools, Words};

/// Append an event, such as a message, a call or a result
///
/// The events are on disk when the command returns. Texts are given directly, as @FILE, or as - for
/// standard input. `new` as the conversation creates one and prints its id.
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
pub(crate) struct AppendArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// Actor of the event [default: $USER, else `treering-cli`]
    #[arg(long, value_name = "NAME", global = true)]
    actor: Option<String>,
    /// Idempotency key: repeating the command with it changes nothing
    #[arg(long, value_name = "KEY", global = true)]
    key: Option<String>,
    /// How long the key is remembered: 30s, 12h, 90d [default: forever]
    #[arg(long, value_name = "TIME", value_parser = life_seconds, requires = "key", global = true)]
    key_life: Option<u32>,
    /// Append only if this revision is the branch's head
    #[arg(long, value_name = "REVISION", global = true)]
    expect: Option<u64>,
    #[command(flatten)]
    tags: TagsArgs,
    #[command(subcommand)]
    what: BodyArgs,
}

/// Parses the life of a key, in seconds.
fn life_seconds(text: &str) -> Result<u32, String> {
    let seconds = term(text)?.as_secs();
    match u32::try_from(seconds) {
        Ok(seconds @ 1..) => Ok(seconds),
        _ => Err("a key's life must be between 1 second and 136 years".to_owned()),
    }
}

impl AppendArgs {
    /// Returns true if it creates a conversation; then it may also create a store.
    pub(crate) fn begins(&self) -> bool {
        self.place.conversation == NEW
    }
}

#[derive(Subcommand, Debug, Clone)]
enum BodyArgs {
    /// A message
    Message(Message),
    /// A tool call that the model requests
    Call(Call),
    /// The result of a call
    Result(CallResult),
    /// The branch's system prompt
    SystemPrompt(Prompt),
    /// The branch's user prompt
    UserPrompt(Prompt),
    /// Model, mode and parameters
    Config(Config),
    /// The tools that are offered from now on
    Tools(Tools),
    /// Tools that were discovered
    Discovered(Words),
    /// Guidance on a tool: TOOL TEXT
    Guidance(bodies::Guidance),
    /// An entity that the conversation is about: ID KIND NAME
    Entity(bodies::Entity),
    /// A summary of the dialogue
    Summary(Prompt),
    /// A digest of a finished call, in place of the generated one
    Snapshot(bodies::Snapshot),
    /// An event of a program's own type: TYPE DATA
    Custom(bodies::Custom),
}

impl BodyArgs {
    fn body(&self) -> Result<pb::new_event::Body, ClientError> {
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

/// Means a new conversation.
const NEW: &str = "new";

/// Appends, and prints the revisions.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] for invalid arguments.
pub(crate) async fn run(
    args: AppendArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let mut body = args.what.body()?;
    let begins = args.begins();
    let place = match begins {
        true => FoundBranch {
            branch: args.place.branch.unwrap_or_default(),
            ..Default::default()
        },
        false => args.place.find(store, RevisionArg::None).await?,
    };
    if let pb::new_event::Body::SummaryRecorded(_) = &body {
        let state = read::state(store, &place.conversation, &place.branch, 0).await?;
        let head = state.branch.map_or(0, |branch| branch.head);
        body = bodies::covering_all(body, head);
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
        args.tags.give(event);
    }
    let request = pb::AppendRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        events,
        idempotency_key: args.key.unwrap_or_default(),
        key_life_seconds: args.key_life.unwrap_or_default(),
        expected: args.expect.map(exactly),
        ..Default::default()
    };
    let answer = read::append(store, request).await?;
    if out.json {
        return Ok(out.appended(&answer.events, answer.repeated_key, &answer.warnings)?);
    }
    if let Some(last) = answer.events.last() {
        let place = format!("{}#{}", last.conversation_id, last.revision);
        out.line(out.paint.text(Tone::Name, place))?;
    }
    Ok(out.warnings(&answer.warnings)?)
}

/// Appends one event to a branch. The actor is `by`, else the account's name.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn one(
    store: &Connection,
    place: &FoundBranch,
    by: Option<String>,
    body: pb::new_event::Body,
    key: Option<String>,
) -> Result<pb::AppendResponse, ClientError> {
    let event = pb::NewEvent {
        actor: person(by),
        body: Some(body),
        ..Default::default()
    };
    let request = pb::AppendRequest {
        conversation_id: place.conversation.clone(),
        branch: place.branch.clone(),
        events: vec![event],
        idempotency_key: key.unwrap_or_default(),
        ..Default::default()
    };
    read::append(store, request).await
}

/// Returns the first event in a response.
pub(crate) fn first_of(answer: &pb::AppendResponse) -> Result<&pb::Appended, ClientError> {
    answer.events.first().ok_or(ClientError::Answer {
        call: "Append",
        part: "event",
    })
}

fn exactly(revision: u64) -> pb::ExpectedRevision {
    pb::ExpectedRevision {
        expected: Some(pb::expected_revision::Expected::Revision(revision)),
    }
}
