//! `result`: prints the result of a tool, whole or in part.

use clap::Args;
use futures::StreamExt;
use prost::Message;
use tonic::{Code, Status};

use super::{
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    error::ClientError,
    json,
    names::SCHEME,
    output::{Out, Tone},
    pb, read,
    safe::tell,
    search::{Voice, heading, voices},
};

/// Print the result of a tool, whole or in part
///
/// A digest or a note in a request has a reference to the whole content. This command prints it: a
/// result, a message, a summary, or the arguments of a call. The text goes to standard output as it
/// was recorded. On a terminal, headings separate reasoning from the answer.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering result CONVERSATION#14                 as search prints it
  treering result treering:CONVERSATION/14 --lines 120-160
  treering result CONVERSATION --call call_7 --branch retry > result.txt
  treering result treering:CONVERSATION/14 --bytes 0-4095 --json")]
pub(crate) struct ResultArgs {
    /// CONVERSATION#REVISION of a result or of its call; a reference from a request
    /// (treering:CONVERSATION/REVISION), which for a call means its arguments; with --call, a
    /// conversation
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// Print the last result of the call with this id
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
        _ => Err("use two numbers, the smaller one first, for example 10-20".into()),
    }
}

/// The event or conversation that the argument names.
struct NamedResult {
    args: ResultArgs,
    place: FoundBranch,
    /// The argument is a reference from a request, so it means exactly this event.
    is_exact: bool,
}

impl ResultArgs {
    async fn find(self, store: &Connection) -> Result<NamedResult, ClientError> {
        let mut conversation = self.reference.clone();
        if self.call.is_none() && is_path_to_event(&conversation) {
            conversation.insert_str(0, SCHEME);
        }
        let is_exact = conversation.starts_with(SCHEME);
        let named = BranchArgs {
            conversation,
            branch: self.branch.clone(),
        };
        Ok(NamedResult {
            place: named.find(store, RevisionArg::Event(0)).await?,
            args: self,
            is_exact,
        })
    }
}

/// Returns true for a reference without its scheme: `CONVERSATION/REVISION`.
fn is_path_to_event(text: &str) -> bool {
    let revision = text.rsplit_once('/').map(|(_, revision)| revision);
    !text.starts_with(SCHEME)
        && revision.is_some_and(|text| text.trim_start_matches('#').parse::<u64>().is_ok())
}

/// Prints the text, or with `--json` an object that contains it.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] for an invalid reference,
/// [`ClientError::NotFound`] for an event without a result.
pub(crate) async fn run(
    args: ResultArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let named = args.find(store).await?;
    let request = request(&named, store).await?;
    let mut answers = match store.tools().get_result(request).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return Err(not_given(&named, store, status).await),
    };
    let voices = voices_of(&named, store, out).await?;
    let (mut info, mut text) = (pb::ResultInfo::default(), Vec::new());
    // A character may be split between two chunks.
    let is_shown = out.is_terminal();
    while let Some(answer) = answers.next().await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => return Err(not_given(&named, store, status).await),
        };
        info = answer.info.unwrap_or(info);
        if out.json || is_shown {
            text.extend_from_slice(&answer.chunk);
        } else {
            out.recorded(&answer.chunk)?;
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
    } else if is_shown {
        let first = named.args.lines.map_or(1, |(first, _)| first);
        for (line, text) in (first..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            if let Some(voice) = heading(&voices, line, line == first) {
                out.line(out.paint.text(Tone::Dim, format!("({voice})")))?;
            }
            out.recorded(text)?;
        }
    }
    Ok(())
}

/// Returns which parts of an answer are reasoning, for a terminal. Other outputs get the recorded
/// text.
async fn voices_of(
    named: &NamedResult,
    store: &Connection,
    out: &Out,
) -> Result<Vec<Voice>, ClientError> {
    let args = &named.args;
    let is_event = named.place.revision > 0 && args.call.is_none();
    if !out.is_terminal() || args.bytes.is_some() || !is_event {
        return Ok(Vec::new());
    }
    let event = itself(&named.place, store).await?;
    Ok(event.map_or_else(Vec::new, voices))
}

