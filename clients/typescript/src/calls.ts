// A tool call while it is made: asked, decided, run, ended.

import * as errors from "./errors/index.js";
import type { NewEvent } from "./gen/treering/v1/event.js";
import * as make from "./make.js";
import type { Content } from "./parts.js";
import type { AppendOptions, WriteOptions } from "./requests.js";
import type { CallOptions as Waiting } from "./transport.js";
import type { Receipt, ToolCall } from "./types.js";
import {
  asJsonBytes,
  type CancelReasonName,
  fromArguments,
  fromJson,
  laxJsonText,
  type Parsed,
} from "./words.js";

/** Longest text of an error that is recorded with a failed result. */
export const ERROR_CHARS_MAX = 2_000;

/** One wait for a decision on the server. */
const WAIT_MS_MAX = 300_000;

/** What a conversation does for its calls. */
export interface CallHost {
  append(events: readonly NewEvent[], options?: AppendOptions): Promise<Receipt>;
  toolResult(callId: string, content: Content, options: RecordResultOptions): Promise<Receipt>;
  waitForDecision(callId: string, timeoutMs: number, signal?: AbortSignal): Promise<ToolCall>;
}

/** A result and how it is written. */
export interface RecordResultOptions extends make.ResultOptions, WriteOptions {}

/** How a call is made. */
export interface CallOptions {
  /** The provider's id; one is made where there is none. */
  callId?: string | undefined;
  needsApproval?: boolean | undefined;
  /** How long `run` waits for a decision; else as long as it takes. */
  approvalTimeoutMs?: number | undefined;
  /** Revision of the assistant message it came in. */
  messageRevision?: number | undefined;
  /** Who runs it. */
  executor?: string | undefined;
}

/** A call as it stands. */
interface CallState extends CallOptions {
  callId: string;
  isRequested?: boolean;
  isStarted?: boolean;
}

/** What a tool's function takes and gives. */
export type ToolFunction<T> = (args: Parsed, call: Call) => T | Promise<T>;

/** The texts of an error, for a result. */
export const errorText = (error: unknown): string => {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return text.slice(0, ERROR_CHARS_MAX);
};

/**
 * A tool call of a conversation.
 *
 *     const call = await conv.toolCall("grep", { pattern: "port" });
 *     await call.result("config.py:12: PORT = 7171");
 *
 * With `await using`, a call that is left without a result is recorded as interrupted, so
 * that none stays open. `run` does all of it around a function.
 */
export class Call implements AsyncDisposable {
  readonly callId: string;
  readonly tool: string;
  /** The arguments as JSON, byte for byte as they are stored. */
  readonly rawArguments: Uint8Array;
  readonly needsApproval: boolean;
  readonly #host: CallHost;
  readonly #state: CallState;
  #began: number | undefined;
  #hasEnded = false;

  constructor(host: CallHost, tool: string, args: unknown, state: CallState) {
    this.#host = host;
    this.#state = state;
    this.callId = state.callId;
    this.tool = tool;
    this.rawArguments = asJsonBytes(args);
    this.needsApproval = state.needsApproval ?? false;
  }

  /** What it asks for, from its JSON; the text where the model wrote none. */
  get arguments(): Parsed {
    return fromArguments(this.rawArguments);
  }

  /** It is recorded that somebody runs it. */
  get isStarted(): boolean {
    return this.#state.isStarted ?? false;
  }

  /** It has a result or was cancelled. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Somebody else records its result, such as the sub-context that it asked for. */
  endsElsewhere(): void {
    this.#hasEnded = true;
  }

