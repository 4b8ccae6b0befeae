// LangGraph's checkpointer, which stores threads of graphs as conversations.

import { isDeepStrictEqual } from "node:util";
import type { BaseMessage } from "@langchain/core/messages";
import type { RunnableConfig } from "@langchain/core/runnables";
import {
  BaseCheckpointSaver,
  type ChannelVersions,
  type Checkpoint,
  type CheckpointListOptions,
  type CheckpointMetadata,
  type CheckpointPendingWrite,
  type CheckpointTuple,
  type DeltaChannelHistory,
  getCheckpointId,
  JsonPlusSerializer,
  maxChannelVersion,
  type PendingWrite,
  type SerializerProtocol,
  TASKS,
} from "@langchain/langgraph-checkpoint";
import { strictJson } from "../adapters/frames.js";
import { TOLD_BY, Unanswered } from "../adapters/unanswered.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import type { Event } from "../types.js";
import { fromUtf8, type Parsed, utf8 } from "../words.js";
import type { Row } from "./rows.js";
import { answered, heardIn } from "./said.js";
import { GraphThread } from "./thread.js";

const SOURCE = "langgraph";
/** Maximum number of threads that are cached in memory. */
const THREADS_MAX = 128;
/** Digits of a channel's version: versions are compared as texts. */
const VERSION_DIGITS = 32;

/** Metadata is stored as JSON, whatever the serializer of values is. */
const metadataSerde = new JsonPlusSerializer();

/** Options of the saver. */
export interface SaverOptions {
  /** Serializer of values. Messages are events only with LangGraph's own serializer. */
  serde?: SerializerProtocol | undefined;
  /** The channel of the root graph whose messages are events ("messages"). */
  messagesKey?: string | undefined;
  /** Number of threads that are cached in memory (128). */
  threadsMax?: number | undefined;
}

/** The kinds of events from which messages are made. */
const SAID = ["message_appended", "tool_call_requested", "tool_result_recorded", "custom"] as const;
/** Whether `heardIn` takes the event. */
const isSaid = ({ kind }: Event): boolean =>
  kind !== "approval_decided" && kind !== "tool_call_started";

/**
 * Returns the messages of a conversation, of all programs, as LangChain messages.
 *
 * Messages of a graph keep their ids; other messages have ids derived from their events. A state
 * therefore takes each message once. A call without a result gets an error as its result, which is
 * not stored. With `others`, returns only messages of other programs that no graph got yet:
 *
 *     const others = await messages(conversation, { others: true });
 *     await graph.invoke({ messages: [...others, prompt] }, thread);
 */
export async function messages(
  conversation: Conversation,
  { others = false } = {},
): Promise<BaseMessage[]> {
  const calls = new Unanswered();
  const events = calls.noted(conversation.events({ kinds: [...SAID, ...TOLD_BY] }));
  const heard = await heardIn(only(events, isSaid));
  const wanted = heard.filter(({ isOfGraph }) => !(others && isOfGraph));
  return [...answered(wanted, heard, conversation.id, calls)];
}

async function* only<T>(all: AsyncIterable<T>, isWanted: (one: T) => boolean): AsyncGenerator<T> {
  for await (const one of all) if (isWanted(one)) yield one;
}

/**
 * Stores LangGraph's threads as conversations.
 *
 * `thread_id` is the conversation's source id or its UUID. The messages of the root graph's
 * `messages` channel are events on the branches of the conversation. The active branch has those of
 * the last checkpoint; continuing from an older checkpoint makes a branch. A value is stored once;
 * of a list, only the added elements are stored. The Python client's `TreeringSaver` reads and
 * writes the same threads.
 *
 * Checkpoints are looked up. Threads are cached in memory, and each call reads the new events, so
 * several programs may use one thread.
 */
export class TreeringSaver extends BaseCheckpointSaver {
  readonly #db: Treering;
  readonly #messagesKey: string;
  readonly #threadsMax: number;
  /** In the order of their last use. */
  readonly #threads = new Map<string, GraphThread>();

  constructor(db: Treering, options: SaverOptions = {}) {
    super(options.serde);
    this.#db = db;
    const isOwn = this.serde.constructor === JsonPlusSerializer;
    this.#messagesKey = isOwn ? (options.messagesKey ?? "messages") : "";
    this.#threadsMax = options.threadsMax ?? THREADS_MAX;
  }

  /** Returns the conversation of a thread, and creates it if needed. */
  async conversation(threadId: string): Promise<Conversation> {
    const thread = this.#thread(threadId);
    return thread.alone(() => thread.open());
  }

