//! Converts broken append rules to status codes and facts.

use tonic::Code;

use super::Refusal;
use treering_domain::{ConversationId, ExpectedNewest, NewestWithKey, Rejection, Rule};

/// Returns a broken rule as clients see it.
pub(super) fn refusal(rule: &Rule, rejection: &Rejection) -> Refusal {
    let mut refusal = Refusal::new(code(rule), rule.name(), rejection);
    for (name, value) in facts(rule) {
        refusal = refusal.fact(name, value);
    }
    refusal
}

fn code(rule: &Rule) -> Code {
    match rule {
        Rule::EmptyBatch
        | Rule::DifferentTrees { .. }
        | Rule::EngineOnly { .. }
        | Rule::OwnParent { .. }
        | Rule::ParentIncomplete { .. } => Code::InvalidArgument,
        Rule::ConversationNotFound { .. }
        | Rule::BranchNotFound { .. }
        | Rule::ForkPointMissing { .. }
        | Rule::RevisionMissing { .. } => Code::NotFound,
        Rule::ConversationExists { .. }
        | Rule::BranchNameTaken { .. }
        | Rule::EventIdTaken { .. }
        | Rule::EventIdConflict { .. }
        | Rule::IdempotencyConflict => Code::AlreadyExists,
        // Another writer was first: gRPC reserves ABORTED for that.
        Rule::RevisionMismatch { .. } | Rule::LatestMismatch { .. } => Code::Aborted,
        Rule::Sealed { .. }
        | Rule::BranchArchived { .. }
        | Rule::ArchivesActiveBranch { .. }
        | Rule::CallNotOpen { .. }
        | Rule::CallAlreadyOpen { .. }
        | Rule::CallAlreadyDecided { .. }
        | Rule::ApprovalNotRequired { .. }
        | Rule::CallAlreadyStarted { .. }
        | Rule::CallNotApproved { .. }
        | Rule::ArgumentsChanged { .. }
        | Rule::MessageMissing { .. }
        | Rule::NotATurnBoundary { .. }
        | Rule::SubContextNotRunning { .. }
        | Rule::SubContextRunning { .. }
        | Rule::CutBeforeLastCut { .. } => Code::FailedPrecondition,
        Rule::LimitReached { .. } => Code::ResourceExhausted,
        Rule::ConversationDamaged { .. } => Code::DataLoss,
    }
}

/// Returns the facts, without the key itself, which may name a person.
fn latest_mismatch(expected: ExpectedNewest, actual: Option<&NewestWithKey>) -> Facts {
    let there = actual.map_or_else(|| "none".to_owned(), |at| at.revision.to_string());
    let mut facts = vec![("expected", expected.to_string()), ("actual", there)];
    if let Some(actual) = actual {
        facts.push(("event_id", actual.id.to_string()));
    }
    facts
}

type Facts = Vec<(&'static str, String)>;

fn facts(rule: &Rule) -> Facts {
    let conversation = |id: &ConversationId| ("conversation", id.to_string());
    let call = |id: &String| ("call_id", id.clone());
    match rule {
        Rule::EmptyBatch => vec![],
        Rule::IdempotencyConflict => vec![("idempotency_key", "used before".into())],
        Rule::ConversationNotFound { conversation: id }
        | Rule::Sealed { conversation: id }
        | Rule::OwnParent { conversation: id } => vec![conversation(id)],
        Rule::ConversationExists {
            conversation: id,
            head,
        } => vec![conversation(id), ("actual", head.to_string())],
        Rule::ConversationDamaged {
            conversation: id,
            damage,
        } => vec![
            conversation(id),
            ("revision", damage.revision.to_string()),
            ("position", damage.position.to_string()),
        ],
        Rule::BranchNotFound {
            conversation: id,
            branch,
        } => vec![("branch", branch.clone()), conversation(id)],
        Rule::RevisionMismatch {
            branch,
            expected,
            actual,
        } => vec![
            ("branch", branch.to_string()),
            ("expected", expected.to_string()),
            ("actual", actual.to_string()),
        ],
        Rule::EventIdTaken {
            id,
            conversation: of,
            revision,
        }
        | Rule::EventIdConflict {
            id,
            conversation: of,
            revision,
        } => vec![
            ("event_id", id.to_string()),
            conversation(of),
            ("revision", revision.to_string()),
        ],
        Rule::LatestMismatch {
            expected, actual, ..
        } => latest_mismatch(*expected, actual.as_ref()),
        Rule::BranchArchived { branch } | Rule::ArchivesActiveBranch { branch } => {
            vec![("branch", branch.to_string())]
        }
        Rule::BranchNameTaken { name } => vec![("branch", name.to_string())],
        Rule::ForkPointMissing {
            conversation: id,
            branch,
            revision,
        } => vec![
            ("revision", revision.to_string()),
            ("branch_id", branch.to_string()),
            conversation(id),
        ],
        Rule::MessageMissing { revision } => vec![("revision", revision.to_string())],
        Rule::NotATurnBoundary { branch, revision } => vec![
            ("revision", revision.to_string()),
            ("branch", branch.to_string()),
        ],
        Rule::CutBeforeLastCut { cut, last_cut } => vec![
            ("revision", cut.to_string()),
            ("last_cut", last_cut.to_string()),
        ],
        Rule::SubContextNotRunning { branch, child } => {
            vec![("child", child.to_string()), ("branch", branch.to_string())]
        }
        Rule::SubContextRunning { child, call_id } => {
            vec![("child", child.to_string()), call(call_id)]
        }
        Rule::RevisionMissing { revision, head } => vec![
            ("revision", revision.to_string()),
            ("head", head.to_string()),
        ],
        Rule::DifferentTrees { first, second } => {
            vec![conversation(first), ("other", second.to_string())]
        }
        Rule::EngineOnly { kind } => vec![("kind", kind.to_string())],
        Rule::LimitReached {
            actual, max, limit, ..
        } => vec![
            ("limit", (*limit).to_owned()),
            ("actual", actual.to_string()),
            ("max", max.to_string()),
        ],
        Rule::ParentIncomplete { what } => vec![("missing", (*what).to_owned())],
        Rule::CallNotOpen {
            branch, call_id, ..
        } => vec![call(call_id), ("branch", branch.to_string())],
        Rule::CallAlreadyOpen { call_id, since } => {
            vec![call(call_id), ("since", since.to_string())]
        }
        Rule::CallAlreadyDecided { call_id, status }
        | Rule::CallNotApproved { call_id, status } => {
            vec![call(call_id), ("actual", format!("{status:?}"))]
        }
        Rule::ApprovalNotRequired { call_id } | Rule::CallAlreadyStarted { call_id } => {
            vec![call(call_id)]
        }
        Rule::ArgumentsChanged {
            call_id,
            approved,
            actual,
        } => vec![
            call(call_id),
            ("expected", approved.clone()),
            ("actual", actual.clone()),
        ],
    }
}
