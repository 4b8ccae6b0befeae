//! The projections as plain maps, and a small world that produces deltas: conversations of two
//! namespaces that grow, fork, request tools and wait for decisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use crate::{
    CallEntry, EventEntry, KeyEntry, NamespaceCounts, PendingEntry, ProjectionDelta, Projections,
    ProjectionsError,
};
use treering_domain::{
    BranchId, BranchName, BranchState, ContentHash, ConversationChanged, ConversationCreated,
    ConversationId, ConversationInfo, ConversationKey, ConversationRow, EventBody, EventKind,
    EventRef, ForkPoint, MessageAppended, Namespace, Position, Revision, Role, TimestampMicros,
};

/// A step in one of the world's conversations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) conversation: u8,
    pub(crate) branch: u8,
    pub(crate) what: u8,
}

pub(crate) fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0..4_u8, any::<u8>(), 0..32_u8).prop_map(|(conversation, branch, what)| Step {
        conversation,
        branch,
        what,
    });
    prop::collection::vec(step, 1..max)
}

pub(crate) fn namespace(conversation: u8) -> Namespace {
    Namespace::new(["default", "default-2"][usize::from(conversation % 2)]).unwrap()
}

/// Returns a conversation's key. Each id occurs in both namespaces.
pub(crate) fn id(conversation: u8) -> ConversationKey {
    let id = uuid::Uuid::from_u128(7 << 64 | u128::from(conversation / 2));
    namespace(conversation).key(ConversationId(id))
}

/// Returns one of four labels: two names with two values each.
fn label(number: u8) -> (String, String) {
    let (name, value) = (number % 2, number / 2 % 2);
    (format!("name {name}"), format!("value {value}"))
}

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) reached: u64,
    pub(crate) rows: BTreeMap<ConversationKey, ConversationRow>,
    pub(crate) branches: BTreeMap<(ConversationKey, BranchId), Arc<BranchState>>,
    pub(crate) snapshots: BTreeMap<(ConversationKey, BranchId, Revision), Arc<BranchState>>,
    pub(crate) entries: BTreeMap<(ConversationKey, Revision), EventEntry>,
    pub(crate) calls: Vec<CallEntry>,
    pub(crate) keys: BTreeMap<(Namespace, String), KeyEntry>,
    /// Keys that were used with an expiry, including expired ones.
    pub(crate) used: BTreeSet<(Namespace, String)>,
    pub(crate) pending: BTreeSet<(Namespace, ConversationId, BranchId)>,
    pub(crate) children: BTreeSet<(ConversationKey, ConversationId)>,
    pub(crate) blobs: BTreeMap<(Namespace, ContentHash), u64>,
    pub(crate) counts: BTreeMap<Namespace, BTreeMap<u16, u64>>,
    pub(crate) event_bytes: BTreeMap<Namespace, u64>,
}

impl Model {
    /// Applies the steps to the model, and returns the delta for the projections.
    pub(crate) fn grow(&mut self, steps: &[Step]) -> ProjectionDelta {
        let mut delta = ProjectionDelta::default();
        let mut touched = BTreeSet::new();
        for step in steps {
            touched.insert(self.step(*step, &mut delta));
        }
        delta.reached = self.reached;
        let conversations: BTreeSet<_> = touched.iter().map(|(id, _)| *id).collect();
        delta.conversations = conversations
            .iter()
            .map(|id| self.rows[id].clone())
            .collect();
        for (id, branch) in touched {
            delta
                .branches
                .push((id, Arc::clone(&self.branches[&(id, branch)])));
        }
        delta
    }

    fn step(&mut self, step: Step, delta: &mut ProjectionDelta) -> (ConversationKey, BranchId) {
        self.reached += 1 + u64::from(step.what % 3);
        let id = id(step.conversation);
        let (branch, kind) = match self.rows.contains_key(&id) {
            false => (self.create(step, delta), EventKind::ConversationCreated),
            true if step.what == 0 => (self.fork(step), EventKind::BranchForked),
            true => (self.pick(step), EventKind::MessageAppended),
        };
        self.record(id, branch, kind, delta);
        self.facts(step, branch, delta);
        (id, branch)
    }

