// Messages that were read or written before, so that they are not serialised again.

import type { BaseMessage } from "@langchain/core/messages";
import type { Parsed } from "../words.js";
import type { Key } from "./lists.js";
import { messageOf } from "./messages.js";

/** Messages of a thread's frames, as JSON values. */
export class SaidMessages {
  readonly #said = new Map<Key, Parsed>();
  /** Keys that programs in another language assigned, by the keys of the same messages here. */
  readonly #aliases = new Map<Key, Key>();
  /** Keys for which the keys here are not computed yet, by the ids of the messages. */
  readonly #unsettled = new Map<string, Key[]>();

  /** Adds a message of a frame. */
  take(key: Key, said: Parsed): void {
    this.#said.set(key, said);
    const id = idOf(said);
    const others = this.#unsettled.get(id);
    if (others) others.push(key);
    else this.#unsettled.set(id, [key]);
  }

  /** Whether a frame has the message. */
  has(key: Key): boolean {
    return this.#said.has(key);
  }

  /** Makes a message of a frame; returns undefined if no frame has it. */
  made(key: Key): BaseMessage | undefined {
    const said = this.#said.get(key);
    return said && messageOf(structuredClone(said));
  }

  /**
   * Returns the key in the thread of a message; `own` is the key that it has here.
   *
   * Messages with different ids are different, so only those with the same id are compared.
   */
  async settled(
    own: Key,
    message: BaseMessage,
    ownKeyOf: (message: BaseMessage) => Promise<Key>,
  ): Promise<Key> {
    const id = idOf(message);
    const others = this.#unsettled.get(id) ?? [];
    for (const key of others) {
      const made = this.made(key);
      if (made) this.#aliases.set(await ownKeyOf(made), key);
    }
    this.#unsettled.delete(id);
    return this.#aliases.get(own) ?? own;
  }
}

const idOf = ({ id }: { id?: unknown }): string => String(id ?? "");

/** A message as it was when its key was noted. */
interface Noted {
  key: Key;
  fields: readonly unknown[];
}

/** Keys by message object: a graph passes the same objects with every checkpoint. */
export class NotedMessages {
  readonly #noted = new WeakMap<BaseMessage, Noted>();

  /** Returns the key of a message if it was noted and has not changed. */
  keyOf(message: BaseMessage): Key | undefined {
    const noted = this.#noted.get(message);
    if (!noted) return undefined;
    const fields = fieldsOf(message);
    const isSame =
      fields.length === noted.fields.length &&
      fields.every((field, index) => field === noted.fields[index]);
    return isSame ? noted.key : undefined;
  }

  /** Notes the key of a message. */
  note(message: BaseMessage, key: Key): void {
    this.#noted.set(message, { key, fields: fieldsOf(message) });
  }
}

/** Returns the fields of a message, to compare them; objects may change in place, so as JSON. */
function fieldsOf(message: BaseMessage): unknown[] {
  return Object.entries(message)
    .filter(([name]) => !name.startsWith("lc_"))
    .flatMap(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]);
}
