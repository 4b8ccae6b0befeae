// Result types of the client. Each has the protobuf message that it was read from as `proto`.

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

/** Result of an append: the events are on disk. */
export class Receipt {
  readonly conversationId: string;
  /** Revision of each event, in order. */
  readonly revisions: readonly number[];
  readonly eventIds: readonly string[];
  /** Log offset of the last event: for `atLeast`. */
  readonly position: number;
  /** The idempotency key was known: the events were appended before. */
  readonly repeated: boolean;
  /** Valid input that may be a mistake. */
  readonly warnings: readonly string[];
  /** The append created the conversation (`createIfMissing`). */
  readonly created: boolean;
  /**
   * Indexes (from 0) of the events that existed, by id or by their own key. They were not appended
   * again; their revisions and ids are those of the existing events.
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

  /** Revision of the last event. */
  get revision(): number {
    return this.revisions.at(-1) ?? 0;
  }
}

/** A stored event. */
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
   * The body, a union by `$case`: with `event.body?.$case === "messageAppended"`,
   * `event.body.value` is a `MessageAppended`. Undefined if read without bodies.
   */
  get body(): EventMessage["body"] {
    return this.proto.body;
  }

  /** The content was erased: the body is a stub without texts. */
  get erased(): boolean {
    return this.proto.erased;
  }

  /** The event key, or empty. */
  get key(): string {
    return this.proto.key;
  }

  /** The attributes: names and values. */
  get attributes(): Readonly<Record<string, string>> {
    return this.proto.attributes;
  }

  /** The type of a custom event; empty for other kinds. */
  get typeName(): string {
    return this.proto.typeName;
  }

  /** Log offset. */
  get position(): number {
    return this.proto.position?.offset ?? 0;
  }

  /** Time when it was appended. */
  get recordedAt(): Date {
    return this.proto.recordedAt ?? new Date(0);
  }

  /** Time when it happened; by default, when it was appended. */
  get occurredAt(): Date {
    return this.proto.occurredAt ?? this.recordedAt;
  }

  /** The role of a message; empty for other kinds. */
  get role(): RoleName | "" {
    const { body } = this.proto;
    return body?.$case === "messageAppended" ? word<RoleName>(Role, body.value.role) : "";
  }

  /** The id of its tool call; empty for other events. */
  get callId(): string {
    const value = this.proto.body?.value;
    return value && "callId" in value ? value.callId : "";
  }

  /** The tool of a call; empty for other kinds. */
  get tool(): string {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" ? body.value.tool : "";
  }

  /**
   * The parsed arguments of a call, or a string if they are not JSON; undefined for other kinds.
   */
  get arguments(): Parsed {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" ? fromArguments(body.value.arguments) : undefined;
  }

  /** The arguments are not JSON: `arguments` is the text of the model. */
  get argumentsNotJson(): boolean {
    const { body } = this.proto;
    return body?.$case === "toolCallRequested" && body.value.argumentsNotJson;
  }

  /** The parsed JSON of a custom event; undefined for other kinds. */
  get data(): Parsed {
    const { body } = this.proto;
    if (body?.$case !== "custom") return undefined;
    return body.value.contentType === "application/json"
      ? fromJson(body.value.data)
      : body.value.data;
  }

  /** The text of a message, result, prompt or summary; empty for other kinds. */
  get text(): string {
    const value = this.proto.body?.value;
    if (!value) return "";
    if ("parts" in value) return textOf(value.parts);
    if ("content" in value) return value.content;
    return "summary" in value ? value.summary : "";
  }
}

/** A tool call and its outcome. */
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

  /** The parsed arguments; a string if the model wrote invalid JSON. */
  get arguments(): Parsed {
    return fromArguments(this.proto.arguments);
  }

  /** The arguments are not JSON: `arguments` is the text of the model. */
  get argumentsNotJson(): boolean {
    return this.proto.argumentsNotJson;
  }

  /** Hash of the arguments. A decision carries it, and is valid for these arguments only. */
  get argumentsHash(): Uint8Array {
    return this.proto.argumentsHash;
  }

  /** Revision of its request. */
  get revision(): number {
    return this.proto.requestRevision;
  }

  /** It has no result and was not cancelled. */
  get isOpen(): boolean {
    return this.proto.endRevision === 0;
  }

  /** The first characters of its result. */
  get resultHead(): string {
    return this.proto.resultHead;
  }

  /** The error message. */
  get error(): string {
    return this.proto.errorMessage;
  }
}

