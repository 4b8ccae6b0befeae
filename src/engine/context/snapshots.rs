//! Finished calls in short.

use std::collections::HashMap;

use futures::StreamExt;

use super::ContextError;
use crate::{
    context::{draft::full_result_ref, summary::result_summary},
    domain::{
        EventBody, EventKind, EventRef, JsonText, Revision, ToolCallRequested, ToolResultRecorded,
    },
    engine::{
        Engine,
        error::ReadError,
        history::decode_body,
        query::{BranchAddress, NamedEvent, ReadQuery, Source, ToolHistoryQuery},
    },
};

/// Kinds of events that snapshots are made of.
const KINDS: [EventKind; 3] = [
    EventKind::ToolCallRequested,
    EventKind::ToolResultRecorded,
    EventKind::ToolSnapshotRecorded,
];
/// Longest summary that the engine makes itself, in characters.
const SUMMARY_CHARS_MAX: usize = 300;

/// A finished call in short.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSnapshot {
    /// The call's id.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// As the model wrote them.
    pub arguments: JsonText,
    /// The recorded summary, or the engine's extract.
    pub result_summary: String,
    /// Where the whole result is.
    pub result: EventRef,
    /// The tool did what was asked.
    pub success: bool,
    /// The summary was recorded by someone; false: it is the engine's extract.
    pub recorded: bool,
    /// Where the call was requested.
    pub request: EventRef,
}

impl ToolSnapshot {
    /// Reference to the whole result: `treering:CONVERSATION/REVISION`.
    #[must_use]
    pub fn full_result_ref(&self) -> String {
        full_result_ref(self.result)
    }
}

impl Engine {
    /// Snapshots of a branch's finished calls, newest first, at most `limit`.
    /// Calls that ended without a result have none.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch or the revision is not there.
    pub async fn snapshots(
        &self,
        address: &BranchAddress,
        as_of: Option<Revision>,
        limit: usize,
    ) -> Result<Vec<ToolSnapshot>, ContextError> {
        let query = ToolHistoryQuery {
            address: address.clone(),
            as_of,
            tool: None,
            limit,
        };
        let read = |engine: Self, query| async move { engine.snapshots_of(query).await };
        Ok(self.on_history(query, read).await?)
    }

    async fn snapshots_of(&self, query: ToolHistoryQuery) -> Result<Vec<ToolSnapshot>, ReadError> {
        let (conversation, as_of, limit) = (query.address.conversation, query.as_of, query.limit);
        let now = self.inner.branch_at(&query.address)?;
        if let Some(revision) = as_of {
            self.inner.as_of(conversation, &now, revision).await?;
        }
        let source = Source::Branch {
            conversation,
            branch: Some(now.name.clone()),
        };
        let mut batches = self.read(ReadQuery {
            backward: true,
            to: as_of.unwrap_or(now.head).0,
            kinds: KINDS.to_vec(),
            ..ReadQuery::all(query.address.namespace.clone(), source)
        });
        let mut later = Later::default();
        let mut snapshots = Vec::new();
        while let Some(batch) = batches.next().await {
            for event in batch? {
                if snapshots.len() >= limit {
                    return Ok(snapshots);
                }
                let stored = &event.event;
                let body = decode_body(stored.position.offset, stored.header.kind, &stored.body)?;
                snapshots.extend(later.meet(&event, body));
            }
        }
        Ok(snapshots)
    }
}

/// What was met of calls whose request comes earlier, when a branch is read from
/// its end.
#[derive(Default)]
struct Later {
    /// By call id: a result belongs to the last request before it.
    results: HashMap<String, (EventRef, ToolResultRecorded)>,
    /// By call id and the request's revision: the last one counts.
    summaries: HashMap<(String, Revision), String>,
}

impl Later {
    fn meet(&mut self, event: &NamedEvent, body: EventBody) -> Option<ToolSnapshot> {
        let header = &event.event.header;
        let at = EventRef {
            conversation: header.conversation,
            revision: header.revision,
        };
        match body {
            EventBody::ToolSnapshotRecorded(recorded) => {
                let key = (recorded.call_id, recorded.request_revision);
                self.summaries.entry(key).or_insert(recorded.summary);
                None
            }
            EventBody::ToolResultRecorded(result) => {
                self.results.insert(result.call_id.clone(), (at, result));
                None
            }
            EventBody::ToolCallRequested(call) => self.finish(at, call),
            _ => None,
        }
    }

    fn finish(&mut self, at: EventRef, call: ToolCallRequested) -> Option<ToolSnapshot> {
        let (place, result) = self.results.remove(&call.call_id)?;
        let recorded = self.summaries.remove(&(call.call_id.clone(), at.revision));
        Some(ToolSnapshot {
            recorded: recorded.is_some(),
            result_summary: recorded.unwrap_or_else(|| result_summary(&result, SUMMARY_CHARS_MAX)),
            call_id: call.call_id,
            tool: call.tool,
            arguments: call.arguments,
            result: place,
            success: result.success,
            request: at,
        })
    }
}
