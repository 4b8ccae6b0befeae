// gRPC: sends a request and returns the answer, or throws a `TreeringError`. `transport.ts`
// decides when to send and when to retry.
//
// A write that was sent is not cancelled: the server might still apply it, after the client's
// next write. A caller that abandons a write waits briefly for its outcome. Later writes wait
// until the outcome is known.

import { once } from "node:events";
import {
  type CallOptions,
  type ChannelCredentials,
  type ChannelOptions,
  Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  type ClientWritableStream,
  credentials as grpcCredentials,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { encoded } from "./encoding.js";
import type { Endpoint } from "./endpoint.js";
import { ClientClosed, DeadlineExceeded } from "./errors/index.js";
import { fromRpc } from "./errors/translate.js";
import type { Codec, Method } from "./methods.js";

const OPTIONS: ChannelOptions = {
  // The server limits the size of messages. gRPC's default of 4 MiB is too small for events
  // of the store.
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
  // Reconnects at once after a restart of the server, not after minutes.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  // Detects a connection that broke silently, also while a stream waits for events.
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 20_000,
  // `transport.ts` retries: it knows the idempotency keys and the server's hints.
  "grpc.enable_retries": 0,
  "grpc.enable_channelz": 0,
};

/** How long the caller of an abandoned write waits for its outcome. */
const CANCELLED_MS = 1_000;
/** How long a write continues after its deadline before it is cancelled. */
const SETTLING_MS = 30_000;
/** Maximum delay of Node's timers. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/** Number of answers that are buffered for a slow reader before the stream is paused. */
const QUEUE_MAX = 32;

/** True for a loopback address: an HTTP proxy cannot reach it. */
const isHere = (address: string): boolean => /^(127\.|localhost:|\[::1\]:)/.test(address);

/** Limits of a call. */
export interface Bounds {
  /** Compared with `Date.now()`; `Infinity`: none. */
  deadline: number;
  signal?: AbortSignal | undefined;
}

type Reading<S> = ClientReadableStream<S> | ClientDuplexStream<unknown, S>;

/** A stream of answers. */
export class Stream<S> implements AsyncIterableIterator<S> {
  readonly #call: Reading<S>;
  readonly #queue: S[] = [];
  #end: { error?: unknown } | undefined;
  #waiting: (() => void)[] = [];
  #isDrained = false;

  constructor(call: Reading<S>) {
    this.#call = call;
    call.on("data", (answer: S) => {
      if (this.#isDrained) return;
      this.#queue.push(answer);
      if (this.#queue.length >= QUEUE_MAX) call.pause();
      this.#wake();
    });
    call.on("error", (error: ServiceError) => this.#ends({ error: fromRpc(error) }));
    call.on("end", () => this.#ends({}));
    call.on("close", () => this.#ends({}));
  }

  #ends(how: { error?: unknown }): void {
    // Keeps the first: an error is emitted before the end that it causes.
    this.#end ??= how;
    this.#wake();
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const each of waiting) each();
  }

  async next(): Promise<IteratorResult<S>> {
    for (;;) {
      const answer = this.#queue.shift();
      if (answer !== undefined) {
        if (this.#queue.length === 0) this.#call.resume();
        return { done: false, value: answer };
      }
      if (this.#end) {
        if (this.#end.error) throw this.#end.error;
        return { done: true, value: undefined };
      }
      await this.#more();
    }
  }

  #more(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }

  /** Reads and discards the remaining answers. */
  async drain(): Promise<void> {
    this.#isDrained = true;
    this.#call.resume();
    while (!this.#end) await this.#more();
  }

  async return(): Promise<IteratorResult<S>> {
    this.cancel();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Ends the call. */
  cancel(): void {
    this.#call.cancel();
  }
}

/** The gRPC channel to a server. */
export class Wire {
  readonly #endpoint: Endpoint;
  readonly #credentials: ChannelCredentials;
  readonly #metadata = new Metadata();
  #address = "";
  #client: Client | undefined;
  /** Clients of earlier addresses: closing them at once would cancel their calls. */
  readonly #old: Client[] = [];
  /** Calls in progress: a server waits for them before it stops. */
  readonly #calls = new Set<{ cancel(): void }>();
  /** Outcomes of abandoned writes that were already sent. */
  readonly #left = new Set<Promise<unknown>>();
  #isClosed = false;

  constructor(
    endpoint: Endpoint,
    credentials: ChannelCredentials | undefined,
    metadata: Readonly<Record<string, string>>,
  ) {
    this.#endpoint = endpoint;
    this.#credentials = credentials ?? grpcCredentials.createInsecure();
    for (const [name, value] of Object.entries(metadata)) this.#metadata.set(name, value);
  }

  /** Connects; starts the server of a folder if it is not running. */
  async connect(): Promise<Client> {
    this.#mustBeOpen();
    return this.#open(await this.#endpoint.address());
  }

  /** Asks for the address of the server again. */
  async renew(): Promise<void> {
    this.#mustBeOpen();
    this.#open(await this.#endpoint.renew());
  }

  /** Throws if the client is closed: it must not start a server. */
  #mustBeOpen(): void {
    if (this.#isClosed) throw new ClientClosed();
  }

  #open(address: string): Client {
    this.#mustBeOpen();
    if (this.#client && address === this.#address) return this.#client;
    if (this.#client) this.#old.push(this.#client);
    const options = isHere(address) ? { ...OPTIONS, "grpc.enable_http_proxy": 0 } : OPTIONS;
    this.#client = new Client(address, this.#credentials, options);
    this.#address = address;
    return this.#client;
  }

  /** One request, one answer. */
  async unary<Q, S>(method: Method<Q, S>, request: Q, bounds: Bounds): Promise<S> {
    await this.#mayWrite(method, bounds);
    const client = this.#client ?? (await this.connect());
    return this.#answer(method, bounds, (options, done) =>
      client.makeUnaryRequest(
        method.path,
        writer(method.request),
        reader(method.response),
        request,
        this.#metadata,
        options,
        done,
      ),
    );
  }

  /** Many requests, one answer. */
  async sendMany<Q, S>(method: Method<Q, S>, requests: Iterable<Q>, bounds: Bounds): Promise<S> {
    await this.#mayWrite(method, bounds);
    const client = this.#client ?? (await this.connect());
    return this.#answer(method, bounds, (options, done) => {
      let answered = (): void => {};
      const answer = new Promise<void>((resolve) => {
        answered = resolve;
      });
      const call = client.makeClientStreamRequest(
        method.path,
        writer(method.request),
        reader(method.response),
        this.#metadata,
        options,
        (error, value?: S) => {
          answered();
          done(error, value);
        },
      );
      void writeAll(call, requests, answer);
      return call;
    });
  }

  async #answer<Q, S>(method: Method<Q, S>, bounds: Bounds, begin: Begin<S>): Promise<S> {
    const { deadline, signal } = bounds;
    signal?.throwIfAborted();
    if (!method.needsKey) return this.#outcome(begin, bounds);
    const sent = this.#outcome(begin, { deadline: deadline + SETTLING_MS });
    const answer = await unlessGivenUp(sent, bounds);
    if (answer !== GIVEN_UP) return answer;
    const end = this.#leave(sent);
    if (!signal?.aborted) throw late("no answer before the timeout");
    await unlessGivenUp(end, { deadline: Date.now() + CANCELLED_MS });
    throw signal.reason;
  }

  #outcome<S>(begin: Begin<S>, bounds: Bounds): Promise<S> {
    const { signal } = bounds;
    return new Promise<S>((resolve, reject) => {
      const call = begin(options(bounds), (error, answer) => {
        signal?.removeEventListener("abort", abort);
        this.#calls.delete(call);
        if (error) reject(signal?.aborted ? signal.reason : fromRpc(error));
        else resolve(answer as S);
      });
      this.#calls.add(call);
      const abort = () => call.cancel();
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  /** Waits until all abandoned writes have an outcome. */
  async #mayWrite<Q, S>(method: Method<Q, S>, bounds: Bounds): Promise<void> {
    if (!method.needsKey || this.#left.size === 0) return;
    if ((await unlessGivenUp(Promise.all(this.#left), bounds)) !== GIVEN_UP) return;
    bounds.signal?.throwIfAborted();
    throw late("not sent: the outcome of an earlier, abandoned write is still unknown");
  }

  /** Registers an abandoned write; the promise resolves when it has an outcome. */
  #leave(sent: Promise<unknown>): Promise<void> {
    const end = sent.then(
      () => {},
      () => {},
    );
    this.#left.add(end);
    return end.finally(() => this.#left.delete(end));
  }

  /** Abandons a stream: a read is cancelled, writes in progress continue. */
  async leave<Q, S>(method: Method<Q, S>, stream: Stream<S>): Promise<void> {
    if (!method.needsKey) {
      stream.cancel();
      return;
    }
    const timer = setTimeout(() => stream.cancel(), SETTLING_MS);
    const end = this.#leave(stream.drain()).finally(() => clearTimeout(timer));
    await unlessGivenUp(end, { deadline: Date.now() + CANCELLED_MS });
  }

  /** One request, many answers. */
  async stream<Q, S>(method: Method<Q, S>, request: Q, bounds: Bounds): Promise<Stream<S>> {
    const client = this.#client ?? (await this.connect());
    const call = client.makeServerStreamRequest(
      method.path,
      writer(method.request),
      reader(method.response),
      request,
      this.#metadata,
      options(bounds),
    );
    return this.#streamOf(call);
  }

  /** Many requests, many answers. The bounds apply only until the requests are sent. */
  async streamMany<Q, S>(
    method: Method<Q, S>,
    requests: Iterable<Q>,
    bounds: Bounds,
  ): Promise<Stream<S>> {
    await this.#mayWrite(method, bounds);
    const client = this.#client ?? (await this.connect());
    const call = client.makeBidiStreamRequest(
      method.path,
      writer(method.request),
      reader(method.response),
      this.#metadata,
      {},
    );
    const ended = new Promise<void>((resolve) => {
      call.once("end", resolve);
      call.once("error", () => resolve());
      call.once("close", resolve);
    });
    const answers = this.#streamOf(call);
    void writeAll(call, requests, ended);
    return answers;
  }

  #streamOf<S>(call: Reading<S>): Stream<S> {
    this.#calls.add(call);
    call.once("close", () => this.#calls.delete(call));
    call.once("error", () => this.#calls.delete(call));
    return new Stream(call);
  }

  /** Closes the connection, and cancels the calls in progress. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const left = Promise.all(this.#left);
    if (this.#left.size) await unlessGivenUp(left, { deadline: Date.now() + CANCELLED_MS });
    for (const call of [...this.#calls]) call.cancel();
    for (const client of [...this.#old, this.#client]) client?.close();
    this.#client = undefined;
    await this.#endpoint.close();
  }
}

/** Sends a request; `done` is called once. */
type Begin<S> = (
  options: CallOptions,
  done: (error: ServiceError | null, answer?: S) => void,
) => { cancel(): void };

const GIVEN_UP = Symbol("given up");

/** Returns the result of the work, or `GIVEN_UP` at the deadline or when it is aborted. */
async function unlessGivenUp<T>(
  work: Promise<T>,
  { deadline, signal }: Bounds,
): Promise<T | typeof GIVEN_UP> {
  let giveUp = (): void => {};
  const givenUp = new Promise<typeof GIVEN_UP>((resolve) => {
    giveUp = () => resolve(GIVEN_UP);
  });
  const ms = deadline - Date.now();
  const timer = ms > TIMER_MAX_MS ? undefined : setTimeout(giveUp, Math.max(0, ms));
  signal?.addEventListener("abort", giveUp, { once: true });
  if (signal?.aborted) giveUp();
  try {
    return await Promise.race([work, givenUp]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", giveUp);
  }
}

const late = (message: string): DeadlineExceeded =>
  new DeadlineExceeded(message, { code: status.DEADLINE_EXCEEDED });

const options = ({ deadline }: Bounds): CallOptions => (deadline === Infinity ? {} : { deadline });

const writer =
  <T>(codec: Codec<T>) =>
  (message: T): Buffer => {
    const bytes = encoded(codec, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };

const reader =
  <T>(codec: Codec<T>) =>
  (bytes: Buffer): T =>
    codec.decode(bytes);

/** Writes requests as fast as the server accepts them, until the call is answered. */
async function writeAll<Q>(
  call: ClientWritableStream<Q> | ClientDuplexStream<Q, unknown>,
  requests: Iterable<Q>,
  answer: Promise<unknown>,
): Promise<void> {
  let isAnswered = false;
  const stop = () => {
    isAnswered = true;
  };
  const answered = answer.then(stop, stop);
  call.on("error", () => {});
  for (const request of requests) {
    if (isAnswered || call.destroyed) return;
    if (!call.write(request)) {
      // Waits for room in the buffer or for the end of the call.
      await Promise.race([once(call, "drain").catch(() => {}), answered]);
    }
  }
  call.end();
}
