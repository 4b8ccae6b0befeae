// Stores a framework's items beside the typed events that hold their content.
//
// An item (a line of a transcript, an input item, a message) is stored as typed events, which
// searches and requests use, and as a frame: a custom event with all other fields, so that the
// framework gets back exactly what it gave. Text is stored once: the frame has a reference in the
// place of each longer string that an event holds.
//
// A frame comes before the events of its items, in the same batch. The Python client's adapters
// write and read the same frames.

import type { ContentPart, Media, NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Event } from "../types.js";
import { fromUtf8, jsonText, type Parsed } from "../words.js";

/** The key of a reference in a frame. */
const REFERENCE = "$treering";
/** The key of an item that is stored whole, in the place of a reference. */
const WHOLE = "whole";
/** Shorter strings are not worth a reference. */
const STRING_CHARS_MIN = 24;

/** The body of an event. */
export type Body = NewEvent["body"];

/** An item with the events that hold it. */
export interface Framed {
  item: Parsed;
  events: Event[];
}

/** A frame that was read. */
export interface Frame {
  /** The custom event of the frame. */
  event: Event;
  items: Framed[];
  /** Values that the adapter keeps beside the items. */
  beside: Record<string, Parsed>;
}

/** A frame as it is stored: for each item, the number of its events, and its packed form. */
interface Content {
  items: [count: number, packed: Parsed][];
  beside?: Record<string, Parsed>;
}

// ---- writing ----

/** Makes a frame and the events of its items, for one batch. */
export function frame(
  typeName: string,
  items: readonly (readonly [item: unknown, events: readonly NewEvent[]])[],
  beside?: Readonly<Record<string, unknown>>,
): NewEvent[] {
  const content: Content = {
    items: items.map(([item, events]) => [
      events.length,
      pack(
        item,
        events.map(({ body }) => body),
      ),
    ]),
  };
  if (beside) content.beside = { ...beside };
  return [make.custom(typeName, content), ...items.flatMap(([, events]) => events)];
}

/** Replaces what the events hold by references; keeps the item whole if that is not reversible. */
function pack(item: unknown, bodies: readonly Body[]): unknown {
  const held = heldBy(bodies);
  const strings = new Map<string, string>();
  const objects = new Map<string, string>();
  for (const [place, value] of held) {
    const [known, text] =
      typeof value === "string" ? [strings, value] : [objects, jsonText(value ?? null)];
    if (value !== undefined && !known.has(text)) known.set(text, place);
  }
  const packed = without(item, strings, objects);
  return isSame(filledFrom(packed, held), item) ? packed : { [REFERENCE]: { [WHOLE]: item } };
}

/** Whether two values are equal as JSON, including the order of keys. */
function isSame(one: unknown, other: unknown): boolean {
  if (Object.is(one, other)) return true;
  if (Array.isArray(one)) {
    const isList = Array.isArray(other) && one.length === other.length;
    return isList && one.every((each, index) => isSame(each, other[index]));
  }
  if (!isObject(one) || !isObject(other)) return false;
  const keys = Object.keys(one);
  const others = Object.keys(other);
  return (
    keys.length === others.length &&
    keys.every((key, index) => key === others[index] && isSame(one[key], other[key]))
  );
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function without(
  value: unknown,
  strings: ReadonlyMap<string, string>,
  objects: ReadonlyMap<string, string>,
): unknown {
  if (typeof value === "string") {
    const place = value.length >= STRING_CHARS_MIN ? strings.get(value) : undefined;
    return place === undefined ? value : { [REFERENCE]: place };
  }
  if (Array.isArray(value)) return value.map((each) => without(each, strings, objects));
  if (!isObject(value)) return value;
  const place = objects.size && Object.keys(value).length && objects.get(JSON.stringify(value));
  if (place) return { [REFERENCE]: place };
  return mapped(value, (each) => without(each, strings, objects));
}

/** Returns an object with changed values; a key may be `__proto__`. */
function mapped(value: Record<string, unknown>, change: (each: unknown) => unknown) {
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, change(each)]));
}

// ---- reading ----

/** `NaN` and `Infinity` outside of strings, which Python writes into JSON. */
const NOT_JSON = /("(?:[^"\\]|\\.)*")|-?\bInfinity\b|\bNaN\b/g;

/** Replaces `NaN` and `Infinity`, which Python writes into JSON, by `null`. */
export const strictJson = (text: string): string =>
  text.replace(NOT_JSON, (_, string?: string) => string ?? "null");

/** Parses the JSON content of a custom event, also as Python writes it. */
export function jsonOf(data: Uint8Array): Parsed {
  const text = fromUtf8(data);
  try {
    return JSON.parse(text);
  } catch {
    return JSON.parse(strictJson(text));
  }
}

const contentOf = (event: Event): Content => {
  const { body } = event;
  return body?.$case === "custom" ? jsonOf(body.value.data) : { items: [] };
};

/** Returns the values that the adapter keeps beside the items of a frame. */
export const beside = (event: Event): Record<string, Parsed> => contentOf(event).beside ?? {};

/** Whether an event is a frame of this type. */
export const isFrame = (event: Event, typeName: string): boolean =>
  event.body?.$case === "custom" && event.body.value.typeName === typeName;

/**
 * Yields, in order, frames of this type, and events that belong to no frame.
 *
 * A frame that a fork has cut has its complete items only.
 */
