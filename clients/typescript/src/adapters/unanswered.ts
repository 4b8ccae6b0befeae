// Calls without a result, and the text that a request has in place of each result.
//
// Providers refuse a call without a result, so adapters give frameworks the same text. It is that
// of the server (`src/context/window/calls.rs`): a test compares it with the server's requests.

import {
  type ApprovalDecided,
  ApprovalRequirement,
  CancelReason,
  Decision,
  type ToolCallCancelled,
} from "../gen/treering/v1/event.js";
import type { Event } from "../types.js";

/** The kinds of events, besides calls, that determine the text for a call without a result. */
export const TOLD_BY = ["approval_decided", "tool_call_started", "tool_call_cancelled"] as const;

/** The text while a call may still end, and the text after a later answer of the model. */
interface Stage {
  open: string;
  frozen: string;
  isRefused?: boolean;
}

const WENT_ON = "when the conversation went on";
const REQUESTED: Stage = {
  open: "no result yet: the call has not ended",
  frozen: `no result: the call had not ended ${WENT_ON}`,
};
const WAITS: Stage = {
  open: "no result yet: the call waits for approval",
  frozen: `no result: the call had not been approved ${WENT_ON}`,
};
const APPROVED: Stage = {
  open: "no result yet: the call is approved and has not begun",
  frozen: REQUESTED.frozen,
};

/** The states of the calls of a branch, from the events read so far. */
export class Unanswered {
  readonly #stages = new Map<string, Stage>();

  /** Takes events, and yields them unchanged. */
  async *noted(events: AsyncIterable<Event> | Iterable<Event>): AsyncGenerator<Event> {
    for await (const event of events) {
      this.take(event);
      yield event;
    }
  }

  /** Takes an event. */
  take({ body, callId }: Event): void {
    switch (body?.$case) {
      case "toolCallRequested": {
        const isWaiting = body.value.approval === ApprovalRequirement.PENDING;
        this.#stages.set(callId, isWaiting ? WAITS : REQUESTED);
        break;
      }
      case "approvalDecided":
        this.#stages.set(callId, decided(body.value));
        break;
      case "toolCallStarted":
        this.#stages.set(callId, started(body.value.executor));
        break;
      case "toolCallCancelled":
        this.#stages.set(callId, this.#cancelled(body.value));
        break;
      default:
    }
  }

  /** Returns the text for a call; `wentOn`: the model has answered since. */
  told(callId: string, wentOn: boolean): string {
    const { open, frozen } = this.#stages.get(callId) ?? REQUESTED;
    return wentOn ? frozen : open;
  }

  #cancelled({ callId, reason, detail }: ToolCallCancelled): Stage {
    const before = this.#stages.get(callId);
    // Keep the denial: it says more than the cancellation that follows it.
    if (before?.isRefused && reason === CancelReason.DENIED) return before;
    return refused(withDetail(CANCELLED[reason] ?? "interrupted before it ended", detail));
  }
}

const CANCELLED: Partial<Record<CancelReason, string>> = {
  [CancelReason.DENIED]: "denied",
  [CancelReason.TIMED_OUT]: "timed out",
  [CancelReason.SUPERSEDED]: "superseded by another call",
};

const refused = (text: string): Stage => ({ open: text, frozen: text, isRefused: true });

const withDetail = (what: string, detail: string): string => (detail ? `${what}: ${detail}` : what);

function decided({ decision, decidedBy, reason }: ApprovalDecided): Stage {
  if (decision === Decision.APPROVED) return APPROVED;
  if (decision !== Decision.DENIED) return refused(withDetail("the approval expired", reason));
  return refused(withDetail(decidedBy ? `denied by ${decidedBy}` : "denied", reason));
}

const started = (by: string): Stage => ({
  open: by ? `no result yet: ${by} is running the call` : "no result yet: the call is running",
  frozen: `no result: the call was interrupted, or still ran, ${WENT_ON}`,
});
