// Planning and making compactions.

import {
  type CompactionPlan,
  CompactRequest,
  CompactionPlan as Plan,
  PlanCompactionRequest,
} from "../gen/treering/v1/context.js";
import { CompactionTrigger } from "../gen/treering/v1/event.js";
import { keyOrNew } from "../keys.js";
import { contexts } from "../methods.js";
import type { WriteOptions } from "../requests.js";
import type { CallOptions, Transport } from "../transport.js";
import type { Compaction } from "../types.js";
import { type CompactionTriggerName, jsonBytes, number } from "../words.js";

/** Makes a summary from the plan. */
export type Summariser = (plan: CompactionPlan) => string | Promise<string>;

interface Place {
  conversationId: string;
  branch: string;
}

/** Options of a compaction plan. */
export interface PlanOptions extends CallOptions {
  /** Turns to keep; default: the policy's. */
  keepTurns?: number | undefined;
  /** The model for counting tokens; default: the conversation's. */
  model?: string | undefined;
  policy?: Readonly<Record<string, unknown>> | undefined;
}

/** Options of a compaction. */
export interface CompactOptions extends WriteOptions {
  /** Turns to keep; default: the policy's. */
  keepTurns?: number | undefined;
  /** Default: the cut of the plan. */
  cutRevision?: number | undefined;
  trigger?: CompactionTriggerName | undefined;
}

/** Returns where a compaction would cut and what to ask a model for. */
export async function planCompaction(
  transport: Transport,
  place: Place,
  options: PlanOptions,
): Promise<CompactionPlan> {
  const { keepTurns, model, policy } = options;
  const request = PlanCompactionRequest.fromPartial({
    ...place,
    keepTurns,
    model,
    policy: policy && jsonBytes(policy),
  });
  const { plan } = await transport.unary(contexts.planCompaction, request, options);
  return plan ?? Plan.fromPartial({});
}

/** Replaces older turns in requests by a summary. */
export async function compact(
  transport: Transport,
  place: Place,
  actor: string,
  summary: string | Summariser,
  options: CompactOptions,
): Promise<Compaction> {
  const { keepTurns, cutRevision = 0, trigger = "manual" } = options;
  let text = typeof summary === "string" ? summary : "";
  let [cut, expectedHead] = [cutRevision, 0];
  if (!cutRevision || typeof summary !== "string") {
    const plan = await planCompaction(transport, place, { keepTurns });
    if (!plan.cutRevision) return nothing(plan);
    if (typeof summary !== "string") text = await summary(plan);
    cut ||= plan.cutRevision;
    expectedHead = plan.headRevision;
  }
  const key = keyOrNew(options.idempotencyKey);
  const request = CompactRequest.fromPartial({
    ...place,
    summary: text,
    cutRevision: cut,
    keepTurns,
    expectedHead,
    idempotencyKey: key,
    actor,
    trigger: number<CompactionTrigger>(CompactionTrigger, trigger),
  });
  const answer = await transport.unary(contexts.compact, request, { ...options, key });
  transport.saw(answer.event?.position?.offset ?? 0);
  const { tokensBefore, tokensAfter, warnings } = answer;
  const revision = answer.event?.revision ?? 0;
  return {
    done: true,
    revision,
    cutRevision: answer.cutRevision,
    tokensBefore,
    tokensAfter,
    warnings,
    reason: "",
  };
}

const nothing = ({ tokensBefore, reason }: CompactionPlan): Compaction => ({
  done: false,
  revision: 0,
  cutRevision: 0,
  tokensBefore,
  tokensAfter: tokensBefore,
  warnings: [],
  reason,
});
