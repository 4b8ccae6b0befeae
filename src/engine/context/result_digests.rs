//! Result digests of finished calls.

use std::{collections::HashMap, sync::Arc};

use futures::StreamExt;

use super::ContextError;
use crate::{
    Engine,
    error::ReadError,
    history::decode_body,
    query::{BranchAddress, EventSource, NamedEvent, ReadQuery, ToolHistoryQuery},
};
use treering_context::{draft::full_result_ref, heuristics::Heuristics};
use treering_domain::{
    EventBody, EventKind, EventRef, JsonText, Revision, ToolCallRequested, ToolResultRecorded,
};

/// Kinds of events from which digests are made.
const KINDS: [EventKind; 3] = [
    EventKind::ToolCallRequested,
    EventKind::ToolResultRecorded,
    EventKind::ToolSnapshotRecorded,
];
/// Maximum length of a summary that the engine extracts, in characters.
const SUMMARY_CHARS_MAX: usize = 300;

/// The result digest of a finished call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallDigest {
    /// The call's id.
    pub call_id: String,
    /// Name of the tool.
    pub tool: String,
    /// The arguments as the model wrote them.
    pub arguments: JsonText,
    /// The recorded summary, or the engine's extract of the result.
    pub result_summary: String,
    /// The event with the whole result.
    pub result: EventRef,
    /// The call succeeded.
    pub success: bool,
    /// The summary was recorded, not extracted by the engine.
    pub recorded: bool,
    /// The event that requested the call.
    pub request: EventRef,
}

impl CallDigest {
    /// Returns a reference to the whole result: `treering:CONVERSATION/REVISION`.
    #[must_use]
    pub fn full_result_ref(&self) -> String {
        full_result_ref(self.result)
    }
}

impl Engine {
    /// Returns result digests of a branch's finished calls, newest first, at most `limit`. Calls
    /// that ended without a result have none.
    ///
    /// # Errors
    /// [`ContextError::Read`] when the branch or the revision does not exist.
    pub async fn snapshots(
        &self,
        address: &BranchAddress,
        as_of: Option<Revision>,
        limit: usize,
    ) -> Result<Vec<CallDigest>, ContextError> {
        let query = ToolHistoryQuery {
            address: address.clone(),
            as_of,
            tool: None,
            limit,
        };
        let read = |engine: Self, query| async move { engine.snapshots_of(query).await };
        Ok(self.on_history(query, read).await?)
    }

    async fn snapshots_of(&self, query: ToolHistoryQuery) -> Result<Vec<CallDigest>, ReadError> {
        let (conversation, as_of, limit) = (query.address.conversation, query.as_of, query.limit);
        let now = self.inner.reads.branch_at(&query.address)?;
        if let Some(revision) = as_of {
            self.inner
                .reads
                .as_of(query.address.key(), &now, revision)
                .await?;
        }
        let source = EventSource::Branch {
            conversation,
            branch: Some(now.name.clone()),
        };
        let mut batches = self.read(ReadQuery {
            backward: true,
            to: as_of.unwrap_or(now.head).0,
            kinds: KINDS.to_vec(),
            ..ReadQuery::all(query.address.namespace.clone(), source)
        });
        let mut later = LaterEvents::new(Arc::clone(self.heuristics()));
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

/// Results and summaries whose requests a backward read has not reached yet.
struct LaterEvents {
    heuristics: Arc<dyn Heuristics>,
    /// By call id: a result belongs to the last request before it.
    results: HashMap<String, (EventRef, ToolResultRecorded)>,
    /// By call id and revision of the request: the last summary counts.
    summaries: HashMap<(String, Revision), String>,
}

impl LaterEvents {
    fn new(heuristics: Arc<dyn Heuristics>) -> Self {
        Self {
            heuristics,
            results: HashMap::new(),
            summaries: HashMap::new(),
        }
    }

    fn meet(&mut self, event: &NamedEvent, body: EventBody) -> Option<CallDigest> {
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

    fn finish(&mut self, at: EventRef, call: ToolCallRequested) -> Option<CallDigest> {
        let (place, result) = self.results.remove(&call.call_id)?;
        let recorded = self.summaries.remove(&(call.call_id.clone(), at.revision));
        Some(CallDigest {
            recorded: recorded.is_some(),
            result_summary: recorded
                .unwrap_or_else(|| self.heuristics.result_summary(&result, SUMMARY_CHARS_MAX)),
            call_id: call.call_id,
            tool: call.tool,
            arguments: call.arguments,
            result: place,
            success: result.success,
            request: at,
        })
    }
}
