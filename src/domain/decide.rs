//! Decides whether a batch may be appended, and computes the resulting state. A pure function of
//! state and command: no clock, no randomness, no I/O.

use std::{borrow::Borrow, collections::BTreeMap, sync::Arc};

use super::{
    changes::ChangedConversation,
    event::{
        AppendCommand, BranchForked, Compacted, CompactionTrigger, ConversationCreated,
        ExpectedRevision, NewEvent,
    },
    id::{BranchId, BranchName, ConversationId, Revision},
    kind::EventBody,
    limits::Limits,
    rejection::{Rejection, Rule},
    rules,
    state::{BranchState, ConversationInfo, ConversationState, EventRef, ForkPoint},
};

/// A branch at one of its past revisions. The past does not change, so it can be read before the
/// decision.
#[derive(Clone, Debug, PartialEq)]
pub struct PastBranch {
    /// The state just after the revision.
    pub state: Arc<BranchState>,
    /// Whether the next event of the branch is a tool call. If so, the message at the revision did
    /// not end its turn.
    pub followed_by_call: bool,
}

/// Data that the decision needs and that is not yet loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MissingData {
    /// The state of a conversation.
    Conversation(ConversationId),
    /// A branch as of a revision in its history.
    BranchAt(ConversationId, BranchId, Revision),
}

/// The loaded data that the decision can use.
pub trait Lookup {
    /// Returns a conversation of the command's namespace; `Ok(None)` if it does not exist.
    ///
    /// # Errors
    /// The [`MissingData`] to load before deciding again.
    fn conversation(&self, id: ConversationId) -> Result<Option<&ConversationState>, MissingData>;

    /// Returns a branch as of a revision; `Ok(None)` if the revision is not in its history.
    ///
    /// # Errors
    /// The [`MissingData`] to load before deciding again.
    fn branch_at(
        &self,
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    ) -> Result<Option<&PastBranch>, MissingData>;
}

/// Branch and revision of an accepted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencedEvent {
    /// Its branch.
    pub branch: BranchId,
    /// Its conversation and revision.
    pub at: EventRef,
}

/// The result for a batch that may be appended.
#[derive(Clone, Debug)]
pub struct AcceptedBatch {
    /// One place per event, in order.
    pub events: Vec<SequencedEvent>,
    /// The resulting states of the conversations that the batch touches.
    pub changed: BTreeMap<ConversationId, ChangedConversation>,
}

/// Reason why a batch was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecideError {
    /// A rule forbids it.
    Rejected(Rejection),
    /// Data must be loaded first.
    MissingData(MissingData),
}

impl From<MissingData> for DecideError {
    fn from(need: MissingData) -> Self {
        Self::MissingData(need)
    }
}

/// Decides a batch: all of its events are accepted, or none.
///
/// # Errors
/// [`DecideError::Rejected`] with the first event that breaks a rule, or
/// [`DecideError::MissingData`] when the answer depends on data that is not yet loaded.
pub fn decide<B: Borrow<EventBody>>(
    lookup: &impl Lookup,
    command: &AppendCommand<B>,
    limits: &Limits,
) -> Result<AcceptedBatch, DecideError> {
    decide_of(lookup, command, limits, Author::Client)
}

/// Decides a batch in which the engine records an erasure. Such events are also accepted in
/// sealed conversations and on archived branches.
///
/// # Errors
/// As [`decide`].
pub fn decide_erasure<B: Borrow<EventBody>>(
    lookup: &impl Lookup,
    command: &AppendCommand<B>,
    limits: &Limits,
) -> Result<AcceptedBatch, DecideError> {
    decide_of(lookup, command, limits, Author::Eraser)
}

/// The author of the batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Author {
    Client,
    /// The engine, to record an erasure.
    Eraser,
}

fn decide_of<B: Borrow<EventBody>>(
    lookup: &impl Lookup,
    command: &AppendCommand<B>,
    limits: &Limits,
    author: Author,
) -> Result<AcceptedBatch, DecideError> {
    let mut batch = Batch {
        lookup,
        command,
        limits,
        author,
        changed: BTreeMap::new(),
        starts_with_call: BTreeMap::new(),
    };
    if command.events.is_empty() {
        return Err(DecideError::Rejected(Rejection::batch(Rule::EmptyBatch)));
    }
    batch.check_expectations()?;
    let mut events = Vec::with_capacity(command.events.len());
    for (index, event) in command.events.iter().enumerate() {
        let placed = batch.place(event).map_err(|refusal| refusal.at(index))?;
        events.push(placed);
    }
    batch.check_one_tree()?;
    Ok(AcceptedBatch {
        events,
        changed: batch.changed,
    })
}

