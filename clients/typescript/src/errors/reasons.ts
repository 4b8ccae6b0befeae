// A class for each reason that the server names.

import {
  Conflict,
  Damaged,
  DeadlineExceeded,
  Failed,
  Invalid,
  NotFound,
  PermissionDenied,
  Refused,
  TreeringError,
  Unauthenticated,
  Unavailable,
} from "./base.js";

/** The namespace has no such conversation. */
export class ConversationNotFound extends NotFound {
  static override readonly reason = "CONVERSATION_NOT_FOUND";
  static override readonly advice: string =
    "Check the id and the namespace; `db.conversations()` lists the existing ones.";
}

/** The conversation has no branch with this name. */
export class BranchNotFound extends NotFound {
  static override readonly reason = "BRANCH_NOT_FOUND";
  static override readonly advice: string = "`conv.branches()` lists them.";
}

/** The branch does not have this revision. */
export class RevisionNotFound extends NotFound {
  static override readonly reason = "REVISION_NOT_FOUND";
  static override readonly advice: string = "Use a revision of this branch, up to `head`.";

  /** Last revision of the branch. */
  get head(): number {
    return this.number("head");
  }
}

/** An event refers to a revision that the branch does not have. */
export class RevisionMissing extends NotFound {
  static override readonly reason = "REVISION_MISSING";
  static override readonly advice: string = "Refer to a revision of this branch.";
}

/** The parent does not have the revision to fork at. */
export class ForkPointMissing extends NotFound {
  static override readonly reason = "FORK_POINT_MISSING";
  static override readonly advice: string = "Fork at a revision that `conv.events()` shows.";
}

/** The branch has no call with this id. */
export class CallNotFound extends NotFound {
  static override readonly reason = "CALL_NOT_FOUND";
  static override readonly advice: string = "`conv.toolCalls()` lists them.";
}

/** The head of the branch is not the expected revision: another writer was first. */
export class RevisionMismatch extends Conflict {
  static override readonly reason = "REVISION_MISMATCH";
  static override readonly advice: string =
    "Read what came since, up to the revision in `actual`, and decide again.";

  /** The expected head. */
  get expected(): number {
    return this.number("expected");
  }

  /** The actual head. */
  get actual(): number {
    return this.number("actual");
  }
}

/** The idempotency key was used with other content. */
export class IdempotencyConflict extends Conflict {
  static override readonly reason = "IDEMPOTENCY_CONFLICT";
  static override readonly advice: string = "Use a new key for other content.";
}

/** An event with this id exists; `eventId` names it. */
export class EventIdTaken extends Conflict {
  static override readonly reason = "EVENT_ID_TAKEN";
  static override readonly advice: string =
    "Choose another id, or append with `skipKnown` to skip existing events.";
}

/** An event with this id exists, with other content. */
export class EventIdConflict extends Conflict {
  static override readonly reason = "EVENT_ID_CONFLICT";
  static override readonly advice: string =
    "Use another id; `db.getEvents` returns the existing event.";
}

/** The newest event with a key is not the expected event: another writer was first. */
export class LatestMismatch extends Conflict {
  static override readonly reason = "LATEST_MISMATCH";
  static override readonly advice: string =
    "Read `conv.latest`, decide again, and expect that one.";

  /** The actual newest event; empty if there is none. */
  get eventId(): string {
    return this.metadata.event_id ?? "";
  }
}

/** A conversation with this id exists. */
export class ConversationExists extends Conflict {
  static override readonly reason = "CONVERSATION_EXISTS";
  static override readonly advice: string = "Use it, or another id.";
}

/** A branch with this name exists. */
export class BranchNameTaken extends Conflict {
  static override readonly reason = "BRANCH_NAME_TAKEN";
  static override readonly advice: string = "Use another name.";
}

/** Several conversations have this source id. */
export class AmbiguousSourceId extends Refused {
  static override readonly reason = "AMBIGUOUS_SOURCE_ID";
  static override readonly advice: string = "Use the conversation's UUID.";
}

/** The conversation is sealed and accepts no appends. */
export class Sealed extends Refused {
  static override readonly reason = "SEALED";
  static override readonly advice: string =
    'Fork it into a new conversation: `conv.fork({ into: "new" })`.';
}

/** The branch is archived and accepts no appends. */
export class BranchArchived extends Refused {
  static override readonly reason = "BRANCH_ARCHIVED";
  static override readonly advice: string = "Fork it.";
}

/** The active branch cannot be archived. */
export class ArchivesActiveBranch extends Refused {
  static override readonly reason = "ARCHIVES_ACTIVE_BRANCH";
  static override readonly advice: string = "Activate another branch first.";
}

