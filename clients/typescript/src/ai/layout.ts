// How a message of the UI is stored. Its texts, media, tool calls and results are ordinary events.
// A layout keeps the order of its parts and all other fields.

import type { UIMessage } from "ai";
import type { ContentPart } from "../gen/treering/v1/event.js";
import { audio, file, image, reasoning, text } from "../parts.js";
import { fromUtf8 } from "../words.js";

/** The type of the events that hold layouts. */
export const LAYOUT = "ai.ui-message";

/** A part of a message, of any version of `ai`. */
export type UIPart = { type: string } & Record<string, unknown>;

/** A message as JSON values. */
export interface PlainMessage {
  id: string;
  role: UIMessage["role"];
  metadata?: unknown;
  parts: UIPart[];
}

/** Where a part of a message is stored. */
export type Slot =
  /** The whole part is in the layout. */
  | { inline: UIPart }
  /** Its text or medium is content part `content` of the message; `rest` has the other fields. */
  | { content: number; rest: UIPart }
  /** Its input and output are those of a tool call; `rest` has the other fields. */
  | { call: string; rest: UIPart; input: boolean; output?: OutputForm };

/** How an output is stored: as text, as JSON, or not at all. */
export type OutputForm = "text" | "json" | "none";

/** The layout of a message; appended with each change of the message. */
export interface Layout {
  /** Index of the message in the chat, from 0. */
  at: number;
  id: string;
  role: UIMessage["role"];
  metadata?: unknown;
  /** Number of leading slots that are the same as in the previous layout. */
  keep: number;
  slots: Slot[];
  /** Number of message and call events, before this event, that belong to it. */
  events: number;
}

/** The outcome of a call. */
export type Outcome =
  | { kind: "result"; success: boolean; error: string; text: string; structured: unknown }
  | { kind: "cancelled"; isDenied: boolean };

/** A call of a message, as read from the events. */
export interface StoredCall {
  callId: string;
  tool: string;
  input: unknown;
  needsApproval: boolean;
  decision?: { approved: boolean; reason: string };
  outcome?: Outcome;
  /** Text in place of a missing result: while the call may still end, and after that. */
  told: { open: string; frozen: string };
}

/** Where an event is. A chat that was forked into a new conversation inherits events. */
export interface Place {
  conversationId: string;
  revision: number;
}

/** A message, as read from the events. */
export interface StoredMessage {
  id: string;
  role: UIMessage["role"];
  metadata?: unknown;
  slots: Slot[];
  content: ContentPart[];
  calls: Map<string, StoredCall>;
  /** The last event that belongs to it. */
  end: Place;
}

/** The tool that a part calls; undefined for parts of other kinds. */
export function toolOf(part: UIPart): string | undefined {
  if (part.type === "dynamic-tool") return String(part.toolName);
  return part.type.startsWith("tool-") ? part.type.slice("tool-".length) : undefined;
}

/** Returns a part as content of a message; undefined if the layout must hold it. */
export function contentOf(part: UIPart): { content: ContentPart; rest: UIPart } | undefined {
  if (part.state === "streaming") return undefined;
  if (part.type === "file") return mediaOf(part);
  const { text: said, ...others } = part;
  const rest: UIPart = { ...others, type: part.type };
  if (typeof said !== "string" || said === "") return undefined;
  if (part.type === "text") return { content: text(said), rest };
  if (part.type === "reasoning") return { content: reasoning(said, signatureOf(part)), rest };
  return undefined;
}

const DATA_URL = /^data:([^;,]*);base64,(.*)$/s;

function mediaOf(part: UIPart): { content: ContentPart; rest: UIPart } | undefined {
  const { url, mediaType, filename, ...others } = part;
  if (typeof url !== "string" || typeof mediaType !== "string" || url === "") return undefined;
  if (filename !== undefined && typeof filename !== "string") return undefined;
  const [, type, data = ""] = DATA_URL.exec(url) ?? [];
  const source = type === undefined ? url : Buffer.from(data, "base64");
  const make = mediaType.startsWith("image") ? image : mediaType.startsWith("audio") ? audio : file;
  const content = make(source, { mediaType, name: filename });
  const rest: UIPart = { ...others, type: part.type, ...(filename === "" ? { filename } : {}) };
  // Keep the part in the layout if its URL would not be restored exactly.
  return saidBy(content).url === url ? { content, rest } : undefined;
}

