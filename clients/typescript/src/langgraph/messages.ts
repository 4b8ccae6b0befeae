// Converts LangChain's messages to typed events, and back.

import * as lc from "@langchain/core/messages";
import { givenArguments } from "../adapters/responses.js";
import { warnOnce } from "../adapters/warning.js";
import type { ContentPart, NewEvent, Usage } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { image, json, reasoning, text } from "../parts.js";
import { jsonText, type Parsed, type RoleName } from "../words.js";

type Fields = Record<string, Parsed>;
type MessageClass = new (fields: never) => lc.BaseMessage;

/** Classes of messages that typed events and frames restore; of others the bytes are stored. */
const CLASSES = new Map<string, MessageClass>(
  Object.entries({
    AIMessage: lc.AIMessage,
    AIMessageChunk: lc.AIMessageChunk,
    ChatMessage: lc.ChatMessage,
    FunctionMessage: lc.FunctionMessage,
    HumanMessage: lc.HumanMessage,
    HumanMessageChunk: lc.HumanMessageChunk,
    SystemMessage: lc.SystemMessage,
    ToolMessage: lc.ToolMessage,
  } as Record<string, MessageClass>),
);

const ROLES: Record<string, RoleName> = {
  human: "user",
  user: "user",
  ai: "assistant",
  assistant: "assistant",
  system: "system",
  developer: "developer",
};
const IMAGES = ["image", "image_url", "input_image"];

/** Fields that every message has; they are left out if they are empty. */
const USUAL = ["additional_kwargs", "response_metadata", "tool_calls", "invalid_tool_calls"];

// ---- as JSON, and back ----

/** Whether a value is a message of LangChain. */
export const isMessage = (value: unknown): value is lc.BaseMessage =>
  lc.isBaseMessage(value as never);

const nameOf = (message: lc.BaseMessage): string => message.lc_id.at(-1) ?? "";

/** Returns a message as JSON, with the names that Python uses; undefined if JSON cannot hold it. */
export function plain(message: lc.BaseMessage): Fields | undefined {
  const name = nameOf(message);
  if (CLASSES.get(name) !== message.constructor) return undefined;
  const serialized = message.toJSON();
  if (!("kwargs" in serialized)) return undefined;
  const fields = Object.entries(serialized.kwargs as Fields).filter(
    ([key, value]) => !(USUAL.includes(key) && isEmpty(value)),
  );
  try {
    return JSON.parse(jsonText({ class: name, ...Object.fromEntries(fields) }));
  } catch {
    return undefined;
  }
}

const isEmpty = (value: unknown): boolean =>
  typeof value === "object" && value !== null && Object.keys(value).length === 0;

/** Makes a message from its fields; returns undefined for an unknown class. */
export function messageOf({ class: name, type: _, ...fields }: Fields): lc.BaseMessage | undefined {
  const kind = CLASSES.get(name);
  // Python writes `null` where JavaScript leaves out the field.
  const given = Object.entries(fields).filter(([, value]) => value !== null);
  return kind && new kind(Object.fromEntries(given) as never);
}

/**
 * Returns a serialised message with sorted fields and without undefined ones: a message and its
 * restored copy have the same text.
 */
export function canonical(serialized: Parsed): string {
  const { kwargs, ...rest } = serialized;
  const fields = Object.entries((kwargs ?? {}) as Fields)
    .filter(
      ([key, value]) => value?.type !== "undefined" && !(USUAL.includes(key) && isEmpty(value)),
    )
    .sort(([a], [b]) => (a < b ? -1 : 1));
  return jsonText([rest, fields]);
}

// ---- as events ----

/** Converts a message to events; if its content has an unknown shape, only its text. */
export function typed(message: lc.BaseMessage): NewEvent[] {
  try {
    return [...events(message)];
  } catch {
    // The content does not have its declared type.
    warnOnce("a message with content of an unknown shape is stored only partly or not at all");
    const { text } = message;
    return typeof text === "string" && text ? [make.message(roleOf(message), text)] : [];
  }
}

function* events(message: lc.BaseMessage): Generator<NewEvent> {
  const parts = [...partsOf(message.content)];
  const { name, id } = message;
  const told: Parsed = message.response_metadata ?? {};
  if (message.type === "tool") {
    const { tool_call_id: callId, status } = message as lc.ToolMessage;
    yield make.toolResult(callId, parts, { success: status !== "error" });
    return;
  }
  const calls = [...callsOf(message)];
  if (parts.length || !calls.length) {
    yield make.message(roleOf(message), parts, {
      author: name ?? "",
      messageId: String(id ?? ""),
      finishReason: String(told.finish_reason || told.stop_reason || ""),
      usage: usageOf(message, String(told.model_name || told.model || "")),
    });
  }
  yield* calls;
}

function roleOf(message: lc.BaseMessage): RoleName {
  const own = message.type === "generic" ? (message as lc.ChatMessage).role : message.type;
  return ROLES[own] ?? "user";
}

function* callsOf(message: lc.BaseMessage): Generator<NewEvent> {
  if (message.type !== "ai") return;
  const { tool_calls: calls, invalid_tool_calls: wrong } = message as lc.AIMessage;
  for (const { id, name, args } of [...(calls ?? []), ...(wrong ?? [])]) {
    yield make.toolCall(id ?? "", name ?? "", givenArguments(args));
  }
}

function usageOf(message: lc.BaseMessage, model: string): Usage | undefined {
  const used = message.type === "ai" ? (message as lc.AIMessage).usage_metadata : undefined;
  if (!used) return undefined;
  return make.usage({
    inputWithCached: used.input_tokens,
    output: used.output_tokens,
    cacheRead: used.input_token_details?.cache_read,
    cacheCreation: used.input_token_details?.cache_creation,
    reasoning: used.output_token_details?.reasoning,
    model,
  });
}

function* partsOf(content: unknown): Generator<ContentPart> {
  if (typeof content === "string") {
    if (content) yield text(content);
    return;
  }
  for (const block of content as Parsed[]) {
    const part = typeof block === "string" ? text(block) : partOf(block);
    if (part) yield part;
  }
}

function partOf(block: Parsed): ContentPart | undefined {
  switch (block.type) {
    case "tool_use":
    case "tool_call":
    case "function_call":
    case "input_json_delta":
      // It is one of the message's calls.
      return undefined;
    case "text":
    case "output_text":
    case "input_text":
      return text(String(block.text));
    case "thinking":
    case "reasoning": {
      const { signature } = block;
      return reasoning(block.thinking || block.reasoning || "", {
        signature,
        provider: "anthropic",
      });
    }
    default:
      return (IMAGES.includes(block.type) && imageOf(block)) || json(block);
  }
}

const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

function imageOf(block: Parsed): ContentPart | undefined {
  const held = block.image_url || block.url;
  const url = typeof held === "object" ? held?.url : held;
  const source = block.source || block;
  let mediaType: string = source.media_type || block.mime_type || "";
  let data: unknown = source.data || source.base64;
  if (typeof url === "string") {
    const [, type, base64] = /^data:(.*?);base64,(.*)$/s.exec(url) ?? [];
    if (base64 === undefined) return image(url);
    mediaType = type ?? "";
    data = base64;
  }
  if (data instanceof Uint8Array) return image(data, { mediaType });
  if (typeof data !== "string" || !BASE64.test(data)) return undefined;
  return image(Buffer.from(data, "base64"), { mediaType });
}
