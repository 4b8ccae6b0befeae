// The client of a store: one namespace, accessed through its server.

import { fileURLToPath } from "node:url";
import type { ChannelCredentials } from "@grpc/grpc-js";
import { type ContextOptions, changeContext, getContext } from "./context.js";
import { Conversation } from "./conversation/index.js";
import { type Endpoint, Fixed } from "./endpoint.js";
import { Entry, type EntryOptions, sendable } from "./entry.js";
import * as errors from "./errors/index.js";
import { fromAppendError } from "./errors/translate.js";
import {
  type Fault,
  RebuildOutcome,
  type StatsResponse,
  VerifyOutcome,
} from "./gen/treering/v1/admin.js";
import {
  type ConversationSummary,
  type ErasedEvent,
  type EraseOutcome,
  type KeptBody,
  ListConversationsRequest,
  ListOrder,
  type SharedBy,
} from "./gen/treering/v1/conversation.js";
import { ConversationCreated, EventKind, type NewEvent } from "./gen/treering/v1/event.js";
import {
  type AppendRequest,
  type BranchExpectation,
  ReadRequest,
} from "./gen/treering/v1/events.js";
import { Items } from "./items.js";
import { keyLifeSeconds, keyOrNew } from "./keys.js";
import { findBinary, runCommand } from "./local/binary.js";
import { Folder } from "./local/folder.js";
import type { EventNamed } from "./lookup.js";
import * as lookup from "./lookup.js";
import * as make from "./make.js";
import { admin, conversations, events as eventMethods, search, tools } from "./methods.js";
import { readEvents } from "./reading.js";
import type {
  AppendOptions,
  EventFilters,
  LatestOptions,
  NewConversation,
  SearchFilters,
  WriteOptions,
} from "./requests.js";
import * as requests from "./requests.js";
import { ContextWatch, type SubscribeOptions, Subscription } from "./subscription.js";
import { moment, type Time } from "./times.js";
import { type CallOptions, Transport } from "./transport.js";
import { type Event, Hits, Receipt, ToolCall } from "./types.js";
import { type DecisionName, jsonTexts, type KindName, numbers, type Parsed } from "./words.js";

/** Default timeout of a call with all its attempts. */
const TIMEOUT_MS = 60_000;
/** Default timeout for a server to open its store. */
const START_TIMEOUT_MS = 120_000;
/** Default timeout of the health service. */
const HEALTH_TIMEOUT_MS = 5_000;
/** Number of batches that are sent before the client waits for their answers. */
const AT_ONCE = 128;

/** Options of every client. */
export interface ClientOptions {
  /** The tenant (default: "default"). */
  namespace?: string | undefined;
  /** Default actor of appended events. */
  actor?: string | undefined;
  /** Milliseconds for each call with its retries (60,000). */
  timeoutMs?: number | undefined;
}

/** Result of an erase, or of its dry run. */
export interface Erased {
  /** The erased events, each with the reason. */
  events: ErasedEvent[];
  /** Forks whose history contains an erased event. */
  sharedBy: SharedBy[];
  /** Large bodies that stay because another event has the same content. */
  kept: KeptBody[];
  /** Counts and the receipt (JSON text). */
  outcome: EraseOutcome | undefined;
}

/** Options of `connect`. */
export interface ConnectOptions extends ClientOptions, EntryOptions {
  /** For a proxy in front of the server, or a client certificate. */
  credentials?: ChannelCredentials | undefined;
  /** For a proxy in front of the server. */
  metadata?: Readonly<Record<string, string>> | undefined;
}

/** Options of `local`. */
export interface LocalOptions extends ClientOptions {
  /** The API key, if the store has keys (default TREERING_TOKEN). */
  token?: string | undefined;
  /** The program. Default: TREERING_BINARY, the platform package, or `treering` on the PATH. */
  binary?: string | undefined;
  /**
   * Options of `treering serve`, if this program starts the server. Clients of one folder share
   * them, and `binary`.
   */
  serve?: readonly string[] | undefined;
  /** Milliseconds for the server to open its store (120,000). */
  startTimeoutMs?: number | undefined;
  /** Receives the warnings of the server, line by line. */
  onServerLog?: ((line: string) => void) | undefined;
}

/** Options of reading the log. */
export interface LogOptions extends EventFilters {
  kinds?: KindName | readonly KindName[] | undefined;
  /** First offset. */
  first?: number | undefined;
  backward?: boolean | undefined;
  limit?: number | undefined;
  headersOnly?: boolean | undefined;
}

