// Client for Treering, an event-sourced context storage engine for LLM agents.
//
//     import * as treering from "treering";
//
//     await using db = treering.local("./store");
//     const conv = await db.create("First steps", { system: "You are brief." });
//     await conv.user("Where is the port set?");
//     const request = await conv.request("anthropic", { budget: 60_000 });
//
// `make` makes events for batches. The error classes say what to do.

export type { AskedCall } from "./answers.js";
export {
  Answer,
  Call,
  type CallOptions as ToolCallOptions,
  type RecordResultOptions,
  type ToolFunction,
} from "./calls.js";
export {
  type ClientOptions,
  type ConnectOptions,
  connect,
  type DecisionOptions,
  type Erased,
  type LocalOptions,
  type LogOptions,
  local,
  Treering,
} from "./client.js";
export type { ContextOptions } from "./context.js";
export type { CompactOptions, PlanOptions, Summariser } from "./conversation/compaction.js";
export {
  Conversation,
  type ForkOptions,
  type SpawnOptions,
  SubContext,
} from "./conversation/index.js";
export type { ResultRange } from "./conversation/tools.js";
export type { AnswerOptions, NeedsApproval } from "./conversation/writing.js";
export * from "./errors/index.js";
export type { CompactionPlan, Explanation } from "./gen/treering/v1/context.js";
export type {
  Branch,
  ConversationState,
  ConversationSummary,
} from "./gen/treering/v1/conversation.js";
export type { ContentPart, NewEvent, ToolDefinition, Usage } from "./gen/treering/v1/event.js";
export {
  Item,
  type ItemCondition,
  type ItemSearch,
  Items,
  itemOps,
  type PathsOptions,
  type PutOptions,
} from "./items.js";
export type { EventNamed } from "./lookup.js";
export * as make from "./make.js";
export type { Content, Output, Part } from "./parts.js";
export { Replay } from "./replay.js";
export type {
  AppendOptions,
  EraseOptions,
  EventFilters,
  LatestOptions,
  NewConversation,
  ReadOptions,
  RequestOptions,
  SearchFilters,
  WriteOptions,
} from "./requests.js";
export { ContextWatch, type SubscribeOptions, Subscription } from "./subscription.js";
export type { Time } from "./times.js";
export type { CallOptions } from "./transport.js";
export {
  BuiltRequest,
  type Compaction,
  type ContextChange,
  Difference,
  Event,
  Hit,
  Hits,
  Receipt,
  Rewound,
  ToolCall,
  ToolResult,
} from "./types.js";
export type {
  CallStatusName,
  CancelReasonName,
  CompactionTriggerName,
  DecisionName,
  KindName,
  ProviderName,
  QueryModeName,
  RoleName,
  SearchByName,
} from "./words.js";
