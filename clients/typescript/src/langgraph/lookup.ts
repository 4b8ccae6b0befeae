// Looks up rows and values of a thread that are not in memory.

import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import type { ReadOptions } from "../requests.js";
import type { Event } from "../types.js";
import type { KindName, Parsed } from "../words.js";
import { isList, type Key } from "./lists.js";
import { unpacked } from "./msgpack.js";
import { checkpointKey, IN_ROW, isRuns, latestKey, type Run } from "./places.js";
import { CHECKPOINT, DELETED, LATEST, MESSAGES, type Row, type Rows, WRITES } from "./rows.js";

/** Kinds of the events that follow a frame of messages. */
const SPOKEN: readonly KindName[] = [
  "message_appended",
  "tool_call_requested",
  "tool_result_recorded",
  "tool_call_cancelled",
];
/** Maximum number of events of frames that are read by revision; for more, a range is read. */
const BY_NAME_MAX = 48;
/** Maximum number of events in a range per wanted event; a longer range is not read. */
const STRETCH_EVENTS_MAX = 16;

/** A lookup is not possible: the whole thread must be read. */
export class NotSaidError extends Error {}

/** A checkpoint that was looked up, and the writes to it. */
export interface Found {
  row: Row;
  writes: Event[];
}

/** Rows and frames to look up. */
interface Wanted {
  rows: Set<number>;
  /** By revision, with the number of their events. */
  frames: Map<number, number>;
}

/** Look-ups in one conversation. */
export class Lookups {
  readonly #db: Treering;
  readonly #conversation: Conversation;

  constructor(db: Treering, conversation: Conversation) {
    this.#db = db;
    this.#conversation = conversation;
  }

