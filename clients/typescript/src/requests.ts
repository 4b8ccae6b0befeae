// Builds the requests that the client sends.

import * as errors from "./errors/index.js";
import { BuildRequest as Build, type BuildRequest, Provider } from "./gen/treering/v1/context.js";
import { EraseRequest as Erase, type EraseRequest } from "./gen/treering/v1/conversation.js";
import {
  EventKind,
  type NewEvent,
  type Position,
  Role,
  type ToolDefinition,
  type ToolResultRecorded,
} from "./gen/treering/v1/event.js";
import {
  AppendRequest as Append,
  type AppendRequest,
  type EventFilter,
  type ExpectedKey,
  type ExpectedRevision,
  LatestRequest as Latest,
  type LatestRequest,
  ReadRequest as Read,
  type ReadRequest,
} from "./gen/treering/v1/events.js";
import {
  QueryMode,
  SearchRequest as Search,
  SearchBy,
  type SearchRequest,
} from "./gen/treering/v1/search.js";
import type { RecordResultRequest } from "./gen/treering/v1/tool.js";
import { keyLifeSeconds, keyOrNew } from "./keys.js";
import type { ConfigOptions } from "./make.js";
import { moment, type Time } from "./times.js";
import type { CallOptions } from "./transport.js";
import type { ToolCall } from "./types.js";
import {
  jsonBytes,
  type KindName,
  number,
  numbers,
  type ProviderName,
  providerName,
  type QueryModeName,
  type RoleName,
  type SearchByName,
  unicode,
  utf8,
} from "./words.js";

/** Size of a piece of a large result. */
const CHUNK_BYTES = 256 << 10;
/** Longer texts are sent in pieces, which are small compared with other clients' messages. */
const WHOLE_RESULT_BYTES_MAX = 1 << 20;
/** Maximum time that a search waits for the index; the server's own limit is 30 s. */
const INDEX_WAIT_MS_MAX = 25_000;

/** Options of a write. */
export interface WriteOptions extends CallOptions {
  /**
   * Makes a repeated write with the same content harmless. Each write gets a generated key, so
   * retries are safe. Pass your own key if your program may repeat the write.
   */
  idempotencyKey?: string | undefined;
}

/** Options of an append. */
export interface AppendOptions extends WriteOptions {
  /**
   * The head that the branch must have, otherwise `RevisionMismatch`. 0: the conversation must not
   * exist.
   */
  expected?: number | undefined;
  /**
   * The newest event that each key (`make.foundBy`) must have: a revision, an event id, or null for
   * no event; otherwise `LatestMismatch`.
   */
  expectedKeys?: Readonly<Record<string, number | string | null>> | undefined;
  /** Skip events whose ids exist with the same content: `make.withId`. */
  skipKnown?: boolean | undefined;
  /**
   * Seconds for which the keys of this append are kept. By default, your keys are kept for ever and
   * a generated key for a day.
   */
  keyLifeSeconds?: number | undefined;
}

/**
 * Returns the key of a batch, and as `harmless` what makes a retry safe; empty if nothing does.
 * If events have their own keys or ids, no key is generated for their batch.
 */
export function appendKeys(
  events: readonly NewEvent[],
  { idempotencyKey, skipKnown = false, keyLifeSeconds: life }: AppendOptions,
): { key: string; life: number; harmless: string } {
  if (idempotencyKey || !(skipKnown || events.some((event) => event.idempotencyKey))) {
    const key = keyOrNew(idempotencyKey);
    return { key, life: keyLifeSeconds(idempotencyKey, life), harmless: key };
  }
  const each = events.every((event) => event.idempotencyKey || (skipKnown && event.id));
  return { key: "", life: keyLifeSeconds("of events", life), harmless: each ? "each" : "" };
}

function expectedKey(key: string, newest: number | string | null): ExpectedKey {
  const of = { key, conversationId: "", branch: "" };
  if (newest === null) return { ...of, expected: { $case: "absent", value: true } };
  if (typeof newest === "number") {
    return { ...of, expected: { $case: "revision", value: newest } };
  }
  return { ...of, expected: { $case: "eventId", value: newest } };
}

/** Options of an erase: a conversation, a literal, or the whole namespace. */
export interface EraseOptions {
  /** The conversation: some events, or all of it with its sub-contexts. */
  conversation?: string | undefined;
  /** Revisions of the conversation; a pair is a range. */
  events?: readonly (number | readonly [number, number])[] | undefined;
  /** Every event that contains it. */
  literal?: string | Uint8Array | undefined;
  wholeNamespace?: boolean | undefined;
  /** Keep derived content: summaries, compactions, result digests. */
  keepDerived?: boolean | undefined;
  /** Change nothing; only report. */
  dryRun?: boolean | undefined;
  /** Recorded with the erase. */
  reason?: string | undefined;
}

