//! Converts errors to gRPC statuses. No other place chooses codes.
//!
//! No match on an error has a wildcard arm, so that a new error does not get a code by accident.
//! Errors contain no payload text, so statuses contain none either.
//!
//! | code | means |
//! |---|---|
//! | `INVALID_ARGUMENT` | the request itself is wrong; `BadRequest` names the field |
//! | `NOT_FOUND`, `ALREADY_EXISTS` | `ResourceInfo` names the resource |
//! | `ABORTED` | another writer was first: read and try again |
//! | `FAILED_PRECONDITION` | the state forbids it until someone changes it |
//! | `RESOURCE_EXHAUSTED` | a limit of the store; with `RetryInfo` when waiting helps |
//! | `UNAVAILABLE` | the server cannot answer now, often with `RetryInfo`; nothing was appended |
//! | `DEADLINE_EXCEEDED` | a search or the build of a context took too long |
//! | `OUT_OF_RANGE` | a range starts after the end of a text |
//! | `UNIMPLEMENTED` | the method is unknown |
//! | `UNKNOWN` | it is not known whether the batch was stored: repeat it with its idempotency key, or read the branch |
//! | `UNAUTHENTICATED` | no key, or an invalid one |
//! | `PERMISSION_DENIED` | a valid key without the permission |
//! | `DATA_LOSS` | stored data is damaged |
//! | `INTERNAL` | the store failed; nothing was appended |
//!
//! Requests that are not valid protobuf are answered by the transport: `INTERNAL`, and
//! `OUT_OF_RANGE` for messages over the size limit.

mod rule;
mod shard;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    bounds::ERROR_TEXT_BYTES_MAX, context::BuildTimeout, from_proto::InvalidField, guard::Denied,
};
use treering_access::{KeyRefusal, KeyRole, TokenError};
use treering_context::{
    RenderError,
    policy::{CONTEXT_POLICY, PolicyError},
};
use treering_digest::knowledge::KNOWLEDGE_POLICY;
use treering_domain::{
    Rejection,
    limits::{INDEX_RETRY, VIEWS_RETRY},
    with_causes,
};
use treering_engine::{
    AppendError, ContextError, EraseError, ReadError, SearchError, SearchTimeout, items::ItemsError,
};
use treering_proto::pb;

pub(crate) use shard::NOT_OWNER;

/// The value of [`PolicyError::whose`] for a conversation's policy.
const CONVERSATIONS: &str = "conversation's";

/// The reason of a name that no conversation has.
pub(crate) const CONVERSATION_NOT_FOUND: &str = "CONVERSATION_NOT_FOUND";

/// The `ErrorInfo.domain` of every error.
pub(crate) const ERROR_DOMAIN: &str = "treering";

/// An error as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(crate) code: Code,
    /// Stable, for programs.
    pub(crate) reason: &'static str,
    /// For people.
    pub(crate) message: String,
    /// Details such as expected and actual values. The first one names the subject.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// The request field that is wrong.
    pub(crate) field: Option<String>,
    /// How long to wait before a retry, if retrying helps.
    pub(crate) retry: Option<Duration>,
}

impl Refusal {
    fn new(code: Code, reason: &'static str, message: impl ToString) -> Self {
        Self {
            code,
            reason,
            message: shortened(message.to_string()),
            facts: Vec::new(),
            field: None,
            retry: None,
        }
    }

    fn fact(mut self, name: &'static str, value: impl ToString) -> Self {
        self.facts.push((name, shortened(value.to_string())));
        self
    }

    fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Returns an error for a request that can and should be sent again.
    pub(crate) fn unable(message: &str) -> Self {
        Self::new(Code::Unavailable, "NOT_READY", message)
    }

    /// Returns an error for a range that starts after the end of a text of this size.
    pub(crate) fn range_after_end(bytes: usize) -> Self {
        let message =
            format!("the range starts after the end of the result, which has {bytes} bytes");
        Self::new(Code::OutOfRange, "RANGE_AFTER_END", message).fact("bytes", bytes)
    }

