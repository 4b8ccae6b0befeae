// Chats as they were read last, so that a save reads only what has come since.

import type { Conversation } from "../conversation/index.js";
import type { ConversationState } from "../gen/treering/v1/conversation.js";
import { Fold, type StoredChat } from "./load.js";

/** Chats that are remembered; of others, all is read. */
const CHATS_MAX = 64;

export class KnownChats {
  /** By conversation and branch; the one that was used last is last. */
  readonly #folds = new Map<string, Fold>();

  /** The chat of a conversation, whose state was just read. */
  async read(conv: Conversation, { summary, branch }: ConversationState): Promise<StoredChat> {
    const on = conv.on(branch?.name ?? conv.branch);
    const key = `${summary?.conversationId} ${branch?.branchId}`;
    // What is inherited from another conversation has revisions of that one.
    const isOwn = summary?.sharesHistory === false;
    const fold = (isOwn && this.#folds.get(key)) || new Fold();
    const first = isOwn ? fold.head.revision + 1 : 0;
    if (!isOwn || (branch?.head ?? 0) >= first) {
      for await (const event of on.events({ first })) fold.take(event);
    }
    if (isOwn) this.#keep(key, fold);
    return fold.end();
  }

  #keep(key: string, fold: Fold): void {
    this.#folds.delete(key);
    this.#folds.set(key, fold);
    const [oldest] = this.#folds.keys();
    if (this.#folds.size > CHATS_MAX && oldest !== undefined) this.#folds.delete(oldest);
  }
}
