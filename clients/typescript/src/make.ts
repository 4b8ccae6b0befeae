// Makes events for `conv.append([...])`.
//
//     await conv.append([
//       make.user("Where is the port set?"),
//       make.assistant("I look for it."),
//       make.toolCall("call_1", "grep", { pattern: "port" }),
//       make.toolResult("call_1", "src/config.py:12: PORT = 7171"),
//     ]);
//
// `Conversation` has a method for most of these; use the functions where several events
// belong together. Each returns a `NewEvent`, which you can change before it is appended.

import {
  ApprovalRequirement,
  CancelReason,
  CompactionTrigger,
  type Config,
  Decision,
  NewEvent,
  type ParentRef,
  RawEncoding,
  type RawMessage,
  Role,
  type ToolDefinition,
  type Usage,
} from "./gen/treering/v1/event.js";
import { type Content, type Output, outputs, parts } from "./parts.js";
import {
  asJsonBytes,
  type CancelReasonName,
  type CompactionTriggerName,
  type DecisionName,
  jsonBytes,
  jsonTexts,
  number,
  type RoleName,
} from "./words.js";

export {
  audio,
  type Content,
  file,
  image,
  json,
  type Output,
  type Part,
  reasoning,
  refusal,
} from "./parts.js";

type Body = NonNullable<NewEvent["body"]>;

function event(body: Body): NewEvent {
  return { ...NewEvent.fromPartial({}), body };
}

const requirement = (needsApproval = false): ApprovalRequirement =>
  needsApproval ? ApprovalRequirement.PENDING : ApprovalRequirement.NOT_REQUIRED;

// ---- messages ----

/** Options of a message. */
export interface MessageOptions {
  author?: string | undefined;
  /** The provider's id. */
  messageId?: string | undefined;
  finishReason?: string | undefined;
  usage?: Usage | undefined;
  /** The original message. */
  raw?: RawMessage | undefined;
}

/** A message. */
export function message(role: RoleName, content: Content, options: MessageOptions = {}): NewEvent {
  return event({
    $case: "messageAppended",
    value: {
      role: number<Role>(Role, role),
      parts: parts(content),
      author: options.author ?? "",
      messageId: options.messageId ?? "",
      finishReason: options.finishReason ?? "",
      usage: options.usage,
      raw: options.raw,
      toolCallId: "",
      toolName: "",
    },
  });
}

/**
 * The other fields of a provider's message, for `raw`. `origin` is its format; an export in that
 * format contains the fields again.
 *
 *     const raw = make.rest({ annotations: [], phase: "final" }, { origin: "openai-chat" });
 *     await conv.append([make.assistant("Found it.", { raw })]);
 */
export function rest(
  fields: Readonly<Record<string, unknown>>,
  { origin, provider = "", model = "" }: { origin: string; provider?: string; model?: string },
): RawMessage {
  return { origin, provider, model, encoding: RawEncoding.REST, data: jsonBytes(fields) };
}

/** A user message. */
export const user = (content: Content, options: MessageOptions = {}): NewEvent =>
  message("user", content, options);

/** An assistant message. */
export const assistant = (content: Content, options: MessageOptions = {}): NewEvent =>
  message("assistant", content, options);

/**
 * Token usage as the provider reported it. Anthropic reports input without cached tokens (`input`),
 * OpenAI and Gemini report it with them (`inputWithCached`). `output` includes reasoning.
 */
export function usage(tokens: {
  input?: number | undefined;
  inputWithCached?: number | undefined;
  output?: number | undefined;
  cacheRead?: number | undefined;
  cacheCreation?: number | undefined;
  reasoning?: number | undefined;
  model?: string | undefined;
}): Usage {
  const cached = (tokens.cacheRead ?? 0) + (tokens.cacheCreation ?? 0);
  const input = tokens.inputWithCached
    ? Math.max(0, tokens.inputWithCached - cached)
    : (tokens.input ?? 0);
  return {
    inputTokens: input,
    outputTokens: tokens.output ?? 0,
    cacheReadInputTokens: tokens.cacheRead ?? 0,
    cacheCreationInputTokens: tokens.cacheCreation ?? 0,
    reasoningOutputTokens: tokens.reasoning ?? 0,
    model: tokens.model ?? "",
  };
}

