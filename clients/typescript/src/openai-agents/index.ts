// Sessions of the OpenAI Agents SDK in Treering: a `Session` of the SDK.
//
//     import { Agent, run } from "@openai/agents";
//     import { TreeringSession } from "treering/openai-agents";
//
//     const session = new TreeringSession("user-42", treering.local("./store"));
//     await run(new Agent({ name: "Helper" }), "Hello", { session });
//
// A session is a conversation, whoever began it: what another framework said in it is among the
// items. The SDK gets its own items back as it gave them. Needs `@openai/agents`.

import {
  type AgentInputItem,
  type Session,
  type SessionHistoryRewriteArgs,
  type SessionHistoryRewriteAwareSession,
  type SessionHistoryTransactionArgs,
  type SessionHistoryTransactionAwareSession,
  UserError,
} from "@openai/agents";
import { frame } from "../adapters/frames.js";
import { Lessened } from "../adapters/lessened.js";
import {
  ATTEMPTS_MAX,
  before,
  fitted,
  Mutex,
  openCalls,
  rewind,
  rewindEvents,
  Thread,
} from "../adapters/thread.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { NewEvent } from "../gen/treering/v1/event.js";
import { FRAME, type Held, History, type Operations } from "./history.js";
import { typed } from "./items.js";
import { isSame, type Plain, plain } from "./json.js";
import { checked, hashOf, rewritten } from "./transactions.js";

const SOURCE = "openai-agents";

/** Which branch a session is on, and what its conversation begins with. */
export interface SessionOptions {
  /** The branch to read and to write; else the active one. */
  branch?: string | undefined;
  title?: string | undefined;
}

/** Of a session that is not there yet. */
const BEGINS = { begins: true };

/** What a session is to become. */
interface Change {
  /** It goes, and all after it. */
  from?: Held | undefined;
  /** Then these come. */
  items?: readonly AgentInputItem[] | undefined;
  /** Transactions that this is. */
  operations?: Operations | undefined;
  /** Transactions among what goes are forgotten. */
  forgets?: boolean | undefined;
}

/**
 * The SDK's session as a conversation of a store.
 *
 * `sessionId` is the conversation's source id, or its UUID. Popping, clearing and rewriting put a
 * branch in the place of the session's that lacks what was taken back; the old one takes nothing
 * more, and can still be read. What is added at once is stored at once, or not at all.
 */
