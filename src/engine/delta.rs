//! Changes to the projections for a stretch of the log. Appends and rebuilds share this code, so
//! that they cannot differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use treering_domain::{
    ApprovalStatus, BranchId, BranchName, BranchState, ChangedConversation, ContentHash,
    ConversationKey, ConversationRow, ConversationState, EventBody, EventHeader, Namespace,
    NamespaceUse, SequencedEvent, Tags, TimestampMicros,
};
use treering_projections::{
    CallEntry, EventEntry, FoundBy, KeyEntry, PendingEntry, ProjectionDelta,
};

/// Collects changes, in order.
#[derive(Debug, Default)]
pub(super) struct DeltaBuilder {
    delta: ProjectionDelta,
    rows: BTreeMap<ConversationKey, ConversationRow>,
    branches: BTreeMap<(ConversationKey, BranchId), Arc<BranchState>>,
    /// The delta's keys with an expiry time that has not passed by the last event, ordered by
    /// namespace and time.
    ending: BTreeSet<(Namespace, TimestampMicros, usize)>,
    /// Indexes of the delta's keys that have expired.
    ended: BTreeSet<usize>,
}

impl DeltaBuilder {
    /// Returns the number of events collected so far.
    pub(crate) fn len(&self) -> usize {
        self.delta.events.len()
    }

    /// Records an event, with the size of its stored body in bytes.
    pub(crate) fn event(
        &mut self,
        (header, body_bytes): (&EventHeader, u64),
        offset: u64,
        body: &EventBody,
        placed: SequencedEvent,
    ) {
        let conversation = header.key();
        let entry = EventEntry {
            conversation,
            revision: placed.at.revision,
            branch: placed.branch,
            kind: header.kind,
            offset,
        };
        self.delta.events.push((header.namespace.clone(), entry));
        let of = (header.namespace.clone(), conversation.id);
        let counted = self.delta.event_bytes.entry(of).or_default();
        *counted = counted.saturating_add(NamespaceUse::event_bytes(body_bytes));
        match body {
            EventBody::ToolCallRequested(call) => self.delta.calls.push(CallEntry {
                conversation,
                call_id: call.call_id.clone(),
                request: placed.at.revision,
                branch: placed.branch,
                tool: call.tool.clone(),
            }),
            EventBody::ConversationCreated(created) => {
                if let Some(parent) = &created.parent {
                    self.delta
                        .children
                        .push((conversation.sibling(parent.conversation), conversation.id));
                }
            }
            EventBody::ConversationChanged(_) => {
                self.delta.described.insert(conversation);
            }
            _ => {}
        }
    }

    /// Records the tags and type of the last recorded event.
    pub(crate) fn found_by(&mut self, body: &EventBody, tags: &Tags, is_large: bool) {
        let Some((_, event)) = self.delta.events.last() else {
            return;
        };
        let type_name = match body {
            EventBody::Custom(custom) => custom.type_name.as_str(),
            _ => "",
        };
        if tags.key.is_empty() && type_name.is_empty() && (!is_large || tags.is_empty()) {
            return;
        }
        self.delta.found_by.push(FoundBy {
            event: *event,
            type_name: type_name.to_owned(),
            tags: tags.clone(),
            is_large,
        });
    }

    /// Records an idempotency key, after its event's header.
    pub(crate) fn key(&mut self, entry: KeyEntry) {
        let at = self.delta.keys.len();
        let of = |ends_at| (entry.namespace.clone(), ends_at, at);
        self.ending.extend(entry.ends_at.map(of));
        self.delta.keys.push(entry);
    }

    /// Records an event's recording time, and its id, unless the id encodes the offset.
    pub(crate) fn header(&mut self, header: &EventHeader, offset: u64) {
        let recorded_to = &mut self.delta.recorded_to;
        match recorded_to.get_mut(&header.namespace) {
            Some(time) => *time = header.recorded_at.max(*time),
            None => {
                recorded_to.insert(header.namespace.clone(), header.recorded_at);
            }
        }
        self.note_ended(header);
        if header.id.offset() != offset {
            let id = (header.namespace.clone(), header.id, offset);
            self.delta.ids.push(id);
        }
    }

