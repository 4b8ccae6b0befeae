// Messages that were read or written before, so that they are not taken apart again.

import type { BaseMessage } from "@langchain/core/messages";
import type { Parsed } from "../words.js";
import type { Key } from "./lists.js";
import { messageOf } from "./messages.js";

/** Messages of a thread's frames, as JSON has them. */
export class SaidMessages {
  readonly #said = new Map<Key, Parsed>();
  /** Keys that programs in another language gave, by the keys that they would have here. */
  readonly #aliases = new Map<Key, Key>();
  /** Those of which it is not known what their keys would be here, by their own ids. */
  readonly #unsettled = new Map<string, Key[]>();

  /** A frame has this message. */
  take(key: Key, said: Parsed): void {
    this.#said.set(key, said);
    const id = idOf(said);
    const others = this.#unsettled.get(id);
    if (others) others.push(key);
    else this.#unsettled.set(id, [key]);
  }

  /** It is in a frame. */
  has(key: Key): boolean {
    return this.#said.has(key);
  }

  /** A message of a frame, made anew; undefined where no frame has it. */
  made(key: Key): BaseMessage | undefined {
    const said = this.#said.get(key);
    return said && messageOf(structuredClone(said));
  }

  /**
   * The key in the thread, of a message that has this one here.
   *
   * A message with another id is another message: only those with its own are made anew.
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

/** Messages as objects: a graph gives the same ones again with every checkpoint. */
export class NotedMessages {
  readonly #noted = new WeakMap<BaseMessage, Noted>();

  /** The key that a message has, if it was noted and is as it was. */
  keyOf(message: BaseMessage): Key | undefined {
    const noted = this.#noted.get(message);
    if (!noted) return undefined;
    const fields = fieldsOf(message);
    const isSame =
      fields.length === noted.fields.length &&
      fields.every((field, index) => field === noted.fields[index]);
    return isSame ? noted.key : undefined;
  }

  /** It has this key. */
  note(message: BaseMessage, key: Key): void {
    this.#noted.set(message, { key, fields: fieldsOf(message) });
  }
}

/** What a message says, to be compared; what may change in place as text. */
function fieldsOf(message: BaseMessage): unknown[] {
  return Object.entries(message)
    .filter(([name]) => !name.startsWith("lc_"))
    .flatMap(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]);
}
