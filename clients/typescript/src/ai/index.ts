// Stores chats of Vercel's `ai` as conversations, with the `loadChat` and `saveChat` of its
// documentation.
//
//     import * as treering from "treering";
//     import { chatStore } from "treering/ai";
//
//     const db = treering.local("./store");
//     export const { createChat, loadChat, saveChat } = chatStore(db);
//
// Messages, tool calls, approvals and results are ordinary events. The layout of the UI is a
// separate event. This module does not load `ai`.

import type { UIMessage } from "ai";
import { callIdFor } from "../adapters/bounds.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import { NotFound, Refused, RevisionMismatch } from "../errors/index.js";
import { unique } from "../keys.js";
import type { NewConversation } from "../requests.js";
import { KnownChats } from "./known.js";
import { type Place, type PlainMessage, renderedAll } from "./layout.js";
import { load, type StoredChat } from "./load.js";
import { type HashOf, plan } from "./save.js";

/** Maximum number of attempts to save; another writer may come first. */
const ATTEMPTS_MAX = 10;

/** The id of a fork: the id of its conversation, and the name prefix of its branches. */
const FORK = /^(.+)~(chat-[0-9a-f]{12})$/;

/** Options of a chat store. */
export interface ChatStoreOptions {
  /** Options of the conversation of a new chat. */
  about?: Omit<NewConversation, "id" | "sourceId" | "idempotencyKey">;
}

/** A chat to save. */
export interface SavedChat<M extends UIMessage> {
  chatId: string;
  /** All messages of the chat. */
  messages: readonly M[];
}

/** A decision on a tool call. */
export interface ToolDecision {
  chatId: string;
  toolCallId: string;
  approved: boolean;
  reason?: string | undefined;
  /** Who decides. */
  by?: string | undefined;
}

/** Options of a fork. */
export interface ForkChat {
  chatId: string;
  /** Id of the last shared message; default: all. */
  upTo?: string | undefined;
}

/** Chats in a store. */
export interface ChatStore<M extends UIMessage = UIMessage> {
  /** Creates a chat and returns its id, a UUID. */
  createChat(): Promise<string>;
  /**
   * Returns all messages of a chat; none if it does not exist. A call without a result is returned
   * as failed, except in the last message; this is not stored.
   */
  loadChat(chatId: string): Promise<M[]>;
  /**
   * Saves the chat: appends what is new. If a message was changed or removed (regenerated, edited),
   * the chat continues from there on a new branch; the old branch stays readable.
   */
  saveChat(chat: SavedChat<M>): Promise<void>;
  /** Forks a chat and returns the id of the new one. */
  forkChat(chat: ForkChat): Promise<string>;
  /** Approves or denies a waiting tool call. `loadChat` then returns the decision. */
  decide(decision: ToolDecision): Promise<void>;
  /** Returns the conversation of a chat. */
  conversation(chatId: string): Promise<Conversation>;
}

/** Stores chats as conversations. */
export function chatStore<M extends UIMessage = UIMessage>(
  db: Treering,
  options: ChatStoreOptions = {},
): ChatStore<M> {
  const chats = new Chats(db, options);
  return {
    createChat: async () => (await db.create(options.about?.title ?? "", chats.about)).id,
    loadChat: async (chatId) => {
      const chat = await chats.load(chatId);
      return renderedAll(chat?.messages ?? []) as unknown as M[];
    },
    saveChat: async ({ chatId, messages }) => {
      // Loaded messages are JSON values, so compare with JSON values.
      await chats.save(chatId, JSON.parse(JSON.stringify(messages)) as PlainMessage[]);
    },
    forkChat: (chat) => chats.fork(chat),
    decide: (decision) => chats.decide(decision),
    conversation: (chatId) => chats.find(chatId),
  };
}

class Chats {
  readonly #db: Treering;
  readonly #options: ChatStoreOptions;
  readonly #known = new KnownChats();

  constructor(db: Treering, options: ChatStoreOptions) {
    this.#db = db;
    this.#options = options;
  }

  get about(): Omit<NewConversation, "title"> {
    const { title: _, ...about } = this.#options.about ?? {};
    return { source: "ai", ...about };
  }

