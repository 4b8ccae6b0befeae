// The content of a thread's events, as tables in memory that are kept up to date.
//
// The rows begin at the first event and are whole, or they begin at a later event, and older events
// are looked up when needed. Afterwards only new events are read. The Python client writes and
// reads the same rows.

import { WRITES_IDX_MAP } from "@langchain/langgraph-checkpoint";
import { type Body, filled, jsonOf } from "../adapters/frames.js";
import type { BranchForked, Custom } from "../gen/treering/v1/event.js";
import { type Parsed, utf8 } from "../words.js";
import { type Branch, branchNamed, forkOf, track } from "./branches.js";
import { SaidMessages } from "./known.js";
import { type Key, keyHex, type Spliced } from "./lists.js";
import { unpacked } from "./msgpack.js";
import { type At, IN_ROW, isRuns, type Place, type Run, type Runs, unpackedAt } from "./places.js";

export const CHECKPOINT = "langgraph.checkpoint";
export const WRITES = "langgraph.writes";
export const MESSAGES = "langgraph.messages";
export const DELETED = "langgraph.deleted";
/** Precedes each checkpoint, with the event key of its namespace: lookups begin with it. */
export const LATEST = "langgraph.latest";

/** A serialised value: kind and bytes. */
export type Stored = readonly [kind: string, data: Uint8Array];

/** A checkpoint without its values. */
export interface Row {
  ns: string;
  id: string;
  parent: string | undefined;
  stored: Stored;
  /** As JSON. */
  metadata: string;
  values: ReadonlyMap<string, Key>;
  revision: number;
  branch: number;
  /** Places of its values; undefined if its writer did not store them. */
  at: ReadonlyMap<string, At> | undefined;
  /** Whether its branch, the active one, ends with its messages. */
  isMirrored: boolean;
}

/** A pending write. */
export interface Write {
  path: string;
  task: string;
  idx: number;
  channel: string;
  stored: Stored;
}

/** An event of a frame. */
export interface Held {
  revision: number;
  body: Body;
}

/** A frame: the keys of its messages, and the number of events of each. */
interface Framed {
  keys: Key[];
  items: [count: number, packed: Parsed][];
}

/** The frame of messages that is being read. */
interface Reading extends Framed {
  frame: number;
  held: Held[];
}

type Said = Record<string, Parsed>;

/** A thread's rows. */
export class Rows {
  /** Revision of the first event that was read. */
  first = 1;
  /** Revision of the last event that was read. */
  seen = 0;
  active = 0;
  readonly branches = new Map<number, Branch>([[0, branchNamed("main")]]);
  /** If the rows are not whole: namespaces whose latest checkpoint they have. */
  readonly tops = new Set<string>();
  /** Whether something was deleted that may be older than the rows. */
  lacksDeleted = false;
  /** By namespace, then by id. */
  readonly checkpoints = new Map<string, Map<string, Row>>();
  readonly values = new Map<Key, Stored>();
  readonly messages = new SaidMessages();
  readonly lists = new Map<Key, Spliced>();
  /** Places of values and messages. */
  readonly places = new Map<Key, Place>();
  /** Keys of the values that rows and frames hold, by revision. */
  readonly holds = new Map<number, readonly Key[]>();
  /** Lists of which a row has all runs, by the row and the channel. */
  readonly #full = new Map<string, readonly Run[]>();
  /** By checkpoint, then by index and task. */
  readonly #writes = new Map<string, Map<string, Write>>();
  #reading: Reading | undefined;

  // ---- reading ----

  /** Whether the thread was read and the rows have every event. */
  get isWhole(): boolean {
    return this.first === 1 && this.seen > 0;
  }

  /** Whether there are neither checkpoints nor writes. */
  get isEmpty(): boolean {
    return [...this.checkpoints.values()].every(({ size }) => size === 0) && !this.#writes.size;
  }

  /** Whether the rows have a value. */
  has(key: Key): boolean {
    return this.values.has(key) || this.messages.has(key);
  }

  /** Makes the rows begin at an event. */
  begin(first: number): void {
    this.first = first;
    this.seen = first - 1;
    this.branches.clear();
  }