/** Options of a decision. */
export interface DecisionOptions extends WriteOptions {
  by?: string | undefined;
  reason?: string | undefined;
}

/** Selects the whole namespace. */
const EVERYWHERE = { conversationId: "", branch: "" };

/**
 * A store in one namespace. Create it with `connect` or `local`; end it with `close` or `await
 * using`.
 *
 *     await using db = treering.local("./store");
 *     const conv = await db.create("First steps");
 *     await conv.user("Where is the port set?");
 *     const hits = await db.search("port");
 */
export class Treering implements AsyncDisposable {
  readonly #transport: Transport;
  readonly #endpoint: Endpoint;
  readonly #binary: string | undefined;
  readonly #entry: Entry;
  /** Default actor of appended events. */
  readonly actor: string;

  constructor(
    endpoint: Endpoint,
    options: ConnectOptions & { binary?: string | undefined } = {},
    entry = new Entry("", options),
  ) {
    const { timeoutMs = TIMEOUT_MS } = options;
    const namespace = sendable(options.namespace ?? "default", "`namespace`");
    const credentials = options.credentials ?? entry.credentials;
    const metadata = { ...entry.metadata, ...options.metadata };
    this.#endpoint = endpoint;
    this.#entry = entry;
    this.#transport = new Transport(endpoint, namespace, timeoutMs, credentials, metadata);
    this.#binary = options.binary;
    this.actor = options.actor ?? "";
  }

  /** The tenant. Namespaces cannot see each other. */
  get namespace(): string {
    return this.#transport.namespace;
  }

  /** Current address of the server. */
  async address(): Promise<string> {
    return this.#endpoint.address();
  }

  /** Starts the server of a folder. By default, the first call does. */
  async connect(): Promise<this> {
    await this.#transport.connect();
    return this;
  }

