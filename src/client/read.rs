//! Requests to a store that several commands make: reads, appends and searches.

use prost::Message;
use tonic::{Status, Streaming};

use super::{
    connect::Connection,
    error::{ClientError, reason},
    pb,
};
use treering_domain::EventKind;

/// Returns a request for all events of a branch, inherited history first.
#[must_use]
pub fn of_branch(conversation: &str, branch: &str) -> pb::ReadRequest {
    let source = pb::BranchSource {
        conversation_id: conversation.to_owned(),
        branch: branch.to_owned(),
    };
    pb::ReadRequest {
        source: Some(pb::read_request::Source::Branch(source)),
        ..Default::default()
    }
}

/// Returns a request for all events of a conversation, on all branches.
#[must_use]
pub fn of_conversation(conversation: &str) -> pb::ReadRequest {
    let source = pb::ConversationSource {
        conversation_id: conversation.to_owned(),
    };
    pb::ReadRequest {
        source: Some(pb::read_request::Source::Conversation(source)),
        ..Default::default()
    }
}

/// Starts a read.
///
/// # Errors
/// Errors of the store.
pub async fn start(
    store: &Connection,
    request: pb::ReadRequest,
) -> Result<Streaming<pb::ReadResponse>, ClientError> {
    Ok(store.events().read(request).await?.into_inner())
}

/// Reads all events of a request.
///
/// # Errors
/// Errors of the store.
pub async fn all(
    store: &Connection,
    request: pb::ReadRequest,
) -> Result<Vec<pb::Event>, ClientError> {
    let mut events = Vec::new();
    let mut answers = start(store, request).await?;
    while let Some(batch) = answers.message().await? {
        events.extend(batch.events);
    }
    Ok(events)
}

/// Returns the state of a conversation and of one branch. An empty `branch` means the active
/// branch; revision 0 means its head.
///
/// # Errors
/// Errors of the store.
pub async fn state(
    store: &Connection,
    conversation: &str,
    branch: &str,
    as_of_revision: u64,
) -> Result<pb::ConversationState, ClientError> {
    let request = pb::GetConversationRequest {
        conversation_id: conversation.to_owned(),
        branch: branch.to_owned(),
        as_of_revision,
        ..Default::default()
    };
    let mut state = store.conversations().get(request).await?.into_inner();
    if state.more_branches {
        state.branches = branches(store, conversation).await?;
        state.more_branches = false;
    }
    Ok(state)
}

/// Appends a batch.
///
/// # Errors
/// Errors of the store.
pub async fn append(
    store: &Connection,
    request: pb::AppendRequest,
) -> Result<pb::AppendResponse, ClientError> {
    Ok(store.events().append(request).await?.into_inner())
}

/// Returns all branches of a conversation.
///
/// # Errors
/// Errors of the store.
pub async fn branches(
    store: &Connection,
    conversation_id: &str,
) -> Result<Vec<pb::Branch>, ClientError> {
    let mut all = Vec::new();
    let mut request = pb::ListBranchesRequest {
        conversation_id: conversation_id.to_owned(),
        page_size: u32::MAX,
        ..Default::default()
    };
    loop {
        let page = store.conversations().list_branches(request.clone()).await?;
        let page = page.into_inner();
        all.extend(page.branches);
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

/// Returns the revision of a call's first result from revision `at` on; `None` if there is none
/// yet.
///
/// # Errors
/// Errors of the store.
pub async fn result_of_call(
    store: &Connection,
    conversation: &str,
    branch: &str,
    at: u64,
    call_id: &str,
) -> Result<Option<u64>, ClientError> {
    let later = pb::ReadRequest {
        from_revision: at,
        kinds: vec![i32::from(EventKind::ToolResultRecorded.number())],
        ..of_branch(conversation, branch)
    };
    let mut events = start(store, later).await?;
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

/// Returns an event of the conversation itself; `None` for an inherited event.
///
/// # Errors
/// Errors of the store.
pub async fn event_at(
    store: &Connection,
    conversation: &str,
    revision: u64,
) -> Result<Option<pb::Event>, ClientError> {
    let request = pb::ReadRequest {
        from_revision: revision,
        to_revision: revision,
        ..of_conversation(conversation)
    };
    crate::names::first(store, request).await
}

fn is_result_of(event: &pb::Event, call_id: &str) -> bool {
    let Some(pb::event::Body::ToolResultRecorded(body)) = &event.body else {
        return false;
    };
    pb::ToolResultRecorded::decode(body.clone()).is_ok_and(|result| result.call_id == call_id)
}

/// Searches. A query that has only punctuation is searched for literally.
///
/// # Errors
/// Errors of the store; [`ClientError::Usage`] if the query is empty.
pub async fn search(
    request: &mut pb::SearchRequest,
    store: &Connection,
) -> Result<pb::SearchResponse, ClientError> {
    let status = match store.search().search(request.clone()).await {
        Ok(answer) => return Ok(answer.into_inner()),
        Err(status) => status,
    };
    let is_wordless = reason(&status) == "EMPTY_QUERY";
    let signs = request.query.trim();
    if !is_wordless || signs.is_empty() || request.mode == i32::from(pb::QueryMode::Query) {
        return Err(if is_wordless {
            without_words()
        } else {
            status.into()
        });
    }
    request.query = regex::escape(signs);
    request.regex = true;
    request.mode = pb::QueryMode::Unspecified.into();
    Ok(store.search().search(request.clone()).await?.into_inner())
}

/// Reads the beginning of a range of a recorded text. Stops as soon as it has more than `bytes_max`
/// bytes, even if the range is longer.
///
/// # Errors
/// Errors of the store.
pub async fn beginning_of_result(
    store: &Connection,
    request: pb::GetResultRequest,
    bytes_max: usize,
) -> Result<(pb::ResultInfo, Vec<u8>), Status> {
    let mut answers = store.tools().get_result(request).await?.into_inner();
    let (mut info, mut bytes) = (pb::ResultInfo::default(), Vec::new());
    while bytes.len() <= bytes_max
        && let Some(answer) = answers.message().await?
    {
        info = answer.info.unwrap_or(info);
        bytes.extend_from_slice(&answer.chunk);
    }
    Ok((info, bytes))
}

/// Returns the complete characters of a byte range, and the number of bytes before them.
#[must_use]
pub fn whole_chars(bytes: &[u8]) -> (usize, &str) {
    let is_inside = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let skipped = bytes.iter().take(3).take_while(is_inside).count();
    let rest = &bytes[skipped..];
    let text = match std::str::from_utf8(rest) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(),
    };
    (skipped, text)
}

/// Returns the error for a query with nothing to search for.
fn without_words() -> ClientError {
    ClientError::Usage {
        what: "the query has no words to search for".into(),
        hint: "give at least one letter, digit or sign; or a filter such as --path or --tool, to \
               list everything that matches it"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A part that begins or ends inside a character is not valid UTF-8. The omitted bytes must be
    // in the next part.
    #[test]
    fn parts_are_whole_characters() {
        let text = "aé日本".as_bytes();
        assert_eq!(whole_chars(&text[..2]), (0, "a"));
        assert_eq!(whole_chars(&text[2..]), (1, "日本"));
        assert_eq!(whole_chars(&text[4..]), (2, "本"));
        assert_eq!(whole_chars(&text[..8]), (0, "aé日"));
        assert_eq!(whole_chars(b""), (0, ""));
    }
}
