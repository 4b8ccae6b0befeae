// A conversation's tool calls, and what their results have shown.

import { Call, type CallOptions } from "../calls.js";
import {
  ApprovalStatus,
  type ConversationState,
  type OpenCall,
} from "../gen/treering/v1/conversation.js";
import type { ToolResultRecorded } from "../gen/treering/v1/event.js";
import * as messages from "../gen/treering/v1/tool.js";
import { tools } from "../methods.js";
import { Replay, type ReplayHost } from "../replay.js";
import type { ReadOptions } from "../requests.js";
import { type Event, ToolCall, ToolResult } from "../types.js";
import { asJsonBytes, fromUtf8 } from "../words.js";
import { newCallId, Writing } from "./writing.js";

/** Of a call's history: most that are asked for. */
const CALLS_MAX = 10_000;

/** A range of a result. */
export interface ResultRange {
  /** From 1, both inclusive. */
  lines?: readonly [first: number, last: number] | undefined;
  bytes?: readonly [start: number, length: number] | undefined;
}

export abstract class Tools extends Writing implements ReplayHost {
  abstract state(): Promise<ConversationState>;
  abstract events(options: ReadOptions): AsyncIterable<Event>;

  /**
   * Records that a tool is asked for and run from now on; where approval is needed, only that
   * it is asked for (see `call.waitForApproval`).
   *
   *     const call = await conv.toolCall("grep", { pattern: "port" });
   *     await call.result("config.py:12: PORT = 7171");
   */
  async toolCall(tool: string, args: unknown = {}, options: CallOptions = {}): Promise<Call> {
    const call = new Call(this, tool, args, { ...options, callId: options.callId || newCallId() });
    return call.needsApproval ? call.request() : call.start();
  }

  /** Calls that have not ended: what an agent goes on with after a restart. */
  async openCalls(): Promise<Call[]> {
    const state = await this.state();
    const open = state.branch?.openCalls ?? [];
    const asked = await this.#argumentsOf(state.summary?.conversationId ?? "", open);
    return open.map(
      (call) =>
        new Call(this, call.tool, asked.get(call.callId) ?? new Uint8Array(0), {
          callId: call.callId,
          needsApproval: call.approval > ApprovalStatus.NOT_REQUIRED,
          isRequested: true,
          isStarted: call.started,
        }),
    );
  }

