// What a thread's events say, as tables in memory that are kept up to date.
//
// Every row of a thread is in its conversation's log; this reads it once, then only what is
// new. The Python client writes and reads the same rows.

import { WRITES_IDX_MAP } from "@langchain/langgraph-checkpoint";
import { type Body, filled, jsonOf } from "../adapters/frames.js";
import { short } from "../adapters/thread.js";
import type { BranchForked, Custom } from "../gen/treering/v1/event.js";
import { type Parsed, utf8 } from "../words.js";
import { type Key, keyHex, type Spliced } from "./lists.js";
import { unpacked } from "./msgpack.js";

export const CHECKPOINT = "langgraph.checkpoint";
export const WRITES = "langgraph.writes";
export const MESSAGES = "langgraph.messages";
export const DELETED = "langgraph.deleted";
/** Stands before each checkpoint, under the key of its namespace: Python's look-ups begin there. */
export const LATEST = "langgraph.latest";

/** What a checkpoint and the writes to it are found by. */
export const checkpointKey = (ns: string, id: string): string =>
  keyNamed(`langgraph/checkpoint/${ns}/${id}`);

/** What the latest checkpoint of a namespace is found by. */
export const latestKey = (ns: string): string => keyNamed(`langgraph/latest/${ns}`);

const keyNamed = (name: string): string => short(name.replaceAll("\0", " "));

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
}

/** A pending write. */
export interface Write {
  path: string;
  task: string;
  idx: number;
  channel: string;
  stored: Stored;
}

/** A branch of the conversation, and the messages of the graph that are on it. */
export interface Branch {
  name: string;
  head: number;
  mirrored: Key[];
  /** Of each message, the revision of its last event. */
  ends: number[];
  /** Revision of the frame of the first of them. */
  begin: number;
  /** Calls without a result; undefined: not known. */
  open: Set<string> | undefined;
  archived: boolean;
}

const branchNamed = (name: string): Branch => ({
  name,
  head: 0,
  mirrored: [],
  ends: [],
  begin: 0,
  open: new Set(),
  archived: false,
});

/** The frame of messages that is being read. */
interface Reading {
  keys: Key[];
  items: [count: number, packed: Parsed][];
  held: { revision: number; body: Body }[];
  /** Events that are still to come. */
  missing: number;
}

/** A message's fields as its frame has them, under a key: what the thread makes of it. */
export type TakeMessage = (key: Key, said: Parsed) => void;

type Said = Record<string, Parsed>;

/** A thread's rows. */
export class Rows {
  /** Revision of the last event that is in. */
  seen = 0;
  active = 0;
  readonly branches = new Map<number, Branch>([[0, branchNamed("main")]]);
  /** By namespace, then by id. */
  readonly checkpoints = new Map<string, Map<string, Row>>();
  readonly values = new Map<Key, Stored>();
  readonly lists = new Map<Key, Spliced>();
  /** By checkpoint, then by task and place. */
  readonly #writes = new Map<string, Map<string, Write>>();
  readonly #takeMessage: TakeMessage;
  #reading: Reading | undefined;

  constructor(takeMessage: TakeMessage) {
    this.#takeMessage = takeMessage;
  }

  // ---- reading ----

  /** It has neither checkpoints nor writes. */
  get isEmpty(): boolean {
    return [...this.checkpoints.values()].every(({ size }) => size === 0) && !this.#writes.size;
  }

