// A `SessionStore` of the Claude Agent SDK.
//
//     import { query } from "@anthropic-ai/claude-agent-sdk";
//     import { TreeringSessionStore } from "treering/claude-agent-sdk";
//
//     const sessionStore = new TreeringSessionStore(treering.local("./store"));
//     for await (const message of query({ prompt, options: { sessionStore } })) ...
//
// A session is a conversation of messages, tool calls and results. You can search and fork it, and
// build requests for any provider. The SDK gets its own lines back unchanged, and lines for events
// of other programs. Needs `@anthropic-ai/claude-agent-sdk`.

import {
  foldSessionSummary,
  type SessionKey,
  type SessionStore,
  type SessionStoreEntry,
  type SessionSummaryEntry,
} from "@anthropic-ai/claude-agent-sdk";
import * as frames from "../adapters/frames.js";
import { Lessened } from "../adapters/lessened.js";
import { ATTEMPTS_MAX, fitted, Mutex, openCalls, rewind, Thread } from "../adapters/thread.js";
import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { ConversationSummary } from "../gen/treering/v1/conversation.js";
import type { NewEvent } from "../gen/treering/v1/event.js";
import type { Event } from "../types.js";
import type { Parsed } from "../words.js";
import { isSummary, typed } from "./lines.js";
import { linesOf } from "./others.js";

const SOURCE = "claude-agent-sdk";
const FRAME = "claude-agent-sdk.entries";
/** Key of the JavaScript SDK's summary of a session, beside the lines. Python's SDK has its own. */
const SUMMARY = "summaryOfJavaScript";
/** Maximum number of conversations that one call lists. */
const PAGE_MAX = 1_000;
/** Maximum number of conversations whose newest events one call reads. */
const LATEST_MAX = 256;
/** Maximum number of cached sessions; other sessions are read again. */
const SEEN_MAX = 1_024;
/** Maximum number of lines of one append. */
const BATCH_ENTRIES_MAX = 500;
/** Maximum number of characters of one append; a single line may be longer. */
const BATCH_CHARS_MAX = 8 << 20;

/** A session as this program last saw it. */
interface Seen {
  thread: Thread;
  mutex: Mutex;
  head: number;
  uuids: Set<string>;
  open: Set<string>;
  summary: SessionSummaryEntry | undefined;
  isCurrent: boolean;
}

/** A session, without the name of a subagent. */
type MainKey = Omit<SessionKey, "subpath">;

/**
 * Stores the SDK's sessions as conversations.
 *
 * The source id of a session is `PROJECT_KEY/SESSION_ID`. A subagent is a child conversation with
 * the source id `PROJECT_KEY/SESSION_ID/SUBPATH`. A line with a known `uuid` is skipped. Deleting
 * replaces the branch by an empty one; the old branch is archived and stays readable. The Python
 * client's `TreeringSessionStore` reads and writes the same sessions.
 */
export class TreeringSessionStore implements SessionStore {
  readonly #db: Treering;
  /** In the order of their last use. */
  readonly #seen = new Map<string, Seen>();

  constructor(db: Treering) {
    this.#db = db;
  }

  // ---- the SDK's calls ----

  /** Appends lines: all or none, up to 500. */
  async append(key: SessionKey, entries: SessionStoreEntry[]): Promise<void> {
    if (!entries.length) return;
    // Convert to JSON values, as any program reads them later.
    const given: SessionStoreEntry[] = JSON.parse(JSON.stringify(entries));
    const seen = this.#seenOf(key);
    await seen.mutex.run(async () => {
      for (const batch of batches(given)) await this.#append(key, seen, batch);
    });
  }

  /** Returns all lines of a session, with those of other programs; `null` if there are none. */
  async load(key: SessionKey): Promise<SessionStoreEntry[] | null> {
    const entries = await this.#lines(key);
    return entries.length ? entries : null;
  }

  /** Lists the sessions of a project. */
  async listSessions(projectKey: string): Promise<{ sessionId: string; mtime: number }[]> {
    const found: { sessionId: string; mtime: number }[] = [];
    for await (const [sessionId, summary] of this.#sessions(projectKey)) {
      found.push({ sessionId, mtime: mtimeOf(summary) });
    }
    return found;
  }

