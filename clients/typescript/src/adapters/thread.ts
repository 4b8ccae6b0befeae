// A conversation as adapters use it: by a framework's id, begun when first written to.

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

/** Longest source, source id or call id that the store takes. */
const SHORT_BYTES_MAX = 512;
/** Longest idempotency key. */
const KEY_BYTES_MAX = 256;
const DIGEST_BYTES = 16;
/** So often another writer may come first. */
export const ATTEMPTS_MAX = 50;

/** A text as it is, or, of one that is too long for the store, its head and its hash. */
export function short(text: string, bytesMax = SHORT_BYTES_MAX): string {
  // As Python has it: half of a surrogate pair is a question mark.
  const encoded = utf8(text.replaceAll(/\p{Surrogate}/gu, "?"));
  if (encoded.length <= bytesMax) return fromUtf8(encoded);
  const digest = Buffer.from(blake2b(encoded, DIGEST_BYTES)).toString("hex");
  // A character that is cut is left out.
  const decoder = new TextDecoder();
  const head = decoder.decode(encoded.subarray(0, bytesMax - digest.length - 1), { stream: true });
  return `${head}-${digest}`;
}

/** What a thread's conversation begins with. */
export interface ThreadOptions {
  title?: string | undefined;
  /** UUID of the conversation that it is below; empty: of none. */
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

  /** The conversation, by its name where it was not looked up: there may be none. */
  named(): Conversation {
    return this.#conversation ?? this.#db.conversation(this.sourceId);
  }

  /** The conversation, if there is one. */
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

  /** The conversation; begins it the first time. */
  async open(): Promise<Conversation> {
    const found = await this.find();
    if (found) return found;
    const parent = (await this.#options.parent?.()) ?? "";
    const created = make.created(this.#options.title, {
      source: this.source,
      sourceId: this.sourceId,
      // Its first revision: two programs that begin it at once say the same.
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

/** An event for a branch. */
const onBranch = (branch: string, event: NewEvent): NewEvent => ({ ...event, branch });

/** A branch that begins after a revision of another one. */
export const forked = (name: string, parentBranchId: number, forkRevision: number): NewEvent => ({
  ...NewEvent.fromPartial({}),
  body: {
    $case: "branchForked",
    value: { name, parentBranchId, forkRevision, systemPrompt: "" },
  },
});

/**
 * Takes back what came after a revision, if nothing has come since the state was read, and goes
 * on from there with these events, in one step.
 *
 * A branch that shares all up to there takes the name and the place of the old one, which
 * stays under another name and takes nothing more. Throws `Conflict` when something has come.
 */
export async function rewind(
  conversation: Conversation,
  { branch, summary }: ConversationState,
  to: number,
  then: readonly NewEvent[] = [],
): Promise<Receipt> {
  const name = branch?.name ?? "";
  const id = branch?.branchId ?? 0;
  const old = `${name}~${summary?.head ?? 0}`;
  const events = [onBranch(name, make.branchRenamed(old)), forked(name, id, to)];
  if (isActive({ branch, summary })) events.push(onBranch(name, make.branchActivated()));
  events.push(onBranch(old, make.branchArchived("taken back")));
  events.push(...then.map((event) => onBranch(name, event)));
  return conversation.on(name).append(events, { expected: branch?.head });
}

const isActive = ({ branch, summary }: Pick<ConversationState, "branch" | "summary">): boolean =>
  summary?.activeBranchId === (branch?.branchId ?? 0);

/** So many events `rewind` puts before those with which it goes on. */
export const rewindEvents = (state: ConversationState): number => (isActive(state) ? 4 : 3);

/** The revision of the branch's last event before one of its events. */
export async function before(conversation: Conversation, revision: number): Promise<number> {
  const options = { first: revision - 1, backward: true, limit: 1, headersOnly: true };
  for await (const event of conversation.events(options)) return event.revision;
  return 0;
}

/** Ids of calls that have no result. */
export const openCalls = ({ branch }: ConversationState): Set<string> =>
  new Set(branch?.openCalls.map(({ callId }) => callId));

/**
 * The events of an item as a branch with these open calls takes them; keeps `open` up to date.
 *
 * A call whose id is open supersedes that one; a result of no call is a message of a tool. `of`
 * is what the ids of calls that have none follow from.
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

/** Lets one at a time do its work. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve();

  /** Does the work when all that came before has ended. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#last.then(work, work);
    this.#last = mine.catch(() => {});
    return mine;
  }
}
