// Reads and writes the active context of a branch, or the long-term context of the namespace.

import { GetContextRequest, SetContextRequest } from "./gen/treering/v1/context.js";
import { keyOrNew } from "./keys.js";
import { contexts } from "./methods.js";
import type { WriteOptions } from "./requests.js";
import type { Transport } from "./transport.js";
import { Receipt } from "./types.js";
import { fromJson, jsonBytes, type Parsed } from "./words.js";

/** The branch whose context is meant; if both fields are empty, the namespace. */
export interface ContextOf {
  conversationId: string;
  branch: string;
}

/** Options of a context change. */
export interface ContextOptions extends WriteOptions {
  /** Keys to remove. */
  remove?: Iterable<string> | undefined;
  provider?: string | undefined;
}

/** Returns the current values of these keys, or of all keys if none are given. */
export async function getContext(
  transport: Transport,
  of: ContextOf,
  keys: readonly string[],
): Promise<Record<string, Parsed>> {
  const values = new Map<string, Parsed>();
  let wanted = [...keys];
  do {
    const request = GetContextRequest.fromPartial({ ...of, keys: wanted });
    const answer = await transport.unary(contexts.get, request);
    for (const entry of answer.entries) values.set(entry.key, fromJson(entry.value));
    // Every answer holds at least one value, so the loop ends.
    wanted = answer.leftOut;
  } while (wanted.length);
  return Object.fromEntries(values);
}

/** Sets and removes keys in one step. */
export async function changeContext(
  transport: Transport,
  of: ContextOf,
  actor: string,
  values: Readonly<Record<string, unknown>>,
  options: ContextOptions,
): Promise<Receipt> {
  const key = keyOrNew(options.idempotencyKey);
  const { provider = "", remove = [] } = options;
  const request = SetContextRequest.fromPartial({
    ...of,
    set: Object.entries(values).map(([name, value]) => ({
      key: name,
      value: jsonBytes(value, name),
      provider,
    })),
    remove: [...remove],
    idempotencyKey: key,
    actor,
  });
  const receipt = new Receipt(await transport.unary(contexts.set, request, { ...options, key }));
  transport.saw(receipt.position);
  return receipt;
}
