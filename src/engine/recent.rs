//! What the writer remembers of events that the views may not have yet: which idempotency keys
//! and ids were used, and which events have a key to be found by. And what was looked up of
//! that for a batch, ahead of the writer.

use std::collections::HashMap;

use super::{
    error::AppendError,
    prepare::{Prepared, says_the_same},
};
use crate::{
    domain::{
        BranchId, ContentHash, ConversationId, EventHeader, EventId, ExpectedKey, Namespace,
        NewestWithKey, Rejection, Rule, Tags, TimestampMicros,
    },
    views::{KeyEntry, Views},
};

/// What was looked up of the names that a batch's events have.
#[derive(Debug, Default)]
pub(super) struct NameFacts {
    /// What the views had reached before.
    pub reached: u64,
    /// Events that are there with an id of the batch's.
    pub ids: HashMap<EventId, EventWithId>,
    /// Idempotency keys of single events that were used.
    pub keys: HashMap<String, KeyEntry>,
    /// One for each of the expected keys, in order.
    pub newest: Vec<NewestFact>,
}

/// An event that is there.
#[derive(Clone, Debug)]
pub(super) struct EventWithId {
    pub offset: u64,
    pub header: EventHeader,
    /// The plain hash of its body; none: it was erased.
    pub body: Option<ContentHash>,
}

/// The newest event with a key, as the views had it.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewestFact {
    /// The branch that was looked at; none: the views did not have it.
    pub branch: Option<BranchId>,
    pub newest: Option<NewestWithKey>,
}

/// Those of a batch's events that are there already, in order, each with its offset.
pub(super) type KnownEvents = Vec<(usize, u64)>;

/// What the writer knows of a batch's names.
pub(super) enum Names {
    /// Of the caller's events.
    Known(KnownEvents),
    /// The views have gone on, and must be asked again.
    LookAgain,
}

/// The views have gone on since something was looked up, and must be asked again.
pub(super) struct OutOfDate;

#[derive(Clone, Copy)]
struct Tagged {
    branch: BranchId,
    newest: NewestWithKey,
    offset: u64,
}

/// What was staged, or committed and not published.
pub(super) struct Recent {
    keys: HashMap<(Namespace, String), KeyEntry>,
    ids: HashMap<(Namespace, EventId), EventWithId>,
    /// By conversation and key, in the order of the log.
    tagged: HashMap<(ConversationId, String), Vec<Tagged>>,
    /// What is up to this offset is in the views only.
    pruned_to: u64,
}

impl Recent {
    /// Knows nothing; the views have come to `published`.
    pub fn new(published: u64) -> Self {
        Self {
            keys: HashMap::new(),
            ids: HashMap::new(),
            tagged: HashMap::new(),
            pruned_to: published,
        }
    }

    /// An idempotency key that was used lately.
    pub fn key(&self, namespace: &Namespace, key: &str) -> Option<&KeyEntry> {
        self.keys.get(&(namespace.clone(), key.to_owned()))
    }

    /// Whether what was looked up when the views had come so far is all that was used, with
    /// what is known here.
    pub fn completes(&self, reached: u64) -> bool {
        reached >= self.pruned_to
    }

    pub fn used_key(&mut self, entry: KeyEntry) {
        let key = (entry.namespace.clone(), entry.key.clone());
        self.keys.insert(key, entry);
    }

    /// An event that its author chose the id of.
    pub fn used_id(&mut self, event: EventWithId) {
        let id = (event.header.namespace.clone(), event.header.id);
        self.ids.insert(id, event);
    }

    /// An event that may have a key.
    pub fn tagged(&mut self, header: &EventHeader, tags: &Tags, offset: u64) {
        if tags.key.is_empty() {
            return;
        }
        let of = (header.conversation, tags.key.clone());
        self.tagged.entry(of).or_default().push(Tagged {
            branch: header.branch,
            newest: NewestWithKey {
                id: header.id,
                conversation: header.conversation,
                revision: header.revision,
            },
            offset,
        });
    }

    /// The views have all up to an offset.
    pub fn published(&mut self, offset: u64) {
        self.keep(|at| at > offset);
        self.pruned_to = offset;
    }

    /// What was staged behind an offset was not written.
    pub fn aborted(&mut self, committed: u64) {
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

    /// Which events of a batch are there already.
    ///
    /// # Errors
    /// [`AppendError::Rejected`] when one cannot be what is there, or may not be passed over.
    pub fn names(
        &self,
        prepared: &Prepared,
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
                    None if !self.completes(facts.reached) => return Ok(Names::LookAgain),
                    None => {}
                }
            }
            let Some(id) = event.id else { continue };
            let used = self.ids.get(&(command.namespace.clone(), id));
            let Some(there) = used.or_else(|| facts.ids.get(&id)) else {
                match self.completes(facts.reached) {
                    true => continue,
                    false => return Ok(Names::LookAgain),
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
            if !says_the_same((&there.header, there.body), event, body) {
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

    /// True when an event of a batch is one that was staged, or committed, lately.
    pub fn may_have(&self, prepared: &Prepared) -> bool {
        let namespace = &prepared.command.namespace;
        prepared.own_events().iter().any(|(_, event, _)| {
            let key = event.idempotency_key.as_ref();
            key.is_some_and(|key| self.key(namespace, key).is_some())
                || event
                    .id
                    .is_some_and(|id| self.ids.contains_key(&(namespace.clone(), id)))
        })
    }

    /// The newest event with an expected key on a branch.
    ///
    /// # Errors
    /// [`OutOfDate`] when that cannot be told from what was looked up.
    pub fn newest(
        &self,
        expected: &ExpectedKey,
        branch: BranchId,
        (reached, fact): (u64, Option<&NewestFact>),
    ) -> Result<Option<NewestWithKey>, OutOfDate> {
        let of = (expected.conversation, expected.key.clone());
        let mut tagged = self.tagged.get(&of).into_iter().flatten();
        // Nothing that was looked up is newer, nor is what the branch inherited.
        if let Some(recent) = tagged.rfind(|event| event.branch == branch) {
            return Ok(Some(recent.newest));
        }
        let is_of_branch = |fact: &&NewestFact| fact.branch == Some(branch);
        match fact.filter(is_of_branch) {
            Some(fact) if self.completes(reached) => Ok(fact.newest),
            _ => Err(OutOfDate),
        }
    }
}

/// Asks the views themselves for an idempotency key that has not ended.
///
/// # Errors
/// [`AppendError::Unready`] while they lack keys that the writer does not know any more.
pub(super) fn key_in_views(
    views: &Views,
    (namespace, key): (&Namespace, &str),
    recent: &Recent,
    now: TimestampMicros,
) -> Result<Option<KeyEntry>, AppendError> {
    let read = views.key(namespace, key);
    let (reached, entry) = read.map_err(AppendError::of_views)?;
    let entry = entry.filter(|entry| !entry.has_ended(now));
    // A key that is not found in views that went back may have been used.
    if entry.is_none() && !recent.completes(reached) {
        return Err(AppendError::views_behind());
    }
    Ok(entry)
}

/// The place of an event, for a rule's facts.
pub(super) fn newest_of(header: &EventHeader) -> NewestWithKey {
    NewestWithKey {
        id: header.id,
        conversation: header.conversation,
        revision: header.revision,
    }
}
