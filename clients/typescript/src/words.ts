// Converts enum values to words ("user" for `Role.USER`) and back; reads and writes JSON.

import { Invalid } from "./errors/index.js";
import { Provider } from "./gen/treering/v1/context.js";
import type {
  CancelReason,
  CompactionTrigger,
  Decision,
  EventKind,
  Role,
} from "./gen/treering/v1/event.js";
import type { QueryMode, SearchBy } from "./gen/treering/v1/search.js";
import type { CallStatus } from "./gen/treering/v1/tool.js";

/** The words of an enumeration of the API: `ROLE_USER` is "user". */
type Words<E> = Lowercase<Exclude<keyof E & string, "UNSPECIFIED">>;

/** "openai-chat" for "openai_chat". */
type Dashed<W extends string> = W extends `${infer Head}_${infer Tail}`
  ? `${Head}-${Dashed<Tail>}`
  : W;

export type RoleName = Words<typeof Role>;
export type DecisionName = Words<typeof Decision>;
export type CancelReasonName = Words<typeof CancelReason>;
export type CompactionTriggerName = Words<typeof CompactionTrigger>;
export type CallStatusName = Words<typeof CallStatus> | "unspecified";
/** The kind of an event: "message_appended", "tool_result_recorded" and so on. */
export type KindName = Words<typeof EventKind>;
/** The format of a request; `openai_chat` is the same as "openai-chat". */
export type ProviderName = Dashed<Words<typeof Provider>> | Words<typeof Provider>;
/** How the text of a search is read; empty detects it. */
export type QueryModeName = "" | Words<typeof QueryMode>;
/** Whether a search compares words, meanings, or both. */
export type SearchByName = Words<typeof SearchBy>;

/** A value that was parsed from JSON, of unknown type. */
// biome-ignore lint/suspicious/noExplicitAny: JSON.parse says no more.
export type Parsed = any;

type Enumeration = Record<string, string | number>;

/** The number of a word: `number(Role, "user")`. */
export function number<T extends number>(enumeration: Enumeration, word: string): T {
  const found = enumeration[word.toUpperCase().replaceAll("-", "_")];
  if (typeof found !== "number") {
    throw new TypeError(
      `\`${word}\` is not allowed here: use one of ${words(enumeration).join(", ")}`,
    );
  }
  return found as T;
}

/** Normalises the name of a provider: "openai-chat", also for `openai_chat`. */
export function providerName(given: string): ProviderName {
  const name = given.trim().toLowerCase().replaceAll("_", "-");
  const known = words(Provider).map((word) => word.replaceAll("_", "-"));
  if (!known.includes(name))
    throw new TypeError(`\`${given}\` is not allowed here: use one of ${known.join(", ")}`);
  return name as ProviderName;
}

/** The numbers of words, or of one word. */
export function numbers<T extends number>(
  enumeration: Enumeration,
  names: string | readonly string[],
): T[] {
  const several = typeof names === "string" ? [names] : names;
  return several.map((name) => number<T>(enumeration, name));
}

/** All words of an enumeration. */
export function words(enumeration: Enumeration): string[] {
  return Object.entries(enumeration)
    .filter(([, value]) => typeof value === "number" && value > 0)
    .map(([name]) => name.toLowerCase());
}

/** The word of a number; digits for a number that this client does not know. */
export function word<T extends string>(enumeration: Enumeration, value: number): T {
  const found = enumeration[value];
  return (typeof found === "string" ? found.toLowerCase() : String(value)) as T;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** Text as UTF-8. */
export const utf8 = (text: string): Uint8Array => encoder.encode(text);

/** What to do about half of a surrogate pair. */
export const REPLACE_IT = "replace it, for example with .toWellFormed()";

/** Rejects half of a surrogate pair, which would be stored as another character. */
export function unicode(text: string): string {
  if (text.isWellFormed()) return text;
  const place = text.search(/\p{Surrogate}/u);
  throw new Invalid(`the text has half of a surrogate pair at index ${place}: ${REPLACE_IT}`);
}

/** UTF-8 as text; invalid bytes become U+FFFD. */
export const fromUtf8 = (bytes: Uint8Array): string => decoder.decode(bytes);

/** A value as JSON text. `name` is for the error if JSON cannot represent the value. */
export function jsonText(value: unknown, name = ""): string {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`${typeof value} cannot be represented in JSON`);
  // Numbers that JSON lacks become null.
  if (text.includes("null")) mustBeJson(value, name);
  return text;
}

function mustBeJson(value: unknown, path: string): void {
  if (typeof value === "number" && !Number.isFinite(value)) {
    const where = path ? `\`${path}\`` : "the value";
    throw new TypeError(`${where} is ${value}, which JSON cannot represent: use null or a string`);
  }
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return;
  // `toJSON` has already converted the value.
  if (typeof (value as { toJSON?: unknown }).toJSON === "function") return;
  for (const [key, each] of Object.entries(value)) {
    mustBeJson(each, path ? `${path}.${key}` : key);
  }
}

/** A value as JSON text; numbers that JSON lacks become strings. */
export const laxJsonText = (value: unknown): string =>
  JSON.stringify(value, (_key, each: unknown) => {
    const isLacking = typeof each === "number" && !Number.isFinite(each);
    return isLacking || typeof each === "bigint" ? String(each) : each;
  });

/** A value as JSON. */
export const jsonBytes = (value: unknown, name = ""): Uint8Array => utf8(jsonText(value, name));

/** A value as JSON; bytes and strings are taken to be JSON already. */
export function asJsonBytes(value: unknown): Uint8Array {
  if (value instanceof Uint8Array) return value;
  return typeof value === "string" ? utf8(unicode(value)) : jsonBytes(value);
}

/** Parses JSON; undefined for empty input. */
export function fromJson(data: Uint8Array | string): Parsed {
  if (data.length === 0) return undefined;
  return JSON.parse(typeof data === "string" ? data : fromUtf8(data));
}

/** Parses the arguments of a call; returns the text if it is not JSON. */
export function fromArguments(data: Uint8Array): Parsed {
  const text = fromUtf8(data);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Each value of an object as JSON text. */
export function jsonTexts(
  values: Readonly<Record<string, unknown>> | undefined,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(values ?? {}).map(([key, value]) => [key, jsonText(value, key)]),
  );
}
