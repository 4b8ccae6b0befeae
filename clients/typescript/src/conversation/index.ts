// A conversation, on one of its branches.

import { Call, errorText } from "../calls.js";
import { type ContextOptions, changeContext, getContext } from "../context.js";
import {
  type CompactionPlan,
  ExpandRequest,
  Explanation,
  SpawnRequest,
} from "../gen/treering/v1/context.js";
import type {
  Branch,
  ConversationState,
  LineageResponse,
} from "../gen/treering/v1/conversation.js";
import { ConversationState as State } from "../gen/treering/v1/conversation.js";
import { keyOrNew, unique } from "../keys.js";
import * as lookup from "../lookup.js";
import * as make from "../make.js";
import {
  contexts,
  conversations,
  events as eventMethods,
  search as searchMethods,
} from "../methods.js";
import { readEvents } from "../reading.js";
import type { ReadOptions, RequestOptions, SearchFilters, WriteOptions } from "../requests.js";
import * as requests from "../requests.js";
import { ContextWatch, type SubscribeOptions, Subscription } from "../subscription.js";
import type { CallOptions } from "../transport.js";
import {
  BuiltRequest,
  type Compaction,
  Difference,
  type Event,
  Hits,
  type Receipt,
  Rewound,
} from "../types.js";
import { jsonTexts, type KindName, type Parsed, type ProviderName } from "../words.js";
import {
  type CompactOptions,
  compact,
  type PlanOptions,
  planCompaction,
  type Summariser,
} from "./compaction.js";
import { Tools } from "./tools.js";

/** How a branch is forked. */
export interface ForkOptions extends WriteOptions {
  /** Last revision that both share; 0: the head. */
  at?: number | undefined;
  /** Of the new branch; one is made where there is none. */
  name?: string | undefined;
  /** "new", or a UUID: fork into a new conversation. */
  into?: string | undefined;
  /** Its system prompt. */
  system?: string | undefined;
  /** Make it the active branch. */
  activate?: boolean | undefined;
  /** The head that this branch must have. */
  expected?: number | undefined;
  /** Of a new conversation: it keeps the labels, and the source, of this one. */
  keepLabels?: boolean | undefined;
  keepSource?: boolean | undefined;
  /** Of a new conversation: labels over those, and a source of its own. */
  labels?: Readonly<Record<string, string>> | undefined;
  source?: string | undefined;
  sourceId?: string | undefined;
}

/** How a branch is taken back. */
export interface RewindOptions extends WriteOptions {
  /** The head that it must have. */
  expected?: number | undefined;
  /** Name for the old end; one is made where there is none. */
  keepAs?: string | undefined;
  /** At most so many of the events that went, the newest. */
  limit?: number | undefined;
}

/** What a sub-context begins with. */
export interface SpawnOptions extends WriteOptions {
  /** The open call that asks for it. */
  call?: Call | string | undefined;
  title?: string | undefined;
  system?: string | undefined;
  /** Else the parent's. */
  model?: string | undefined;
  policies?: Readonly<Record<string, unknown>> | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** A UUID of your own. */
  id?: string | undefined;
}

/**
 * A conversation on one branch: say, call, read, fork, ask for the next request.
 *
 * It holds an id and a branch and no state: make as many for one conversation as you like.
 * Without a branch it is the active one.
 *
 *     const conv = await db.create("Ports", { system: "You answer in one sentence." });
 *     await conv.user("Which port does it listen on?");
 *     const call = await conv.toolCall("grep", { pattern: "PORT" });
 *     await call.result("config.py:12: PORT = 7171");
 *     await conv.assistant("On 7171.");
 */
export class Conversation extends Tools {
  /** The same conversation on another branch. */
  on(branch: string): Conversation {
    return new Conversation(this.transport, this.id, branch, this.actor);
  }

  // ---- the next request ----