  /** Closes the connection. A server that `local` started stops when its last client closes. */
  async close(): Promise<void> {
    await this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // ---- conversations ----

  /**
   * Creates a conversation with its system prompt and tools in one batch.
   *
   *     const conv = await db.create("Ports", {
   *       system: "You answer in one sentence.",
   *       tools: [make.tool("grep", "Looks for a pattern")],
   *       labels: { team: "search" },
   *     });
   *
   * Each call creates a conversation, even if the `sourceId` exists; two with the same id can no
   * longer be found by it (`AmbiguousSourceId`). Use `open` to get one conversation for each id.
   */
  async create(title = "", options: Omit<NewConversation, "title"> = {}): Promise<Conversation> {
    const { labels, policies, source, sourceId, sourceMeta, system } = options;
    const config = make.config(options.model, options);
    const about = { config, labels, policies, source, sourceId, sourceMeta };
    const events = [make.created(title, about)];
    if (system) events.push(make.system(system));
    const tools = [...(options.tools ?? [])];
    if (tools.length) events.push(make.tools(tools));
    const receipt = await this.append(events, { ...options, conversation: options.id });
    return this.conversation(receipt.conversationId);
  }

  /** Returns a conversation by UUID or source id, without calling the server. */
  conversation(id: string, branch = ""): Conversation {
    return new Conversation(this.#transport, id, branch, this.actor);
  }

  /**
   * Returns the conversation with this `sourceId`, and creates it if it does not exist.
   *
   * Programs that open the same id get the same conversation.
   */
  async open(
    sourceId: string,
    about: Omit<NewConversation, "sourceId"> = {},
  ): Promise<Conversation> {
    const { source = "app", title = "", ...options } = about;
    const named = this.conversation(sourceId);
    const found = async () => {
      const { summary } = await named.state();
      return this.conversation(summary?.conversationId ?? sourceId);
    };
    try {
      return await found();
    } catch (error) {
      if (!(error instanceof errors.NotFound)) throw error;
    }
    const idempotencyKey = `open:${source}:${sourceId}`;
    try {
      return await this.create(title, { ...options, source, sourceId, idempotencyKey });
    } catch (error) {
      // Another program created the conversation first, with another title.
      if (error instanceof errors.IdempotencyConflict) return found();
      throw error;
    }
  }

  /** Lists the conversations of the namespace, newest first. */
  async *conversations(
    options: {
      source?: string;
      oldestFirst?: boolean;
      byActivity?: boolean;
      pageSize?: number;
      /** With all of these labels. */
      labels?: Readonly<Record<string, string>>;
      /** With these values in the metadata. */
      metadata?: Readonly<Record<string, unknown>>;
      /** Forked or spawned from this conversation. */
      parent?: string;
      /** With this text in the title. */
      title?: string;
      /** Only sealed, or only not sealed. */
      sealed?: boolean;
      /** Time of the last event. */
      updatedSince?: Time;
      updatedUntil?: Time;
    } = {},
  ): AsyncGenerator<ConversationSummary, void, undefined> {
    let pageToken = "";
    do {
      const request = ListConversationsRequest.fromPartial({
        source: options.source ?? "",
        ascending: options.oldestFirst ?? false,
        order: options.byActivity ? ListOrder.HAPPENED : ListOrder.UNSPECIFIED,
        pageSize: options.pageSize ?? 0,
        pageToken,
        labels: { ...options.labels },
        metadata: jsonTexts(options.metadata ?? {}),
        parent: options.parent ?? "",
        title: options.title ?? "",
        sealed: options.sealed,
        updatedFrom: moment(options.updatedSince, "updatedSince"),
        updatedTo: moment(options.updatedUntil, "updatedUntil"),
      });
      const page = await this.#transport.unary(conversations.list, request);
      yield* page.conversations;
      pageToken = page.nextPageToken;
    } while (pageToken);
  }

  /** Finds conversations whose UUID or source id begins (or else ends) with this text. */
  async find(idPart: string, { limit = 0 } = {}): Promise<ConversationSummary[]> {
    return (await this.#transport.unary(conversations.find, { idPart, limit })).conversations;
  }

  // ---- the log ----

  /**
   * Appends a batch: all events or none. Events may name other branches and related conversations.
   * For one conversation, use `conv.append`.
   */
  async append(
    events: readonly NewEvent[],
    options: AppendOptions & {
      conversation?: string | undefined;
      branch?: string | undefined;
      /** Expected revisions of other branches. */
      expectations?: readonly BranchExpectation[] | undefined;
      /**
       * Creates the conversation if it does not exist; `conversation` may then be your own id
       * (a source id) within the given `source`.
       */
      createIfMissing?: Partial<ConversationCreated> | undefined;
    } = {},
  ): Promise<Receipt> {
    const { conversation = "", branch = "", expectations = [] } = options;
    const { expected, expectedKeys, skipKnown } = options;
    const { key, life, harmless } = requests.appendKeys(events, options);
    const request = requests.append(conversation, branch, events, {
      expected,
      expectedKeys,
      skipKnown,
      key,
      life,
      actor: this.actor,
    });
    request.expectations = [...expectations];
    if (options.createIfMissing) {
      request.createIfMissing = ConversationCreated.fromPartial(options.createIfMissing);
    }
    const answer = await this.#transport.unary(eventMethods.append, request, {
      ...options,
      key: harmless,
    });
    return this.#wrote(new Receipt(answer));
  }

  #wrote(receipt: Receipt): Receipt {
    this.#transport.saw(receipt.position);
    return receipt;
  }

  /**
   * Appends many batches, each `[conversation, events]`, without waiting for each answer. Use it
   * for imports.
   *
   * Yields a receipt or an error for each batch, in order. After a broken connection, unanswered
   * batches are sent again with the same keys.
   */
  async *appendMany(
    batches:
      | Iterable<readonly [conversation: string, events: readonly NewEvent[]]>
      | AsyncIterable<readonly [conversation: string, events: readonly NewEvent[]]>,
    { atOnce = AT_ONCE } = {},
  ): AsyncGenerator<Receipt | errors.TreeringError, void, undefined> {
    let waiting: AppendRequest[] = [];
    for await (const [conversation, events] of batches) {
      // If every event has its own key, the batch needs none.
      const key = events.every((event) => event.idempotencyKey) ? "" : keyOrNew();
      const life = key ? keyLifeSeconds("") : 0;
      waiting.push(requests.append(conversation, "", events, { key, life, actor: this.actor }));
      if (waiting.length >= atOnce) {
        yield* this.#appendSome(waiting);
        waiting = [];
      }
    }
    if (waiting.length) yield* this.#appendSome(waiting);
  }

