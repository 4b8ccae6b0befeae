//! What a stretch of the log changes in the views. The live path and the
//! rebuild both make it here, so that they cannot disagree.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    domain::{
        ApprovalStatus, BranchId, BranchName, BranchState, ChangedConversation, ContentHash,
        ConversationId, ConversationRow, ConversationState, EventBody, EventHeader, Namespace,
        NamespaceUse, Placed, Tags, TimestampMicros,
    },
    views::{CallEntry, EventEntry, FoundBy, KeyEntry, PendingEntry, ViewDelta},
};

/// Collects changes, in order.
#[derive(Debug, Default)]
pub(super) struct DeltaBuilder {
    delta: ViewDelta,
    rows: BTreeMap<ConversationId, ConversationRow>,
    branches: BTreeMap<(ConversationId, BranchId), Arc<BranchState>>,
    /// Which of the delta's keys end and have not by the last event, by namespace and end.
    ending: BTreeSet<(Namespace, TimestampMicros, usize)>,
    /// Which have.
    ended: BTreeSet<usize>,
}

impl DeltaBuilder {
    /// Events collected so far.
    pub fn len(&self) -> usize {
        self.delta.events.len()
    }

    /// Notes an event, and how long what is stored of its body is, in bytes.
    pub fn event(
        &mut self,
        (header, body_bytes): (&EventHeader, u64),
        offset: u64,
        body: &EventBody,
        placed: Placed,
    ) {
        let conversation = placed.at.conversation;
        let entry = EventEntry {
            conversation,
            revision: placed.at.revision,
            branch: placed.branch,
            kind: header.kind,
            offset,
        };
        self.delta.events.push((header.namespace.clone(), entry));
        let of = (header.namespace.clone(), conversation);
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
                        .push((parent.conversation, conversation));
                }
            }
            EventBody::ConversationChanged(_) => {
                self.delta.described.insert(conversation);
            }
            _ => {}
        }
    }

    /// Notes what an event can be found by beside its place, once it was noted itself.
    pub fn found_by(&mut self, body: &EventBody, tags: &Tags, is_large: bool) {
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

    /// Notes an idempotency key, once its event's header was noted.
    pub fn key(&mut self, entry: KeyEntry) {
        let at = self.delta.keys.len();
        let of = |ends_at| (entry.namespace.clone(), ends_at, at);
        self.ending.extend(entry.ends_at.map(of));
        self.delta.keys.push(entry);
    }

    /// Notes of an event when it was recorded, and its id, unless that says where it is.
    pub fn header(&mut self, header: &EventHeader, offset: u64) {
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

    /// Of the keys that were noted, those have ended that end before this event.
    fn note_ended(&mut self, header: &EventHeader) {
        if self.ending.is_empty() {
            return;
        }
        let from = (header.namespace.clone(), TimestampMicros(i64::MIN), 0);
        let to = (header.namespace.clone(), header.recorded_at, usize::MAX);
        let ended = self.ending.extract_if(from..=to, |_| true);
        self.ended.extend(ended.map(|(_, _, at)| at));
    }

    /// Notes a stretch of the log that cannot be read; one that begins where a noted
    /// one does takes its place.
    pub fn lost(&mut self, stretch: Option<(u64, u64)>) {
        self.delta.lost.extend(stretch);
    }

    /// Notes that a conversation was marked as damaged, and not changed otherwise.
    pub fn damaged(&mut self, state: &ConversationState, is_new: bool) {
        let id = state.row.id;
        self.rows.insert(id, state.row.clone());
        if is_new {
            let branches = state.branches.values();
            self.branches
                .extend(branches.map(|branch| ((id, branch.id), Arc::clone(branch))));
        }
    }

    /// Notes where a body is kept.
    pub fn blob(&mut self, namespace: Namespace, hash: ContentHash, home_offset: u64) {
        self.delta.blobs.push((namespace, hash, home_offset));
    }

    /// Takes over a changed conversation, and returns the state that it makes.
    pub fn absorb(
        &mut self,
        state: Option<ConversationState>,
        changed: ChangedConversation,
    ) -> ConversationState {
        let id = changed.row.id;
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
                    conversation: id,
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

    /// Notes which names branches have got and lost. Lost ones first: branches of one batch
    /// may have swapped theirs.
    fn note_names(
        &mut self,
        id: ConversationId,
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

    /// All changes up to an offset.
    pub fn finish(self, reached: u64) -> ViewDelta {
        let keys = self.delta.keys.into_iter().enumerate();
        let keys = keys.filter(|(at, _)| !self.ended.contains(at));
        ViewDelta {
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
    // At most `Limits::open_calls_max`.
    i64::try_from(pending.count()).unwrap_or(i64::MAX)
}