  /**
   * What the agent sends next, in the provider's shape, within a budget of tokens.
   *
   *     const request = await conv.request("anthropic", { budget: 60_000 });
   *     const answer = await anthropic.messages.create(request.body);
   *     await conv.record("anthropic", answer, { expected: request.revision });
   */
  async request(
    provider: ProviderName = "neutral",
    options: RequestOptions = {},
  ): Promise<BuiltRequest> {
    const request = requests.build(this.id, this.branch, provider, options);
    const answer = await this.transport.unary(contexts.build, request, options);
    return new BuiltRequest(answer, answer.explanation ?? Explanation.fromPartial({}));
  }

  /** How the next request would come to be, without the request itself. */
  async explain(
    provider: ProviderName = "neutral",
    options: RequestOptions = {},
  ): Promise<Explanation> {
    const request = requests.build(this.id, this.branch, provider, options);
    const { explanation } = await this.transport.unary(contexts.explain, request, options);
    return explanation ?? Explanation.fromPartial({});
  }

  // ---- compaction ----

  /** Where a compaction would cut, and what to ask of a model. Changes nothing. */
  async planCompaction(options: PlanOptions = {}): Promise<CompactionPlan> {
    return planCompaction(this.transport, this.place, options);
  }

  /**
   * Lets a summary stand for the older turns. The originals stay readable.
   *
   * `summary` is a text, or a function that makes one of the plan (`plan.instruction` is what
   * to tell the model, `plan.material` what it is to summarise); without one the engine
   * writes its own extract. Where there is nothing to cut, `done` is false.
   */
  async compact(
    summary: string | Summariser = "",
    options: CompactOptions = {},
  ): Promise<Compaction> {
    return compact(this.transport, this.place, this.actor, summary, options);
  }

  /** The events that a compaction's summary stands for; 0: the last compaction. */
  expand(revision = 0): AsyncGenerator<Event, void, undefined> {
    const request = ExpandRequest.fromPartial({ ...this.place, compactionRevision: revision });
    return readEvents(this.transport, contexts.expand, request);
  }

  // ---- reading ----

  /**
   * The history of the branch, with what it inherited, oldest first.
   *
   *     for await (const event of conv.events({ kinds: ["message_appended"] })) { ... }
   */
  events(options: ReadOptions = {}): AsyncGenerator<Event, void, undefined> {
    const request = requests.read(this.id, this.branch, options);
    return readEvents(this.transport, eventMethods.read, request, options.limit);
  }

  /**
   * The newest event of the branch's history with a key, of a type or of a kind, at a cost that
   * does not grow with the history. For several at once see `Treering.latest`.
   *
   *     const last = await conv.latest({ key: "note/1" });
   */
  async latest(
    of: { key: string } | { type: string } | { kind: KindName },
    { asOf = 0, headersOnly = false } = {},
  ): Promise<Event | undefined> {
    const options = {
      keys: "key" in of ? [of.key] : [],
      types: "type" in of ? [of.type] : [],
      kinds: "kind" in of ? [of.kind] : [],
      headersOnly,
    };
    const request = requests.latest([this.id], this.branch, options, asOf);
    return (await lookup.latest(this.transport, request))[0];
  }

  /** Events by their revisions, in this order; undefined where there is none. */
  async getEvents(
    revisions: Iterable<number>,
    options: { headersOnly?: boolean } = {},
  ): Promise<(Event | undefined)[]> {
    const names = [...revisions].map((revision) => [this.id, revision] as const);
    return lookup.getMany(this.transport, names, options);
  }

  /** Events after a revision, then those that come, across restarts of the server. */
  subscribe(options: SubscribeOptions & { allBranches?: boolean } = {}): Subscription {
    const { conversationId } = this.place;
    const source = options.allBranches
      ? ({ $case: "conversation", value: { conversationId } } as const)
      : ({ $case: "branch", value: this.place } as const);
    return new Subscription(this.transport, source, options);
  }

  /**
   * The conversation and its branch, now or as of a revision. `withValues` also has prompts,
   * tools, summaries and the active context (`values`), and not only where they were set; what
   * has no room in 3 MiB is named (`values.leftOut`).
   */
  async state({ asOf = 0, withValues = false } = {}): Promise<ConversationState> {
    const request = { ...this.place, asOfRevision: asOf, withValues };
    return State.fromPartial(await this.transport.unary(conversations.get, request));
  }

