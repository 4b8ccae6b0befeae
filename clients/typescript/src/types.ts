// What the client answers with. Each holds the message that it was read from as `proto`.

import type { BuildResponse, Explanation } from "./gen/treering/v1/context.js";
import type { DiffResponse, RewindResponse } from "./gen/treering/v1/conversation.js";
import { EventKind, type Event as EventMessage, Role } from "./gen/treering/v1/event.js";
import type { AppendResponse } from "./gen/treering/v1/events.js";
import type { SearchHit, SearchResponse } from "./gen/treering/v1/search.js";
import {
  type ToolCall as CallMessage,
  CallStatus,
  type ResultInfo,
} from "./gen/treering/v1/tool.js";
import { textOf } from "./parts.js";
import {
  type CallStatusName,
  fromArguments,
  fromJson,
  fromUtf8,
  type KindName,
  type Parsed,
  type RoleName,
  utf8,
  word,
} from "./words.js";

/** What an append answers: the events are on disk. */
export class Receipt {
  readonly conversationId: string;
  /** Of each event, in order. */
  readonly revisions: readonly number[];
  readonly eventIds: readonly string[];
  /** Offset of the last event in the log: for `atLeast`. */
  readonly position: number;
  /** The idempotency key was known: these events were stored before. */
  readonly repeated: boolean;
  /** What is legal and may still be a mistake. */
  readonly warnings: readonly string[];
  /** The conversation did not exist, and was created with it (`createIfMissing`). */
  readonly created: boolean;
  /**
   * Which of the events were there already, by their ids or their own keys, from 0: nothing
   * was appended for them now, and their revisions and ids are those of the first ones.
   */
  readonly known: readonly number[];

  constructor(proto: AppendResponse) {
    this.known = proto.events.flatMap((event, at) => (event.known ? [at] : []));
    this.created = proto.created !== undefined;
    this.conversationId = proto.events[0]?.conversationId ?? "";
    this.revisions = proto.events.map((event) => event.revision);
    this.eventIds = proto.events.map((event) => event.eventId);
    this.position = Math.max(0, ...proto.events.map((event) => event.position?.offset ?? 0));
    this.repeated = proto.repeatedKey;
    this.warnings = proto.warnings;
  }

  /** Of the last event. */
  get revision(): number {
    return this.revisions.at(-1) ?? 0;
  }
}

/** A fact as it is stored. */
export class Event {
  readonly id: string;
  readonly conversationId: string;
  readonly branch: string;
  readonly revision: number;
  readonly kind: KindName;
  readonly actor: string;

  constructor(readonly proto: EventMessage) {
    this.id = proto.id;
    this.conversationId = proto.conversationId;
    this.branch = proto.branch;
    this.revision = proto.revision;
    this.kind = word(EventKind, proto.kind);
    this.actor = proto.actor;
  }

  /**
   * What it says, by its `$case`: `event.body?.$case === "messageAppended"` makes
   * `event.body.value` a `MessageAppended`. Undefined without bodies.
   */
  get body(): EventMessage["body"] {
    return this.proto.body;
  }

  /** Its content was erased: the body is what is left, without texts. */
  get erased(): boolean {
    return this.proto.erased;
  }

  /** What its author gave it to be found by, or empty. */
  get key(): string {
    return this.proto.key;
  }

  /** More of that. */
  get attributes(): Readonly<Record<string, string>> {
    return this.proto.attributes;
  }

  /** What a framework calls its event; empty of other kinds. */
  get typeName(): string {
    return this.proto.typeName;
  }

  /** Offset in the log. */
  get position(): number {
    return this.proto.position?.offset ?? 0;
  }

  /** When it was stored. */
  get recordedAt(): Date {
    return this.proto.recordedAt ?? new Date(0);
  }

  /** When it happened; when it was stored, where nobody said. */
  get occurredAt(): Date {
    return this.proto.occurredAt ?? this.recordedAt;
  }