  #asked(): NewEvent {
    return make.toolCall(this.callId, this.tool, this.rawArguments, {
      needsApproval: this.needsApproval,
      messageRevision: this.#state.messageRevision ?? 0,
    });
  }

  /** Records that the model asks for it; once. */
  async request(): Promise<this> {
    if (!this.#state.isRequested) {
      await this.#host.append([this.#asked()]);
      this.#state.isRequested = true;
    }
    return this;
  }

  /**
   * Waits until somebody has decided; without a time, as long as it takes.
   *
   * Throws `CallDenied`, `ApprovalExpired`, or `NotDecided` when the time is up.
   */
  async waitForApproval({ timeoutMs, signal }: Waiting = {}): Promise<ToolCall> {
    await this.request();
    const end = timeoutMs === undefined ? Infinity : Date.now() + timeoutMs;
    for (;;) {
      const left = Math.min(Math.max(0, end - Date.now()), WAIT_MS_MAX);
      const call = await this.#host.waitForDecision(this.callId, left, signal);
      if (call.status === "denied") {
        throw new errors.CallDenied(this.callId, call.proto.decidedBy, call.proto.decisionReason);
      }
      if (call.status === "expired") {
        throw new errors.ApprovalExpired(`the time to decide on ${this.callId} ended`);
      }
      if (call.status !== "pending_approval") return call;
      if (Date.now() >= end) {
        throw new errors.NotDecided(`nobody has decided on ${this.callId} yet`);
      }
    }
  }

  /** Records that it is run from now on; once. */
  async start(): Promise<this> {
    const events = this.#state.isRequested ? [] : [this.#asked()];
    if (!this.#state.isStarted) {
      const { executor = "" } = this.#state;
      events.push(make.toolStarted(this.callId, { executor }));
    }
    if (events.length) await this.#host.append(events);
    this.#state.isRequested = this.#state.isStarted = true;
    this.#began = performance.now();
    return this;
  }

  /** Records what it returned. Large texts are sent in pieces. */
  async result(content: Content = [], options: RecordResultOptions = {}): Promise<Receipt> {
    await this.request();
    const { milliseconds = this.#milliseconds() } = options;
    const receipt = await this.#host.toolResult(this.callId, content, { ...options, milliseconds });
    this.#hasEnded = true;
    return receipt;
  }

  #milliseconds(): number | undefined {
    return this.#began === undefined ? undefined : Math.round(performance.now() - this.#began);
  }

  /** Records that it failed, with what it returned all the same. */
  async fail(error: unknown, content: Content = []): Promise<Receipt> {
    const text = typeof error === "string" ? error : errorText(error);
    return this.result(content, { success: false, error: text });
  }

  /** Records that it ended without a result. */
  async cancel(reason: CancelReasonName = "interrupted", detail = ""): Promise<Receipt> {
    await this.request();
    const receipt = await this.#host.append([make.toolCancelled(this.callId, reason, detail)]);
    this.#hasEnded = true;
    return receipt;
  }

  /**
   * Waits for approval where that is needed, calls `tool` with the arguments, and records
   * what comes of it: text as it is, all else as JSON.
   *
   * What it throws, or a person's no, is recorded for the model to read and, unless `throws`,
   * goes no further: then the answer is undefined.
   */
  async run<T>(tool: ToolFunction<T>, { throws = false } = {}): Promise<T | undefined> {
    try {
      await this.#mayRun();
    } catch (error) {
      const isNo = error instanceof errors.CallDenied || error instanceof errors.ApprovalExpired;
      if (throws || !isNo) throw error;
      return undefined;
    }
    let value: T;
    try {
      // No JSON is the model's mistake, and told to it; the tool is not to meet a text.
      value = await tool(fromJson(this.rawArguments), this);
    } catch (error) {
      if (!this.#hasEnded) await this.fail(error);
      if (throws || error instanceof errors.TreeringError) throw error;
      return undefined;
    }
    if (!this.#hasEnded) await this.result(told(value));
    return value;
  }

  async #mayRun(): Promise<void> {
    if (this.needsApproval) {
      try {
        await this.waitForApproval({ timeoutMs: this.#state.approvalTimeoutMs });
      } catch (error) {
        if (error instanceof errors.CallDenied) await this.cancel("denied", error.reasonGiven);
        if (error instanceof errors.ApprovalExpired) await this.cancel("timed_out");
        throw error;
      }
    }
    await this.start();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#hasEnded) await this.cancel("interrupted", "it was left without a result");
  }
}

/** An answer of the model that was recorded, with its calls. */
export class Answer {
  constructor(
    readonly receipt: Receipt,
    readonly calls: readonly Call[],
  ) {}

  /** Of the last event that it took. */
  get revision(): number {
    return this.receipt.revision;
  }
}

/** What a function returned, as content of a result. */
function told(value: unknown): Content {
  if (value === undefined) return [];
  return typeof value === "string" ? value : laxJsonText(value);
}
