// What a thread's events say, as tables in memory that are kept up to date.
//
// They begin at the first event, and are whole; or at a later one, and what is older is looked
// up where it is wanted. Then only what is new is read. The Python client writes and reads the
// same rows.

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
/** Stands before each checkpoint, under the key of its namespace: look-ups begin there. */
export const LATEST = "langgraph.latest";

/** A value as a serializer made it: kind and bytes. */
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
  /** Where its values are; undefined: its writer did not say. */
  at: ReadonlyMap<string, At> | undefined;
  /** Its branch, the active one, ends with its messages. */
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

/** What a frame says: the keys of its messages, and of each how many events it has. */
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
  /** Revision of the first event that is in. */
  first = 1;
  /** Revision of the last one. */
  seen = 0;
  active = 0;
  readonly branches = new Map<number, Branch>([[0, branchNamed("main")]]);
  /** Where they are not whole: namespaces of which the latest checkpoint is in. */
  readonly tops = new Set<string>();
  /** Something was taken back, of which it may be that it was older. */
  lacksDeleted = false;
  /** By namespace, then by id. */
  readonly checkpoints = new Map<string, Map<string, Row>>();
  readonly values = new Map<Key, Stored>();
  readonly messages = new SaidMessages();
  readonly lists = new Map<Key, Spliced>();
  /** Where values and messages are. */
  readonly places = new Map<Key, Place>();
  /** What rows and frames hold, by their revisions. */
  readonly holds = new Map<number, readonly Key[]>();
  /** Lists that rows say in full, by the row and the channel. */
  readonly #full = new Map<string, readonly Run[]>();
  /** By checkpoint, then by task and place. */
  readonly #writes = new Map<string, Map<string, Write>>();
  #reading: Reading | undefined;

  // ---- reading ----

  /** The thread was read, and they have every event. */
  get isWhole(): boolean {
    return this.first === 1 && this.seen > 0;
  }

  /** They have neither checkpoints nor writes. */
  get isEmpty(): boolean {
    return [...this.checkpoints.values()].every(({ size }) => size === 0) && !this.#writes.size;
  }

  /** Whether a value is in. */
  has(key: Key): boolean {
    return this.values.has(key) || this.messages.has(key);
  }

  /** They are to have the events from there on only. */
  begin(first: number): void {
    this.first = first;
    this.seen = first - 1;
    this.branches.clear();
  }

  /** The checkpoint with the highest id. */
  latest(ns: string): Row | undefined {
    return this.#highest(ns, (one, other) => one.id > other.id);
  }

  /** The checkpoint that was put last. */
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

  /** A checkpoint by its id. */
  find(ns: string, id: string): Row | undefined {
    return this.checkpoints.get(ns)?.get(id);
  }

  /** Writes to a checkpoint, in the order in which LangGraph applies them. */
  writesTo(ns: string, id: string): Write[] {
    const held = this.#writes.get(placeOf(ns, id))?.values() ?? [];
    return [...held].sort(
      (a, b) => ordered(a.path, b.path) || ordered(a.task, b.task) || a.idx - b.idx,
    );
  }

  /** A list that a row says in full. */
  full(revision: number, channel: string): readonly Run[] | undefined {
    return this.#full.get(fullKey(revision, channel));
  }

  /** A list as it is where it is; undefined: it goes on from a row that is not in. */
  runs(channel: string, { base, kept, tail }: Runs): Run[] | undefined {
    if (!base) return [...tail];
    const ofBase = this.full(base, channel);
    return ofBase && [...ofBase.slice(0, kept), ...tail];
  }

  // ---- keeping up to date ----

  /** Takes the next event in. */
  apply(revision: number, branchId: number, body: Body, branchName = ""): void {
    this.seen = revision;
    const id = body?.$case === "branchForked" ? revision : branchId;
    const on =
      body?.$case === "branchForked"
        ? this.#fork(body.value)
        : (this.branches.get(id) ?? branchNamed(branchName, this.isWhole));
    this.branches.set(id, on);
    on.head = revision;
    // Where they are not whole: checkpoints stand on the branch that is the active one then.
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

  /** A checkpoint is there. */
  add(row: Row): void {
    const rows = this.checkpoints.get(row.ns) ?? new Map<string, Row>();
    this.checkpoints.set(row.ns, rows.set(row.id, row));
  }

  /** A checkpoint; takes in what it brings. */
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
      // A list whose base is not in is looked up where it is wanted.
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

  /** Takes in what a task wrote. */
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

  /** Forgets the writes to a checkpoint: all of them come now. */
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

  /** An event of the frame of messages that is being read, or the frame itself. */
  #read(reading: Reading, on: Branch, revision: number, body: Body): void {
    const { frame, keys, items, held } = reading;
    if (revision > frame) held.push({ revision, body });
    if (held.length < countOf(items)) return;
    this.#reading = undefined;
    on.mirrored.push(...keys);
    on.ends.push(...this.#takeMessages(frame, { keys, items }, held));
  }

  /** A frame with its events, which was looked up. */
  takeFrame(frame: number, data: Uint8Array, held: readonly Held[]): void {
    this.#takeMessages(frame, framed(data), held);
  }

  /** Of each message, the revision of its last event. */
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

/** By code points, as Python orders texts. */
const ordered = (one: string, other: string): number =>
  one === other ? 0 : Buffer.compare(utf8(one), utf8(other));
