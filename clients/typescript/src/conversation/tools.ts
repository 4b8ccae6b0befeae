// The tool calls of a conversation, their results, and tool observations.

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

/** Maximum number of calls that are read from the history. */
const CALLS_MAX = 10_000;

/** A range of a result. */
export interface ResultRange {
  /** From 1, inclusive. */
  lines?: readonly [first: number, last: number] | undefined;
  bytes?: readonly [start: number, length: number] | undefined;
}

export abstract class Tools extends Writing implements ReplayHost {
  abstract state(): Promise<ConversationState>;
  abstract events(options: ReadOptions): AsyncIterable<Event>;

  /**
   * Appends the request and the start of a tool call; only the request if it needs approval (see
   * `call.waitForApproval`).
   *
   *     const call = await conv.toolCall("grep", { pattern: "port" });
   *     await call.result("config.py:12: PORT = 7171");
   */
  async toolCall(tool: string, args: unknown = {}, options: CallOptions = {}): Promise<Call> {
    const call = new Call(this, tool, args, { ...options, callId: options.callId || newCallId() });
    return call.needsApproval ? call.request() : call.start();
  }

  /** Returns the calls that have not ended. An agent resumes them after a restart. */
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

  /** Returns the arguments of open calls, which are few and mostly near the head. */
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
      // The conversation that this one was forked from has their requests.
      for (const call of await this.toolCalls({ limit: CALLS_MAX })) {
        if (!asked.has(call.callId)) asked.set(call.callId, call.proto.arguments);
      }
    }
    return asked;
  }

  /** Lists the calls of the branch with their outcomes, newest first. */
  async toolCalls({ tool = "", asOf = 0, limit = 0 } = {}): Promise<ToolCall[]> {
    const request = { ...this.place, asOfRevision: asOf, tool, limit };
    const { calls } = await this.transport.unary(tools.history, request);
    return calls.map((call) => new ToolCall(call));
  }

  /** Lists the calls that wait for approval. */
  async pending({ limit = 0 } = {}): Promise<ToolCall[]> {
    const { calls } = await this.transport.unary(tools.pending, { ...this.place, limit });
    return calls.map((call) => new ToolCall(call));
  }

  /** Waits until a call is decided or has ended, or until the timeout. The status says which. */
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

  /** Returns a result by call id or revision: all of it, lines or bytes. */
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
   * Answers a call of the policy's `read_tool`, which reads shortened results again. Pass the
   * arguments as the model wrote them.
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

  /** Returns the result of the n-th call of the tool with these arguments; 0 for the last. */
  async recorded(
    tool: string,
    args: unknown = {},
    occurrence = 0,
  ): Promise<ToolResultRecorded | undefined> {
    const request = { ...this.place, tool, arguments: asJsonBytes(args), occurrence };
    const answer = await this.transport.unary(tools.recorded, request);
    return answer.found ? answer.result : undefined;
  }

  /** Returns recorded results instead of running tools, to run an agent again. */
  replay(): Replay {
    return new Replay(this);
  }

  /** Lists the result digests of finished calls, newest first. */
  async snapshots({ asOf = 0, limit = 0 } = {}): Promise<messages.ToolSnapshot[]> {
    const request = { ...this.place, asOfRevision: asOf, limit };
    return (await this.transport.unary(tools.snapshots, request)).snapshots;
  }

  /** Returns tool observations: files, variables, the working directory, successful tools. */
  async knowledge({ asOf = 0, recent = 0, tool = "" } = {}): Promise<messages.KnowledgeResponse> {
    const request = { ...this.place, asOfRevision: asOf, recent, tool };
    return this.transport.unary(tools.knowledge, request);
  }

  /** Fills empty file and variable arguments of a call from tool observations. */
  async suggestArguments(
    tool: string,
    args: unknown = {},
  ): Promise<messages.SuggestArgumentsResponse> {
    const request = { ...this.place, tool, arguments: asJsonBytes(args) };
    return this.transport.unary(tools.suggestArguments, request);
  }

  /** Returns the tools that should have succeeded before this one, but have not. */
  async missingPrerequisites(tool: string): Promise<string[]> {
    return (await this.transport.unary(tools.missingPrerequisites, { ...this.place, tool }))
      .missing;
  }

  /** Returns guidance on what to do next, as a sentence or two for a prompt. */
  async guidance(): Promise<string> {
    return (await this.transport.unary(tools.guidance, this.place)).guidance;
  }
}
