// The base class and the kinds of errors. `reasons.ts` has a class for each of the server's
// reasons.

import { status } from "@grpc/grpc-js";

/** Facts of an error besides its message. */
export interface ErrorFacts {
  /** gRPC status code, if a server answered or the connection failed. */
  code?: status | undefined;
  /** The server's reason. */
  reason?: string | undefined;
  /** Facts of the error, such as the expected and the actual value. */
  metadata?: Record<string, string> | undefined;
  /** Milliseconds after which the server suggests a retry. */
  retryAfterMs?: number | undefined;
}

/** Base class of all errors. Never contains the text of messages or results. */
export class TreeringError extends Error {
  /** The server's reason; empty for classes of several reasons. */
  static readonly reason: string = "";
  /** What to do about the error. */
  static readonly advice: string = "";

  /** gRPC status code, if a server answered or the connection failed. */
  readonly code: status | undefined;
  /** The server's reason, even if this client has no class for it. */
  readonly rule: string;
  /** Facts of the error, such as the expected and the actual value. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Milliseconds after which the server suggests a retry. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, facts: ErrorFacts = {}) {
    super(message);
    this.name = new.target.name;
    this.code = facts.code;
    this.rule = facts.reason || new.target.reason;
    this.metadata = facts.metadata ?? {};
    this.retryAfterMs = facts.retryAfterMs;
  }

  /** What to do about the error. */
  get advice(): string {
    return (this.constructor as typeof TreeringError).advice;
  }

  /** The name of gRPC's code, for example `NOT_FOUND`. */
  get codeName(): string {
    return this.code === undefined ? "" : (status[this.code] ?? String(this.code));
  }

  override toString(): string {
    const text = this.rule ? `${this.rule}: ${this.message}` : this.message;
    return `${this.name}: ${text}${this.advice ? ` (${this.advice})` : ""}`;
  }

  /** A numeric fact; 0 if the server did not send it. */
  protected number(name: string): number {
    return Number(this.metadata[name] ?? 0) || 0;
  }
}

// ---- kinds of errors ----

/** The named object does not exist. */
export class NotFound extends TreeringError {}

/** Another writer was first, or the name is taken. */
export class Conflict extends TreeringError {}

/** The current state does not allow the call. Nothing was appended. */
export class Refused extends TreeringError {}

/** The call is invalid. Nothing was appended. */
export class Invalid extends TreeringError {}

/** The server requires an API key, and the call has none or an invalid one. */
export class Unauthenticated extends TreeringError {
  static override readonly advice: string =
    "Set `token` or TREERING_TOKEN to a key that `treering keys ls` shows as valid.";
}

/** The API key is valid but does not permit the call. Nothing was appended. */
export class PermissionDenied extends TreeringError {
  static override readonly advice: string =
    "Use a key with the required role; `treering keys ls` shows the roles of each key.";
}

/** The call failed temporarily, and was retried until its timeout. */
export class Unavailable extends TreeringError {
  static override readonly advice: string =
    "Retry later, or check that the server is running and its disk has space.";
}

/** Stored data is damaged. The server still serves undamaged data. */
export class Damaged extends TreeringError {
  static override readonly advice: string = "Run `treering verify` on the store.";
}

/** The server failed. Nothing was appended. */
export class Failed extends TreeringError {
  static override readonly advice: string = "Check the server's log.";
}

/** No server answers at the address. */
export class Unreachable extends Unavailable {
  static override readonly advice: string =
    "Check that the server is running and that this is its address.";
}

/** The client is closed. Nothing was sent. */
export class ClientClosed extends Unreachable {
  static override readonly advice: string =
    "Open another client, and close it after its last call.";

  constructor(message = "this client was closed") {
    super(message);
  }
}

/** The path cannot hold a store. */
export class NoFolder extends TreeringError {
  static override readonly advice: string =
    "Use a folder that this program can create and write to.";
}

/** The call took longer than its `timeoutMs`. A write may or may not be stored. */
export class DeadlineExceeded extends TreeringError {
  static override readonly advice: string =
    "Set a longer timeout; a write can be repeated with the same idempotencyKey.";
}

/** The call was cancelled. */
export class Cancelled extends TreeringError {}

/** Another process has the store open and does not serve it. */
export class StoreInUse extends Unavailable {
  static override readonly advice: string =
    "Wait until that process has ended, or run a server: `treering serve`.";
}

/** The server of `treering.local` did not start. The message contains its output. */
export class ServerNotStarted extends TreeringError {}

/** No `treering` program was found. */
export class NoBinary extends TreeringError {
  static override readonly advice: string =
    "Install its platform package, put `treering` on the PATH, or set TREERING_BINARY.";
}

/** The time for a decision on a tool call expired. */
export class ApprovalExpired extends Refused {
  static override readonly advice: string = "Ask again with a new call.";
}

/** The wait ended without a decision. The call is still pending. */
export class NotDecided extends TreeringError {
  static override readonly advice: string = "Wait again, or cancel the call.";
}

/** The recorded branch does not have the call of a replay. */
export class NotRecorded extends NotFound {
  static override readonly advice: string = "Run the tool, or fork earlier.";
}

/** The connection broke during a write without an idempotency key. */
export class DeliveryUnknown extends TreeringError {
  static override readonly advice: string = "Read the branch to see whether it was stored.";
}

/** A `treering` command failed. The message is its output. */
export class CommandFailed extends TreeringError {
  constructor(
    message: string,
    /** `treering --help` lists the exit codes. */
    readonly exitCode: number,
  ) {
    super(message);
  }
}

/** A tool call was denied. */
export class CallDenied extends Refused {
  static override readonly advice: string = "Tell the model; do not run the tool.";

  constructor(
    readonly callId: string,
    /** Who denied it. */
    readonly decidedBy: string,
    /** Why it was denied. */
    readonly reasonGiven: string,
  ) {
    super(`the call ${callId} was denied`);
  }
}