    /// Marks the recorded keys that expire before this event.
    fn note_ended(&mut self, header: &EventHeader) {
        if self.ending.is_empty() {
            return;
        }
        let from = (header.namespace.clone(), TimestampMicros(i64::MIN), 0);
        let to = (header.namespace.clone(), header.recorded_at, usize::MAX);
        let ended = self.ending.extract_if(from..=to, |_| true);
        self.ended.extend(ended.map(|(_, _, at)| at));
    }

    /// Records an unreadable stretch. It replaces the recorded stretch that begins
    /// at the same offset, if there is one.
    pub(crate) fn lost(&mut self, stretch: Option<(u64, u64)>) {
        self.delta.lost.extend(stretch);
    }

    /// Records that a conversation was marked as damaged without other changes.
    pub(crate) fn damaged(&mut self, state: &ConversationState, is_new: bool) {
        let id = state.row.key();
        self.rows.insert(id, state.row.clone());
        if is_new {
            let branches = state.branches.values();
            self.branches
                .extend(branches.map(|branch| ((id, branch.id), Arc::clone(branch))));
        }
    }

    /// Records the home of a large body.
    pub(crate) fn blob(&mut self, namespace: Namespace, hash: ContentHash, home_offset: u64) {
        self.delta.blobs.push((namespace, hash, home_offset));
    }

    /// Records a changed conversation, and returns the resulting state.
    pub(crate) fn absorb(
        &mut self,
        state: Option<ConversationState>,
        changed: ChangedConversation,
    ) -> ConversationState {
        let id = changed.row.key();
        self.note_names(id, state.as_ref(), &changed);
        for branch in changed.branches.values() {
            let waited = state
                .as_ref()
                .and_then(|state| state.branches.get(&branch.id))
                .map_or(0, |branch| pending_calls(branch));
            let waiting = pending_calls(branch);
            if waited != waiting {
                self.delta.pending.push(PendingEntry {
                    namespace: changed.row.namespace.clone(),
                    conversation: id.id,
                    branch: branch.id,
                    waiting: waiting > 0,
                    calls_change: waiting - waited,
                });
            }
            self.branches.insert((id, branch.id), Arc::clone(branch));
        }
        self.delta
            .snapshots
            .extend(changed.snapshots.into_iter().map(|snapshot| (id, snapshot)));
        self.rows.insert(id, changed.row.clone());
        let branches: Vec<_> = changed.branches.into_values().collect();
        match state {
            Some(mut state) => {
                state.absorb(changed.row, branches);
                state
            }
            None => ConversationState::new(changed.row, branches),
        }
    }

    /// Records the names that branches have lost and gained. Lost names come first, because
    /// branches of one batch may have swapped names.
    fn note_names(
        &mut self,
        id: ConversationKey,
        state: Option<&ConversationState>,
        changed: &ChangedConversation,
    ) {
        let before = |branch: BranchId| Some(&state?.branches.get(&branch)?.name);
        let renamed = changed
            .branches
            .values()
            .filter(|branch| before(branch.id) != Some(&branch.name));
        for branch in renamed.clone() {
            if let Some(old) = before(branch.id) {
                self.delta.names.insert((id, old.clone()), None);
            }
        }
        for branch in renamed {
            let is_usual = branch.id == BranchId::MAIN && branch.name == BranchName::default();
            if !is_usual || state.is_some() {
                let of = (!is_usual).then_some(branch.id);
                self.delta.names.insert((id, branch.name.clone()), of);
            }
        }
    }

    /// Returns all changes up to an offset.
    pub(crate) fn finish(self, reached: u64) -> ProjectionDelta {
        let keys = self.delta.keys.into_iter().enumerate();
        let keys = keys.filter(|(at, _)| !self.ended.contains(at));
        ProjectionDelta {
            reached,
            keys: keys.map(|(_, entry)| entry).collect(),
            conversations: self.rows.into_values().collect(),
            branches: self
                .branches
                .into_iter()
                .map(|((id, _), branch)| (id, branch))
                .collect(),
            ..self.delta
        }
    }
}

fn pending_calls(branch: &BranchState) -> i64 {
    let calls = branch.open_calls.values();
    let pending = calls.filter(|call| call.approval == ApprovalStatus::Pending);
    // At most `Limits::open_calls_max`, so this never saturates.
    i64::try_from(pending.count()).unwrap_or(i64::MAX)
}
