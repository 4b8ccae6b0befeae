// Idempotency keys: with one, a write that is sent twice is stored once.

import { createHash, randomUUID } from "node:crypto";

/** The key that was given, or one for this write. */
export const keyOrNew = (given?: string): string => given || randomUUID().replaceAll("-", "");

/** How long the store knows a key that was made here, in seconds: longer than anybody sends again. */
const OWN_KEY_LIFE_SECONDS = 24 * 60 * 60;

/** For how long a write's key is known; 0: for ever, as one that was given without a life. */
export function keyLifeSeconds(given: string | undefined, seconds?: number): number {
  if (seconds === undefined) return given ? 0 : OWN_KEY_LIFE_SECONDS;
  if (!Number.isInteger(seconds) || seconds < 1) {
    throw new RangeError("a key's life must be a whole number of seconds, at least 1");
  }
  return seconds;
}

/** The id of a call that has none: the same whenever it is of the same. */
export const callIdOf = (of: string): string =>
  `call_${createHash("blake2b512").update(of).digest("hex").slice(0, 24)}`;

/** A few letters that nobody else has. */
export const unique = (letters: number): string => keyOrNew().slice(-letters);
