// A class for each reason that the server names.

import {
  Conflict,
  Damaged,
  Failed,
  Invalid,
  NotFound,
  PermissionDenied,
  Refused,
  TreeringError,
  Unauthenticated,
  Unavailable,
} from "./base.js";

/** There is no such conversation in this namespace. */
export class ConversationNotFound extends NotFound {
  static override readonly reason = "CONVERSATION_NOT_FOUND";
  static override readonly advice: string =
    "Check the id and the namespace; `db.conversations()` lists what is there.";
}

/** The conversation has no branch of that name. */
export class BranchNotFound extends NotFound {
  static override readonly reason = "BRANCH_NOT_FOUND";
  static override readonly advice: string = "`conv.branches()` lists them.";
}

/** The branch's history does not have that revision. */
export class RevisionNotFound extends NotFound {
  static override readonly reason = "REVISION_NOT_FOUND";
  static override readonly advice: string = "Take a revision up to `head` that is on this branch.";

  /** The branch's last revision. */
  get head(): number {
    return this.number("head");
  }
}

/** An event refers to a revision that is not in the branch's history. */
export class RevisionMissing extends NotFound {
  static override readonly reason = "REVISION_MISSING";
  static override readonly advice: string = "Refer to a revision of this branch.";
}

/** The revision to fork at is not in the parent's history. */
export class ForkPointMissing extends NotFound {
  static override readonly reason = "FORK_POINT_MISSING";
  static override readonly advice: string = "Fork at a revision that `conv.events()` shows.";
}

/** The branch has no call with that id. */
export class CallNotFound extends NotFound {
  static override readonly reason = "CALL_NOT_FOUND";
  static override readonly advice: string = "`conv.toolCalls()` lists them.";
}

/** The branch's head was not the one that was expected: another writer was first. */
export class RevisionMismatch extends Conflict {
  static override readonly reason = "REVISION_MISMATCH";
  static override readonly advice: string =
    "Read the branch from the revision in `actual` on, and decide again.";

  /** The head that was expected. */
  get expected(): number {
    return this.number("expected");
  }

  /** The head that is there. */
  get actual(): number {
    return this.number("actual");
  }
}

/** The idempotency key belongs to other content. */
export class IdempotencyConflict extends Conflict {
  static override readonly reason = "IDEMPOTENCY_CONFLICT";
  static override readonly advice: string = "Use a new key for other content.";
}

/** An event of the namespace has that id already; `eventId` says which. */
export class EventIdTaken extends Conflict {
  static override readonly reason = "EVENT_ID_TAKEN";
  static override readonly advice: string =
    "Choose another id, or append with `skipKnown` to pass over what is there.";
}

/** The event with that id is there already, with other content. */
export class EventIdConflict extends Conflict {
  static override readonly reason = "EVENT_ID_CONFLICT";
  static override readonly advice: string =
    "Give other content another id; `db.getEvents` shows what is there.";
}

/** The newest event with a key was not the one that was expected: another was first. */
export class LatestMismatch extends Conflict {
  static override readonly reason = "LATEST_MISMATCH";
  static override readonly advice: string =
    "Read `conv.latest`, decide again, and expect that one.";

  /** The newest event that is there; empty: there is none. */
  get eventId(): string {
    return this.metadata.event_id ?? "";
  }
}

/** There is a conversation with that id already. */
export class ConversationExists extends Conflict {
  static override readonly reason = "CONVERSATION_EXISTS";
  static override readonly advice: string = "Use it, or another id.";
}

/** The id belongs to a conversation that is not yours. */
export class ConversationIdTaken extends Conflict {
  static override readonly reason = "CONVERSATION_ID_TAKEN";
  static override readonly advice: string = "Use another id, or leave it out.";
}

/** The conversation has a branch of that name. */
export class BranchNameTaken extends Conflict {
  static override readonly reason = "BRANCH_NAME_TAKEN";
  static override readonly advice: string = "Use another name.";
}

/** Conversations of several sources have that id. */
export class AmbiguousSourceId extends Refused {
  static override readonly reason = "AMBIGUOUS_SOURCE_ID";
  static override readonly advice: string = "Use the conversation's UUID.";
}

/** The conversation has ended and takes nothing more. */
export class Sealed extends Refused {
  static override readonly reason = "SEALED";
  static override readonly advice: string =
    'Fork it into a new conversation: `conv.fork({ into: "new" })`.';
}

