// A store, through its server, in one namespace.

import { fileURLToPath } from "node:url";
import type { ChannelCredentials } from "@grpc/grpc-js";
import { type ContextOptions, changeContext, getContext } from "./context.js";
import { Conversation } from "./conversation/index.js";
import { type Endpoint, Fixed } from "./endpoint.js";
import { Entry, type EntryOptions } from "./entry.js";
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
import { type CallOptions, Transport } from "./transport.js";
import { type Event, Hits, Receipt, ToolCall } from "./types.js";
import { type DecisionName, jsonTexts, type KindName, numbers, type Parsed } from "./words.js";

/** Time that a call may take, all its attempts together. */
const TIMEOUT_MS = 60_000;
/** Time for a server to open its store. */
const START_TIMEOUT_MS = 120_000;
/** Time for an answer of the health service. */
const HEALTH_TIMEOUT_MS = 5_000;
/** Batches that are sent before their answers are waited for. */
const AT_ONCE = 128;

/** What every client is told. */
export interface ClientOptions {
  /** The tenant ("default"): nothing of one namespace can be seen from another. */
  namespace?: string | undefined;
  /** Who appends, where an event does not say. */
  actor?: string | undefined;
  /** Milliseconds for each call with all its attempts (60,000). */
  timeoutMs?: number | undefined;
}

/** What an erasing has done, or would do. */
export interface Erased {
  /** What goes, and why. */
  events: ErasedEvent[];
  /** Forks whose history has something of it. */
  sharedBy: SharedBy[];
  /** Large bodies that stay, because another event has the same content. */
  kept: KeptBody[];
  /** Its numbers, and the receipt (JSON text). */
  outcome: EraseOutcome | undefined;
}

/** What `connect` is told. */
export interface ConnectOptions extends ClientOptions, EntryOptions {
  /** For a proxy in front of the server, or a certificate of your own. */
  credentials?: ChannelCredentials | undefined;
  /** For a proxy in front of the server. */
  metadata?: Readonly<Record<string, string>> | undefined;
}

/** What `local` is told. */
export interface LocalOptions extends ClientOptions {
  /** The key that is asked for once one was made (else TREERING_TOKEN). */
  token?: string | undefined;
  /** The program; else TREERING_BINARY, the platform's package, or `treering` on the PATH. */
  binary?: string | undefined;
  /** More options of `treering serve`. */
  serve?: readonly string[] | undefined;
  /** Milliseconds for the server to open its store (120,000). */
  startTimeoutMs?: number | undefined;
  /** Hears what troubles the server, line by line. */
  onServerLog?: ((line: string) => void) | undefined;
}

/** Which events of the namespace's log are read. */
export interface LogOptions extends EventFilters {
  kinds?: readonly KindName[] | undefined;
  /** First offset. */
  first?: number | undefined;
  backward?: boolean | undefined;
  limit?: number | undefined;
  headersOnly?: boolean | undefined;
}

/** Somebody's word on a call. */
export interface DecisionOptions extends WriteOptions {
  by?: string | undefined;
  reason?: string | undefined;
}

/** Of the whole namespace. */
const EVERYWHERE = { conversationId: "", branch: "" };