  /** Returns the SDK's summaries of the sessions. */
  async listSessionSummaries(projectKey: string): Promise<SessionSummaryEntry[]> {
    const found: SessionSummaryEntry[] = [];
    const sessions: [string, ConversationSummary][] = [];
    for await (const each of this.#sessions(projectKey)) sessions.push(each);
    for (let start = 0; start < sessions.length; start += LATEST_MAX) {
      const page = sessions.slice(start, start + LATEST_MAX);
      const ids = page.map(([, { conversationId }]) => conversationId);
      const latest = await this.#db.latest(ids, { types: [FRAME] });
      for (const [at, [sessionId, summary]] of page.entries()) {
        const data = await this.#summaryOf({ projectKey, sessionId }, latest[at]);
        found.push({ sessionId, mtime: mtimeOf(summary), data });
      }
    }
    return found;
  }

  /** Deletes a session with its subagents, or one subagent. */
  async delete(key: SessionKey): Promise<void> {
    if (key.subpath === undefined) {
      for (const subpath of await this.listSubkeys(key)) await this.#delete({ ...key, subpath });
    }
    await this.#delete(key);
  }

  /** Lists the subagents of a session. */
  async listSubkeys({ projectKey, sessionId }: MainKey): Promise<string[]> {
    const name = `${projectKey}/${sessionId}`;
    const found: string[] = [];
    for await (const [subpath] of this.#listed(sourceOf(name), `${name}/`)) found.push(subpath);
    return found;
  }

  // ---- writing ----

  async #append(key: SessionKey, seen: Seen, entries: SessionStoreEntry[]): Promise<void> {
    const conversation = await seen.thread.open();
    const lessened = new Lessened<SessionStoreEntry>();
    for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
      if (!seen.isCurrent) await this.#look(key, seen);
      const fresh = withoutKnown(entries, seen.uuids);
      if (!fresh.length) {
        if ((await conversation.head()) === seen.head) return;
        // Another program may have removed these lines.
        seen.isCurrent = false;
        continue;
      }
      try {
        await this.#write(key, seen, conversation, fresh, lessened);
        return;
      } catch (error) {
        if (error instanceof errors.Conflict) {
          // Another program wrote to the session, or deleted it.
          seen.isCurrent = false;
          continue;
        }
        // Rather store a line without events than not at all.
        if (!lessened.isToRepeat(error)) throw error;
        if (!(error instanceof errors.Invalid)) seen.isCurrent = false;
      }
    }
    throw new errors.RevisionMismatch(`others kept writing to session ${seen.thread.sourceId}`);
  }

  async #write(
    key: SessionKey,
    seen: Seen,
    conversation: Conversation,
    fresh: SessionStoreEntry[],
    lessened: Lessened<SessionStoreEntry>,
  ): Promise<void> {
    const open = new Set(seen.open);
    const cut = fresh.some(isSummary) ? await cutOf(conversation) : 0;
    const summary = folded(key, seen.summary, fresh);
    const items = fresh.map((entry): [SessionStoreEntry, NewEvent[]] => [
      entry,
      fitted(lessened.of(entry, typed(entry, cut)), open, entry.uuid ?? ""),
    ]);
    lessened.sends(
      items.map(([entry, { length }]) => [entry, length]),
      1,
    );
    const beside = summary && { [SUMMARY]: summary.data };
    const events = frames.frame(FRAME, items, beside);
    const { revision } = await conversation.append(events, { expected: seen.head });
    Object.assign(seen, { head: revision, open, summary });
    for (const { uuid } of fresh) if (uuid) seen.uuids.add(uuid);
  }

  /** Reads the session again, with what other programs wrote since. */
  async #look(key: SessionKey, seen: Seen): Promise<void> {
    const state = await (await seen.thread.open()).state();
    seen.uuids.clear();
    seen.summary = undefined;
    for await (const frame of this.#frames(key)) {
      seen.summary = summaryAfter(key, seen.summary, frame);
    }
    // Also lines of other programs: a program that sends loaded lines back must not store them.
    for (const { uuid } of await this.#lines(key)) if (uuid) seen.uuids.add(uuid);
    seen.head = state.branch?.head ?? 0;
    seen.open = openCalls(state);
    seen.isCurrent = true;
  }

  // ---- reading ----

  async #lines(key: SessionKey): Promise<SessionStoreEntry[]> {
    const conversation = await this.#seenOf(key).thread.find();
    if (!conversation) return [];
    return (await linesOf(key.sessionId, conversation.events(), FRAME)) as SessionStoreEntry[];
  }

  async *#frames(key: SessionKey): AsyncGenerator<frames.Frame> {
    const conversation = await this.#seenOf(key).thread.find();
    if (!conversation) return;
    for await (const found of frames.read(FRAME, conversation.events())) {
      if ("items" in found) yield found;
    }
  }

  #sessions(projectKey: string): AsyncGenerator<[string, ConversationSummary]> {
    return this.#listed(sourceOf(projectKey), `${projectKey}/`);
  }

  async *#listed(source: string, prefix: string): AsyncGenerator<[string, ConversationSummary]> {
    const { source: short } = new Thread(this.#db, source, "");
    const page = { source: short, pageSize: PAGE_MAX };
    for await (const summary of this.#db.conversations(page)) {
      if (await this.#isEmpty(summary)) continue;
      const name = summary.title || summary.sourceId;
      yield [name.startsWith(prefix) ? name.slice(prefix.length) : name, summary];
    }
  }

  /** Returns the SDK's summary of a session. */
  async #summaryOf(key: SessionKey, last: Event | undefined): Promise<Parsed> {
    const kept = last && frames.beside(last)[SUMMARY];
    if (kept) return kept;
    // Python's SDK wrote last; its summary has another format.
    let summary: SessionSummaryEntry | undefined;
    for await (const frame of this.#frames(key)) summary = summaryAfter(key, summary, frame);
    return summary?.data ?? {};
  }

  /** Whether the active branch has only the event that created the conversation. */
  async #isEmpty(summary: ConversationSummary): Promise<boolean> {
    if (summary.activeBranchId === 0) return summary.head <= 1;
    // Only the fork, its activation, and the archiving of the old branch may have followed.
    if (summary.head > summary.activeBranchId + 2) return false;
    const branches = await this.#db.conversation(summary.conversationId).branches();
    return branches.some(({ active, forkRevision }) => active && forkRevision <= 1);
  }

  // ---- deleting ----

  async #delete(key: SessionKey): Promise<void> {
    const seen = this.#seenOf(key);
    await seen.mutex.run(async () => {
      const conversation = await seen.thread.find();
      seen.isCurrent = false;
      for (let attempt = 0; conversation && attempt < ATTEMPTS_MAX; attempt += 1) {
        const state = await conversation.state();
        if (!state.summary || (await this.#isEmpty(state.summary))) return;
        try {
          await rewind(conversation, state, 1);
          return;
        } catch (error) {
          if (!(error instanceof errors.Conflict) || attempt + 1 === ATTEMPTS_MAX) throw error;
        }
      }
    });
  }

  // ---- names ----

  #thread({ projectKey, sessionId, subpath }: SessionKey): Thread {
    const main = `${projectKey}/${sessionId}`;
    if (subpath === undefined)
      return new Thread(this.#db, sourceOf(projectKey), main, { title: main });
    const name = `${main}/${subpath}`;
    const parent = async () => {
      const found = await this.#seenOf({ projectKey, sessionId }).thread.find();
      return found?.id ?? "";
    };
    return new Thread(this.#db, sourceOf(main), name, { title: name, parent });
  }

  #seenOf(key: SessionKey): Seen {
    const name = JSON.stringify([key.projectKey, key.sessionId, key.subpath]);
    const seen = this.#seen.get(name) ?? {
      thread: this.#thread(key),
      mutex: new Mutex(),
      head: 0,
      uuids: new Set<string>(),
      open: new Set<string>(),
      summary: undefined,
      isCurrent: false,
    };
    this.#seen.delete(name);
    this.#seen.set(name, seen);
    const [oldest] = this.#seen.keys();
    if (this.#seen.size > SEEN_MAX && oldest !== undefined) this.#seen.delete(oldest);
    return seen;
  }
}

