// A thread of a graph: its conversation, and what is in it.

import type { BaseMessage } from "@langchain/core/messages";
import {
  type ChannelVersions,
  type Checkpoint,
  type SerializerProtocol,
  WRITES_IDX_MAP,
} from "@langchain/langgraph-checkpoint";
import { frame } from "../adapters/frames.js";
import {
  ATTEMPTS_MAX,
  before,
  fitted,
  forked,
  Mutex,
  openCalls,
  rewind,
  Thread,
} from "../adapters/thread.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Receipt } from "../types.js";
import { fromUtf8, type Parsed } from "../words.js";
import { KnownMessages } from "./known.js";
import {
  common,
  expanded,
  type Key,
  keyBytes,
  keyOf,
  overlap,
  type Spliced,
  spliced,
} from "./lists.js";
import { canonical, isMessage, messageOf, plain, typed } from "./messages.js";
import { type Packable, packed } from "./msgpack.js";
import { fromPython, PYTHON_KINDS } from "./python.js";
import {
  type Branch,
  CHECKPOINT,
  checkpointKey,
  DELETED,
  LATEST,
  latestKey,
  MESSAGES,
  type Row,
  Rows,
  type Stored,
  WRITES,
} from "./rows.js";

/** So often the typed form of messages is tried; then they are kept as values only. */
const REFUSALS_MAX = 3;
const MSGPACK = "application/msgpack";

/** A message, and what it is as JSON. */
interface Mirrored {
  key: Key;
  message: BaseMessage;
}

/** What a checkpoint adds to the thread. */
interface Batch {
  values: Map<Key, Stored>;
  lists: Map<Key, Spliced>;
  /** Of the mirrored channel; undefined: it has no such value. */
  messages: Mirrored[] | undefined;
}

/** Where the messages of a checkpoint go. */
interface Turn {
  parent: Branch;
  name: string;
  /** Its calls without a result. */
  open: Set<string>;
  /** Fork and activate, if it is another branch than before. */
  events: NewEvent[];
  added: Mirrored[];
}

/** A checkpoint on its way in. */
export interface Put {
  ns: string;
  parent: string | undefined;
  checkpoint: Checkpoint;
  /** As JSON. */
  metadata: string;
  newVersions: ChannelVersions;
}

/** A thread. Whoever uses it does so within `alone`. */
export class GraphThread {
  readonly rows: Rows;
  readonly #serde: SerializerProtocol;
  readonly #mirroredChannel: string;
  readonly #thread: Thread;
  readonly #known = new KnownMessages();
  readonly #mutex = new Mutex();
  #conversation: Conversation | undefined;

