// Caches chats, so that a save reads only the events that came since the last read.

import type { Conversation } from "../conversation/index.js";
import type { ConversationState } from "../gen/treering/v1/conversation.js";
import { Fold, type StoredChat } from "./load.js";

/** Maximum number of cached chats; other chats are read from the beginning. */
const CHATS_MAX = 64;

export class KnownChats {
  /** By conversation and branch, in the order of their last use. */
  readonly #folds = new Map<string, Fold>();

  /** Returns the chat of a conversation, given its current state. */
  async read(conv: Conversation, { summary, branch }: ConversationState): Promise<StoredChat> {
    const on = conv.on(branch?.name ?? conv.branch);
    const key = `${summary?.conversationId} ${branch?.branchId}`;
    // Inherited events have revisions of another conversation: such chats are not cached.
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
