//! Tools known only from calls before a compaction's cut.

use std::collections::HashSet;

use crate::{
    ReadPath,
    error::ReadError,
    history::{PAGE_BYTES, Segment, decode_body},
};
use treering_context::called_tools::CalledTools;
use treering_domain::{
    BranchState, ConversationKey, EventBody, EventKind, Namespace, Revision, ToolCallRequested,
};
use treering_projections::EventEntry;

/// Maximum number of calls before a cut that are read, latest first.
const CALLS_MAX: usize = 1_024;
/// Maximum number of consecutive calls without a new tool. The first request after a start waits
/// for this search, and agents use the same few tools repeatedly.
const CALLS_ALIKE: usize = 64;
/// Events per page.
const EVENTS_PAGE: usize = 128;
/// Maximum total size of the calls' bodies, in bytes.
const BYTES_MAX: usize = 16 << 20;
/// Maximum number of events that are scanned.
const EVENTS_MAX: usize = 32_768;
/// Maximum number of segments that are scanned.
const SEGMENTS_MAX: usize = 256;

impl ReadPath {
    /// Returns the tools of the branch's calls before its last compaction's cut. The amount read is
    /// bounded, however long the history is.
    pub(super) async fn earlier_tools(
        &self,
        namespace: &Namespace,
        id: ConversationKey,
        branch: &BranchState,
    ) -> Result<CalledTools, ReadError> {
        let mut calls: Vec<ToolCallRequested> = Vec::new();
        let mut tools = HashSet::new();
        let (mut bytes, mut events, mut alike) = (0, 0, 0);
        for segment in self.segments_behind(id, branch)? {
            let mut last = segment.last;
            while segment.first <= last && events < EVENTS_MAX {
                let page = self.history().projections.entries(
                    segment.conversation,
                    segment.first,
                    last,
                    EVENTS_PAGE,
                    true,
                )?;
                let Some(end) = page.last() else { break };
                last = Revision(end.revision.0.saturating_sub(1));
                events += page.len();
                let is_call = |entry: &&EventEntry| {
                    entry.branch == segment.branch
                        && entry.kind == EventKind::ToolCallRequested.number()
                };
                let mut found: Vec<EventEntry> = page.iter().filter(is_call).copied().collect();
                found.truncate(CALLS_MAX - calls.len());
                found.reverse();
                let mut read = self.calls_of(namespace, &found, &mut bytes).await?;
                read.reverse();
                for call in read {
                    alike = match tools.insert(call.tool.clone()) {
                        true => 0,
                        false => alike + 1,
                    };
                    calls.push(call);
                }
                if alike >= CALLS_ALIKE || calls.len() >= CALLS_MAX || bytes >= BYTES_MAX {
                    return Ok(CalledTools::of(calls.iter().rev()));
                }
            }
        }
        Ok(CalledTools::of(calls.iter().rev()))
    }

    /// Returns the segments of a branch's history before its last compaction's cut, newest first.
    fn segments_behind(
        &self,
        id: ConversationKey,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        let holds_cut = |segment: &Segment| {
            branch
                .compaction
                .is_some_and(|at| at.conversation == segment.conversation.id)
                && segment.first <= branch.cut
        };
        let mut behind = 0;
        let mut segments = self.history().lineage_while(id, branch, |segment| {
            behind += usize::from(behind > 0 || holds_cut(segment));
            behind < SEGMENTS_MAX
        })?;
        segments.drain(..segments.len() - behind);
        if let Some(first) = segments.first_mut() {
            first.last = first.last.min(branch.cut);
        }
        Ok(segments)
    }

    /// Reads the calls of these entries.
    async fn calls_of(
        &self,
        namespace: &Namespace,
        entries: &[EventEntry],
        bytes: &mut usize,
    ) -> Result<Vec<ToolCallRequested>, ReadError> {
        let history = self.history();
        let mut calls = Vec::with_capacity(entries.len());
        let mut rest = entries;
        while !rest.is_empty() {
            let records = history.records(namespace, rest, PAGE_BYTES).await?;
            let (found, later) = rest.split_at(records.len());
            rest = later;
            for (entry, record) in found.iter().zip(records) {
                let body = history.reader.body_to_keep(&record).await?;
                *bytes += body.len();
                let body = decode_body(entry.offset, record.header.kind, &body)?;
                if let EventBody::ToolCallRequested(call) = body {
                    calls.push(call);
                }
            }
        }
        Ok(calls)
    }
}
