// Reads a thread of a graph, and keeps in memory what it has read.

import type { SerializerProtocol } from "@langchain/langgraph-checkpoint";
import { Mutex, Thread } from "../adapters/thread.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { Event } from "../types.js";
import type { Parsed } from "../words.js";
import { NotedMessages } from "./known.js";
import { expanded, type Key } from "./lists.js";
import { Lookups, NotSaidError } from "./lookup.js";
import { isMessage } from "./messages.js";
import { type Row, Rows } from "./rows.js";
import { isPythons, Values } from "./values.js";

/**
 * Maximum number of older checkpoints that are looked up. For more, the whole thread is read once:
 * later reads are then faster than lookups.
 */
const LOOKED_UP_MAX = 4;

/** The source of a thread, and how its values are stored. */
export interface ThreadOptions {
  source: string;
  serde: SerializerProtocol;
  /** The channel whose messages are events; empty for none. */
  mirroredChannel: string;
}

/**
 * Reads a thread. Call its methods within `alone`.
 *
 * `rows` has what was read. Until something needs the whole thread, the rows begin at the latest
 * checkpoint, and older checkpoints are looked up.
 */
export class ThreadReader {
  rows = new Rows();
  readonly mirroredChannel: string;
  readonly values: Values;
  /** Messages that were read or written as objects. */
  readonly noted = new NotedMessages();
  readonly #db: Treering;
  readonly #thread: Thread;
  readonly #mutex = new Mutex();
  #conversation: Conversation | undefined;
  #lookedUp = 0;
  /** Revisions of the checkpoints whose values are all in `rows`. */
  readonly #brought = new Set<number>();
  /** Checkpoints whose writes are all in `rows`. */
  readonly #hasWrites = new Set<string>();

  constructor(
    db: Treering,
    readonly id: string,
    { source, serde, mirroredChannel }: ThreadOptions,
  ) {
    this.#db = db;
    this.mirroredChannel = mirroredChannel;
    this.values = new Values(serde, mirroredChannel !== "");
    this.#thread = new Thread(db, source, id, { title: id });
  }

  /** Runs the task when no other task on the thread is running. */
  alone<T>(work: () => Promise<T>): Promise<T> {
    return this.#mutex.run(work);
  }

  /** Returns the conversation; creates it if needed. */
  async open(): Promise<Conversation> {
    this.#conversation ??= await this.#thread.open();
    return this.#conversation;
  }

  // ---- reading ----

  /** Reads the whole thread, or its new events; returns false if it does not exist. */
  async refresh(): Promise<boolean> {
    this.#conversation ??= await this.#thread.find();
    if (this.#conversation) await this.readAll(this.#conversation);
    return this.#conversation !== undefined;
  }

  /**
   * Returns a checkpoint by its id, or the latest, with the writes to it.
   *
   * Looks up what it needs; if that is not possible, reads the whole thread.
   */
  async find(ns: string, id: string | undefined): Promise<Row | undefined> {
    try {
      const row = await (id ? this.byId(ns, id) : this.latest(ns));
      if (row) await bothOf(this.bring(row), this.bringWrites(ns, row.id));
      return row;
    } catch (error) {
      if (error instanceof errors.NotFound) return undefined;
      if (!(error instanceof NotSaidError)) throw error;
    }
    if (!(await this.refresh())) return undefined;
    return id ? this.rows.find(ns, id) : this.rows.latest(ns);
  }

  /** Yields the ancestors of a checkpoint, newest first, with the writes to them. */
  async *ancestorsOf(row: Row): AsyncGenerator<Row, void, undefined> {
    let at: Row | undefined = row;
    for (let number = 0; at?.parent !== undefined; number += 1) {
      if (number >= LOOKED_UP_MAX && !this.rows.isWhole) await this.refresh();
      at = await (this.rows.isWhole
        ? this.rows.find(row.ns, at.parent)
        : this.find(row.ns, at.parent));
      if (at) yield at;
    }
  }

  #lookups(): Lookups {
    // Do not check that the conversation exists: the first lookup fails if it does not.
    const found = this.#conversation ?? this.#db.conversation(this.#thread.sourceId);
    return new Lookups(this.#db, found);
  }

  /** Returns the latest checkpoint. Throws `NotSaidError` if it requires reading the thread. */
  protected async latest(ns: string): Promise<Row | undefined> {
    if (this.rows.seen) await this.#readNew();
    if (!this.knows(ns)) {
      const lookups = this.#lookups();
      const revision = await lookups.latest(ns);
      const { seen, first } = this.rows;
      if (!seen && !revision) return undefined;
      const isOlder = revision > 0 && revision < first;
      if (!seen || (ns === "" && isOlder)) await this.#begin(lookups, revision);
      else if (isOlder) await this.#add(lookups, await lookups.row(this.rows, revision + 1));
      else if (revision > seen) await this.#readNew();
      this.rows.tops.add(ns);
    }
    return this.rows.latest(ns);
  }

  /** Whether `rows` has the latest checkpoint of a namespace, if there is one. */
  protected knows(ns: string): boolean {
    return this.rows.isWhole || this.rows.tops.has(ns);
  }

  /** Reads the thread from a checkpoint on. */
  async #begin(lookups: Lookups, revision: number): Promise<void> {
    if (this.rows.seen) this.rows = new Rows();
    this.rows.begin(revision);
    this.#forget();
    for await (const event of lookups.since(revision)) {
      this.#conversation ??= this.#db.conversation(event.conversationId);
      this.#apply(event);
    }
    if (this.rows.lacksDeleted) throw new NotSaidError();
  }