/** Builds an erase request. */
export function erase(what: EraseOptions, actor: string): EraseRequest {
  const { keepDerived, dryRun, reason } = what;
  return Erase.fromPartial({ target: eraseTarget(what), keepDerived, dryRun, reason, actor });
}

function eraseTarget(what: EraseOptions): EraseRequest["target"] {
  const { conversation, events = [], literal, wholeNamespace = false } = what;
  if ([conversation, literal, wholeNamespace].filter(Boolean).length !== 1) {
    throw new TypeError("give a conversation, a literal, or the whole namespace");
  }
  if (literal) {
    return { $case: "literal", value: typeof literal === "string" ? utf8(literal) : literal };
  }
  if (!conversation) return { $case: "wholeNamespace", value: true };
  if (events.length === 0) return { $case: "conversationId", value: conversation };
  const ranges = events.map((each) => {
    const [first, last] = typeof each === "number" ? [each, each] : each;
    return { first, last };
  });
  return { $case: "revisions", value: { conversationId: conversation, ranges } };
}

/** Options of a new conversation. */
export interface NewConversation extends ConfigOptions, WriteOptions {
  title?: string | undefined;
  /** The system prompt. */
  system?: string | undefined;
  model?: string | undefined;
  /** See `make.tool`. */
  tools?: Iterable<ToolDefinition> | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** `{ context: {...} }` is the policy for requests. */
  policies?: Readonly<Record<string, unknown>> | undefined;
  /** Your own description of the source: any JSON value. */
  sourceMeta?: unknown;
  source?: string | undefined;
  /** Your own id: see `db.open`. */
  sourceId?: string | undefined;
  /** A UUID of your choice. */
  id?: string | undefined;
}

/** Filters of events. `key`, `keyPrefix` and `types` use an index. */
export interface EventFilters {
  /** Exact key. */
  key?: string | undefined;
  /** Beginning of the key. */
  keyPrefix?: string | undefined;
  /** Custom events of these types. */
  types?: string | readonly string[] | undefined;
  actor?: string | undefined;
  correlationId?: string | undefined;
  /** All of these attributes, with these values. */
  attributes?: Readonly<Record<string, string>> | undefined;
  /** Appended at this time or later. */
  since?: Time | undefined;
  /** Appended before this time. */
  until?: Time | undefined;
}

/** Options of `latest`. */
export interface LatestOptions extends CallOptions {
  keys?: string | readonly string[] | undefined;
  /** Types of custom events. */
  types?: string | readonly string[] | undefined;
  kinds?: KindName | readonly KindName[] | undefined;
  /** Leave the bodies out. */
  headersOnly?: boolean | undefined;
}

/** Options of reading events. */
export interface ReadOptions extends EventFilters {
  /** Only these kinds. */
  kinds?: KindName | readonly KindName[] | undefined;
  /** First revision, inclusive. */
  first?: number | undefined;
  /** Last revision, inclusive. */
  last?: number | undefined;
  /** Newest first. */
  backward?: boolean | undefined;
  /** Maximum number. */
  limit?: number | undefined;
  /** Leave the bodies out. */
  headersOnly?: boolean | undefined;
  /** All branches of the conversation. */
  allBranches?: boolean | undefined;
}

/** Options of a request. */
export interface RequestOptions extends CallOptions {
  /** The model; default: the conversation's. */
  model?: string | undefined;
  /** Token budget; 0 for none. */
  budget?: number | undefined;
  /** Merged over the conversation's `context` policy. */
  policy?: Readonly<Record<string, unknown>> | undefined;
  /** As of this revision. */
  asOf?: number | undefined;
  /** Wait for this log position. */
  atLeast?: number | undefined;
}

