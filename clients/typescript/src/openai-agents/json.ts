// Converts items to JSON. Bytes become base64, and the paths of such texts are kept.

import { isDeepStrictEqual } from "node:util";
import type { Parsed } from "../words.js";

/** The path of a value in an item: keys and indices. */
type Path = (string | number)[];

/** An item as JSON values. */
export interface Plain {
  item: Parsed;
  /** Paths of the texts that are bytes in base64. */
  bytes: Path[];
}

/** Converts an item; throws if a value is neither JSON nor bytes. */
export function plain(item: unknown): Plain {
  const bytes: Path[] = [];
  return { item: copied(item, [], bytes), bytes };
}

function copied(value: unknown, path: Path, bytes: Path[]): Parsed {
  if (value instanceof Uint8Array) {
    bytes.push(path);
    return Buffer.from(value).toString("base64");
  }
  if (Array.isArray(value)) return value.map((each, at) => copied(each, [...path, at], bytes));
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, each]) => each !== undefined);
    return Object.fromEntries(
      entries.map(([key, each]) => [key, copied(each, [...path, key], bytes)]),
    );
  }
  const isSaid = value === null || ["string", "number", "boolean"].includes(typeof value);
  if (!isSaid && value !== undefined) {
    throw new TypeError(`an item of a session cannot hold a ${typeof value}`);
  }
  // As `JSON.stringify` converts it.
  return typeof value === "number" && !Number.isFinite(value) ? null : (value ?? null);
}

/** Restores the bytes of an item, in place. */
export function revived({ item, bytes }: Plain): Parsed {
  for (const path of bytes) {
    const last = path.at(-1);
    const holder = path.slice(0, -1).reduce<Parsed>((at, key) => at?.[key], item);
    if (holder && last !== undefined)
      holder[last] = Uint8Array.from(Buffer.from(holder[last], "base64"));
  }
  return item;
}

/** Returns a JSON value with sorted keys. */
export function sorted(value: Parsed): Parsed {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
}

/** Whether two items are equal; the order of keys does not matter. */
export const isSame = (one: unknown, other: unknown): boolean =>
  isDeepStrictEqual(plain(one), plain(other));