  /** Returns the conversation of a chat, on the chat's current branch. */
  async find(chatId: string): Promise<Conversation> {
    const [, id, name] = FORK.exec(chatId) ?? [];
    if (!id || !name) return this.#db.conversation(chatId);
    const conv = this.#db.conversation(id);
    // Each later change of the fork created a branch `name.REVISION`: use the newest.
    const names = (await conv.branches()).map((branch) => branch.name);
    const last = names.findLast((each) => each === name || each.startsWith(`${name}.`));
    return conv.on(last ?? name);
  }

  async load(chatId: string): Promise<StoredChat | undefined> {
    try {
      return await load((await this.find(chatId)).events());
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  async save(chatId: string, messages: readonly PlainMessage[]): Promise<void> {
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      try {
        if (await this.#saveOnce(chatId, messages)) return;
      } catch (error) {
        if (!(error instanceof RevisionMismatch)) throw error;
      }
    }
    throw new RevisionMismatch(`other writers kept writing to chat ${chatId}`);
  }

  /** Returns false if another save must follow, for events that require those of this save. */
  async #saveOnce(chatId: string, messages: readonly PlainMessage[]): Promise<boolean> {
    const found = await this.#read(chatId);
    if (!found) {
      await this.#db.open(chatId, { title: this.#options.about?.title, ...this.about });
      return false;
    }
    const { conv, chat, hashOf } = found;
    const { forkAt, events, isPart } = plan(chat, messages, hashOf);
    if (forkAt !== undefined) {
      const fork = await this.#goAnotherWay(chatId, conv, chat.head, forkAt);
      if (events.length) await fork.append(events);
    } else if (events.length) {
      await conv.append(events, { expected: chat.head.revision });
    }
    return !isPart;
  }

  async #read(chatId: string) {
    try {
      const conv = await this.find(chatId);
      const state = await conv.state();
      const open = new Map(
        state.branch?.openCalls.map(({ callId, argumentsHash }) => [callId, argumentsHash]),
      );
      const hashOf: HashOf = (callId) => open.get(callId);
      return { conv, chat: await this.#known.read(conv, state), hashOf };
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }

  /** Forks the chat and returns its new branch. */
  async #goAnotherWay(
    chatId: string,
    conv: Conversation,
    head: Place,
    end: Place,
  ): Promise<Conversation> {
    const at = forkPoint(head, end);
    const [, , name] = FORK.exec(chatId) ?? [];
    if (!name) return conv.fork({ at, activate: true });
    return conv.fork({ at, name: `${name}.${head.revision}` });
  }

  async fork({ chatId, upTo }: ForkChat): Promise<string> {
    const conv = await this.find(chatId);
    const { messages, head } = await load(conv.events());
    const last = upTo === undefined ? undefined : messages.find(({ id }) => id === upTo);
    if (upTo !== undefined && !last) throw new NotFound(`the chat has no message ${upTo}`);
    const name = `chat-${unique(12)}`;
    await conv.fork({ at: forkPoint(head, last?.end ?? head), name });
    const { summary } = await conv.state();
    return `${summary?.conversationId ?? conv.id}~${name}`;
  }

  async decide({ chatId, toolCallId, approved, reason, by }: ToolDecision): Promise<void> {
    const conv = await this.find(chatId);
    const branch = (await conv.state()).branch?.name ?? "";
    // A long id is stored as a hash. A call without an id has only its stored id.
    const callId = callIdFor(toolCallId, toolCallId);
    const waiting = (await conv.on(branch).pending()).find((call) => call.callId === callId);
    if (!waiting) throw new NotFound(`no call ${toolCallId} waits for a decision`);
    await (approved
      ? this.#db.approve(waiting, { reason, by })
      : this.#db.deny(waiting, { reason, by }));
  }
}

/** Returns the revision to fork at; throws `Refused` if its event is inherited. */
function forkPoint(head: Place, { conversationId, revision }: Place): number {
  if (conversationId === head.conversationId) return revision;
  throw new Refused(`the chat inherits that message: fork ${conversationId} instead`);
}