  /** The checkpoint with the highest id. */
  latest(ns: string): Row | undefined {
    let latest: Row | undefined;
    for (const row of this.checkpoints.get(ns)?.values() ?? []) {
      if (!latest || row.id > latest.id) latest = row;
    }
    return latest;
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

  // ---- keeping up to date ----

  /** Takes the next event in. */
  apply(revision: number, branchId: number, body: Body, branchName = ""): void {
    this.seen = revision;
    if (body?.$case === "branchForked") this.#fork(revision, body.value);
    const id = body?.$case === "branchForked" ? revision : branchId;
    const on = this.branches.get(id) ?? branchNamed(branchName);
    this.branches.set(id, on);
    on.head = revision;
    switch (body?.$case) {
      case "branchActivated":
        this.active = id;
        break;
      case "branchArchived":
        on.archived = true;
        break;
      case "branchRenamed":
        on.name = body.value.name;
        break;
      case "toolCallRequested":
        on.open?.add(body.value.callId);
        break;
      case "toolResultRecorded":
      case "toolCallCancelled":
        on.open?.delete(body.value.callId);
        break;
      case "custom":
        this.#custom(body.value);
    }
    if (this.#reading) this.#take(this.#reading, on, revision, body);
  }

  #fork(revision: number, { name, parentBranchId, forkRevision }: BranchForked): void {
    const parent = this.branches.get(parentBranchId) ?? branchNamed("");
    const kept = parent.ends.filter((end) => end <= forkRevision).length;
    const isHead = forkRevision >= parent.head;
    this.branches.set(revision, {
      ...branchNamed(name),
      mirrored: parent.mirrored.slice(0, kept),
      ends: parent.ends.slice(0, kept),
      begin: parent.begin,
      open: isHead && parent.open ? new Set(parent.open) : undefined,
    });
  }

  #custom({ typeName, data }: Custom): void {
    if (typeName === CHECKPOINT) this.#checkpoint(unpacked(data) as Said);
    else if (typeName === WRITES) this.#write(unpacked(data) as Said);
    else if (typeName === DELETED) this.#deleted(unpacked(data) as Said);
    else if (typeName === MESSAGES) {
      const { items, beside } = jsonOf(data);
      this.#reading = { keys: beside.keys, items, held: [], missing: -1 };
    }
  }

  #checkpoint(said: Said): void {
    for (const [key, kind, data] of said.new) this.values.set(keyHex(key), [kind, data]);
    for (const [key, base, start, stop, added] of said.lists) {
      this.lists.set(keyHex(key), {
        base: base ? keyHex(base) : undefined,
        start,
        stop,
        added: added.map(keyHex),
      });
    }
    const values = Object.entries(said.values as Record<string, Uint8Array>);
    const row: Row = {
      ns: said.ns,
      id: said.id,
      parent: said.parent ?? undefined,
      stored: [said.type, said.checkpoint],
      metadata: said.metadata,
      values: new Map(values.map(([channel, key]) => [channel, keyHex(key)])),
    };
    const rows = this.checkpoints.get(row.ns) ?? new Map<string, Row>();
    this.checkpoints.set(row.ns, rows.set(row.id, row));
  }

  #write({ ns, id, path, task, writes }: Said): void {
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

  #deleted(said: Said): void {
    if (said.all) {
      this.checkpoints.clear();
      this.#writes.clear();
    }
    for (const [ns, id] of said.places ?? []) {
      this.checkpoints.get(ns)?.delete(id);
      this.#writes.delete(placeOf(ns, id));
    }
  }

  /** An event of the frame of messages that is being read, or the frame itself. */
  #take(reading: Reading, on: Branch, revision: number, body: Body): void {
    if (reading.missing < 0) {
      if (!on.mirrored.length) on.begin = revision;
      reading.missing = reading.items.reduce((sum, [count]) => sum + count, 0);
    } else {
      reading.held.push({ revision, body });
      reading.missing -= 1;
    }
    if (reading.missing > 0) return;
    this.#reading = undefined;
    let start = 0;
    for (const [index, key] of reading.keys.entries()) {
      const [count, packed] = reading.items[index] ?? [0, null];
      const own = reading.held.slice(start, start + count);
      start += count;
      const said = filled(
        packed,
        own.map(({ body }) => body),
      );
      if (said !== null) this.#takeMessage(key, said);
      on.mirrored.push(key);
      on.ends.push(own.at(-1)?.revision ?? revision);
    }
  }
}

const placeOf = (ns: string, id: string): string => JSON.stringify([ns, id]);

/** By code points, as Python orders texts. */
const ordered = (one: string, other: string): number =>
  one === other ? 0 : Buffer.compare(utf8(one), utf8(other));
