// Events on their way in, for `conv.append([...])`: a batch is stored whole or not at all.
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
import { type Content, parts } from "./parts.js";
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

export { audio, type Content, file, image, json, type Part, reasoning, refusal } from "./parts.js";

type Body = NonNullable<NewEvent["body"]>;

function event(body: Body): NewEvent {
  return { ...NewEvent.fromPartial({}), body };
}

const requirement = (needsApproval = false): ApprovalRequirement =>
  needsApproval ? ApprovalRequirement.PENDING : ApprovalRequirement.NOT_REQUIRED;

// ---- messages ----

/** What a message carries beside its content. */
export interface MessageOptions {
  author?: string | undefined;
  /** The provider's id. */
  messageId?: string | undefined;
  finishReason?: string | undefined;
  usage?: Usage | undefined;
  /** The message as its source wrote it. */
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
 * What a message said beside its parts, for `raw`: an object of its other fields. `origin` is
 * the shape that it had; an export in that shape has them again.
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

/** What the user said. */
export const user = (content: Content, options: MessageOptions = {}): NewEvent =>
  message("user", content, options);

/** What the model said. */
export const assistant = (content: Content, options: MessageOptions = {}): NewEvent =>
  message("assistant", content, options);

/** Tokens as the provider reported them. */
export function usage(tokens: {
  input?: number | undefined;
  output?: number | undefined;
  cacheRead?: number | undefined;
  cacheCreation?: number | undefined;
  reasoning?: number | undefined;
  model?: string | undefined;
}): Usage {
  return {
    inputTokens: tokens.input ?? 0,
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

/** A prompt that stands as the first message of the user from here on. */
export const userPrompt = (content: string, { id = "" } = {}): NewEvent =>
  event({ $case: "userPromptSet", value: { id, content } });

// ---- tool calls ----

/** What a tool on offer says of itself beside its schema. */
export interface ToolOptions {
  needsApproval?: boolean;
  /** How to use it: told once, when it is discovered. */
  guidance?: string;
  /** Offered only after it was discovered. */
  discoverable?: boolean;
  /** The model keeps to the schema exactly; for OpenAI's requests. */
  strict?: boolean | undefined;
  source?: string;
}

/** A tool on offer, for `tools`. */
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

/** The tools on offer from here on. */
export const tools = (definitions: Iterable<ToolDefinition>): NewEvent =>
  event({ $case: "toolsDefined", value: { tools: [...definitions] } });

/** Tools that were found, and are offered from here on. */
export const toolsDiscovered = (names: Iterable<string>): NewEvent =>
  event({ $case: "toolsDiscovered", value: { names: [...names] } });

/** How to use tools: tool to text. */
export function guidanceGiven(texts: Readonly<Record<string, string>>): NewEvent {
  const guidance = Object.entries(texts).map(([tool, text]) => ({ tool, text }));
  return event({ $case: "guidanceGiven", value: { guidance } });
}

/** What a call says beside its arguments. */
export interface AskedOptions {
  needsApproval?: boolean | undefined;
  messageRevision?: number | undefined;
  /** The provider's id of the item beside the call's (OpenAI Responses: `fc_…`). */
  itemId?: string | undefined;
  /** The call as its source wrote it, where that says more. */
  raw?: RawMessage | undefined;
}

/**
 * What a model asks for. Arguments that are bytes or a string are kept as they are, also when
 * they are no JSON.
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
      // The server looks, and says it.
      argumentsNotJson: false,
      itemId: options.itemId ?? "",
      raw: options.raw,
    },
  });
}

/** Somebody runs the call. */
export const toolStarted = (callId: string, { executor = "" } = {}): NewEvent =>
  event({ $case: "toolCallStarted", value: { callId, executor } });

/** What a result says beside its content. */
export interface ResultOptions {
  /** It worked (true). */
  success?: boolean | undefined;
  /** What went wrong. */
  error?: string | undefined;
  /** How long the tool ran. */
  milliseconds?: number | undefined;
  /** The result in a structured form: anything that JSON can say. */
  structured?: unknown;
  /** The result as its source wrote it, where that says more. */
  raw?: RawMessage | undefined;
}

/** What a tool returned. */
export function toolResult(
  callId: string,
  content: Content = [],
  options: ResultOptions = {},
): NewEvent {
  return event({
    $case: "toolResultRecorded",
    value: {
      callId,
      success: options.success ?? true,
      errorMessage: options.error ?? "",
      executionTimeMs: options.milliseconds,
      parts: parts(content),
      structured:
        options.structured === undefined ? new Uint8Array(0) : jsonBytes(options.structured),
      raw: options.raw,
    },
  });
}

/** The call ended without a result. */
export function toolCancelled(
  callId: string,
  reason: CancelReasonName = "interrupted",
  detail = "",
): NewEvent {
  const value = { callId, reason: number<CancelReason>(CancelReason, reason), detail };
  return event({ $case: "toolCallCancelled", value });
}

/** A finished call in short. */
export const toolSnapshot = (
  callId: string,
  summary: string,
  { requestRevision = 0 } = {},
): NewEvent =>
  event({ $case: "toolSnapshotRecorded", value: { callId, requestRevision, summary } });

/** Somebody's word on a call, for exactly the arguments that have this hash. */
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

/** What a conversation begins with. */
export interface CreatedOptions {
  config?: Config | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** `{ context: {...} }` is how its requests are built. */
  policies?: Readonly<Record<string, unknown>> | undefined;
  source?: string | undefined;
  sourceId?: string | undefined;
  sourceMeta?: unknown;
  /** What is kept with it, name to value. */
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

/** The branch is the one that is meant when none is named. */
export const branchActivated = (): NewEvent => event({ $case: "branchActivated", value: {} });

/** What a conversation is called and what is kept with it; what is not named stays. */
export interface Changes {
  title?: string | undefined;
  /** null: the label goes. */
  labels?: Readonly<Record<string, string | null>> | undefined;
  /** undefined: it goes; null is JSON's null. */
  metadata?: Readonly<Record<string, unknown>> | undefined;
}

/** A conversation's new title, labels and metadata. */
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

/** The branch takes nothing more. */
export const branchArchived = (reason = ""): NewEvent =>
  event({ $case: "branchArchived", value: { reason } });

/** The conversation takes nothing more. */
export const sealed = (reason = "", summary = ""): NewEvent =>
  event({ $case: "conversationSealed", value: { reason, summary } });

// ---- context, summaries, judgements ----

/** A key of the active context. */
export const contextSet = (key: string, value: unknown, { provider = "" } = {}): NewEvent =>
  event({ $case: "contextSet", value: { key, value: jsonBytes(value), provider } });

/** A key of the active context goes. */
export const contextRemoved = (key: string): NewEvent =>
  event({ $case: "contextRemoved", value: { key } });

/** What the conversation is about. */
export const entitiesNoted = (
  noted: Iterable<{ id: string; kind?: string; name?: string }>,
): NewEvent => {
  const entities = [...noted].map(({ id, kind = "", name = "" }) => ({ id, kind, name }));
  return event({ $case: "entitiesNoted", value: { entities } });
};

/** A summary of the dialogue, which the next request holds. */
export const summary = (content: string, { fromRevision = 0, toRevision = 0 } = {}): NewEvent =>
  event({ $case: "summaryRecorded", value: { content, fromRevision, toRevision } });

/** A summary that stands for everything up to a revision. See `conv.compact`. */
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

/** A judgement. */
export interface AnnotationOptions {
  /** The whole turn that the event is in. */
  wholeTurn?: boolean;
  score?: number;
  label?: string;
  comment?: string;
}

/** A judgement on an event, a turn, or (without a revision) the branch. */
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

/** What an event is found by: a key, the newest event with which is its latest, and more. */
export interface FoundBy {
  /** Need not be unique. */
  key?: string | undefined;
  attributes?: Readonly<Record<string, string>> | undefined;
}

/** The same event, with what it is found by. Both are content: erased with the event. */
export const foundBy = (event: NewEvent, { key = "", attributes = {} }: FoundBy): NewEvent => ({
  ...event,
  key: key || event.key,
  attributes: { ...event.attributes, ...attributes },
});

/**
 * An event of your own. Bytes are kept as they are, all else is kept as JSON. A search finds it
 * by its `text`. `deltaOf` is the key of an event that this one is much like, the state of the
 * step before for example: the store then keeps what is different, and every read gives the
 * whole. A state that is given the same key each time names itself:
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
 * The same event, with an id of yours: a UUID of version 1 to 7, once in the namespace. An
 * append with an id that is there is refused (`EventIdTaken`), or with `skipKnown` passes over
 * it when its content is the same, else `EventIdConflict`.
 *
 *     const mine = make.withId(make.user("Once."), crypto.randomUUID());
 *     await conv.append([mine]);
 *     const again = await conv.append([mine, make.user("And on.")], { skipKnown: true });
 *     again.known; // [0]
 */
export const withId = (event: NewEvent, id: string): NewEvent => ({ ...event, id });

/**
 * The same event, with an idempotency key of its own: appended again, in whatever batch, it is
 * passed over, and the receipt says where it is (`known`). With other content the batch is
 * refused (`IdempotencyConflict`).
 *
 *     const feed = lines.map((text) => make.once(make.user(text), `line/${text}`));
 *     await conv.append(feed.slice(0, 2));
 *     (await conv.append(feed)).known; // [0, 1]
 */
export const once = (event: NewEvent, idempotencyKey: string): NewEvent => ({
  ...event,
  idempotencyKey,
});

/** The same event, with the time at which it happened (which is otherwise now). */
export const happened = (event: NewEvent, at: Date): NewEvent => ({ ...event, occurredAt: at });
