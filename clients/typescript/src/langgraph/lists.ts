// Lists that are said as parts of earlier ones.

import { createHash } from "node:crypto";
import { blake2b } from "../adapters/blake2b.js";
import { utf8 } from "../words.js";

/** Hash of a stored value or of a list, in hexadecimal digits. */
export type Key = string;

const KEY_BYTES = 12;

/** The key of what is stored with these bytes. */
export function keyOf(...content: (string | Uint8Array)[]): Key {
  const hash = createHash("blake2b512");
  for (const each of content) hash.update(each);
  return hash.digest("hex").slice(0, KEY_BYTES * 2);
}

/** A key as rows have it. */
export const keyBytes = (key: Key): Uint8Array => Buffer.from(key, "hex");

/** A key of a row. */
export const keyHex = (bytes: Uint8Array): Key => Buffer.from(bytes).toString("hex");

/** The key of a list of what has these keys. */
export const listKey = (keys: readonly Key[]): Key => keyOf("list\0", keys.join(""));

/** Whether a list with this key has these; Python's is a hash of its own length, of their bytes. */
export const isList = (key: Key, keys: readonly Key[]): boolean =>
  key === listKey(keys) || key === pythonsListKey(keys);

const pythonsListKey = (keys: readonly Key[]): Key =>
  keyHex(blake2b(Buffer.concat([utf8("list\0"), ...keys.map(keyBytes)]), KEY_BYTES));

/** A list as a part of another one, and what comes after that. */
export interface Spliced {
  base: Key | undefined;
  start: number;
  stop: number;
  added: readonly Key[];
}

/** The keys of a list's elements. */
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

/** A list said as a part of an earlier one. */
export function spliced(base: Key | undefined, old: readonly Key[], now: readonly Key[]): Spliced {
  const same = common(old, now);
  if (same) return { base, start: 0, stop: same, added: now.slice(same) };
  const ending = overlap(old, now);
  if (!ending) return { base: undefined, start: 0, stop: 0, added: now };
  return { base, start: old.length - ending, stop: old.length, added: now.slice(ending) };
}

/** How many elements two lists begin with in common. */
export function common(one: readonly Key[], other: readonly Key[]): number {
  const end = Math.min(one.length, other.length);
  for (let index = 0; index < end; index += 1) if (one[index] !== other[index]) return index;
  return end;
}

/** How many elements the first ends with that the second begins with. */
export function overlap(one: readonly Key[], other: readonly Key[]): number {
  if (!other.length) return 0;
  for (let at = Math.max(0, one.length - other.length); at < one.length; at += 1) {
    const end = one.slice(at);
    if (one[at] === other[0] && common(end, other) === end.length) return end.length;
  }
  return 0;
}