/** Filters and options of a search. */
export interface SearchFilters extends CallOptions {
  /** UUID or source id. */
  conversation?: string | undefined;
  /** With a conversation: only this branch. */
  branch?: string | undefined;
  /** With a conversation: include its sub-contexts. */
  subContexts?: boolean | undefined;
  /** Maximum number of hits (default 10). */
  limit?: number | undefined;
  offset?: number | undefined;
  tools?: string | readonly string[] | undefined;
  /** Only successful, or only failed results. */
  success?: boolean | undefined;
  /** Results, calls, messages, summaries, titles, annotations; default: all. */
  kinds?: KindName | readonly KindName[] | undefined;
  roles?: RoleName | readonly RoleName[] | undefined;
  /** Only calls and results that name a path like one of these: `src/*.py`. */
  paths?: string | readonly string[] | undefined;
  sources?: string | readonly string[] | undefined;
  /** Only conversations with all of these labels: `name` or `name=value`. */
  labels?: string | readonly string[] | undefined;
  /** Appended at this time or later. */
  since?: Time | undefined;
  until?: Time | undefined;
  /** Happened at this time or later. Imported events happened before they were appended. */
  happenedSince?: Time | undefined;
  happenedUntil?: Time | undefined;
  /** "plain" reads the text as words, "query" as a query; empty detects which. */
  mode?: QueryModeName | undefined;
  /** "words" (default), "meaning", or "both". Meanings need an embedder of the server. */
  by?: SearchByName | undefined;
  /** With an empty query: find passages similar in meaning to this event or hit. */
  similarTo?: { readonly conversationId: string; readonly revision: number } | undefined;
  /** The text is a regular expression, matched line by line. */
  regex?: boolean | undefined;
  /** Number of lines before and after the match in each hit. */
  contextLines?: number | undefined;
  countAll?: boolean | undefined;
  /** Also count the hits of each conversation. */
  byConversation?: boolean | undefined;
  /** Return every event with equal text, instead of one hit for all. */
  everyCopy?: boolean | undefined;
  /** Only active branches: without rewound events. */
  activeBranchesOnly?: boolean | undefined;
  /** Only conversations that are not sealed. */
  notSealed?: boolean | undefined;
  /** Wait until the index contains this log position. Default: the last append of this client. */
  atLeast?: number | undefined;
}

/** Converts an expected head; undefined allows any head. */
export function expectation(expected: number | undefined): ExpectedRevision | undefined {
  if (expected === undefined) return undefined;
  if (expected === 0) return { expected: { $case: "noStream", value: {} } };
  return { expected: { $case: "revision", value: expected } };
}

/** Builds an append request. */
export function append(
  conversationId: string,
  branch: string,
  events: readonly NewEvent[],
  {
    expected,
    expectedKeys = {},
    skipKnown = false,
    key,
    life = 0,
    actor,
  }: Pick<AppendOptions, "expected" | "expectedKeys" | "skipKnown"> & {
    key: string;
    life?: number;
    actor: string;
  },
): AppendRequest {
  return {
    ...Append.fromPartial({}),
    conversationId,
    branch,
    expected: expectation(expected),
    expectedKeys: Object.entries(expectedKeys).map(([name, newest]) => expectedKey(name, newest)),
    skipKnown,
    idempotencyKey: key,
    keyLifeSeconds: life,
    events: actor
      ? events.map((event) => ({ ...event, actor: event.actor || actor }))
      : [...events],
  };
}

/** Returns the text of a result if it is one large text, otherwise undefined. */
export function largeText(result: ToolResultRecorded): Uint8Array | undefined {
  const [only, ...others] = result.parts;
  if (others.length || only?.part?.$case !== "text") return undefined;
  if (only.part.value.length <= WHOLE_RESULT_BYTES_MAX / 4) return undefined;
  const encoded = utf8(unicode(only.part.value));
  return encoded.length > WHOLE_RESULT_BYTES_MAX ? encoded : undefined;
}

/** Yields the requests that send a large result in pieces. */
export function* inChunks(
  result: ToolResultRecorded,
  text: Uint8Array,
  to: { conversationId: string; branch: string; idempotencyKey: string; actor: string },
): Generator<RecordResultRequest> {
  const start = { ...to, expected: undefined, result: { ...result, parts: [] } };
  yield { item: { $case: "start", value: start } };
  for (let at = 0; at < text.length; at += CHUNK_BYTES) {
    yield { item: { $case: "chunk", value: text.subarray(at, at + CHUNK_BYTES) } };
  }
}

/** Maximum number of waiting calls that the server lists. */
const PENDING_MAX = 1_000;

/** Returns the waiting call with this id; throws if there is none, or several. */
export function oneWaiting(callId: string, waiting: readonly ToolCall[]): ToolCall {
  const found = waiting.filter((call) => call.callId === callId);
  const [first] = found;
  if (!first) {
    const among = waiting.length >= PENDING_MAX ? ` among the first ${PENDING_MAX}` : "";
    throw new errors.CallNotFound(`no call ${callId} waits for a decision${among}`);
  }
  if (found.length === 1) return first;
  const places = found.slice(0, 5).map((call) => `${call.conversationId} on ${call.branch}`);
  throw new errors.Refused(
    `${found.length} calls ${callId} wait for a decision (${places.join(", ")}): ` +
      "pass one that `pending()` lists",
  );
}

