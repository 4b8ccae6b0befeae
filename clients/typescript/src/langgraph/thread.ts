// Writes the checkpoints and the tasks' writes of a graph's thread to its conversation.

import {
  type ChannelVersions,
  type Checkpoint,
  WRITES_IDX_MAP,
} from "@langchain/langgraph-checkpoint";
import { isRefused, Lessened } from "../adapters/lessened.js";
import { ATTEMPTS_MAX, rewind } from "../adapters/thread.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Receipt } from "../types.js";
import { Batch } from "./batch.js";
import { type Key, keyBytes } from "./lists.js";
import { NotSaidError } from "./lookup.js";
import { Mirror, type Turn } from "./mirror.js";
import { type Packable, packed } from "./msgpack.js";
import { checkpointKey, latestKey, packedAt } from "./places.js";
import { ThreadReader } from "./reader.js";
import { CHECKPOINT, DELETED, LATEST, type Row, WRITES } from "./rows.js";

const MSGPACK = "application/msgpack";
/** Number of events of a checkpoint: the event that precedes it, and its row. */
const ROWS = 2;

/** A checkpoint to store. */
export interface Put {
  ns: string;
  parent: string | undefined;
  checkpoint: Checkpoint;
  /** As JSON. */
  metadata: string;
  newVersions: ChannelVersions;
}

/** A thread. Call its methods within `alone`. */
export class GraphThread extends ThreadReader {
  readonly #mirror = new Mirror(this);

  // ---- checkpoints ----