  constructor(
    db: Treering,
    source: string,
    readonly id: string,
    serde: SerializerProtocol,
    mirroredChannel: string,
  ) {
    this.#serde = serde;
    this.#mirroredChannel = mirroredChannel;
    this.#thread = new Thread(db, source, id, { title: id });
    this.rows = new Rows((key, said) => this.#known.take(key, said));
  }

  /** Does the work when no other work on the thread is under way. */
  alone<T>(work: () => Promise<T>): Promise<T> {
    return this.#mutex.run(work);
  }

  /** The conversation; begins it the first time. */
  async open(): Promise<Conversation> {
    if (!this.#conversation) {
      this.#conversation = await this.#thread.open();
      await this.#read(this.#conversation);
    }
    return this.#conversation;
  }

  /** Reads what is new; false when there is no such thread. */
  async refresh(): Promise<boolean> {
    this.#conversation ??= await this.#thread.find();
    if (this.#conversation) await this.#read(this.#conversation);
    return this.#conversation !== undefined;
  }

  async #read(conversation: Conversation): Promise<void> {
    const first = this.rows.seen + 1;
    for await (const event of conversation.events({ first, allBranches: true })) {
      if (event.revision !== this.rows.seen + 1) continue;
      this.rows.apply(event.revision, event.proto.branchId, event.body, event.branch);
    }
  }

  /** The checkpoint that a checkpoint follows on. */
  parentOf(row: Row | undefined): Row | undefined {
    return row?.parent === undefined ? undefined : this.rows.find(row.ns, row.parent);
  }

  // ---- values ----

  /** What a serializer made, as a value. */
  async loads([kind, data]: Stored): Promise<Parsed> {
    return PYTHON_KINDS.has(kind) ? fromPython(kind, data) : this.#serde.loadsTyped(kind, data);
  }

  /** A value. */
  async load(key: Key): Promise<Parsed> {
    if (!this.rows.lists.has(key)) return this.#element(key);
    const keys = expanded(this.rows.lists, key);
    return Promise.all(keys.map((each) => this.#element(each)));
  }

  async #element(key: Key): Promise<Parsed> {
    const message = this.#known.made(key);
    if (message) return message;
    const stored = this.rows.values.get(key);
    if (!stored) throw new TypeError("a checkpoint names a value that its thread does not have");
    const value = await this.loads(stored);
    // Of Python's, the key is not what it would be here.
    if (isMessage(value) && PYTHON_KINDS.has(stored[0])) this.#known.note(value, key);
    return value;
  }

  async #value(
    batch: Batch,
    value: unknown,
    old: Key | undefined,
    mirrored: boolean,
  ): Promise<Key> {
    if (mirrored && Array.isArray(value) && !value.length) batch.messages = [];
    if (!isKeptAsList(value)) return this.#kept(batch, value);
    const isMirrored = mirrored && value.every(isMessage);
    const keys: Key[] = [];
    for (const each of value) {
      keys.push(await (isMessage(each) ? this.#message(batch, each) : this.#kept(batch, each)));
    }
    if (isMirrored) {
      batch.messages = keys.map((key, index) => ({ key, message: value[index] as BaseMessage }));
    }
    const key = keyOf("list\0", keys.join(""));
    if (!this.rows.lists.has(key) && !batch.lists.has(key)) {
      const isList = old !== undefined && this.rows.lists.has(old);
      batch.lists.set(key, spliced(old, isList ? expanded(this.rows.lists, old) : [], keys));
    }
    return key;
  }

  async #kept(batch: Batch, value: unknown): Promise<Key> {
    const stored = await this.#serde.dumpsTyped(value);
    return this.#has(batch, keyOf(stored[0], "\0", stored[1]), stored);
  }

  #has(batch: Batch, key: Key, stored: Stored): Key {
    if (!this.rows.values.has(key) && !this.#known.has(key)) batch.values.set(key, stored);
    return key;
  }

  async #message(batch: Batch, message: BaseMessage): Promise<Key> {
    const known = this.#known.keyOf(message);
    if (known !== undefined && (this.#known.has(known) || this.rows.values.has(known)))
      return known;
    const stored = await this.#serde.dumpsTyped(message);
    const own = this.#ownKey(stored);
    const key = this.#has(batch, this.#known.aliasOf(own), stored);
    if (isPlain(stored)) this.#known.note(message, key);
    return key;
  }

  /** The key of a message, which is the same for what comes back of it. */
  #ownKey([kind, data]: Stored): Key {
    const isOpaque = this.#mirroredChannel === "" || kind !== "json";
    if (isOpaque) return keyOf(kind, "\0", data);
    return keyOf("message\0", canonical(JSON.parse(fromUtf8(data))));
  }

  // ---- checkpoints ----

  /** Stores a checkpoint. */
  async put(put: Put): Promise<void> {
    const conversation = await this.open();
    let refusals = 0;
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      await this.#known.settle(async (message) =>
        this.#ownKey(await this.#serde.dumpsTyped(message)),
      );
      const batch: Batch = { values: new Map(), lists: new Map(), messages: undefined };
      const values = await this.#values(batch, put);
      const isTyped = refusals < REFUSALS_MAX && batch.messages !== undefined;
      try {
        const turn = isTyped ? await this.#turn(batch.messages ?? []) : undefined;
        const framed = turn ? await this.#frame(batch, turn) : [];
        const rows = [this.#latest(put, turn), await this.#row(batch, put, values)];
        await this.#append(conversation, turn, rows, framed);
        return;
      } catch (error) {
        if (!(error instanceof errors.Conflict)) {
          const isRefused = [errors.Refused, errors.Invalid, errors.NotFound].some(
            (kind) => error instanceof kind,
          );
          if (!isTyped || !isRefused) throw error;
          refusals += 1;
          for (const branch of this.rows.branches.values()) branch.open = undefined;
        }
        // Another program wrote to the thread.
        await this.#read(conversation);
      }
    }
    throw new errors.RevisionMismatch(`others write to the thread ${this.id} all the time`);
  }

  async #values(batch: Batch, put: Put): Promise<Map<string, Key>> {
    const { ns, parent, checkpoint, newVersions } = put;
    const row = parent === undefined ? undefined : this.rows.find(ns, parent);
    const versions = row ? (await this.loads(row.stored)).channel_versions : {};
    const values = new Map<string, Key>();
    for (const [channel, value] of Object.entries(checkpoint.channel_values)) {
      const old = row?.values.get(channel);
      const isNew = Object.hasOwn(newVersions, channel);
      const version = checkpoint.channel_versions[channel];
      const isSame = version !== undefined && version === versions[channel];
      if (!isNew && isSame && old !== undefined) {
        values.set(channel, old);
      } else if (isNew || row) {
        // Of a first checkpoint, what is new is all that LangGraph wants stored.
        const isMirrored = ns === "" && channel === this.#mirroredChannel;
        values.set(channel, await this.#value(batch, value, old, isMirrored));
      }
    }
    return values;
  }

  /** What says, in front of a checkpoint, that it is the latest one of its namespace. */
  #latest({ ns, checkpoint: { id } }: Put, turn: Turn | undefined): NewEvent {
    const said: Packable = {
      ns,
      id,
      top: this.rows.latest(ns)?.id ?? null,
      seen: this.rows.seen,
      before: turn?.events.length ?? 0,
    };
    return make.custom(LATEST, packed(said), { contentType: MSGPACK, key: latestKey(ns) });
  }

