// Sends calls, and retries them where that is safe, until their timeout.

import { setTimeout as sleep } from "node:timers/promises";
import type { ChannelCredentials } from "@grpc/grpc-js";
import type { Endpoint } from "./endpoint.js";
import {
  ClientClosed,
  Closing,
  DeadlineExceeded,
  TreeringError,
  Unreachable,
} from "./errors/index.js";
import { SERVING } from "./health.js";
import { health, type Method } from "./methods.js";
import { Attempts, isBreak, STRANGER_PATIENCE_MS } from "./retry.js";
import { type Bounds, type Stream, Wire } from "./wire.js";

/** Options of a call. */
export interface CallOptions {
  /** Milliseconds for the call with its retries; default: the client's. */
  timeoutMs?: number | undefined;
  /** Ends the call; it then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

interface Sending extends CallOptions {
  /** The request's idempotency key. */
  key?: string | undefined;
}

/** Calls to a server, in one namespace, with retries. */
export class Transport {
  readonly #wire: Wire;
  /** The address has answered, or the client starts the server there on demand. */
  #isMet: boolean;
  #isClosed = false;
  /** Offset of the last event that this client wrote: searches wait for it. */
  lastPosition = 0;

  constructor(
    endpoint: Endpoint,
    readonly namespace: string,
    readonly timeoutMs: number,
    credentials: ChannelCredentials | undefined,
    metadata: Readonly<Record<string, string>>,
  ) {
    this.#wire = new Wire(endpoint, credentials, { ...metadata, "treering-namespace": namespace });
    this.#isMet = endpoint.isOurs;
  }

  /** Connects; starts the server of a folder if it is not running. */
  async connect(): Promise<void> {
    await this.#wire.connect();
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** One request, one answer. */
  unary<Q, S>(method: Method<Q, S>, request: Q, sending: Sending = {}): Promise<S> {
    return this.#answer(method, sending, (bounds) => this.#wire.unary(method, request, bounds));
  }

  /** Many requests, one answer; `requests` is called for each attempt. */
  sendMany<Q, S>(method: Method<Q, S>, requests: () => Iterable<Q>, sending: Sending): Promise<S> {
    return this.#answer(method, sending, (bounds) =>
      this.#wire.sendMany(method, requests(), bounds),
    );
  }

