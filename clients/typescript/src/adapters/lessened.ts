// Repeats a write that the store refused, with fewer events of the refused items. All other items
// keep their events.

import * as errors from "../errors/index.js";
import { type NewEvent, Role } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { textOf } from "../parts.js";
import { word } from "../words.js";
import { warnOnce } from "./warning.js";

/** Which events of an item are sent. */
enum Level {
  All = 0,
  /** Only messages with the item's text. */
  Text = 1,
  /** None: only the frame holds the item. */
  Nothing = 2,
}

/** Refusals before fewer events are sent: another writer may have ended a call. */
const STATE_REFUSALS_MAX = 3;

/** The events to send of the items of one write, by the name of each item. */
export class Lessened<K> {
  readonly #levels = new Map<K, Level>();
  #refusals = 0;
  #sent: readonly (readonly [K, number])[] = [];
  #first = 0;

  /** Returns the events to send of an item. */
  of(name: K, all: readonly NewEvent[]): readonly NewEvent[] {
    const level = this.#levels.get(name) ?? Level.All;
    if (level === Level.All) return all;
    return level === Level.Text ? all.flatMap(textOnly) : [];
  }

  /** Notes what is sent: the number of events of each item, and the index of the first event. */
  sends(items: readonly (readonly [name: K, count: number])[], first: number): void {
    this.#sent = items;
    this.#first = first;
  }

  /** Whether to repeat the failed write, with fewer events if needed. */
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

  /** Returns the item of the event that the server names. */
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

  /** Reduces the events of these items; returns false if they have none left. */
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

/** The item is too large, and so is its frame: fewer events do not help. */
const isTooLarge = (error: unknown): boolean =>
  error instanceof errors.TooLarge || error instanceof errors.MessageTooLarge;

/** Whether the store refused the write. */
export const isRefused = (error: unknown): boolean =>
  [errors.Refused, errors.Invalid, errors.NotFound].some((kind) => error instanceof kind);

/** Converts an event to a message with its text; returns none if it has no text. */
function textOnly({ body }: NewEvent): NewEvent[] {
  if (body?.$case === "toolResultRecorded") {
    const text = textOf(body.value.parts) || body.value.errorMessage;
    return text ? [make.message("tool", text)] : [];
  }
  if (body?.$case !== "messageAppended") return [];
  const text = textOf(body.value.parts);
  return text ? [make.message(word(Role, body.value.role), text)] : [];
}