  /** The branch's last revision. */
  async head(): Promise<number> {
    return (await this.state()).branch?.head ?? 0;
  }

  /** All branches of the conversation. */
  async branches(): Promise<Branch[]> {
    const found: Branch[] = [];
    let pageToken = "";
    do {
      const request = { conversationId: this.id, pageSize: 1000, pageToken };
      const page = await this.transport.unary(conversations.listBranches, request);
      found.push(...page.branches);
      pageToken = page.nextPageToken;
    } while (pageToken);
    return found;
  }

  /** Where the branch came from, up to the root, and what came of the conversation. */
  async lineage(): Promise<LineageResponse> {
    return this.transport.unary(conversations.lineage, this.place);
  }

  /** Where this branch and another one part, then the events of each. */
  async diff(
    other: string | Conversation,
    { headersOnly = false, limit = 0 } = {},
  ): Promise<Difference> {
    const request = {
      conversationId: this.id,
      leftBranch: this.branch,
      rightBranch: typeof other === "string" ? other : other.branch,
      headersOnly,
      limit,
    };
    return new Difference(await this.transport.unary(conversations.diff, request));
  }

  /** Searches this conversation; takes what `db.search` takes. */
  async search(query: string, filters: SearchFilters = {}): Promise<Hits> {
    const { lastPosition, timeoutMs } = this.transport;
    const narrowed = { conversation: this.id, branch: this.branch, ...filters };
    const request = requests.search(query, lastPosition, filters.timeoutMs ?? timeoutMs, narrowed);
    return new Hits(await this.transport.unary(searchMethods.search, request, filters));
  }

  // ---- branches ----

  /**
   * A new branch that shares everything up to revision `at`. It costs one small event.
   *
   *     const other = await conv.fork({ at: 14, name: "another-way" });
   */
  async fork(options: ForkOptions = {}): Promise<Conversation> {
    const key = keyOrNew(options.idempotencyKey);
    const { at = 0, into = "", system = "", activate = false } = options;
    const request = {
      ...this.place,
      atRevision: at,
      name: options.name || (into ? "" : `fork-${unique(8)}`),
      systemPrompt: system,
      intoConversation: into,
      idempotencyKey: key,
      activate,
      actor: this.actor,
      expectedHead: options.expected ?? 0,
      keepLabels: options.keepLabels ?? false,
      keepSource: options.keepSource ?? false,
      labels: { ...options.labels },
      source: options.source ?? "",
      sourceId: options.sourceId ?? "",
    };
    const answer = await this.transport.unary(conversations.fork, request, { ...options, key });
    for (const event of answer.events) this.transport.saw(event.position?.offset ?? 0);
    const branch = into ? "" : (answer.branch?.name ?? "");
    return new Conversation(this.transport, answer.conversationId, branch, this.actor);
  }

  /**
   * Takes the branch back to revision `to`; 0: nothing stays but the conversation itself. What
   * came after comes with the answer, and stays on a branch of its own, `kept`.
   *
   *     const { events, kept } = await conv.rewind(14);
   */
  async rewind(to: number, options: RewindOptions = {}): Promise<Rewound> {
    const key = keyOrNew(options.idempotencyKey);
    const request = {
      ...this.place,
      toRevision: to,
      expectedHead: options.expected ?? 0,
      keepAs: options.keepAs ?? "",
      idempotencyKey: key,
      actor: this.actor,
      limit: options.limit ?? 0,
      headersOnly: false,
    };
    const answer = await this.transport.unary(conversations.rewind, request, { ...options, key });
    for (const event of answer.events) this.transport.saw(event.position?.offset ?? 0);
    return new Rewound(answer);
  }

  /** Changes what the conversation is called and what is kept with it; the rest stays. */
  async change(changes: make.Changes, options: WriteOptions = {}): Promise<Receipt> {
    return this.append([make.conversationChanged(changes)], options);
  }

  /** Makes this branch the one that is meant when none is named. */
  async activate(options: WriteOptions = {}): Promise<Receipt> {
    const request = this.ofBranch(options);
    return this.wrote(
      await this.transport.unary(conversations.activateBranch, request, {
        ...options,
        key: request.idempotencyKey,
      }),
    );
  }