    /// Returns an error for a key that has exceeded a rate limit.
    pub(crate) fn too_fast(key: &str, what: &'static str, wait: Duration) -> Self {
        let message = format!(
            "key {key} exceeds its limit of {what} per second: retry in {:.1} s",
            wait.as_secs_f32().max(0.1)
        );
        let refusal = Self::new(Code::ResourceExhausted, "RATE_LIMITED", message);
        Self {
            retry: Some(wait),
            ..refusal.fact("key", key).fact("limit", what)
        }
    }

    fn details(&self) -> ErrorDetails {
        let facts: HashMap<_, _> = self
            .facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let mut details = ErrorDetails::with_error_info(self.reason, ERROR_DOMAIN, facts);
        let (kind, name) = self.facts.first().cloned().unwrap_or(("", String::new()));
        match self.code {
            Code::FailedPrecondition | Code::Aborted => {
                details.add_precondition_failure_violation(
                    self.reason,
                    format!("{kind}/{name}"),
                    self.message.as_str(),
                );
            }
            Code::NotFound | Code::AlreadyExists => {
                details.set_resource_info(kind, name, "", self.message.as_str());
            }
            _ => {}
        }
        if let Some(field) = &self.field {
            details.add_bad_request_violation(field.as_str(), self.message.as_str());
        }
        if let Some(retry) = self.retry {
            details.set_retry_info(Some(retry));
        }
        details
    }
}

/// Cuts a text to its limit, since errors travel in headers.
fn shortened(mut text: String) -> String {
    if text.len() > ERROR_TEXT_BYTES_MAX {
        let boundary = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=ERROR_TEXT_BYTES_MAX).rev().find(boundary);
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        if matches!(
            refusal.code,
            Code::Internal | Code::DataLoss | Code::Unknown
        ) {
            tracing::error!(reason = refusal.reason, message = refusal.message, "failed");
        } else {
            tracing::debug!(reason = refusal.reason, code = ?refusal.code, "refused");
        }
        let details = refusal.details();
        Self::with_error_details(refusal.code, refusal.message, details)
    }
}

impl From<Refusal> for pb::AppendError {
    fn from(refusal: Refusal) -> Self {
        let mut metadata: BTreeMap<_, _> = refusal
            .facts
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        metadata.extend(refusal.field.map(|field| ("field".to_owned(), field)));
        metadata.extend(
            refusal
                .retry
                .map(|retry| ("retry_after_ms".to_owned(), retry.as_millis().to_string())),
        );
        Self {
            code: refusal.code.into(),
            message: refusal.message,
            reason: refusal.reason.to_owned(),
            metadata,
        }
    }
}

impl From<InvalidField> for Refusal {
    fn from(fault: InvalidField) -> Self {
        let refusal = Self::new(Code::InvalidArgument, "MALFORMED", &fault);
        let refusal = match fault.event_index {
            Some(index) => refusal.fact("event_index", index),
            None => refusal,
        };
        refusal.fact("field", &fault.field).field(fault.field)
    }
}

