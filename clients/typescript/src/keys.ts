// Idempotency keys: a write with a key is stored once, even if it is sent twice.

import { createHash, randomUUID } from "node:crypto";

/** Returns the given key, or generates a key for this write. */
export const keyOrNew = (given?: string): string => given || randomUUID().replaceAll("-", "");

/** How long the store keeps a generated key: longer than any client retries. */
const OWN_KEY_LIFE_SECONDS = 24 * 60 * 60;

/** Returns how long the store keeps a key. 0: for ever, the default for a given key. */
export function keyLifeSeconds(given: string | undefined, seconds?: number): number {
  if (seconds === undefined) return given ? 0 : OWN_KEY_LIFE_SECONDS;
  if (!Number.isInteger(seconds) || seconds < 1) {
    throw new RangeError("a key's life must be a whole number of seconds, at least 1");
  }
  return seconds;
}

/** Derives an id for a call that has none. The same text gives the same id. */
export const callIdOf = (of: string): string =>
  `call_${createHash("blake2b512").update(of).digest("hex").slice(0, 24)}`;

/** Returns random hexadecimal digits, for a unique name. */
export const unique = (letters: number): string => keyOrNew().slice(-letters);
