//! Why a batch is rejected: one variant per rule.

use std::sync::Arc;

use super::{
    damage::Damage,
    event::{ExpectedNewest, ExpectedRevision},
    id::{BranchId, BranchName, ConversationId, EventId, Revision},
    kind::EventKind,
    state::ApprovalStatus,
};

/// The first violation of a rule by a batch. Nothing of the batch was appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{rule}", self.place())]
pub struct Rejection {
    /// Index of the event in the batch, from 0; `None` when the batch as a whole breaks the rule.
    pub event_index: Option<usize>,
    /// The rule, with the expected and the actual state.
    pub rule: Rule,
}

impl Rejection {
    /// Creates a rejection of the batch as a whole.
    #[must_use]
    pub fn batch(rule: Rule) -> Self {
        Self {
            event_index: None,
            rule,
        }
    }

    /// Creates a rejection because of one event.
    #[must_use]
    pub fn event(event_index: usize, rule: Rule) -> Self {
        Self {
            event_index: Some(event_index),
            rule,
        }
    }

    fn place(&self) -> String {
        self.event_index
            .map(|index| format!("event {index} of the batch: "))
            .unwrap_or_default()
    }
}

/// A rule for appends, with the expected and the actual state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Rule {
    #[error("the batch has no events")]
    EmptyBatch,
    #[error("there is no conversation {conversation}; its first event is conversation_created")]
    ConversationNotFound { conversation: ConversationId },
    #[error("conversation {conversation} exists already; its head is revision {head}")]
    ConversationExists {
        conversation: ConversationId,
        head: Revision,
    },
    #[error("conversation {conversation} has no branch named {branch:?}")]
    BranchNotFound {
        conversation: ConversationId,
        branch: String,
    },
    #[error(
        "the head of branch {branch:?} is revision {actual}, not {expected}: read from there and try again",
        branch = .branch.as_str()
    )]
    RevisionMismatch {
        branch: BranchName,
        expected: Revision,
        actual: Revision,
    },
    #[error("conversation {conversation} is sealed and takes nothing more; fork it to go on")]
    Sealed { conversation: ConversationId },
    #[error(
        "conversation {conversation} is {damage} and takes nothing more: fork it into a new conversation at revision {} or before, restore the log from a backup, or take what is sound with `treering salvage`",
        .damage.sound_to()
    )]
    ConversationDamaged {
        conversation: ConversationId,
        damage: Arc<Damage>,
    },
    #[error("branch {branch:?} is archived and takes nothing more; fork it to go on", branch = .branch.as_str())]
    BranchArchived { branch: BranchName },
    #[error("branch {branch:?} is the active one: activate another before it is archived", branch = .branch.as_str())]
    ArchivesActiveBranch { branch: BranchName },
    #[error("the conversation has a branch named {name:?} already", name = .name.as_str())]
    BranchNameTaken { name: BranchName },
    #[error(
        "revision {revision} is not in the history of branch {branch} of conversation {conversation}, so nothing can fork there"
    )]
    ForkPointMissing {
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    },
    #[error("no call {call_id:?} is open on branch {branch:?}: {state}", branch = .branch.as_str())]
    CallNotOpen {
        branch: BranchName,
        call_id: String,
        state: &'static str,
    },
    #[error("a call {call_id:?} is open on this branch since revision {since}: end it first")]
    CallAlreadyOpen { call_id: String, since: Revision },
    #[error("call {call_id:?} was decided before: it is {status}")]
    CallAlreadyDecided {
        call_id: String,
        status: ApprovalStatus,
    },
    #[error("call {call_id:?} needs no approval, so there is nothing to decide")]
    ApprovalNotRequired { call_id: String },
    #[error("call {call_id:?} was started before")]
    CallAlreadyStarted { call_id: String },
    #[error("call {call_id:?} is {status}: it can neither start nor succeed")]
    CallNotApproved {
        call_id: String,
        status: ApprovalStatus,
    },
    #[error(
        "the approval of call {call_id:?} is for other arguments (hash {approved}) than the call has (hash {actual})"
    )]
    ArgumentsChanged {
        call_id: String,
        approved: String,
        actual: String,
    },
    #[error("revision {revision} is not the last assistant message of the branch")]
    MessageMissing { revision: Revision },
    #[error(
        "revision {revision} is not the end of a turn of branch {branch:?}, so a compaction cannot cut there",
        branch = .branch.as_str()
    )]
    NotATurnBoundary {
        branch: BranchName,
        revision: Revision,
    },
    #[error("revision {cut} was compacted before: the last cut is at revision {last_cut}")]
    CutBeforeLastCut { cut: Revision, last_cut: Revision },
    #[error("revision {revision} is not in the conversation; its head is revision {head}")]
    RevisionMissing { revision: Revision, head: Revision },
    #[error("the idempotency key was used before for other content")]
    IdempotencyConflict,
    #[error(
        "the id {id} is taken by revision {revision} of conversation {conversation}: choose another, or set skip_known to pass over what is there"
    )]
    EventIdTaken {
        id: EventId,
        conversation: ConversationId,
        revision: Revision,
    },
    #[error(
        "the event with the id {id} is there already, as revision {revision} of conversation {conversation}, with other content"
    )]
    EventIdConflict {
        id: EventId,
        conversation: ConversationId,
        revision: Revision,
    },
    #[error(
        "expected_keys[{index}]: the newest event with that key is {}, not {expected}: read it and try again",
        newest(.actual.as_ref())
    )]
    LatestMismatch {
        index: usize,
        expected: ExpectedNewest,
        actual: Option<NewestWithKey>,
    },
    #[error("the batch touches conversations of different trees ({first} and {second})")]
    DifferentTrees {
        first: ConversationId,
        second: ConversationId,
    },
    #[error("{kind} is recorded by the engine itself and cannot be appended")]
    EngineOnly { kind: EventKind },
    #[error("{what} would be {actual}; at most {max} are allowed (limits.{limit})")]
    LimitReached {
        what: &'static str,
        actual: usize,
        max: usize,
        limit: &'static str,
    },
    #[error("conversation {conversation} is this conversation itself")]
    OwnParent { conversation: ConversationId },
    #[error(
        "no sub-context {child} runs on branch {branch:?}: it was not spawned there, or has returned",
        branch = .branch.as_str()
    )]
    SubContextNotRunning {
        branch: BranchName,
        child: ConversationId,
    },
    #[error(
        "sub-context {child} runs on this branch already{}: wait until it has returned", for_call(.call_id)
    )]
    SubContextRunning {
        child: ConversationId,
        call_id: String,
    },
    #[error("the parent names a place but not as one to share: {what}")]
    ParentIncomplete { what: &'static str },
}

