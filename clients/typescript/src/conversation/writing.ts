// Appends to a conversation: messages, answers, settings.

import { type AskedCall, readAnswer, readMessages } from "../answers.js";
import { Answer, Call, type CallHost, type RecordResultOptions } from "../calls.js";
import type { NewEvent, ToolDefinition, Usage } from "../gen/treering/v1/event.js";
import { callIdOf, keyOrNew, unique } from "../keys.js";
import * as make from "../make.js";
import { conversations, events as eventMethods, tools } from "../methods.js";
import type { Content, Output } from "../parts.js";
import type { AppendOptions, WriteOptions } from "../requests.js";
import * as requests from "../requests.js";
import type { Transport } from "../transport.js";
import { Receipt, type ToolCall } from "../types.js";
import type { Parsed, ProviderName } from "../words.js";

/** Whether calls need approval: all of them, or a function of the tool and its arguments. */
export type NeedsApproval = boolean | ((tool: string, args: Parsed) => boolean);

/** Options of an answer. */
export interface AnswerOptions extends AppendOptions {
  /** The tool calls of the answer. */
  toolCalls?: Iterable<AskedCall> | undefined;
  needsApproval?: NeedsApproval | undefined;
  usage?: Usage | undefined;
  /** The provider's id of the answer. */
  messageId?: string | undefined;
  finishReason?: string | undefined;
}

/** A new id for a call. */
export const newCallId = (): string => `call_${unique(24)}`;

/** The methods that append to a conversation. */
export abstract class Writing implements CallHost {
  constructor(
    protected readonly transport: Transport,
    /** UUID or source id. */
    readonly id: string,
    /** Name of the branch; empty for the active branch. */
    readonly branch: string,
    /** Default actor of appended events. */
    readonly actor: string,
  ) {}

