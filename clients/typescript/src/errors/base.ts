// What can go wrong: the root and the kinds of trouble. A class for each of the server's
// reasons is in `reasons.ts`.

import { status } from "@grpc/grpc-js";

/** What an error knows beside its message. */
export interface ErrorFacts {
  /** gRPC's code, where a server answered or the connection failed. */
  code?: status | undefined;
  /** The rule as the server named it. */
  reason?: string | undefined;
  /** The facts: what was expected, what is there. */
  metadata?: Record<string, string> | undefined;
  /** Milliseconds after which trying again makes sense. */
  retryAfterMs?: number | undefined;
}

/** Anything that went wrong. Never holds the text of messages or results. */
export class TreeringError extends Error {
  /** The server's name of the rule; empty for classes that stand for several. */
  static readonly reason: string = "";
  /** What to do. */
  static readonly advice: string = "";

  /** gRPC's code, where a server answered or the connection failed. */
  readonly code: status | undefined;
  /** The rule as the server named it, also where this client has no class for it. */
  readonly rule: string;
  /** The facts: what was expected, what is there. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Milliseconds after which the server says that trying again makes sense. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, facts: ErrorFacts = {}) {
    super(message);
    this.name = new.target.name;
    this.code = facts.code;
    this.rule = facts.reason || new.target.reason;
    this.metadata = facts.metadata ?? {};
    this.retryAfterMs = facts.retryAfterMs;
  }

  /** What to do. */
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

  /** A fact that is a number; 0 where the server did not say it. */
  protected number(name: string): number {
    return Number(this.metadata[name] ?? 0) || 0;
  }
}

// ---- kinds of trouble ----

/** What was named is not there. */
export class NotFound extends TreeringError {}

/** Somebody else was first, or the name is taken. */
export class Conflict extends TreeringError {}

/** The state forbids it until someone changes it. Nothing was appended. */
export class Refused extends TreeringError {}

/** The call itself is wrong. Nothing was appended. */
export class Invalid extends TreeringError {}

/** The server asks for a key, and none came, or one that is not good. */
export class Unauthenticated extends TreeringError {
  static override readonly advice: string =
    "Give `token`, or set TREERING_TOKEN, to a key that `treering keys ls` shows as good.";
}

/** The key is good, and this is not for it. Nothing was appended. */
export class PermissionDenied extends TreeringError {
  static override readonly advice: string =
    "Use a key that may do this; `treering keys ls` shows what each may do.";
}

/** It cannot be done now. It was tried again until the call's time was up. */
export class Unavailable extends TreeringError {
  static override readonly advice: string =
    "Try again later, or see whether the server runs and its disk has room.";
}

/** Stored data is damaged; what is whole is served. */
export class Damaged extends TreeringError {
  static override readonly advice: string = "Run `treering verify` on the store.";
}

/** The server failed. Nothing was appended. */
export class Failed extends TreeringError {
  static override readonly advice: string = "Look into the server's log.";
}

/** Nothing answers there. */
export class Unreachable extends Unavailable {
  static override readonly advice: string = "Is the server running, and is this its address?";
}

/** This client was closed; nothing was sent. */
export class ClientClosed extends Unreachable {
  static override readonly advice: string =
    "Make another one with `connect` or `local`, and close it after its last call.";

  constructor(message = "this client was closed") {
    super(message);
  }
}

/** A store cannot be at that path. */
export class NoFolder extends TreeringError {
  static override readonly advice: string =
    "Name a folder that can be made, and that this program may write to.";
}

/** The call took longer than its `timeoutMs`. A write may be done or not. */
export class DeadlineExceeded extends TreeringError {
  static override readonly advice: string =
    "Give it more time; a write can be repeated with the same idempotencyKey.";
}

/** The call was cancelled. */
export class Cancelled extends TreeringError {}

/** Another process holds the store and does not serve it. */
export class StoreInUse extends Unavailable {
  static override readonly advice: string =
    "Wait until it has ended, or let it serve: `treering serve`.";
}

/** The server of `treering.local` did not start; the message holds what it said. */
export class ServerNotStarted extends TreeringError {}

/** There is no `treering` program to start. */
export class NoBinary extends TreeringError {
  static override readonly advice: string =
    "Install its platform package, put `treering` on the PATH, or set TREERING_BINARY.";
}

/** The time for a decision on a tool call ended without one. */
export class ApprovalExpired extends Refused {
  static override readonly advice: string = "Ask again with a new call.";
}

/** Nobody decided within the time that was waited. The call still waits. */
export class NotDecided extends TreeringError {
  static override readonly advice: string = "Wait again, or cancel the call.";
}

/** A replay was asked for a call that the recorded branch does not have. */
export class NotRecorded extends NotFound {
  static override readonly advice: string = "Run the tool, or fork earlier.";
}

/** The connection broke while a write without a key was under way. */
export class DeliveryUnknown extends TreeringError {
  static override readonly advice: string = "Read the branch: it may be there or not.";
}

/** A command of `treering` failed; the message is what it said. */
export class CommandFailed extends TreeringError {
  constructor(
    message: string,
    /** `treering --help` says what each means. */
    readonly exitCode: number,
  ) {
    super(message);
  }
}

/** A person said no to a tool call. */
export class CallDenied extends Refused {
  static override readonly advice: string = "Tell the model; do not run the tool.";

  constructor(
    readonly callId: string,
    /** Who said no. */
    readonly decidedBy: string,
    /** Why. */
    readonly reasonGiven: string,
  ) {
    super(`the call ${callId} was denied`);
  }
}