impl Rule {
    /// Returns a stable name for programs, in `SCREAMING_SNAKE_CASE`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::EmptyBatch => "EMPTY_BATCH",
            Self::ConversationNotFound { .. } => "CONVERSATION_NOT_FOUND",
            Self::ConversationExists { .. } => "CONVERSATION_EXISTS",
            Self::BranchNotFound { .. } => "BRANCH_NOT_FOUND",
            Self::RevisionMismatch { .. } => "REVISION_MISMATCH",
            Self::Sealed { .. } => "SEALED",
            Self::ConversationDamaged { .. } => "CONVERSATION_DAMAGED",
            Self::BranchArchived { .. } => "BRANCH_ARCHIVED",
            Self::ArchivesActiveBranch { .. } => "ARCHIVES_ACTIVE_BRANCH",
            Self::BranchNameTaken { .. } => "BRANCH_NAME_TAKEN",
            Self::ForkPointMissing { .. } => "FORK_POINT_MISSING",
            Self::CallNotOpen { .. } => "CALL_NOT_OPEN",
            Self::CallAlreadyOpen { .. } => "CALL_ALREADY_OPEN",
            Self::CallAlreadyDecided { .. } => "CALL_ALREADY_DECIDED",
            Self::ApprovalNotRequired { .. } => "APPROVAL_NOT_REQUIRED",
            Self::CallAlreadyStarted { .. } => "CALL_ALREADY_STARTED",
            Self::CallNotApproved { .. } => "CALL_NOT_APPROVED",
            Self::ArgumentsChanged { .. } => "ARGUMENTS_CHANGED",
            Self::MessageMissing { .. } => "MESSAGE_MISSING",
            Self::NotATurnBoundary { .. } => "NOT_A_TURN_BOUNDARY",
            Self::CutBeforeLastCut { .. } => "CUT_BEFORE_LAST_CUT",
            Self::RevisionMissing { .. } => "REVISION_MISSING",
            Self::IdempotencyConflict => "IDEMPOTENCY_CONFLICT",
            Self::EventIdTaken { .. } => "EVENT_ID_TAKEN",
            Self::EventIdConflict { .. } => "EVENT_ID_CONFLICT",
            Self::LatestMismatch { .. } => "LATEST_MISMATCH",
            Self::DifferentTrees { .. } => "DIFFERENT_TREES",
            Self::EngineOnly { .. } => "ENGINE_ONLY",
            Self::LimitReached { .. } => "LIMIT_REACHED",
            Self::OwnParent { .. } => "OWN_PARENT",
            Self::ParentIncomplete { .. } => "PARENT_INCOMPLETE",
            Self::SubContextNotRunning { .. } => "SUB_CONTEXT_NOT_RUNNING",
            Self::SubContextRunning { .. } => "SUB_CONTEXT_RUNNING",
        }
    }

    /// Returns the violated rule if the head `actual` does not match `expected`.
    #[must_use]
    pub fn head_mismatch(
        conversation: ConversationId,
        branch: BranchName,
        expected: ExpectedRevision,
        actual: Revision,
    ) -> Option<Self> {
        match expected {
            ExpectedRevision::Any => None,
            ExpectedRevision::NoStream => Some(Self::ConversationExists {
                conversation,
                head: actual,
            }),
            ExpectedRevision::Exact(expected) if expected == actual => None,
            ExpectedRevision::Exact(expected) => Some(Self::RevisionMismatch {
                branch,
                expected,
                actual,
            }),
        }
    }
}