/// A refusal without the index of its event, which is added later.
pub(super) enum Refusal {
    Rule(Rule),
    Needs(MissingData),
}

impl Refusal {
    fn at(self, index: usize) -> DecideError {
        match self {
            Self::Rule(rule) => DecideError::Rejected(Rejection::event(index, rule)),
            Self::Needs(need) => DecideError::MissingData(need),
        }
    }
}

impl From<Rule> for Refusal {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl From<MissingData> for Refusal {
    fn from(need: MissingData) -> Self {
        Self::Needs(need)
    }
}

struct Batch<'a, L, B> {
    lookup: &'a L,
    command: &'a AppendCommand<B>,
    limits: &'a Limits,
    author: Author,
    changed: BTreeMap<ConversationId, ChangedConversation>,
    /// Whether the batch's first event on a branch is a tool call. If so, the message at the
    /// branch's stored head did not end its turn.
    starts_with_call: BTreeMap<(ConversationId, BranchId), bool>,
}

impl<L: Lookup, B: Borrow<EventBody>> Batch<'_, L, B> {
    fn check_expectations(&self) -> Result<(), DecideError> {
        for expectation in &self.command.expectations {
            let id = expectation.conversation;
            let state = self.lookup.conversation(id)?;
            if let Some(rule) = state.and_then(damaged) {
                return Err(DecideError::Rejected(Rejection::batch(rule)));
            }
            let rule = match (state, expectation.expected) {
                (_, ExpectedRevision::Any) | (None, ExpectedRevision::NoStream) => None,
                (None, ExpectedRevision::Exact(_)) => {
                    Some(Rule::ConversationNotFound { conversation: id })
                }
                (Some(state), ExpectedRevision::NoStream) => Some(Rule::ConversationExists {
                    conversation: id,
                    head: state.row.head,
                }),
                (Some(state), expected) => match state.branch(expectation.branch.as_ref()) {
                    Some(branch) => {
                        Rule::head_mismatch(id, branch.name.clone(), expected, branch.head)
                    }
                    None => Some(branch_not_found(id, expectation.branch.as_ref())),
                },
            };
            if let Some(rule) = rule {
                return Err(DecideError::Rejected(Rejection::batch(rule)));
            }
        }
        Ok(())
    }

    fn check_one_tree(&self) -> Result<(), DecideError> {
        let mut roots = self.changed.values().map(|changed| changed.row.info.root);
        let Some(first) = roots.next() else {
            return Ok(());
        };
        match roots.find(|root| *root != first) {
            Some(second) => Err(DecideError::Rejected(Rejection::batch(
                Rule::DifferentTrees { first, second },
            ))),
            None => Ok(()),
        }
    }

    fn place(&mut self, event: &NewEvent<B>) -> Result<SequencedEvent, Refusal> {
        let (id, body): (_, &EventBody) = (event.conversation, event.body.borrow());
        if let EventBody::ConversationCreated(created) = body {
            self.create(id, created)?;
        } else if !self.changed.contains_key(&id) {
            let state = self
                .lookup
                .conversation(id)?
                .ok_or(Rule::ConversationNotFound { conversation: id })?;
            if let Some(rule) = damaged(state) {
                return Err(rule.into());
            }
            self.changed.insert(id, ChangedConversation::of(state));
        }
        let base = self.lookup.conversation(id)?;
        let erases = self.erases(body);
        if !erases
            && self
                .changed
                .get(&id)
                .is_some_and(|changed| changed.row.sealed)
        {
            return Err(Rule::Sealed { conversation: id }.into());
        }
        let branch = match body {
            EventBody::BranchForked(forked) => self.fork(id, base, forked)?,
            _ if erases => self.changed[&id].row.active,
            body => self.check_on_branch(id, base, event.branch.as_ref(), body)?,
        };
        let Some(changed) = self.changed.get_mut(&id) else {
            return Err(Rule::ConversationNotFound { conversation: id }.into());
        };
        let at = changed.apply(base, branch, body);
        let is_call = matches!(body, EventBody::ToolCallRequested(_));
        self.starts_with_call.entry((id, branch)).or_insert(is_call);
        Ok(SequencedEvent { branch, at })
    }

    /// Returns true for the events of the engine's own erasure, which are exempt from the rules for
    /// sealed conversations, branches and single events.
    fn erases(&self, body: &EventBody) -> bool {
        let says = matches!(
            body,
            EventBody::ContentErased { .. } | EventBody::ConversationChanged(_)
        );
        self.author == Author::Eraser && says
    }

    fn check_on_branch(
        &self,
        id: ConversationId,
        base: Option<&ConversationState>,
        name: Option<&BranchName>,
        body: &EventBody,
    ) -> Result<BranchId, Refusal> {
        let changed = &self.changed[&id];
        let branch = changed
            .branch_named(base, name)
            .ok_or_else(|| branch_not_found(id, name))?;
        if branch.archived {
            return Err(Rule::BranchArchived {
                branch: branch.name.clone(),
            }
            .into());
        }
        rules::check(branch, changed.row.head, body, self.limits)?;
        match body {
            EventBody::BranchRenamed(new) if changed.branch_named(base, Some(new)).is_some() => {
                return Err(Rule::BranchNameTaken { name: new.clone() }.into());
            }
            EventBody::BranchArchived { .. } if changed.row.active == branch.id => {
                return Err(Rule::ArchivesActiveBranch {
                    branch: branch.name.clone(),
                }
                .into());
            }
            EventBody::Compacted(compacted) => {
                self.check_cut(id, base, branch, compacted)?;
            }
            EventBody::ConversationChanged(change) => {
                let mut info = (*changed.row.info).clone();
                info.change(change);
                rules::check_described(&info)?;
            }
            _ => {}
        }
        Ok(branch.id)
    }

    fn check_cut(
        &self,
        id: ConversationId,
        base: Option<&ConversationState>,
        branch: &BranchState,
        compacted: &Compacted,
    ) -> Result<(), Refusal> {
        let cut = compacted.cut_revision;
        let last_cut = branch.last_cut(id);
        // An imported compaction replaces everything before it, wherever the last turn ended. A
        // turn may be so long that its source compacted it twice.
        let is_imported = compacted.trigger == CompactionTrigger::Imported;
        if cut <= last_cut && !is_imported {
            return Err(Rule::CutBeforeLastCut { cut, last_cut }.into());
        }
        let stored = base.and_then(|state| state.branches.get(&branch.id));
        let boundary = if cut == branch.head {
            branch.at_turn_boundary()
        } else if let Some(stored) = stored.filter(|stored| stored.head == cut) {
            let continued = self.starts_with_call.get(&(id, branch.id));
            stored.at_turn_boundary() && !continued.copied().unwrap_or_default()
        } else {
            self.lookup
                .branch_at(id, branch.id, cut)?
                .is_some_and(|past| past.state.at_turn_boundary() && !past.followed_by_call)
        };
        if boundary {
            return Ok(());
        }
        Err(Rule::NotATurnBoundary {
            branch: branch.name.clone(),
            revision: cut,
        }
        .into())
    }

    fn create(&mut self, id: ConversationId, created: &ConversationCreated) -> Result<(), Refusal> {
        if let Some(rule) = self.lookup.conversation(id)?.and_then(damaged) {
            return Err(rule.into());
        }
        let there = match self.changed.get(&id) {
            Some(changed) => Some(changed.row.head),
            None => self.lookup.conversation(id)?.map(|state| state.row.head),
        };
        if let Some(head) = there {
            return Err(Rule::ConversationExists {
                conversation: id,
                head,
            }
            .into());
        }
        let namespace = self.command.namespace.clone();
        let Some(parent) = &created.parent else {
            if created.shares_history {
                let what = "shares_history is set without a parent";
                return Err(Rule::ParentIncomplete { what }.into());
            }
            let info = ConversationInfo::new(created, id);
            if !created.metadata.is_empty() {
                rules::check_described(&info)?;
            }
            self.changed
                .insert(id, ChangedConversation::new(namespace, id, info, None));
            return Ok(());
        };
        if parent.conversation == id {
            return Err(Rule::OwnParent { conversation: id }.into());
        }
        let info = self.info_below(parent.conversation, created)?;
        let fork = ForkPoint {
            conversation: parent.conversation,
            branch: parent.branch,
            revision: parent.revision,
        };
        let base = self.fork_base(fork)?;
        self.check_depth(&base)?;
        let inherited = created.shares_history.then_some((&*base, fork));
        self.changed
            .insert(id, ChangedConversation::new(namespace, id, info, inherited));
        Ok(())
    }

    /// Returns the properties of a conversation with a parent. Limits the nesting depth of
    /// sub-contexts.
    fn info_below(
        &self,
        parent: ConversationId,
        created: &ConversationCreated,
    ) -> Result<ConversationInfo, Refusal> {
        let row = match self.changed.get(&parent) {
            Some(changed) => &changed.row,
            None => match self.lookup.conversation(parent)? {
                Some(state) => &state.row,
                None => {
                    return Err(Rule::ConversationNotFound {
                        conversation: parent,
                    }
                    .into());
                }
            },
        };
        let info = ConversationInfo::below(created, &row.info);
        if !created.metadata.is_empty() {
            rules::check_described(&info)?;
        }
        if !created.shares_history {
            rules::check_limit(
                "the depth of sub-contexts",
                usize::try_from(info.sub_context_depth).unwrap_or(usize::MAX),
                self.limits.sub_context_depth_max,
                "sub_context_depth_max",
            )?;
        }
        Ok(info)
    }

    fn fork(
        &mut self,
        id: ConversationId,
        base: Option<&ConversationState>,
        forked: &BranchForked,
    ) -> Result<BranchId, Refusal> {
        let changed = &self.changed[&id];
        if changed.branch_named(base, Some(&forked.name)).is_some() {
            return Err(Rule::BranchNameTaken {
                name: forked.name.clone(),
            }
            .into());
        }
        let count = usize::try_from(changed.row.branch_count).unwrap_or(usize::MAX);
        rules::check_limit(
            "branches",
            count + 1,
            self.limits.branches_max,
            "branches_max",
        )?;
        let point = ForkPoint {
            conversation: id,
            branch: forked.parent,
            revision: forked.fork_revision,
        };
        let parent = self.fork_base(point)?;
        self.check_depth(&parent)?;
        let branch = BranchId(changed.row.head.next().0);
        let state = parent.forked(branch, forked.name.clone(), point);
        if let Some(changed) = self.changed.get_mut(&id) {
            changed.open_branch(state);
        }
        Ok(branch)
    }

    fn check_depth(&self, parent: &BranchState) -> Result<(), Rule> {
        let depth = usize::try_from(parent.depth).unwrap_or(usize::MAX) + 1;
        rules::check_limit(
            "the depth of the lineage",
            depth,
            self.limits.lineage_depth_max,
            "lineage_depth_max",
        )
    }

    /// Returns the state that a new branch inherits: from the batch itself, from the stored head,
    /// or from a past revision.
    fn fork_base(&self, point: ForkPoint) -> Result<Arc<BranchState>, Refusal> {
        let ForkPoint {
            conversation,
            branch,
            revision,
        } = point;
        let base = self.lookup.conversation(conversation)?;
        // A damaged conversation can be forked at any revision before the damage.
        let beyond = base.and_then(damaged_at(revision));
        let missing = || match beyond {
            Some(rule) => rule,
            None => Rule::ForkPointMissing {
                conversation,
                branch,
                revision,
            },
        };
        let current = match self.changed.get(&conversation) {
            Some(changed) => changed.branch(base, branch),
            None => base.and_then(|state| state.branches.get(&branch)),
        };
        let Some(current) = current else {
            return Err(missing().into());
        };
        if current.head == revision {
            return Ok(Arc::clone(current));
        }
        let past = self.lookup.branch_at(conversation, branch, revision)?;
        past.map(|past| Arc::clone(&past.state))
            .ok_or_else(|| missing().into())
    }
}

/// Returns the rule that rejects appends to a damaged conversation: its chain cannot continue.
fn damaged(state: &ConversationState) -> Option<Rule> {
    let damage = state.row.damage.clone()?;
    Some(Rule::ConversationDamaged {
        conversation: state.row.id,
        damage,
    })
}

/// Returns the same rule if `revision` is not before the damage.
fn damaged_at(revision: Revision) -> impl FnOnce(&ConversationState) -> Option<Rule> {
    move |state| {
        let damage = state.row.damage.as_ref()?;
        (revision >= damage.revision).then(|| damaged(state))?
    }
}

fn branch_not_found(conversation: ConversationId, name: Option<&BranchName>) -> Rule {
    let branch = name.map(BranchName::to_string).unwrap_or_default();
    Rule::BranchNotFound {
        conversation,
        branch,
    }
}
