// Makes a session's lines: the SDK's own, and between them events of other programs as lines. The
// Python client makes the same lines, with the same ids.

import { createHash } from "node:crypto";
import * as frames from "../adapters/frames.js";
import { said } from "../adapters/responses.js";
import { Unanswered } from "../adapters/unanswered.js";
import type { ContentPart } from "../gen/treering/v1/event.js";
import type { Event } from "../types.js";
import { fromArguments, type Parsed } from "../words.js";

/** Fields that a line copies from the line before it. */
const ABOUT = ["sessionId", "agentId", "isSidechain", "userType", "cwd", "version", "gitBranch"];
const FAILED = "Error: ";

type Line = Record<string, Parsed>;
type Found = frames.Frame | Event;

const isFrame = (found: Found | undefined): found is frames.Frame =>
  found !== undefined && "items" in found;

/**
 * Returns the SDK's own lines, and between them lines for events of other programs, in one chain.
 *
 * A line of another program follows the line before it. The SDK ignores lines outside the chain of
 * the last line, so the `parentUuid` of its own next line is changed to that line if needed. Lines
 * of other programs have the same ids each time: they are recognised when the SDK sends them back.
 */
export async function linesOf(
  sessionId: string,
  events: AsyncIterable<Event>,
  frameType: string,
): Promise<Line[]> {
  const calls = new Unanswered();
  const found: Found[] = [];
  for await (const each of frames.read(frameType, calls.noted(events))) found.push(each);
  return [...new Chain(sessionId, found, calls).lines()];
}

class Chain {
  readonly #sessionId: string;
  readonly #found: readonly Found[];
  readonly #others: Others;
  /** The id of the last line. */
  #tip: string | null = null;
  /** The SDK's own calls without a result: no line may come in between. */
  readonly #open = new Set<string>();
  #about: Line = {};
  /** Lines of other programs, which come next. */
  #waiting: Line[] = [];

  constructor(sessionId: string, found: readonly Found[], calls: Unanswered) {
    this.#sessionId = sessionId;
    this.#found = found;
    this.#others = new Others(found, calls);
  }

  *lines(): Generator<Line> {
    for (const [at, each] of this.#found.entries()) {
      if (isFrame(each)) {
        for (const { item } of each.items) yield* this.#own(item);
      } else {
        this.#waiting.push(...this.#others.linesOf(at, each));
      }
    }
    yield* this.#flushed();
  }

  *#own(given: Line): Generator<Line> {
    let line = given;
    const parent = line.parentUuid;
    const isLinked = line.uuid !== undefined && parent !== undefined;
    if (isLinked && this.#waiting.length) {
      const knows = this.#waiting.some(({ uuid }) => uuid === parent);
      if (knows || !this.#open.size) {
        const before = this.#tip;
        yield* this.#flushed();
        if (parent !== null && parent === before) line = { ...line, parentUuid: this.#tip };
      }
    }
    if (isLinked) {
      this.#tip = line.uuid;
      this.#about = Object.fromEntries(
        ABOUT.filter((name) => name in line).map((name) => [name, line[name]]),
      );
    }
    for (const id of idsIn(line, "tool_use", "id")) this.#open.add(id);
    for (const id of idsIn(line, "tool_result", "tool_use_id")) this.#open.delete(id);
    yield line;
  }

  *#flushed(): Generator<Line> {
    for (const line of this.#waiting) {
      const start = { parentUuid: this.#tip, isSidechain: false, sessionId: this.#sessionId };
      yield { ...start, ...this.#about, ...line };
      this.#tip = line.uuid;
    }
    this.#waiting = [];
  }
}

/** Converts events of other programs to lines, without their place in the chain. */
class Others {
  readonly #found: readonly Found[];
  readonly #calls: Unanswered;
  /** Calls whose results are lines of the SDK, or are placed after their calls. */
  readonly #known: ReadonlySet<string>;
  readonly #results = new Map<string, Event>();
  readonly #last: number;

  constructor(found: readonly Found[], calls: Unanswered) {
    this.#found = found;
    this.#calls = calls;
    const known = new Set<string>();
    for (const each of found) {
      if (isFrame(each)) {
        for (const { item } of each.items) {
          for (const id of idsIn(item, "tool_result", "tool_use_id")) known.add(id);
        }
      } else if (each.kind === "tool_call_requested") known.add(each.callId);
      else if (each.kind === "tool_result_recorded") this.#results.set(each.callId, each);
    }
    this.#known = known;
    this.#last = found.findLastIndex(isAnswer);
  }

