// Reads the items of a session's branch: the SDK's own, and events of other programs as items.

import type { AgentInputItem } from "@openai/agents";
import * as frames from "../adapters/frames.js";
import { Unanswered } from "../adapters/unanswered.js";
import type { Conversation } from "../conversation/index.js";
import { CancelReason } from "../gen/treering/v1/event.js";
import type { Event } from "../types.js";
import { answered, itemOf } from "./items.js";
import { revived } from "./json.js";

/** The type of the custom events that hold the SDK's own items. Python's have another type. */
export const FRAME = "openai-agents-js.item";
/** Maximum number of events of an item. */
const EVENTS_OF_ITEM_MAX = 8;
/** Maximum number of calls that are read to find the tools of results. */
const CALLS_MAX = 10_000;

/** Hashes of applied transactions, by operation id. */
export type Operations = Record<string, string>;

/** An item, with the revision at which it begins. */
export interface Held {
  revision: number;
  item: AgentInputItem;
  /** Whether the SDK added it. */
  isOwn: boolean;
}

export class History {
  /** Transactions of the frames that were read, with the revisions of the frames. */
  readonly #operations: (readonly [revision: number, operations: Operations])[] = [];
  readonly #tools = new Map<string, string>();
  readonly #calls = new Unanswered();

  constructor(readonly conversation: Conversation) {}

  /** Returns transactions that were applied from a revision on, in the events read so far. */
  operationsSince(revision = 0): Operations {
    const since = this.#operations.filter(([at]) => at >= revision);
    return Object.assign({}, ...since.map(([, operations]) => operations));
  }

  /** Reads all items. */
  async all(): Promise<Held[]> {
    return collected(this.#items(this.conversation.events()));
  }

  /** Reads all items, and adds a result for each call without one; it is not stored. */
  async answered(): Promise<AgentInputItem[]> {
    return [...answered(await this.all(), this.#calls)];
  }

  /** Reads the first item, and no more events than needed. */
  async first(): Promise<Held | undefined> {
    for await (const held of this.#items(this.conversation.events())) return held;
    return undefined;
  }

  /** Reads the newest items, oldest first, and no more events than needed. */
  async newest(limit: number): Promise<Held[]> {
    const newestFirst: Held[] = [];
    let waiting: Event[] = [];
    const take = async (events: Event[]) => {
      for (const event of events) await this.#denied(event);
      newestFirst.push(...(await collected(this.#items(events.reverse()))).reverse());
    };
    for await (const event of this.conversation.events({ backward: true })) {
      waiting.push(event);
      const isFrame = frames.isFrame(event, FRAME);
      if (!isFrame && waiting.length <= EVENTS_OF_ITEM_MAX) continue;
      const taken = isFrame ? waiting : waiting.slice(0, -EVENTS_OF_ITEM_MAX);
      waiting = waiting.slice(taken.length);
      await take(taken);
      if (newestFirst.length >= limit) break;
    }
    if (newestFirst.length < limit) await take(waiting);
    return this.#named(newestFirst.slice(0, limit).reverse());
  }

  async *#items(events: AsyncIterable<Event> | Iterable<Event>): AsyncGenerator<Held> {
    for await (const found of frames.read(FRAME, this.#calls.noted(events))) {
      if ("items" in found) {
        const { event, items, beside } = found;
        const { revision } = event;
        if (beside.operations) this.#operations.push([revision, beside.operations]);
        const { bytes = [] } = beside;
        for (const { item } of items) {
          yield { revision, item: revived({ item, bytes }), isOwn: true };
        }
        continue;
      }
      if (found.tool) this.#tools.set(found.callId, found.tool);
      const item = itemOf(found, this.#tools, this.#calls);
      if (item) yield { revision: found.revision, item, isOwn: false };
    }
  }

  /** Reads the denial of a cancelled call: a backward read returns it later. */
  async #denied({ body, callId, revision }: Event): Promise<void> {
    const isDenied =
      body?.$case === "toolCallCancelled" && body.value.reason === CancelReason.DENIED;
    if (!isDenied) return;
    const before = { first: revision, backward: true, kinds: ["approval_decided"] } as const;
    for await (const event of this.conversation.events(before)) {
      if (event.callId !== callId) continue;
      this.#calls.take(event);
      return;
    }
  }

  /** Adds the tools of results: a backward read returns a result before its call. */
  async #named(held: Held[]): Promise<Held[]> {
    const nameless = held.flatMap(({ item }) =>
      item.type === "function_call_result" && !item.name ? [item] : [],
    );
    if (!nameless.length) return held;
    for (const { callId, tool } of await this.conversation.toolCalls({ limit: CALLS_MAX })) {
      this.#tools.set(callId, tool);
    }
    for (const item of nameless) item.name = this.#tools.get(item.callId) ?? "";
    return held;
  }
}

async function collected(held: AsyncIterable<Held>): Promise<Held[]> {
  const list: Held[] = [];
  for await (const each of held) list.push(each);
  return list;
}
