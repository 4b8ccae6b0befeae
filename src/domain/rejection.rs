//! Why a batch is rejected: one variant per rule.

use std::sync::Arc;

use super::{
    damage::Damage,
    event::{ExpectedNewest, ExpectedRevision},
    id::{BranchId, BranchName, ConversationId, EventId, Revision},
    kind::EventKind,
    state::ApprovalStatus,
};

/// The first violation of a rule by a batch. No event of the batch was appended.
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
    #[error("no conversation {conversation}; its first event must be conversation_created")]
    ConversationNotFound { conversation: ConversationId },
    #[error("conversation {conversation} already exists; its head is revision {head}")]
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
        "the head of branch {branch:?} is revision {actual}, not {expected}: read from there and \
         retry",
        branch = .branch.as_str()
    )]
    RevisionMismatch {
        branch: BranchName,
        expected: Revision,
        actual: Revision,
    },
    #[error("conversation {conversation} is sealed: fork it to continue")]
    Sealed { conversation: ConversationId },
    #[error(
        "conversation {conversation} is {damage} and accepts no events: fork it into a new \
         conversation at revision {} or earlier, restore a backup, or copy the intact data with \
         `treering salvage`",
        .damage.sound_to()
    )]
    ConversationDamaged {
        conversation: ConversationId,
        damage: Arc<Damage>,
    },
    #[error("branch {branch:?} is archived: fork it to continue", branch = .branch.as_str())]
    BranchArchived { branch: BranchName },
    #[error("branch {branch:?} is the active branch: activate another branch before you archive it", branch = .branch.as_str())]
    ArchivesActiveBranch { branch: BranchName },
    #[error("the conversation already has a branch named {name:?}", name = .name.as_str())]
    BranchNameTaken { name: BranchName },
    #[error(
        "cannot fork at revision {revision}: it is not in the history of branch {branch} of \
         conversation {conversation}"
    )]
    ForkPointMissing {
        conversation: ConversationId,
        branch: BranchId,
        revision: Revision,
    },
    #[error("call {call_id:?} is not open on branch {branch:?}: {state}", branch = .branch.as_str())]
    CallNotOpen {
        branch: BranchName,
        call_id: String,
        state: &'static str,
    },
    #[error("call {call_id:?} is already open on this branch since revision {since}: end it first")]
    CallAlreadyOpen { call_id: String, since: Revision },
    #[error("call {call_id:?} already has a decision: {status}")]
    CallAlreadyDecided {
        call_id: String,
        status: ApprovalStatus,
    },
    #[error("call {call_id:?} needs no approval")]
    ApprovalNotRequired { call_id: String },
    #[error("call {call_id:?} was already started")]
    CallAlreadyStarted { call_id: String },
    #[error("call {call_id:?} is {status}: it can neither start nor succeed")]
    CallNotApproved {
        call_id: String,
        status: ApprovalStatus,
    },
    #[error(
        "the approval of call {call_id:?} is for arguments with hash {approved}, but the call's \
         arguments have hash {actual}"
    )]
    ArgumentsChanged {
        call_id: String,
        approved: String,
        actual: String,
    },
    #[error("revision {revision} is not the last assistant message of the branch")]
    MessageMissing { revision: Revision },
    #[error(
        "cannot cut at revision {revision}: it is not the end of a turn of branch {branch:?}",
        branch = .branch.as_str()
    )]
    NotATurnBoundary {
        branch: BranchName,
        revision: Revision,
    },
    #[error("revision {cut} is already compacted: the last cut is at revision {last_cut}")]
    CutBeforeLastCut { cut: Revision, last_cut: Revision },
    #[error("revision {revision} is not in the conversation; its head is revision {head}")]
    RevisionMissing { revision: Revision, head: Revision },
    #[error("the idempotency key was already used for other content")]
    IdempotencyConflict,
    #[error(
        "event id {id} is taken by revision {revision} of conversation {conversation}: use another \
         id, or set skip_known to skip existing events"
    )]
    EventIdTaken {
        id: EventId,
        conversation: ConversationId,
        revision: Revision,
    },
    #[error(
        "event id {id} exists with other content, as revision {revision} of conversation \
         {conversation}"
    )]
    EventIdConflict {
        id: EventId,
        conversation: ConversationId,
        revision: Revision,
    },
    #[error(
        "expected_keys[{index}]: the newest event with that key is {}, not {expected}: read it and \
         retry",
        newest(.actual.as_ref())
    )]
    LatestMismatch {
        index: usize,
        expected: ExpectedNewest,
        actual: Option<NewestWithKey>,
    },
    #[error("the batch appends to unrelated conversations ({first} and {second})")]
    DifferentTrees {
        first: ConversationId,
        second: ConversationId,
    },
    #[error("events of kind {kind} are created by the server and cannot be appended")]
    EngineOnly { kind: EventKind },
    #[error("{what} would be {actual}; the maximum is {max} (limits.{limit})")]
    LimitReached {
        what: &'static str,
        actual: usize,
        max: usize,
        limit: &'static str,
    },
    #[error("conversation {conversation} names itself as its parent")]
    OwnParent { conversation: ConversationId },
    #[error(
        "sub-context {child} is not running on branch {branch:?}: it was not spawned there, or has \
         returned",
        branch = .branch.as_str()
    )]
    SubContextNotRunning {
        branch: BranchName,
        child: ConversationId,
    },
    #[error(
        "sub-context {child} is already running on this branch{}: wait until it has returned", for_call(.call_id)
    )]
    SubContextRunning {
        child: ConversationId,
        call_id: String,
    },
    #[error("the parent is incomplete: {what}")]
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
    /// Its conversation. For a fork, the event may be in an inherited part of the history, which
    /// belongs to another conversation.
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
    fn rejection_messages_show_branch_names() {
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