impl From<KeyRefusal> for Refusal {
    fn from(refusal: KeyRefusal) -> Self {
        let of = |code, reason| Self::new(code, reason, &refusal);
        match &refusal {
            KeyRefusal::Missing => of(Code::Unauthenticated, "KEY_MISSING"),
            KeyRefusal::Malformed(TokenError::NotAKey | TokenError::Mistyped) => {
                of(Code::Unauthenticated, "KEY_MALFORMED")
            }
            KeyRefusal::SubjectUnknown(subject) => {
                of(Code::Unauthenticated, "CERTIFICATE_UNKNOWN").fact("subject", subject)
            }
            KeyRefusal::SubjectMissing => of(Code::Unauthenticated, "CERTIFICATE_UNKNOWN"),
            KeyRefusal::Unknown => of(Code::Unauthenticated, "KEY_UNKNOWN"),
            KeyRefusal::Revoked(name) => of(Code::Unauthenticated, "KEY_REVOKED").fact("key", name),
            KeyRefusal::Expired(name) => of(Code::Unauthenticated, "KEY_EXPIRED").fact("key", name),
        }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        let of = |code, reason| Self::new(code, reason, &denied);
        match &denied {
            Denied::Role {
                key,
                role,
                namespace,
            } => of(Code::PermissionDenied, "ROLE_MISSING")
                .fact("key", key)
                .fact("role", role)
                .fact("namespace", namespace),
            Denied::Store { key } => of(Code::PermissionDenied, "ROLE_MISSING")
                .fact("key", key)
                .fact("role", KeyRole::Admin)
                .fact("namespace", "*"),
            Denied::Reserved { namespace } => {
                of(Code::PermissionDenied, "RESERVED_NAMESPACE").fact("namespace", namespace)
            }
            Denied::UnknownMethod => of(Code::Unimplemented, "UNKNOWN_METHOD"),
        }
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        let mut refusal = rule::refusal(&rejection.rule, &rejection);
        let place = rejection
            .event_index
            .map(|index| format!("events[{index}]"));
        if refusal.code == Code::InvalidArgument {
            refusal.field = Some(place.unwrap_or_else(|| "events".to_owned()));
        }
        match rejection.event_index {
            Some(index) => refusal.fact("event_index", index),
            None => refusal,
        }
    }
}

