// Messages that were read or written before, so that they are not taken apart again.

import type { BaseMessage } from "@langchain/core/messages";
import type { Parsed } from "../words.js";
import type { Key } from "./lists.js";
import { messageOf } from "./messages.js";

/** A message as it was when its key was noted. */
interface Noted {
  key: Key;
  fields: readonly unknown[];
}

/** The messages of one thread. */
export class KnownMessages {
  /** Those of its frames, as JSON has them. */
  readonly #said = new Map<Key, Parsed>();
  /** Keys that programs in another language gave, by the keys that they would have here. */
  readonly #aliases = new Map<Key, Key>();
  /** Keys of which it is known what they would be here. */
  readonly #settled = new Set<Key>();
  #unsettled: Key[] = [];
  /** A graph gives the same objects again with every checkpoint. */
  readonly #noted = new WeakMap<BaseMessage, Noted>();

  /** A frame has this message. */
  take(key: Key, said: Parsed): void {
    this.#said.set(key, said);
    if (!this.#settled.has(key)) this.#unsettled.push(key);
  }

  /** It is in a frame. */
  has(key: Key): boolean {
    return this.#said.has(key);
  }

  /** A message of a frame, made anew; undefined where no frame has it. */
  made(key: Key): BaseMessage | undefined {
    const said = this.#said.get(key);
    const message = said && messageOf(structuredClone(said));
    if (message) this.note(message, key);
    return message;
  }

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

  /** Works out what the keys of others would be here. */
  async settle(ownKeyOf: (message: BaseMessage) => Promise<Key>): Promise<void> {
    for (const key of this.#unsettled) {
      const message = this.made(key);
      if (message) this.#aliases.set(await ownKeyOf(message), key);
      this.#settled.add(key);
    }
    this.#unsettled = [];
  }

  /** The key in the thread, of a message that has this one here. */
  aliasOf(own: Key): Key {
    this.#settled.add(own);
    return this.#aliases.get(own) ?? own;
  }
}

/** What a message says, to be compared; what may change in place as text. */
function fieldsOf(message: BaseMessage): unknown[] {
  return Object.entries(message)
    .filter(([name]) => !name.startsWith("lc_"))
    .flatMap(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value]);
}
