//! Large results in pieces: sends ranges of a recorded text, and assembles a text from chunks.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use prost::Message;
use tonic::Status;

use super::status::{OrStatus, Refusal};
use super::{
    bounds::RESULT_CHUNK_BYTES,
    from_proto::{self, InvalidField},
};
use treering_context::references::ReadArguments;
use treering_domain::{
    AppendCommand, ConversationId, EventKind, Expectation, ExpectedRevision, Namespace, NewEvent,
};
use treering_engine::{AppendError, RecordedResult};
use treering_proto::{
    body::EncodedBody,
    pb::{self, record_result_request::Item},
};

/// The requested part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// At most `length` bytes from `start`.
    Bytes { start: u64, length: u64 },
    /// Lines, from 1, inclusive.
    Lines { first: u64, last: u64 },
}

impl Range {
    /// Returns the range that a request selects.
    ///
    /// # Errors
    /// [`InvalidField`] when bytes and lines are both given, or lines run backward.
    pub(crate) fn of(request: &pb::GetResultRequest) -> Result<Self, InvalidField> {
        let unbounded = |number| if number == 0 { u64::MAX } else { number };
        let bytes = request.byte_start != 0 || request.byte_length != 0;
        if request.line_first == 0 && request.line_last == 0 {
            return Ok(Self::Bytes {
                start: request.byte_start,
                length: unbounded(request.byte_length),
            });
        }
        if bytes {
            let message = "lines and bytes are both set: choose one";
            return Err(InvalidField::new("line_first", message));
        }
        let last = unbounded(request.line_last);
        if request.line_first > last {
            let message = "is before line_first";
            return Err(InvalidField::new("line_last", message));
        }
        Ok(Self::Lines {
            first: request.line_first.max(1),
            last,
        })
    }

    /// Returns the bytes of the range in `text`, or `None` when it starts after the end.
    fn bytes_of(self, text: &str) -> Option<std::ops::Range<usize>> {
        match self {
            Self::Bytes { start, length } => {
                let start = usize::try_from(start).ok().filter(|s| *s <= text.len())?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Some(start..start.saturating_add(length).min(text.len()))
            }
            Self::Lines { first, last } => {
                let index = |line: u64| usize::try_from(line).unwrap_or(usize::MAX);
                let mut starts = std::iter::once(0).chain(
                    newlines(text)
                        .map(|newline| newline + 1)
                        .filter(|start| *start < text.len()),
                );
                let start = starts.nth(index(first) - 1)?;
                let more = index(last - first);
                let end = starts.nth(more).unwrap_or(text.len());
                Some(start..end)
            }
        }
    }
}

/// Parses the arguments with which a model requests a result.
///
/// # Errors
/// [`InvalidField`] when the arguments name no result, or the request also selects one in another way.
pub(super) fn asked(request: &pb::GetResultRequest) -> Result<ReadArguments, InvalidField> {
    let ranges = [
        request.byte_start,
        request.byte_length,
        request.line_first,
        request.line_last,
    ];
    if request.which.is_some() || ranges.iter().any(|number| *number != 0) {
        let message = "cannot be combined with other fields that select a result";
        return Err(InvalidField::new("arguments", message));
    }
    let text = std::str::from_utf8(&request.arguments)
        .map_err(|_| InvalidField::new("arguments", "must be UTF-8"))?;
    ReadArguments::parse(text).map_err(|error| InvalidField::new("arguments", error.to_string()))
}

fn newlines(text: &str) -> impl Iterator<Item = usize> + '_ {
    text.match_indices('\n').map(|(at, _)| at)
}

