// When a call is sent again, and after how long. Decides only; the transport waits.

import { status } from "@grpc/grpc-js";
import * as errors from "./errors/index.js";

/** The first pause, in milliseconds. Each is twice the one before … */
const PAUSE_MIN_MS = 50;
/** … up to this. */
const PAUSE_MAX_MS = 2_000;
/** Kept for the last attempt. */
const LAST_ATTEMPT_MS = 100;
/** So long an address that has never answered is tried: it may be wrong. */
export const STRANGER_PATIENCE_MS = 800;

/** The server says that nothing was done. */
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

/** Words of gRPC for a connection that broke in the middle of an answer. */
const BROKEN =
  /RST_STREAM|GOAWAY|Stream removed|HTTP\/2|http2|h2 protocol|Stream closed|socket|ECONN|without sending|dropped/i;

/** The connection broke, whatever the code says. */
export function isBreak(error: errors.TreeringError): boolean {
  return !error.rule && BREAKS.has(error.code);
}

/** The attempts of one call. */
export class Attempts {
  readonly #began = Date.now();
  readonly #mayRepeat: boolean;
  #pauseMs = PAUSE_MIN_MS;
  /** Milliseconds for a server that cannot be reached; undefined: until the deadline. */
  patienceMs: number | undefined;

  constructor(
    needsKey: boolean,
    key: string,
    /** By `Date.now()`. */
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
    // A last attempt is made when the time is nearly up.
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
