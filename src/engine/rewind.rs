//! Rewinding a branch to a revision.
//!
//! No event is removed. One batch renames the branch and forks it at the revision under its old
//! name. The batch is accepted only if the branch has not changed since it was read.

use std::sync::Arc;

use super::{
    Engine, ReadPath,
    context::RecordedBatch,
    error::{AppendError, ReadError},
    query::{EventSource, NamedEvent, ReadQuery, RewindCommand, RewindOutcome},
};
use treering_domain::{
    AppendCommand, AppendedEvent, BranchForked, BranchId, BranchName, BranchState, ConversationRow,
    EventBody, EventKind, Expectation, ExpectedRevision, NewEvent, Rejection, Revision, Rule,
};

/// Maximum number of attempts to append. An attempt fails when another writer was first.
const ATTEMPTS_MAX: usize = 16;

/// Kinds that are only about branches or the whole conversation; they are not reported as removed.
const OF_BRANCHES: [EventKind; 5] = [
    EventKind::ConversationChanged,
    EventKind::BranchForked,
    EventKind::BranchActivated,
    EventKind::BranchRenamed,
    EventKind::BranchArchived,
];

impl Engine {
    /// Rewinds a branch to a revision of its history. The old end stays complete under another
    /// name. Without an idempotency key, nothing is appended when nothing would be removed.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was appended. [`ReadError::RevisionNotFound`] when the revision is
    /// not an event of this conversation in the branch's history.
    pub async fn rewind(&self, command: RewindCommand) -> Result<RewindOutcome, AppendError> {
        let inner = &self.inner;
        let (namespace, key) = (&command.address.namespace, &command.idempotency_key);
        let mut attempt = 0;
        loop {
            attempt += 1;
            if let Some(recorded) = inner.recorded_batch(namespace, key.as_ref()).await? {
                return self.rewound_before(&command, &recorded).await;
            }
            let place = inner.reads.place_to_rewind(&command)?;
            let went = self
                .what_goes(&command, &place.branch, place.last())
                .await?;
            if went.is_nothing() && key.is_none() {
                // The events were read by the branch's name, which another rewind may have given to
                // its fork in the meantime. Then the result is about another branch.
                let now = inner.reads.branch_at(&command.address)?;
                if now.id != place.branch.id && attempt < ATTEMPTS_MAX {
                    continue;
                }
                return Ok(place.unchanged());
            }
            match self.append(place.command(&command)).await {
                Ok(outcome) => return inner.reads.rewound(&place.row, outcome.events, went, false),
                Err(error) if attempt < ATTEMPTS_MAX && command.lost_race(&error) => {
                    inner.next_news().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the answer to a retry of a rewind.
    async fn rewound_before(
        &self,
        command: &RewindCommand,
        recorded: &RecordedBatch,
    ) -> Result<RewindOutcome, AppendError> {
        let conflict = || Rejection::batch(Rule::IdempotencyConflict);
        let [
            (renamed, EventBody::BranchRenamed(kept)),
            (_, EventBody::BranchForked(forked)),
            activated @ ..,
        ] = &recorded.events[..]
        else {
            return Err(conflict().into());
        };
        let named = match &command.address.branch {
            Some(name) => *name == forked.name,
            None => !activated.is_empty(),
        };
        let same = named
            && renamed.conversation == command.address.conversation
            && forked.fork_revision == command.last_to_stay()
            && command.keep_as.as_ref().is_none_or(|name| name == kept);
        if !same {
            return Err(conflict().into());
        }
        let inner = &self.inner;
        let id = command.address.conversation;
        let row = inner.reads.row(&command.address.namespace, id)?;
        let kept = inner.reads.history().branch(row.key(), renamed.branch)?;
        let last = Revision(renamed.revision.0.saturating_sub(1));
        let went = self.what_goes(command, &kept, last).await?;
        let events = recorded.events.iter().map(|(event, _)| event.clone());
        inner.reads.rewound(&row, events.collect(), went, true)
    }

    /// Returns a branch's events after the revision to keep, up to `last`.
    async fn what_goes(
        &self,
        command: &RewindCommand,
        branch: &BranchState,
        last: Revision,
    ) -> Result<RemovedEvents, AppendError> {
        let limit = command.limit.min(self.inner.options.limits.page_events_max);
        let kinds = EventKind::ALL.iter().copied();
        let query = ReadQuery {
            from: command.last_to_stay().next().0,
            to: last.0,
            backward: true,
            kinds: kinds.filter(|kind| !OF_BRANCHES.contains(kind)).collect(),
            limit: limit as u64 + 1,
            headers_only: command.headers_only,
            ..ReadQuery::all(
                command.address.namespace.clone(),
                EventSource::Branch {
                    conversation: command.address.conversation,
                    branch: Some(branch.name.clone()),
                },
            )
        };
        let mut events = match last > command.last_to_stay() {
            true => self.read_all(query).await?,
            false => Vec::new(),
        };
        let truncated = events.len() > limit;
        events.truncate(limit);
        events.reverse();
        Ok(RemovedEvents { events, truncated })
    }
}

/// Removed events, oldest first.
struct RemovedEvents {
    events: Vec<NamedEvent>,
    truncated: bool,
}

impl RemovedEvents {
    fn is_nothing(&self) -> bool {
        self.events.is_empty() && !self.truncated
    }
}

/// A branch at the time of the read.
struct BranchAtRead {
    row: ConversationRow,
    branch: BranchState,
    /// The branch that the last event to keep was appended to.
    owner: BranchId,
}

impl BranchAtRead {
    fn is_active(&self) -> bool {
        self.row.active == self.branch.id
    }

    fn last(&self) -> Revision {
        self.branch.head
    }

    fn unchanged(self) -> RewindOutcome {
        RewindOutcome {
            active: self.row.active,
            branch: Arc::new(self.branch),
            kept: None,
            events: Vec::new(),
            went: Vec::new(),
            truncated: false,
            repeated_key: false,
        }
    }

    /// Creates the batch: the old end gets a new name, the fork gets the old one.
    fn command(&self, asked: &RewindCommand) -> AppendCommand {
        let id = asked.address.conversation;
        let name = self.branch.name.clone();
        let kept = asked.keep_as.clone();
        let kept = kept.unwrap_or_else(|| kept_name(self.branch.head));
        let forked = EventBody::BranchForked(BranchForked {
            name: name.clone(),
            parent: self.owner,
            fork_revision: asked.last_to_stay(),
            system_prompt: String::new(),
        });
        let renamed = NewEvent::new(id, EventBody::BranchRenamed(kept)).on_branch(name.clone());
        let mut events = vec![renamed, NewEvent::new(id, forked)];
        let expected = ExpectedRevision::Exact(self.branch.head);
        let on = |branch| Expectation {
            conversation: id,
            branch,
            expected,
        };
        let mut expectations = vec![on(Some(name.clone()))];
        if self.is_active() {
            let activated = NewEvent::new(id, EventBody::BranchActivated);
            events.push(activated.on_branch(name));
            expectations.push(on(None));
        }
        for event in &mut events {
            event.actor.clone_from(&asked.actor);
        }
        AppendCommand {
            expectations,
            idempotency_key: asked.idempotency_key.clone(),
            ..AppendCommand::new(asked.address.namespace.clone(), events)
        }
    }
}

fn kept_name(head: Revision) -> BranchName {
    BranchName::new(&format!("rewound-{head}")).unwrap_or_default()
}

impl RewindCommand {
    /// Returns the last revision to keep. The first event of a conversation is always kept.
    fn last_to_stay(&self) -> Revision {
        self.to.unwrap_or(Revision(1))
    }

    /// Returns true when another writer was first and a retry can help.
    fn lost_race(&self, error: &AppendError) -> bool {
        let AppendError::Rejected(Rejection { rule, .. }) = error else {
            return false;
        };
        match rule {
            Rule::RevisionMismatch { expected, .. } => self.expected_head != Some(*expected),
            Rule::IdempotencyConflict => self.idempotency_key.is_some(),
            Rule::BranchNotFound { .. } => true,
            _ => false,
        }
    }
}

impl ReadPath {
    fn place_to_rewind(&self, command: &RewindCommand) -> Result<BranchAtRead, AppendError> {
        let id = command.address.conversation;
        let row = self.row(&command.address.namespace, id)?;
        let branch = (*self.branch_at(&command.address)?).clone();
        if let Some(expected) = command.expected_head
            && let Some(rule) = Rule::head_mismatch(
                id,
                branch.name.clone(),
                ExpectedRevision::Exact(expected),
                branch.head,
            )
        {
            return Err(Rejection::batch(rule).into());
        }
        if command.to.is_none() && row.info.shares_history {
            let message = "the conversation is a fork and shares another conversation's history, \
                           which cannot be rewound: rewind to revision 1, or fork the other \
                           conversation at an earlier revision"
                .to_owned();
            return Err(ReadError::Invalid { message }.into());
        }
        let to = command.last_to_stay();
        self.check_whole(row.key(), to)?;
        let owner = self.history().owner_of(row.key(), branch.id, to)?;
        let Some((owner, _)) = owner else {
            return Err(AppendError::Read(ReadError::RevisionNotFound {
                branch: branch.name.to_string(),
                revision: to,
                head: branch.head,
            }));
        };
        Ok(BranchAtRead {
            row,
            branch,
            owner: owner.id,
        })
    }

    fn rewound(
        &self,
        row: &ConversationRow,
        events: Vec<AppendedEvent>,
        went: RemovedEvents,
        repeated_key: bool,
    ) -> Result<RewindOutcome, AppendError> {
        let branch = |at: usize| -> Result<_, ReadError> {
            let id = events.get(at).map_or(row.active, |event| event.branch);
            self.history().branch(row.key(), id).map(Arc::new)
        };
        let (kept, now) = (branch(0)?, branch(1)?);
        Ok(RewindOutcome {
            active: self.row(&row.namespace, row.id)?.active,
            branch: now,
            kept: Some(kept),
            events,
            went: went.events,
            truncated: went.truncated,
            repeated_key,
        })
    }
}
