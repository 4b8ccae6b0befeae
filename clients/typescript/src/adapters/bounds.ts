// Adapts values that frameworks allow and the store does not: missing or long ids and names of
// calls, and halves of surrogate pairs. The events have an accepted value; the frame beside them
// has the framework's own value.

import { createHash } from "node:crypto";
import type { NewEvent } from "../gen/treering/v1/event.js";
import { unique } from "../keys.js";
import { utf8 } from "../words.js";
import { warnOnce } from "./warning.js";

/** Maximum length of an id or a name in the store. */
const SHORT_BYTES_MAX = 512;
const DIGITS = 24;
/** An id that this module or `conv.toolCall` made. */
const MADE = /^call_[0-9a-f]{24}$/;
const UNNAMED = "unnamed";

/** Makes the id of a call that has none; the same text gives the same id. */
const madeId = (of: string): string =>
  `call_${createHash("blake2b512").update(utf8(of)).digest("hex").slice(0, DIGITS)}`;

const isLong = (text: string): boolean => utf8(text).length > SHORT_BYTES_MAX;

/**
 * Returns the id under which a call is stored. A long id is replaced by a hash of that id alone, so
 * that a later result of the call gets the same id.
 */
export function callIdFor(id: unknown, of: string): string {
  const given = asText(id);
  if (given && !isLong(given)) return given;
  warnOnce("a tool call whose id is empty or has more than 512 bytes is stored under another id");
  return madeId(given || of);
}

/** Returns the name under which a call's tool is stored. */
export function toolFor(name: unknown): string {
  const given = asText(name);
  if (given && !isLong(given)) return given;
  warnOnce("a tool whose name is empty or has more than 512 bytes is stored under another name");
  return given ? cut(given) : UNNAMED;
}

/** Returns the open call to which a result without an id belongs. */
export function unnamedCall(open: ReadonlySet<string>): string | undefined {
  const ids = [...open];
  return ids.find((id) => MADE.test(id)) ?? (ids.length === 1 ? ids[0] : undefined);
}

/**
 * Returns the event as the store accepts it. Missing ids of calls are derived from `of`; if it is
 * empty, they are random.
 */
export function bounded(event: NewEvent, of: string, index: number): NewEvent {
  const body = wellFormed(event.body);
  const same = body === event.body ? event : { ...event, body };
  switch (body?.$case) {
    case "messageAppended": {
      const { author, messageId, finishReason } = body.value;
      const ids = {
        author: cut(author),
        messageId: cut(messageId),
        finishReason: cut(finishReason),
      };
      return { ...same, body: { ...body, value: { ...body.value, ...ids } } };
    }
    case "toolCallRequested": {
      const { callId, tool, itemId } = body.value;
      const names = {
        callId: callIdFor(callId, `${of || unique(DIGITS)}/${index}`),
        tool: toolFor(tool),
        itemId: cut(itemId),
      };
      return { ...same, body: { ...body, value: { ...body.value, ...names } } };
    }
    case "toolResultRecorded": {
      const { callId } = body.value;
      if (!callId || !isLong(callId)) return same;
      return {
        ...same,
        body: { ...body, value: { ...body.value, callId: callIdFor(callId, "") } },
      };
    }
    default:
      return same;
  }
}

const asText = (value: unknown): string =>
  typeof value === "string" ? value.toWellFormed() : String(value ?? "");

/** Cuts a text to the length that the store accepts, at a character boundary. */
function cut(text: unknown): string {
  const given = asText(text);
  const encoded = utf8(given);
  if (encoded.length <= SHORT_BYTES_MAX) return given;
  return new TextDecoder().decode(encoded.subarray(0, SHORT_BYTES_MAX), { stream: true });
}

/** Returns the value with U+FFFD for halves of surrogate pairs; the same object if it has none. */
export function wellFormed<T>(value: T): T {
  if (typeof value === "string") {
    if (value.isWellFormed()) return value;
    warnOnce("a text with half of a surrogate pair is stored with U+FFFD in its place");
    return value.toWellFormed() as T;
  }
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return value;
  if (value instanceof Date) return value;
  const before = Object.entries(value);
  const after = before.map(([key, each]) => [key, wellFormed(each)] as const);
  if (after.every(([, each], at) => each === before[at]?.[1])) return value;
  return (Array.isArray(value) ? after.map(([, each]) => each) : Object.fromEntries(after)) as T;
}
