// The generated protobuf messages of the API, for fields that the client's types do not have.

export * as admin from "./gen/treering/v1/admin.js";
export * as context from "./gen/treering/v1/context.js";
export * as conversation from "./gen/treering/v1/conversation.js";
export * as event from "./gen/treering/v1/event.js";
export * as events from "./gen/treering/v1/events.js";
export * as search from "./gen/treering/v1/search.js";
export * as tool from "./gen/treering/v1/tool.js";