export class TreeringSession
  implements Session, SessionHistoryRewriteAwareSession, SessionHistoryTransactionAwareSession
{
  readonly sessionId: string;
  readonly #branch: string;
  readonly #thread: Thread;
  /** Writes are stored in the order in which they were asked for. */
  readonly #mutex = new Mutex();

  constructor(sessionId: string, db: Treering, options: SessionOptions = {}) {
    this.sessionId = sessionId;
    this.#branch = options.branch ?? "";
    this.#thread = new Thread(db, SOURCE, sessionId, { title: options.title });
  }

  /** The conversation that this session is; begins it the first time. */
  async conversation(): Promise<Conversation> {
    return this.#onBranch(await this.#thread.open());
  }

  // ---- the SDK's calls ----

  async getSessionId(): Promise<string> {
    return this.sessionId;
  }

  /** The items, oldest first; with a limit, the newest so many. */
  async getItems(limit?: number): Promise<AgentInputItem[]> {
    const conversation = await this.#found();
    if (!conversation || (limit !== undefined && limit <= 0)) return [];
    const history = new History(conversation);
    const held = limit === undefined ? await history.all() : await history.newest(limit);
    return held.map(({ item }) => item);
  }

  /** Stores items: all or none. */
  async addItems(items: AgentInputItem[]): Promise<void> {
    if (!items.length) return;
    // As they are now, whatever becomes of them while others are stored.
    const given = items.map(plain);
    await this.#mutex.run(() => this.#add(given));
  }

  /** Takes the newest item back; undefined when there is none. */
  async popItem(): Promise<AgentInputItem | undefined> {
    let popped: AgentInputItem | undefined;
    await this.#change(async (history) => {
      const [from] = await history.newest(1);
      popped = from?.item;
      return from && { from };
    });
    return popped;
  }

  /** Takes all items back. */
  async clearSession(): Promise<void> {
    await this.#change(async (history) => {
      const from = await history.first();
      return from && { from, forgets: true };
    });
  }

  /** Puts items in the place of all that there are, in one step. */
  async replaceHistoryWithCompaction(items: AgentInputItem[]): Promise<void> {
    const plan = async (history: History) => ({ from: (await history.all())[0], items });
    await this.#change(plan, BEGINS);
  }

  /** Rewrites calls that are stored. */
  async applyHistoryMutations({ mutations }: SessionHistoryRewriteArgs): Promise<void> {
    if (!mutations.length) return;
    await this.#change(async (history) => {
      const held = await history.all();
      const items = mutations.reduce(
        rewritten,
        held.map(({ item }) => item),
      );
      const at = held.findIndex(({ item }, index) => !isSame(item, items[index]));
      return at < 0 ? undefined : { from: held[at], items: items.slice(at) };
    });
  }

  /** Changes the history in one step, and once: also when it is asked for again. */
  async applyHistoryTransaction(args: SessionHistoryTransactionArgs): Promise<void> {
    const { operationId, transaction } = checked(args);
    const operations = { [operationId]: hashOf(transaction) };
    await this.#change(async (history) => {
      const held = await history.all();
      const known = history.operationsSince()[operationId];
      if (known !== undefined) {
        if (known === operations[operationId]) return undefined;
        throw new UserError(
          "Session history operation was already applied with a different transaction.",
        );
      }
      if (transaction.type === "append_items") return { items: transaction.items, operations };
      const { expectedSuffix, replacement } = transaction;
      const start = held.length - expectedSuffix.length;
      const suffix = held.slice(Math.max(0, start)).map(({ item }) => item);
      if (start < 0 || !isSame(suffix, expectedSuffix)) {
        throw new UserError(
          "Session history suffix no longer matches the transaction precondition.",
        );
      }
      return { from: held[start], items: replacement, operations };
    }, BEGINS);
  }

  // ---- writing ----

  #onBranch(conversation: Conversation): Conversation {
    return this.#branch ? conversation.on(this.#branch) : conversation;
  }

  async #found(): Promise<Conversation | undefined> {
    const found = await this.#thread.find();
    return found && this.#onBranch(found);
  }

  async #add(items: readonly Plain[]): Promise<void> {
    const conversation = await this.conversation();
    const lessened = new Lessened<number>();
    for (;;) {
      const isAboutCalls = items.some(({ item }) => typed(item).some(isAboutCall));
      const open = isAboutCalls ? openCalls(await conversation.state()) : new Set<string>();
      try {
        await conversation.append(framed(items, lessened, open));
        return;
      } catch (error) {
        // A call was opened or ended meanwhile, or the server takes no such event.
        if (!lessened.isToRepeat(error)) throw error;
      }
    }
  }

  /** Makes a change; it is planned anew when another program was first. */
  async #change(
    plan: (history: History) => Promise<Change | undefined>,
    { begins = false } = {},
  ): Promise<void> {
    await this.#mutex.run(async () => {
      if (!begins && !(await this.#found())) return;
      const lessened = new Lessened<number>();
      for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
        try {
          await this.#changeOnce(plan, lessened);
          return;
        } catch (error) {
          const isLate = error instanceof errors.Conflict;
          if (!isLate && !lessened.isToRepeat(error)) throw error;
        }
      }
      throw new errors.RevisionMismatch(`others write to ${this.sessionId} all the time`);
    });
  }

  async #changeOnce(
    plan: (history: History) => Promise<Change | undefined>,
    lessened: Lessened<number>,
  ): Promise<void> {
    const conversation = await this.conversation();
    const state = await conversation.state();
    const branch = conversation.on(state.branch?.name ?? "");
    const history = new History(branch);
    const change = await plan(history);
    if (!change) return;
    const { from, items = [], forgets } = change;
    const gone = from && !forgets ? history.operationsSince(from.revision) : {};
    const operations = { ...gone, ...change.operations };
    const given = items.map(plain);
    if (!from) {
      const events = framed(given, lessened, openCalls(state), { operations });
      if (events.length) await branch.append(events, { expected: state.branch?.head });
      return;
    }
    const to = await before(branch, from.revision);
    const open = items.length ? openCalls(await branch.state({ asOf: to })) : new Set<string>();
    const first = rewindEvents(state);
    await rewind(conversation, state, to, framed(given, lessened, open, { operations, first }));
  }
}

const isAboutCall = ({ body }: NewEvent): boolean =>
  body?.$case === "toolCallRequested" || body?.$case === "toolResultRecorded";

/**
 * A frame for each item, with its events; the first one has what was applied with them. `first`
 * is its place in the batch.
 */
function framed(
  items: readonly Plain[],
  lessened: Lessened<number>,
  open: Set<string>,
  { operations = {}, first = 0 }: { operations?: Operations; first?: number } = {},
): NewEvent[] {
  const applied = Object.keys(operations).length ? { operations } : {};
  if (!items.length) return "operations" in applied ? frame(FRAME, [], applied) : [];
  const made = items.map(({ item, bytes }, index) => {
    const beside = { ...(bytes.length ? { bytes } : {}), ...(index ? {} : applied) };
    const events = fitted(lessened.of(index, typed(item)), open, String(item.id ?? ""));
    return frame(FRAME, [[item, events]], Object.keys(beside).length ? beside : undefined);
  });
  lessened.sends(
    made.map(({ length }, index) => [index, length]),
    first,
  );
  return made.flat();
}
