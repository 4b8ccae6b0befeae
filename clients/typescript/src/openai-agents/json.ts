// Items as JSON, with what JSON lacks beside them: bytes.

import { isDeepStrictEqual } from "node:util";
import type { Parsed } from "../words.js";

/** Where bytes are in an item: keys and places. */
type Path = (string | number)[];

/** An item that JSON can say. */
export interface Plain {
  item: Parsed;
  /** Of texts that are bytes, in base64. */
  bytes: Path[];
}

/** An item as JSON has it; throws where it holds what neither JSON nor bytes are. */
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
  // As JSON has it.
  return typeof value === "number" && !Number.isFinite(value) ? null : (value ?? null);
}

/** The item again; takes it over. */
export function revived({ item, bytes }: Plain): Parsed {
  for (const path of bytes) {
    const last = path.at(-1);
    const holder = path.slice(0, -1).reduce<Parsed>((at, key) => at?.[key], item);
    if (holder && last !== undefined)
      holder[last] = Uint8Array.from(Buffer.from(holder[last], "base64"));
  }
  return item;
}

/** A value of JSON with its keys in one order. */
export function sorted(value: Parsed): Parsed {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, sorted(each)]));
}

/** They are the same, whatever the order of their keys. */
export const isSame = (one: unknown, other: unknown): boolean =>
  isDeepStrictEqual(plain(one), plain(other));