  /** Who speaks, for messages; empty for others. */
  get role(): RoleName | "" {
    const { body } = this.proto;
    return body?.$case === "messageAppended" ? word<RoleName>(Role, body.value.role) : "";
  }

  /** The tool call that it is about; empty for others. */
  get callId(): string {
    const value = this.proto.body?.value;
    return value && "callId" in value ? value.callId : "";
  }

  /** The tool that a call asks for; empty for others. */
  get tool(): string {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" ? body.value.tool : "";
  }

  /**
   * What a call asks for, from its JSON, and the text where the model wrote none; undefined for
   * others.
   */
  get arguments(): Parsed {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" ? fromArguments(body.value.arguments) : undefined;
  }

  /** What a call asks for is no JSON: `arguments` is the text as the model wrote it. */
  get argumentsNotJson(): boolean {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" && body.value.argumentsNotJson;
  }

  /** The data of an event of your own, from its JSON; undefined for others. */
  get data(): Parsed {
    const { body } = this.proto;
    if (body?.$case !== "custom") return undefined;
    return body.value.contentType === "application/json"
      ? fromJson(body.value.data)
      : body.value.data;
  }

  /** The text of a message, a result, a prompt or a summary; empty for others. */
  get text(): string {
    const value = this.proto.body?.value;
    if (!value) return "";
    if ("parts" in value) return textOf(value.parts);
    if ("content" in value) return value.content;
    return "summary" in value ? value.summary : "";
  }
}

/** A tool call with what became of it. */
export class ToolCall {
  readonly conversationId: string;
  readonly branch: string;
  readonly callId: string;
  readonly tool: string;
  readonly status: CallStatusName;

  constructor(readonly proto: CallMessage) {
    this.conversationId = proto.conversationId;
    this.branch = proto.branch;
    this.callId = proto.callId;
    this.tool = proto.tool;
    this.status = word(CallStatus, proto.status);
  }

  /** What it asks for, from its JSON; the text where the model wrote none. */
  get arguments(): Parsed {
    return fromArguments(this.proto.arguments);
  }

  /** They are no JSON: `arguments` is the text as the model wrote it. */
  get argumentsNotJson(): boolean {
    return this.proto.argumentsNotJson;
  }

  /** What a decision must carry: it holds for these arguments only. */
  get argumentsHash(): Uint8Array {
    return this.proto.argumentsHash;
  }

  /** Of its request. */
  get revision(): number {
    return this.proto.requestRevision;
  }

  /** It has neither a result nor was it cancelled. */
  get isOpen(): boolean {
    return this.proto.endRevision === 0;
  }

  /** The first characters of its result. */
  get resultHead(): string {
    return this.proto.resultHead;
  }

  /** What went wrong. */
  get error(): string {
    return this.proto.errorMessage;
  }
}

/** What a tool returned, or a range of it. */
export class ToolResult {
  constructor(
    readonly info: ResultInfo,
    readonly text: string,
  ) {}

  /** Of the call. */
  get callId(): string {
    return this.info.callId;
  }

  /** That ran. */
  get tool(): string {
    return this.info.tool;
  }

  /** Of the result. */
  get revision(): number {
    return this.info.revision;
  }

  /** It worked. */
  get success(): boolean {
    return this.info.success;
  }

  /** What went wrong. */
  get error(): string {
    return this.info.errorMessage;
  }

  /** Of the whole. */
  get totalBytes(): number {
    return this.info.totalBytes;
  }
}

/** What a search found. */
export class Hit {
  readonly conversationId: string;
  readonly branch: string;
  readonly revision: number;
  readonly kind: KindName;
  readonly tool: string;
  /** Of the first match in the event's text, from 1. */
  readonly line: number;
  readonly score: number;
  readonly snippet: string;

  constructor(readonly proto: SearchHit) {
    this.conversationId = proto.conversationId;
    this.branch = proto.branch;
    this.revision = proto.revision;
    this.kind = word(EventKind, proto.kind);
    this.tool = proto.tool;
    this.line = proto.line;
    this.score = proto.score;
    this.snippet = proto.snippet;
  }