/** The system prompt from here on. */
export const system = (content: string, { id = "" } = {}): NewEvent =>
  event({ $case: "systemPromptSet", value: { id, content } });

/** A prompt that is the first user message from here on. */
export const userPrompt = (content: string, { id = "" } = {}): NewEvent =>
  event({ $case: "userPromptSet", value: { id, content } });

// ---- tool calls ----

/** Options of a tool definition. */
export interface ToolOptions {
  needsApproval?: boolean;
  /** Guidance, given once when the tool is discovered. */
  guidance?: string;
  /** Available only after it was discovered. */
  discoverable?: boolean;
  /** The model must follow the schema exactly; for requests for OpenAI. */
  strict?: boolean | undefined;
  source?: string;
}

/** A tool definition, for `tools`. */
export function tool(
  name: string,
  description = "",
  inputSchema: Readonly<Record<string, unknown>> = { type: "object" },
  options: ToolOptions = {},
): ToolDefinition {
  return {
    name,
    description,
    inputSchema: jsonBytes(inputSchema),
    approval: requirement(options.needsApproval),
    guidance: options.guidance ?? "",
    discoverable: options.discoverable ?? false,
    strict: options.strict,
    source: options.source ?? "",
  };
}

/** The available tools from here on. */
export const tools = (definitions: Iterable<ToolDefinition>): NewEvent =>
  event({ $case: "toolsDefined", value: { tools: [...definitions] } });

/** Discovered tools, which are available from here on. */
export const toolsDiscovered = (names: Iterable<string>): NewEvent =>
  event({ $case: "toolsDiscovered", value: { names: [...names] } });

/** Guidance on tools: a text for each tool. */
export function guidanceGiven(texts: Readonly<Record<string, string>>): NewEvent {
  const guidance = Object.entries(texts).map(([tool, text]) => ({ tool, text }));
  return event({ $case: "guidanceGiven", value: { guidance } });
}

/** Options of a call. */
export interface AskedOptions {
  needsApproval?: boolean | undefined;
  messageRevision?: number | undefined;
  /** The provider's item id (OpenAI Responses: `fc_…`). */
  itemId?: string | undefined;
  /** The original call, if it has more fields. */
  raw?: RawMessage | undefined;
}

/**
 * A tool call. Arguments that are bytes or a string are stored unchanged, even if they are not
 * JSON.
 */
export function toolCall(
  callId: string,
  tool: string,
  args: unknown = {},
  options: AskedOptions = {},
): NewEvent {
  return event({
    $case: "toolCallRequested",
    value: {
      callId,
      tool,
      arguments: asJsonBytes(args),
      approval: requirement(options.needsApproval),
      messageRevision: options.messageRevision ?? 0,
      // The server sets it.
      argumentsNotJson: false,
      itemId: options.itemId ?? "",
      raw: options.raw,
    },
  });
}

/** The start of a call. */
export const toolStarted = (callId: string, { executor = "" } = {}): NewEvent =>
  event({ $case: "toolCallStarted", value: { callId, executor } });

/** Options of a result. */
export interface ResultOptions {
  /** The tool succeeded (default true). */
  success?: boolean | undefined;
  /** The error message. */
  error?: string | undefined;
  /** How long the tool ran. */
  milliseconds?: number | undefined;
  /** The structured result: any JSON value. */
  structured?: unknown;
  /** The original result, if it has more fields. */
  raw?: RawMessage | undefined;
}

/** A tool result. */
export function toolResult(
  callId: string,
  content: Output = [],
  options: ResultOptions = {},
): NewEvent {
  return event({
    $case: "toolResultRecorded",
    value: {
      callId,
      success: options.success ?? true,
      errorMessage: options.error ?? "",
      executionTimeMs: options.milliseconds,
      parts: outputs(content),
      structured:
        options.structured === undefined ? new Uint8Array(0) : jsonBytes(options.structured),
      raw: options.raw,
    },
  });
}

/** A cancellation: the call ended without a result. */
export function toolCancelled(
  callId: string,
  reason: CancelReasonName = "interrupted",
  detail = "",
): NewEvent {
  const value = { callId, reason: number<CancelReason>(CancelReason, reason), detail };
  return event({ $case: "toolCallCancelled", value });
}

/** A result digest: a short form of a finished call. */
export const toolSnapshot = (
  callId: string,
  summary: string,
  { requestRevision = 0 } = {},
): NewEvent =>
  event({ $case: "toolSnapshotRecorded", value: { callId, requestRevision, summary } });

