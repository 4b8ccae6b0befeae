// Converts items of the OpenAI Agents SDK to typed events, and events to items.

import type { AgentInputItem } from "@openai/agents";
import { givenArguments, said } from "../adapters/responses.js";
import type { Unanswered } from "../adapters/unanswered.js";
import type { ContentPart, NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { audio, file, image, json, reasoning, refusal, text } from "../parts.js";
import type { Event } from "../types.js";
import { fromUtf8, jsonText, type Parsed, type RoleName } from "../words.js";

const ROLES: readonly RoleName[] = ["user", "assistant", "system", "developer"];

/** Item types of calls that an agent runs, with functions that return their arguments. */
const CALLS: Record<string, (item: Parsed) => unknown> = {
  function_call: (item) => item.arguments,
  computer_call: (item) => item.actions ?? item.action,
  shell_call: (item) => item.action,
  apply_patch_call: (item) => item.operation,
  tool_search_call: (item) => item.arguments,
  program: ({ code }) => ({ code }),
};

/** Item types of results, with the field of the output. */
const OUTPUTS: Record<string, string> = {
  function_call_result: "output",
  computer_call_result: "output",
  shell_call_output: "output",
  apply_patch_call_output: "output",
  tool_search_output: "tools",
  program_output: "output",
};

// ---- items as events ----

/** Converts an item to events; returns none if its type or shape is unknown. */
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

/** The id of a call. If it is empty, `fitted` makes one, or looks for the open call. */
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

/** Tools by call id: the item of a result names the tool. */
export type Tools = ReadonlyMap<string, string>;

/** Prefix of the output of a failed call: the format has no field for failures. */
const FAILED = "Error: ";

/**
 * Converts an event of another program to an item; returns undefined if it has none. `calls` must
 * have taken the event before.
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

/** An item with the number of its model answer; 0 for items that are not of the model. */
type Numbered = readonly [item: AgentInputItem, answer: number];

/**
 * Yields the items, and adds a result for each function call of another program without one. Calls
 * of the SDK get none: the SDK knows their outcomes.
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

/** Returns calls without a result. If an id is reused, a result belongs to the last call. */
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
 * Numbers answers as in requests. Text begins an answer after calls or other items; a call begins
 * one after other items, if no call is open.
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
  // Leave out reasoning: only the provider that made it accepts it.
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
