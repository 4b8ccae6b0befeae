// Serialises values, and computes their keys.

import type { BaseMessage } from "@langchain/core/messages";
import type { SerializerProtocol } from "@langchain/langgraph-checkpoint";
import { fromUtf8, type Parsed } from "../words.js";
import { type Key, keyOf } from "./lists.js";
import { canonical } from "./messages.js";
import { fromPython, PYTHON_KINDS } from "./python.js";
import type { Stored } from "./rows.js";

/** Serialises and deserialises the values of a thread. */
export class Values {
  readonly #serde: SerializerProtocol;
  readonly #isMirrored: boolean;

  constructor(serde: SerializerProtocol, isMirrored: boolean) {
    this.#serde = serde;
    this.#isMirrored = isMirrored;
  }

  /** Serialises a value. */
  async dumps(value: unknown): Promise<Stored> {
    return this.#serde.dumpsTyped(value);
  }

  /** Deserialises a value. */
  async loads([kind, data]: Stored): Promise<Parsed> {
    return PYTHON_KINDS.has(kind) ? fromPython(kind, data) : this.#serde.loadsTyped(kind, data);
  }

  /** Returns the key of a serialised message; its restored copy has the same key. */
  messageKey([kind, data]: Stored): Key {
    const isOpaque = !this.#isMirrored || kind !== "json";
    if (isOpaque) return keyOf(kind, "\0", data);
    return keyOf("message\0", canonical(JSON.parse(fromUtf8(data))));
  }

  /** Returns the key of a message. */
  async keyOfMessage(message: BaseMessage): Promise<Key> {
    return this.messageKey(await this.dumps(message));
  }
}

/** Whether Python serialised a value: its key then differs from the key that it would have here. */
export const isPythons = ([kind]: Stored): boolean => PYTHON_KINDS.has(kind);

/** Whether JSON holds all of it. Changes of other values, such as a `Map`, would not be noticed. */
export const isPlain = ([kind, data]: Stored): boolean =>
  kind === "json" && !Buffer.from(data.buffer, data.byteOffset, data.length).includes('"lc":2');

/** Whether a list is stored by its added elements; a list with numbers is not. */
export const isKeptAsList = (value: unknown): value is unknown[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  !value.some((each) => ["number", "boolean", "undefined"].includes(typeof each) || each === null);