/** The call was not requested on this branch, or has ended. */
export class CallNotOpen extends Refused {
  static override readonly reason = "CALL_NOT_OPEN";
  static override readonly advice: string = "Request it first; a call has one result.";
}

/** A call with this id is open on the branch. */
export class CallAlreadyOpen extends Refused {
  static override readonly reason = "CALL_ALREADY_OPEN";
  static override readonly advice: string = "End it first, or use another id.";
}

/** The call is already decided. */
export class CallAlreadyDecided extends Refused {
  static override readonly reason = "CALL_ALREADY_DECIDED";
  static override readonly advice: string = "The first decision stays.";
}

/** The call does not need approval. */
export class ApprovalNotRequired extends Refused {
  static override readonly reason = "APPROVAL_NOT_REQUIRED";
  static override readonly advice: string = "Run it.";
}

/** The call was already started. */
export class CallAlreadyStarted extends Refused {
  static override readonly reason = "CALL_ALREADY_STARTED";
  static override readonly advice: string = "Do not run it twice.";
}

/** The call is not approved. */
export class CallNotApproved extends Refused {
  static override readonly reason = "CALL_NOT_APPROVED";
  static override readonly advice: string = "Wait for the decision: `call.waitForApproval()`.";
}

/** The decision is for other arguments than those of the call. */
export class ArgumentsChanged extends Refused {
  static override readonly reason = "ARGUMENTS_CHANGED";
  static override readonly advice: string = "Show the current arguments, then decide again.";
}

/** The message of the call is not on this branch. */
export class MessageMissing extends Refused {
  static override readonly reason = "MESSAGE_MISSING";
  static override readonly advice: string =
    "Name a revision of an assistant message of this branch.";
}

/** A compaction cannot cut in the middle of a turn. */
export class NotATurnBoundary extends Refused {
  static override readonly reason = "NOT_A_TURN_BOUNDARY";
  static override readonly advice: string = "Cut where `conv.planCompaction()` says.";
}

/** There is no finished turn to summarise, or only turns that are kept. */
export class NothingToCompact extends Refused {
  static override readonly reason = "NOTHING_TO_COMPACT";
  static override readonly advice: string = "Nothing, or keep fewer turns.";
}

/** A search by meaning needs an embedder, and the server has none. */
export class NoEmbedder extends Refused {
  static override readonly reason = "NO_EMBEDDER";
  static override readonly advice: string = "Start the server with --embedder, or search by words.";
}

/** A compaction already replaces these events. */
export class CutBeforeLastCut extends Refused {
  static override readonly reason = "CUT_BEFORE_LAST_CUT";
  static override readonly advice: string = "Cut later.";
}

/** The sub-context has returned, or belongs to another branch. */
export class SubContextNotRunning extends Refused {
  static override readonly reason = "SUB_CONTEXT_NOT_RUNNING";
  static override readonly advice: string = "A sub-context returns once.";
}

/** The call has a running sub-context. */
export class SubContextRunning extends Refused {
  static override readonly reason = "SUB_CONTEXT_RUNNING";
  static override readonly advice: string = "Wait until it has returned.";
}

/** The stored policy of the conversation cannot be parsed. */
export class ConversationPolicy extends Refused {
  static override readonly reason = "CONVERSATION_POLICY";
  static override readonly advice: string =
    "Fork it into a new conversation, or send the fields with `policy`.";
}

/** The provider does not support the medium, and the policy makes that an error. */
export class UnsupportedMedium extends Refused {
  static override readonly reason = "UNSUPPORTED_MEDIUM";
  static override readonly advice: string =
    "Use another provider, or the policy `unsupported_media: placeholder`.";
}

/** A rebuild is already running. */
export class RebuildRuns extends Refused {
  static override readonly reason = "REBUILD_RUNS";
  static override readonly advice: string = "Wait until it has ended.";
}

/** The store is read-only. */
export class ReadOnly extends Refused {
  static override readonly reason = "READ_ONLY";
  static override readonly advice: string = "Check the folder's owner and mode.";
}

/** The server accepts no more appends. Reads work. */
export class AppendsStopped extends Refused {
  static override readonly reason = "APPENDS_STOPPED";
  static override readonly advice: string = "Restart the server.";
}

/** A newer version wrote the store. */
export class NewerFormat extends Refused {
  static override readonly reason = "NEWER_FORMAT";
  static override readonly advice: string = "Use that version.";
}

/** The append has no events. */
export class EmptyBatch extends Invalid {
  static override readonly reason = "EMPTY_BATCH";
  static override readonly advice: string = "Append at least one event.";
}

/** The conversations of the batch are not related. */
export class DifferentTrees extends Invalid {
  static override readonly reason = "DIFFERENT_TREES";
  static override readonly advice: string = "Append to each of them separately.";
}