  /** Gives the branch another name. */
  async rename(name: string, options: WriteOptions = {}): Promise<Conversation> {
    const request = { ...this.ofBranch(options), name };
    this.wrote(
      await this.transport.unary(conversations.renameBranch, request, {
        ...options,
        key: request.idempotencyKey,
      }),
    );
    return this.on(name);
  }

  /** Ends the branch: it takes nothing more, and stays readable. */
  async archive(reason = "", options: WriteOptions = {}): Promise<Receipt> {
    const request = { ...this.ofBranch(options), reason };
    return this.wrote(
      await this.transport.unary(conversations.archiveBranch, request, {
        ...options,
        key: request.idempotencyKey,
      }),
    );
  }

  private ofBranch(options: WriteOptions) {
    const idempotencyKey = keyOrNew(options.idempotencyKey);
    return { ...this.place, idempotencyKey, actor: this.actor };
  }

  // ---- the active context ----

  /** Sets and removes keys of the branch's active context, which the next request holds. */
  async setContext(
    values: Readonly<Record<string, unknown>>,
    options: ContextOptions = {},
  ): Promise<Receipt> {
    return changeContext(this.transport, this.place, this.actor, values, options);
  }

  /** The active context: these keys, or all. */
  async context(...keys: string[]): Promise<Record<string, Parsed>> {
    return getContext(this.transport, this.place, keys);
  }

  /** Keys of the active context as they are, then every change. */
  watchContext(keys: readonly string[] = [], { signal }: CallOptions = {}): ContextWatch {
    return new ContextWatch(this.transport, this.place, keys, signal);
  }

  // ---- sub-contexts ----

  /**
   * Begins a sub-context: a child conversation for a task of its own.
   *
   *     const child = await conv.spawn("Count the files");
   *     const answer = await child.run(async () => {
   *       await child.user("How many files are there?");
   *       await child.assistant("There are 12.");
   *     });
   */
  async spawn(purpose = "", options: SpawnOptions = {}): Promise<SubContext> {
    const key = keyOrNew(options.idempotencyKey);
    const { call = "", title, system, model, labels, id } = options;
    const request = SpawnRequest.fromPartial({
      ...this.place,
      callId: typeof call === "string" ? call : call.callId,
      purpose,
      title,
      config: model ? make.config(model) : undefined,
      systemPrompt: system,
      policies: jsonTexts(options.policies),
      labels,
      childId: id,
      idempotencyKey: key,
      actor: this.actor,
    });
    const answer = await this.transport.unary(contexts.spawn, request, { ...options, key });
    for (const event of answer.events) this.transport.saw(event.position?.offset ?? 0);
    // Its result comes with the child's return.
    if (call instanceof Call) call.endsElsewhere();
    return new SubContext(this.transport, answer.childId, "", this.actor);
  }
}

/** A child conversation that returns to its parent. */
export class SubContext extends Conversation implements AsyncDisposable {
  #hasReturned = false;

  /**
   * Ends the sub-context and tells the parent, with the result of the call that asked for it,
   * in one step. Without a summary: its last assistant message.
   */
  async return(
    summary = "",
    { success = true, ...options }: WriteOptions & { success?: boolean } = {},
  ): Promise<Receipt> {
    const key = keyOrNew(options.idempotencyKey);
    const request = {
      conversationId: this.id,
      summary,
      success,
      idempotencyKey: key,
      actor: this.actor,
    };
    const answer = await this.transport.unary(contexts.return, request, { ...options, key });
    this.#hasReturned = true;
    return this.wrote(answer);
  }

  /** Works, then returns: what it last said, or that it failed. */
  async run<T>(work: (child: this) => Promise<T>): Promise<T> {
    let done: T;
    try {
      done = await work(this);
    } catch (error) {
      if (!this.#hasReturned) await this.return(errorText(error), { success: false });
      throw error;
    }
    if (!this.#hasReturned) await this.return();
    return done;
  }

  /** A sub-context that is left without a return has failed. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#hasReturned) await this.return("it was left without a return", { success: false });
  }
}
