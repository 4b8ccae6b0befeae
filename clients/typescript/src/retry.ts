// Decides whether, and after which pause, a call is retried. The transport does the waiting.

import { status } from "@grpc/grpc-js";
import * as errors from "./errors/index.js";

/** First pause. Each following pause is twice as long … */
const PAUSE_MIN_MS = 50;
/** … up to this. */
const PAUSE_MAX_MS = 2_000;
/** Time that is reserved for the last attempt. */
const LAST_ATTEMPT_MS = 100;
/** How long an address that never answered is tried: it may be wrong. */
export const STRANGER_PATIENCE_MS = 800;

/** Errors with which the server says that it did nothing: a retry is safe. */
const HARMLESS = [
  errors.Busy,
  errors.BytesInFlight,
  errors.RateLimited,
  errors.NotReady,
  errors.Closing,
  errors.ViewsDamaged,
  errors.IndexDamaged,
];

const BREAKS = new Set<status | undefined>([status.INTERNAL, status.UNKNOWN, status.CANCELLED]);

/** Messages of gRPC for a connection that broke during an answer. */
const BROKEN =
  /RST_STREAM|GOAWAY|Stream removed|HTTP\/2|http2|h2 protocol|Stream closed|socket|ECONN|without sending|dropped/i;

/** True if the code can stand for a broken connection and the server gave no reason. */
export function isBreak(error: errors.TreeringError): boolean {
  return !error.rule && BREAKS.has(error.code);
}

/** The attempts of one call. */
export class Attempts {
  readonly #began = Date.now();
  readonly #mayRepeat: boolean;
  #pauseMs = PAUSE_MIN_MS;
  /** How long to try an unreachable server, in ms; undefined: until the deadline. */
  patienceMs: number | undefined;

  constructor(
    needsKey: boolean,
    key: string,
    /** Compared with `Date.now()`. */
    readonly deadline: number,
    patienceMs?: number,
  ) {
    this.#mayRepeat = !needsKey || key !== "";
    this.patienceMs = patienceMs;
  }

  /** Milliseconds to wait before the next attempt; undefined: there is none. */
  pauseAfter(error: errors.TreeringError): number | undefined {
    if (!this.#isWorthIt(error)) return undefined;
    const now = Date.now();
    let end = this.deadline;
    if (this.patienceMs !== undefined && error instanceof errors.Unreachable) {
      end = Math.min(end, this.#began + this.patienceMs);
    }
    const chance = this.#pauseMs * (0.5 + Math.random());
    this.#pauseMs = Math.min(this.#pauseMs * 2, PAUSE_MAX_MS);
    // Leaves time for a last attempt just before the end.
    let pause = Math.min(chance, end - now - LAST_ATTEMPT_MS);
    if (error.retryAfterMs !== undefined) pause = Math.max(pause, error.retryAfterMs);
    return pause > 0 && pause < end - now ? pause : undefined;
  }

  #isWorthIt(error: errors.TreeringError): boolean {
    if (error.retryAfterMs !== undefined) return true;
    if (HARMLESS.some((kind) => error instanceof kind)) return true;
    const isLost =
      error instanceof errors.Unreachable ||
      error instanceof errors.UnknownOutcome ||
      (isBreak(error) && BROKEN.test(error.message));
    return isLost && this.#mayRepeat;
  }
}
