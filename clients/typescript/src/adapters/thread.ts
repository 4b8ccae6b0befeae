// A conversation as adapters use it: named by a framework's id, created at the first write.

import type { Treering } from "../client.js";
import type { Conversation } from "../conversation/index.js";
import * as errors from "../errors/index.js";
import type { ConversationState } from "../gen/treering/v1/conversation.js";
import { NewEvent, ParentRef } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Receipt } from "../types.js";
import { fromUtf8, utf8 } from "../words.js";
import { blake2b } from "./blake2b.js";
import { bounded, unnamedCall } from "./bounds.js";

/** Maximum length of a source, source id or call id in the store. */
const SHORT_BYTES_MAX = 512;
/** Maximum length of an idempotency key. */
const KEY_BYTES_MAX = 256;
/** Maximum length of a branch name. */
const BRANCH_BYTES_MAX = 200;
const DIGEST_BYTES = 16;
/** Maximum number of attempts of a write; another writer may come first. */
export const ATTEMPTS_MAX = 50;

/** Returns a text; if it is too long for the store, its beginning and its hash. */
export function short(text: string, bytesMax = SHORT_BYTES_MAX): string {
  // As in the Python client, half of a surrogate pair becomes a question mark.
  const encoded = utf8(text.replaceAll(/\p{Surrogate}/gu, "?"));
  if (encoded.length <= bytesMax) return fromUtf8(encoded);
  const digest = Buffer.from(blake2b(encoded, DIGEST_BYTES)).toString("hex");
  // Cut at a character boundary.
  const decoder = new TextDecoder();
  const head = decoder.decode(encoded.subarray(0, bytesMax - digest.length - 1), { stream: true });
  return `${head}-${digest}`;
}

/** Options of the conversation of a thread. */
export interface ThreadOptions {
  title?: string | undefined;
  /** Returns the UUID of the parent conversation; empty for none. */
  parent?: () => Promise<string>;
}

/** A conversation by its source id. */
export class Thread {
  readonly source: string;
  readonly sourceId: string;
  readonly #db: Treering;
  readonly #options: ThreadOptions;
  #conversation: Conversation | undefined;

  constructor(db: Treering, source: string, sourceId: string, options: ThreadOptions = {}) {
    this.#db = db;
    this.source = short(source);
    this.sourceId = short(sourceId);
    this.#options = options;
  }

  /** Returns the conversation without a lookup; it may not exist. */
  named(): Conversation {
    return this.#conversation ?? this.#db.conversation(this.sourceId);
  }

  /** Returns the conversation if it exists. */
  async find(): Promise<Conversation | undefined> {
    if (this.#conversation) return this.#conversation;
    try {
      const { summary } = await this.#db.conversation(this.sourceId).state();
      this.#conversation = this.#db.conversation(summary?.conversationId ?? this.sourceId);
    } catch (error) {
      if (!(error instanceof errors.NotFound)) throw error;
    }
    return this.#conversation;
  }

  /** Returns the conversation; creates it if needed. */
  async open(): Promise<Conversation> {
    const found = await this.find();
    if (found) return found;
    const parent = (await this.#options.parent?.()) ?? "";
    const created = make.created(this.#options.title, {
      source: this.source,
      sourceId: this.sourceId,
      // Revision 1 of the parent: two programs that create it at once send the same event.
      parent: parent ? ParentRef.fromPartial({ conversationId: parent, revision: 1 }) : undefined,
    });
    const idempotencyKey = short(`open:${this.source}:${this.sourceId}`, KEY_BYTES_MAX);
    try {
      const receipt = await this.#db.append([created], { idempotencyKey });
      this.#conversation = this.#db.conversation(receipt.conversationId);
      return this.#conversation;
    } catch (error) {
      if (!(error instanceof errors.IdempotencyConflict)) throw error;
      // Another program was first, with another title.
      const other = await this.find();
      if (other) return other;
      throw error;
    }
  }
}

/** Assigns an event to a branch. */
const onBranch = (branch: string, event: NewEvent): NewEvent => ({ ...event, branch });

/** Makes the event of a fork, after a revision of another branch. */
export const forked = (name: string, parentBranchId: number, forkRevision: number): NewEvent => ({
  ...NewEvent.fromPartial({}),
  body: {
    $case: "branchForked",
    value: { name, parentBranchId, forkRevision, systemPrompt: "" },
  },
});

/**
 * Removes the events after a revision and appends these events, in one batch, if nothing was
 * appended since the state was read.
 *
 * A new branch that shares the events up to there takes the name and the place of the old one,
 * which is renamed and archived. Throws `Conflict` if something was appended.
 */
export async function rewind(
  conversation: Conversation,
  { branch, summary }: ConversationState,
  to: number,
  then: readonly NewEvent[] = [],
): Promise<Receipt> {
  const name = branch?.name ?? "";
  const id = branch?.branchId ?? 0;
  const old = short(`${name}~${summary?.head ?? 0}`, BRANCH_BYTES_MAX);
  const events = [onBranch(name, make.branchRenamed(old)), forked(name, id, to)];
  if (isActive({ branch, summary })) events.push(onBranch(name, make.branchActivated()));
  events.push(onBranch(old, make.branchArchived("taken back")));
  events.push(...then.map((event) => onBranch(name, event)));
  return conversation.on(name).append(events, { expected: branch?.head });
}

const isActive = ({ branch, summary }: Pick<ConversationState, "branch" | "summary">): boolean =>
  summary?.activeBranchId === (branch?.branchId ?? 0);

/** Number of events that `rewind` appends before the given ones. */
export const rewindEvents = (state: ConversationState): number => (isActive(state) ? 4 : 3);

/** Returns the revision of the branch's last event before this revision. */
export async function before(conversation: Conversation, revision: number): Promise<number> {
  const options = { first: revision - 1, backward: true, limit: 1, headersOnly: true };
  for await (const event of conversation.events(options)) return event.revision;
  return 0;
}

/** Returns the ids of the open calls. */
export const openCalls = ({ branch }: ConversationState): Set<string> =>
  new Set(branch?.openCalls.map(({ callId }) => callId));

/**
 * Fits the events of an item to a branch with these open calls; keeps `open` up to date.
 *
 * A call with the id of an open call supersedes it; a result without an open call becomes a tool
 * message. Missing ids of calls are derived from `of`.
 */
export function fitted(events: readonly NewEvent[], open: Set<string>, of: string): NewEvent[] {
  const made: NewEvent[] = [];
  let calls = 0;
  for (const given of events) {
    const event = bounded(given, of, calls);
    const { body } = event;
    if (body?.$case === "toolCallRequested") calls += 1;
    if (body?.$case === "toolResultRecorded") body.value.callId ||= unnamedCall(open) ?? "";
    if (body?.$case === "toolCallRequested") {
      const { callId } = body.value;
      if (open.has(callId)) made.push(make.toolCancelled(callId, "superseded"));
      open.add(callId);
    } else if (body?.$case === "toolResultRecorded" && !open.delete(body.value.callId)) {
      made.push(orphan(body.value.callId, body.value.parts));
      continue;
    }
    made.push(event);
  }
  return made;
}

function orphan(toolCallId: string, parts: Parameters<typeof make.message>[1]): NewEvent {
  const event = make.message("tool", parts);
  if (event.body?.$case === "messageAppended") event.body.value.toolCallId = toolCallId;
  return event;
}

/** Runs one task at a time. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve();

  /** Runs the task after all earlier ones. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#last.then(work, work);
    this.#last = mine.catch(() => {});
    return mine;
  }
}