  /** Stores a checkpoint. */
  async put(put: Put): Promise<void> {
    const conversation = await this.open();
    await this.#know(put.ns);
    const lessened = new Lessened<Key>();
    let isMirrored = true;
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      try {
        await this.#attempt(conversation, put, isMirrored ? lessened : undefined);
        return;
      } catch (error) {
        if (error instanceof NotSaidError) {
          await this.readAll(conversation);
          continue;
        }
        if (!(error instanceof errors.Conflict)) {
          if (!lessened.isToRepeat(error)) {
            // Store the state without events for its messages; the next checkpoint tries again.
            if (!isMirrored || !isRefused(error)) throw error;
            isMirrored = false;
          }
          for (const branch of this.rows.branches.values()) branch.open = undefined;
        }
        // Another program may have written to the thread.
        await this.catchUp(conversation);
      }
    }
    throw new errors.RevisionMismatch(`other writers kept writing to thread ${this.id}`);
  }

  /** Looks up the latest checkpoint, if it is not known; reads all of a new thread. */
  async #know(ns: string): Promise<void> {
    try {
      for (const each of new Set(["", ns])) if (!this.knows(each)) await this.latest(each);
    } catch (error) {
      if (!(error instanceof NotSaidError)) throw error;
      await this.readAll(await this.open());
    }
    if (!this.rows.seen) await this.readAll(await this.open());
  }

  /** Tries to store a checkpoint. Without `lessened`, messages are stored as values only. */
  async #attempt(
    conversation: Conversation,
    put: Put,
    lessened: Lessened<Key> | undefined,
  ): Promise<void> {
    const before = await this.#parent(put);
    const batch = new Batch(this);
    const values = await this.#values(batch, put, before);
    const turn = lessened && batch.messages && (await this.#mirror.turn(batch.messages));
    const first = (turn?.events.length ?? 0) + ROWS;
    const framed = turn && lessened ? await this.#mirror.frame(batch, turn, lessened, first) : [];
    const isMirrored =
      turn !== undefined || (put.ns === "" && (await this.#mirror.isMirrored(values)));
    const row = await this.#row(put, batch, before, values, isMirrored);
    await this.#append(conversation, turn, [this.#pointer(put, turn), row], framed);
  }

  /** Returns the parent checkpoint. */
  async #parent({ ns, parent }: Put): Promise<Row | undefined> {
    if (!parent) return undefined;
    // Another program may have put it after the last read.
    const row = this.rows.find(ns, parent) ?? (await this.byId(ns, parent));
    if (row) await this.bring(row);
    return row;
  }

  async #values(batch: Batch, put: Put, before: Row | undefined): Promise<Map<string, Key>> {
    const { ns, checkpoint, newVersions } = put;
    const versions = before ? (await this.values.loads(before.stored)).channel_versions : {};
    const values = new Map<string, Key>();
    for (const [channel, value] of Object.entries(checkpoint.channel_values)) {
      const old = before?.values.get(channel);
      const isNew = Object.hasOwn(newVersions, channel);
      const version = checkpoint.channel_versions[channel];
      const isSame = version !== undefined && version === versions[channel];
      if (!isNew && isSame && old !== undefined) {
        values.set(channel, old);
      } else if (isNew || before) {
        // For a first checkpoint, LangGraph wants only the new values stored.
        const isMirrored = ns === "" && channel === this.mirroredChannel;
        values.set(channel, await batch.add(value, old, isMirrored));
      }
    }
    return values;
  }

  /** Makes the event before a checkpoint, which marks it as the latest one of its namespace. */
  #pointer({ ns, checkpoint: { id } }: Put, turn: Turn | undefined): NewEvent {
    const said: Packable = {
      ns,
      id,
      top: this.rows.latest(ns)?.id ?? null,
      seen: this.rows.seen,
      before: turn?.events.length ?? 0,
    };
    return make.custom(LATEST, packed(said), { contentType: MSGPACK, key: latestKey(ns) });
  }

  async #row(
    { ns, parent, checkpoint, metadata }: Put,
    batch: Batch,
    before: Row | undefined,
    values: ReadonlyMap<string, Key>,
    mirrored: boolean,
  ): Promise<NewEvent> {
    const { id } = checkpoint;
    const [kind, data] = await this.values.dumps({ ...checkpoint, channel_values: {} });
    const said: Packable = {
      ns,
      id,
      parent: parent ?? null,
      type: kind,
      checkpoint: data,
      metadata,
      values: mapped(values, keyBytes),
      new: [...batch.values].map(([key, [kind, data]]) => [keyBytes(key), kind, data]),
      lists: [...batch.lists].map(([key, { base, start, stop, added }]) => [
        keyBytes(key),
        base === undefined ? null : keyBytes(base),
        start,
        stop,
        added.map(keyBytes),
      ]),
      at: mapped(batch.at(before, values), packedAt),
      mirrored,
    };
    const key = checkpointKey(ns, id);
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

  // ---- writes ----

  /** Stores the writes of a task. */
  async putWrites(
    place: { ns: string; id: string; task: string; path: string },
    writes: readonly (readonly [channel: string, value: unknown])[],
  ): Promise<void> {
    const made = await Promise.all(
      writes.map(async ([channel, value], index) => {
        const [kind, data] = await this.values.dumps(value);
        return [WRITES_IDX_MAP[channel] ?? index, channel, kind, data] as const;
      }),
    );
    await this.#note(WRITES, { ...place, writes: made }, checkpointKey(place.ns, place.id));
  }

  // ---- deleting ----

  /** Deletes all checkpoints and writes. */
  async deleteAll(): Promise<void> {
    if (!(await this.refresh()) || this.rows.isEmpty) return;
    await this.#note(DELETED, { all: true });
    const conversation = await this.open();
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      try {
        await rewind(conversation, await conversation.state(), 1);
        break;
      } catch (error) {
        if (!(error instanceof errors.Conflict) || attempt + 1 === ATTEMPTS_MAX) throw error;
      }
    }
    await this.catchUp(conversation);
  }

  // ---- appending ----

  async #note(typeName: string, said: Packable, key = ""): Promise<void> {
    const event = make.custom(typeName, packed(said), { contentType: MSGPACK, key });
    this.#took(await (await this.open()).append([event]), [event]);
  }

  /** Applies appended events to the rows without reading them, if no other event came between. */
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

/** Converts a map for a row. */
const mapped = <T>(values: ReadonlyMap<string, T>, said: (each: T) => Packable): Packable =>
  Object.fromEntries([...values].map(([key, each]) => [key, said(each)]));