  /** Adds a checkpoint that is older than the events that were read. */
  async #add(lookups: Lookups, row: Row): Promise<void> {
    if (await lookups.isAnythingDeleted(row.revision, this.rows.first)) throw new NotSaidError();
    this.rows.add(row);
  }

  /** Returns a checkpoint by its id. Throws `NotSaidError` if it requires reading the thread. */
  protected async byId(ns: string, id: string): Promise<Row | undefined> {
    if (this.rows.seen) {
      await this.#readNew();
      const row = this.rows.find(ns, id);
      if (row || this.rows.isWhole) return row;
    }
    this.#lookedUp += 1;
    if (this.#lookedUp > LOOKED_UP_MAX) throw new NotSaidError();
    const found = await this.#lookups().named(this.rows, ns, id);
    if (!found) return undefined;
    if (this.rows.seen) this.rows.add(found.row);
    // Without rows, later writes to other checkpoints would be missed.
    else this.#hasWrites.clear();
    this.#takeWrites(ns, id, found.writes);
    this.#hasWrites.add(placeOf(ns, id));
    return found.row;
  }

  /** Looks up the values of a checkpoint, unless they are known. */
  async bring(row: Row): Promise<void> {
    if (this.rows.isWhole || this.#brought.has(row.revision)) return;
    await this.#lookups().bring(this.rows, row);
    if (this.rows.seen) this.#brought.add(row.revision);
  }

  /** Looks up the writes to a checkpoint: some may be older than the events that were read. */
  async bringWrites(ns: string, id: string): Promise<void> {
    if (this.rows.isWhole || this.#hasWrites.has(placeOf(ns, id))) return;
    this.#takeWrites(ns, id, await this.#lookups().writes(ns, id));
    if (this.rows.seen) this.#hasWrites.add(placeOf(ns, id));
  }

  /** Replaces the writes to a checkpoint, in order; later ones may be taken twice. */
  #takeWrites(ns: string, id: string, writes: readonly Event[]): void {
    this.rows.forgetWrites(ns, id);
    for (const { body } of writes) {
      if (body?.$case === "custom") this.rows.takeWrites(body.value.data);
    }
  }

  #forget(): void {
    this.#brought.clear();
    this.#hasWrites.clear();
  }

  async #readNew(): Promise<void> {
    await this.#read(await this.open());
    if (this.rows.lacksDeleted) throw new NotSaidError();
  }

  /** Reads the whole thread, or its new events. */
  protected async readAll(conversation: Conversation): Promise<void> {
    if (!this.rows.isWhole) {
      this.rows = new Rows();
      this.#forget();
    }
    await this.#read(conversation);
  }

  /** Reads new events; reads the whole thread if something was deleted. */
  protected async catchUp(conversation: Conversation): Promise<void> {
    await this.#read(conversation);
    if (this.rows.lacksDeleted) await this.readAll(conversation);
  }

  async #read(conversation: Conversation): Promise<void> {
    const first = this.rows.seen + 1;
    for await (const event of conversation.events({ first, allBranches: true })) this.#apply(event);
  }

  #apply({ revision, proto, branch }: Event): void {
    if (revision === this.rows.seen + 1) {
      this.rows.apply(revision, proto.branchId, proto.body, branch);
    }
  }

  // ---- values ----

  /** Returns a value. */
  async load(key: Key): Promise<Parsed> {
    if (!this.rows.lists.has(key)) return this.#element(key);
    const keys = expanded(this.rows.lists, key);
    return Promise.all(keys.map((each) => this.#element(each)));
  }

  async #element(key: Key): Promise<Parsed> {
    const message = this.rows.messages.made(key);
    if (message) {
      this.noted.note(message, key);
      return message;
    }
    const stored = this.rows.values.get(key);
    if (!stored) throw new TypeError("a checkpoint names a value that its thread does not have");
    const value = await this.values.loads(stored);
    if (isMessage(value) && isPythons(stored)) this.noted.note(value, key);
    return value;
  }
}

/** Waits for both, so that neither changes rows after the other has failed. */
async function bothOf(...work: [Promise<void>, Promise<void>]): Promise<void> {
  for (const ended of await Promise.allSettled(work)) {
    if (ended.status === "rejected") throw ended.reason;
  }
}

const placeOf = (ns: string, id: string): string => JSON.stringify([ns, id]);
