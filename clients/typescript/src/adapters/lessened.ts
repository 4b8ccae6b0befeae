// Items of which the store does not take all that they say: the others are said whole, and of
// these as much as it takes.

import * as errors from "../errors/index.js";
import { type NewEvent, Role } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { textOf } from "../parts.js";
import { word } from "../words.js";
import { warnOnce } from "./warning.js";

/** How much of an item is said. */
enum Level {
  All = 0,
  /** What a person or a model said, and no more. */
  Text = 1,
  /** The item is kept as it is, beside the conversation's messages. */
  Nothing = 2,
}

/** So often the state is read anew before less is said: somebody may have ended a call. */
const STATE_REFUSALS_MAX = 3;

/** What is said of the items of one write, by what names each. */
export class Lessened<K> {
  readonly #levels = new Map<K, Level>();
  #refusals = 0;
  #sent: readonly (readonly [K, number])[] = [];
  #first = 0;

  /** What is said of an item. */
  of(name: K, all: readonly NewEvent[]): readonly NewEvent[] {
    const level = this.#levels.get(name) ?? Level.All;
    if (level === Level.All) return all;
    return level === Level.Text ? all.flatMap(textOnly) : [];
  }

  /** So it is sent: the events of each item, and the place in the batch of the first one. */
  sends(items: readonly (readonly [name: K, count: number])[], first: number): void {
    this.#sent = items;
    this.#first = first;
  }

  /** Whether to try again, and with less: the store did not take what was sent. */
  isToRepeat(error: unknown): boolean {
    if (!isRefused(error) || isTooLarge(error)) return false;
    this.#refusals += 1;
    const isOfState = !(error instanceof errors.Invalid);
    if (isOfState && this.#refusals < STATE_REFUSALS_MAX) return true;
    const odd = this.#odd(error);
    if (!(odd !== undefined && this.#less([odd])) && !this.#less(this.#names())) return false;
    warnOnce("a message that the store refuses in part is stored only partly or not at all");
    return true;
  }

  #names(): K[] {
    return this.#sent.map(([name]) => name);
  }

  /** The item that the server names. */
  #odd(error: unknown): K | undefined {
    if (!(error instanceof errors.InvalidEvent)) return undefined;
    let end = this.#first;
    if (error.eventIndex < end) return undefined;
    for (const [name, count] of this.#sent) {
      end += count;
      if (error.eventIndex < end) return name;
    }
    return undefined;
  }

  /** False: there is nothing of them to leave out. */
  #less(names: readonly K[]): boolean {
    let isLess = false;
    for (const name of names) {
      const level = this.#levels.get(name) ?? Level.All;
      if (level === Level.Nothing) continue;
      this.#levels.set(name, level + 1);
      isLess = true;
    }
    return isLess;
  }
}

/** What is too large is as large in its frame. */
const isTooLarge = (error: unknown): boolean =>
  error instanceof errors.TooLarge || error instanceof errors.MessageTooLarge;

/** The store does not take it. */
export const isRefused = (error: unknown): boolean =>
  [errors.Refused, errors.Invalid, errors.NotFound].some((kind) => error instanceof kind);

/** An event as a message of its text; none where it has none. */
function textOnly({ body }: NewEvent): NewEvent[] {
  if (body?.$case === "toolResultRecorded") {
    const text = textOf(body.value.parts) || body.value.errorMessage;
    return text ? [make.message("tool", text)] : [];
  }
  if (body?.$case !== "messageAppended") return [];
  const text = textOf(body.value.parts);
  return text ? [make.message(word(Role, body.value.role), text)] : [];
}
