//! The writer's memory of events that the projections may lack: used idempotency keys and ids, and
//! events with an event key. These keys and ids are the names of an event. Before a batch reaches
//! the writer, its names are looked up in the projections; the results are here too.

use std::collections::HashMap;

use super::{
    error::AppendError,
    prepare::{ValidatedBatch, is_same_event},
};
use treering_domain::{
    BranchId, ContentHash, ConversationKey, EventHeader, EventId, ExpectedKey, Namespace,
    NewestWithKey, Rejection, Rule, Tags, TimestampMicros,
};
use treering_projections::{KeyEntry, Projections};

/// Look-up results for the names of a batch's events.
#[derive(Debug, Default)]
pub(super) struct NameFacts {
    /// The offset that the projections had reached before the look-ups.
    pub(crate) reached: u64,
    /// Stored events with an id of the batch.
    pub(crate) ids: HashMap<EventId, EventWithId>,
    /// Used idempotency keys of single events.
    pub(crate) keys: HashMap<String, KeyEntry>,
    /// One fact per expected key, in order.
    pub(crate) newest: Vec<NewestFact>,
}

/// A stored event.
#[derive(Clone, Debug)]
pub(super) struct EventWithId {
    pub(crate) offset: u64,
    pub(crate) header: EventHeader,
    /// The unsalted hash of its body; `None` if it was erased.
    pub(crate) body: Option<ContentHash>,
}

/// The newest event with a key, according to the projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewestFact {
    /// The branch that was searched; `None` if the projections did not have it.
    pub(crate) branch: Option<BranchId>,
    pub(crate) newest: Option<NewestWithKey>,
}

/// The events of a batch that are already stored: index and offset of each, in order.
pub(super) type KnownEvents = Vec<(usize, u64)>;

/// The result of checking a batch's names.
pub(super) enum Names {
    /// The caller's events that are already stored.
    Known(KnownEvents),
    /// The projections have advanced and must be queried again.
    Retry,
}

/// The projections have advanced since the look-up and must be queried again.
pub(super) struct StaleLookup;

#[derive(Clone, Copy)]
struct TaggedEvent {
    branch: BranchId,
    newest: NewestWithKey,
    offset: u64,
}

/// Names of events that are staged, or committed and not published.
pub(super) struct UnpublishedNames {
    keys: HashMap<(Namespace, String), KeyEntry>,
    ids: HashMap<(Namespace, EventId), EventWithId>,
    /// By conversation and key, in log order.
    tagged: HashMap<(ConversationKey, String), Vec<TaggedEvent>>,
    /// Names up to this offset are only in the projections.
    pruned_to: u64,
}

impl UnpublishedNames {
    /// Creates an empty memory; the projections have reached `published`.
    pub(crate) fn new(published: u64) -> Self {
        Self {
            keys: HashMap::new(),
            ids: HashMap::new(),
            tagged: HashMap::new(),
            pruned_to: published,
        }
    }

    /// Returns a recently used idempotency key.
    pub(crate) fn key(&self, namespace: &Namespace, key: &str) -> Option<&KeyEntry> {
        self.keys.get(&(namespace.clone(), key.to_owned()))
    }

    /// Returns whether this memory has every name that the projections lacked when they had reached
    /// offset `reached`. If so, look-ups made then are complete together with this memory.
    pub(crate) fn completes(&self, reached: u64) -> bool {
        reached >= self.pruned_to
    }

    pub(crate) fn used_key(&mut self, entry: KeyEntry) {
        let key = (entry.namespace.clone(), entry.key.clone());
        self.keys.insert(key, entry);
    }

    /// Records an event whose author chose its id.
    pub(crate) fn used_id(&mut self, event: EventWithId) {
        let id = (event.header.namespace.clone(), event.header.id);
        self.ids.insert(id, event);
    }

    /// Records an event that may have an event key.
    pub(crate) fn tagged(&mut self, header: &EventHeader, tags: &Tags, offset: u64) {
        if tags.key.is_empty() {
            return;
        }
        let of = (header.key(), tags.key.clone());
        self.tagged.entry(of).or_default().push(TaggedEvent {
            branch: header.branch,
            newest: NewestWithKey {
                id: header.id,
                conversation: header.conversation,
                revision: header.revision,
            },
            offset,
        });
    }

    /// Forgets names up to an offset that the projections have reached.
    pub(crate) fn published(&mut self, offset: u64) {
        self.keep(|at| at > offset);
        self.pruned_to = offset;
    }

    /// Forgets names that were staged after an offset and not written.
    pub(crate) fn aborted(&mut self, committed: u64) {
        self.keep(|at| at <= committed);
    }