async fn request(
    named: &NamedResult,
    store: &Connection,
) -> Result<pb::GetResultRequest, ClientError> {
    use pb::get_result_request::Which;
    let args = &named.args;
    let which = match &args.call {
        Some(call) => Which::CallId(call.clone()),
        None => Which::Revision(result_of(named, store).await?),
    };
    let (line_first, line_last) = args.lines.unwrap_or_default();
    let (byte_start, byte_length) = args
        .bytes
        .map_or((0, 0), |(first, last)| (first, last - first + 1));
    Ok(pb::GetResultRequest {
        conversation_id: named.place.conversation.clone(),
        branch: named.place.branch.clone(),
        byte_start,
        byte_length,
        line_first,
        line_last,
        which: Some(which),
        ..pb::GetResultRequest::default()
    })
}

/// Returns the revision of the result: the event itself, or the result of the call.
async fn result_of(named: &NamedResult, store: &Connection) -> Result<u64, ClientError> {
    let (at, id) = (named.place.revision, &named.place.called);
    if at == 0 {
        return Err(ClientError::Usage {
            what: format!("{id} is a conversation, not a result"),
            hint: format!(
                "use CONVERSATION#REVISION, or --call CALL_ID; `treering tools {id}` lists its \
                 calls"
            ),
        });
    }
    if named.is_exact {
        return Ok(at);
    }
    match meant(store, &named.place).await? {
        ResultTarget::Itself => Ok(at),
        ResultTarget::ItsResult(result) => {
            tell!(
                "#{at} is a call; this is its result, #{result}. Its arguments: treering result \
                 {id}/{at}"
            );
            Ok(result)
        }
        ResultTarget::NoResultYet => Err(ClientError::NotFound {
            what: format!("call {id}#{at} has no result"),
            hint: format!("`treering tools {id}` shows the state of its calls"),
        }),
    }
}

/// The event whose text is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultTarget {
    /// The event itself: a result, a message, a summary.
    Itself,
    /// The event is a call, and this is the revision of its result.
    ItsResult(u64),
    /// The event is a call without a result.
    NoResultYet,
}

/// Resolves a revision of a branch to the event whose text is printed.
async fn meant(store: &Connection, place: &FoundBranch) -> Result<ResultTarget, ClientError> {
    // `itself` does not find events that are inherited from another conversation.
    let Some(event) = itself(place, store).await? else {
        return Ok(ResultTarget::Itself);
    };
    let call_id = match &event.body {
        Some(pb::event::Body::ToolCallRequested(body)) => {
            pb::ToolCallRequested::decode(body.clone())
                .map(|call| call.call_id)
                .unwrap_or_default()
        }
        // Requests also refer to messages and summaries.
        _ => return Ok(ResultTarget::Itself),
    };
    let (conversation, branch, at) = (&place.conversation, &place.branch, place.revision);
    let result = read::result_of_call(store, conversation, branch, at, &call_id).await?;
    Ok(result.map_or(ResultTarget::NoResultYet, ResultTarget::ItsResult))
}

/// Returns the named event, if it belongs to the conversation itself.
async fn itself(place: &FoundBranch, store: &Connection) -> Result<Option<pb::Event>, ClientError> {
    read::event_at(store, &place.conversation, place.revision).await
}

/// Explains why there is no text: the event may exist without one.
async fn not_given(named: &NamedResult, store: &Connection, status: Status) -> ClientError {
    let (at, id) = (named.place.revision, &named.place.called);
    let is_there = status.code() == Code::NotFound && named.args.call.is_none();
    let event = match is_there {
        true => itself(&named.place, store).await.ok().flatten(),
        false => None,
    };
    let Some(event) = event else {
        return status.into();
    };
    let kind = json::kind_name(event.kind).replace('_', " ");
    ClientError::NotFound {
        what: format!("{id}#{at} has no text: {kind}"),
        hint: format!(
            "`treering log {id}#{at}` shows it, `treering tools {id}` lists the calls and their \
             results"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // References are copied from a screen. They must be parsed with and without their scheme, and
    // invalid ones must be refused before a query.
    #[test]
    fn result_references_are_parsed_or_refused() {
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