const sourceOf = (of: string): string => `${SOURCE}:${of}`;

const mtimeOf = ({ updatedAt }: ConversationSummary): number => updatedAt?.getTime() ?? 0;

/** Adds lines to the SDK's summary of a session; subagents have no summary. */
const folded = (
  key: SessionKey,
  before: SessionSummaryEntry | undefined,
  entries: SessionStoreEntry[],
): SessionSummaryEntry | undefined =>
  key.subpath === undefined
    ? foldSessionSummary(before && structuredClone(before), key, entries)
    : undefined;

/** Adds the lines of a frame to the SDK's summary. */
function summaryAfter(
  key: SessionKey,
  before: SessionSummaryEntry | undefined,
  { items, beside }: frames.Frame,
): SessionSummaryEntry | undefined {
  const data = beside[SUMMARY];
  if (data) return { sessionId: key.sessionId, mtime: 0, data };
  const entries = items.map(({ item }) => item);
  return folded(key, before, entries);
}

/** Returns the revision where a compaction would cut; 0 if there is nothing to cut. */
async function cutOf(conversation: Conversation): Promise<number> {
  try {
    return (await conversation.planCompaction({ keepTurns: 0 })).cutRevision;
  } catch (error) {
    if (error instanceof errors.TreeringError) return 0;
    throw error;
  }
}

function* batches(entries: readonly SessionStoreEntry[]): Generator<SessionStoreEntry[]> {
  let batch: SessionStoreEntry[] = [];
  let chars = 0;
  for (const entry of entries) {
    const size = JSON.stringify(entry).length;
    if (batch.length && (batch.length === BATCH_ENTRIES_MAX || chars + size > BATCH_CHARS_MAX)) {
      yield batch;
      batch = [];
      chars = 0;
    }
    batch.push(entry);
    chars += size;
  }
  yield batch;
}

function withoutKnown(
  entries: readonly SessionStoreEntry[],
  known: ReadonlySet<string>,
): SessionStoreEntry[] {
  const here = new Set<string>();
  return entries.filter(({ uuid }) => {
    if (!uuid) return true;
    const isNew = !known.has(uuid) && !here.has(uuid);
    here.add(uuid);
    return isNew;
  });
}