/** The branch was archived and takes nothing more. */
export class BranchArchived extends Refused {
  static override readonly reason = "BRANCH_ARCHIVED";
  static override readonly advice: string = "Fork it.";
}

/** The active branch cannot be archived. */
export class ArchivesActiveBranch extends Refused {
  static override readonly reason = "ARCHIVES_ACTIVE_BRANCH";
  static override readonly advice: string = "Activate another branch first.";
}

/** The call was never requested on this branch, or has ended. */
export class CallNotOpen extends Refused {
  static override readonly reason = "CALL_NOT_OPEN";
  static override readonly advice: string = "Request it first; a call has one result.";
}

/** A call with this id is open on the branch. */
export class CallAlreadyOpen extends Refused {
  static override readonly reason = "CALL_ALREADY_OPEN";
  static override readonly advice: string = "End it first, or use another id.";
}

/** Somebody has decided about the call already. */
export class CallAlreadyDecided extends Refused {
  static override readonly reason = "CALL_ALREADY_DECIDED";
  static override readonly advice: string = "The first decision holds.";
}

/** The call was requested without a need for approval. */
export class ApprovalNotRequired extends Refused {
  static override readonly reason = "APPROVAL_NOT_REQUIRED";
  static override readonly advice: string = "Run it.";
}

/** Somebody runs the call already. */
export class CallAlreadyStarted extends Refused {
  static override readonly reason = "CALL_ALREADY_STARTED";
  static override readonly advice: string = "Do not run it twice.";
}

/** Nobody has approved the call. */
export class CallNotApproved extends Refused {
  static override readonly reason = "CALL_NOT_APPROVED";
  static override readonly advice: string = "Wait for the decision: `call.waitForApproval()`.";
}

/** The decision was made on other arguments than the call has. */
export class ArgumentsChanged extends Refused {
  static override readonly reason = "ARGUMENTS_CHANGED";
  static override readonly advice: string = "Show the arguments anew, then decide.";
}

/** The message that the call names is not on this branch. */
export class MessageMissing extends Refused {
  static override readonly reason = "MESSAGE_MISSING";
  static override readonly advice: string =
    "Name a revision of an assistant message of this branch.";
}

/** A compaction cannot cut there: it is in the middle of a turn. */
export class NotATurnBoundary extends Refused {
  static override readonly reason = "NOT_A_TURN_BOUNDARY";
  static override readonly advice: string = "Cut where `conv.planCompaction()` says.";
}

/** A later compaction stands for these events already. */
export class CutBeforeLastCut extends Refused {
  static override readonly reason = "CUT_BEFORE_LAST_CUT";
  static override readonly advice: string = "Cut later.";
}

/** The sub-context has returned, or is not of this branch. */
export class SubContextNotRunning extends Refused {
  static override readonly reason = "SUB_CONTEXT_NOT_RUNNING";
  static override readonly advice: string = "A sub-context returns once.";
}

/** The call has a sub-context that runs. */
export class SubContextRunning extends Refused {
  static override readonly reason = "SUB_CONTEXT_RUNNING";
  static override readonly advice: string = "Let it return first.";
}

/** The conversation's stored policy cannot be read. */
export class ConversationPolicy extends Refused {
  static override readonly reason = "CONVERSATION_POLICY";
  static override readonly advice: string =
    "Fork it into a new conversation, or give the fields with `policy`.";
}

/** The provider does not take this medium, and the policy says that this is an error. */
export class UnsupportedMedium extends Refused {
  static override readonly reason = "UNSUPPORTED_MEDIUM";
  static override readonly advice: string =
    "Use another provider, or the policy `unsupported_media: placeholder`.";
}

/** A rebuild runs already. */
export class RebuildRuns extends Refused {
  static override readonly reason = "REBUILD_RUNS";
  static override readonly advice: string = "Wait until it has ended.";
}

/** The store cannot be written. */
export class ReadOnly extends Refused {
  static override readonly reason = "READ_ONLY";
  static override readonly advice: string = "Check the folder's owner and mode.";
}

/** The server takes no appends any more; reads go on. */
export class AppendsStopped extends Refused {
  static override readonly reason = "APPENDS_STOPPED";
  static override readonly advice: string = "The server must be started again.";
}

