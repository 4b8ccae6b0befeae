//! The histories of branches to which a search is restricted.
//!
//! Every conversation may have its own restriction, so a search looks up only the restrictions of
//! its candidates.

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

use super::{
    conversation_set::{ChosenConversations, SegmentSet},
    query::LineageSegment,
    schema::column,
};
use treering_domain::ConversationId;

/// Whether conversations without a segment match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OtherConversations {
    Hidden,
    #[default]
    Shown,
}

/// Looks up the shown segments of a conversation. May be slow, so it runs only for candidates.
pub type BranchLookup = dyn Fn(ConversationId) -> Vec<LineageSegment> + Send + Sync;

/// Restricts each conversation that it names to segments of its branches. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ShownBranches(Arc<LineageSet>);

#[derive(Default)]
struct LineageSet {
    conversations: ChosenConversations,
    /// The shown branches of the conversations that were listed or looked up.
    branches: Mutex<HashMap<ConversationId, Arc<Branches>>>,
    look_up: Option<Box<BranchLookup>>,
    others: OtherConversations,
}

/// The shown branches, each with its last shown revision.
type Branches = Vec<(u64, u64)>;

impl std::fmt::Debug for LineageSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineageSet")
            .field("conversations", &self.conversations)
            .field("branches", &self.branches)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

impl LineageSet {
    fn branches(&self, id: ConversationId) -> Arc<Branches> {
        let mut known = self.branches.lock().unwrap_or_else(PoisonError::into_inner);
        let look_up = || {
            let segments = self.look_up.as_ref().map(|look_up| look_up(id));
            let segments = segments.into_iter().flatten();
            Arc::new(segments.map(numbers).collect())
        };
        Arc::clone(known.entry(id).or_insert_with(look_up))
    }
}

fn numbers(segment: LineageSegment) -> (u64, u64) {
    (segment.branch.0, segment.up_to.0)
}

impl ShownBranches {
    /// Returns the restriction to these segments.
    #[must_use]
    pub fn new(segments: Vec<LineageSegment>) -> Self {
        Self::with_others(segments, OtherConversations::Shown)
    }

    /// Returns the restriction to these segments. Other conversations are hidden.
    pub(super) fn only(segments: Vec<LineageSegment>) -> Self {
        Self::with_others(segments, OtherConversations::Hidden)
    }

    /// Returns the restriction of each of these conversations to the segments that `look_up`
    /// returns, which must belong to that conversation.
    #[must_use]
    pub fn looked_up(conversations: ChosenConversations, look_up: Box<BranchLookup>) -> Self {
        Self(Arc::new(LineageSet {
            conversations,
            look_up: Some(look_up),
            ..LineageSet::default()
        }))
    }

    fn with_others(segments: Vec<LineageSegment>, others: OtherConversations) -> Self {
        let mut branches: HashMap<_, Branches> = HashMap::new();
        for segment in segments {
            let own = branches.entry(segment.conversation).or_default();
            own.push(numbers(segment));
        }
        let branches = branches.into_iter().map(|(id, own)| (id, Arc::new(own)));
        let branches: HashMap<_, _> = branches.collect();
        Self(Arc::new(LineageSet {
            conversations: branches.keys().copied().collect(),
            branches: Mutex::new(branches),
            look_up: None,
            others,
        }))
    }

    /// Returns whether it restricts nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let none = self.0.conversations.ids().is_some_and(<[_]>::is_empty);
        none && self.0.others == OtherConversations::Shown
    }

    /// Returns a query that matches the passages that are shown.
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
        let within = conversation.as_ref().map(|column| {
            let conversations = &self.0.conversations;
            conversations.in_segment(reader.segment_id(), column)
        });
        Ok(SegmentLineage {
            branch: columns.u64(column::BRANCH)?,
            revision: columns.u64(column::REVISION)?,
            conversation: conversation.zip(within.transpose()?),
            set: Arc::clone(&self.0),
            known: Mutex::default(),
        })
    }
}

/// The restriction in one segment.
pub(super) struct SegmentLineage {
    /// The column, and the conversations that the restriction names.
    conversation: Option<(BytesColumn, SegmentSet)>,
    branch: Column<u64>,
    revision: Column<u64>,
    set: Arc<LineageSet>,
    /// The shown branches by the conversation's ordinal.
    known: Mutex<HashMap<u64, Arc<Branches>>>,
}

impl SegmentLineage {
    /// Returns whether a passage is shown.
    pub(super) fn has(&self, doc: DocId) -> bool {
        let Some((column, within)) = &self.conversation else {
            return false;
        };
        let Some(ordinal) = column.ords().first(doc) else {
            return false;
        };
        if !within.has(Some(ordinal)) {
            return self.set.others == OtherConversations::Shown;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let branches = known
            .entry(ordinal)
            .or_insert_with(|| self.branches(column, ordinal));
        let (branch, revision) = (self.branch.first(doc), self.revision.first(doc));
        let is_shown = |&(own, up_to): &(u64, u64)| {
            branch == Some(own) && revision.is_some_and(|r| r <= up_to)
        };
        branches.iter().any(is_shown)
    }

    /// Returns the shown branches of a conversation; none if its id cannot be read.
    fn branches(&self, column: &BytesColumn, ordinal: u64) -> Arc<Branches> {
        let mut bytes = Vec::with_capacity(16);
        let id = match column.ord_to_bytes(ordinal, &mut bytes) {
            Ok(true) => uuid::Uuid::from_slice(&bytes).ok(),
            _ => None,
        };
        match id {
            Some(id) => self.set.branches(ConversationId(id)),
            None => Arc::default(),
        }
    }
}