  /**
   * Returns the revision of the event before the namespace's latest checkpoint; 0 if it has none.
   *
   * Throws `NotSaidError` if the newest checkpoint may not be the latest one: its id is not the
   * highest, or another program put one at the same time.
   */
  async latest(ns: string): Promise<number> {
    const key = latestKey(ns);
    // The active branch has the newest one, unless a program activated another branch. Then newer
    // ones are found when new events are read.
    const [onBranch] = await this.#db.latest([this.#conversation.id], { keys: [key] });
    const newest = onBranch ?? (await first(this.#events({ key, backward: true, limit: 1 })));
    if (!newest) return 0;
    const said = saidBy(newest);
    if (said.ns !== ns) throw new NotSaidError();
    const ids: string[] = [said.top || said.id];
    const seen: number = said.seen + said.before;
    if (seen + 1 < newest.revision) {
      const between = { key, first: said.seen + 1, last: newest.revision - 1 };
      for await (const event of this.#events(between)) ids.push(saidBy(event).id);
    }
    if (ids.some((id) => id > said.id)) throw new NotSaidError();
    return newest.revision;
  }

  /** Reads every event from a revision on. */
  since(revision: number): AsyncIterable<Event> {
    return this.#events({ first: revision });
  }

  /** Returns a checkpoint by its id. */
  async named(rows: Rows, ns: string, id: string): Promise<Found | undefined> {
    let row: Row | undefined;
    const writes: Event[] = [];
    for await (const event of this.#events({ key: checkpointKey(ns, id) })) {
      if (event.typeName === WRITES) writes.push(event);
      if (event.typeName !== CHECKPOINT) continue;
      const made = rowBy(rows, event);
      if (made.ns === ns && made.id === id) row = made;
    }
    if (!row) return undefined;
    if (await this.isAnythingDeleted(row.revision)) throw new NotSaidError();
    return { row, writes };
  }

  /** Returns the checkpoint at a revision. */
  async row(rows: Rows, revision: number): Promise<Row> {
    const [event] = await this.#named([revision]);
    if (!event) throw new NotSaidError();
    return rowBy(rows, event);
  }

  /** Returns the writes to a checkpoint, in order. */
  async writes(ns: string, id: string): Promise<Event[]> {
    return all(this.#events({ key: checkpointKey(ns, id), types: WRITES }));
  }

  /** Whether something was deleted between these revisions. */
  async isAnythingDeleted(from: number, to = 0): Promise<boolean> {
    const options = { types: DELETED, first: from, last: to, limit: 1, headersOnly: true };
    return (await first(this.#events(options))) !== undefined;
  }

  /** Reads events of all branches. With `backward`, do not set `first` and `last`. */
  #events(options: ReadOptions): AsyncIterable<Event> {
    return this.#conversation.events({ ...options, allBranches: true });
  }

  #named(revisions: readonly number[]): Promise<(Event | undefined)[]> {
    return this.#db.getEvents(
      revisions.map((revision) => [this.#conversation.id, revision] as const),
    );
  }

  // ---- values ----

  /**
   * Adds to the rows what the checkpoint's values are made of.
   *
   * Throws `NotSaidError` if the checkpoint does not have the places of its values.
   */
  async bring(rows: Rows, { values, at }: Row): Promise<void> {
    if (at?.size !== values.size) throw new NotSaidError();
    const wanted: Wanted = { rows: new Set(), frames: new Map() };
    const bases = new Set<number>();
    for (const [channel, key] of values) {
      const where = at.get(channel);
      if (!where) throw new NotSaidError();
      if (!isRuns(where)) {
        if (!rows.has(key)) want(wanted, where[0], where[2]);
      } else if (where.base && !rows.full(where.base, channel)) bases.add(where.base);
    }
    await this.#rows(rows, bases);
    const lists = new Map<Key, Run[]>();
    for (const [channel, where] of at) {
      if (!isRuns(where)) continue;
      const runs = rows.runs(channel, where);
      if (!runs) throw new NotSaidError();
      lists.set(values.get(channel) ?? "", runs);
      for (const [revision, , , events] of runs) {
        if (!rows.holds.has(revision)) want(wanted, revision, events);
      }
    }
    await Promise.all([this.#rows(rows, wanted.rows), this.#frames(rows, wanted.frames)]);
    for (const [key, runs] of lists) takeList(rows, key, runs);
  }

  async #rows(rows: Rows, revisions: ReadonlySet<number>): Promise<void> {
    if (!revisions.size) return;
    for (const event of await this.#named([...revisions].sort((a, b) => a - b))) {
      if (!event) throw new NotSaidError();
      rowBy(rows, event);
    }
  }

  async #frames(rows: Rows, frames: ReadonlyMap<number, number>): Promise<void> {
    if (!frames.size) return;
    const events = new Map<number, Event>();
    for (const event of await this.#ofFrames(frames)) events.set(event.revision, event);
    for (const [frame, count] of frames) {
      const body = events.get(frame)?.body;
      if (body?.$case !== "custom" || body.value.typeName !== MESSAGES) throw new NotSaidError();
      const held = revisionsOf(frame + 1, count).map((revision) => {
        const event = events.get(revision);
        if (!event) throw new NotSaidError();
        return { revision, body: event.body };
      });
      rows.takeFrame(frame, body.value.data, held);
    }
  }

  async #ofFrames(frames: ReadonlyMap<number, number>): Promise<Event[]> {
    let begin = Number.POSITIVE_INFINITY;
    let last = 0;
    let count = 0;
    for (const [frame, events] of frames) {
      begin = Math.min(begin, frame);
      last = Math.max(last, frame + events);
      count += events + 1;
    }
    if (count <= BY_NAME_MAX || last - begin > STRETCH_EVENTS_MAX * count) {
      const revisions = [...frames].flatMap(([frame, events]) => revisionsOf(frame, events + 1));
      return (await this.#named(revisions)).filter((event) => event !== undefined);
    }
    const stretch = { first: begin, last };
    const read = [
      all(this.#events({ ...stretch, types: MESSAGES })),
      all(this.#events({ ...stretch, kinds: SPOKEN })),
    ];
    return (await Promise.all(read)).flat();
  }
}

function want(wanted: Wanted, revision: number, events: number): void {
  if (events === IN_ROW) wanted.rows.add(revision);
  else wanted.frames.set(revision, events);
}

function takeList(rows: Rows, key: Key, runs: readonly Run[]): void {
  const keys: Key[] = [];
  for (const [revision, begin, count] of runs) {
    for (const each of rows.holds.get(revision)?.slice(begin, begin + count) ?? []) keys.push(each);
  }
  if (!isList(key, keys)) throw new NotSaidError();
  rows.lists.set(key, { base: undefined, start: 0, stop: 0, added: keys });
}

/** Returns the content of the event that precedes a checkpoint. */
function saidBy({ body }: Event): Parsed {
  if (body?.$case !== "custom" || body.value.typeName !== LATEST) throw new NotSaidError();
  return unpacked(body.value.data);
}

function rowBy(rows: Rows, { body, proto, revision }: Event): Row {
  if (body?.$case !== "custom" || body.value.typeName !== CHECKPOINT) throw new NotSaidError();
  return rows.rowOf(revision, proto.branchId, body.value.data);
}

const revisionsOf = (first: number, count: number): number[] =>
  Array.from({ length: count }, (_, number) => first + number);

async function first<T>(items: AsyncIterable<T>): Promise<T | undefined> {
  for await (const item of items) return item;
  return undefined;
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}
