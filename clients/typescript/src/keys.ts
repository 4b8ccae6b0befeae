// Idempotency keys: with one, a write that is sent twice is stored once.

import { randomUUID } from "node:crypto";

/** The key that was given, or one for this write. */
export const keyOrNew = (given?: string): string => given || randomUUID().replaceAll("-", "");

/** A few letters that nobody else has. */
export const unique = (letters: number): string => keyOrNew().slice(-letters);
