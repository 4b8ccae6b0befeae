//! `result`: what a tool returned, whole or a part of it.

use clap::Args;
use futures::StreamExt;
use serde_json::json;

use super::{connect::Connection, error::CliError, output::Out, pb};

/// What a reference begins with, as snapshots and searches give it.
const SCHEME: &str = "treering:";

/// Print what a tool returned, whole or a part of it
///
/// A snapshot in a request stands for a result with a reference; this is how to read
/// what it stands for. The text goes to standard output as it was recorded.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering result treering:CONVERSATION/14
  treering result treering:CONVERSATION/14 --lines 120-160
  treering result CONVERSATION --call call_7 --branch retry > result.txt
  treering result treering:CONVERSATION/14 --bytes 0-4095 --json")]
pub struct ResultArgs {
    /// A reference (treering:CONVERSATION/REVISION), or with --call a conversation
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// The last result of the call with this id
    #[arg(long, value_name = "CALL_ID")]
    call: Option<String>,
    /// With --call: the branch [default: the active one]
    #[arg(long, short, value_name = "NAME", requires = "call")]
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

/// Prints the text; with `--json` an object that has it.
///
/// # Errors
/// What the store or the output says; [`CliError::Usage`] for what is no reference.
pub async fn run(args: ResultArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let request = request(&args)?;
    let mut answers = store.tools().get_result(request).await?.into_inner();
    let (mut info, mut text) = (pb::ResultInfo::default(), Vec::new());
    while let Some(answer) = answers.next().await {
        let answer = answer?;
        info = answer.info.unwrap_or(info);
        if out.json {
            text.extend_from_slice(&answer.chunk);
        } else {
            out.bytes(&answer.chunk)?;
        }
    }
    if out.json {
        let object = json!({
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
    }
    Ok(())
}

fn request(args: &ResultArgs) -> Result<pb::GetResultRequest, CliError> {
    use pb::get_result_request::Which;
    let (conversation_id, which) = match &args.call {
        Some(call) => (args.reference.clone(), Which::CallId(call.clone())),
        None => {
            let (conversation, revision) = place(&args.reference)?;
            (conversation, Which::Revision(revision))
        }
    };
    let (line_first, line_last) = args.lines.unwrap_or_default();
    let (byte_start, byte_length) = args
        .bytes
        .map_or((0, 0), |(first, last)| (first, last - first + 1));
    Ok(pb::GetResultRequest {
        conversation_id,
        branch: args.branch.clone().unwrap_or_default(),
        byte_start,
        byte_length,
        line_first,
        line_last,
        which: Some(which),
        ..pb::GetResultRequest::default()
    })
}

/// Conversation and revision of a reference.
fn place(reference: &str) -> Result<(String, u64), CliError> {
    reference
        .strip_prefix(SCHEME)
        .unwrap_or(reference)
        .rsplit_once('/')
        .and_then(|(conversation, revision)| {
            let revision = revision.trim_start_matches('#');
            Some((conversation.to_owned(), revision.parse().ok()?))
        })
        .ok_or_else(|| CliError::Usage {
            what: format!("{reference:?} is no reference to a result"),
            hint: "give treering:CONVERSATION/REVISION, as snapshots do, or --call CALL_ID".into(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // What a snapshot says is copied from a screen: it must be read with and without
    // its beginning, and what is none must be refused before anything is asked.
    #[test]
    fn references_are_read_or_refused() {
        assert_eq!(place("treering:abc/14").unwrap(), ("abc".into(), 14));
        assert_eq!(place("abc/#14").unwrap(), ("abc".into(), 14));
        assert_eq!(
            place("tau/airline/3-0/9").unwrap(),
            ("tau/airline/3-0".into(), 9)
        );
        for wrong in ["", "abc", "treering:abc", "abc/x", "abc/"] {
            assert!(place(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(range("3-7"), Ok((3, 7)));
        for wrong in ["7-3", "7", "-", "a-b"] {
            assert!(range(wrong).is_err(), "{wrong:?}");
        }
    }
}