  // ---- reading ----

  /** Returns a checkpoint by id, or the latest. */
  async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
    const { thread_id: threadId, checkpoint_ns: ns = "" } = config.configurable ?? {};
    if (threadId === undefined) return undefined;
    const thread = this.#thread(threadId);
    return thread.alone(async () => {
      const id = getCheckpointId(config);
      const row = await thread.find(ns, id);
      return row && this.#tuple(thread, row, id ? config : undefined);
    });
  }

  /** Lists checkpoints of one thread or of all, newest first. */
  async *list(
    config: RunnableConfig,
    options: CheckpointListOptions = {},
  ): AsyncGenerator<CheckpointTuple> {
    const threadId = config.configurable?.thread_id;
    const threads = threadId === undefined ? await this.#all() : [this.#thread(threadId)];
    const found: { thread: GraphThread; row: Row }[] = [];
    for (const thread of threads) {
      await thread.alone(async () => {
        if (!(await thread.refresh())) return;
        for await (const row of rowsOf(thread, config, options)) found.push({ thread, row });
      });
    }
    found.sort((a, b) => (a.row.id < b.row.id ? 1 : a.row.id > b.row.id ? -1 : 0));
    const { limit = found.length } = options;
    for (const { thread, row } of found.slice(0, Math.max(0, limit))) {
      yield await thread.alone(() => this.#tuple(thread, row));
    }
  }

  async #tuple(thread: GraphThread, row: Row, config?: RunnableConfig): Promise<CheckpointTuple> {
    const { ns, id, parent } = row;
    const checkpoint: Checkpoint = await thread.values.loads(row.stored);
    const values = [...row.values].map(
      async ([channel, key]) => [channel, await thread.load(key)] as const,
    );
    checkpoint.channel_values = Object.fromEntries(await Promise.all(values));
    if (checkpoint.v < 4 && parent !== undefined)
      await this.#migrate(thread, ns, parent, checkpoint);
    const writes = thread.rows.writesTo(ns, id);
    const tuple: CheckpointTuple = {
      config: config ?? configOf(thread.id, ns, id),
      checkpoint,
      metadata: await metadataOf(row),
      pendingWrites: await Promise.all(
        writes.map(async ({ task, channel, stored }) => {
          return [task, channel, await thread.values.loads(stored)] as CheckpointPendingWrite;
        }),
      ),
    };
    if (parent !== undefined) tuple.parentConfig = configOf(thread.id, ns, parent);
    return tuple;
  }

  /** Adds the channel of sent tasks, which checkpoints before version 4 do not have. */
  async #migrate(thread: GraphThread, ns: string, parent: string, to: Checkpoint): Promise<void> {
    await thread.bringWrites(ns, parent);
    const sent = thread.rows.writesTo(ns, parent).filter(({ channel }) => channel === TASKS);
    const values = sent.map(({ stored }) => thread.values.loads(stored));
    to.channel_values[TASKS] = await Promise.all(values);
    const versions = Object.values(to.channel_versions);
    to.channel_versions[TASKS] = versions.length
      ? maxChannelVersion(...versions)
      : this.getNextVersion(undefined);
  }

  /**
   * Returns the writes of a checkpoint's ancestors to delta channels, oldest first, back to the
   * checkpoint that has the whole value of each channel.
   */
  override async getDeltaChannelHistory({
    config,
    channels,
  }: {
    config: RunnableConfig;
    channels: string[];
  }): Promise<Record<string, DeltaChannelHistory>> {
    const { thread_id: threadId, checkpoint_ns: ns = "" } = config.configurable ?? {};
    const thread = this.#thread(threadId);
    return thread.alone(async () => {
      const row = await thread.find(ns, getCheckpointId(config));
      return histories(thread, row, channels);
    });
  }

  // ---- writing ----

  /** Stores a checkpoint. Without `newVersions`, all of its values are new. */
  async put(
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    newVersions: ChannelVersions = checkpoint.channel_values as ChannelVersions,
  ): Promise<RunnableConfig> {
    const { checkpoint_ns: ns = "", checkpoint_id: parent } = config.configurable ?? {};
    const thread = this.#thread(threadOf(config));
    const [, kept] = await metadataSerde.dumpsTyped(metadata);
    const put = { ns, parent, checkpoint, metadata: fromUtf8(kept), newVersions };
    await thread.alone(() => thread.put(put));
    return configOf(thread.id, ns, checkpoint.id);
  }

  /** Stores the writes of a task until the next checkpoint. */
  async putWrites(
    config: RunnableConfig,
    writes: PendingWrite[],
    task: string,
    path = "",
  ): Promise<void> {
    const { checkpoint_ns: ns = "", checkpoint_id: id } = config.configurable ?? {};
    const thread = this.#thread(threadOf(config));
    if (id === undefined) throw new TypeError("`configurable` has no `checkpoint_id`");
    if (writes.length) await thread.alone(() => thread.putWrites({ ns, id, task, path }, writes));
  }

  /** Deletes a thread: its conversation continues on an empty branch. */
  async deleteThread(threadId: string): Promise<void> {
    const thread = this.#thread(threadId);
    await thread.alone(() => thread.deleteAll());
  }

  /**
   * Returns the version of a channel after this one; two versions after the same one differ. It is
   * a text, as in Python, although LangGraph's types declare a number.
   */
  override getNextVersion(current: number | undefined): number {
    const before = current === undefined ? 0 : Number.parseInt(String(current), 10);
    const next = String(before + 1).padStart(VERSION_DIGITS, "0");
    return `${next}.${String(Math.random()).padStart(16, "0")}` as unknown as number;
  }

  // ---- threads ----

  #thread(threadId: unknown): GraphThread {
    const id = String(threadId);
    const thread =
      this.#threads.get(id) ??
      new GraphThread(this.#db, id, {
        source: SOURCE,
        serde: this.serde,
        mirroredChannel: this.#messagesKey,
      });
    this.#threads.delete(id);
    this.#threads.set(id, thread);
    const [oldest] = this.#threads.keys();
    if (this.#threads.size > this.#threadsMax && oldest !== undefined) this.#threads.delete(oldest);
    return thread;
  }

  async #all(): Promise<GraphThread[]> {
    const threads: GraphThread[] = [];
    for await (const { title, sourceId } of this.#db.conversations({ source: SOURCE })) {
      threads.push(this.#thread(title || sourceId));
    }
    return threads;
  }
}