  /** Yields the lines of an event; results of other programs' calls follow the calls. */
  *linesOf(at: number, event: Event): Generator<Line> {
    if (event.kind === "message_appended") yield* this.#message(at, event);
    else if (event.kind === "tool_call_requested") {
      yield this.#call(at, event);
      if (!isCall(this.#found[at + 1])) yield* this.#answers(at);
    } else if (event.kind === "tool_result_recorded" && !this.#known.has(event.callId)) {
      // Another program recorded the result of a call of the SDK.
      yield lineOf(event, event.id, "user", [this.#result(event.callId, event)]);
    }
  }

  /** Yields results of the calls that end here: providers refuse calls without one. */
  *#answers(at: number): Generator<Line> {
    let begin = at;
    while (isCall(this.#found[begin - 1])) begin -= 1;
    for (const each of this.#found.slice(begin, at + 1)) {
      if (isFrame(each)) continue;
      const result = this.#results.get(each.callId);
      const content = this.#result(each.callId, result, at < this.#last);
      // The id stays the same when the result comes: later lines refer to it.
      yield lineOf(result ?? each, derived(each.id, "result"), "user", [content]);
    }
  }

  #result(callId: string, event: Event | undefined, wentOn = false): Line {
    const block = { type: "tool_result", tool_use_id: callId };
    if (event?.body?.$case !== "toolResultRecorded") {
      const content = `${FAILED}${this.#calls.told(callId, wentOn)}`;
      return { ...block, content, is_error: true };
    }
    const { parts, errorMessage, success } = event.body.value;
    const content = said(parts) || errorMessage;
    return success ? { ...block, content } : { ...block, content, is_error: true };
  }

  #call(at: number, event: Event): Line {
    const { body } = event;
    const call = body?.$case === "toolCallRequested" ? body.value : undefined;
    const given = fromArguments(call?.arguments ?? new Uint8Array(0));
    const isObject = typeof given === "object" && given !== null && !Array.isArray(given);
    const input = isObject ? given : { arguments: given };
    const use = { type: "tool_use", id: call?.callId, name: call?.tool, input };
    return this.#answer(at, event, use, "tool_use");
  }

  *#message(at: number, event: Event): Generator<Line> {
    const parts = event.body?.$case === "messageAppended" ? event.body.value.parts : [];
    const blocks = parts.flatMap(blockOf);
    const [first] = blocks;
    if (!first) return;
    if (event.role !== "assistant") {
      const text = blocks.length === 1 ? first.text : undefined;
      yield lineOf(event, event.id, "user", text || blocks);
      return;
    }
    for (const [number, block] of blocks.entries()) {
      // A line has one block of an answer.
      const id = number ? derived(event.id, String(number)) : event.id;
      yield this.#answer(at, event, block, "end_turn", id);
    }
  }

  #answer(at: number, event: Event, block: Line, reason: string, id = event.id): Line {
    let first = event;
    for (let before = at - 1; before >= 0; before -= 1) {
      const each = this.#found[before];
      if (!each || isFrame(each) || !isAnswer(each)) break;
      first = each;
    }
    const { body } = event;
    const usage = body?.$case === "messageAppended" ? body.value.usage : undefined;
    const line = lineOf(event, id, "assistant", [block]);
    // Lines of one answer share a message id.
    Object.assign(line.message, {
      id: `msg_${first.id.replaceAll("-", "")}`,
      type: "message",
      model: usage?.model || "unknown",
      stop_reason: reason,
      stop_sequence: null,
      usage: { input_tokens: 0, output_tokens: 0 },
    });
    return line;
  }
}

const lineOf = (event: Event, uuid: string, role: string, content: unknown): Line => ({
  type: role,
  message: { role, content },
  uuid,
  timestamp: event.occurredAt.toISOString(),
});

/** Returns the UUID of version 5 of a name, in the namespace of an event's id. */
function derived(id: string, name: string): string {
  const space = Buffer.from(id.replaceAll("-", ""), "hex");
  const bytes = createHash("sha1").update(space).update(name).digest().subarray(0, 16);
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x50;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

const isCall = (each: Found | undefined): boolean =>
  each !== undefined && !isFrame(each) && each.kind === "tool_call_requested";

/** Whether it is part of an answer of the model. */
const isAnswer = (each: Found): boolean =>
  isFrame(each)
    ? each.items.some(({ item }) => item.type === "assistant")
    : isCall(each) || each.role === "assistant";

function idsIn(line: Line, kind: string, name: string): string[] {
  const content = line.message?.content;
  if (!Array.isArray(content)) return [];
  return content.filter((block) => block?.type === kind).map((block) => String(block[name]));
}

function blockOf(part: ContentPart): Line[] {
  const held = part.part;
  // Leave out reasoning: only the provider that made it accepts it.
  if (held?.$case === "reasoning") return [];
  if (held?.$case === "image") {
    const { source, mediaType } = held.value;
    if (source?.$case !== "data") {
      return [{ type: "image", source: { type: "url", url: source?.value ?? "" } }];
    }
    const data = Buffer.from(source.value).toString("base64");
    return [{ type: "image", source: { type: "base64", media_type: mediaType, data } }];
  }
  const text = said([part]);
  return text ? [{ type: "text", text }] : [];
}