/**
 * A store. Made by `connect` and `local`; end it with `close`, or with `await using`.
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
  /** Who appends, where an event does not say. */
  readonly actor: string;

  constructor(
    endpoint: Endpoint,
    options: ConnectOptions & { binary?: string | undefined } = {},
    entry = new Entry("", options),
  ) {
    const { namespace = "default", timeoutMs = TIMEOUT_MS } = options;
    const credentials = options.credentials ?? entry.credentials;
    const metadata = { ...entry.metadata, ...options.metadata };
    this.#endpoint = endpoint;
    this.#entry = entry;
    this.#transport = new Transport(endpoint, namespace, timeoutMs, credentials, metadata);
    this.#binary = options.binary;
    this.actor = options.actor ?? "";
  }

  /** The tenant: nothing of one namespace can be seen from another. */
  get namespace(): string {
    return this.#transport.namespace;
  }

  /** Where the server is now. */
  async address(): Promise<string> {
    return this.#endpoint.address();
  }

  /** Starts the server of a folder, which else the first call does. */
  async connect(): Promise<this> {
    await this.#transport.connect();
    return this;
  }

  /** Ends the connection; a server that `local` started ends with its last user. */
  async close(): Promise<void> {
    await this.#transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // ---- conversations ----

  /**
   * Begins a conversation, with its prompt and tools in one step.
   *
   *     const conv = await db.create("Ports", {
   *       system: "You answer in one sentence.",
   *       tools: [make.tool("grep", "Looks for a pattern")],
   *       labels: { team: "search" },
   *     });
   *
   * Each call makes one, also with a `sourceId` that is there: two with the same are no longer
   * found by it (`AmbiguousSourceId`). Use `open` for one that may be there.
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

  /** A conversation by its UUID, or by the id that its source gave. Asks nothing yet. */
  conversation(id: string, branch = ""): Conversation {
    return new Conversation(this.#transport, id, branch, this.actor);
  }

  /**
   * The conversation that you call `sourceId`; begins it the first time.
   *
   * Two programs that open the same one get the same.
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
      // Another program was first, with another title.
      if (error instanceof errors.IdempotencyConflict) return found();
      throw error;
    }
  }

  /** The namespace's conversations, newest first. */
  async *conversations(
    options: {
      source?: string;
      oldestFirst?: boolean;
      byActivity?: boolean;
      pageSize?: number;
      /** Only those with all of these labels. */
      labels?: Readonly<Record<string, string>>;
      /** Only those with these values in their metadata. */
      metadata?: Readonly<Record<string, unknown>>;
      /** Only those that were forked or spawned from this one. */
      parent?: string;
      /** Only those with this in their title. */
      title?: string;
      /** Only sealed ones, or only others. */
      sealed?: boolean;
      /** Only those whose last event was recorded within this time. */
      updatedSince?: Date;
      updatedUntil?: Date;
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
        updatedFrom: options.updatedSince,
        updatedTo: options.updatedUntil,
      });
      const page = await this.#transport.unary(conversations.list, request);
      yield* page.conversations;
      pageToken = page.nextPageToken;
    } while (pageToken);
  }

  /**
   * Conversations whose UUID or source id begins with this, or else ends with it: what people
   * type.
   */
  async find(idPart: string, { limit = 0 } = {}): Promise<ConversationSummary[]> {
    return (await this.#transport.unary(conversations.find, { idPart, limit })).conversations;
  }

  // ---- the log ----

  /**
   * Appends a batch, all or nothing; its events may name related conversations and branches
   * of their own. `conv.append` is what you want for one conversation.
   */
  async append(
    events: readonly NewEvent[],
    options: AppendOptions & {
      conversation?: string | undefined;
      branch?: string | undefined;
      /** Checks on more branches. */
      expectations?: readonly BranchExpectation[] | undefined;
      /**
       * What the conversation is created with when it does not exist; `conversation` may then
       * be a name of your own, within the `source` that is given here.
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
   * Many batches, `[conversation, events]` each, without waiting for one before the next is
   * sent; for what is recorded already, such as an import.
   *
   * Answers in order: a receipt, or the error of that batch. A break in the middle sends
   * again what has no answer, with the same keys.
   */
  async *appendMany(
    batches:
      | Iterable<readonly [conversation: string, events: readonly NewEvent[]]>
      | AsyncIterable<readonly [conversation: string, events: readonly NewEvent[]]>,
    { atOnce = AT_ONCE } = {},
  ): AsyncGenerator<Receipt | errors.TreeringError, void, undefined> {
    let waiting: AppendRequest[] = [];
    for await (const [conversation, events] of batches) {
      // Events with keys of their own need none of their batch.
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

  /** All events of the namespace in the order of the log. `first` is an offset. */
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
   * All events of the namespace after an offset of the log, then those that come, across
   * restarts of the server.
   */
  subscribe(options: SubscribeOptions = {}): Subscription {
    return new Subscription(this.#transport, undefined, options);
  }

  /**
   * The newest event with each key, of each type and of each kind, of each of these
   * conversations, in one call. Undefined where there is none; in the order asked, all of the
   * first conversation before the second.
   */
  async latest(
    conversations: readonly string[],
    { branch = "", ...options }: LatestOptions & { branch?: string },
  ): Promise<(Event | undefined)[]> {
    const request = requests.latest(conversations, branch, options);
    return lookup.latest(this.#transport, request, options);
  }

  /**
   * Events by their ids, or by conversation and revision, in this order; undefined where there
   * is none.
   */
  async getEvents(
    names: Iterable<EventNamed>,
    options: CallOptions & { headersOnly?: boolean } = {},
  ): Promise<(Event | undefined)[]> {
    return lookup.getMany(this.#transport, names, options);
  }

  /** Which idempotency keys were used, one answer for each (at most 4,096). */
  async knownKeys(keys: readonly string[]): Promise<boolean[]> {
    const request = { idempotencyKeys: [...keys] };
    return (await this.#transport.unary(eventMethods.knownKeys, request)).known;
  }

  // ---- items ----

  /** What is remembered for long, under paths and keys. */
  get items(): Items {
    return new Items(this.#transport, this.actor);
  }

  // ---- search ----

  /**
   * Searches what tools returned, calls, messages and summaries; best first. What this client
   * has appended is found.
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

  /** Calls of any conversation that wait for a decision. */
  async pending({ limit = 0 } = {}): Promise<ToolCall[]> {
    const { calls } = await this.#transport.unary(tools.pending, { ...EVERYWHERE, limit });
    return calls.map((call) => new ToolCall(call));
  }

  /** Says yes to a call, for exactly the arguments that it has. */
  async approve(call: ToolCall, options: DecisionOptions = {}): Promise<Receipt> {
    return this.#decide("approved", call, options);
  }

  /** Says no to a call. */
  async deny(call: ToolCall, options: DecisionOptions = {}): Promise<Receipt> {
    return this.#decide("denied", call, options);
  }

  async #decide(word: DecisionName, call: ToolCall, options: DecisionOptions): Promise<Receipt> {
    const { by = "", reason = "" } = options;
    const decision = make.decision(call.callId, word, call.argumentsHash, { by, reason });
    const to = { conversation: call.conversationId, branch: call.branch };
    return this.append([decision], { ...options, ...to });
  }

  // ---- the long-term context ----

  /**
   * Sets and removes keys of the namespace's long-term context, which every request of every
   * conversation holds.
   */
  async setContext(
    values: Readonly<Record<string, unknown>>,
    options: ContextOptions = {},
  ): Promise<Receipt> {
    return changeContext(this.#transport, EVERYWHERE, this.actor, values, options);
  }

  /** The long-term context: these keys, or all. */
  async context(...keys: string[]): Promise<Record<string, Parsed>> {
    return getContext(this.#transport, EVERYWHERE, keys);
  }

  /** Keys of the long-term context as they are, then every change. */
  watchContext(keys: readonly string[] = [], { signal }: CallOptions = {}): ContextWatch {
    return new ContextWatch(this.#transport, EVERYWHERE, keys, signal);
  }

  // ---- the store ----

  /** The store in numbers. */
  async stats(options: CallOptions = {}): Promise<StatsResponse> {
    return this.#transport.unary(admin.stats, {}, options);
  }

  /** Reads everything and checks it; `sound` says whether all is what was written. */
  async verify({ deep = false } = {}): Promise<VerifyOutcome> {
    let outcome = VerifyOutcome.fromPartial({});
    for await (const { item } of this.#verifying(deep)) {
      if (item?.$case === "outcome") outcome = item.value;
    }
    return outcome;
  }

  /** What `verify` finds that is not as it should be. */
  async *faults({ deep = false } = {}): AsyncGenerator<Fault, void, undefined> {
    for await (const { item } of this.#verifying(deep)) {
      if (item?.$case === "fault") yield item.value;
    }
  }

  #verifying(deep: boolean) {
    return this.#transport.read(admin.verify, () => ({ deep }), { timeoutMs: Infinity });
  }

  /** Builds views and search index anew from the log. */
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
   * Erases content, and leaves no copy of it in the store: events of a conversation, the whole
   * conversation with its sub-contexts, every event that holds a literal, or the namespace; and
   * what was made from it.
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
   * Runs a command of `treering` on this store, and gives back the JSON that it prints: for
   * what is a program's work and not a call's, such as `import` of files and folders.
   *
   *     const [counts] = await db.command("import", "sessions.jsonl");
   */
  async command(...given: string[]): Promise<Parsed[]> {
    const address = await this.address();
    return runCommand(findBinary(this.#binary), this.#entry, address, this.namespace, given);
  }

  /** Whether calls are taken, appends too; asked once. */
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
 * A store through a server that runs: `host:port`, or `http://host:port`; `https://host:port`
 * for one with TLS. Nothing is sent before the first call.
 *
 *     await using db = treering.connect("127.0.0.1:7171", { namespace: "team" });
 */
export function connect(address = "127.0.0.1:7171", options: ConnectOptions = {}): Treering {
  return new Treering(new Fixed(address), options, new Entry(address, options));
}

/**
 * A store in a folder. Starts its server, or uses that of the process which has it.
 *
 * The server ends with this program, however that ends. When another program's server was
 * used and goes away, one is started here.
 *
 *     await using db = treering.local("./store");
 */
export function local(path: string | URL, options: LocalOptions = {}): Treering {
  const folder = Folder.at(path instanceof URL ? fileURLToPath(path) : path, {
    binary: options.binary,
    serve: options.serve ?? [],
    startTimeoutMs: options.startTimeoutMs ?? START_TIMEOUT_MS,
    onServerLog: options.onServerLog ?? (() => {}),
  });
  return new Treering(folder, options);
}
