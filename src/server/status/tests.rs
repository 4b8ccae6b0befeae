//! Every error has a code that its reader can act on, and its facts.

use super::*;
use treering_domain::{
    ApprovalStatus, BranchId, BranchName, Cause, ConversationId, EventId, EventKind,
    ExpectedNewest, NewestWithKey, Position, Revision, Rule,
};
use treering_log::LogError;

const FACTS_MAX: usize = 4;

fn rules() -> Vec<(Rule, Code)> {
    let conversation = ConversationId::generate();
    let branch = BranchName::default();
    let call_id = || "call_1".to_owned();
    let revision = Revision(7);
    let head = Revision(9);
    let status = ApprovalStatus::Denied;
    let limit = "branches_max";
    vec![
        (Rule::EmptyBatch, Code::InvalidArgument),
        (Rule::ConversationNotFound { conversation }, Code::NotFound),
        (
            Rule::ConversationExists { conversation, head },
            Code::AlreadyExists,
        ),
        (
            Rule::BranchNotFound {
                conversation,
                branch: "b".into(),
            },
            Code::NotFound,
        ),
        (
            Rule::RevisionMismatch {
                branch: branch.clone(),
                expected: revision,
                actual: head,
            },
            Code::Aborted,
        ),
        (Rule::Sealed { conversation }, Code::FailedPrecondition),
        (
            Rule::BranchArchived {
                branch: branch.clone(),
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::ArchivesActiveBranch {
                branch: branch.clone(),
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::BranchNameTaken {
                name: branch.clone(),
            },
            Code::AlreadyExists,
        ),
        (
            Rule::ForkPointMissing {
                conversation,
                branch: BranchId::MAIN,
                revision,
            },
            Code::NotFound,
        ),
        (
            Rule::CallNotOpen {
                branch: branch.clone(),
                call_id: call_id(),
                state: "it has ended",
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::CallAlreadyOpen {
                call_id: call_id(),
                since: revision,
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::CallAlreadyDecided {
                call_id: call_id(),
                status,
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::ApprovalNotRequired { call_id: call_id() },
            Code::FailedPrecondition,
        ),
        (
            Rule::CallAlreadyStarted { call_id: call_id() },
            Code::FailedPrecondition,
        ),
        (
            Rule::CallNotApproved {
                call_id: call_id(),
                status,
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::ArgumentsChanged {
                call_id: call_id(),
                approved: "aa".into(),
                actual: "bb".into(),
            },
            Code::FailedPrecondition,
        ),
        (Rule::MessageMissing { revision }, Code::FailedPrecondition),
        (
            Rule::NotATurnBoundary {
                branch: branch.clone(),
                revision,
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::CutBeforeLastCut {
                cut: revision,
                last_cut: head,
            },
            Code::FailedPrecondition,
        ),
        (Rule::RevisionMissing { revision, head }, Code::NotFound),
        (Rule::IdempotencyConflict, Code::AlreadyExists),
        (
            Rule::EventIdTaken {
                id: EventId::default(),
                conversation,
                revision,
            },
            Code::AlreadyExists,
        ),
        (
            Rule::EventIdConflict {
                id: EventId::default(),
                conversation,
                revision,
            },
            Code::AlreadyExists,
        ),
        (
            Rule::LatestMismatch {
                index: 0,
                expected: ExpectedNewest::Absent,
                actual: Some(NewestWithKey {
                    id: EventId::default(),
                    conversation,
                    revision,
                }),
            },
            Code::Aborted,
        ),
        (
            Rule::DifferentTrees {
                first: conversation,
                second: conversation,
            },
            Code::InvalidArgument,
        ),
        (
            Rule::EngineOnly {
                kind: EventKind::ContentErased,
            },
            Code::InvalidArgument,
        ),
        (
            Rule::LimitReached {
                what: "branches",
                actual: 3,
                max: 2,
                limit,
            },
            Code::ResourceExhausted,
        ),
        (Rule::OwnParent { conversation }, Code::InvalidArgument),
        (
            Rule::ParentIncomplete { what: "revision" },
            Code::InvalidArgument,
        ),
        (
            Rule::SubContextNotRunning {
                branch: BranchName::default(),
                child: conversation,
            },
            Code::FailedPrecondition,
        ),
        (
            Rule::SubContextRunning {
                child: conversation,
                call_id: call_id(),
            },
            Code::FailedPrecondition,
        ),
    ]
}

fn status_of(error: AppendError) -> Status {
    Refusal::from(error).into()
}

// Programs act on code and reason: each rule must have its own, with the details that the code
// promises, and name the event in the batch.
#[test]
fn every_rule_has_a_code_reason_and_details() {
    let mut reasons = std::collections::BTreeSet::new();
    for (rule, code) in rules() {
        assert!(reasons.insert(rule.name()), "{rule:?} is here twice");
        let status = status_of(Rejection::event(3, rule.clone()).into());
        assert_eq!(status.code(), code, "{rule:?}");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(
            (info.reason.as_str(), &*info.domain),
            (rule.name(), "treering")
        );
        assert_eq!(info.metadata["event_index"], "3");
        assert!(info.metadata.len() <= FACTS_MAX, "{info:?}");
        let expected = match code {
            Code::InvalidArgument => details.bad_request().is_some(),
            Code::NotFound | Code::AlreadyExists => details.resource_info().is_some(),
            Code::Aborted | Code::FailedPrecondition => details.precondition_failure().is_some(),
            _ => details.retry_info().is_none(),
        };
        assert!(expected, "{rule:?}: {details:?}");
        assert!(status.message().contains("event 3"), "{status:?}");
    }
    // The table above must grow with the rules.
    assert_eq!(reasons.len(), RULES);
}

/// The number of rules.
const RULES: usize = 32;

// A client that lost a race needs both revisions to continue.
#[test]
fn revision_mismatch_reports_both_revisions() {
    let rule = Rule::RevisionMismatch {
        branch: BranchName::default(),
        expected: Revision(4),
        actual: Revision(6),
    };
    let status = status_of(Rejection::batch(rule).into());
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!(info.metadata["expected"], "4");
    assert_eq!(info.metadata["actual"], "6");
    let violation = &details.precondition_failure().unwrap().violations[0];
    assert_eq!(violation.subject, "branch/main");
    assert_eq!(violation.r#type, "REVISION_MISMATCH");
}

// An error in a stream must equal the unary one.
#[test]
fn stream_errors_equal_the_statuses() {
    for (rule, code) in rules() {
        let rejection = Rejection::event(0, rule.clone());
        let error = pb::AppendError::from(Refusal::from(rejection));
        assert_eq!(error.code, i32::from(code));
        assert_eq!(error.reason, rule.name());
        assert_eq!(error.metadata["event_index"], "0");
    }
    let busy = AppendError::Busy { retry_after_ms: 40 };
    let error = pb::AppendError::from(Refusal::from(busy));
    assert_eq!(error.metadata["retry_after_ms"], "40");
}

fn message() -> String {
    "it broke".to_owned()
}

// For failures without a rule, the code tells whether to wait, read again or call for help.
#[test]
fn append_failures_map_to_status_codes() {
    let damaged = ReadError::Damaged {
        position: Position::local(5),
        message: message(),
    };
    let too_large = AppendError::TooLarge {
        what: "the batch",
        actual: 9,
        max: 8,
        limit: "batch_events_max",
    };
    for (error, code, reason) in [
        (
            AppendError::Invalid {
                event_index: 2,
                message: message(),
            },
            Code::InvalidArgument,
            "INVALID_EVENT",
        ),
        (too_large, Code::InvalidArgument, "TOO_LARGE"),
        (AppendError::NoSpace, Code::ResourceExhausted, "NO_SPACE"),
        (AppendError::ReadOnly, Code::FailedPrecondition, "READ_ONLY"),
        (
            AppendError::UnknownOutcome { message: message() },
            Code::Unknown,
            "UNKNOWN_OUTCOME",
        ),
        (
            AppendError::Stopped { message: message() },
            Code::FailedPrecondition,
            "APPENDS_STOPPED",
        ),
        (
            AppendError::Storage {
                source: Cause::of(message()),
            },
            Code::Internal,
            "STORAGE",
        ),
        (AppendError::Read(damaged), Code::DataLoss, "DAMAGED"),
        (AppendError::Closing, Code::Unavailable, "CLOSING"),
    ] {
        let status = status_of(error);
        assert_eq!(status.code(), code, "{reason}");
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().reason, reason);
    }
    let busy = status_of(AppendError::Busy { retry_after_ms: 25 });
    assert_eq!(busy.code(), Code::ResourceExhausted);
    let details = busy.get_error_details();
    let retry = details.retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(retry.as_millis(), 25);
}

// A client must get one clear answer, and must not be told to resend a batch that may be stored.
// Otherwise it appends twice, or gives up on stored events.
#[test]
fn append_failure_says_whether_the_batch_was_stored() {
    let unready = AppendError::Unready {
        message: message(),
        retry_after_ms: 70,
    };
    for (error, code, retries, nothing) in [
        (
            AppendError::UnknownOutcome { message: message() },
            Code::Unknown,
            false,
            false,
        ),
        (unready, Code::Unavailable, true, true),
        (
            AppendError::Stopped { message: message() },
            Code::FailedPrecondition,
            false,
            true,
        ),
        (AppendError::NoSpace, Code::ResourceExhausted, false, true),
        (AppendError::ReadOnly, Code::FailedPrecondition, false, true),
        (
            AppendError::Storage {
                source: Cause::of(message()),
            },
            Code::Internal,
            false,
            true,
        ),
        (AppendError::Closing, Code::Unavailable, false, true),
    ] {
        let status = status_of(error);
        assert_eq!(status.code(), code, "{status:?}");
        let text = status.message();
        assert_eq!(text.contains("nothing was appended"), nothing, "{text}");
        assert_eq!(text.contains("unknown whether"), !nothing, "{text}");
        assert_eq!(text.contains("idempotency key"), !nothing, "{text}");
        let details = status.get_error_details();
        assert_eq!(details.retry_info().is_some(), retries, "{text}");
    }
}

// A read that finds nothing must never look like one that finds damage.
#[test]
fn read_and_search_failures_map_to_status_codes() {
    let conversation = ConversationId::generate();
    let branch = || "b".to_owned();
    for (error, code) in [
        (
            ReadError::ConversationNotFound { id: branch() },
            Code::NotFound,
        ),
        (
            ReadError::AmbiguousSourceId {
                id: branch(),
                count: 2,
            },
            Code::FailedPrecondition,
        ),
        (
            ReadError::BranchNotFound {
                conversation,
                branch: branch(),
            },
            Code::NotFound,
        ),
        (
            ReadError::RevisionNotFound {
                branch: branch(),
                revision: Revision(3),
                head: Revision(2),
            },
            Code::NotFound,
        ),
        (
            ReadError::CallNotFound {
                branch: branch(),
                call_id: "c".into(),
                state: "with a result",
            },
            Code::NotFound,
        ),
        (
            ReadError::Invalid { message: message() },
            Code::InvalidArgument,
        ),
        (
            ReadError::Damaged {
                position: Position::local(1),
                message: message(),
            },
            Code::DataLoss,
        ),
        (
            ReadError::NewerFormat(LogError::NewerFormat {
                offset: 1,
                version: 2,
                supported: 1,
            }),
            Code::FailedPrecondition,
        ),
        (
            ReadError::ViewsDamaged { message: message() },
            Code::Unavailable,
        ),
        (ReadError::storage(message()), Code::Internal),
    ] {
        assert_eq!(
            Status::from(Refusal::from(error.clone())).code(),
            code,
            "{error:?}"
        );
        let search = SearchError::Read(error);
        assert_eq!(Status::from(Refusal::from(search)).code(), code);
    }
    for (error, code) in [
        (
            SearchError::Query { message: message() },
            Code::InvalidArgument,
        ),
        (SearchError::EmptyQuery, Code::InvalidArgument),
        (SearchError::NoEmbedder, Code::FailedPrecondition),
        (
            SearchError::Embedder { message: message() },
            Code::Unavailable,
        ),
        (
            SearchError::IndexDamaged { message: message() },
            Code::Unavailable,
        ),
        (
            SearchError::Index {
                source: Cause::of(message()),
            },
            Code::Internal,
        ),
    ] {
        assert_eq!(Status::from(Refusal::from(error)).code(), code);
    }
}

// A client must learn whether to change the call, the stored policy or the history, or to report a
// fault.
#[test]
fn request_failures_map_to_status_codes() {
    let policy = |whose| {
        ContextError::Policy(PolicyError {
            whose,
            message: message(),
        })
    };
    let provider = treering_context::Provider::Gemini;
    for (error, code, reason) in [
        (policy("call's"), Code::InvalidArgument, "POLICY"),
        (
            policy("conversation's"),
            Code::FailedPrecondition,
            "CONVERSATION_POLICY",
        ),
        (
            ContextError::Render(RenderError::Unsupported {
                provider,
                medium: "audio/wav".into(),
                why: message(),
            }),
            Code::FailedPrecondition,
            "UNSUPPORTED_MEDIUM",
        ),
        (
            ContextError::Render(RenderError::Illegal {
                provider,
                message: message(),
            }),
            Code::Internal,
            "ILLEGAL_REQUEST",
        ),
        (
            ContextError::Render(RenderError::Json {
                provider,
                message: message(),
            }),
            Code::Internal,
            "NOT_JSON",
        ),
        (
            ContextError::Invalid { message: message() },
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
        (
            ContextError::Append(AppendError::NoSpace),
            Code::ResourceExhausted,
            "NO_SPACE",
        ),
        (
            ContextError::Read(ReadError::storage(message())),
            Code::Internal,
            "STORAGE",
        ),
    ] {
        let status = Status::from(Refusal::from(error));
        assert_eq!(status.code(), code, "{reason}");
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().reason, reason);
        let fields = details.bad_request().map(|bad| &bad.field_violations);
        let named = fields.is_some_and(|fields| !fields.is_empty());
        assert_eq!(named, code == Code::InvalidArgument, "{reason}");
    }
}

// Programs act on reasons. A late answer of the server and an invalid stored policy must each have
// their own.
#[test]
fn late_answers_and_stored_policies_have_reasons() {
    let late = SearchTimeout {
        stage: treering_engine::SearchStage::Run,
        waited: Duration::from_secs(30),
    };
    let policy = treering_digest::knowledge::KnowledgePolicy::merged("[]").unwrap_err();
    let refused = [
        (Refusal::from(late), Code::DeadlineExceeded, "SEARCH_LATE"),
        (
            BuildTimeout::Build.into(),
            Code::DeadlineExceeded,
            "BUILD_LATE",
        ),
        (
            ReadError::KnowledgePolicy(policy).into(),
            Code::FailedPrecondition,
            "CONVERSATION_POLICY",
        ),
    ];
    for (refusal, code, reason) in refused {
        assert_eq!((refusal.code, refusal.reason), (code, reason));
    }
}

// Errors travel in headers, which clients limit to some KiB: a long name must not make the error
// unreadable.
#[test]
fn long_error_texts_are_cut_at_a_character() {
    let id = "ü".repeat(100_000);
    let status = Status::from(Refusal::from(ReadError::ConversationNotFound { id }));
    assert!(status.message().len() <= ERROR_TEXT_BYTES_MAX + 3);
    assert!(status.message().ends_with('…'));
    assert!(status.details().len() < 6 * ERROR_TEXT_BYTES_MAX);
}
