//! What calls behind a compaction's cut have shown of tools.

use std::collections::HashSet;

use crate::{
    context::called::CalledTools,
    domain::{
        BranchState, ConversationId, EventBody, EventKind, Namespace, Revision, ToolCallRequested,
    },
    engine::{
        Inner,
        error::ReadError,
        history::{PAGE_BYTES, Segment, decode_body},
    },
    views::EventEntry,
};

/// Calls behind a cut that are looked at: the last ones.
const CALLS_MAX: usize = 1_024;
/// So many in a row that show no other tool end the look: it is on the way of the first
/// request after a start, and agents use few tools over and over.
const CALLS_ALIKE: usize = 64;
/// Events that are looked at together.
const EVENTS_PAGE: usize = 128;
/// Bytes of their bodies.
const BYTES_MAX: usize = 16 << 20;
/// Events that are passed by to find them.
const EVENTS_MAX: usize = 32_768;
/// Branches that are gone up to find them.
const SEGMENTS_MAX: usize = 256;

impl Inner {
    /// The tools of the branch's calls behind its last compaction's cut. However long its
    /// history is, what is read is bounded.
    pub(super) async fn earlier_tools(
        &self,
        namespace: &Namespace,
        id: ConversationId,
        branch: &BranchState,
    ) -> Result<CalledTools, ReadError> {
        let mut calls: Vec<ToolCallRequested> = Vec::new();
        let mut tools = HashSet::new();
        let (mut bytes, mut events, mut alike) = (0, 0, 0);
        for segment in self.segments_behind(id, branch)? {
            let mut last = segment.last;
            while segment.first <= last && events < EVENTS_MAX {
                let page = self.history().views.entries(
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

    /// The parts of a branch's history behind its last compaction's cut, newest first.
    fn segments_behind(
        &self,
        id: ConversationId,
        branch: &BranchState,
    ) -> Result<Vec<Segment>, ReadError> {
        let holds_cut = |segment: &Segment| {
            branch
                .compaction
                .is_some_and(|at| at.conversation == segment.conversation)
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

    /// The calls that these entries are of.
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
