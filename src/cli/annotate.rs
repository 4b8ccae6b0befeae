//! `annotate`: adds a judgement on an event, a turn or a branch.

use clap::Args;

use super::{
    append::{self, bodies::encode, first_of},
    branch_args::{BranchArgs, RevisionArg},
    connect::Connection,
    error::ClientError,
    json::Object,
    output::{Out, Tone},
    pb,
    text_arg::free_text,
};

/// Annotate an event, a turn or a branch, so that forks can be compared
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering annotate CONVERSATION --score 0.8 --label solved
  treering annotate CONVERSATION --branch retry --revision 57 --comment 'read the wrong file'")]
#[command(group = clap::ArgGroup::new("judgement").required(true).multiple(true))]
pub(crate) struct AnnotateArgs {
    #[command(flatten)]
    place: BranchArgs,
    /// Revision to annotate [default: the whole branch]
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
    /// Annotate the whole turn of that revision, not only the event
    #[arg(long, requires = "revision")]
    turn: bool,
    /// Score: a number
    #[arg(long, value_name = "NUMBER", group = "judgement", value_parser = finite)]
    #[arg(allow_negative_numbers = true)]
    score: Option<f64>,
    /// Label: a word
    #[arg(long, value_name = "WORD", group = "judgement")]
    label: Option<String>,
    /// Comment: a sentence
    #[arg(long, value_name = "TEXT", group = "judgement")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    comment: Option<String>,
    /// Who annotates [default: the account's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("a number, for example 0.8".into()),
    }
}

/// Adds the annotation.
pub(crate) async fn run(
    args: AnnotateArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let event = RevisionArg::Event(args.revision.unwrap_or_default());
    let place = args.place.find(store, event).await?;
    let body = pb::AnnotationAdded {
        target_revision: place.revision,
        whole_turn: args.turn,
        score: args.score,
        label: args.label.unwrap_or_default(),
        comment: args.comment.unwrap_or_default(),
    };
    let body = pb::new_event::Body::AnnotationAdded(encode(&body));
    let answer = append::one(store, &place, args.by, body, None).await?;
    let appended = first_of(&answer)?;
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
