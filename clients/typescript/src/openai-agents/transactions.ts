// Transactions on a session's history. A repeated transaction is applied once.

import { createHash } from "node:crypto";
import {
  type AgentInputItem,
  MemorySession,
  type SessionHistoryMutation,
  type SessionHistoryTransactionArgs,
} from "@openai/agents";
import { plain, sorted } from "./json.js";

/** Returns the transaction if it is valid; throws otherwise. */
export async function checked(
  args: SessionHistoryTransactionArgs,
): Promise<SessionHistoryTransactionArgs> {
  // The SDK's own session validates it; its items are the expected suffix.
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

/** Returns a hash of the transaction; the order of keys does not matter. */
export const hashOf = (transaction: unknown): string =>
  createHash("sha256")
    .update(JSON.stringify(sorted(plain(transaction))))
    .digest("hex");

/** Replaces the first call with the id, and removes its repetitions. */
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