  async #row(batch: Batch, put: Put, values: ReadonlyMap<string, Key>): Promise<NewEvent> {
    const checkpoint = { ...put.checkpoint, channel_values: {} };
    const [kind, data] = await this.#serde.dumpsTyped(checkpoint);
    const said: Packable = {
      ns: put.ns,
      id: put.checkpoint.id,
      parent: put.parent ?? null,
      type: kind,
      checkpoint: data,
      metadata: put.metadata,
      values: Object.fromEntries([...values].map(([channel, key]) => [channel, keyBytes(key)])),
      new: [...batch.values].map(([key, [kind, data]]) => [keyBytes(key), kind, data]),
      lists: [...batch.lists].map(([key, { base, start, stop, added }]) => [
        keyBytes(key),
        base === undefined ? null : keyBytes(base),
        start,
        stop,
        added.map(keyBytes),
      ]),
    };
    const key = checkpointKey(put.ns, put.checkpoint.id);
    return make.custom(CHECKPOINT, packed(said), { contentType: MSGPACK, key });
  }

  async #append(
    conversation: Conversation,
    turn: Turn | undefined,
    rows: readonly NewEvent[],
    framed: readonly NewEvent[],
  ): Promise<void> {
    if (!turn) {
      this.#took(await conversation.append(rows), rows);
      return;
    }
    const events = [...turn.events, ...rows, ...framed].map((event) =>
      event.body?.$case === "branchForked" ? event : { ...event, branch: turn.name },
    );
    const on = conversation.on(turn.parent.name);
    this.#took(await on.append(events, { expected: turn.parent.head }), events);
  }

  // ---- messages ----

  /** Where to write so that the branch says what the state says. */
  async #turn(messages: readonly Mirrored[]): Promise<Turn> {
    const wanted = messages.map(({ key }) => key);
    const id = this.#branchFor(wanted);
    const parent = this.rows.branches.get(id);
    if (!parent) throw new errors.BranchNotFound(`the thread ${this.id} has no branch ${id}`);
    const same = common(parent.mirrored, wanted);
    // Where the state has let go of its first messages, the conversation need not.
    const kept = same === parent.mirrored.length ? same : overlap(parent.mirrored, wanted);
    let turn: Turn;
    if (same === parent.mirrored.length || kept) {
      const open = await this.#open(parent);
      turn = { parent, name: parent.name, open, events: [], added: messages.slice(kept) };
    } else {
      const name = `from-${this.rows.seen}`;
      const at = same ? (parent.ends[same - 1] ?? 1) : await this.#beforeAll(parent);
      const open = openCalls(await (await this.open()).on(parent.name).state({ asOf: at }));
      const events = [forked(name, id, at)];
      turn = { parent, name, open, events, added: messages.slice(same) };
    }
    if (turn.events.length || id !== this.rows.active) turn.events.push(make.branchActivated());
    return turn;
  }

  /** The branch that has most of these messages, if possible with no others after them. */
  #branchFor(wanted: readonly Key[]): number {
    const { active, branches } = this.rows;
    const now = branches.get(active)?.mirrored ?? [];
    if (common(now, wanted) === now.length || overlap(now, wanted)) return active;
    const worth = (id: number, { mirrored }: Branch): number[] => {
      const same = common(mirrored, wanted);
      const isWhole = mirrored.length > 0 && same === mirrored.length;
      return [Number(isWhole), same, Number(id === active)];
    };
    const [best] = [...branches]
      .filter(([, { archived }]) => !archived)
      .map(([id, branch]) => ({ id, worth: worth(id, branch) }))
      .sort((a, b) => a.worth.reduce((sum, each, at) => sum || (b.worth[at] ?? 0) - each, 0));
    return best?.id ?? active;
  }

  /** The messages that are new on the branch. */
  async #frame(batch: Batch, turn: Turn): Promise<NewEvent[]> {
    if (!turn.added.length) return [];
    const items: [unknown, NewEvent[]][] = [];
    for (const mirrored of turn.added) {
      const events = fitted(typed(mirrored.message), turn.open);
      items.push([await this.#fields(batch, mirrored), events]);
    }
    return frame(MESSAGES, items, { keys: turn.added.map(({ key }) => key) });
  }

  /** A message's fields go to the frame, or else (`null`) its bytes to the row. */
  async #fields(batch: Batch, { key, message }: Mirrored): Promise<Parsed> {
    const stored = batch.values.get(key);
    const said = stored && plain(message);
    const again = said && messageOf(structuredClone(said));
    if (!stored || !again) return null;
    if (this.#ownKey(await this.#serde.dumpsTyped(again)) !== this.#ownKey(stored)) return null;
    batch.values.delete(key);
    return said;
  }

  /** What others wrote before the graph said anything stays: prompts, for example. */
  async #beforeAll({ name, begin }: Branch): Promise<number> {
    return begin ? before((await this.open()).on(name), begin) : 1;
  }

  async #open(branch: Branch): Promise<Set<string>> {
    branch.open ??= openCalls(await (await this.open()).on(branch.name).state());
    return new Set(branch.open);
  }

  // ---- writes ----

  /** Stores what a task wrote. */
  async putWrites(
    place: { ns: string; id: string; task: string; path: string },
    writes: readonly (readonly [channel: string, value: unknown])[],
  ): Promise<void> {
    const made = await Promise.all(
      writes.map(async ([channel, value], index) => {
        const [kind, data] = await this.#serde.dumpsTyped(value);
        return [WRITES_IDX_MAP[channel] ?? index, channel, kind, data] as const;
      }),
    );
    await this.#note(WRITES, { ...place, writes: made }, checkpointKey(place.ns, place.id));
  }

  // ---- deleting ----

  /** Takes everything back. */
  async deleteAll(): Promise<void> {
    if (!(await this.refresh()) || this.rows.isEmpty) return;
    await this.#note(DELETED, { all: true });
    const conversation = await this.open();
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      try {
        await rewind(conversation, await conversation.state(), 1);
        break;
      } catch (error) {
        if (!(error instanceof errors.Conflict)) throw error;
      }
    }
    await this.#read(conversation);
  }

  async #note(typeName: string, said: Packable, key = ""): Promise<void> {
    const event = make.custom(typeName, packed(said), { contentType: MSGPACK, key });
    this.#took(await (await this.open()).append([event]), [event]);
  }

  /** What was appended is known without reading it, if nothing came between. */
  #took(receipt: Receipt, events: readonly NewEvent[]): void {
    if (receipt.repeated || receipt.revisions[0] !== this.rows.seen + 1) return;
    let branch = this.rows.active;
    for (const [index, { body, branch: name }] of events.entries()) {
      const revision = receipt.revisions[index] ?? 0;
      if (body?.$case === "branchForked") branch = revision;
      else if (name) branch = this.#named(name) ?? branch;
      this.rows.apply(revision, branch, body);
    }
  }

  #named(name: string): number | undefined {
    for (const [id, branch] of this.rows.branches) if (branch.name === name) return id;
    return undefined;
  }
}

/** Lists of what is more than a number are stored by what is added to them. */
const isKeptAsList = (value: unknown): value is unknown[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  !value.some((each) => ["number", "boolean", "undefined"].includes(typeof each) || each === null);

/** It has nothing that JSON does not say, such as a `Map`, whose changes would not be seen. */
const isPlain = ([kind, data]: Stored): boolean =>
  kind === "json" && !Buffer.from(data.buffer, data.byteOffset, data.length).includes('"lc":2');
