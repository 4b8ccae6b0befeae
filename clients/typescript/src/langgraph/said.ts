// Returns the messages of a conversation, of all programs, as LangChain messages.
//
// Messages of a graph are the same as in its state. Messages of other programs have ids derived
// from their events: so a state does not get them twice, and they are not appended again to the
// conversation from which they come.

import * as lc from "@langchain/core/messages";
import { read } from "../adapters/frames.js";
import { said } from "../adapters/responses.js";
import type { Unanswered } from "../adapters/unanswered.js";
import type { Event } from "../types.js";
import { messageOf } from "./messages.js";
import { MESSAGES } from "./rows.js";

/** The id of a message of another program, from its first event; the same as Python's. */
const OTHERS = /^([0-9a-f-]{36})#([1-9][0-9]*)$/;
const idBy = (event: Event): string => `${event.conversationId}#${event.revision}`;

/** A message, and whether a graph has it in its state. */
export interface Heard {
  message: lc.BaseMessage;
  isOfGraph: boolean;
}

/** Whether a message is of another program, in any conversation. */
export const isOfOthers = ({ id }: lc.BaseMessage): boolean => OTHERS.test(id ?? "");

/** Returns the first revision of another program's message in a conversation; 0 if it has none. */
export function placeOf({ id }: lc.BaseMessage, conversationId: string): number {
  const found = OTHERS.exec(id ?? "");
  return found?.[1] === conversationId ? Number(found[2]) : 0;
}

/** The id of a message in place of a missing result: conversation and call; same as Python's. */
const FILLED = /^[0-9a-f-]{36}#open\/./s;

/** Whether a message stands in place of a missing result. */
export const isFilled = ({ id }: lc.BaseMessage): boolean => FILLED.test(id ?? "");

/**
 * Yields messages, and adds a result for each call that has none in `all`: providers refuse calls
 * without a result.
 */
export function* answered(
  some: readonly Heard[],
  all: readonly Heard[],
  conversationId: string,
  calls: Unanswered,
): Generator<lc.BaseMessage> {
  const missing = missingIn(all.map(({ message }) => message));
  const last = all.findLast(({ message }) => lc.AIMessage.isInstance(message))?.message;
  let waiting: lc.ToolMessage[] = [];
  for (const { message } of some) {
    if (!lc.ToolMessage.isInstance(message)) {
      yield* waiting;
      waiting = [];
    }
    yield message;
    for (const { id = "", name } of missing.get(message) ?? []) {
      const content = calls.told(id, message !== last);
      const filled = { content, name, tool_call_id: id, id: `${conversationId}#open/${id}` };
      waiting.push(new lc.ToolMessage({ ...filled, status: "error" }));
    }
  }
  yield* waiting;
}

type ToolCalls = NonNullable<lc.AIMessage["tool_calls"]>;

/**
 * Returns the calls of answers that have no result. If an id is reused, a result belongs to the
 * last call before it.
 */
function missingIn(messages: readonly lc.BaseMessage[]): Map<lc.BaseMessage, ToolCalls> {
  const missing = new Map<lc.BaseMessage, ToolCalls>();
  const results = new Set<string>();
  for (const message of messages.toReversed()) {
    if (lc.ToolMessage.isInstance(message)) results.add(message.tool_call_id);
    if (!lc.AIMessage.isInstance(message)) continue;
    const asked = (message.tool_calls ?? []).filter(({ id }) => id);
    const open = asked.filter(({ id = "" }) => !results.has(id));
    missing.set(message, open);
    for (const { id = "" } of asked) results.delete(id);
  }
  return missing;
}