  /** What open calls ask for; they are few and mostly near the head. */
  async #argumentsOf(conversationId: string, calls: OpenCall[]): Promise<Map<string, Uint8Array>> {
    const asked = new Map<string, Uint8Array>();
    const own = new Set(
      calls
        .filter((call) => call.request?.conversationId === conversationId)
        .map((call) => call.request?.revision ?? 0),
    );
    if (own.size) {
      const first = Math.min(...own);
      const last = Math.max(...own);
      for await (const event of this.events({ kinds: ["tool_call_requested"], first, last })) {
        const { body } = event;
        const isOne = own.has(event.revision) && event.conversationId === conversationId;
        if (isOne && body?.$case === "toolCallRequested")
          asked.set(event.callId, body.value.arguments);
      }
    }
    if (own.size < calls.length) {
      // Of the conversation that this one was forked from.
      for (const call of await this.toolCalls({ limit: CALLS_MAX })) {
        if (!asked.has(call.callId)) asked.set(call.callId, call.proto.arguments);
      }
    }
    return asked;
  }

  /** Calls of the branch with their outcomes, newest first. */
  async toolCalls({ tool = "", asOf = 0, limit = 0 } = {}): Promise<ToolCall[]> {
    const request = { ...this.place, asOfRevision: asOf, tool, limit };
    const { calls } = await this.transport.unary(tools.history, request);
    return calls.map((call) => new ToolCall(call));
  }

  /** Calls that wait for a decision. */
  async pending({ limit = 0 } = {}): Promise<ToolCall[]> {
    const { calls } = await this.transport.unary(tools.pending, { ...this.place, limit });
    return calls.map((call) => new ToolCall(call));
  }

  /** Waits until a call is decided or ended, or the time is up: its status says which. */
  async waitForDecision(
    callId: string,
    timeoutMs = 60_000,
    signal?: AbortSignal,
  ): Promise<ToolCall> {
    const request = { ...this.place, callId, timeoutMs: Math.max(1, Math.trunc(timeoutMs)) };
    const { call } = await this.transport.unary(tools.waitForDecision, request, {
      timeoutMs: timeoutMs + this.transport.timeoutMs,
      signal,
    });
    return new ToolCall(messages.ToolCall.fromPartial(call ?? {}));
  }

  /** A result by call id or by revision: whole, or lines, or bytes. */
  async result(which: string | number, { lines, bytes }: ResultRange = {}): Promise<ToolResult> {
    return this.#getResult({
      which:
        typeof which === "number"
          ? { $case: "revision", value: which }
          : { $case: "callId", value: which },
      lineFirst: lines?.[0],
      lineLast: lines?.[1],
      byteStart: bytes?.[0],
      byteLength: bytes?.[1],
    });
  }

  /**
   * Answers a call of the tool that reads shortened results again (`read_tool` of the
   * policy), with the arguments as the model wrote them.
   */
  async readResult(args: unknown): Promise<ToolResult> {
    return this.#getResult({ arguments: asJsonBytes(args) });
  }

  async #getResult(range: messages.DeepPartial<messages.GetResultRequest>): Promise<ToolResult> {
    const request = messages.GetResultRequest.fromPartial({ ...range, ...this.place });
    let info = messages.ResultInfo.fromPartial({});
    let chunks: Uint8Array[] = [];
    const fromTheStart = () => {
      chunks = [];
      return request;
    };
    for await (const answer of this.transport.read(tools.getResult, fromTheStart)) {
      info = answer.info ?? info;
      chunks.push(answer.chunk);
    }
    // A range of bytes may split a character.
    return new ToolResult(info, fromUtf8(Buffer.concat(chunks)));
  }

  /** What the tool answered the n-th time that it was asked this; 0: the last time. */
  async recorded(
    tool: string,
    args: unknown = {},
    occurrence = 0,
  ): Promise<ToolResultRecorded | undefined> {
    const request = { ...this.place, tool, arguments: asJsonBytes(args), occurrence };
    const answer = await this.transport.unary(tools.recorded, request);
    return answer.found ? answer.result : undefined;
  }

  /** Recorded results in the place of tools, to run an agent again. */
  replay(): Replay {
    return new Replay(this);
  }

  /** Finished calls in short, newest first. */
  async snapshots({ asOf = 0, limit = 0 } = {}): Promise<messages.ToolSnapshot[]> {
    const request = { ...this.place, asOfRevision: asOf, limit };
    return (await this.transport.unary(tools.snapshots, request)).snapshots;
  }

  /** Files, variables, the working directory, what has succeeded. */
  async knowledge({ asOf = 0, recent = 0, tool = "" } = {}): Promise<messages.KnowledgeResponse> {
    const request = { ...this.place, asOfRevision: asOf, recent, tool };
    return this.transport.unary(tools.knowledge, request);
  }

  /** Fills empty file and variable arguments of a call from what is known. */
  async suggestArguments(
    tool: string,
    args: unknown = {},
  ): Promise<messages.SuggestArgumentsResponse> {
    const request = { ...this.place, tool, arguments: asJsonBytes(args) };
    return this.transport.unary(tools.suggestArguments, request);
  }

  /** Tools that should have succeeded before this one, and have not. */
  async missingPrerequisites(tool: string): Promise<string[]> {
    return (await this.transport.unary(tools.missingPrerequisites, { ...this.place, tool }))
      .missing;
  }

  /** What to do next, in a sentence or two for a prompt. */
  async guidance(): Promise<string> {
    return (await this.transport.unary(tools.guidance, this.place)).guidance;
  }
}
