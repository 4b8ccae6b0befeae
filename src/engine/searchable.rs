//! Extracts the indexable content of a part of the log: texts, and the fields for filters.

use std::collections::HashMap;

use super::{
    Inner, ReadPath,
    damage::{LogStretch, stretch},
    error::ReadError,
};
use treering_domain::{
    BranchId, ConversationKey, EventBody, EventHeader, EventKind, EventRef, Role, TimestampMicros,
    ToolCallRequested, with_causes,
};
use treering_log::Record;
use treering_search::{
    SearchableEvent, attached_names, call_target, is_recall_call, is_recalled_text, searchable_text,
};

/// Maximum number of records per read, and their maximum size in bytes.
const RECORDS_MAX: usize = 2_048;
const RECORDS_BYTES_MAX: usize = 4 << 20;

/// The indexable content of a part of the log.
#[derive(Default)]
pub(super) struct SearchableContent {
    pub(crate) events: Vec<SearchableEvent>,
    /// The last offset that it covers.
    pub(crate) reached: u64,
    /// Events that could not be read or cannot be served.
    pub(crate) not_indexed: u64,
    /// Earlier events that turned out to be recalled: calls whose results quote a memory, though
    /// neither the tool's name nor the arguments tell.
    pub(crate) recalled_before: Vec<SearchableEvent>,
    /// The offsets of those events, before they are read.
    calls_recalled: Vec<u64>,
}

