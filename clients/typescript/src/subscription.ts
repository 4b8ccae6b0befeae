// Streams of events and of context changes that survive restarts of the server.

import type { ContextOf } from "./context.js";
import type { WatchContextResponse } from "./gen/treering/v1/context.js";
import { WatchContextRequest } from "./gen/treering/v1/context.js";
import { EventKind } from "./gen/treering/v1/event.js";
import { SubscribeRequest, type SubscribeResponse } from "./gen/treering/v1/events.js";
import { contexts, events } from "./methods.js";
import type { Following, Transport } from "./transport.js";
import { type ContextChange, Event } from "./types.js";
import { fromJson, type KindName, numbers, type Parsed } from "./words.js";

/** Options of a subscription. */
export interface SubscribeOptions {
  /** Events after this revision (or, for the whole log, offset). */
  after?: number | undefined;
  /** Skip existing events. */
  fromNow?: boolean | undefined;
  kinds?: KindName | readonly KindName[] | undefined;
  /** Seconds between heartbeats; 0 for the server's default. */
  heartbeatSeconds?: number | undefined;
  /** Ends the subscription; the loop ends without an error. */
  signal?: AbortSignal | undefined;
}

/** Source of a subscription. Without a source: the namespace's whole log. */
export type Source = Extract<
  NonNullable<SubscribeRequest["source"]>,
  { $case: "branch" | "conversation" }
>;

/** A stream for `for await`; leaving the loop closes it. */
abstract class Followed<T, S> implements AsyncIterableIterator<T>, AsyncDisposable {
  /** All events that existed at the start were yielded. */
  caughtUp = false;
  protected abstract readonly answers: Following<unknown, S>;

  abstract next(): Promise<IteratorResult<T>>;

  /** Called when a loop is left: closes the stream. */
  async return(): Promise<IteratorResult<T>> {
    await this.close();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #forget = () => {};

  /** Ends the stream. Pending iterations stop. */
  async close(): Promise<void> {
    this.answers.close();
    this.#forget();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  protected endWith(signal: AbortSignal | undefined): void {
    const end = () => this.answers.close();
    if (signal?.aborted) end();
    signal?.addEventListener("abort", end, { once: true });
    this.#forget = () => signal?.removeEventListener("abort", end);
  }
}

/**
 * A stream of events: existing ones, then new ones.
 *
 * After a broken connection or a restart of the server it continues without gaps or repetitions.
 * `after` tells the last event that it yielded; use it to continue in another process.
 */
export class Subscription extends Followed<Event, SubscribeResponse> {
  /** Revision (for the whole log: offset) of the last event that it yielded. */
  after: number | undefined;
  readonly #isOfLog: boolean;
  #fromNow: boolean;
  protected readonly answers: Following<unknown, SubscribeResponse>;

  constructor(transport: Transport, source: Source | undefined, options: SubscribeOptions) {
    super();
    this.after = options.after;
    this.#isOfLog = source === undefined;
    this.#fromNow = (options.fromNow ?? false) && options.after === undefined;
    const kinds = numbers<EventKind>(EventKind, options.kinds ?? []);
    const request = () =>
      SubscribeRequest.fromPartial({
        source: source ?? { $case: "log", value: {} },
        afterRevision: this.#isOfLog ? 0 : (this.after ?? 0),
        afterOffset: this.#isOfLog ? this.after : undefined,
        kinds,
        fromNow: this.#fromNow,
        heartbeatSeconds: options.heartbeatSeconds ?? 0,
      });
    this.answers = transport.follow(events.subscribe, request) as Following<
      unknown,
      SubscribeResponse
    >;
    this.endWith(options.signal);
  }

  async next(): Promise<IteratorResult<Event>> {
    for (;;) {
      const answer = await this.answers.next();
      if (answer.done) return { done: true, value: undefined };
      const { item } = answer.value;
      if (item?.$case === "event") {
        const event = new Event(item.value);
        this.after = this.#isOfLog ? event.position : event.revision;
        this.#fromNow = false;
        return { done: false, value: event };
      }
      if (item?.$case === "caughtUp") this.caughtUp = true;
      if (item && item.$case !== "fellBehind") this.#reach(item.value.position?.offset ?? 0);
    }
  }

  /** No more events come up to this offset: a reconnection starts after it. */
  #reach(offset: number): void {
    if (this.#isOfLog && offset && (this.#fromNow || (this.after ?? 0) < offset)) {
      this.after = offset;
      this.#fromNow = false;
    }
  }
}

/**
 * A stream of the keys of a context, then of every change.
 *
 * After a broken connection it reads all keys again, and yields only changes.
 */
export class ContextWatch extends Followed<ContextChange, WatchContextResponse> {
  /** The last value of each key, as JSON. */
  readonly #known = new Map<string, Uint8Array>();
  #fresh = new Set<string>();
  #gone: string[] = [];
  #isFresh = true;
  protected readonly answers: Following<unknown, WatchContextResponse>;

  constructor(transport: Transport, of: ContextOf, keys: readonly string[], signal?: AbortSignal) {
    super();
    const request = WatchContextRequest.fromPartial({ ...of, keys: [...keys] });
    const again = () => {
      this.#fresh = new Set();
      this.#isFresh = true;
      return request;
    };
    this.answers = transport.follow(contexts.watch, again) as Following<
      unknown,
      WatchContextResponse
    >;
    this.endWith(signal);
  }

  async next(): Promise<IteratorResult<ContextChange>> {
    for (;;) {
      const gone = this.#gone.pop();
      if (gone !== undefined) return { done: false, value: this.#removed(gone) };
      const answer = await this.answers.next();
      if (answer.done) return { done: true, value: undefined };
      const change = this.#read(answer.value);
      if (change) return { done: false, value: change };
    }
  }

  #read({ item }: WatchContextResponse): ContextChange | undefined {
    if (item?.$case === "removedKey") return this.#removed(item.value);
    if (item?.$case === "caughtUp") {
      this.caughtUp = true;
      this.#isFresh = false;
      this.#gone = [...this.#known.keys()].filter((key) => !this.#fresh.has(key));
    }
    if (item?.$case !== "entry") return undefined;
    const { key, value, provider } = item.value;
    const known = this.#known.get(key);
    const isKnown = known !== undefined && Buffer.compare(known, value) === 0;
    if (this.#isFresh) this.#fresh.add(key);
    this.#known.set(key, value);
    if (this.#isFresh && isKnown) return undefined;
    return { key, value: fromJson(value) as Parsed, removed: false, provider };
  }

  #removed(key: string): ContextChange {
    this.#known.delete(key);
    return { key, value: undefined, removed: true, provider: "" };
  }
}
