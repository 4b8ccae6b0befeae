// Reading and writing a context: a branch's active one, or the namespace's long-term one.

import { GetContextRequest, SetContextRequest } from "./gen/treering/v1/context.js";
import { keyOrNew } from "./keys.js";
import { contexts } from "./methods.js";
import type { WriteOptions } from "./requests.js";
import type { Transport } from "./transport.js";
import { Receipt } from "./types.js";
import { fromJson, jsonBytes, type Parsed } from "./words.js";

/** Whose context. Without a conversation: the namespace's. */
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

/** Keys as they are now; none: all. */
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
    // An answer holds at least one value, so this ends.
    wanted = answer.leftOut;
  } while (wanted.length);
  return Object.fromEntries(values);
}

/** Sets and removes keys, all at once. */
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
