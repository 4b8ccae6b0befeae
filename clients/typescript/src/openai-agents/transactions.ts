// Changes of a session's history that are made once, however often they are asked for.

import { createHash } from "node:crypto";
import {
  type AgentInputItem,
  protocol,
  type SessionHistoryMutation,
  type SessionHistoryTransactionArgs,
  UserError,
} from "@openai/agents";
import { plain, sorted } from "./json.js";

/** The transaction, if it is one that can be stored. */
export function checked(args: SessionHistoryTransactionArgs): SessionHistoryTransactionArgs {
  const { operationId, transaction } = args ?? {};
  if (typeof operationId !== "string" || !operationId.trim()) {
    throw new UserError("Session history transaction operationId must be a non-empty string.");
  }
  const lists: unknown[] =
    transaction?.type === "append_items"
      ? [transaction.items]
      : transaction?.type === "replace_suffix"
        ? [transaction.expectedSuffix, transaction.replacement]
        : [];
  if (!lists.length) throw new UserError("Unsupported session history transaction type.");
  if (!lists.every((list) => Array.isArray(list) && list.every(isItem))) {
    throw new UserError("Session history transaction items contain invalid or unsupported data.");
  }
  return structuredClone({ operationId, transaction });
}

function isItem(item: unknown): boolean {
  try {
    plain(item);
    return protocol.ModelItem.safeParse(item).success;
  } catch {
    return false;
  }
}

/** The same for the same transaction. */
export const hashOf = (transaction: unknown): string =>
  createHash("sha256")
    .update(JSON.stringify(sorted(plain(transaction))))
    .digest("hex");

/** The items, with another call in the place of one, and of all its repetitions. */
export function rewritten(
  items: readonly AgentInputItem[],
  { callId, replacement }: SessionHistoryMutation,
): AgentInputItem[] {
  const isIt = (item: AgentInputItem) => item.type === "function_call" && item.callId === callId;
  const first = items.findIndex(isIt);
  return items.flatMap((item, index) => {
    if (!isIt(item)) return [item];
    return index === first ? [replacement] : [];
  });
}