    fn create(&mut self, step: Step, delta: &mut ProjectionDelta) -> BranchId {
        let n = step.conversation;
        let created = ConversationCreated {
            title: format!("conversation {n}"),
            source: ["", "files", "file"][usize::from(n % 3)].to_owned(),
            source_id: ["", "session", "session-1"][usize::from(n % 3)].to_owned(),
            labels: BTreeMap::from([label(step.branch)]),
            metadata: BTreeMap::from([("run".to_owned(), (step.branch % 2).to_string())]),
            ..ConversationCreated::default()
        };
        let row = ConversationRow {
            namespace: namespace(n),
            id: id(n).id,
            info: Arc::new(ConversationInfo::new(&created, id(n).id)),
            head: Revision::NONE,
            chain_hash: ContentHash::default(),
            first_position: Position::local(self.reached),
            last_position: Position::default(),
            active: BranchId::MAIN,
            branch_count: 1,
            sealed: false,
            created_at: TimestampMicros(self.reached.cast_signed()),
            updated_at: TimestampMicros::default(),
            happened_from: TimestampMicros(3),
            happened_to: TimestampMicros::default(),
            damage: None,
        };
        self.rows.insert(id(n), row);
        let main = (id(n), BranchId::MAIN);
        self.branches.insert(main, Arc::new(BranchState::root()));
        if n > 1 && self.rows.contains_key(&id(n - 2)) {
            self.children.insert((id(n - 2), id(n).id));
            delta.children.push((id(n - 2), id(n).id));
        }
        BranchId::MAIN
    }

    fn pick(&self, step: Step) -> BranchId {
        let first = (id(step.conversation), BranchId::MAIN);
        let last = (id(step.conversation), BranchId(u64::MAX));
        let all: Vec<_> = self.branches.range(first..=last).collect();
        all[usize::from(step.branch) % all.len()].1.id
    }

    fn fork(&mut self, step: Step) -> BranchId {
        let id = id(step.conversation);
        let parent = Arc::clone(&self.branches[&(id, self.pick(step))]);
        let row = self.rows.get_mut(&id).unwrap();
        row.branch_count += 1;
        let new = BranchId(row.head.next().0);
        let name = BranchName::new(&format!("branch {}", new.0)).unwrap();
        let point = ForkPoint {
            conversation: id.id,
            branch: parent.id,
            revision: parent.head,
        };
        let state = parent.forked(new, name, point);
        self.branches.insert((id, new), Arc::new(state));
        new
    }

    fn record(
        &mut self,
        id: ConversationKey,
        branch: BranchId,
        kind: EventKind,
        delta: &mut ProjectionDelta,
    ) {
        let row = self.rows.get_mut(&id).unwrap();
        row.head = row.head.next();
        row.last_position = Position::local(self.reached);
        row.chain_hash.0[..8].copy_from_slice(&self.reached.to_le_bytes());
        row.updated_at = TimestampMicros(self.reached.cast_signed());
        // Times jump back and forth, also before 1970: sources have wrong clocks.
        row.happened_to = TimestampMicros((self.reached.cast_signed() * 37 % 101 - 50) * 400_000);
        let at = EventRef {
            conversation: id.id,
            revision: row.head,
        };
        let state = Arc::make_mut(self.branches.get_mut(&(id, branch)).unwrap());
        state.apply(
            at,
            &EventBody::MessageAppended(MessageAppended::text(Role::User, "")),
        );
        if state.history_events.is_multiple_of(32) {
            let state = Arc::new(state.clone());
            self.snapshots
                .insert((id, branch, state.head), Arc::clone(&state));
            delta.snapshots.push((id, state));
        }
        let entry = EventEntry {
            conversation: id,
            revision: row.head,
            branch,
            kind: kind.number(),
            offset: self.reached,
        };
        self.entries.insert((id, row.head), entry);
        let namespace = row.namespace.clone();
        self.pass(&namespace, delta);
        let kinds = self.counts.entry(namespace.clone()).or_default();
        *kinds.entry(kind.number()).or_default() += 1;
        let bytes = self.reached % 7 * 100;
        *self.event_bytes.entry(namespace.clone()).or_default() += bytes;
        *delta
            .event_bytes
            .entry((namespace.clone(), id.id))
            .or_default() += bytes;
        delta.events.push((namespace, entry));
    }

    /// Returns when a step is recorded: times jump back and forth, as clocks are adjusted.
    fn now(&self) -> TimestampMicros {
        let reached = self.reached.cast_signed();
        TimestampMicros(reached * 4 + reached * 37 % 23 - 11)
    }

    /// Advances time to that of an event, which removes the expired keys.
    fn pass(&mut self, namespace: &Namespace, delta: &mut ProjectionDelta) {
        let now = self.now();
        let ended = |entry: &KeyEntry| entry.namespace == *namespace && entry.has_ended(now);
        self.keys.retain(|_, entry| !ended(entry));
        delta.keys.retain(|entry| !ended(entry));
        let recorded_to = delta.recorded_to.entry(namespace.clone()).or_insert(now);
        *recorded_to = now.max(*recorded_to);
    }

