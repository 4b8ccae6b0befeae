// Items: JSON values under paths and keys, shared by all conversations.

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
import { SearchBy } from "./gen/treering/v1/search.js";
import { keyLifeSeconds, keyOrNew } from "./keys.js";
import { items as itemsMethods } from "./methods.js";
import type { WriteOptions } from "./requests.js";
import type { CallOptions, Transport } from "./transport.js";
import { fromJson, jsonBytes, number, type Parsed, type SearchByName } from "./words.js";

const SIGNS = {
  "=": ItemComparison.EQUAL,
  "!=": ItemComparison.NOT_EQUAL,
  ">": ItemComparison.GREATER,
  ">=": ItemComparison.GREATER_OR_EQUAL,
  "<": ItemComparison.LESS,
  "<=": ItemComparison.LESS_OR_EQUAL,
} as const;

/** A condition on a value: a field (or the names of a nested field), a sign, and a value. */
export type ItemCondition = readonly [
  field: string | readonly string[],
  sign: keyof typeof SIGNS,
  value: unknown,
];

/** Options of `put`. */
export interface PutOptions {
  /** Time to live in milliseconds. */
  ttlMs?: number | undefined;
  /** Text for search, instead of all texts in the value. */
  text?: string | undefined;
}

/** Options of an item search. */
export interface ItemSearch {
  /** What to search for. */
  query?: string | undefined;
  /** What of the query is compared (default `"words"`). Meanings need an embedder. */
  by?: SearchByName | undefined;
  /** All must hold. */
  where?: Iterable<ItemCondition> | undefined;
  /** Maximum number (default 10). */
  limit?: number | undefined;
  offset?: number | undefined;
  /** Restart the time to live of the items found. */
  refreshTtl?: boolean | undefined;
}

/** Options of listing paths. `*` matches any label. */
export interface PathsOptions {
  prefix?: readonly string[] | undefined;
  suffix?: readonly string[] | undefined;
  /** Maximum number of labels; longer paths are cut. */
  depthMax?: number | undefined;
  /** Maximum number (default 100). */
  limit?: number | undefined;
  offset?: number | undefined;
}

/** A value under a path and a key. */
export class Item {
  readonly path: readonly string[];
  readonly key: string;
  readonly createdAt: Date | undefined;
  readonly updatedAt: Date | undefined;
  /** Time when it expires; `undefined`: never. */
  readonly expiresAt: Date | undefined;

  constructor(
    readonly proto: ItemMessage,
    /** Score of the match. */
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
      throw new RangeError("ttlMs must be above 0: omit it for an item that does not expire");
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
    const by = number<SearchBy>(SearchBy, options.by ?? "words");
    const search = { under: [...under], query, filter, limit, offset, refreshTtl, by };
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
 * JSON values under a path (labels) and a key, shared by the namespace.
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

  /** Puts or replaces a value. */
  async put(
    path: readonly string[],
    key: string,
    value: unknown,
    options: PutOptions & WriteOptions = {},
  ): Promise<void> {
    await this.#send([itemOps.put(path, key, value, options)], options);
  }

  /** Returns an item, or `undefined`. `refreshTtl` restarts its time to live. */
  async get(
    path: readonly string[],
    key: string,
    options: CallOptions & { refreshTtl?: boolean } = {},
  ): Promise<Item | undefined> {
    const { results } = await this.#send([itemOps.get(path, key, options)], options);
    return gotItem(results[0]);
  }

  /** Deletes an item; false if it did not exist. Its history stays until it is erased. */
  async delete(path: readonly string[], key: string, options: WriteOptions = {}): Promise<boolean> {
    const answer = await this.#send([itemOps.delete(path, key)], options);
    return answer.position !== undefined;
  }

  /** Searches the items under a path: newest first, or best first with a query. */
  async search(
    under: readonly string[] = [],
    options: ItemSearch & CallOptions = {},
  ): Promise<Item[]> {
    const { results } = await this.#send([itemOps.search(under, options)], options);
    const result = results[0]?.result;
    return result?.$case === "found" ? this.values(result.value.items, options) : [];
  }

  /** Lists the paths that have items, sorted. */
  async paths(options: PathsOptions & CallOptions = {}): Promise<string[][]> {
    const { results } = await this.#send([itemOps.paths(options)], options);
    const result = results[0]?.result;
    return result?.$case === "paths" ? result.value.paths.map(({ path }) => path) : [];
  }

  /**
   * Runs operations (made by `itemOps`) in one step. Reads see the state before the batch; all
   * changes apply, or none. Returns the results in order.
   */
  async batch(ops: Iterable<ItemOp>, options: WriteOptions = {}): Promise<ItemResult[]> {
    const asked = [...ops];
    return asked.length ? (await this.#send(asked, options)).results : [];
  }

  /** Returns items of a `batch` result, with the values that it left out. */
  async values(items: Iterable<ItemMessage>, options: CallOptions = {}): Promise<Item[]> {
    const whole: Item[] = [];
    for (const item of items) {
      if (!item.valueLeftOut) {
        whole.push(new Item(item));
        continue;
      }
      // An answer always contains its first value, whatever its size.
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