/** A decision on a call, for exactly the arguments with this hash. */
export function decision(
  callId: string,
  word: DecisionName,
  argumentsHash: Uint8Array,
  { by = "", reason = "" } = {},
): NewEvent {
  return event({
    $case: "approvalDecided",
    value: {
      callId,
      decision: number<Decision>(Decision, word),
      argumentsHash,
      decidedBy: by,
      reason,
    },
  });
}

// ---- conversations and branches ----

/** Settings of a model. */
export interface ConfigOptions {
  /** For example "planning" or "coding". */
  mode?: string | undefined;
  /** Such as `temperature`. */
  parameters?: Readonly<Record<string, unknown>> | undefined;
}

/** Model settings. */
export const config = (model = "", options: ConfigOptions = {}): Config => ({
  modelId: model,
  mode: options.mode ?? "",
  parameters: jsonTexts(options.parameters),
});

/** Options of a new conversation. */
export interface CreatedOptions {
  config?: Config | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** `{ context: {...} }` is the policy for requests. */
  policies?: Readonly<Record<string, unknown>> | undefined;
  source?: string | undefined;
  sourceId?: string | undefined;
  sourceMeta?: unknown;
  /** Metadata: names and values. */
  metadata?: Readonly<Record<string, unknown>> | undefined;
  parent?: ParentRef | undefined;
}

/** The first event of a conversation. */
export function created(title = "", options: CreatedOptions = {}): NewEvent {
  return event({
    $case: "conversationCreated",
    value: {
      title,
      config: options.config,
      labels: { ...options.labels },
      parent: options.parent,
      sharesHistory: false,
      policies: jsonTexts(options.policies),
      source: options.source ?? "",
      sourceId: options.sourceId ?? "",
      sourceMeta:
        options.sourceMeta === undefined ? new Uint8Array(0) : jsonBytes(options.sourceMeta),
      metadata: jsonTexts(options.metadata),
    },
  });
}

/** The model settings from here on. */
export const configChanged = (config: Config): NewEvent =>
  event({ $case: "configChanged", value: { config } });

/** Makes the branch the active branch. */
export const branchActivated = (): NewEvent => event({ $case: "branchActivated", value: {} });

/** Changes of a conversation; other values stay. */
export interface Changes {
  title?: string | undefined;
  /** null removes the label. */
  labels?: Readonly<Record<string, string | null>> | undefined;
  /** `undefined` removes the value; null is JSON's null. */
  metadata?: Readonly<Record<string, unknown>> | undefined;
}

/** Changes of title, labels and metadata. */
export const conversationChanged = ({ title, labels = {}, metadata = {} }: Changes): NewEvent => {
  const entries = Object.entries(labels);
  const set = entries.filter((entry): entry is [string, string] => entry[1] !== null);
  const kept = Object.entries(metadata).filter(([, value]) => value !== undefined);
  return event({
    $case: "conversationChanged",
    value: {
      title,
      setLabels: Object.fromEntries(set),
      removeLabels: entries.filter(([, value]) => value === null).map(([name]) => name),
      setMetadata: jsonTexts(Object.fromEntries(kept)),
      removeMetadata: Object.keys(metadata).filter((name) => metadata[name] === undefined),
    },
  });
};

/** The branch's new name. */
export const branchRenamed = (name: string): NewEvent =>
  event({ $case: "branchRenamed", value: { name } });

/** Archives the branch: it accepts no appends. */
export const branchArchived = (reason = ""): NewEvent =>
  event({ $case: "branchArchived", value: { reason } });

/** Seals the conversation: it accepts no appends. */
export const sealed = (reason = "", summary = ""): NewEvent =>
  event({ $case: "conversationSealed", value: { reason, summary } });

// ---- context, summaries, judgements ----

/** Sets a key of the active context. */
export const contextSet = (key: string, value: unknown, { provider = "" } = {}): NewEvent =>
  event({ $case: "contextSet", value: { key, value: jsonBytes(value), provider } });

/** Removes a key of the active context. */
export const contextRemoved = (key: string): NewEvent =>
  event({ $case: "contextRemoved", value: { key } });

