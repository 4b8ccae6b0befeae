// The values and lists that a checkpoint adds to its thread, and their places.

import type { BaseMessage } from "@langchain/core/messages";
import { expanded, type Key, keyOf, listKey, type Spliced, spliced } from "./lists.js";
import { isMessage } from "./messages.js";
import {
  type At,
  cut,
  IN_ROW,
  isRuns,
  OWN_ROW,
  type Place,
  type Run,
  type Runs,
  runsOf,
  saidOf,
} from "./places.js";
import type { ThreadReader } from "./reader.js";
import type { Row, Stored } from "./rows.js";
import { isKeptAsList, isPlain } from "./values.js";

/** A message, and its key. */
export interface Mirrored {
  key: Key;
  message: BaseMessage;
}

/** The values and lists that a checkpoint adds. */
export class Batch {
  readonly values = new Map<Key, Stored>();
  readonly lists = new Map<Key, Spliced>();
  /** Messages of the mirrored channel; undefined if its value is not a list of messages. */
  messages: Mirrored[] | undefined;
  /** Places of the messages that the frame holds. */
  readonly framed = new Map<Key, Place>();
  readonly #thread: ThreadReader;

  constructor(thread: ThreadReader) {
    this.#thread = thread;
  }

  // ---- values ----

  /** Adds a value; a list may be stored relative to the channel's old value. */
  async add(value: unknown, old: Key | undefined, isMirrored: boolean): Promise<Key> {
    if (isMirrored && Array.isArray(value) && !value.length) this.messages = [];
    if (!isKeptAsList(value)) return this.#kept(value);
    const keys: Key[] = [];
    for (const each of value) {
      keys.push(await (isMessage(each) ? this.#message(each) : this.#kept(each)));
    }
    if (isMirrored && value.every(isMessage)) {
      this.messages = keys.map((key, index) => ({ key, message: value[index] as BaseMessage }));
    }
    const key = listKey(keys);
    const { lists } = this.#thread.rows;
    if (!lists.has(key) && !this.lists.has(key)) {
      const isList = old !== undefined && lists.has(old);
      this.lists.set(key, spliced(old, isList ? expanded(lists, old) : [], keys));
    }
    return key;
  }

  async #kept(value: unknown): Promise<Key> {
    const stored = await this.#thread.values.dumps(value);
    return this.#has(keyOf(stored[0], "\0", stored[1]), stored);
  }

  #has(key: Key, stored: Stored): Key {
    if (!this.#thread.rows.has(key)) this.values.set(key, stored);
    return key;
  }

  async #message(message: BaseMessage): Promise<Key> {
    const { noted, rows, values } = this.#thread;
    const known = noted.keyOf(message);
    if (known !== undefined && rows.has(known)) return known;
    const stored = await values.dumps(message);
    const own = values.messageKey(stored);
    const key = rows.has(own)
      ? own
      : await rows.messages.settled(own, message, (each) => values.keyOfMessage(each));
    this.#has(key, stored);
    if (isPlain(stored)) noted.note(message, key);
    return key;
  }

  // ---- places ----

  /** Returns the places of a checkpoint's values; `before` is its parent. */
  at(before: Row | undefined, values: ReadonlyMap<string, Key>): Map<string, At> {
    const own = new Map<Key, Place>();
    for (const key of this.values.keys()) own.set(key, [OWN_ROW, own.size, IN_ROW]);
    for (const [key, place] of this.framed) own.set(key, place);
    const made = new Map<string, At>();
    for (const [channel, key] of values) {
      made.set(channel, this.#same(before, channel, key) ?? this.#new(before, channel, key, own));
    }
    return made;
  }

  /** Returns the place of a value that the parent has too. */
  #same(before: Row | undefined, channel: string, key: Key): At | undefined {
    const old = before?.at?.get(channel);
    if (!before || !old || before.values.get(channel) !== key) return undefined;
    if (!isRuns(old) || old.base) return old;
    return { base: before.revision, kept: old.tail.length, tail: [] };
  }

  #new(before: Row | undefined, channel: string, key: Key, own: ReadonlyMap<Key, Place>): At {
    const { lists, places } = this.#thread.rows;
    const placeOf = (each: Key): Place => {
      const place = own.get(each) ?? places.get(each);
      if (!place) throw new TypeError("a checkpoint names a value that its thread does not have");
      return place;
    };
    const isList = this.lists.has(key) || lists.has(key);
    return isList ? this.#runs(before, channel, key, placeOf) : placeOf(key);
  }

  /** Returns the places of a list; relative to the channel's old list if it extends that. */
  #runs(before: Row | undefined, channel: string, key: Key, placeOf: (key: Key) => Place): Runs {
    const { rows } = this.#thread;
    const old = before?.at?.get(channel);
    const added = this.lists.get(key);
    const ofOld = isRuns(old) ? rows.runs(channel, old) : undefined;
    const runs: Run[] = [];
    let keys: readonly Key[];
    if (ofOld && added && added.base === before?.values.get(channel)) {
      runs.push(...cut(ofOld, added.start, added.stop));
      keys = added.added;
    } else {
      keys = added ? this.#expanded(added) : expanded(rows.lists, key);
    }
    runs.push(...runsOf(keys.map(placeOf)));
    if (!isRuns(old) || !before) return { base: 0, kept: 0, tail: runs };
    const base = old.base || before.revision;
    return saidOf(runs, base, rows.full(base, channel) ?? []);
  }

  #expanded({ base, start, stop, added }: Spliced): Key[] {
    const kept = base === undefined ? [] : expanded(this.#thread.rows.lists, base);
    return [...kept.slice(start, stop), ...added];
  }
}