  abstract waitForDecision(
    callId: string,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<ToolCall>;

  /** The conversation and the branch, as requests name them. */
  protected get place(): { conversationId: string; branch: string } {
    return { conversationId: this.id, branch: this.branch };
  }

  /**
   * Appends events: all or none. They are on disk when the promise is fulfilled.
   *
   *     await conv.append([make.user("Hello"), make.assistant("Hello to you.")]);
   *
   * Events may have ids or keys of their own (`make.withId`, `make.once`), and an append may expect
   * the newest event with a key:
   *
   *     const plan = make.foundBy(make.user("The plan."), { key: "plan" });
   *     const first = await conv.append([plan], { expectedKeys: { plan: null } });
   *     await conv.append([plan], { expectedKeys: { plan: first.revision } });
   */
  async append(events: readonly NewEvent[], options: AppendOptions = {}): Promise<Receipt> {
    const { key, life, harmless } = requests.appendKeys(events, options);
    const { expected, expectedKeys, skipKnown } = options;
    const request = requests.append(this.id, this.branch, events, {
      expected,
      expectedKeys,
      skipKnown,
      key,
      life,
      actor: this.actor,
    });
    return this.wrote(
      await this.transport.unary(eventMethods.append, request, { ...options, key: harmless }),
    );
  }

  protected wrote(answer: ConstructorParameters<typeof Receipt>[0]): Receipt {
    const receipt = new Receipt(answer);
    this.transport.saw(receipt.position);
    return receipt;
  }

  /** Appends a user message: texts, and parts such as `make.image(...)`. */
  async user(
    content: Content,
    options: AppendOptions & { author?: string } = {},
  ): Promise<Receipt> {
    return this.append([make.user(content, { author: options.author })], options);
  }

  /**
   * Appends an assistant message with its tool calls, in one batch.
   *
   *     const answer = await conv.assistant("I look.", {
   *       toolCalls: [{ id: "a", tool: "ls", arguments: { path: "." } }],
   *     });
   *     for (const call of answer.calls) await call.run(ls);
   */
  async assistant(content: Content = [], options: AnswerOptions = {}): Promise<Answer> {
    const { usage, messageId, finishReason, needsApproval = false } = options;
    const asked = [...(options.toolCalls ?? [])];
    const calls = asked.map(({ id, tool, arguments: args = {} }) => {
      const call = new Call(this, tool, args, { callId: id || newCallId(), isRequested: true });
      if (!isNeeded(needsApproval, call)) return call;
      return new Call(this, tool, args, {
        callId: call.callId,
        isRequested: true,
        needsApproval: true,
      });
    });
    const isSilent = typeof content !== "string" && Array.isArray(content) && content.length === 0;
    const events = calls.map((call, index) =>
      make.toolCall(call.callId, call.tool, call.rawArguments, {
        needsApproval: call.needsApproval,
        itemId: asked[index]?.itemId,
      }),
    );
    if (!isSilent || calls.length === 0) {
      events.unshift(make.assistant(content, { usage, messageId, finishReason }));
    }
    return new Answer(await this.append(events, options), calls);
  }

  /**
   * Appends a provider's answer: text, reasoning, tool calls and usage. `response` is the object of
   * the provider's package.
   */
  async record(
    provider: ProviderName,
    response: unknown,
    options: AppendOptions & { needsApproval?: NeedsApproval } = {},
  ): Promise<Answer> {
    const { parts, calls, ...facts } = readAnswer(provider, response);
    const { idempotencyKey: key } = options;
    // Missing ids are derived from the idempotency key, so that a retry appends the same calls.
    const toolCalls = key
      ? calls.map((call, place) => ({ ...call, id: call.id || callIdOf(`${key}/${place}`) }))
      : calls;
    return this.assistant(parts, { ...options, ...facts, toolCalls });
  }

  /**
   * Appends a list of messages in the format of OpenAI (`openai-chat`) or Anthropic: all or none.
   */
  async extend(
    provider: ProviderName,
    messages: Iterable<unknown>,
    options: AppendOptions = {},
  ): Promise<Receipt> {
    return this.append(readMessages(provider, messages), options);
  }

  /** Sets the system prompt from here on. */
  async system(prompt: string, options: AppendOptions = {}): Promise<Receipt> {
    return this.append([make.system(prompt)], options);
  }

  /** Sets the available tools from here on: see `make.tool`. */
  async defineTools(
    definitions: Iterable<ToolDefinition>,
    options: AppendOptions = {},
  ): Promise<Receipt> {
    return this.append([make.tools(definitions)], options);
  }

  /** Sets the model and its settings from here on. */
  async configure(
    model: string,
    settings: make.ConfigOptions & AppendOptions = {},
  ): Promise<Receipt> {
    return this.append([make.configChanged(make.config(model, settings))], settings);
  }

  /** Annotates an event, a turn, or (revision 0) the branch, for example to compare forks. */
  async annotate(
    revision: number,
    judgement: make.AnnotationOptions & AppendOptions,
  ): Promise<Receipt> {
    return this.append([make.annotation(revision, judgement)], judgement);
  }

  /** Appends a custom event. Bytes are stored unchanged, other values as JSON. */
  async custom(
    typeName: string,
    data: unknown,
    options: AppendOptions & { contentType?: string } = {},
  ): Promise<Receipt> {
    const { contentType = "" } = options;
    return this.append([make.custom(typeName, data, { contentType })], options);
  }

  /** Seals the conversation: it accepts no appends and stays readable. */
  async seal(
    reason = "",
    { summary = "", ...options }: WriteOptions & { summary?: string } = {},
  ): Promise<Receipt> {
    const key = keyOrNew(options.idempotencyKey);
    const request = {
      conversationId: this.id,
      reason,
      summary,
      idempotencyKey: key,
      actor: this.actor,
    };
    return this.wrote(await this.transport.unary(conversations.seal, request, { ...options, key }));
  }

  /**
   * Appends the result of an open call, up to 64 MiB less 64 KiB. Large texts are sent in pieces.
   */
  async toolResult(
    callId: string,
    content: Output = [],
    options: RecordResultOptions = {},
  ): Promise<Receipt> {
    const event = make.toolResult(callId, content, options);
    const result = event.body?.$case === "toolResultRecorded" ? event.body.value : undefined;
    const text = result && requests.largeText(result);
    if (!text) return this.append([event], options);
    const key = keyOrNew(options.idempotencyKey);
    const to = { ...this.place, idempotencyKey: key, actor: this.actor };
    const pieces = () => requests.inChunks(result, text, to);
    return this.wrote(
      await this.transport.sendMany(tools.recordResult, pieces, { ...options, key }),
    );
  }
}

const isNeeded = (needs: NeedsApproval, call: Call): boolean =>
  typeof needs === "boolean" ? needs : needs(call.tool, call.arguments);
