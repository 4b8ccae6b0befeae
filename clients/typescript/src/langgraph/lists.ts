// Lists that are stored relative to earlier lists.

import { createHash } from "node:crypto";
import { blake2b } from "../adapters/blake2b.js";
import { utf8 } from "../words.js";

/** Hash of a stored value or of a list, in hexadecimal digits. */
export type Key = string;

const KEY_BYTES = 12;

/** Returns the key of a value with these bytes. */
export function keyOf(...content: (string | Uint8Array)[]): Key {
  const hash = createHash("blake2b512");
  for (const each of content) hash.update(each);
  return hash.digest("hex").slice(0, KEY_BYTES * 2);
}

/** Converts a key to the bytes in rows. */
export const keyBytes = (key: Key): Uint8Array => Buffer.from(key, "hex");

/** Converts the bytes in rows to a key. */
export const keyHex = (bytes: Uint8Array): Key => Buffer.from(bytes).toString("hex");

/** Returns the key of a list whose elements have these keys. */
export const listKey = (keys: readonly Key[]): Key => keyOf("list\0", keys.join(""));

/** Whether a list has these elements. Python hashes the bytes of the keys, to 12 bytes. */
export const isList = (key: Key, keys: readonly Key[]): boolean =>
  key === listKey(keys) || key === pythonsListKey(keys);

const pythonsListKey = (keys: readonly Key[]): Key =>
  keyHex(blake2b(Buffer.concat([utf8("list\0"), ...keys.map(keyBytes)]), KEY_BYTES));

/** A list: a range of another list, and the elements after that. */
export interface Spliced {
  base: Key | undefined;
  start: number;
  stop: number;
  added: readonly Key[];
}

/** Returns the keys of a list's elements. */
export function expanded(lists: ReadonlyMap<Key, Spliced>, key: Key): Key[] {
  const chain: Spliced[] = [];
  for (let at: Key | undefined = key; at !== undefined; at = chain.at(-1)?.base) {
    const found = lists.get(at);
    if (!found) throw new TypeError("a checkpoint names a list that its thread does not have");
    chain.push(found);
  }
  return chain.reduceRight<Key[]>((made, { start, stop, added }) => {
    made.length = Math.min(made.length, stop);
    const kept = start ? made.slice(start) : made;
    for (const each of added) kept.push(each);
    return kept;
  }, []);
}

/** Returns a list relative to an earlier one. */
export function spliced(base: Key | undefined, old: readonly Key[], now: readonly Key[]): Spliced {
  const same = common(old, now);
  if (same) return { base, start: 0, stop: same, added: now.slice(same) };
  const ending = overlap(old, now);
  if (!ending) return { base: undefined, start: 0, stop: 0, added: now };
  return { base, start: old.length - ending, stop: old.length, added: now.slice(ending) };
}

/** Returns the length of the common prefix of two lists. */
export function common(one: readonly Key[], other: readonly Key[]): number {
  const end = Math.min(one.length, other.length);
  for (let index = 0; index < end; index += 1) if (one[index] !== other[index]) return index;
  return end;
}

/** Returns the length of the longest suffix of the first list that is a prefix of the second. */
export function overlap(one: readonly Key[], other: readonly Key[]): number {
  if (!other.length) return 0;
  for (let at = Math.max(0, one.length - other.length); at < one.length; at += 1) {
    const end = one.slice(at);
    if (one[at] === other[0] && common(end, other) === end.length) return end.length;
  }
  return 0;
}