impl From<AppendError> for Refusal {
    fn from(error: AppendError) -> Self {
        let of = |code, reason| Self::new(code, reason, with_causes(&error));
        match &error {
            AppendError::Rejected(rejection) => rejection.clone().into(),
            AppendError::Invalid { event_index, .. } => of(Code::InvalidArgument, "INVALID_EVENT")
                .fact("event_index", event_index)
                .field(format!("events[{event_index}]")),
            AppendError::TooLarge {
                actual, max, limit, ..
            } => of(Code::InvalidArgument, "TOO_LARGE")
                .fact("limit", limit)
                .fact("actual", actual)
                .fact("max", max)
                .field("events"),
            AppendError::Busy { retry_after_ms } => {
                let mut refusal = of(Code::ResourceExhausted, "BUSY");
                refusal.retry = Some(Duration::from_millis(*retry_after_ms));
                refusal
            }
            // No RetryInfo: waiting does not help.
            AppendError::OverQuota { namespace, passed } => {
                of(Code::ResourceExhausted, "QUOTA_EXCEEDED")
                    .fact("namespace", namespace)
                    .fact("limit", passed.part)
                    .fact("used", passed.used)
                    .fact("adds", passed.adds)
                    .fact("quota", passed.quota)
            }
            AppendError::NoSpace => of(Code::ResourceExhausted, "NO_SPACE"),
            AppendError::ReadOnly => of(Code::FailedPrecondition, "READ_ONLY"),
            // No RetryInfo: sending it again without a key may append it twice.
            AppendError::UnknownOutcome { .. } => of(Code::Unknown, "UNKNOWN_OUTCOME"),
            AppendError::Unready { retry_after_ms, .. } => {
                let mut refusal = of(Code::Unavailable, "NOT_READY");
                refusal.retry = Some(Duration::from_millis(*retry_after_ms));
                refusal
            }
            AppendError::Stopped { .. } => of(Code::FailedPrecondition, "APPENDS_STOPPED"),
            AppendError::Storage { .. } => of(Code::Internal, "STORAGE"),
            AppendError::Read(error) => error.clone().into(),
            AppendError::Closing => of(Code::Unavailable, "CLOSING"),
        }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        let of = |code, reason| Self::new(code, reason, with_causes(&error));
        match &error {
            ReadError::ConversationNotFound { id } => {
                of(Code::NotFound, CONVERSATION_NOT_FOUND).fact("conversation", id)
            }
            ReadError::AmbiguousSourceId { id, count } => {
                of(Code::FailedPrecondition, "AMBIGUOUS_SOURCE_ID")
                    .fact("source_id", id)
                    .fact("count", count)
            }
            ReadError::BranchNotFound {
                conversation,
                branch,
            } => of(Code::NotFound, "BRANCH_NOT_FOUND")
                .fact("branch", branch)
                .fact("conversation", conversation),
            ReadError::RevisionNotFound {
                branch,
                revision,
                head,
            } => of(Code::NotFound, "REVISION_NOT_FOUND")
                .fact("revision", revision)
                .fact("branch", branch)
                .fact("head", head),
            ReadError::CallNotFound {
                branch, call_id, ..
            } => of(Code::NotFound, "CALL_NOT_FOUND")
                .fact("call_id", call_id)
                .fact("branch", branch),
            ReadError::Invalid { .. } => {
                of(Code::InvalidArgument, "INVALID_REQUEST").field("request")
            }
            ReadError::KnowledgePolicy(_) => {
                of(Code::FailedPrecondition, "CONVERSATION_POLICY").fact("policy", KNOWLEDGE_POLICY)
            }
            // Only reads with a filter return this, in their last message.
            ReadError::ScanBound { .. } => {
                of(Code::InvalidArgument, "INVALID_REQUEST").field("filter")
            }
            ReadError::Damaged { position, .. } => {
                of(Code::DataLoss, "DAMAGED").fact("position", position)
            }
            ReadError::NewerFormat { .. } => of(Code::FailedPrecondition, "NEWER_FORMAT"),
            ReadError::ConversationDamaged {
                conversation,
                damage,
            } => of(Code::DataLoss, "CONVERSATION_DAMAGED")
                .fact("conversation", conversation)
                .fact("revision", damage.revision)
                .fact("position", damage.position),
            ReadError::RebuildRuns => of(Code::FailedPrecondition, "REBUILD_RUNS"),
            ReadError::Busy { retry_after_ms, .. } => {
                let mut refusal = of(Code::ResourceExhausted, "BUSY");
                refusal.retry = Some(Duration::from_millis(*retry_after_ms));
                refusal
            }
            ReadError::Stopped => of(Code::Unavailable, "CLOSING"),
            ReadError::ViewsDamaged { .. } => {
                let mut refusal = of(Code::Unavailable, "VIEWS_DAMAGED");
                refusal.retry = Some(VIEWS_RETRY);
                refusal
            }
            ReadError::Unready { retry_after_ms, .. } => {
                let mut refusal = of(Code::Unavailable, "NOT_READY");
                refusal.retry = Some(Duration::from_millis(*retry_after_ms));
                refusal
            }
            ReadError::Storage { .. } => of(Code::Internal, "STORAGE"),
        }
    }
}

impl From<SearchError> for Refusal {
    fn from(error: SearchError) -> Self {
        let of = |code, reason| Self::new(code, reason, with_causes(&error));
        match &error {
            SearchError::Query { .. } => of(Code::InvalidArgument, "QUERY").field("query"),
            SearchError::EmptyQuery => of(Code::InvalidArgument, "EMPTY_QUERY").field("query"),
            SearchError::NoEmbedder => of(Code::FailedPrecondition, "NO_EMBEDDER").field("by"),
            SearchError::Embedder { .. } => {
                let mut refusal = of(Code::Unavailable, "EMBEDDER");
                refusal.retry = Some(INDEX_RETRY);
                refusal
            }
            SearchError::Read(error) => error.clone().into(),
            SearchError::IndexDamaged { .. } => {
                let mut refusal = of(Code::Unavailable, "INDEX_DAMAGED");
                refusal.retry = Some(INDEX_RETRY);
                refusal
            }
            SearchError::Index { .. } => of(Code::Internal, "INDEX"),
        }
    }
}

