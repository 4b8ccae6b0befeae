// Values as bytes, and their keys.

import type { BaseMessage } from "@langchain/core/messages";
import type { SerializerProtocol } from "@langchain/langgraph-checkpoint";
import { fromUtf8, type Parsed } from "../words.js";
import { type Key, keyOf } from "./lists.js";
import { canonical } from "./messages.js";
import { fromPython, PYTHON_KINDS } from "./python.js";
import type { Stored } from "./rows.js";

/** What makes bytes of a thread's values, and values of bytes. */
export class Values {
  readonly #serde: SerializerProtocol;
  readonly #isMirrored: boolean;

  constructor(serde: SerializerProtocol, isMirrored: boolean) {
    this.#serde = serde;
    this.#isMirrored = isMirrored;
  }

  /** A value as the serializer makes it. */
  async dumps(value: unknown): Promise<Stored> {
    return this.#serde.dumpsTyped(value);
  }

  /** What a serializer made, as a value. */
  async loads([kind, data]: Stored): Promise<Parsed> {
    return PYTHON_KINDS.has(kind) ? fromPython(kind, data) : this.#serde.loadsTyped(kind, data);
  }

  /** The key of a message, which is the same for what comes back of it. */
  messageKey([kind, data]: Stored): Key {
    const isOpaque = !this.#isMirrored || kind !== "json";
    if (isOpaque) return keyOf(kind, "\0", data);
    return keyOf("message\0", canonical(JSON.parse(fromUtf8(data))));
  }

  /** The same, of a message. */
  async keyOfMessage(message: BaseMessage): Promise<Key> {
    return this.messageKey(await this.dumps(message));
  }
}

/** Made here or in Python: of Python's, the key is not what it would be here. */
export const isPythons = ([kind]: Stored): boolean => PYTHON_KINDS.has(kind);

/** It has nothing that JSON does not say, such as a `Map`, whose changes would not be seen. */
export const isPlain = ([kind, data]: Stored): boolean =>
  kind === "json" && !Buffer.from(data.buffer, data.byteOffset, data.length).includes('"lc":2');

/** Lists of what is more than a number are stored by what is added to them. */
export const isKeptAsList = (value: unknown): value is unknown[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  !value.some((each) => ["number", "boolean", "undefined"].includes(typeof each) || each === null);