async function histories(
  thread: GraphThread,
  of: Row | undefined,
  channels: readonly string[],
): Promise<Record<string, DeltaChannelHistory>> {
  const told = new Map<string, DeltaChannelHistory>();
  for (const channel of channels) told.set(channel, { writes: [] });
  const left = new Set(channels);
  for await (const row of of ? thread.ancestorsOf(of) : []) {
    const writes = thread.rows.writesTo(row.ns, row.id);
    for (const channel of left) {
      const history = told.get(channel);
      const own = writes.filter((each) => each.channel === channel);
      const loaded = own.map(async ({ task, stored }): Promise<CheckpointPendingWrite> => {
        return [task, channel, await thread.values.loads(stored)];
      });
      history?.writes.unshift(...(await Promise.all(loaded)));
      const key = row.values.get(channel);
      if (key === undefined || !history) continue;
      history.seed = await thread.load(key);
      left.delete(channel);
    }
    if (!left.size) break;
  }
  return Object.fromEntries(told);
}

function threadOf(config: RunnableConfig): unknown {
  const threadId = config.configurable?.thread_id;
  if (threadId === undefined || threadId === "") {
    throw new TypeError("`configurable` has no `thread_id`");
  }
  return threadId;
}

const configOf = (threadId: string, ns: string, id: string): RunnableConfig => ({
  configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: id },
});

const metadataOf = ({ metadata }: Row): Promise<CheckpointMetadata> =>
  metadataSerde.loadsTyped("json", utf8(strictJson(metadata)));

async function* rowsOf(
  thread: GraphThread,
  { configurable: { checkpoint_ns: ns, checkpoint_id: id } = {} }: RunnableConfig,
  { filter = {}, before }: CheckpointListOptions,
): AsyncGenerator<Row> {
  const end = before ? getCheckpointId(before) : "";
  const wanted = Object.entries(filter).filter(([, value]) => value !== undefined);
  for (const rows of thread.rows.checkpoints.values()) {
    for (const row of rows.values()) {
      if (ns !== undefined && row.ns !== ns) continue;
      if ((id && row.id !== id) || (end && row.id >= end)) continue;
      const metadata: Parsed = wanted.length ? await metadataOf(row) : {};
      if (wanted.every(([key, value]) => isDeepStrictEqual(at(metadata, key), value))) yield row;
    }
  }
}

/** Returns what a filter names: `a.b` is also `b` in `a`, as for LangGraph's SQLite savers. */
function at(metadata: Parsed, name: string): unknown {
  if (Object.hasOwn(metadata, name)) return metadata[name];
  return name.split(".").reduce((value, part) => value?.[part], metadata);
}
