// Reads a chat from the events of its branch.

import { Unanswered } from "../adapters/unanswered.js";
import { ApprovalRequirement, CancelReason, Decision, Role } from "../gen/treering/v1/event.js";
import { textOf } from "../parts.js";
import type { Event } from "../types.js";
import { fromJson } from "../words.js";
import {
  LAYOUT,
  type Layout,
  type Place,
  parsed,
  type Slot,
  type StoredCall,
  type StoredMessage,
} from "./layout.js";

/** A chat as it is stored. */
export interface StoredChat {
  messages: StoredMessage[];
  /** The branch's last event. */
  head: Place;
  /** The last event before the first message. */
  base: Place;
}

/** Reads a chat. */
export async function load(events: AsyncIterable<Event>): Promise<StoredChat> {
  const fold = new Fold();
  for await (const event of events) fold.take(event);
  return fold.end();
}

/** A message or call event that no layout has claimed. */
interface Pending {
  event: Event;
  call?: StoredCall;
  /** The last event that belongs to it. */
  end: Place;
}

/** Builds a chat from events. More events may follow later. */
export class Fold {
  readonly #messages: StoredMessage[] = [];
  #pending: Pending[] = [];
  #head: Place = { conversationId: "", revision: 0 };
  #base: Place = this.#head;
  #hasBegun = false;
  readonly #calls = new Unanswered();

  /** The place of the last event that was taken. */
  get head(): Place {
    return this.#head;
  }

  /** Takes the next event of the branch; skips an event that was already taken. */
  take(event: Event): void {
    const { body } = event;
    const { conversationId, revision } = this.#head;
    if (event.conversationId === conversationId && event.revision <= revision) return;
    this.#head = placeOf(event);
    this.#calls.take(event);
    const isSaid = body?.$case === "messageAppended" || body?.$case === "toolCallRequested";
    const isLayout = body?.$case === "custom" && body.value.typeName === LAYOUT;
    this.#hasBegun ||= isSaid || isLayout;
    if (!this.#hasBegun) this.#base = this.#head;
    if (isLayout) this.#close(event.data as Layout);
    else if (isSaid) this.#pending.push(pendingOf(event));
    else this.#happens(event);
  }

  /** Returns the chat as read so far. */
  end(): StoredChat {
    const messages = [...this.#messages, ...guessed(this.#pending)].map((message) => ({
      ...message,
      content: [...message.content],
      calls: new Map(
        [...message.calls].map(([id, call]) => [id, { ...call, told: this.#told(id) }]),
      ),
    }));
    return { messages, head: this.#head, base: this.#base };
  }

  #told(callId: string): StoredCall["told"] {
    return { open: this.#calls.told(callId, false), frozen: this.#calls.told(callId, true) };
  }

  /** Takes the decision on a call, or its outcome. */
  #happens(event: Event): void {
    const call = event.callId && this.#call(event.callId);
    if (!call) return;
    const { body } = event;
    if (body?.$case === "approvalDecided") {
      const { decision, reason } = body.value;
      call.decision = { approved: decision === Decision.APPROVED, reason };
    } else if (body?.$case === "toolResultRecorded") {
      const { success, errorMessage: error, parts, structured } = body.value;
      const value = structured.length ? fromJson(structured) : undefined;
      call.outcome = { kind: "result", success, error, text: textOf(parts), structured: value };
    } else if (body?.$case === "toolCallCancelled") {
      call.outcome = { kind: "cancelled", isDenied: body.value.reason === CancelReason.DENIED };
    }
  }

  /** The last call with that id. */
  #call(callId: string): StoredCall | undefined {
    // A fork after the last message includes the outcomes of its calls.
    const pending = this.#pending.findLast(({ call }) => call?.callId === callId);
    if (pending) {
      const last = this.#pending.at(-1);
      if (last) last.end = this.#head;
      return pending.call;
    }
    const message = this.#messages.findLast(({ calls }) => calls.has(callId));
    const isLast = message === this.#messages.at(-1) && this.#pending.length === 0;
    if (message && isLast) message.end = this.#head;
    return message?.calls.get(callId);
  }

  #close(layout: Layout): void {
    const own = this.#pending.splice(this.#pending.length - layout.events, layout.events);
    this.#messages.push(...guessed(this.#pending));
    this.#pending = [];
    const before = this.#messages[layout.at];
    const message: StoredMessage = {
      id: layout.id,
      role: layout.role,
      metadata: layout.metadata,
      slots: [...(before?.slots ?? []).slice(0, layout.keep), ...layout.slots],
      content: before?.content ?? [],
      calls: before?.calls ?? new Map(),
      end: this.#head,
    };
    for (const each of own) add(message, each);
    this.#messages[Math.min(layout.at, this.#messages.length)] = message;
  }
}

/** Converts events of other programs, which have no layout, to messages of the UI. */
function guessed(pending: readonly Pending[]): StoredMessage[] {
  const messages: StoredMessage[] = [];
  for (const each of pending) {
    const { event, call, end } = each;
    const role = roleOf(event);
    if (!role) continue;
    let open = messages.at(-1);
    if (!open || role !== "assistant" || open.role !== "assistant") {
      open = { id: event.id, role, slots: [], content: [], calls: new Map(), end };
      messages.push(open);
    }
    const first = open.content.length;
    add(open, each);
    open.end = end;
    if (role === "assistant" && (!call || open.slots.length === 0)) {
      open.slots.push({ inline: { type: "step-start" } });
    }
    if (call) open.slots.push(slotOf(call));
    else open.slots.push(...contentSlots(open, first));
  }
  return messages;
}

const placeOf = ({ conversationId, revision }: Event): Place => ({ conversationId, revision });

function pendingOf(event: Event): Pending {
  const { body } = event;
  const end = placeOf(event);
  if (body?.$case !== "toolCallRequested") return { event, end };
  const { callId, tool, arguments: args, approval } = body.value;
  const needsApproval = approval === ApprovalRequirement.PENDING;
  const told = { open: "", frozen: "" };
  return { event, end, call: { callId, tool, input: parsed(args), needsApproval, told } };
}

function add(message: StoredMessage, { event, call }: Pending): void {
  if (call) message.calls.set(call.callId, call);
  if (event.body?.$case === "messageAppended") message.content.push(...event.body.value.parts);
}

/** The role in the UI; undefined for messages of tools and for other events. */
function roleOf({ body }: Event): StoredMessage["role"] | undefined {
  if (body?.$case === "toolCallRequested") return "assistant";
  if (body?.$case !== "messageAppended") return undefined;
  switch (body.value.role) {
    case Role.USER:
      return "user";
    case Role.ASSISTANT:
      return "assistant";
    case Role.TOOL:
      return undefined;
    default:
      return "system";
  }
}

function slotOf({ callId, tool, needsApproval }: StoredCall): Slot {
  const approval = needsApproval ? { approval: { id: callId } } : {};
  const state = needsApproval ? "approval-requested" : "input-available";
  const rest = { type: `tool-${tool}`, toolCallId: callId, state, ...approval };
  return { call: callId, rest, input: true };
}

function contentSlots(message: StoredMessage, first: number): Slot[] {
  return message.content.slice(first).map(({ part }, index) => {
    const isMedium = part?.$case === "image" || part?.$case === "file" || part?.$case === "audio";
    const type = isMedium ? "file" : part?.$case === "reasoning" ? "reasoning" : "text";
    return { content: first + index, rest: { type } };
  });
}