  /** What matched in the snippet. */
  get highlights(): string[] {
    const bytes = utf8(this.snippet);
    return this.proto.highlights.map(({ start, end }) => fromUtf8(bytes.subarray(start, end)));
  }
}

/** Hits, best first, and what the search says of them as a whole. */
export class Hits extends Array<Hit> {
  /** Hits, on all pages together; counted up to 1,000 unless asked for. */
  readonly total: number;
  /** All that the log had was searched. */
  readonly complete: boolean;
  readonly proto: SearchResponse;

  constructor(proto: SearchResponse) {
    super();
    this.push(...proto.hits.map((hit) => new Hit(hit)));
    this.total = proto.total;
    this.complete = proto.complete;
    this.proto = proto;
  }

  /** What `map` and `filter` make are plain arrays. */
  static override get [Symbol.species](): ArrayConstructor {
    return Array;
  }
}

/** The next request of a branch: a body, ready to be sent, that knows how it came to be. */
export class BuiltRequest {
  /** The body in the provider's shape. */
  readonly body: Parsed;
  /** The body as JSON, byte for byte: what a prompt cache compares. */
  readonly raw: Uint8Array;
  /** Sections, items with the events that they came from, what each step did. */
  readonly explanation: Explanation;

  constructor(proto: BuildResponse, explanation: Explanation) {
    this.raw = proto.request;
    this.body = fromJson(proto.request);
    this.explanation = explanation;
  }

  /** Of the request; an estimate for makers that keep their encoding to themselves. */
  get tokens(): number {
    return this.explanation.tokens;
  }

  /** What always stays is more than the budget. */
  get overBudget(): boolean {
    return this.explanation.overBudget;
  }

  /** The window is above the policy's threshold: see `conv.compact`. */
  get compactionDue(): boolean {
    return this.explanation.compactionDue;
  }

  /** That it was built at. */
  get revision(): number {
    return this.explanation.revision;
  }
}

/** A compaction that was appended, or, where `done` is false, why there was nothing to do. */
export interface Compaction {
  readonly done: boolean;
  readonly revision: number;
  readonly cutRevision: number;
  readonly tokensBefore: number;
  readonly tokensAfter: number;
  readonly warnings: readonly string[];
  /** Why there was nothing to do. */
  readonly reason: string;
}

/** A branch that was taken back. */
export class Rewound {
  /** The branch. */
  readonly branch: string;
  /** Of the branch as it is now: what the next append is checked against. */
  readonly head: number;
  /** The branch that has the old end; empty: nothing went. */
  readonly kept: string;
  /** What went, oldest first; the newest of it, when `truncated`. */
  readonly events: readonly Event[];
  /** More went than came with the answer: read `kept`. */
  readonly truncated: boolean;
  /** The idempotency key was known: nothing was taken back now. */
  readonly repeated: boolean;

  constructor(proto: RewindResponse) {
    this.branch = proto.branch?.name ?? "";
    this.head = proto.branch?.head ?? 0;
    this.kept = proto.kept?.name ?? "";
    this.events = proto.went.map((event) => new Event(event));
    this.truncated = proto.truncated;
    this.repeated = proto.repeatedKey;
  }
}

/** Two branches: where they part, and what each did from there. */
export class Difference {
  readonly ancestorRevision: number;
  readonly left: readonly Event[];
  readonly right: readonly Event[];
  readonly truncated: boolean;

  constructor(proto: DiffResponse) {
    this.ancestorRevision = proto.ancestorRevision;
    this.left = proto.left.map((event) => new Event(event));
    this.right = proto.right.map((event) => new Event(event));
    this.truncated = proto.truncated;
  }
}

/** A key of the active context as it is now, has become, or was removed. */
export interface ContextChange {
  readonly key: string;
  readonly value: Parsed;
  readonly removed: boolean;
  readonly provider: string;
}
