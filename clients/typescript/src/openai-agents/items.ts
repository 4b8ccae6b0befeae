// Items of the OpenAI Agents SDK as typed events, and events as its items.

import type { AgentInputItem } from "@openai/agents";
import { givenArguments, said } from "../adapters/responses.js";
import type { Unanswered } from "../adapters/unanswered.js";
import type { ContentPart, NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { audio, file, image, json, reasoning, refusal, text } from "../parts.js";
import type { Event } from "../types.js";
import { fromUtf8, jsonText, type Parsed, type RoleName } from "../words.js";

const ROLES: readonly RoleName[] = ["user", "assistant", "system", "developer"];

/** Calls that an agent runs, and what they ask for. */
const CALLS: Record<string, (item: Parsed) => unknown> = {
  function_call: (item) => item.arguments,
  computer_call: (item) => item.actions ?? item.action,
  shell_call: (item) => item.action,
  apply_patch_call: (item) => item.operation,
  tool_search_call: (item) => item.arguments,
  program: ({ code }) => ({ code }),
};

/** What came of them. */
const OUTPUTS: Record<string, string> = {
  function_call_result: "output",
  computer_call_result: "output",
  shell_call_output: "output",
  apply_patch_call_output: "output",
  tool_search_output: "tools",
  program_output: "output",
};

// ---- items as events ----

/** What an item says, as events; none for one that says nothing, or of an unknown shape. */
export function typed(item: Parsed): NewEvent[] {
  try {
    return events(item);
  } catch (error) {
    if (error instanceof TypeError) return [];
    throw error;
  }
}

function events(item: Parsed): NewEvent[] {
  const kind: string = item.type ?? "message";
  const { [kind]: asked } = CALLS;
  const output = OUTPUTS[kind];
  if (kind === "message" && ROLES.includes(item.role)) {
    const messageId = String(item.id ?? "");
    return [make.message(item.role, partsOf(item.content), { messageId })];
  }
  if (kind === "reasoning") return [thought(item)];
  if (kind === "hosted_tool_call") return hosted(item);
  if (asked) {
    const tool = item.name || kind.replace(/_call$/, "");
    const id = callId(item);
    const itemId = typeof item.id === "string" && item.id !== id ? item.id : undefined;
    return [make.toolCall(id, tool, givenArguments(asked(item)), { itemId })];
  }
  if (output === undefined) return [];
  const success = item.status !== "failed" && item.status !== "incomplete";
  return [make.toolResult(callId(item), partsOf(item[output]), { success })];
}

/** Empty: one is made, or the call is looked for that it may be for. */
const callId = (item: Parsed): string => String(item.callId || item.call_id || item.id || "");

function thought({ id, content = [], rawContent, providerData }: Parsed): NewEvent {
  const parts = content.length ? content : (rawContent ?? []);
  const signature = providerData?.encryptedContent ?? providerData?.encrypted_content ?? "";
  const said = parts.map((part: Parsed) => part.text).join("\n");
  return make.assistant(reasoning(said, { signature, provider: "openai", id: String(id ?? "") }));
}

/** A call that the provider ran itself. */
function hosted(item: Parsed): NewEvent[] {
  const id = callId(item);
  const error = item.providerData?.error ?? "";
  const success = !error && item.status !== "failed";
  return [
    make.toolCall(id, item.name, givenArguments(item.arguments ?? item.providerData?.action)),
    make.toolResult(id, partsOf(item.output ?? ""), {
      success,
      error: typeof error === "string" ? error : jsonText(error),
    }),
  ];
}

function partsOf(content: Parsed): ContentPart[] {
  if (content === undefined || content === null || content === "") return [];
  if (typeof content === "string") return [text(content)];
  return Array.isArray(content) ? content.map(partOf) : [partOf(content)];
}

function partOf(part: Parsed): ContentPart {
  switch (part?.type) {
    case "input_text":
    case "output_text":
    case "text":
    case "reasoning_text":
      if (typeof part.text !== "string") throw new TypeError("part.text is not a string");
      return text(part.text);
    case "refusal":
      return refusal(String(part.refusal));
    case "input_image":
    case "image":
      return imageOf(part.image, String(part.detail ?? "")) ?? json(part);
    case "computer_screenshot":
      return imageOf(part.data, "") ?? json(part);
    case "input_file":
      return fileOf(part) ?? json(part);
    case "audio":
      return audioOf(part) ?? json(part);
    default:
      return json(part);
  }
}

const DATA_URL = /^data:([^;,]*);base64,([A-Za-z0-9+/]*={0,2})$/;

const isUrl = (value: unknown): value is string =>
  typeof value === "string" && /^(https?|data):/.test(value);

function imageOf(source: Parsed, detail: string): ContentPart | undefined {
  if (!isUrl(source)) return undefined;
  const [, mediaType, data] = DATA_URL.exec(source) ?? [];
  if (data === undefined) return image(source, { detail });
  return image(Buffer.from(data, "base64"), { mediaType, detail });
}

function fileOf({ file: source, filename: name }: Parsed): ContentPart | undefined {
  const url = isUrl(source) ? source : source?.url;
  if (!isUrl(url)) return undefined;
  const [, mediaType, data] = DATA_URL.exec(url) ?? [];
  if (data === undefined) return file(url, { name });
  return file(Buffer.from(data, "base64"), { mediaType, name });
}

function audioOf({ audio: source, format }: Parsed): ContentPart | undefined {
  const isData = typeof source === "string" && /^[A-Za-z0-9+/]+={0,2}$/.test(source);
  const mediaType = format ? `audio/${format}` : "";
  return isData ? audio(Buffer.from(source, "base64"), { mediaType }) : undefined;
}

// ---- events as items ----

/** The tools of calls, by their ids: a result names its tool. */
export type Tools = ReadonlyMap<string, string>;

/** How requests in this shape say that a call failed: it has no other place for it. */
const FAILED = "Error: ";

/**
 * What another program said, as an item; undefined for what is none. `calls` has taken note of
 * the event.
 */
export function itemOf(event: Event, tools: Tools, calls: Unanswered): AgentInputItem | undefined {
  const { body } = event;
  switch (body?.$case) {
    case "messageAppended":
      return messageItem(event, body.value.parts, body.value.toolCallId, tools);
    case "toolCallRequested":
      return {
        type: "function_call",
        callId: event.callId,
        name: event.tool,
        arguments: fromUtf8(body.value.arguments),
        status: "completed",
      };
    case "toolResultRecorded":
      return resultItem(event.callId, said(body.value.parts) || body.value.errorMessage, tools);
    case "toolCallCancelled":
      return resultItem(event.callId, FAILED + calls.told(event.callId, true), tools);
    default:
      return undefined;
  }
}

const resultItem = (callId: string, output: string, tools: Tools): AgentInputItem => ({
  type: "function_call_result",
  name: tools.get(callId) ?? "",
  callId,
  status: "completed",
  output,
});

/** An item with the number of the model's answer that it is of; 0 for what others say. */
type Numbered = readonly [item: AgentInputItem, answer: number];

/**
 * The items, with a result in the place of each that a function call of others lacks. The SDK's
 * own are as it gave them: it knows what became of its calls.
 */
export function* answered(
  held: readonly { item: AgentInputItem; isOwn: boolean }[],
  calls: Unanswered,
): Generator<AgentInputItem> {
  const items = held.map(({ item }) => item);
  const missing = missingIn(items);
  for (const { item, isOwn } of held) if (isOwn) missing.delete(item);
  const all = [...numbered(items)];
  const last = Math.max(0, ...all.map(([, answer]) => answer));
  let waiting: [callId: string, name: string][] = [];
  let of = 0;
  const filled = () => {
    const made = waiting.map(([callId, name]) => {
      const output = FAILED + calls.told(callId, of !== last);
      return resultItem(callId, output, new Map([[callId, name]]));
    });
    waiting = [];
    return made;
  };
  for (const [item, answer] of all) {
    if (answer !== of && !isOutput(item)) yield* filled();
    if (answer) of = answer;
    yield item;
    if (item.type === "function_call" && missing.has(item)) waiting.push([item.callId, item.name]);
  }
  yield* filled();
}

/** Calls after which no result comes. An id may come again: a result is of the last one. */
function missingIn(items: readonly AgentInputItem[]): Set<AgentInputItem> {
  const missing = new Set<AgentInputItem>();
  const results = new Set<string>();
  for (const item of items.toReversed()) {
    if (item.type === "function_call_result") results.add(item.callId);
    if (item.type !== "function_call" || !item.callId) continue;
    if (!results.delete(item.callId)) missing.add(item);
  }
  return missing;
}

const isOutput = ({ type = "message" }: AgentInputItem): boolean => type in OUTPUTS;

/**
 * As in requests, an answer begins with what is said after calls, and with a call when those
 * before it have ended.
 */
function* numbered(items: readonly AgentInputItem[]): Generator<Numbered> {
  let answer = 0;
  let hasCalls = false;
  let isLeft = true;
  const open = new Set<string>();
  for (const item of items) {
    const { type = "message" } = item;
    const isCall = type in CALLS;
    const isSaid = type === "reasoning" || ("role" in item && item.role === "assistant");
    if (!isCall && !isSaid) {
      if (isOutput(item)) open.delete(callId(item));
      isLeft = true;
      yield [item, 0];
      continue;
    }
    if (isCall ? isLeft && !open.size : isLeft || hasCalls) {
      answer += 1;
      hasCalls = false;
      open.clear();
    }
    isLeft = false;
    if (isCall) {
      hasCalls = true;
      open.add(callId(item));
    }
    yield [item, answer];
  }
}

function messageItem(
  { role }: Event,
  parts: readonly ContentPart[],
  toolCallId: string,
  tools: Tools,
): AgentInputItem | undefined {
  if (role === "tool") return resultItem(toolCallId, said(parts), tools);
  // Another maker's reasoning is for its own models only.
  const spoken = parts.filter(({ part }) => part?.$case !== "reasoning");
  if (!spoken.length) return undefined;
  if (role === "user") {
    const isText = spoken.every(({ part }) => part?.$case !== "image");
    const content = isText ? said(spoken) : spoken.map(inputPart);
    return { type: "message", role, content };
  }
  if (role === "assistant") {
    const content = [{ type: "output_text" as const, text: said(spoken) }];
    return { type: "message", role, status: "completed", content };
  }
  return { type: "message", role: "system", content: said(spoken) };
}

function inputPart(content: ContentPart) {
  const { part } = content;
  if (part?.$case !== "image") return { type: "input_text" as const, text: said([content]) };
  const { source, mediaType, detail } = part.value;
  const data = source?.$case === "data" ? Buffer.from(source.value).toString("base64") : "";
  const url = source?.$case === "uri" ? source.value : `data:${mediaType};base64,${data}`;
  return { type: "input_image" as const, image: url, detail: detail || "auto" };
}