export async function* read(
  typeName: string,
  events: AsyncIterable<Event> | Iterable<Event>,
): AsyncGenerator<Frame | Event, void, undefined> {
  let waiting: Waiting | undefined;
  for await (const event of events) {
    if (waiting && !waiting.isNext(event)) {
      yield* waiting.cut();
      waiting = undefined;
    }
    if (waiting) waiting.held.push(event);
    else if (isFrame(event, typeName)) waiting = new Waiting(event);
    else yield event;
    if (waiting?.isWhole) {
      yield waiting.frame();
      waiting = undefined;
    }
  }
  if (waiting) yield* waiting.cut();
}

/** A frame of which more events may follow. */
class Waiting {
  readonly held: Event[] = [];
  readonly #content: Content;
  readonly #count: number;

  constructor(readonly event: Event) {
    this.#content = contentOf(event);
    this.#count = this.#content.items.reduce((sum, [count]) => sum + count, 0);
  }

  /** Revisions of a batch have no gaps; the event after a cut has a later revision. */
  isNext(event: Event): boolean {
    return event.revision === this.event.revision + this.held.length + 1;
  }

  get isWhole(): boolean {
    return this.held.length === this.#count;
  }

  /** Returns the frame with its complete items. */
  frame(): Frame {
    const items: Framed[] = [];
    let start = 0;
    for (const [count, packed] of this.#content.items) {
      const events = this.held.slice(start, start + count);
      start += count;
      if (events.length < count) break;
      items.push({
        item: filled(
          packed,
          events.map(({ body }) => body),
        ),
        events,
      });
    }
    return { event: this.event, items, beside: this.#content.beside ?? {} };
  }

  /** Yields the complete items of a cut frame, then the events of the incomplete item. */
  *cut(): Generator<Frame | Event> {
    const frame = this.frame();
    // Drop trailing items without events: they may have come after the cut.
    while (frame.items.length && !frame.items.at(-1)?.events.length) frame.items.pop();
    if (frame.items.length) yield frame;
    yield* this.held.slice(frame.items.reduce((sum, { events }) => sum + events.length, 0));
  }
}

/** Restores an item of a frame from its events. */
export const filled = (packed: Parsed, bodies: readonly Body[]): Parsed =>
  filledFrom(packed, heldBy(bodies));

function filledFrom(packed: Parsed, held: ReadonlyMap<string, unknown>): Parsed {
  const only = onlyReference(packed);
  if (isObject(only) && Object.keys(only).length === 1 && WHOLE in only) return only[WHOLE];
  return held.size ? withHeld(packed, held) : packed;
}

function withHeld(packed: Parsed, held: ReadonlyMap<string, unknown>): Parsed {
  if (Array.isArray(packed)) return packed.map((each) => withHeld(each, held));
  if (!isObject(packed)) return packed;
  const place = onlyReference(packed);
  if (typeof place === "string" && held.get(place) !== undefined) return held.get(place);
  return mapped(packed, (each) => withHeld(each, held));
}

/** Returns the content of a reference; undefined if the value is not a reference. */
function onlyReference(value: unknown): unknown {
  return isObject(value) && Object.keys(value).length === 1 ? value[REFERENCE] : undefined;
}

// ---- what events hold ----

/** Returns every value that a frame can refer to, by its place, such as `1.p0.text`. */
function heldBy(bodies: readonly Body[]): Map<string, unknown> {
  const held = bodies.flatMap((body, index) => [...heldByOne(body, index)]);
  return new Map(held.filter(([, value]) => typeof value !== "string" || isWellFormed(value)));
}

function* heldByOne(body: Body, index: number): Generator<[string, unknown]> {
  switch (body?.$case) {
    case "messageAppended":
    case "toolResultRecorded":
      for (const [number, part] of body.value.parts.entries()) {
        yield* heldByPart(part, `${index}.p${number}`);
      }
      if (body.$case === "toolResultRecorded" && body.value.errorMessage) {
        yield [`${index}.error`, body.value.errorMessage];
      }
      return;
    case "toolCallRequested": {
      const given = fromUtf8(body.value.arguments);
      yield [`${index}.arguments`, given];
      yield [`${index}.input`, jsonOrNothing(given)];
      return;
    }
    case "compacted":
      yield [`${index}.summary`, body.value.summary];
      return;
    case "systemPromptSet":
      yield [`${index}.content`, body.value.content];
  }
}

function* heldByPart({ part }: ContentPart, place: string): Generator<[string, unknown]> {
  switch (part?.$case) {
    case "text":
    case "refusal":
      yield [`${place}.text`, part.value];
      return;
    case "json":
      yield [`${place}.text`, part.value];
      yield [`${place}.json`, jsonOrNothing(part.value)];
      return;
    case "reasoning":
      yield [`${place}.text`, part.value.text];
      yield [`${place}.signature`, fromUtf8(part.value.signature)];
      return;
    case "image":
    case "file":
    case "audio":
      yield* heldByMedia(part.value, place);
  }
}

function* heldByMedia({ mediaType, source }: Media, place: string): Generator<[string, unknown]> {
  if (source?.$case === "uri") yield [`${place}.url`, source.value];
  if (source?.$case !== "data") return;
  const text = Buffer.from(source.value).toString("base64");
  yield [`${place}.base64`, text];
  if (/[+/]/.test(text)) {
    yield [`${place}.base64url`, text.replaceAll("+", "-").replaceAll("/", "_")];
  }
  yield [`${place}.url`, `data:${mediaType};base64,${text}`];
}

function jsonOrNothing(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Whether a text has no halves of surrogate pairs; the store does not keep these. */
const isWellFormed = (text: string): boolean => !/\p{Surrogate}/u.test(text);