    fn facts(&mut self, step: Step, branch: BranchId, delta: &mut ProjectionDelta) {
        let (id, namespace) = (id(step.conversation), namespace(step.conversation));
        match step.what {
            1..=3 => {
                let call = CallEntry {
                    conversation: id,
                    call_id: ["call", "call-1", "call-12"][usize::from(step.what - 1)].to_owned(),
                    request: self.rows[&id].head,
                    branch,
                    tool: "read_file".to_owned(),
                };
                self.calls.push(call.clone());
                delta.calls.push(call);
            }
            4..=7 => {
                let entry = KeyEntry {
                    key: format!("key {}", self.reached / 2),
                    namespace: namespace.clone(),
                    content_hash: ContentHash([step.what; 32]),
                    salt: (step.what.is_multiple_of(2)).then_some([step.what; 16]),
                    first_offset: self.reached,
                    events: 1,
                    ends_at: None,
                };
                self.keys
                    .insert((namespace, entry.key.clone()), entry.clone());
                delta.keys.push(entry);
            }
            16..=23 => {
                let key = (namespace.clone(), format!("ending {}", step.branch % 4));
                self.used.insert(key.clone());
                if self.keys.contains_key(&key) {
                    return;
                }
                let life = i64::from(step.what - 15) * 8;
                let entry = KeyEntry {
                    key: key.1.clone(),
                    namespace,
                    content_hash: ContentHash([step.what; 32]),
                    salt: None,
                    first_offset: self.reached,
                    events: 1,
                    ends_at: Some(TimestampMicros(self.now().0 + life)),
                };
                self.keys.insert(key, entry.clone());
                delta.keys.push(entry);
            }
            8..=13 => {
                let waiting = step.what < 11;
                let row = (namespace.clone(), id.id, branch);
                // In this model, each waiting branch has one waiting call.
                let calls_change = if waiting {
                    i64::from(self.pending.insert(row))
                } else {
                    -i64::from(self.pending.remove(&row))
                };
                delta.pending.push(PendingEntry {
                    namespace,
                    conversation: id.id,
                    branch,
                    waiting,
                    calls_change,
                });
            }
            14 | 15 => {
                let hash = ContentHash([step.branch % 8; 32]);
                self.blobs.insert((namespace.clone(), hash), self.reached);
                delta.blobs.push((namespace, hash, self.reached));
            }
            24..=26 => self.describe(id, step, delta),
            27 if step.branch.is_multiple_of(4) => self.rows.get_mut(&id).unwrap().sealed = true,
            _ => {}
        }
    }

    fn describe(&mut self, id: ConversationKey, step: Step, delta: &mut ProjectionDelta) {
        let info = Arc::make_mut(&mut self.rows.get_mut(&id).unwrap().info);
        let change = match step.what {
            24 => ConversationChanged {
                set_labels: BTreeMap::from([label(step.branch)]),
                ..ConversationChanged::default()
            },
            25 => ConversationChanged {
                remove_labels: vec![label(step.branch).0],
                ..ConversationChanged::default()
            },
            _ => ConversationChanged {
                set_metadata: BTreeMap::from([("run".to_owned(), "1.5".to_owned())]),
                ..ConversationChanged::default()
            },
        };
        info.change(&change);
        delta.described.insert(id);
    }

    pub(crate) fn counts(&self, namespace: &Namespace) -> NamespaceCounts {
        let by_kind = self.counts.get(namespace).cloned().unwrap_or_default();
        let rows = self.rows.values().filter(|r| r.namespace == *namespace);
        NamespaceCounts {
            conversations: rows.clone().count() as u64,
            branches: rows.map(|row| row.branch_count).sum(),
            events: by_kind.values().sum(),
            pending_branches: self.pending.iter().filter(|p| p.0 == *namespace).count() as u64,
            pending_calls: self.pending.iter().filter(|p| p.0 == *namespace).count() as u64,
            by_kind,
            event_bytes: self.event_bytes.get(namespace).copied().unwrap_or_default(),
        }
    }
}

/// Applies the steps in groups of these sizes, repeated as necessary.
pub(crate) fn apply_in_groups(
    projections: &Projections,
    steps: &[Step],
    sizes: &[usize],
) -> Result<Model, ProjectionsError> {
    let mut model = Model::default();
    let mut rest = steps;
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (group, after) = rest.split_at((*size).min(rest.len()));
        projections.apply(&model.grow(group))?;
        rest = after;
    }
    Ok(model)
}