  async #answer<Q, S>(
    method: Method<Q, S>,
    sending: Sending,
    send: (bounds: Bounds) => Promise<S>,
  ): Promise<S> {
    const attempts = this.attempts(method, sending);
    for (;;) {
      try {
        const answer = await send({ deadline: attempts.deadline, signal: sending.signal });
        this.#isMet = true;
        return answer;
      } catch (error) {
        await this.beforeNext(attempts, error, sending.signal);
      }
    }
  }

  /**
   * One request, many answers. After a break, `request` is called again, for the answers that
   * are missing. The timeout limits the wait for each answer.
   */
  read<Q, S>(method: Method<Q, S>, request: () => Q, sending: Sending = {}): AsyncGenerator<S> {
    return this.#read(method, sending, () =>
      this.#wire.stream(method, request(), { deadline: Infinity }),
    );
  }

  /** Many requests, many answers; `requests` returns the requests without an answer. */
  readMany<Q, S>(
    method: Method<Q, S>,
    requests: () => Iterable<Q>,
    sending: Sending,
  ): AsyncGenerator<S> {
    return this.#read(method, sending, (deadline) =>
      this.#wire.streamMany(method, requests(), { deadline }),
    );
  }

  async *#read<Q, S>(
    method: Method<Q, S>,
    sending: Sending,
    begin: (deadline: number) => Promise<Stream<S>>,
  ): AsyncGenerator<S> {
    const { signal } = sending;
    let attempts = this.attempts(method, sending);
    let stream: Stream<S> | undefined;
    const abort = () => stream?.cancel();
    signal?.addEventListener("abort", abort, { once: true });
    try {
      for (;;) {
        try {
          signal?.throwIfAborted();
          stream = await begin(attempts.deadline);
          for (;;) {
            const answer = await inTime(stream, attempts.deadline);
            this.#isMet = true;
            if (answer.done) return;
            yield answer.value;
            attempts = this.attempts(method, sending);
          }
        } catch (error) {
          if (stream) await this.#wire.leave(method, stream);
          stream = undefined;
          await this.beforeNext(attempts, error, signal);
        }
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      if (stream) await this.#wire.leave(method, stream);
    }
  }

  /** One request, an endless stream of answers, which resumes after every break. */
  follow<Q, S>(method: Method<Q, S>, request: () => Q): Following<Q, S> {
    return new Following(this, this.#wire, method, request);
  }

  attempts<Q, S>(
    method: Method<Q, S>,
    { key = "", timeoutMs = this.timeoutMs }: Sending,
  ): Attempts {
    if (this.#isClosed) throw new ClientClosed();
    const patience = this.#isMet ? undefined : STRANGER_PATIENCE_MS;
    return new Attempts(method.needsKey, key, Date.now() + timeoutMs, patience);
  }

  /** Notes that the server answered. */
  met(): void {
    this.#isMet = true;
  }

  /** Waits before the next attempt, or throws the error if there is none. */
  async beforeNext(attempts: Attempts, error: unknown, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted) throw signal.reason;
    if (!(error instanceof TreeringError) || this.#isClosed) throw error;
    // A refusal is an answer too.
    if (error.rule) this.#isMet = true;
    if (this.#isMet) attempts.patienceMs = undefined;
    const pause = attempts.pauseAfter(error);
    if (pause === undefined) throw error;
    await sleep(pause, undefined, signal ? { signal } : {});
    const isGone = error instanceof Unreachable || error instanceof Closing || isBreak(error);
    if (isGone) await this.#wire.renew();
  }

  /** Notes the offset of an append: searches wait for it. */
  saw(position: number): void {
    this.lastPosition = Math.max(this.lastPosition, position);
  }

  /** Asks the health service, without retries. */
  async health(service: string, timeoutMs: number): Promise<boolean> {
    const deadline = Date.now() + timeoutMs;
    return (await this.#wire.unary(health, service, { deadline })) === SERVING;
  }

  /** Closes the connection, and stops a server of ours that no other client uses. */
  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await this.#wire.close();
  }
}

/** Returns the next answer of a stream, or throws at the deadline. */
async function inTime<S>(stream: Stream<S>, deadline: number): Promise<IteratorResult<S>> {
  if (deadline === Infinity) return stream.next();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const error = new DeadlineExceeded("nothing came in time");
    timer = setTimeout(() => reject(error), Math.max(0, deadline - Date.now()));
  });
  try {
    return await Promise.race([stream.next(), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** An endless stream of answers, which resumes after every break. */
export class Following<Q, S> implements AsyncIterableIterator<S> {
  readonly #transport: Transport;
  readonly #wire: Wire;
  readonly #method: Method<Q, S>;
  readonly #request: () => Q;
  #attempts: Attempts;
  #stream: Stream<S> | undefined;
  #isClosed = false;

  constructor(transport: Transport, wire: Wire, method: Method<Q, S>, request: () => Q) {
    this.#transport = transport;
    this.#wire = wire;
    this.#method = method;
    this.#request = request;
    this.#attempts = transport.attempts(method, { timeoutMs: Infinity });
  }

  async next(): Promise<IteratorResult<S>> {
    while (!this.#isClosed) {
      try {
        this.#stream ??= await this.#wire.stream(this.#method, this.#request(), {
          deadline: Infinity,
        });
        const answer = await this.#stream.next();
        if (answer.done) throw new Closing("the server ended the stream");
        this.#transport.met();
        this.#attempts = this.#transport.attempts(this.#method, { timeoutMs: Infinity });
        return answer;
      } catch (error) {
        await this.#after(error);
      }
    }
    return { done: true, value: undefined };
  }

  /** Prepares the next attempt after the stream ended or broke. */
  async #after(error: unknown): Promise<void> {
    this.#stream?.cancel();
    this.#stream = undefined;
    this.#isClosed ||= this.#transport.isClosed;
    if (this.#isClosed) return;
    const isBroken = error instanceof TreeringError && isBreak(error);
    await this.#transport.beforeNext(
      this.#attempts,
      isBroken ? new Unreachable(error.message) : error,
    );
  }

  async return(): Promise<IteratorResult<S>> {
    this.close();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Ends the stream; a pending `next` returns no answer. */
  close(): void {
    this.#isClosed = true;
    this.#stream?.cancel();
  }
}