/// Returns a recorded result as messages: its description, then its text.
///
/// # Errors
/// `OUT_OF_RANGE` when the range starts after the end of the text.
pub(super) fn messages(
    recorded: RecordedResult,
    range: Range,
) -> Result<impl Iterator<Item = Result<pb::GetResultResponse, Status>> + Send, Status> {
    let total = recorded.text.len();
    let range = range.bytes_of(&recorded.text);
    let range = range.ok_or_else(|| Refusal::range_after_end(total))?;
    let mut info = Some(pb::ResultInfo {
        conversation_id: recorded.event.header.conversation.to_string(),
        revision: recorded.event.header.revision.0,
        call_id: recorded.result.call_id,
        tool: recorded.tool,
        success: recorded.result.success,
        error_message: recorded.result.error_message,
        total_bytes: total as u64,
        byte_start: range.start as u64,
    });
    let mut rest = Bytes::from(recorded.text).slice(range);
    Ok(std::iter::from_fn(move || {
        if rest.is_empty() && info.is_none() {
            return None;
        }
        let chunk = rest.split_to(rest.len().min(RESULT_CHUNK_BYTES));
        let info = info.take();
        Some(Ok(pb::GetResultResponse { info, chunk }))
    }))
}

/// Assembles a result's text.
///
/// # Errors
/// `INVALID_ARGUMENT` when the stream does not begin with `start`, or when the whole text is too
/// long or is not UTF-8.
pub(super) async fn assemble(
    requests: impl Stream<Item = Result<pb::RecordResultRequest, Status>>,
    bytes_max: usize,
) -> Result<(pb::RecordResultStart, String), Status> {
    let mut requests = std::pin::pin!(requests);
    let first = requests.next().await.transpose()?;
    let Some(Item::Start(start)) = first.and_then(|first| first.item) else {
        let message = "the first message must be `start`";
        return Err(InvalidField::new("start", message).into());
    };
    let mut text = Vec::new();
    while let Some(request) = requests.next().await.transpose()? {
        let Some(Item::Chunk(chunk)) = request.item else {
            let message = "every message after the first must be a `chunk`";
            return Err(InvalidField::new("chunk", message).into());
        };
        let actual = text.len() + chunk.len();
        if actual > bytes_max {
            return Err(too_large(actual, bytes_max)).or_status();
        }
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let message = format!("the text is not UTF-8 at byte {valid}");
        InvalidField::new("chunk", message)
    })?;
    Ok((start, text))
}

fn too_large(actual: usize, max: usize) -> AppendError {
    AppendError::TooLarge {
        what: "the result's text, in bytes,",
        actual,
        max,
        limit: "body_bytes_max",
    }
}

/// Returns the command that appends a result whose text came in chunks. The text precedes the other
/// parts.
///
/// # Errors
/// [`InvalidField`] names the field.
pub(super) fn command(
    namespace: Namespace,
    conversation: ConversationId,
    start: pb::RecordResultStart,
    text: String,
) -> Result<AppendCommand<EncodedBody>, InvalidField> {
    let Some(mut result) = start.result else {
        return Err(InvalidField::new("start.result", "is required"));
    };
    if !text.is_empty() {
        let part = Some(pb::content_part::Part::Text(text));
        result.parts.insert(0, pb::ContentPart { part });
    }
    from_proto::check_short("start.actor", &start.actor)?;
    let branch = from_proto::branch("start.branch", &start.branch)?;
    let encoded = Bytes::from(result.encode_to_vec());
    let body = EncodedBody::received(EventKind::ToolResultRecorded, encoded).map_err(|fault| {
        let field = format!("start.result.{}", fault.field);
        InvalidField::new(field, fault.problem.to_string())
    })?;
    let expected = from_proto::expected(start.expected);
    let expectation = (expected != ExpectedRevision::Any).then(|| Expectation {
        conversation,
        branch: branch.clone(),
        expected,
    });
    Ok(AppendCommand {
        create_if_missing: None,
        expected_keys: Vec::new(),
        skip_known: false,
        namespace,
        expectations: expectation.into_iter().collect(),
        idempotency_key: from_proto::idempotency_key(start.idempotency_key)?,
        key_life_seconds: None,
        events: vec![NewEvent {
            branch,
            actor: start.actor,
            ..NewEvent::new(conversation, body)
        }],
    })
}

#[cfg(test)]
#[path = "result_text_tests.rs"]
mod tests;
