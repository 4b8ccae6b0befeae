// The messages of a graph's state, as events on branches of its thread's conversation.

import { frame } from "../adapters/frames.js";
import type { Lessened } from "../adapters/lessened.js";
import { before, fitted, forked, openCalls } from "../adapters/thread.js";
import * as errors from "../errors/index.js";
import type { NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Parsed } from "../words.js";
import type { Batch, Mirrored } from "./batch.js";
import type { Branch } from "./branches.js";
import { common, expanded, type Key, overlap } from "./lists.js";
import { NotSaidError } from "./lookup.js";
import { messageOf, plain, typed } from "./messages.js";
import { OWN_FRAME } from "./places.js";
import type { ThreadReader } from "./reader.js";
import { MESSAGES } from "./rows.js";
import { heardIn, isFilled, isOfOthers, placeOf } from "./said.js";

/** Where the messages of a checkpoint are appended. */
export interface Turn {
  parent: Branch;
  name: string;
  /** Open calls of the branch. */
  open: Set<string>;
  /** Events that fork and activate, if it is another branch than before. */
  events: NewEvent[];
  added: Mirrored[];
  /** Number of messages of the state before `added`. */
  first: number;
  /** The revision of the fork, if the branch is forked; otherwise 0. */
  last: number;
}

/** The messages of one thread. */
export class Mirror {
  readonly #thread: ThreadReader;

  constructor(thread: ThreadReader) {
    this.#thread = thread;
  }

