//! The histories of branches that a search is restricted to.
//!
//! There may be as many as conversations, so they are looked up in each segment once for all queries
//! of a search.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tantivy::{
    DocId, SegmentReader,
    columnar::{BytesColumn, Column},
    query::{
        Query,
        doc_predicate_query::{DocPredicateQuery, FunctionPredicate},
    },
};

use super::{conversation_set::each_number, query::LineageSegment, schema::column};
use treering_domain::ConversationId;

/// Whether conversations without a segment match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OtherConversations {
    Hidden,
    #[default]
    Shown,
}

/// Restricts each conversation that it names to segments of its branches. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ShownBranches(Arc<LineageSet>);

#[derive(Debug, Default)]
struct LineageSet {
    /// By conversation.
    segments: Vec<LineageSegment>,
    /// Their conversations, each once, in order.
    conversations: Vec<ConversationId>,
    others: OtherConversations,
    in_segments: Mutex<HashMap<tantivy::index::SegmentId, Arc<UpTo>>>,
}

/// The last revision of each branch that is shown, by the conversation's ordinal in a segment.
type UpTo = HashMap<u64, Vec<(u64, u64)>>;

impl ShownBranches {
    /// Returns the restriction to these segments.
    #[must_use]
    pub fn new(segments: Vec<LineageSegment>) -> Self {
        Self::with_others(segments, OtherConversations::Shown)
    }

    /// Returns the restriction to these segments and no other conversation.
    pub(super) fn only(segments: Vec<LineageSegment>) -> Self {
        Self::with_others(segments, OtherConversations::Hidden)
    }

    fn with_others(mut segments: Vec<LineageSegment>, others: OtherConversations) -> Self {
        segments.sort_unstable_by_key(|segment| segment.conversation);
        let conversations = segments.iter().map(|segment| segment.conversation);
        let mut conversations: Vec<_> = conversations.collect();
        conversations.dedup();
        Self(Arc::new(LineageSet {
            segments,
            conversations,
            others,
            in_segments: Mutex::default(),
        }))
    }

    /// Returns whether it restricts nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.segments.is_empty() && self.0.others == OtherConversations::Shown
    }

    /// Matches the passages that are shown.
    pub(super) fn query(&self) -> Box<dyn Query> {
        let shown = self.clone();
        let predicate = FunctionPredicate::from(move |reader: &SegmentReader| {
            let shown = shown.in_segment(reader)?;
            Ok(move |doc: DocId| shown.has(doc))
        });
        Box::new(DocPredicateQuery::from(predicate))
    }

    /// Returns the restriction in a segment.
    pub(super) fn in_segment(&self, reader: &SegmentReader) -> tantivy::Result<SegmentLineage> {
        let columns = reader.fast_fields();
        let conversation = columns.bytes(column::CONVERSATION)?;
        Ok(SegmentLineage {
            branch: columns.u64(column::BRANCH)?,
            revision: columns.u64(column::REVISION)?,
            up_to: match &conversation {
                Some(column) => self.up_to(reader, column)?,
                None => Arc::default(),
            },
            conversation,
            others: self.0.others,
        })
    }

    fn up_to(&self, reader: &SegmentReader, column: &BytesColumn) -> tantivy::Result<Arc<UpTo>> {
        let set = &self.0;
        let mut known = set
            .in_segments
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&reader.segment_id()) {
            return Ok(Arc::clone(known));
        }
        let mut found = UpTo::new();
        each_number(column, &set.conversations, |id, ordinal| {
            let first = set
                .segments
                .partition_point(|segment| segment.conversation < id);
            let own = set.segments[first..].iter();
            let own = own.take_while(|segment| segment.conversation == id);
            let own = own.map(|segment| (segment.branch.0, segment.up_to.0));
            found.insert(ordinal, own.collect());
            Ok(())
        })?;
        let found = Arc::new(found);
        known.insert(reader.segment_id(), Arc::clone(&found));
        Ok(found)
    }
}

/// The restriction in one segment.
pub(super) struct SegmentLineage {
    conversation: Option<BytesColumn>,
    branch: Column<u64>,
    revision: Column<u64>,
    up_to: Arc<UpTo>,
    others: OtherConversations,
}

impl SegmentLineage {
    /// Returns whether a passage is shown.
    pub(super) fn has(&self, doc: DocId) -> bool {
        let conversation = self.conversation.as_ref();
        let Some(ordinal) = conversation.and_then(|column| column.ords().first(doc)) else {
            return false;
        };
        let Some(branches) = self.up_to.get(&ordinal) else {
            return self.others == OtherConversations::Shown;
        };
        let (branch, revision) = (self.branch.first(doc), self.revision.first(doc));
        let is_shown = |&(own, up_to): &(u64, u64)| {
            branch == Some(own) && revision.is_some_and(|r| r <= up_to)
        };
        branches.iter().any(is_shown)
    }
}
