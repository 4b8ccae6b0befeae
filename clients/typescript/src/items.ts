// What is remembered for long, under paths and keys.

import {
  ItemComparison,
  type Item as ItemMessage,
  type ItemOp,
  type ItemResult,
  ItemsRequest,
  type ItemsResponse,
  PathEnd,
  ReadItemsRequest,
} from "./gen/treering/v1/items.js";
import { keyLifeSeconds, keyOrNew } from "./keys.js";
import { items as itemsMethods } from "./methods.js";
import type { WriteOptions } from "./requests.js";
import type { CallOptions, Transport } from "./transport.js";
import { fromJson, jsonBytes, type Parsed } from "./words.js";

const SIGNS = {
  "=": ItemComparison.EQUAL,
  "!=": ItemComparison.NOT_EQUAL,
  ">": ItemComparison.GREATER,
  ">=": ItemComparison.GREATER_OR_EQUAL,
  "<": ItemComparison.LESS,
  "<=": ItemComparison.LESS_OR_EQUAL,
} as const;

/**
 * What must be so of a value: a field, or the names of a field within others; a sign; and what
 * it is compared with.
 */
export type ItemCondition = readonly [
  field: string | readonly string[],
  sign: keyof typeof SIGNS,
  value: unknown,
];

/** How an item is put. */
export interface PutOptions {
  /** Milliseconds that it lives. */
  ttlMs?: number | undefined;
  /** What a search finds it by, instead of all texts in it. */
  text?: string | undefined;
}

/** What is looked for. */
export interface ItemSearch {
  /** Words. */
  query?: string | undefined;
  /** All of them must be so. */
  where?: Iterable<ItemCondition> | undefined;
  /** At most so many (10). */
  limit?: number | undefined;
  offset?: number | undefined;
  /** What is found lives on from now. */
  refreshTtl?: boolean | undefined;
}

/** Which paths are listed. `*` is any label. */
export interface PathsOptions {
  prefix?: readonly string[] | undefined;
  suffix?: readonly string[] | undefined;
  /** Longer paths are cut to so many labels. */
  depthMax?: number | undefined;
  /** At most so many (100). */
  limit?: number | undefined;
  offset?: number | undefined;
}

/** What is remembered under a path and a key. */
export class Item {
  readonly path: readonly string[];
  readonly key: string;
  readonly createdAt: Date | undefined;
  readonly updatedAt: Date | undefined;
  /** When it goes; undefined: never. */
  readonly expiresAt: Date | undefined;

  constructor(
    readonly proto: ItemMessage,
    /** How well it fits a query. */
    readonly score: number | undefined = proto.score,
  ) {
    this.path = proto.path;
    this.key = proto.key;
    this.createdAt = proto.createdAt;
    this.updatedAt = proto.updatedAt;
    this.expiresAt = proto.expiresAt;
  }

  get value(): Parsed {
    return fromJson(this.proto.value);
  }
}

/** Operations for `items.batch`. */
export const itemOps = {
  put(path: readonly string[], key: string, value: unknown, options: PutOptions = {}): ItemOp {
    const { ttlMs, text } = options;
    if (ttlMs !== undefined && !(ttlMs > 0)) {
      throw new RangeError("ttlMs is not above 0: leave it out for an item that stays");
    }
    const put = {
      path: [...path],
      key,
      value: jsonBytes(value),
      ttlMs: Math.ceil(ttlMs ?? 0),
      text,
    };
    return { op: { $case: "put", value: put } };
  },

  get(path: readonly string[], key: string, options: { refreshTtl?: boolean } = {}): ItemOp {
    const get = { path: [...path], key, refreshTtl: options.refreshTtl ?? false };
    return { op: { $case: "get", value: get } };
  },

  delete(path: readonly string[], key: string): ItemOp {
    return { op: { $case: "delete", value: { path: [...path], key } } };
  },

  search(under: readonly string[], options: ItemSearch = {}): ItemOp {
    const { query = "", where = [], limit = 10, offset = 0, refreshTtl = false } = options;
    const filter = [...where].map(([field, sign, value]) => ({
      field: typeof field === "string" ? [field] : [...field],
      comparison: SIGNS[sign],
      value: jsonBytes(value),
    }));
    const search = { under: [...under], query, filter, limit, offset, refreshTtl };
    return { op: { $case: "search", value: search } };
  },

  paths(options: PathsOptions = {}): ItemOp {
    const { prefix = [], suffix = [], depthMax = 0, limit = 100, offset = 0 } = options;
    const matches = [
      { end: PathEnd.PREFIX, path: [...prefix] },
      { end: PathEnd.SUFFIX, path: [...suffix] },
    ].filter(({ path }) => path.length > 0);
    return { op: { $case: "listPaths", value: { matches, depthMax, limit, offset } } };
  },
};