  /** Returns the checkpoint with the highest id. */
  latest(ns: string): Row | undefined {
    return this.#highest(ns, (one, other) => one.id > other.id);
  }

  /** Returns the checkpoint that was put last. */
  newest(ns: string): Row | undefined {
    return this.#highest(ns, (one, other) => one.revision > other.revision);
  }

  #highest(ns: string, isHigher: (one: Row, other: Row) => boolean): Row | undefined {
    let highest: Row | undefined;
    for (const row of this.checkpoints.get(ns)?.values() ?? []) {
      if (!highest || isHigher(row, highest)) highest = row;
    }
    return highest;
  }

  /** Returns a checkpoint by its id. */
  find(ns: string, id: string): Row | undefined {
    return this.checkpoints.get(ns)?.get(id);
  }

  /** Returns the writes to a checkpoint, in the order in which LangGraph applies them. */
  writesTo(ns: string, id: string): Write[] {
    const held = this.#writes.get(placeOf(ns, id))?.values() ?? [];
    return [...held].sort(
      (a, b) => ordered(a.path, b.path) || ordered(a.task, b.task) || a.idx - b.idx,
    );
  }

  /** Returns a list of which a row has all runs. */
  full(revision: number, channel: string): readonly Run[] | undefined {
    return this.#full.get(fullKey(revision, channel));
  }

  /** Returns all runs of a list; undefined if its base row was not read. */
  runs(channel: string, { base, kept, tail }: Runs): Run[] | undefined {
    if (!base) return [...tail];
    const ofBase = this.full(base, channel);
    return ofBase && [...ofBase.slice(0, kept), ...tail];
  }

  // ---- keeping up to date ----

  /** Applies the next event. */
  apply(revision: number, branchId: number, body: Body, branchName = ""): void {
    this.seen = revision;
    const id = body?.$case === "branchForked" ? revision : branchId;
    const on =
      body?.$case === "branchForked"
        ? this.#fork(body.value)
        : (this.branches.get(id) ?? branchNamed(branchName, this.isWhole));
    this.branches.set(id, on);
    on.head = revision;
    // If the rows are not whole: a checkpoint is on the branch that was active then.
    if (body?.$case === "branchActivated" || (revision === this.first && !this.isWhole)) {
      this.active = id;
    }
    track(on, body);
    if (body?.$case === "custom") this.#custom(revision, id, on, body.value);
    if (this.#reading) this.#read(this.#reading, on, revision, body);
  }

  #fork(forked: BranchForked): Branch {
    const parent = this.branches.get(forked.parentBranchId) ?? branchNamed("", this.isWhole);
    return forkOf(parent, forked, this.isWhole);
  }

  #custom(revision: number, branch: number, on: Branch, { typeName, data }: Custom): void {
    if (typeName === CHECKPOINT) this.add(this.rowOf(revision, branch, data));
    else if (typeName === WRITES) this.takeWrites(data);
    else if (typeName === DELETED) this.#deleted(unpacked(data) as Said);
    else if (typeName === MESSAGES) {
      if (!on.mirrored.length) on.begin = revision;
      this.#reading = { frame: revision, ...framed(data), held: [] };
    }
  }

  /** Adds a checkpoint. */
  add(row: Row): void {
    const rows = this.checkpoints.get(row.ns) ?? new Map<string, Row>();
    this.checkpoints.set(row.ns, rows.set(row.id, row));
  }

  /** Returns a checkpoint; adds its values and lists to the rows. */
  rowOf(revision: number, branch: number, data: Uint8Array): Row {
    const said = unpacked(data) as Said;
    const values = Object.entries(said.values as Record<string, Uint8Array>);
    this.#takeValues(revision, said);
    return {
      ns: said.ns,
      id: said.id,
      parent: said.parent ?? undefined,
      stored: [said.type, said.checkpoint],
      metadata: said.metadata,
      values: new Map(values.map(([channel, key]) => [channel, keyHex(key)])),
      revision,
      branch,
      at: said.at && this.#takeAt(revision, said.at),
      isMirrored: said.mirrored ?? false,
    };
  }

  #takeValues(revision: number, said: Said): void {
    const keys: Key[] = [];
    for (const [bytes, kind, data] of said.new) {
      const key = keyHex(bytes);
      this.values.set(key, [kind, data]);
      if (!this.places.has(key)) this.places.set(key, [revision, keys.length, IN_ROW]);
      keys.push(key);
    }
    this.holds.set(revision, keys);
    for (const [bytes, from, start, stop, added] of said.lists) {
      const key = keyHex(bytes);
      const base = from ? keyHex(from) : undefined;
      // A list whose base was not read is looked up when needed.
      if (this.lists.has(key) || (base !== undefined && !this.lists.has(base))) continue;
      this.lists.set(key, { base, start, stop, added: added.map(keyHex) });
    }
  }

  #takeAt(revision: number, said: Said): Map<string, At> {
    const places = Object.entries(said).map(
      ([channel, at]) => [channel, unpackedAt(at, revision)] as const,
    );
    for (const [channel, at] of places) {
      if (isRuns(at) && !at.base) this.#full.set(fullKey(revision, channel), at.tail);
    }
    return new Map(places);
  }

  /** Adds the writes of a task. */
  takeWrites(data: Uint8Array): void {
    const { ns, id, path, task, writes } = unpacked(data) as Said;
    const place = placeOf(ns, id);
    const held = this.#writes.get(place) ?? new Map<string, Write>();
    this.#writes.set(place, held);
    const replaces = writes.every(([, channel]: [number, string]) => channel in WRITES_IDX_MAP);
    for (const [idx, channel, kind, data] of writes) {
      const at = `${idx} ${task}`;
      if (!replaces && held.has(at)) continue;
      held.set(at, { path, task, idx, channel, stored: [kind, data] });
    }
  }

  /** Removes the writes to a checkpoint, before all of them are added. */
  forgetWrites(ns: string, id: string): void {
    this.#writes.delete(placeOf(ns, id));
  }

  #deleted(said: Said): void {
    this.lacksDeleted = !this.isWhole;
    if (said.all) {
      this.checkpoints.clear();
      this.#writes.clear();
    }
    for (const [ns, id] of said.places ?? []) {
      this.checkpoints.get(ns)?.delete(id);
      this.#writes.delete(placeOf(ns, id));
    }
  }

  // ---- messages ----

  /** Takes an event of the current frame of messages, or the frame itself. */
  #read(reading: Reading, on: Branch, revision: number, body: Body): void {
    const { frame, keys, items, held } = reading;
    if (revision > frame) held.push({ revision, body });
    if (held.length < countOf(items)) return;
    this.#reading = undefined;
    on.mirrored.push(...keys);
    on.ends.push(...this.#takeMessages(frame, { keys, items }, held));
  }

  /** Adds a frame that was looked up, with its events. */
  takeFrame(frame: number, data: Uint8Array, held: readonly Held[]): void {
    this.#takeMessages(frame, framed(data), held);
  }

  /** Adds the messages of a frame; returns the revision of the last event of each. */
  #takeMessages(frame: number, { keys, items }: Framed, held: readonly Held[]): number[] {
    this.holds.set(frame, keys);
    let start = 0;
    return keys.map((key, index) => {
      const [count, packed] = items[index] ?? [0, null];
      const own = held.slice(start, start + count);
      start += count;
      const said = filled(
        packed,
        own.map(({ body }) => body),
      );
      // `null`: its bytes are in a row.
      if (said !== null && !this.has(key)) {
        this.messages.take(key, said);
        if (!this.places.has(key)) this.places.set(key, [frame, index, held.length]);
      }
      return own.at(-1)?.revision ?? frame + start;
    });
  }
}

function framed(data: Uint8Array): Framed {
  const { items, beside } = jsonOf(data);
  return { keys: beside.keys, items };
}

const countOf = (items: Framed["items"]): number => items.reduce((sum, [count]) => sum + count, 0);

const fullKey = (revision: number, channel: string): string => `${revision} ${channel}`;

const placeOf = (ns: string, id: string): string => JSON.stringify([ns, id]);

/** Compares texts by code points, as Python does. */
const ordered = (one: string, other: string): number =>
  one === other ? 0 : Buffer.compare(utf8(one), utf8(other));
