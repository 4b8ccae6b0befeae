// Computes the events that a save must append, so that the stored chat equals the UI's.

import { isDeepStrictEqual } from "node:util";
import { callIdFor, toolFor, wellFormed } from "../adapters/bounds.js";
import type { ContentPart, NewEvent } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import type { Content } from "../parts.js";
import {
  contentOf,
  isFilled,
  LAYOUT,
  type Layout,
  type OutputForm,
  type Place,
  type PlainMessage,
  rendered,
  type Slot,
  type StoredCall,
  type StoredMessage,
  toolOf,
  type UIPart,
} from "./layout.js";
import type { StoredChat } from "./load.js";

/** What a save must do. */
export interface Plan {
  /** The last unchanged revision, if the chat was changed after it: fork there. */
  forkAt?: Place | undefined;
  events: NewEvent[];
  /** Decisions on calls that this plan requests are missing: plan again after appending. */
  isPart: boolean;
}

/** Returns the hash of a call's arguments, by call id; a decision must state it. */
export type HashOf = (callId: string) => Uint8Array | undefined;

/** Plans a save. */
export function plan(chat: StoredChat, incoming: readonly PlainMessage[], hashOf: HashOf): Plan {
  const events: NewEvent[] = [];
  let isPart = false;
  let same = 0;
  for (const [at, stored] of chat.messages.entries()) {
    const next = incoming[at];
    const changed = next && evolved(stored, next, at === chat.messages.length - 1);
    if (!changed) break;
    same += 1;
    if (isDeepStrictEqual(changed, rendered(stored))) continue;
    const written = write(changed, at, stored, hashOf);
    events.push(...written.events);
    isPart ||= written.isPart;
  }
  for (const [at, message] of incoming.entries()) {
    if (at < same) continue;
    const written = write(message, at, undefined, hashOf);
    events.push(...written.events);
    isPart ||= written.isPart;
  }
  if (same === chat.messages.length) return { events, isPart };
  return { forkAt: chat.messages[same - 1]?.end ?? chat.base, events, isPart };
}

/** The states of a tool call, in order. */
const STATES = [
  "input-streaming",
  "input-available",
  "approval-requested",
  "approval-responded",
  "output-available",
  "output-error",
  "output-denied",
];
const rank = (part: UIPart): number => Math.min(STATES.indexOf(String(part.state)), 4);

/**
 * Returns the message to store if `next` continues the stored one: all content is still there, and
 * calls only progressed. Returns undefined if it is another message.
 */
function evolved(
  stored: StoredMessage,
  next: PlainMessage,
  isLast: boolean,
): PlainMessage | undefined {
  const before = rendered(stored);
  if (next.id !== before.id || next.role !== before.role) return undefined;
  if (next.parts.length < before.parts.length) return undefined;
  if (next.parts.length > before.parts.length && !isLast) return undefined;
  const parts: UIPart[] = [];
  for (const [index, part] of next.parts.entries()) {
    const slot = stored.slots[index];
    const was = before.parts[index];
    const kept = slot && was ? evolvedPart(stored, slot, was, part) : part;
    if (!kept) return undefined;
    parts.push(kept);
  }
  return { ...next, parts };
}

function evolvedPart(
  stored: StoredMessage,
  slot: Slot,
  was: UIPart,
  part: UIPart,
): UIPart | undefined {
  if (was.type !== part.type && toolOf(was) !== toolOf(part)) return undefined;
  if ("inline" in slot) return was.toolCallId === part.toolCallId ? part : undefined;
  if ("content" in slot) {
    const isSame = ["text", "url", "mediaType", "filename"].every((key) => was[key] === part[key]);
    return isSame ? part : undefined;
  }
  if (was.toolCallId !== part.toolCallId) return undefined;
  if (slot.input && !isDeepStrictEqual(was.input, part.input)) return undefined;
  // The text in place of a missing result is not a result.
  const call = stored.calls.get(slot.call);
  if (call && isFilled(part, call)) return was;
  // The UI does not have the outcome yet, or contradicts the first decision, which stays.
  if (rank(part) < rank(was) || isOverruled(was, part)) return was;
  const isEnded = rank(was) === 4;
  const isOther = was.state !== part.state || !isDeepStrictEqual(was.output, part.output);
  return isEnded && isOther && was.preliminary !== true ? undefined : part;
}

function isOverruled(was: UIPart, part: UIPart): boolean {
  const [first, second] = [was, part].map((each) => approvalOf(each)?.approved);
  return first !== undefined && second !== undefined && first !== second;
}

type Approval = { approved?: boolean; reason?: string } & Record<string, unknown>;

const approvalOf = (part: UIPart): Approval | undefined => part.approval as Approval | undefined;

/** Returns the missing events of a message, and its layout. */
function write(
  message: PlainMessage,
  at: number,
  stored: StoredMessage | undefined,
  hashOf: HashOf,
): { events: NewEvent[]; isPart: boolean } {
  const writer = new Writer(message, stored, hashOf);
  const slots = message.parts.map((part, index) => writer.slot(part, index, stored?.slots[index]));
  writer.endStep();
  const keep = commonPrefix(stored?.slots ?? [], slots);
  const { id, role, metadata } = message;
  const layout: Layout = {
    at,
    id,
    role,
    ...(metadata === undefined ? {} : { metadata }),
    keep,
    slots: slots.slice(keep),
    events: writer.said,
  };
  return { events: [...writer.events, make.custom(LAYOUT, layout)], isPart: writer.isPart };
}

function commonPrefix(one: readonly Slot[], two: readonly Slot[]): number {
  const end = Math.min(one.length, two.length);
  for (let index = 0; index < end; index += 1) {
    if (!isDeepStrictEqual(one[index], two[index])) return index;
  }
  return end;
}