/** A result of a tool, or a range of it. */
export class ToolResult {
  constructor(
    readonly info: ResultInfo,
    readonly text: string,
  ) {}

  /** Id of the call. */
  get callId(): string {
    return this.info.callId;
  }

  /** The tool. */
  get tool(): string {
    return this.info.tool;
  }

  /** Revision of the result. */
  get revision(): number {
    return this.info.revision;
  }

  /** The tool succeeded. */
  get success(): boolean {
    return this.info.success;
  }

  /** The error message. */
  get error(): string {
    return this.info.errorMessage;
  }

  /** Size of the whole result in bytes. */
  get totalBytes(): number {
    return this.info.totalBytes;
  }
}

/** A search hit. */
export class Hit {
  readonly conversationId: string;
  readonly branch: string;
  readonly revision: number;
  readonly kind: KindName;
  readonly tool: string;
  /** Line of the first match in the event's text, from 1. */
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

  /** The matches in the snippet. */
  get highlights(): string[] {
    const bytes = utf8(this.snippet);
    return this.proto.highlights.map(({ start, end }) => fromUtf8(bytes.subarray(start, end)));
  }
}

/** The hits of a search, best first, with its totals. */
export class Hits extends Array<Hit> {
  /** Number of hits on all pages, counted up to 1,000 unless you set `countAll`. */
  readonly total: number;
  /** The index contained all events of the log. */
  readonly complete: boolean;
  readonly proto: SearchResponse;

  constructor(proto: SearchResponse) {
    super();
    this.push(...proto.hits.map((hit) => new Hit(hit)));
    this.total = proto.total;
    this.complete = proto.complete;
    this.proto = proto;
  }

  /** `map` and `filter` return plain arrays. */
  static override get [Symbol.species](): ArrayConstructor {
    return Array;
  }
}

/** The next request of a branch: a body to send to the provider, with its explanation. */
export class BuiltRequest {
  /** The body in the provider's format. */
  readonly body: Parsed;
  /** The body as JSON bytes, as a prompt cache compares them. */
  readonly raw: Uint8Array;
  /** Sections, candidates with their events, and what each enhancer did. */
  readonly explanation: Explanation;

  constructor(proto: BuildResponse, explanation: Explanation) {
    this.raw = proto.request;
    this.body = fromJson(proto.request);
    this.explanation = explanation;
  }

  /** Tokens of the request; an estimate if the provider's encoding is not public. */
  get tokens(): number {
    return this.explanation.tokens;
  }

  /** The request exceeds the budget: too much content must stay. */
  get overBudget(): boolean {
    return this.explanation.overBudget;
  }

  /** The request exceeds the policy's compaction threshold: see `conv.compact`. */
  get compactionDue(): boolean {
    return this.explanation.compactionDue;
  }

  /** Revision at which it was built. */
  get revision(): number {
    return this.explanation.revision;
  }
}

/** An appended compaction, or, if `done` is false, the reason why there was nothing to do. */
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

/** Result of a rewind. */
export class Rewound {
  /** The branch. */
  readonly branch: string;
  /** The new head: use it for the next expected revision. */
  readonly head: number;
  /** The branch with the removed events; empty if there were none. */
  readonly kept: string;
  /** The removed events, oldest first; only the newest, if `truncated`. */
  readonly events: readonly Event[];
  /** Not all removed events are in the answer: read `kept`. */
  readonly truncated: boolean;
  /** The idempotency key was known: nothing was rewound now. */
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

/** The difference of two branches: their common revision, and the events of each since then. */
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

/** A key of a context: its value, or its removal. */
export interface ContextChange {
  readonly key: string;
  readonly value: Parsed;
  readonly removed: boolean;
  readonly provider: string;
}