    fn keep(&mut self, keep: impl Fn(u64) -> bool) {
        self.keys.retain(|_, entry| keep(entry.first_offset));
        self.ids.retain(|_, event| keep(event.offset));
        self.tagged.retain(|_, events| {
            events.retain(|event| keep(event.offset));
            !events.is_empty()
        });
    }

    /// Returns which events of a batch are already stored.
    ///
    /// # Errors
    /// [`AppendError::Rejected`] when an event conflicts with a stored one, or when its id is
    /// already stored and the batch does not allow skipping.
    pub(crate) fn names(
        &self,
        prepared: &ValidatedBatch,
        facts: &NameFacts,
        now: TimestampMicros,
    ) -> Result<Names, AppendError> {
        let command = &prepared.command;
        let mut known = Vec::new();
        for (own, event, body) in prepared.own_events() {
            let reject = |rule| AppendError::from(Rejection::event(own, rule));
            if let Some(key) = &event.idempotency_key {
                let used = self.key(&command.namespace, key);
                let used = used.or_else(|| facts.keys.get(key));
                match used.filter(|entry| !entry.has_ended(now)) {
                    Some(entry) if body.may_be(entry) => {
                        known.push((own, entry.first_offset));
                        continue;
                    }
                    Some(_) => return Err(reject(Rule::IdempotencyConflict)),
                    None if !self.completes(facts.reached) => return Ok(Names::Retry),
                    None => {}
                }
            }
            let Some(id) = event.id else { continue };
            let used = self.ids.get(&(command.namespace.clone(), id));
            let Some(there) = used.or_else(|| facts.ids.get(&id)) else {
                match self.completes(facts.reached) {
                    true => continue,
                    false => return Ok(Names::Retry),
                }
            };
            let (conversation, revision) = (there.header.conversation, there.header.revision);
            if !command.skip_known {
                return Err(reject(Rule::EventIdTaken {
                    id,
                    conversation,
                    revision,
                }));
            }
            if !is_same_event((&there.header, there.body), event, body) {
                return Err(reject(Rule::EventIdConflict {
                    id,
                    conversation,
                    revision,
                }));
            }
            known.push((own, there.offset));
        }
        Ok(Names::Known(known))
    }

    /// Returns true when an event of a batch was recently staged or committed.
    pub(crate) fn may_have(&self, prepared: &ValidatedBatch) -> bool {
        let namespace = &prepared.command.namespace;
        prepared.own_events().iter().any(|(_, event, _)| {
            let key = event.idempotency_key.as_ref();
            key.is_some_and(|key| self.key(namespace, key).is_some())
                || event
                    .id
                    .is_some_and(|id| self.ids.contains_key(&(namespace.clone(), id)))
        })
    }

    /// Returns the newest event with an expected key on a branch.
    ///
    /// # Errors
    /// [`StaleLookup`] when the look-up is too old to tell.
    pub(crate) fn newest(
        &self,
        (namespace, expected): (&Namespace, &ExpectedKey),
        branch: BranchId,
        (reached, fact): (u64, Option<&NewestFact>),
    ) -> Result<Option<NewestWithKey>, StaleLookup> {
        let of = (namespace.key(expected.conversation), expected.key.clone());
        let mut tagged = self.tagged.get(&of).into_iter().flatten();
        // Events here are newer than looked-up and inherited ones.
        if let Some(recent) = tagged.rfind(|event| event.branch == branch) {
            return Ok(Some(recent.newest));
        }
        let is_of_branch = |fact: &&NewestFact| fact.branch == Some(branch);
        match fact.filter(is_of_branch) {
            Some(fact) if self.completes(reached) => Ok(fact.newest),
            _ => Err(StaleLookup),
        }
    }
}

/// Queries the projections for an idempotency key that has not expired.
///
/// # Errors
/// [`AppendError::Unready`] while they lack keys that the writer no longer remembers.
pub(super) fn key_in_projections(
    projections: &Projections,
    (namespace, key): (&Namespace, &str),
    recent: &UnpublishedNames,
    now: TimestampMicros,
) -> Result<Option<KeyEntry>, AppendError> {
    let read = projections.key(namespace, key);
    let (reached, entry) = read.map_err(AppendError::from_projections)?;
    let entry = entry.filter(|entry| !entry.has_ended(now));
    // Projections that regressed may lack a key that was used.
    if entry.is_none() && !recent.completes(reached) {
        return Err(AppendError::projections_behind());
    }
    Ok(entry)
}

/// Returns the place of an event, for a rejection.
pub(super) fn newest_of(header: &EventHeader) -> NewestWithKey {
    NewestWithKey {
        id: header.id,
        conversation: header.conversation,
        revision: header.revision,
    }
}
