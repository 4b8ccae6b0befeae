// Changes of a session's history that are made once, however often they are asked for.

import { createHash } from "node:crypto";
import {
  type AgentInputItem,
  MemorySession,
  type SessionHistoryMutation,
  type SessionHistoryTransactionArgs,
} from "@openai/agents";
import { plain, sorted } from "./json.js";

/** The transaction, if it is one that can be stored. */
export async function checked(
  args: SessionHistoryTransactionArgs,
): Promise<SessionHistoryTransactionArgs> {
  // The SDK's own session makes all of its checks: the suffix that it must have is there.
  await memoryOf(args).applyHistoryTransaction(args);
  const { operationId, transaction } = args;
  return structuredClone({ operationId, transaction });
}

function memoryOf(args: SessionHistoryTransactionArgs): MemorySession {
  try {
    const { transaction } = args;
    const isSuffix = transaction.type === "replace_suffix";
    return new MemorySession({ initialItems: isSuffix ? transaction.expectedSuffix : [] });
  } catch {
    return new MemorySession();
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