/** A newer version wrote the store. */
export class NewerFormat extends Refused {
  static override readonly reason = "NEWER_FORMAT";
  static override readonly advice: string = "Use that version.";
}

/** An append without events. */
export class EmptyBatch extends Invalid {
  static override readonly reason = "EMPTY_BATCH";
  static override readonly advice: string = "Append at least one event.";
}

/** One batch names conversations that are not related. */
export class DifferentTrees extends Invalid {
  static override readonly reason = "DIFFERENT_TREES";
  static override readonly advice: string = "Append them one by one.";
}

/** Events of this kind are made by the server only. */
export class EngineOnly extends Invalid {
  static override readonly reason = "ENGINE_ONLY";
  static override readonly advice: string = "Use the call that makes it.";
}

/** A conversation cannot be its own parent. */
export class OwnParent extends Invalid {
  static override readonly reason = "OWN_PARENT";
  static override readonly advice: string = "Name another parent.";
}

/** A parent whose history is shared must be named with its branch and revision. */
export class ParentIncomplete extends Invalid {
  static override readonly reason = "PARENT_INCOMPLETE";
  static override readonly advice: string = 'Use `conv.fork({ into: "new" })`.';
}

/** A field of an event holds what it cannot hold. */
export class InvalidEvent extends Invalid {
  static override readonly reason = "INVALID_EVENT";
  static override readonly advice: string = "The message says which field.";

  /** Its index in the batch. */
  get eventIndex(): number {
    return this.number("event_index");
  }
}

/** A field of the request cannot be read. */
export class Malformed extends Invalid {
  static override readonly reason = "MALFORMED";
  static override readonly advice: string = "The message says which field.";
}

/** The request contradicts itself. */
export class InvalidRequest extends Invalid {
  static override readonly reason = "INVALID_REQUEST";
  static override readonly advice: string = "The message says what.";
}

/** An event or a batch is larger than the store takes. */
export class TooLarge extends Invalid {
  static override readonly reason = "TOO_LARGE";
  static override readonly advice: string = "Append less at once; one event holds nearly 64 MiB.";

  /** The bound, in bytes or events. */
  get max(): number {
    return this.number("max");
  }
}

/** The search query cannot be read. */
export class BadQuery extends Invalid {
  static override readonly reason = "QUERY";
  static override readonly advice: string = 'Search with mode: "plain" to take it as words.';
}

/** The policy has a field or a value that there is not. */
export class BadPolicy extends Invalid {
  static override readonly reason = "POLICY";
  static override readonly advice: string = "The message names the field.";
}

/** The request is no protobuf message that the server knows. */
export class BrokenMessage extends Invalid {
  static override readonly reason = "BROKEN_MESSAGE";
  static override readonly advice: string = "Are client and server of matching versions?";
}

/** A call of one message was sent several. */
export class SecondMessage extends Invalid {
  static override readonly reason = "SECOND_MESSAGE";
  static override readonly advice: string = "Send one message.";
}

/** The request is larger than the server takes. */
export class MessageTooLarge extends Invalid {
  static override readonly reason = "MESSAGE_TOO_LARGE";
  static override readonly advice: string = "Send less at once.";

  /** The bound, in bytes. */
  get max(): number {
    return this.number("max");
  }
}

/** The request has more elements than the server takes. */
export class TooManyElements extends Invalid {
  static override readonly reason = "TOO_MANY_ELEMENTS";
  static override readonly advice: string = "Send less at once.";
}

/** A bound of the store is reached: branches, open calls, keys. */
export class LimitReached extends Refused {
  static override readonly reason = "LIMIT_REACHED";
  static override readonly advice: string =
    "`metadata` says which bound; end or remove some of it.";
}

/** The server has as much to do as it takes. */
export class Busy extends Unavailable {
  static override readonly reason = "BUSY";
}

/** Too many bytes are under way to the server. */
export class BytesInFlight extends Unavailable {
  static override readonly reason = "BYTES_IN_FLIGHT";
}

/** Appends cannot be taken just now. Nothing was appended. */
export class NotReady extends Unavailable {
  static override readonly reason = "NOT_READY";
}

/** The server is going. Nothing was appended. */
export class Closing extends Unavailable {
  static override readonly reason = "CLOSING";
}

