//! The changes that a range of the log makes to the projections. Plain values: the engine computes
//! them with the same fold when events are appended and in a rebuild.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use treering_domain::{
    BranchId, BranchName, BranchState, ContentHash, ConversationId, ConversationKey,
    ConversationRow, EventId, Namespace, Revision, Tags, TimestampMicros,
};

/// The index entry of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventEntry {
    /// Its conversation.
    pub conversation: ConversationKey,
    /// Its revision.
    pub revision: Revision,
    /// Its branch.
    pub branch: BranchId,
    /// The number of its kind.
    pub kind: u16,
    /// Its log offset.
    pub offset: u64,
}

/// The additional index terms of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBy {
    /// The event.
    pub event: EventEntry,
    /// The framework's type name of a framework event; otherwise empty.
    pub type_name: String,
    /// Its key and its attributes.
    pub tags: Tags,
    /// Its body is stored separately; the tags are indexed so that readers of the header need not
    /// fetch the body.
    pub is_large: bool,
}

/// A tool call, indexed by its provider's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEntry {
    /// Conversation of the request.
    pub conversation: ConversationKey,
    /// The provider's id.
    pub call_id: String,
    /// Revision of the request.
    pub request: Revision,
    /// Branch of the request.
    pub branch: BranchId,
    /// Name of the tool.
    pub tool: String,
}

/// A used idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The namespace of the key.
    pub namespace: Namespace,
    /// The key.
    pub key: String,
    /// The salted hash of the content that was appended with it.
    pub content_hash: ContentHash,
    /// `None` if it was erased, because part of the batch was erased.
    pub salt: Option<[u8; 16]>,
    /// Log offset of the batch's first event.
    pub first_offset: u64,
    /// Number of events in the batch; they have consecutive offsets.
    pub events: u32,
    /// When the key expires; `None`: never.
    pub ends_at: Option<TimestampMicros>,
}

impl KeyEntry {
    /// Returns true when the key has expired and may be reused.
    #[must_use]
    pub fn has_ended(&self, now: TimestampMicros) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }
}

/// A change of the calls on a branch that wait for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// The namespace.
    pub namespace: Namespace,
    /// The conversation.
    pub conversation: ConversationId,
    /// The branch.
    pub branch: BranchId,
    /// True when at least one call waits.
    pub waiting: bool,
    /// Change of the number of waiting calls.
    pub calls_change: i64,
}

impl PendingEntry {
    /// Returns the conversation's key.
    #[must_use]
    pub fn key(&self) -> ConversationKey {
        self.namespace.key(self.conversation)
    }
}

/// The changes of a range of the log.
#[derive(Clone, Debug, Default)]
pub struct ProjectionDelta {
    /// Log offset up to which the projections are complete once this is applied.
    pub reached: u64,
    /// New events, by offset.
    pub events: Vec<(Namespace, EventEntry)>,
    /// Bytes that the new events count against a quota, by conversation.
    pub event_bytes: BTreeMap<(Namespace, ConversationId), u64>,
    /// Additional index terms of the new events.
    pub found_by: Vec<FoundBy>,
    /// The current rows of the changed conversations.
    pub conversations: Vec<ConversationRow>,
    /// The conversations whose title, labels or metadata have changed.
    pub described: BTreeSet<ConversationKey>,
    /// Changed branch names; `None`: no branch has the name any more.
    pub names: BTreeMap<(ConversationKey, BranchName), Option<BranchId>>,
    /// The current states of the changed branches.
    pub branches: Vec<(ConversationKey, Arc<BranchState>)>,
    /// Snapshots of branches at their head, kept for *as of* reads.
    pub snapshots: Vec<(ConversationKey, Arc<BranchState>)>,
    /// New calls.
    pub calls: Vec<CallEntry>,
    /// New idempotency keys, except those expired by a later event in this delta.
    pub keys: Vec<KeyEntry>,
    /// When the newest event of each namespace was recorded. Keys that have expired by then are
    /// removed.
    pub recorded_to: BTreeMap<Namespace, TimestampMicros>,
    /// Event ids that do not contain the offset, each with the offset of its event.
    pub ids: Vec<(Namespace, EventId, u64)>,
    /// Branches whose pending calls have changed.
    pub pending: Vec<PendingEntry>,
    /// (parent, child) of forked or spawned conversations.
    pub children: Vec<(ConversationKey, ConversationId)>,
    /// Unreadable ranges of the log, first and last offset, both inclusive. A range that begins
    /// where a known one does replaces it.
    pub lost: Vec<(u64, u64)>,
    /// (namespace, content hash, home offset) of bodies stored as blobs.
    pub blobs: Vec<(Namespace, ContentHash, u64)>,
}

impl ProjectionDelta {
    /// Removes the changes to the conversations for which `damaged` returns true, because a fold of
    /// the log also skips the events after the damage. Keeps the used idempotency keys and event
    /// ids.
    pub fn leave_out(&mut self, damaged: impl Fn(ConversationKey) -> bool) {
        self.events
            .retain(|(_, event)| !damaged(event.conversation));
        self.event_bytes
            .retain(|(namespace, id), _| !damaged(namespace.key(*id)));
        self.found_by
            .retain(|found| !damaged(found.event.conversation));
        self.conversations.retain(|row| !damaged(row.key()));
        self.branches.retain(|(id, _)| !damaged(*id));
        self.names.retain(|(id, _), _| !damaged(*id));
        self.snapshots.retain(|(id, _)| !damaged(*id));
        self.calls.retain(|call| !damaged(call.conversation));
        self.pending.retain(|entry| !damaged(entry.key()));
        self.children
            .retain(|(parent, child)| !damaged(parent.sibling(*child)));
    }
}