/**
 * JSON values under a path (labels) and a key, for the whole namespace.
 *
 *     await db.items.put(["users", "ada"], "likes", { answers: "short" });
 *     const item = await db.items.get(["users", "ada"], "likes");
 *     const found = await db.items.search(["users"], { where: [["answers", "=", "short"]] });
 */
export class Items {
  readonly #transport: Transport;
  readonly #actor: string;

  constructor(transport: Transport, actor: string) {
    this.#transport = transport;
    this.#actor = actor;
  }

  /** Puts a value, in the place of what is there. */
  async put(
    path: readonly string[],
    key: string,
    value: unknown,
    options: PutOptions & WriteOptions = {},
  ): Promise<void> {
    await this.#send([itemOps.put(path, key, value, options)], options);
  }

  /** An item; undefined: it is not there. With `refreshTtl` it lives on from now. */
  async get(
    path: readonly string[],
    key: string,
    options: CallOptions & { refreshTtl?: boolean } = {},
  ): Promise<Item | undefined> {
    const { results } = await this.#send([itemOps.get(path, key, options)], options);
    return gotItem(results[0]);
  }

  /** Takes an item away; false: it was not there. Its past stays until it is erased. */
  async delete(path: readonly string[], key: string, options: WriteOptions = {}): Promise<boolean> {
    const answer = await this.#send([itemOps.delete(path, key)], options);
    return answer.position !== undefined;
  }

  /** Items under a path: the newest first, or with a query the best first. */
  async search(
    under: readonly string[] = [],
    options: ItemSearch & CallOptions = {},
  ): Promise<Item[]> {
    const { results } = await this.#send([itemOps.search(under, options)], options);
    const result = results[0]?.result;
    return result?.$case === "found" ? this.values(result.value.items, options) : [];
  }

  /** Paths under which there are items, in their order. */
  async paths(options: PathsOptions & CallOptions = {}): Promise<string[][]> {
    const { results } = await this.#send([itemOps.paths(options)], options);
    const result = results[0]?.result;
    return result?.$case === "paths" ? result.value.paths.map(({ path }) => path) : [];
  }

  /**
   * Operations in one step (`itemOps` makes them): what is read is as it was before, what is
   * changed is changed all at once or not at all. Answers in their order.
   */
  async batch(ops: Iterable<ItemOp>, options: WriteOptions = {}): Promise<ItemResult[]> {
    const asked = [...ops];
    return asked.length ? (await this.#send(asked, options)).results : [];
  }

  /** Items of an answer of `batch`, with the values that it had no room for. */
  async values(items: Iterable<ItemMessage>, options: CallOptions = {}): Promise<Item[]> {
    const whole: Item[] = [];
    for (const item of items) {
      if (!item.valueLeftOut) {
        whole.push(new Item(item));
        continue;
      }
      // The first value of an answer goes whatever it takes.
      const { results } = await this.#send([itemOps.get(item.path, item.key)], options);
      const got = gotItem(results[0]);
      if (got) whole.push(new Item(got.proto, item.score));
    }
    return whole;
  }

  async #send(ops: readonly ItemOp[], options: WriteOptions): Promise<ItemsResponse> {
    if (!ops.some(changes)) {
      const request = ReadItemsRequest.fromPartial({ ops: [...ops] });
      return this.#transport.unary(itemsMethods.read, request, options);
    }
    const key = keyOrNew(options.idempotencyKey);
    const request = ItemsRequest.fromPartial({
      ops: [...ops],
      idempotencyKey: key,
      keyLifeSeconds: keyLifeSeconds(options.idempotencyKey),
      actor: this.#actor,
    });
    const answer = await this.#transport.unary(itemsMethods.batch, request, { ...options, key });
    this.#transport.saw(answer.position?.offset ?? 0);
    return answer;
  }
}

function changes({ op }: ItemOp): boolean {
  switch (op?.$case) {
    case "put":
    case "delete":
      return true;
    case "get":
    case "search":
      return op.value.refreshTtl;
    default:
      return false;
  }
}

function gotItem(result: ItemResult | undefined): Item | undefined {
  const got = result?.result?.$case === "got" ? result.result.value.item : undefined;
  return got && new Item(got);
}