/** Builds the API call that asks for the next model request. */
export function build(
  conversationId: string,
  branch: string,
  provider: ProviderName,
  options: RequestOptions,
): BuildRequest {
  const { model, budget, asOf, atLeast } = options;
  const policy = { ...options.policy, ...(budget ? { budget_tokens: budget } : {}) };
  return {
    ...Build.fromPartial({}),
    conversationId,
    branch,
    asOfRevision: asOf ?? 0,
    provider: number<Provider>(Provider, providerName(provider)),
    model: model ?? "",
    policy: Object.keys(policy).length ? jsonBytes(policy) : new Uint8Array(0),
    atLeast: position(atLeast),
  };
}

/** Converts a log offset to a log position. */
export const position = (offset: number | undefined): Position | undefined =>
  offset ? { shard: 0, offset } : undefined;

/** Builds a read of the events of a branch or of all branches of a conversation. */
export function read(conversationId: string, branch: string, options: ReadOptions): ReadRequest {
  return {
    ...Read.fromPartial({}),
    source: options.allBranches
      ? { $case: "conversation", value: { conversationId } }
      : { $case: "branch", value: { conversationId, branch } },
    fromRevision: options.first ?? 0,
    toRevision: options.last ?? 0,
    backward: options.backward ?? false,
    kinds: numbers<EventKind>(EventKind, options.kinds ?? []),
    limit: options.limit ?? 0,
    headersOnly: options.headersOnly ?? false,
    filter: eventFilter(options),
  };
}

/** Builds an event filter; undefined if it would match all events. */
export function eventFilter(options: EventFilters): EventFilter | undefined {
  const filter: EventFilter = {
    key: options.key ?? "",
    keyPrefix: options.keyPrefix ?? "",
    types: several(options.types),
    actor: options.actor ?? "",
    correlationId: options.correlationId ?? "",
    attributes: { ...options.attributes },
    recordedFrom: moment(options.since, "since"),
    recordedTo: moment(options.until, "until"),
  };
  const isEmpty = Object.values(filter).every(
    (each) => !each || (!(each instanceof Date) && Object.keys(each).length === 0),
  );
  return isEmpty ? undefined : filter;
}

/** Builds a lookup of the newest events by key, type and kind. */
export function latest(
  ids: readonly string[],
  branch: string,
  options: LatestOptions,
  asOf = 0,
): LatestRequest {
  return Latest.fromPartial({
    conversations: [...ids],
    branch,
    keys: several(options.keys),
    types: several(options.types),
    kinds: numbers<EventKind>(EventKind, options.kinds ?? []),
    asOfRevision: asOf,
    headersOnly: options.headersOnly ?? false,
  });
}

/** Builds a search; `seen` is the last position that this client wrote. */
export function search(
  query: string,
  seen: number,
  patienceMs: number,
  filters: SearchFilters,
): SearchRequest {
  const atLeast = position(filters.atLeast ?? seen);
  // Half the timeout: hits marked as incomplete are better than a timeout.
  const waitMs = Math.min(patienceMs / 2, INDEX_WAIT_MS_MAX);
  const wait = { seconds: Math.floor(waitMs / 1000), nanos: Math.floor(waitMs % 1000) * 1e6 };
  return Search.fromPartial({
    query,
    conversationId: filters.conversation,
    branch: filters.branch,
    includeSubContexts: filters.subContexts,
    limit: filters.limit ?? 10,
    offset: filters.offset,
    tools: several(filters.tools),
    success: filters.success,
    kinds: numbers<EventKind>(EventKind, filters.kinds ?? []),
    roles: numbers<Role>(Role, filters.roles ?? []),
    paths: several(filters.paths),
    sources: several(filters.sources),
    labels: several(filters.labels),
    recordedFrom: moment(filters.since, "since"),
    recordedTo: moment(filters.until, "until"),
    happenedFrom: moment(filters.happenedSince, "happenedSince"),
    happenedTo: moment(filters.happenedUntil, "happenedUntil"),
    mode: number<QueryMode>(QueryMode, filters.mode || "unspecified"),
    by: number<SearchBy>(SearchBy, filters.by ?? "words"),
    similarTo: filters.similarTo && {
      conversationId: filters.similarTo.conversationId,
      revision: filters.similarTo.revision,
    },
    regex: filters.regex,
    contextLines: filters.contextLines,
    countAll: filters.countAll,
    byConversation: filters.byConversation,
    everyCopy: filters.everyCopy,
    activeBranchesOnly: filters.activeBranchesOnly,
    notSealed: filters.notSealed,
    atLeast,
    waitMax: atLeast ? wait : undefined,
  });
}

const several = <T extends string>(given: T | readonly T[] | undefined): T[] => {
  if (given === undefined) return [];
  return typeof given === "string" ? [given] : [...given];
};