  async *#appendSome(
    left: AppendRequest[],
  ): AsyncGenerator<Receipt | errors.TreeringError, void, undefined> {
    const unanswered = () => [...left];
    for await (const { outcome } of this.#transport.readMany(
      eventMethods.appendStream,
      unanswered,
      {
        key: "each",
      },
    )) {
      left.shift();
      if (outcome?.$case === "error") {
        const { code, message, reason, metadata } = outcome.value;
        yield fromAppendError(code, message, reason, metadata);
      } else if (outcome) {
        yield this.#wrote(new Receipt(outcome.value));
      }
      if (left.length === 0) return;
    }
  }

  /** Reads all events of the namespace in log order, from the log offset `first`. */
  events(options: LogOptions = {}): AsyncGenerator<Event, void, undefined> {
    const request = ReadRequest.fromPartial({
      source: { $case: "log", value: {} },
      fromOffset: options.first ?? 0,
      backward: options.backward ?? false,
      kinds: numbers<EventKind>(EventKind, options.kinds ?? []),
      limit: options.limit ?? 0,
      headersOnly: options.headersOnly ?? false,
      filter: requests.eventFilter(options),
    });
    return readEvents(this.#transport, eventMethods.read, request, options.limit);
  }

  /**
   * Subscribes to all events of the namespace after a log offset. Survives restarts of the server.
   */
  subscribe(options: SubscribeOptions = {}): Subscription {
    return new Subscription(this.#transport, undefined, options);
  }

  /**
   * Returns the newest event with each key, type and kind in each conversation, in one call.
   * `undefined` stands for a missing event. The order is that of the arguments, conversation by
   * conversation.
   */
  async latest(
    conversations: readonly string[],
    { branch = "", ...options }: LatestOptions & { branch?: string },
  ): Promise<(Event | undefined)[]> {
    const request = requests.latest(conversations, branch, options);
    return lookup.latest(this.#transport, request, options);
  }

  /**
   * Returns events by id, or by conversation and revision, in this order; `undefined` for a missing
   * event.
   */
  async getEvents(
    names: Iterable<EventNamed>,
    options: CallOptions & { headersOnly?: boolean } = {},
  ): Promise<(Event | undefined)[]> {
    return lookup.getMany(this.#transport, names, options);
  }

  /** Returns for each idempotency key whether it was used (at most 4,096 keys). */
  async knownKeys(keys: readonly string[]): Promise<boolean[]> {
    const request = { idempotencyKeys: [...keys] };
    return (await this.#transport.unary(eventMethods.knownKeys, request)).known;
  }

  // ---- items ----

  /** Items: JSON values under paths and keys, shared by all conversations. */
  get items(): Items {
    return new Items(this.#transport, this.actor);
  }

  // ---- search ----

  /**
   * Searches results, call arguments, messages and summaries. Returns the best hits first. Waits
   * until the index contains what this client appended.
   *
   *     for (const hit of await db.search("sda1 97%", { tools: "bash" })) {
   *       console.log(hit.tool, hit.line, hit.snippet);
   *     }
   */
  async search(query: string, filters: SearchFilters = {}): Promise<Hits> {
    const { lastPosition, timeoutMs } = this.#transport;
    const request = requests.search(query, lastPosition, filters.timeoutMs ?? timeoutMs, filters);
    return new Hits(await this.#transport.unary(search.search, request, filters));
  }

  // ---- approvals ----

  /** Lists the calls of all conversations that wait for approval. */
  async pending({ limit = 0 } = {}): Promise<ToolCall[]> {
    const { calls } = await this.#transport.unary(tools.pending, { ...EVERYWHERE, limit });
    return calls.map((call) => new ToolCall(call));
  }

  /**
   * Approves a call with exactly its current arguments. An id alone must be that of one waiting
   * call of the namespace.
   */
  async approve(call: ToolCall | string, options: DecisionOptions = {}): Promise<Receipt> {
    return this.#decide("approved", call, options);
  }

  /** Denies a call. Takes what `approve` takes. */
  async deny(call: ToolCall | string, options: DecisionOptions = {}): Promise<Receipt> {
    return this.#decide("denied", call, options);
  }

  async #decide(
    word: DecisionName,
    given: ToolCall | string,
    options: DecisionOptions,
  ): Promise<Receipt> {
    const { by = "", reason = "" } = options;
    const call =
      typeof given === "string" ? requests.oneWaiting(given, await this.pending()) : given;
    const decision = make.decision(call.callId, word, call.argumentsHash, { by, reason });
    const to = { conversation: call.conversationId, branch: call.branch };
    return this.append([decision], { ...options, ...to });
  }

  // ---- the long-term context ----

  /**
   * Sets and removes keys of the long-term context, which is part of every request of the
   * namespace.
   */
  async setContext(
    values: Readonly<Record<string, unknown>>,
    options: ContextOptions = {},
  ): Promise<Receipt> {
    return changeContext(this.#transport, EVERYWHERE, this.actor, values, options);
  }

  /** Returns the long-term context: these keys, or all. */
  async context(...keys: string[]): Promise<Record<string, Parsed>> {
    return getContext(this.#transport, EVERYWHERE, keys);
  }

  /** Yields the keys of the long-term context, then every change. */
  watchContext(keys: readonly string[] = [], { signal }: CallOptions = {}): ContextWatch {
    return new ContextWatch(this.#transport, EVERYWHERE, keys, signal);
  }

  // ---- the store ----

  /** Returns statistics of the store. */
  async stats(options: CallOptions = {}): Promise<StatsResponse> {
    return this.#transport.unary(admin.stats, {}, options);
  }

  /** Reads and checks all data. `sound` is true if nothing is damaged. */
  async verify({ deep = false } = {}): Promise<VerifyOutcome> {
    let outcome = VerifyOutcome.fromPartial({});
    for await (const { item } of this.#verifying(deep)) {
      if (item?.$case === "outcome") outcome = item.value;
    }
    return outcome;
  }

  /** Yields the faults that `verify` finds. */
  async *faults({ deep = false } = {}): AsyncGenerator<Fault, void, undefined> {
    for await (const { item } of this.#verifying(deep)) {
      if (item?.$case === "fault") yield item.value;
    }
  }

  #verifying(deep: boolean) {
    return this.#transport.read(admin.verify, () => ({ deep }), { timeoutMs: Infinity });
  }

  /** Rebuilds projections and search index from the log. */
  async rebuild({ views = true, index = true } = {}): Promise<RebuildOutcome> {
    let outcome = RebuildOutcome.fromPartial({});
    const request = () => ({ views, index });
    for await (const { item } of this.#transport.read(admin.rebuild, request, {
      timeoutMs: Infinity,
    })) {
      if (item?.$case === "outcome") outcome = item.value;
    }
    return outcome;
  }

  /**
   * Erases content and everything derived from it: events of a conversation, a conversation with
   * its sub-contexts, every event that contains a literal, or the namespace. The store keeps no
   * copy.
   *
   *     const gone = await db.erase({ conversation: "a", events: [41, [50, 58]] });
   */
  async erase(what: requests.EraseOptions): Promise<Erased> {
    const erased: Erased = { events: [], sharedBy: [], kept: [], outcome: undefined };
    const request = () => requests.erase(what, this.actor);
    for await (const { item } of this.#transport.read(conversations.erase, request, {
      timeoutMs: Infinity,
    })) {
      if (item?.$case === "event") erased.events.push(item.value);
      if (item?.$case === "sharedBy") erased.sharedBy.push(item.value);
      if (item?.$case === "kept") erased.kept.push(item.value);
      if (item?.$case === "outcome") erased.outcome = item.value;
    }
    return erased;
  }

  /**
   * Runs a `treering` command on this store and returns the JSON that it prints, for example
   * `import`.
   *
   *     const [counts] = await db.command("import", "sessions.jsonl");
   */
  async command(...given: string[]): Promise<Parsed[]> {
    const address = await this.address();
    return runCommand(findBinary(this.#binary), this.#entry, address, this.namespace, given);
  }

  /** Returns whether the server accepts calls, including appends. Does not retry. */
  async isReady({
    service = "treering.ready",
    timeoutMs = HEALTH_TIMEOUT_MS,
  } = {}): Promise<boolean> {
    try {
      return await this.#transport.health(service, timeoutMs);
    } catch (error) {
      if (error instanceof errors.TreeringError) return false;
      throw error;
    }
  }
}

/**
 * Connects to a running server: `host:port`, `http://host:port`, or `https://host:port` for TLS.
 * Nothing is sent before the first call.
 *
 *     await using db = treering.connect("127.0.0.1:7171", { namespace: "team" });
 */
export function connect(address = "127.0.0.1:7171", options: ConnectOptions = {}): Treering {
  return new Treering(new Fixed(address), options, new Entry(address, options));
}

/**
 * Opens the store in a folder. Starts its server, or uses the server of the process that has it
 * open.
 *
 * The server stops when this program ends, for any reason. If the server of another program stops,
 * this client starts one.
 *
 *     await using db = treering.local("./store");
 */
export function local(path: string | URL, options: LocalOptions = {}): Treering {
  const entry = new Entry("", options);
  const { binary, serve, startTimeoutMs = START_TIMEOUT_MS, onServerLog } = options;
  const folder = Folder.at(path instanceof URL ? fileURLToPath(path) : path, {
    binary,
    serve,
    startTimeoutMs,
    onServerLog,
  });
  try {
    return new Treering(folder, options, entry);
  } catch (error) {
    void folder.close();
    throw error;
  }
}