/** The views met damage and are made anew. */
export class ViewsDamaged extends Unavailable {
  static override readonly reason = "VIEWS_DAMAGED";
}

/** The search index met damage and is made anew. */
export class IndexDamaged extends Unavailable {
  static override readonly reason = "INDEX_DAMAGED";
}

/** The disk is full. Nothing was appended. */
export class NoSpace extends Unavailable {
  static override readonly reason = "NO_SPACE";
  static override readonly advice: string = "Make room on the disk of the store.";
}

/** The namespace has all that it may have. Nothing was appended; reads go on. */
export class QuotaExceeded extends Refused {
  static override readonly reason = "QUOTA_EXCEEDED";
  static override readonly advice: string =
    "`metadata` says what is used; erase to get bytes back, or ask for a larger quota.";
}

/** The request did not arrive in time. */
export class TooSlow extends Unavailable {
  static override readonly reason = "TOO_SLOW";
  static override readonly advice: string = "Send less at once.";
}

/** The disk failed in the middle of a write: the batch may be there or not. */
export class UnknownOutcome extends TreeringError {
  static override readonly reason = "UNKNOWN_OUTCOME";
  static override readonly advice: string =
    "Repeat it with the same idempotencyKey, or read the branch.";
}

/** What was asked for cannot be read. */
export class DataDamaged extends Damaged {
  static override readonly reason = "DAMAGED";
}

/** The conversation cannot be read from a revision on. */
export class ConversationDamaged extends Damaged {
  static override readonly reason = "CONVERSATION_DAMAGED";
  static override readonly advice: string = "What is before `revision` is whole: fork there.";

  /** The first revision that cannot be read. */
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

/** The request that was built breaks a rule of its provider, and was not handed out. */
export class IllegalRequest extends Failed {
  static override readonly reason = "ILLEGAL_REQUEST";
  static override readonly advice: string = "This is a fault of Treering: report it.";
}

/** The request that was built is no JSON, and was not handed out. */
export class NotJson extends Failed {
  static override readonly reason = "NOT_JSON";
  static override readonly advice: string = "This is a fault of Treering: report it.";
}

/** No key came. */
export class KeyMissing extends Unauthenticated {
  static override readonly reason = "KEY_MISSING";
}

/** What came is no key, or one that was mistyped or cut. */
export class KeyMalformed extends Unauthenticated {
  static override readonly reason = "KEY_MALFORMED";
  static override readonly advice: string = "Give the key as `treering keys create` showed it.";
}

/** The server does not know this key. */
export class KeyUnknown extends Unauthenticated {
  static override readonly reason = "KEY_UNKNOWN";
}

/** The key was revoked. */
export class KeyRevoked extends Unauthenticated {
  static override readonly reason = "KEY_REVOKED";
  static override readonly advice: string = "Ask whoever revoked it for another one.";
}

/** The key has expired, or was rotated and the grace is over. */
export class KeyExpired extends Unauthenticated {
  static override readonly reason = "KEY_EXPIRED";
  static override readonly advice: string = "Use the new secret, or ask for another key.";
}

/** No key came, and none stands for the client's certificate. */
export class CertificateUnknown extends Unauthenticated {
  static override readonly reason = "CERTIFICATE_UNKNOWN";
  static override readonly advice: string =
    "Send a key, or show the certificate that a key stands for.";
}

/** The key has sent all the calls, or bytes, that it may in a second. */
export class RateLimited extends Unavailable {
  static override readonly reason = "RATE_LIMITED";
  static override readonly advice: string =
    "Send less at once, or ask for a key that may send more.";
}

/** The key has not the role that this needs in this namespace. */
export class RoleMissing extends PermissionDenied {
  static override readonly reason = "ROLE_MISSING";

  /** The role that is needed. */
  get role(): string {
    return this.metadata.role ?? "";
  }
}

/** The namespace begins with `_`: only the server itself appends there. */
export class ReservedNamespace extends PermissionDenied {
  static override readonly reason = "RESERVED_NAMESPACE";
  static override readonly advice: string = "Take another namespace.";
}

/** The server has no such method. */
export class UnknownMethod extends Invalid {
  static override readonly reason = "UNKNOWN_METHOD";
  static override readonly advice: string = "The server may be older than this client: update it.";
}