class Writer {
  readonly events: NewEvent[] = [];
  /** Number of messages and calls among them. */
  said = 0;
  /** Decisions and outcomes; appended after all calls of the step, which are one answer. */
  #happened: NewEvent[] = [];
  isPart = false;
  readonly #message: PlainMessage;
  readonly #stored: StoredMessage | undefined;
  readonly #hashOf: HashOf;
  #content: ContentPart[] = [];
  #contents: number;

  constructor(message: PlainMessage, stored: StoredMessage | undefined, hashOf: HashOf) {
    this.#message = message;
    this.#stored = stored;
    this.#hashOf = hashOf;
    this.#contents = stored?.content.length ?? 0;
  }

  #say(event: NewEvent): void {
    this.events.push(event);
    this.said += 1;
  }

  /** Appends the content up to here as a message. */
  #flush(): void {
    if (this.#content.length === 0) return;
    // Without `messageId`: a message of the UI spans several answers of the model, and messages
    // with the same `messageId` are one answer.
    this.#say(make.message(this.#message.role, this.#content));
    this.#content = [];
  }

  /** Ends an answer of the model. */
  endStep(): void {
    this.#flush();
    this.events.push(...this.#happened);
    this.#happened = [];
  }

  /** Writes the content of a part and returns where it is stored. */
  slot(part: UIPart, index: number, before: Slot | undefined): Slot {
    if (part.type === "step-start") this.endStep();
    const tool = toolOf(part);
    if (tool !== undefined) return this.#callSlot(part, tool, index, before);
    if (before && "content" in before) {
      const { text: _, url: __, mediaType: ___, ...rest } = part;
      if (rest.filename !== "") delete rest.filename;
      return { content: before.content, rest: { ...rest, type: part.type } };
    }
    if (before && "inline" in before && isDeepStrictEqual(before.inline, part)) return before;
    const found = contentOf(part);
    if (!found) return { inline: part };
    this.#content.push(wellFormed(found.content));
    this.#contents += 1;
    // The event has the text with U+FFFD for invalid characters; the layout has the original.
    if (this.#content.at(-1) !== found.content) return { inline: part };
    return { content: this.#contents - 1, rest: found.rest };
  }

  #callSlot(part: UIPart, tool: string, index: number, before: Slot | undefined): Slot {
    const callId =
      before && "call" in before
        ? before.call
        : callIdFor(part.toolCallId, `${this.#message.id}/${index}`);
    if (part.state === "input-streaming") return { inline: part };
    let call = before && "call" in before ? this.#stored?.calls.get(callId) : undefined;
    const isNew = call === undefined;
    call ??= this.#request(part, callId, tool);
    const isWaiting = this.#decide(part, call, isNew);
    const { input, output, errorText: _, ...others } = part;
    const rest: UIPart = { ...others, type: part.type };
    // A preliminary output is not the result.
    if (part.preliminary === true && output !== undefined) rest.output = output;
    const slot = { call: callId, rest, input: input !== undefined };
    if (isWaiting) return { ...slot, rest: asRequested(rest) };
    if (!call.outcome) this.#end(part, callId);
    const isResult = part.state === "output-available" && part.preliminary !== true;
    const form = isResult ? formOf(output) : undefined;
    return form ? { ...slot, output: form } : slot;
  }

  #request(part: UIPart, callId: string, tool: string): StoredCall {
    this.#flush();
    const needsApproval = part.approval !== undefined;
    const input = part.input ?? part.rawInput ?? {};
    const given = JSON.stringify(input);
    this.#say(make.toolCall(callId, toolFor(tool), given, { needsApproval }));
    return { callId, tool, input, needsApproval, told: { open: "", frozen: "" } };
  }

  /** Appends the decision on a call. Returns true if the call must be appended first. */
  #decide(part: UIPart, call: StoredCall, isNew: boolean): boolean {
    const approval = approvalOf(part);
    if (approval?.approved === undefined || call.decision || !call.needsApproval) return false;
    const hash = isNew ? undefined : this.#hashOf(call.callId);
    if (!hash) {
      this.isPart ||= isNew;
      return isNew;
    }
    const word = approval.approved ? "approved" : "denied";
    this.#happened.push(make.decision(call.callId, word, hash, { reason: approval.reason ?? "" }));
    return false;
  }

  /** Appends the outcome of a call, if there is one. */
  #end(part: UIPart, callId: string): void {
    const { state, output, errorText } = part;
    if (state === "output-available" && part.preliminary !== true) {
      this.#happened.push(make.toolResult(callId, told(output)));
    } else if (state === "output-error") {
      const error = wellFormed(String(errorText ?? ""));
      this.#happened.push(make.toolResult(callId, [], { success: false, error }));
    } else if (state === "output-denied") {
      const { reason = "" } = approvalOf(part) ?? {};
      this.#happened.push(make.toolCancelled(callId, "denied", reason));
    }
  }
}

/** Returns the part as it was before the decision. */
function asRequested(part: UIPart): UIPart {
  const { approved: _, reason: __, ...approval } = approvalOf(part) ?? {};
  return { ...part, state: "approval-requested", approval };
}

const formOf = (output: unknown): OutputForm => {
  if (output === undefined) return "none";
  return isText(output) ? "text" : "json";
};

/** Whether the output is storable as text. JSON can hold half of a surrogate pair, text cannot. */
const isText = (output: unknown): output is string =>
  typeof output === "string" && output.isWellFormed();

function told(output: unknown): Content {
  if (output === undefined || output === "") return [];
  return isText(output) ? output : JSON.stringify(output);
}