impl SearchableContent {
    /// Marks the call of a result that quotes a memory.
    async fn note_recall(
        &mut self,
        inner: &Inner,
        header: &EventHeader,
        call_id: &str,
    ) -> Result<(), ReadError> {
        let Some(entry) = inner.reads.request_of(header, call_id)? else {
            return Ok(());
        };
        let at = EventRef {
            conversation: entry.conversation.id,
            revision: entry.request,
        };
        let known = self.events.iter_mut().rfind(|event| {
            (event.conversation, event.revision) == (at.conversation, at.revision)
                && event.namespace == header.namespace
        });
        if let Some(event) = known {
            event.recalled = true;
            return Ok(());
        }
        let call = inner.reads.history().event(&header.namespace, at).await;
        match call {
            Ok(call) => self.calls_recalled.extend(call.map(|(offset, _)| offset)),
            // It is not in the index either.
            Err(ReadError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Extracts the indexable content of the records from offset `from` on. Damaged records are
/// skipped, so that indexing does not stop there.
///
/// # Errors
/// When the log cannot be read for a reason other than damage.
pub(super) async fn searchable(
    inner: &Inner,
    from: u64,
    head: u64,
) -> Result<SearchableContent, ReadError> {
    let fed = inner.appends.feed.take(from, head, RECORDS_MAX);
    let mut found = match fed.is_empty() {
        true => read_content(inner, from, head).await?,
        false => content_of(inner, from, fed).await?,
    };
    for offset in std::mem::take(&mut found.calls_recalled) {
        let call = read_content(inner, offset, offset).await?;
        found.recalled_before.extend(call.events);
    }
    for event in &mut found.recalled_before {
        event.recalled = true;
    }
    Ok(found)
}

async fn read_content(inner: &Inner, from: u64, last: u64) -> Result<SearchableContent, ReadError> {
    let reader = &inner.reads.reader;
    let read = stretch(reader, from, last, RECORDS_MAX, RECORDS_BYTES_MAX);
    match read.await? {
        LogStretch::Records(records) => content_of(inner, from, records).await,
        LogStretch::Lost(lost) => Ok(SearchableContent {
            reached: lost.last,
            not_indexed: lost.last - lost.first + 1,
            ..SearchableContent::default()
        }),
    }
}

/// Extracts the indexable content of records.
async fn content_of(
    inner: &Inner,
    from: u64,
    records: Vec<(u64, Record)>,
) -> Result<SearchableContent, ReadError> {
    let mut found = SearchableContent {
        reached: from - 1,
        ..SearchableContent::default()
    };
    let history = inner.reads.history();
    let mut called = RecentCalls::default();
    let before = last_times_before(inner, from).await;
    let times = times_of(records.iter().map(|(_, record)| &record.header), before);
    for ((offset, record), happened_at) in records.into_iter().zip(times) {
        found.reached = offset;
        let header = &record.header;
        if inner.reads.quarantine.covers(header.key(), header.revision) {
            found.not_indexed += 1;
            continue;
        }
        if !header.kind().is_some_and(is_looked_at) {
            continue;
        }
        let body = match history.decode(offset, &record).await {
            Ok(body) => body,
            Err(error @ ReadError::Damaged { .. }) => {
                tracing::warn!(error = %with_causes(&error), "an event cannot be indexed");
                found.not_indexed += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        if let EventBody::ToolCallRequested(call) = &body {
            called.note(header, call);
        }
        if let Some(text) = searchable_text(&body).map(std::borrow::Cow::into_owned) {
            let of = about(inner, &mut called, header, &body).await?;
            let is_recalled = is_recalled_text(&text);
            if let EventBody::ToolResultRecorded(result) = &body
                && is_recalled
                && !of.call.recalls
            {
                found.note_recall(inner, header, &result.call_id).await?;
            }
            found.events.push(SearchableEvent {
                namespace: header.namespace.clone(),
                conversation: header.conversation,
                branch: header.branch,
                revision: header.revision,
                position: inner.reads.reader.position(offset),
                kind: body.kind(),
                role: of.role,
                tool: of.call.tool,
                paths: of.call.paths,
                success: of.success,
                recalled: of.call.recalls || is_recalled,
                recorded_at: header.recorded_at,
                happened_at,
                text,
            });
        }
    }
    Ok(found)
}

/// Maximum number of records before the range that are searched for the time of its first event.
const RECORDS_BEFORE_MAX: u64 = 64;

/// The time of the last event of an append that states when it happened.
#[derive(Clone, Copy, Debug)]
struct LastTime {
    /// All events of one append to a conversation have the same recording time.
    recorded_at: TimestampMicros,
    happened_at: TimestampMicros,
}

type LastTimes = HashMap<ConversationKey, LastTime>;

/// Returns when events happened. An event without a time gets that of the nearest event of its
/// append, preferably an earlier one, because imported events did not happen when they were
/// recorded. In an append without any times, the recording time is used.
fn times_of<'a>(
    headers: impl DoubleEndedIterator<Item = &'a EventHeader> + Clone,
    mut last: LastTimes,
) -> Vec<TimestampMicros> {
    let mut times: Vec<Option<TimestampMicros>> = Vec::new();
    for header in headers.clone() {
        times.push(note_time(&mut last, header));
    }
    let mut next = LastTimes::new();
    for (header, time) in headers.clone().rev().zip(times.iter_mut().rev()) {
        let behind = note_time(&mut next, header);
        *time = time.or(behind);
    }
    let known = headers.zip(times);
    let time = |(header, time): (&EventHeader, Option<TimestampMicros>)| {
        time.unwrap_or(header.recorded_at)
    };
    known.map(time).collect()
}

/// Returns the event's time, or that of the last noted event of the same append.
fn note_time(last: &mut LastTimes, header: &EventHeader) -> Option<TimestampMicros> {
    let recorded_at = header.recorded_at;
    if let Some(happened_at) = header.occurred_at {
        let time = LastTime {
            recorded_at,
            happened_at,
        };
        last.insert(header.key(), time);
        return Some(happened_at);
    }
    let noted = last.get(&header.key())?;
    (noted.recorded_at == recorded_at).then_some(noted.happened_at)
}

/// Returns the last time that an append states before offset `from`, where a range begins; empty if
/// there is none. A range may begin in the middle of an append, and its events inherit that time.
async fn last_times_before(inner: &Inner, from: u64) -> LastTimes {
    let mut times = LastTimes::new();
    let first = from.saturating_sub(RECORDS_BEFORE_MAX).max(1);
    let mut append = None;
    for offset in (first..from).rev() {
        // An unreadable record provides no time; it is reported when it is indexed.
        let Ok(record) = inner.reads.reader.record(offset).await else {
            break;
        };
        let header = &record.header;
        let of = (header.key(), header.recorded_at);
        if *append.get_or_insert(of) != of || note_time(&mut times, header).is_some() {
            break;
        }
    }
    times
}

/// Returns true for kinds that have a text, or that name the tool of a later event.
fn is_looked_at(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::ConversationCreated
            | EventKind::ToolCallRequested
            | EventKind::MessageAppended
            | EventKind::ToolResultRecorded
            | EventKind::SummaryRecorded
            | EventKind::Compacted
            | EventKind::SubContextReturned
            | EventKind::ToolSnapshotRecorded
            | EventKind::ConversationSealed
            | EventKind::AnnotationAdded
            | EventKind::Custom
            | EventKind::ConversationChanged
    )
}

/// The fields of a call that filters use.
#[derive(Clone, Debug, Default)]
struct Call {
    tool: String,
    paths: Vec<String>,
    /// The tool reads a memory.
    recalls: bool,
}

impl Call {
    fn of(request: &ToolCallRequested) -> Self {
        Self {
            tool: request.tool.clone(),
            recalls: is_recall_call(&request.tool, request.arguments.as_str()),
            paths: call_target(request.arguments.as_str()).paths,
        }
    }
}

/// Recently read calls. Most results follow their call closely.
#[derive(Default)]
struct RecentCalls(HashMap<(ConversationKey, BranchId, String), Call>);

impl RecentCalls {
    fn note(&mut self, header: &EventHeader, request: &ToolCallRequested) {
        let of = (header.key(), header.branch, request.call_id.clone());
        self.0.insert(of, Call::of(request));
    }

    /// Returns the call with this id. If it was not read recently, reads the last request with the
    /// id before the event.
    async fn call(
        &self,
        inner: &Inner,
        header: &EventHeader,
        call_id: &str,
    ) -> Result<Call, ReadError> {
        let of = (header.key(), header.branch, call_id.to_owned());
        if let Some(call) = self.0.get(&of) {
            return Ok(call.clone());
        }
        let request = inner.reads.request_body(header, call_id).await?;
        Ok(request.as_ref().map(Call::of).unwrap_or_default())
    }
}

impl ReadPath {
    /// Returns the last request with a call's id before an event; `None` if there is none that can
    /// be read.
    ///
    /// # Errors
    /// When the log cannot be read for a reason other than damage.
    pub(super) async fn request_body(
        &self,
        header: &EventHeader,
        call_id: &str,
    ) -> Result<Option<ToolCallRequested>, ReadError> {
        let Some(entry) = self.request_of(header, call_id)? else {
            return Ok(None);
        };
        let at = EventRef {
            conversation: entry.conversation.id,
            revision: entry.request,
        };
        let history = self.history();
        let body = match history.event(&header.namespace, at).await {
            Ok(Some((offset, record))) => history.decode(offset, &record).await,
            Ok(None) => return Ok(None),
            Err(error) => Err(error),
        };
        match body {
            Ok(EventBody::ToolCallRequested(request)) => Ok(Some(request)),
            Ok(_) | Err(ReadError::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The fields of an event that filters use.
#[derive(Default)]
struct FilterFields {
    role: Option<Role>,
    call: Call,
    success: Option<bool>,
}

async fn about(
    inner: &Inner,
    called: &mut RecentCalls,
    header: &EventHeader,
    body: &EventBody,
) -> Result<FilterFields, ReadError> {
    let mut about = FilterFields::default();
    match body {
        EventBody::MessageAppended(message) => {
            about.role = Some(message.role);
            about.call.paths = attached_names(body).map(str::to_owned).collect();
            if message.role == Role::Tool {
                about.call.tool.clone_from(&message.tool_name);
                about.call.recalls = is_recall_call(&message.tool_name, "");
            }
        }
        EventBody::ToolCallRequested(request) => {
            about.call = called.call(inner, header, &request.call_id).await?;
        }
        EventBody::ToolResultRecorded(result) => {
            about.call = called.call(inner, header, &result.call_id).await?;
            about.success = Some(result.success);
        }
        EventBody::ToolSnapshotRecorded(snapshot) => {
            about.call = called.call(inner, header, &snapshot.call_id).await?;
        }
        _ => {}
    }
    Ok(about)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // Events of kinds without a text are skipped without decoding, so no kind with a text may
        // be skipped.
        #[test]
        fn every_kind_with_text_is_indexed(body in treering_arbitrary::event_body()) {
            prop_assert!(searchable_text(&body).is_none() || is_looked_at(body.kind()));
        }
    }
}