/** Only the server can append events of this kind. */
export class EngineOnly extends Invalid {
  static override readonly reason = "ENGINE_ONLY";
  static override readonly advice: string = "Use the call that creates it.";
}

/** A conversation cannot be its own parent. */
export class OwnParent extends Invalid {
  static override readonly reason = "OWN_PARENT";
  static override readonly advice: string = "Name another parent.";
}

/** A parent with shared history needs branch and revision. */
export class ParentIncomplete extends Invalid {
  static override readonly reason = "PARENT_INCOMPLETE";
  static override readonly advice: string = 'Use `conv.fork({ into: "new" })`.';
}

/** A field of an event has an invalid value. */
export class InvalidEvent extends Invalid {
  static override readonly reason = "INVALID_EVENT";
  static override readonly advice: string = "The message names the field.";

  /** Index of the event in the batch. */
  get eventIndex(): number {
    return this.number("event_index");
  }
}

/** A field of the request cannot be parsed. */
export class Malformed extends Invalid {
  static override readonly reason = "MALFORMED";
  static override readonly advice: string = "The message names the field.";
}

/** The request contradicts itself. */
export class InvalidRequest extends Invalid {
  static override readonly reason = "INVALID_REQUEST";
  static override readonly advice: string = "See the message.";
}

/** An event or a batch exceeds its maximum size. */
export class TooLarge extends Invalid {
  static override readonly reason = "TOO_LARGE";
  static override readonly advice: string = "Append less at once; one event holds nearly 64 MiB.";

  /** The limit, in bytes or events. */
  get max(): number {
    return this.number("max");
  }
}

/** The search query cannot be parsed. */
export class BadQuery extends Invalid {
  static override readonly reason = "QUERY";
  static override readonly advice: string = 'Search with mode: "plain" to take it as words.';
}

/** The search query has no words. */
export class EmptyQuery extends Invalid {
  static override readonly reason = "EMPTY_QUERY";
  static override readonly advice: string = "Add a word or a filter, or search by regex for signs.";
}

/** The policy has an unknown field or value. */
export class BadPolicy extends Invalid {
  static override readonly reason = "POLICY";
  static override readonly advice: string = "The message names the field.";
}

/** The request is not a valid protobuf message. */
export class BrokenMessage extends Invalid {
  static override readonly reason = "BROKEN_MESSAGE";
  static override readonly advice: string = "Check that client and server have matching versions.";
}

/** The call takes one message and got several. */
export class SecondMessage extends Invalid {
  static override readonly reason = "SECOND_MESSAGE";
  static override readonly advice: string = "Send one message.";
}

/** The range begins after the end of the result. */
export class RangeAfterEnd extends Invalid {
  static override readonly reason = "RANGE_AFTER_END";
  static override readonly advice: string = "Begin earlier.";

  /** The size of the result, in bytes. */
  get size(): number {
    return this.number("bytes");
  }
}

/** The request exceeds the maximum size of a message. */
export class MessageTooLarge extends Invalid {
  static override readonly reason = "MESSAGE_TOO_LARGE";
  static override readonly advice: string = "Send less at once.";

  /** The limit, in bytes. */
  get max(): number {
    return this.number("max");
  }
}

/** The request has too many elements. */
export class TooManyElements extends Invalid {
  static override readonly reason = "TOO_MANY_ELEMENTS";
  static override readonly advice: string = "Send less at once.";
}

/** A limit of the store is reached: branches, open calls or keys. */
export class LimitReached extends Refused {
  static override readonly reason = "LIMIT_REACHED";
  static override readonly advice: string =
    "`metadata` names the limit; end or remove some of them.";
}

/** The server is busy. */
export class Busy extends Unavailable {
  static override readonly reason = "BUSY";
}

/** Too many bytes are in flight to the server. */
export class BytesInFlight extends Unavailable {
  static override readonly reason = "BYTES_IN_FLIGHT";
}

/** The server cannot accept appends at the moment. Nothing was appended. */
export class NotReady extends Unavailable {
  static override readonly reason = "NOT_READY";
}

/** The server is shutting down. Nothing was appended. */
export class Closing extends Unavailable {
  static override readonly reason = "CLOSING";
}

/** The projections were damaged and are being rebuilt. */
export class ViewsDamaged extends Unavailable {
  static override readonly reason = "VIEWS_DAMAGED";
}

/** The embedder failed, so the query has no vector. */
export class EmbedderUnavailable extends Unavailable {
  static override readonly reason = "EMBEDDER";
  static override readonly advice: string = "Try again later, or search by words.";
}

/** The search index was damaged and is being rebuilt. */
export class IndexDamaged extends Unavailable {
  static override readonly reason = "INDEX_DAMAGED";
}