/** The reasoning signature that the provider requires in later requests. */
function signatureOf(part: UIPart): Parameters<typeof reasoning>[1] {
  const metadata = (part.providerMetadata ?? {}) as Record<string, Record<string, unknown>>;
  const asText = (value: unknown) => (typeof value === "string" ? value : undefined);
  const { anthropic, openai, google } = metadata;
  if (anthropic) {
    const redacted = asText(anthropic.redactedData);
    const signature = redacted ?? asText(anthropic.signature);
    return { provider: "anthropic", signature, redacted: redacted !== undefined };
  }
  if (openai) {
    const signature = asText(openai.reasoningEncryptedContent);
    return { provider: "openai", signature, id: asText(openai.itemId) };
  }
  return google ? { provider: "google", signature: asText(google.thoughtSignature) } : {};
}

/** The fields of a UI part that a content part holds. */
export function saidBy({ part }: ContentPart): Record<string, string> {
  if (part?.$case === "text") return { text: part.value };
  if (part?.$case === "reasoning") return { text: part.value.text };
  if (part?.$case === "refusal" || part?.$case === "json") return { text: part.value };
  if (!part) return {};
  const { source, mediaType, name } = part.value;
  const url =
    source?.$case === "data"
      ? `data:${mediaType};base64,${Buffer.from(source.value).toString("base64")}`
      : (source?.value ?? "");
  return { mediaType, ...(name ? { filename: name } : {}), url };
}

/**
 * Returns all messages, as the UI and models get them. Providers refuse calls without a result, so
 * such a call is returned as failed, except in the last message, where it may still end.
 */
export function renderedAll(messages: readonly StoredMessage[]): PlainMessage[] {
  const last = messages.findLastIndex(({ role }) => role === "assistant");
  return messages.map((message, index) => {
    const plain = rendered(message);
    if (index === messages.length - 1) return plain;
    const parts = message.slots.map((slot, at) => {
      const part = plain.parts[at] as UIPart;
      const call = "call" in slot ? message.calls.get(slot.call) : undefined;
      if (!call || !isLeft(part, call)) return part;
      const { approval: _, ...rest } = part;
      const { open, frozen } = call.told;
      return { ...rest, state: "output-error", errorText: index < last ? frozen : open };
    });
    return { ...plain, parts };
  });
}

/** Whether a call has neither an outcome nor a denial. */
const isLeft = (part: UIPart, { outcome, decision }: StoredCall): boolean =>
  !outcome && decision?.approved !== false && !String(part.state).startsWith("output-");

/** Whether a part has only the text in place of a missing result. */
export const isFilled = (part: UIPart, { outcome, told }: StoredCall): boolean =>
  !outcome &&
  part.state === "output-error" &&
  (part.errorText === told.open || part.errorText === told.frozen);

/** Returns a message for the UI: its layout, filled from the events. */
export function rendered(message: StoredMessage): PlainMessage {
  const parts = message.slots.map((slot) => {
    if ("inline" in slot) return slot.inline;
    if ("call" in slot) return renderedCall(slot, message.calls.get(slot.call));
    const content = message.content[slot.content];
    return content ? { ...slot.rest, ...saidBy(content) } : slot.rest;
  });
  const { id, role, metadata } = message;
  return { id, role, ...(metadata === undefined ? {} : { metadata }), parts };
}

function renderedCall(slot: Extract<Slot, { call: string }>, call?: StoredCall): UIPart {
  if (!call) return slot.rest;
  const part: UIPart = { ...slot.rest };
  if (slot.input) part.input = call.input;
  const { decision, outcome } = call;
  const approval = part.approval as Record<string, unknown> | undefined;
  if (approval && decision && approval.approved !== decision.approved) {
    const { approved, reason } = decision;
    part.approval = { ...approval, approved, ...(reason ? { reason } : {}) };
    part.state = "approval-responded";
  }
  return outcome ? { ...part, ...outcomeOf(outcome, slot, call.told.frozen) } : part;
}

function outcomeOf(
  outcome: Outcome,
  slot: Extract<Slot, { call: string }>,
  told: string,
): Record<string, unknown> {
  if (outcome.kind === "cancelled") {
    const isDenied = outcome.isDenied && slot.rest.approval !== undefined;
    if (isDenied) return { state: "output-denied" };
    return { state: "output-error", errorText: told };
  }
  if (!outcome.success) {
    return { state: "output-error", errorText: outcome.error || outcome.text };
  }
  return { state: "output-available", ...outputOf(outcome, slot.output) };
}

function outputOf(
  { text, structured }: Extract<Outcome, { kind: "result" }>,
  form: OutputForm | undefined,
): { output?: unknown } {
  if (form === "none") return {};
  if (form === "json") return { output: JSON.parse(text) };
  // Another program recorded the result.
  return { output: form === undefined && structured !== undefined ? structured : text };
}

/** Returns parsed JSON, or the text if it is not JSON. */
export function parsed(data: Uint8Array): unknown {
  const said = fromUtf8(data);
  try {
    return JSON.parse(said);
  } catch {
    return said;
  }
}
