//! `annotate`: a judgement on an event, a turn or a branch.

use clap::Args;
use prost::Message;

use super::{
    connect::Connection,
    error::CliError,
    json::Object,
    named::Named,
    output::{Out, Tone},
    pb, read,
};

/// Judge an event, a turn or a branch, so that forks can be compared
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering annotate CONVERSATION --score 0.8 --label solved
  treering annotate CONVERSATION --branch retry --revision 57 --comment 'read the wrong file'")]
#[command(group = clap::ArgGroup::new("judgement").required(true).multiple(true))]
pub struct AnnotateArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// What is judged [default: the whole branch]
    #[arg(
        long,
        value_name = "REVISION",
        default_value_t = 0,
        hide_default_value = true
    )]
    revision: u64,
    /// The whole turn of that revision, not the one event
    #[arg(long, requires = "revision")]
    turn: bool,
    /// A number
    #[arg(long, value_name = "NUMBER", group = "judgement", value_parser = finite)]
    #[arg(allow_negative_numbers = true)]
    score: Option<f64>,
    /// A word
    #[arg(long, value_name = "WORD", group = "judgement")]
    label: Option<String>,
    /// A sentence
    #[arg(long, value_name = "TEXT", group = "judgement")]
    comment: Option<String>,
    /// Who judges [default: the account's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl AnnotateArgs {
    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        Named::new(&mut self.conversation)
            .branch(&mut self.branch)
            .event(&mut self.revision)
    }
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("a number, for example 0.8".into()),
    }
}

/// Adds the annotation.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: AnnotateArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let body = pb::AnnotationAdded {
        target_revision: args.revision,
        whole_turn: args.turn,
        score: args.score,
        label: args.label.unwrap_or_default(),
        comment: args.comment.unwrap_or_default(),
    };
    let event = pb::NewEvent {
        actor: super::approve::person(args.by),
        body: Some(pb::new_event::Body::AnnotationAdded(
            body.encode_to_vec().into(),
        )),
        ..Default::default()
    };
    let request = pb::AppendRequest {
        conversation_id: args.conversation,
        branch: args.branch.unwrap_or_default(),
        events: vec![event],
        ..Default::default()
    };
    let answer = read::append(store, request).await?;
    let appended = answer.events.first().ok_or(CliError::Answer {
        call: "Append",
        part: "event",
    })?;
    if out.json {
        let mut object = Object::new();
        object
            .string("conversation", &appended.conversation_id)
            .number("revision", appended.revision)
            .string("id", &appended.event_id);
        return Ok(out.line(object.finish())?);
    }
    let place = out
        .paint
        .text(Tone::Name, format!("#{}", appended.revision));
    Ok(out.line(format!("Annotated, as {place}"))?)
}