/** Entities that the conversation is about. */
export const entitiesNoted = (
  noted: Iterable<{ id: string; kind?: string; name?: string }>,
): NewEvent => {
  const entities = [...noted].map(({ id, kind = "", name = "" }) => ({ id, kind, name }));
  return event({ $case: "entitiesNoted", value: { entities } });
};

/** A summary of the dialogue, which is part of the next request. */
export const summary = (content: string, { fromRevision = 0, toRevision = 0 } = {}): NewEvent =>
  event({ $case: "summaryRecorded", value: { content, fromRevision, toRevision } });

/** A compaction: a summary that replaces everything up to a revision. See `conv.compact`. */
export function compacted(
  summary: string,
  cutRevision: number,
  { trigger = "manual" }: { trigger?: CompactionTriggerName } = {},
): NewEvent {
  return event({
    $case: "compacted",
    value: {
      summary,
      cutRevision,
      keptTurns: 0,
      tokensBefore: 0,
      tokensAfter: 0,
      trigger: number<CompactionTrigger>(CompactionTrigger, trigger),
      raw: undefined,
    },
  });
}

/** Options of an annotation. */
export interface AnnotationOptions {
  /** The whole turn that the event is in. */
  wholeTurn?: boolean;
  score?: number;
  label?: string;
  comment?: string;
}

/** An annotation of an event, a turn, or (without a revision) the branch. */
export const annotation = (targetRevision = 0, options: AnnotationOptions = {}): NewEvent =>
  event({
    $case: "annotationAdded",
    value: {
      targetRevision,
      wholeTurn: options.wholeTurn ?? false,
      score: options.score,
      label: options.label ?? "",
      comment: options.comment ?? "",
    },
  });

/** Key and attributes, by which you can find an event. */
export interface FoundBy {
  /** Need not be unique. */
  key?: string | undefined;
  attributes?: Readonly<Record<string, string>> | undefined;
}

/**
 * Returns the event with a key and attributes, by which you can find it. Erasing the event removes
 * both.
 */
export const foundBy = (event: NewEvent, { key = "", attributes = {} }: FoundBy): NewEvent => ({
  ...event,
  key: key || event.key,
  attributes: { ...event.attributes, ...attributes },
});

/**
 * A custom event. Bytes are stored unchanged, other values as JSON. Search finds it by its `text`.
 * `deltaOf` is the key of a similar event, for example the previous state: the store then keeps
 * only the difference, and reads return the whole. Successive states can share one key:
 * `custom("state", state, { key: "state", deltaOf: "state" })`.
 */
export function custom(
  typeName: string,
  data: unknown,
  {
    contentType = "",
    text = "",
    deltaOf = "",
    ...by
  }: FoundBy & { contentType?: string; text?: string; deltaOf?: string } = {},
): NewEvent {
  const isBytes = data instanceof Uint8Array;
  const usual = isBytes ? "application/octet-stream" : "application/json";
  const value = {
    typeName,
    contentType: contentType || usual,
    data: isBytes ? data : jsonBytes(data),
    text,
    deltaOf,
  };
  return foundBy(event({ $case: "custom", value }), by);
}

/**
 * Returns the event with an id of your choice: a UUID of version 1 to 7, unique in the namespace.
 * An append with a known id is refused (`EventIdTaken`). With `skipKnown` the event is skipped if
 * its content is the same, and otherwise refused (`EventIdConflict`).
 *
 *     const mine = make.withId(make.user("Once."), crypto.randomUUID());
 *     await conv.append([mine]);
 *     const again = await conv.append([mine, make.user("And on.")], { skipKnown: true });
 *     again.known; // [0]
 */
export const withId = (event: NewEvent, id: string): NewEvent => ({ ...event, id });

/**
 * Returns the event with its own idempotency key. If it is appended again, in any batch, it is
 * skipped and listed in `known` of the receipt. With other content the batch is refused
 * (`IdempotencyConflict`).
 *
 *     const feed = lines.map((text) => make.once(make.user(text), `line/${text}`));
 *     await conv.append(feed.slice(0, 2));
 *     (await conv.append(feed)).known; // [0, 1]
 */
export const once = (event: NewEvent, idempotencyKey: string): NewEvent => ({
  ...event,
  idempotencyKey,
});

/** Returns the event with the time when it happened (default: now). */
export const happened = (event: NewEvent, at: Date): NewEvent => ({ ...event, occurredAt: at });