/** The disk is full. Nothing was appended. */
export class NoSpace extends Unavailable {
  static override readonly reason = "NO_SPACE";
  static override readonly advice: string = "Free space on the store's disk.";
}

/** The quota of the namespace is used up. Nothing was appended. Reads work. */
export class QuotaExceeded extends Refused {
  static override readonly reason = "QUOTA_EXCEEDED";
  static override readonly advice: string =
    "`metadata` shows the usage; erase data, or ask for a larger quota.";
}

/** The search took too long. */
export class SearchLate extends DeadlineExceeded {
  static override readonly reason = "SEARCH_LATE";
  static override readonly advice: string = "Narrow the search, or retry later.";
}

/** The request was not built in time, or the log did not reach `atLeast`. */
export class BuildLate extends DeadlineExceeded {
  static override readonly reason = "BUILD_LATE";
  static override readonly advice: string = "Retry later, or without `atLeast`.";
}

/** The request did not arrive in time. */
export class TooSlow extends Unavailable {
  static override readonly reason = "TOO_SLOW";
  static override readonly advice: string = "Send less at once.";
}

/** The disk failed during a write: the batch may or may not be stored. */
export class UnknownOutcome extends TreeringError {
  static override readonly reason = "UNKNOWN_OUTCOME";
  static override readonly advice: string =
    "Repeat it with the same idempotencyKey, or read the branch.";
}

/** The requested data is damaged. */
export class DataDamaged extends Damaged {
  static override readonly reason = "DAMAGED";
}

/** The conversation is damaged from a revision on. */
export class ConversationDamaged extends Damaged {
  static override readonly reason = "CONVERSATION_DAMAGED";
  static override readonly advice: string = "The events before `revision` are intact: fork there.";

  /** The first damaged revision. */
  get revision(): number {
    return this.number("revision");
  }
}

/** The store failed. */
export class StorageFailed extends Failed {
  static override readonly reason = "STORAGE";
}

/** The search index failed. */
export class IndexFailed extends Failed {
  static override readonly reason = "INDEX";
}

/** The parts of the built request differ from what its adapter stated. It was not returned. */
export class IllegalRequest extends Failed {
  static override readonly reason = "ILLEGAL_REQUEST";
  static override readonly advice: string = "This is a bug in Treering: please report it.";
}

/** The built request is not JSON, and was not returned. */
export class NotJson extends Failed {
  static override readonly reason = "NOT_JSON";
  static override readonly advice: string = "This is a bug in Treering: please report it.";
}

/** The call has no API key. */
export class KeyMissing extends Unauthenticated {
  static override readonly reason = "KEY_MISSING";
}

/** The API key is malformed. */
export class KeyMalformed extends Unauthenticated {
  static override readonly reason = "KEY_MALFORMED";
  static override readonly advice: string =
    "Send the key exactly as `treering keys create` showed it.";
}

/** The server does not know the API key. */
export class KeyUnknown extends Unauthenticated {
  static override readonly reason = "KEY_UNKNOWN";
}

/** The API key is revoked. */
export class KeyRevoked extends Unauthenticated {
  static override readonly reason = "KEY_REVOKED";
  static override readonly advice: string = "Ask the administrator for another one.";
}

/** The API key has expired, or was rotated and its grace period has ended. */
export class KeyExpired extends Unauthenticated {
  static override readonly reason = "KEY_EXPIRED";
  static override readonly advice: string = "Use the new secret, or ask for another key.";
}

/** The call has no API key, and the client certificate is not assigned to a key. */
export class CertificateUnknown extends Unauthenticated {
  static override readonly reason = "CERTIFICATE_UNKNOWN";
  static override readonly advice: string =
    "Send a key, or use a client certificate that has a key.";
}

/** The API key exceeded its rate limit of calls or bytes. */
export class RateLimited extends Unavailable {
  static override readonly reason = "RATE_LIMITED";
  static override readonly advice: string =
    "Send less at once, or ask for a key with a higher limit.";
}

/** The API key lacks the required role in this namespace. */
export class RoleMissing extends PermissionDenied {
  static override readonly reason = "ROLE_MISSING";

  /** The required role. */
  get role(): string {
    return this.metadata.role ?? "";
  }
}

/** Only the server appends to a namespace that begins with `_`. */
export class ReservedNamespace extends PermissionDenied {
  static override readonly reason = "RESERVED_NAMESPACE";
  static override readonly advice: string = "Use another namespace.";
}

/** The server has no such method. */
export class UnknownMethod extends Invalid {
  static override readonly reason = "UNKNOWN_METHOD";
  static override readonly advice: string = "The server may be older than this client: update it.";
}
