//! What a stretch of the log changes in the views. Plain values: the engine
//! makes them, live or in a rebuild, by the same fold.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::domain::{
    BranchId, BranchName, BranchState, ContentHash, ConversationId, ConversationRow, EventId,
    Namespace, Revision, Tags, TimestampMicros,
};

/// Where an event is, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventEntry {
    /// Its conversation.
    pub conversation: ConversationId,
    /// Its place there.
    pub revision: Revision,
    /// Its branch.
    pub branch: BranchId,
    /// Its kind's number.
    pub kind: u16,
    /// Its log offset.
    pub offset: u64,
}

/// What an event is found by beside its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundBy {
    /// Where it is.
    pub event: EventEntry,
    /// Of a framework's event, the framework's name for it; or empty.
    pub type_name: String,
    /// Its key and its attributes.
    pub tags: Tags,
    /// Its body is kept apart: whoever reads the header does not read all of that for these.
    pub is_large: bool,
}

/// A tool call by its provider's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEntry {
    /// Conversation of the request.
    pub conversation: ConversationId,
    /// The provider's id.
    pub call_id: String,
    /// Where it was requested.
    pub request: Revision,
    /// On which branch.
    pub branch: BranchId,
    /// Name of the tool.
    pub tool: String,
}

/// An idempotency key that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Tenant.
    pub namespace: Namespace,
    /// The key.
    pub key: String,
    /// The hash of what was appended with it, made with the salt.
    pub content_hash: ContentHash,
    /// None: something of the batch was erased, and the salt with it.
    pub salt: Option<[u8; 16]>,
    /// Log offset of the batch's first event.
    pub first_offset: u64,
    /// Events in the batch; they have consecutive offsets.
    pub events: u32,
    /// It is not known any more from then on; none: it is for ever.
    pub ends_at: Option<TimestampMicros>,
}

impl KeyEntry {
    /// True when the key is not known any more, and may be used again.
    #[must_use]
    pub fn has_ended(&self, now: TimestampMicros) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }
}

/// A branch whose calls that wait for a decision have become more, fewer or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    /// Tenant.
    pub namespace: Namespace,
    /// Conversation.
    pub conversation: ConversationId,
    /// Branch.
    pub branch: BranchId,
    /// True: at least one call waits.
    pub waiting: bool,
    /// By how much the number of its waiting calls has changed.
    pub calls_change: i64,
}

/// What a stretch of the log changes.
#[derive(Clone, Debug, Default)]
pub struct ViewDelta {
    /// Log offset up to which the views are right, once this is applied.
    pub reached: u64,
    /// New events, by offset.
    pub events: Vec<(Namespace, EventEntry)>,
    /// What the new events count against a quota, in bytes.
    pub event_bytes: BTreeMap<(Namespace, ConversationId), u64>,
    /// What of these is found by more than its place.
    pub found_by: Vec<FoundBy>,
    /// Conversations as they are now.
    pub conversations: Vec<ConversationRow>,
    /// Those whose title, labels or metadata have changed.
    pub described: BTreeSet<ConversationId>,
    /// Names that branches have got; none: no branch has it any more.
    pub names: BTreeMap<(ConversationId, BranchName), Option<BranchId>>,
    /// Branches as they are now.
    pub branches: Vec<(ConversationId, Arc<BranchState>)>,
    /// Branches as they were at their head, to be kept for *as of* reads.
    pub snapshots: Vec<(ConversationId, Arc<BranchState>)>,
    /// New calls.
    pub calls: Vec<CallEntry>,
    /// New keys. Those that have ended by an event behind theirs are left out.
    pub keys: Vec<KeyEntry>,
    /// When the latest of each namespace's new events was recorded: keys that have ended by
    /// then are forgotten.
    pub recorded_to: BTreeMap<Namespace, TimestampMicros>,
    /// Ids that do not say where their events are, each with the offset of its event.
    pub ids: Vec<(Namespace, EventId, u64)>,
    /// Branches that gained or lost waiting calls.
    pub pending: Vec<PendingEntry>,
    /// (parent, child): forked or spawned conversations.
    pub children: Vec<(ConversationId, ConversationId)>,
    /// Stretches of the log that cannot be read, first and last offset, both
    /// inclusive. One that begins where a known one does takes its place.
    pub lost: Vec<(u64, u64)>,
    /// (namespace, content hash, home offset) of bodies kept as blobs.
    pub blobs: Vec<(Namespace, ContentHash, u64)>,
}

impl ViewDelta {
    /// Leaves out what it changes of these conversations, but for the keys and ids that were
    /// used: a fold of the log passes over what is behind their damage too.
    pub fn leave_out(&mut self, damaged: impl Fn(ConversationId) -> bool) {
        self.events
            .retain(|(_, event)| !damaged(event.conversation));
        self.event_bytes.retain(|(_, id), _| !damaged(*id));
        self.found_by
            .retain(|found| !damaged(found.event.conversation));
        self.conversations.retain(|row| !damaged(row.id));
        self.branches.retain(|(id, _)| !damaged(*id));
        self.names.retain(|(id, _), _| !damaged(*id));
        self.snapshots.retain(|(id, _)| !damaged(*id));
        self.calls.retain(|call| !damaged(call.conversation));
        self.pending.retain(|entry| !damaged(entry.conversation));
        self.children.retain(|(_, child)| !damaged(*child));
    }
}
