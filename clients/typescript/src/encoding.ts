// Encodes requests. Rejects strings that protobuf would change silently.

import { BinaryWriter } from "@bufbuild/protobuf/wire";
import type { Codec } from "./methods.js";
import { REPLACE_IT } from "./words.js";

class Writer extends BinaryWriter {
  override string(value: string): this {
    if (isBroken(value)) throw new TypeError("half of a surrogate pair");
    return super.string(value);
  }
}

/** Encodes a message. The error for a string that is not Unicode names its path. */
export function encoded<T>(codec: Codec<T>, message: T): Uint8Array {
  try {
    return codec.encode(message, new Writer()).finish();
  } catch (error) {
    const found = broken(message, "");
    if (!found) throw error;
    const [path, text] = found;
    const place = text.search(/\p{Surrogate}/u);
    throw new TypeError(`${path}: has half of a surrogate pair at index ${place}: ${REPLACE_IT}`);
  }
}

const isBroken = (value: unknown): value is string =>
  typeof value === "string" && !value.isWellFormed();

/** Returns the path and the text of the first string that is not well-formed Unicode. */
function broken(value: unknown, path: string): [path: string, text: string] | undefined {
  if (isBroken(value)) return [path, value];
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return undefined;
  for (const [key, each] of Object.entries(value)) {
    const found = broken(each, path ? `${path}.${key.toWellFormed()}` : key.toWellFormed());
    if (found) return found;
    if (isBroken(key)) return [`a key of ${path}`, key];
  }
  return undefined;
}
