//! `result`: what a tool returned, whole or a part of it.

use clap::Args;
use futures::StreamExt;
use prost::Message;
use tonic::{Code, Status};

use super::{
    connect::Connection,
    error::CliError,
    json,
    named::Named,
    names::{self, SCHEME},
    output::{Out, Tone},
    pb, read,
    search::{Voice, heading, voices},
};
use crate::domain::EventKind;

/// Print what a tool returned, whole or a part of it
///
/// A snapshot in a request stands for a result with a reference, and a note for what
/// was left out: this is how to read what they stand for: a result, a message, a summary, or
/// the arguments of a call. The text goes to standard output as it was recorded; on a terminal
/// headings tell what a model thought from what it said.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering result CONVERSATION#14                 as a search has printed it
  treering result treering:CONVERSATION/14 --lines 120-160
  treering result CONVERSATION --call call_7 --branch retry > result.txt
  treering result treering:CONVERSATION/14 --bytes 0-4095 --json")]
pub struct ResultArgs {
    /// CONVERSATION#REVISION of a result, or of the call that it answers; a reference of a
    /// request (treering:CONVERSATION/REVISION): what it names, of a call its arguments; with
    /// --call a conversation
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// The revision that the reference names.
    #[arg(skip)]
    at: u64,
    /// It is a reference as requests have it: it names this event and no other.
    #[arg(skip)]
    is_exact: bool,
    /// The last result of the call with this id
    #[arg(long, value_name = "CALL_ID")]
    call: Option<String>,
    /// The branch [default: the one that has the result]
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Only these lines, from 1, both ends inclusive
    #[arg(long, value_name = "FIRST-LAST", value_parser = range, conflicts_with = "bytes")]
    lines: Option<(u64, u64)>,
    /// Only these bytes, from 0, both ends inclusive
    #[arg(long, value_name = "FIRST-LAST", value_parser = range)]
    bytes: Option<(u64, u64)>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let ends = text
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match ends {
        Some((first, last)) if first <= last => Ok((first, last)),
        _ => Err("two numbers, the smaller one first, for example 10-20".into()),
    }
}

impl ResultArgs {
    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        if self.call.is_none() && is_path_to_event(&self.reference) {
            self.reference.insert_str(0, SCHEME);
        }
        self.is_exact = self.reference.starts_with(SCHEME);
        Named::new(&mut self.reference)
            .branch(&mut self.branch)
            .event(&mut self.at)
    }
}

/// True for a reference without its beginning: `CONVERSATION/REVISION`.
fn is_path_to_event(text: &str) -> bool {
    let revision = text.rsplit_once('/').map(|(_, revision)| revision);
    !text.starts_with(SCHEME)
        && revision.is_some_and(|text| text.trim_start_matches('#').parse::<u64>().is_ok())
}

/// Prints the text; with `--json` an object that has it.
///
/// # Errors
/// What the store or the output says; [`CliError::Usage`] for what is no reference,
/// [`CliError::NotFound`] for an event that is no result.
pub async fn run(args: ResultArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let request = request(&args, store).await?;
    let mut answers = match store.tools().get_result(request).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return Err(not_given(&args, store, status).await),
    };
    let voices = voices_of(&args, store, out).await?;
    let (mut info, mut text) = (pb::ResultInfo::default(), Vec::new());
    while let Some(answer) = answers.next().await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => return Err(not_given(&args, store, status).await),
        };
        info = answer.info.unwrap_or(info);
        if out.json || !voices.is_empty() {
            text.extend_from_slice(&answer.chunk);
        } else {
            out.bytes(&answer.chunk)?;
        }
    }
    if out.json {
        let object = serde_json::json!({
            "conversation": info.conversation_id,
            "revision": info.revision,
            "call_id": info.call_id,
            "tool": info.tool,
            "success": info.success,
            "error_message": info.error_message,
            "total_bytes": info.total_bytes,
            "byte_start": info.byte_start,
            "text": String::from_utf8_lossy(&text),
        });
        out.line(object)?;
    } else if !voices.is_empty() {
        let first = args.lines.map_or(1, |(first, _)| first);
        for (line, text) in (first..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            if let Some(voice) = heading(&voices, line, line == first) {
                out.line(out.paint.text(Tone::Dim, format!("({voice})")))?;
            }
            out.bytes(text)?;
        }
    }
    Ok(())
}

/// On a terminal: where an answer's text is what its model thought. What goes elsewhere is the
/// text as it was recorded.
async fn voices_of(
    args: &ResultArgs,
    store: &Connection,
    out: &Out,
) -> Result<Vec<Voice>, CliError> {
    if !out.is_terminal() || args.call.is_some() || args.bytes.is_some() || args.at == 0 {
        return Ok(Vec::new());
    }
    let event = itself(args, store).await?;
    Ok(event.map_or_else(Vec::new, voices))
}

async fn request(args: &ResultArgs, store: &Connection) -> Result<pb::GetResultRequest, CliError> {
    use pb::get_result_request::Which;
    let which = match &args.call {
        Some(call) => Which::CallId(call.clone()),
        None => Which::Revision(result_of(args, store).await?),
    };
    let (line_first, line_last) = args.lines.unwrap_or_default();
    let (byte_start, byte_length) = args
        .bytes
        .map_or((0, 0), |(first, last)| (first, last - first + 1));
    Ok(pb::GetResultRequest {
        conversation_id: args.reference.clone(),
        branch: args.branch.clone().unwrap_or_default(),
        byte_start,
        byte_length,
        line_first,
        line_last,
        which: Some(which),
        ..pb::GetResultRequest::default()
    })
}