impl From<SearchTimeout> for Refusal {
    fn from(late: SearchTimeout) -> Self {
        Self::new(Code::DeadlineExceeded, "SEARCH_LATE", late)
    }
}

impl From<BuildTimeout> for Refusal {
    fn from(late: BuildTimeout) -> Self {
        Self::new(Code::DeadlineExceeded, "BUILD_LATE", late)
    }
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Self {
        // The conversation's policy was stored earlier, so the call itself is valid.
        if error.whose == CONVERSATIONS {
            return Self::new(Code::FailedPrecondition, "CONVERSATION_POLICY", &error)
                .fact("policy", CONTEXT_POLICY);
        }
        Self::new(Code::InvalidArgument, "POLICY", &error).field("policy")
    }
}

impl From<RenderError> for Refusal {
    fn from(error: RenderError) -> Self {
        let of = |code, reason| Self::new(code, reason, with_causes(&error));
        match &error {
            RenderError::Unsupported {
                provider, medium, ..
            } => of(Code::FailedPrecondition, "UNSUPPORTED_MEDIUM")
                .fact("provider", provider)
                .fact("medium", medium),
            RenderError::Illegal { provider, .. } => {
                of(Code::Internal, "ILLEGAL_REQUEST").fact("provider", provider)
            }
            RenderError::Stopped => of(Code::Unavailable, "CLOSING"),
            RenderError::Json { provider, .. } => {
                of(Code::Internal, "NOT_JSON").fact("provider", provider)
            }
        }
    }
}

impl From<ContextError> for Refusal {
    fn from(error: ContextError) -> Self {
        match error {
            ContextError::Read(error) => error.into(),
            ContextError::Policy(error) => error.into(),
            ContextError::Render(error) => error.into(),
            ContextError::Append(error) => error.into(),
            ContextError::NothingToCompact { .. } => {
                Self::new(Code::FailedPrecondition, "NOTHING_TO_COMPACT", error)
            }
            ContextError::Invalid { message } => {
                Self::new(Code::InvalidArgument, "INVALID_REQUEST", message).field("request")
            }
        }
    }
}

impl From<ItemsError> for Refusal {
    fn from(error: ItemsError) -> Self {
        match error {
            ItemsError::Invalid { index, message } => {
                Self::new(Code::InvalidArgument, "INVALID_REQUEST", message)
                    .field(format!("ops[{index}]"))
            }
            error @ ItemsError::TooMany { .. } => {
                Self::new(Code::InvalidArgument, "INVALID_REQUEST", error).field("ops")
            }
            ItemsError::Read(error) => error.into(),
            ItemsError::Search(error) => error.into(),
            ItemsError::Append(error) => error.into(),
        }
    }
}

impl From<EraseError> for Refusal {
    fn from(error: EraseError) -> Self {
        match error {
            EraseError::Invalid { message } => {
                Self::new(Code::InvalidArgument, "INVALID_REQUEST", message).field("request")
            }
            EraseError::Read(error) => error.into(),
            EraseError::Append(error) => error.into(),
            EraseError::Unfinished { .. } => {
                Self::new(Code::Internal, "STORAGE", with_causes(&error))
            }
        }
    }
}

impl From<InvalidField> for Status {
    fn from(malformed: InvalidField) -> Self {
        Refusal::from(malformed).into()
    }
}

/// A result whose error is returned to a client.
pub(crate) trait OrStatus<T> {
    /// Converts the error to a status.
    fn or_status(self) -> Result<T, Status>;
}

impl<T, E> OrStatus<T> for Result<T, E>
where
    Refusal: From<E>,
{
    fn or_status(self) -> Result<T, Status> {
        self.map_err(|error| Refusal::from(error).into())
    }
}

#[cfg(test)]
mod tests;