/// The newest event with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestWithKey {
    /// Its id.
    pub id: EventId,
    /// Its conversation: a fork's history begins in another one.
    pub conversation: ConversationId,
    /// Its revision there.
    pub revision: Revision,
}

impl NewestWithKey {
    /// Returns true if `newest` meets the expectation.
    #[must_use]
    pub fn fits(newest: Option<&Self>, expected: ExpectedNewest) -> bool {
        match (newest, expected) {
            (None, ExpectedNewest::Absent) => true,
            (Some(newest), ExpectedNewest::Revision(revision)) => newest.revision == revision,
            (Some(newest), ExpectedNewest::Event(id)) => newest.id == id,
            (Some(_), ExpectedNewest::Absent)
            | (None, ExpectedNewest::Revision(_) | ExpectedNewest::Event(_)) => false,
        }
    }
}

fn newest(actual: Option<&NewestWithKey>) -> String {
    match actual {
        None => "none".to_owned(),
        Some(NewestWithKey {
            id,
            conversation,
            revision,
        }) => format!("revision {revision} of conversation {conversation} (event {id})"),
    }
}

fn for_call(call_id: &str) -> String {
    if call_id.is_empty() {
        return String::new();
    }
    format!(" for call {call_id:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are shown to people: a branch must appear by its name, not as Rust debug output.
    #[test]
    fn branches_are_named_in_messages() {
        let branch = BranchName::default;
        let (revision, state) = (Revision(2), "it has ended");
        for rule in [
            Rule::RevisionMismatch {
                branch: branch(),
                expected: Revision(1),
                actual: revision,
            },
            Rule::BranchArchived { branch: branch() },
            Rule::ArchivesActiveBranch { branch: branch() },
            Rule::BranchNameTaken { name: branch() },
            Rule::CallNotOpen {
                branch: branch(),
                call_id: "c".into(),
                state,
            },
            Rule::NotATurnBoundary {
                branch: branch(),
                revision,
            },
            Rule::SubContextNotRunning {
                branch: branch(),
                child: ConversationId::default(),
            },
        ] {
            let text = rule.to_string();
            assert!(text.contains("\"main\""), "{text}");
            assert!(!text.contains("BranchName"), "{text}");
        }
    }
}