/// The revision of the result that is meant: itself, or that of the call that is named.
async fn result_of(args: &ResultArgs, store: &Connection) -> Result<u64, CliError> {
    if args.at == 0 {
        let id = called(args, store).await?;
        return Err(CliError::Usage {
            what: format!("{id} is a whole conversation, not a result"),
            hint: format!(
                "give CONVERSATION#REVISION, or --call CALL_ID; `treering tools {id}` lists its calls"
            ),
        });
    }
    if args.is_exact {
        return Ok(args.at);
    }
    let branch = args.branch.as_deref().unwrap_or("");
    match meant(store, &args.reference, branch, args.at).await? {
        Meant::Itself => Ok(args.at),
        Meant::ItsResult(result) => {
            let (call, id) = (args.at, called(args, store).await?);
            anstream::eprintln!(
                "#{call} is a call, and this is its result, #{result}; its arguments: treering \
                 result {id}/{call}"
            );
            Ok(result)
        }
        Meant::NoResultYet => {
            let id = called(args, store).await?;
            Err(CliError::NotFound {
                what: format!("the call {id}#{} has no result", args.at),
                hint: format!("`treering tools {id}` tells where its calls stand"),
            })
        }
    }
}

/// What is meant by a revision, when a text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meant {
    /// That event: a result, a message, a summary.
    Itself,
    /// It is a call, and this is the revision of its result.
    ItsResult(u64),
    /// It is a call without one.
    NoResultYet,
}

/// What is meant by a revision of a branch.
///
/// # Errors
/// What the store says.
async fn meant(
    store: &Connection,
    conversation: &str,
    branch: &str,
    at: u64,
) -> Result<Meant, CliError> {
    // What was inherited from another conversation is not among its own.
    let Some(event) = event_at(store, conversation, at).await? else {
        return Ok(Meant::Itself);
    };
    let call_id = match &event.body {
        Some(pb::event::Body::ToolCallRequested(body)) => {
            pb::ToolCallRequested::decode(body.clone())
                .map(|call| call.call_id)
                .unwrap_or_default()
        }
        // Requests refer to messages and summaries, too.
        _ => return Ok(Meant::Itself),
    };
    let result = result_of_call(store, conversation, branch, at, &call_id).await?;
    Ok(result.map_or(Meant::NoResultYet, Meant::ItsResult))
}

/// The revision of the first result of a call after its request; none: it has none yet.
///
/// # Errors
/// What the store says.
pub(crate) async fn result_of_call(
    store: &Connection,
    conversation: &str,
    branch: &str,
    at: u64,
    call_id: &str,
) -> Result<Option<u64>, CliError> {
    let later = pb::ReadRequest {
        from_revision: at,
        kinds: vec![i32::from(EventKind::ToolResultRecorded.number())],
        ..read::of_branch(conversation, branch)
    };
    let mut events = read::start(store, later).await?;
    while let Some(batch) = events.message().await? {
        let result = batch
            .events
            .iter()
            .find(|event| is_result_of(event, call_id));
        if let Some(result) = result {
            return Ok(Some(result.revision));
        }
    }
    Ok(None)
}

/// An event, if the conversation has it itself.
///
/// # Errors
/// What the store says.
pub(crate) async fn event_at(
    store: &Connection,
    conversation: &str,
    revision: u64,
) -> Result<Option<pb::Event>, CliError> {
    let request = pb::ReadRequest {
        from_revision: revision,
        to_revision: revision,
        ..read::of_conversation(conversation)
    };
    names::first(store, request).await
}

/// The event that is named, if the conversation has it itself.
async fn itself(args: &ResultArgs, store: &Connection) -> Result<Option<pb::Event>, CliError> {
    event_at(store, &args.reference, args.at).await
}

/// Why nothing was given: an event that is there may have nothing to say.
async fn not_given(args: &ResultArgs, store: &Connection, status: Status) -> CliError {
    let is_there = status.code() == Code::NotFound && args.call.is_none();
    let event = match is_there {
        true => itself(args, store).await.ok().flatten(),
        false => None,
    };
    let (Some(event), Ok(id)) = (event, called(args, store).await) else {
        return status.into();
    };
    let kind = json::kind_name(event.kind).replace('_', " ");
    CliError::NotFound {
        what: format!("{id}#{} has no text: {kind}", args.at),
        hint: format!(
            "`treering log {id}#{}` shows it, `treering tools {id}` lists the calls and their \
             results",
            args.at
        ),
    }
}

/// What the conversation is called in a message.
async fn called(args: &ResultArgs, store: &Connection) -> Result<String, CliError> {
    Ok(names::find(store, &args.reference).await?.called())
}

fn is_result_of(event: &pb::Event, call_id: &str) -> bool {
    let Some(pb::event::Body::ToolResultRecorded(body)) = &event.body else {
        return false;
    };
    pb::ToolResultRecorded::decode(body.clone()).is_ok_and(|result| result.call_id == call_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    // What a snapshot says is copied from a screen: it must be read with and without
    // its beginning, and what is none must be refused before anything is asked.
    #[test]
    fn references_are_read_or_refused() {
        for reference in ["abc/14", "abc/#14", "tau/airline/3-0/9"] {
            assert!(is_path_to_event(reference), "{reference}");
        }
        for other in ["", "abc", "abc#14", "treering:abc/14", "abc/x", "abc/"] {
            assert!(!is_path_to_event(other), "{other:?}");
        }
        assert_eq!(range("3-7"), Ok((3, 7)));
        for wrong in ["7-3", "7", "-", "a-b"] {
            assert!(range(wrong).is_err(), "{wrong:?}");
        }
    }
}
