// A `Session` of the OpenAI Agents SDK.
//
//     import { Agent, run } from "@openai/agents";
//     import { TreeringSession } from "treering/openai-agents";
//
//     const session = new TreeringSession("user-42", treering.local("./store"));
//     await run(new Agent({ name: "Helper" }), "Hello", { session });
//
// A session is a conversation. Messages of other frameworks in it are among the items. The SDK gets
// its own items back unchanged. Needs `@openai/agents`.

import {
  type AgentInputItem,
  type Session,
  type SessionHistoryRewriteArgs,
  type SessionHistoryRewriteAwareSession,
  type SessionHistoryTransactionArgs,
  type SessionHistoryTransactionAwareSession,
  UserError,
} from "@openai/agents";
import { callIdFor } from "../adapters/bounds.js";
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

/** Options of a session. */
export interface SessionOptions {
  /** The branch to use; default: the active branch. */
  branch?: string | undefined;
  title?: string | undefined;
}

/** Creates the session if it does not exist. */
const BEGINS = { begins: true };

/** A change of a session. */
interface Change {
  /** The first item to remove; all later items are removed too. */
  from?: Held | undefined;
  /** Items to append after that. */
  items?: readonly AgentInputItem[] | undefined;
  /** The transactions that this change applies. */
  operations?: Operations | undefined;
  /** Forget the transactions of the removed items. */
  forgets?: boolean | undefined;
}

/**
 * Stores the SDK's session as a conversation.
 *
 * `sessionId` is the conversation's source id or its UUID. Popping, clearing and rewriting continue
 * on a new branch; the old branch is archived and stays readable. Items that are added together are
 * all stored, or none.
 */
export class TreeringSession
  implements Session, SessionHistoryRewriteAwareSession, SessionHistoryTransactionAwareSession
{
  readonly sessionId: string;
  readonly #branch: string;
  readonly #thread: Thread;
  /** Writes are stored in the order of the calls. */
  readonly #mutex = new Mutex();

  constructor(sessionId: string, db: Treering, options: SessionOptions = {}) {
    this.sessionId = sessionId;
    this.#branch = options.branch ?? "";
    this.#thread = new Thread(db, SOURCE, sessionId, { title: options.title });
  }

  /** Returns the conversation of the session; creates it if needed. */
  async conversation(): Promise<Conversation> {
    return this.#onBranch(await this.#thread.open());
  }

  // ---- the SDK's calls ----

  async getSessionId(): Promise<string> {
    return this.sessionId;
  }

  /**
   * Returns the items, oldest first; with a limit, only the newest. Without a limit, a call of
   * another program that has no result gets an error as its result, which is not stored.
   */
  async getItems(limit?: number): Promise<AgentInputItem[]> {
    if (limit !== undefined && limit <= 0) return [];
    const history = new History(this.#onBranch(this.#thread.named()));
    try {
      if (limit === undefined) return await history.answered();
      return (await history.newest(limit)).map(({ item }) => item);
    } catch (error) {
      if (error instanceof errors.ConversationNotFound) return [];
      throw error;
    }
  }

  /** Appends items: all or none. */
  async addItems(items: AgentInputItem[]): Promise<void> {
    if (!items.length) return;
    // Copy them: the caller may change them while earlier writes run.
    const given = items.map(plain);
    await this.#mutex.run(() => this.#add(given));
  }

  /** Removes and returns the newest item; `undefined` if there is none. */
  async popItem(): Promise<AgentInputItem | undefined> {
    let popped: AgentInputItem | undefined;
    await this.#change(async (history) => {
      const [from] = await history.newest(1);
      popped = from?.item;
      return from && { from };
    });
    return popped;
  }

  /** Removes all items. */
  async clearSession(): Promise<void> {
    await this.#change(async (history) => {
      const from = await history.first();
      return from && { from, forgets: true };
    });
  }

  /** Replaces all items in one step. */
  async replaceHistoryWithCompaction(items: AgentInputItem[]): Promise<void> {
    const plan = async (history: History) => ({ from: (await history.all())[0], items });
    await this.#change(plan, BEGINS);
  }

  /** Rewrites stored calls. */
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

  /** Changes the history in one step. A repeated transaction is applied once. */
  async applyHistoryTransaction(args: SessionHistoryTransactionArgs): Promise<void> {
    const { operationId, transaction } = await checked(args);
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
    // Usually the session exists and the items fit its open calls: then one call is enough.
    let conversation = this.#onBranch(this.#thread.named());
    const lessened = new Lessened<number>();
    const about = items.flatMap(({ item }) => typed(item)).filter(isAboutCall);
    // Replacing ids that the store does not accept requires the open calls.
    let isAsked = about.map(callIdOf).some((id) => callIdFor(id, "") !== id);
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      try {
        const isUnknown = isAsked && about.length > 0;
        const open = isUnknown ? openCalls(await conversation.state()) : takenForOpen(about);
        await conversation.append(framed(items, lessened, open));
        return;
      } catch (error) {
        if (error instanceof errors.ConversationNotFound) {
          conversation = await this.conversation();
          continue;
        }
        const isOfCall =
          error instanceof errors.CallNotOpen || error instanceof errors.CallAlreadyOpen;
        if (isOfCall && !isAsked) {
          isAsked = true;
          continue;
        }
        // A call was opened or ended meanwhile, or the server refuses an event.
        if (!lessened.isToRepeat(error)) throw error;
      }
    }
    throw this.#contended();
  }

  #contended(): errors.RevisionMismatch {
    return new errors.RevisionMismatch(`other writers kept writing to session ${this.sessionId}`);
  }

  /** Makes a change; plans it again if another writer was first. */
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
      throw this.#contended();
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

/** Returns the calls that must be open before these events. */
function takenForOpen(events: readonly NewEvent[]): Set<string> {
  const asked = new Set<string>();
  const open = new Set<string>();
  for (const { body } of events) {
    if (body?.$case === "toolCallRequested") asked.add(body.value.callId);
    else if (body?.$case === "toolResultRecorded" && !asked.has(body.value.callId)) {
      open.add(body.value.callId);
    }
  }
  return open;
}

const callIdOf = ({ body }: NewEvent): string =>
  body?.$case === "toolCallRequested" || body?.$case === "toolResultRecorded"
    ? body.value.callId
    : "";

const isAboutCall = ({ body }: NewEvent): boolean =>
  body?.$case === "toolCallRequested" || body?.$case === "toolResultRecorded";

/**
 * A frame for each item, with its events. The first frame has the applied transactions; `first` is
 * its index in the batch.
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
