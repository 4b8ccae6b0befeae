// Every method of the API: its path, its messages, and whether it needs an idempotency key.
// Names and messages come from the generated code; a test checks that no method is missing.

import type { BinaryWriter } from "@bufbuild/protobuf/wire";
import { AdminDefinition } from "./gen/treering/v1/admin.js";
import { ContextsDefinition } from "./gen/treering/v1/context.js";
import { ConversationsDefinition } from "./gen/treering/v1/conversation.js";
import { EventsDefinition } from "./gen/treering/v1/events.js";
import { ItemsDefinition } from "./gen/treering/v1/items.js";
import { SearchDefinition } from "./gen/treering/v1/search.js";
import { ToolsDefinition } from "./gen/treering/v1/tool.js";
import { StatusValue, StringValue } from "./health.js";

/** Encodes and decodes the messages of a type. */
export interface Codec<T> {
  encode(message: T, writer?: BinaryWriter): { finish(): Uint8Array };
  decode(input: Uint8Array): T;
}

/** A method of the API. */
export interface Method<Q, S> {
  /** gRPC path, such as `/treering.v1.Events/Append`. */
  readonly path: string;
  readonly request: Codec<Q>;
  readonly response: Codec<S>;
  /** The method writes: only an idempotency key makes a retry safe. */
  readonly needsKey: boolean;
}

interface Definition<Q, S> {
  readonly name: string;
  readonly requestType: Codec<Q>;
  readonly responseType: Codec<S>;
}

type Of<D> = D extends { requestType: Codec<infer Q>; responseType: Codec<infer S> }
  ? Method<Q, S>
  : never;

type Methods<M> = { readonly [name in keyof M]: Of<M[name]> };

// biome-ignore lint/suspicious/noExplicitAny: the types of each are inferred.
function methods<M extends Record<string, Definition<any, any>>>(
  service: { readonly fullName: string; readonly methods: M },
  withKey: readonly (keyof M)[] = [],
): Methods<M> {
  const all = Object.entries(service.methods).map(([name, definition]) => [
    name,
    {
      path: `/${service.fullName}/${definition.name}`,
      request: definition.requestType,
      response: definition.responseType,
      needsKey: withKey.includes(name),
    },
  ]);
  return Object.fromEntries(all) as Methods<M>;
}

export const events = methods(EventsDefinition, ["append", "appendStream"]);
export const conversations = methods(ConversationsDefinition, [
  "fork",
  "rewind",
  "renameBranch",
  "archiveBranch",
  "activateBranch",
  "seal",
]);
export const contexts = methods(ContextsDefinition, ["compact", "set", "spawn", "return"]);
export const items = methods(ItemsDefinition, ["batch"]);
export const tools = methods(ToolsDefinition, ["recordResult"]);
export const search = methods(SearchDefinition);
export const admin = methods(AdminDefinition);

/** The standard health service. */
export const health: Method<string, number> = {
  path: "/grpc.health.v1.Health/Check",
  request: StringValue,
  response: StatusValue,
  needsKey: false,
};