/** Returns messages in order; a message that a graph got comes only once. */
export async function heardIn(events: AsyncIterable<Event>): Promise<Heard[]> {
  const all: Heard[] = [];
  const tools = new Map<string, string>();
  const others = new Spoken(tools, idBy);
  for await (const found of read(MESSAGES, events)) {
    if (!("items" in found)) {
      all.push(...others.take(found).map(asOthers));
      continue;
    }
    all.push(...others.end().map(asOthers));
    for (const { item, events: held } of found.items) {
      for (const { callId, tool } of held) if (tool) tools.set(callId, tool);
      const message = item && messageOf(item);
      all.push(...(message ? [message] : spokenBy(held, tools)).map(asOfGraph));
    }
  }
  all.push(...others.end().map(asOthers));
  const told = new Set(all.filter(isTold).map(({ message }) => message.id));
  // A message that a graph got stays at its original place.
  return all
    .filter((heard) => !isTold(heard) && !isFilled(heard.message))
    .map(({ message, isOfGraph }) => ({ message, isOfGraph: isOfGraph || told.has(message.id) }));
}

const asOthers = (message: lc.BaseMessage): Heard => ({ message, isOfGraph: false });
const asOfGraph = (message: lc.BaseMessage): Heard => ({ message, isOfGraph: true });

const isTold = ({ message, isOfGraph }: Heard): boolean => isOfGraph && isOfOthers(message);

/** Makes messages from the events of a graph's message that cannot be restored from its frame. */
function spokenBy(events: readonly Event[], tools: Map<string, string>): lc.BaseMessage[] {
  const ownId = ({ body }: Event): string =>
    body?.$case === "messageAppended" ? body.value.messageId : "";
  const spoken = new Spoken(tools, (event) => ownId(event) || idBy(event));
  return [...events.flatMap((event) => spoken.take(event)), ...spoken.end()];
}

/** Converts events to messages: an assistant message and the calls after it are one message. */
class Spoken {
  readonly #tools: Map<string, string>;
  readonly #idOf: (event: Event) => string;
  #answer: lc.AIMessage | undefined;

  constructor(tools: Map<string, string>, idOf: (event: Event) => string) {
    this.#tools = tools;
    this.#idOf = idOf;
  }

  /** Takes an event; returns the messages that are complete now. */
  take(event: Event): lc.BaseMessage[] {
    if (event.body?.$case === "toolCallRequested") {
      this.#answer ??= new lc.AIMessage({ content: "", id: this.#idOf(event) });
      this.#call(this.#answer, event);
      return [];
    }
    if (event.role === "assistant") {
      const whole = this.end();
      this.#answer = new lc.AIMessage({ content: event.text, id: this.#idOf(event) });
      return whole;
    }
    const made = messageOfEvent(event, this.#idOf(event), this.#tools);
    return made ? [...this.end(), made] : [];
  }

  /** Returns the last message, if there is one. */
  end(): lc.BaseMessage[] {
    const answer = this.#answer;
    this.#answer = undefined;
    return answer ? [answer] : [];
  }

  #call(answer: lc.AIMessage, event: Event): void {
    this.#tools.set(event.callId, event.tool);
    const given = event.arguments;
    const name = event.argumentsNotJson ? "invalid_arguments" : "value";
    const args = typeof given === "object" && given !== null ? given : { [name]: given };
    answer.tool_calls?.push({ name: event.tool, args, id: event.callId, type: "tool_call" });
  }
}

function messageOfEvent(
  event: Event,
  id: string,
  tools: ReadonlyMap<string, string>,
): lc.BaseMessage | undefined {
  const { body } = event;
  if (body?.$case === "toolResultRecorded") {
    const { callId, parts, errorMessage, success } = body.value;
    return new lc.ToolMessage({
      id,
      content: said(parts) || errorMessage,
      tool_call_id: callId,
      name: tools.get(callId) ?? "",
      status: success ? "success" : "error",
    });
  }
  if (body?.$case !== "messageAppended") return undefined;
  const { parts, toolCallId } = body.value;
  if (event.role === "tool") {
    return new lc.ToolMessage({ id, content: said(parts), tool_call_id: toolCallId });
  }
  if (event.role === "user") return new lc.HumanMessage({ id, content: event.text });
  return new lc.SystemMessage({ id, content: event.text });
}