  /**
   * Returns where to append, so that the branch has the messages of the state. Throws
   * `NotSaidError` if the thread was not read whole and the active branch is not known to fit.
   */
  async turn(messages: readonly Mirrored[]): Promise<Turn> {
    const { rows, id: threadId } = this.#thread;
    const wanted = messages.map(({ key }) => key);
    if (!rows.isWhole) {
      const known = await this.#knownBranch();
      if (!known || !goesOn(known, wanted)) throw new NotSaidError();
    }
    const id = this.#branchFor(wanted);
    const parent = rows.branches.get(id);
    if (!parent) throw new errors.BranchNotFound(`the thread ${threadId} has no branch ${id}`);
    const same = common(parent.mirrored, wanted);
    const hasAll = same === parent.mirrored.length;
    // If the state dropped its first messages, the branch keeps them.
    const ending = hasAll ? 0 : overlap(parent.mirrored, wanted);
    const first = ending || same;
    const turn = { parent, added: messages.slice(first), first, last: 0 };
    if (!hasAll && !ending) return { ...turn, ...(await this.#fork(id, parent, same)) };
    const events = id === rows.active ? [] : [make.branchActivated()];
    return { ...turn, name: parent.name, open: await this.#open(parent), events };
  }

  /** Returns a fork of a branch after its first `same` messages. */
  async #fork(id: number, parent: Branch, same: number) {
    const name = `from-${this.#thread.rows.seen}`;
    const at = same ? (parent.ends[same - 1] ?? 1) : await this.#beforeAll(parent);
    const conversation = (await this.#thread.open()).on(parent.name);
    const open = openCalls(await conversation.state({ asOf: at }));
    return { name, open, last: at, events: [forked(name, id, at), make.branchActivated()] };
  }

  /** Returns the branch with most of these messages, preferably without others after them. */
  #branchFor(wanted: readonly Key[]): number {
    const { active, branches } = this.#thread.rows;
    const now = branches.get(active);
    if (!now || goesOn(now, wanted)) return active;
    const worth = (id: number, { mirrored }: Branch): number[] => {
      const same = common(mirrored, wanted);
      const hasAll = mirrored.length > 0 && same === mirrored.length;
      return [Number(hasAll), same, Number(id === active)];
    };
    const [best] = [...branches]
      .filter(([, { archived }]) => !archived)
      .map(([id, branch]) => ({ id, worth: worth(id, branch) }))
      .sort((a, b) => a.worth.reduce((sum, each, at) => sum || (b.worth[at] ?? 0) - each, 0));
    return best?.id ?? active;
  }

  /** Returns the active branch, if its last messages are known. */
  async #knownBranch(): Promise<Branch | undefined> {
    const { rows, mirroredChannel } = this.#thread;
    const branch = rows.branches.get(rows.active);
    if (!branch || branch.isKnown) return branch;
    // Messages are only appended with checkpoints, so the branch has those of the newest one.
    const row = rows.newest("");
    const key = row?.values.get(mirroredChannel);
    if (!row?.isMirrored || row.branch !== rows.active || key === undefined) return undefined;
    await this.#thread.bring(row);
    branch.mirrored = rows.lists.has(key) ? expanded(rows.lists, key) : [];
    branch.isKnown = true;
    return branch;
  }

  /** Whether the active branch ends with the messages of these values. */
  async isMirrored(values: ReadonlyMap<string, Key>): Promise<boolean> {
    const { lists } = this.#thread.rows;
    const key = values.get(this.#thread.mirroredChannel);
    const branch = await this.#knownBranch();
    if (key === undefined || !branch || !lists.has(key)) return false;
    const keys = expanded(lists, key);
    const start = branch.mirrored.length - keys.length;
    return start >= 0 && common(branch.mirrored.slice(start), keys) === keys.length;
  }

  // ---- frames ----

  /**
   * Returns the frame of the messages that are new on the branch, with the events that the store
   * accepts: a refused message does not affect later ones. `first` is its index in the batch.
   */
  async frame(
    batch: Batch,
    turn: Turn,
    lessened: Lessened<Key>,
    first: number,
  ): Promise<NewEvent[]> {
    if (!turn.added.length) return [];
    const known = await this.#saidByOthers(turn);
    const items: [unknown, NewEvent[]][] = [];
    for (const [index, mirrored] of turn.added.entries()) {
      const { key, message } = mirrored;
      const of = String(message.id || turn.first + index);
      const said = known.has(key) || isFilled(message) ? [] : lessened.of(key, typed(message));
      const events = fitted(said, turn.open, of);
      items.push([await this.#fields(batch, mirrored), events]);
    }
    lessened.sends(
      turn.added.map(({ key }, index) => [key, items[index]?.[1].length ?? 0]),
      first + 1,
    );
    const count = items.reduce((sum, [, events]) => sum + events.length, 0);
    for (const [index, { key }] of turn.added.entries()) {
      if (items[index]?.[0] !== null) batch.framed.set(key, [OWN_FRAME, index, count]);
    }
    return frame(MESSAGES, items, { keys: turn.added.map(({ key }) => key) });
  }

  /** Returns added messages that this branch has already, as events of other programs. */
  async #saidByOthers({ parent, added, last }: Turn): Promise<Set<Key>> {
    if (!added.some(({ message }) => isOfOthers(message))) return new Set();
    const conversation = await this.#thread.open();
    const told = added.filter(({ message }) => placeOf(message, conversation.id));
    if (!told.length) return new Set();
    const places = told.map(({ message }) => placeOf(message, conversation.id));
    const stretch = { first: Math.min(...places), last };
    const heard = await heardIn(conversation.on(parent.name).events(stretch));
    const here = new Map(heard.map(({ message }) => [message.id, message]));
    // A message that was changed since is appended again.
    const isSame = ({ message }: Mirrored): boolean => {
      const found = here.get(message.id);
      return found?.type === message.type && found.text === message.text;
    };
    return new Set(told.filter(isSame).map(({ key }) => key));
  }

  /** Returns a message's fields for the frame; `null` if its bytes go to the row. */
  async #fields(batch: Batch, { key, message }: Mirrored): Promise<Parsed> {
    const { values } = this.#thread;
    const stored = batch.values.get(key);
    const said = stored && plain(message);
    const again = said && messageOf(structuredClone(said));
    if (!stored || !again) return null;
    if ((await values.keyOfMessage(again)) !== values.messageKey(stored)) return null;
    batch.values.delete(key);
    return said;
  }

  // ---- branches ----

  /** Returns the revision before the graph's first message: prompts, for example, stay. */
  async #beforeAll({ name, begin }: Branch): Promise<number> {
    return begin ? before((await this.#thread.open()).on(name), begin) : 1;
  }

  async #open(branch: Branch): Promise<Set<string>> {
    branch.open ??= openCalls(await (await this.#thread.open()).on(branch.name).state());
    return new Set(branch.open);
  }
}

/** Whether a state continues a branch; the state may have dropped its first messages. */
const goesOn = ({ mirrored }: Branch, wanted: readonly Key[]): boolean =>
  common(mirrored, wanted) === mirrored.length || overlap(mirrored, wanted) > 0;
