// Treering from Node.js: a small client to copy from. It reads the API from
// `proto/` when it is loaded; there is nothing to generate.
//
//     npm install
//
//     import { Treering, created, message } from "./client.mjs";
//
//     const db = new Treering("127.0.0.1:7171");
//     const done = await db.append([created("First steps"), message("user", "Where is the port set?")]);
//     await db.search("port", { at_least: done.events.at(-1).position });

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import protobuf from "protobufjs";

export const PROTO = fileURLToPath(new URL("../../proto/", import.meta.url));

const services = ["events", "conversation", "context", "tool", "search"];
const definition = loader.loadSync(
  services.map((name) => `treering/v1/${name}.proto`),
  { includeDirs: [PROTO], keepCase: true, enums: String, longs: Number, defaults: true, oneofs: true },
);
const api = grpc.loadPackageDefinition(definition).treering.v1;

// google.rpc.Status and ErrorInfo: the messages in `grpc-status-details-bin`.
const { root: rpc } = protobuf.parse(
  `syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }`,
  { keepCase: true },
);

/** The first event of a conversation. */
export const created = (title) => ({ conversation_created: { title } });

/** A message. `role` is "system", "developer", "user", "assistant" or "tool". */
export const message = (role, text) => ({
  message_appended: { role: `ROLE_${role.toUpperCase()}`, parts: [{ text }] },
});

/** A tool call. `args` is any JSON value. */
export const toolCall = (call_id, tool, args, needsApproval = false) => ({
  tool_call_requested: {
    call_id,
    tool,
    arguments: Buffer.from(JSON.stringify(args)),
    approval: `APPROVAL_REQUIREMENT_${needsApproval ? "PENDING" : "NOT_REQUIRED"}`,
  },
});

/** A tool result. */
export const toolResult = (call_id, text) => ({
  tool_result_recorded: { call_id, success: true, parts: [{ text }] },
});

/** A decision ("approved" or "denied") on a call that `pending` lists. */
export const decision = (call, decided, by, reason = "") => ({
  approval_decided: {
    call_id: call.call_id,
    decision: `DECISION_${decided.toUpperCase()}`,
    // The decision is valid only for these arguments.
    arguments_hash: call.arguments_hash,
    decided_by: by,
    reason,
  },
});

/** The text of a stored message or tool result. */
export const textOf = (event) => (event[event.body].parts ?? []).map((part) => part.text).join("");

/** The reason of a refused call, and its facts. */
export function refusal(error) {
  const [bytes] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const details = bytes ? rpc.lookupType("Status").decode(bytes).details : [];
  const info = details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  if (!info) return { reason: "", facts: {} };
  const { reason, metadata } = rpc.lookupType("ErrorInfo").decode(info.value);
  return { reason, facts: metadata };
}

/** A connection. Every call works in one namespace. */
// TREERING_TOKEN is the API key, if the server requires one. `https://host:port` is a
// server with TLS; the file TREERING_CA has its CA (default: the public ones).
export class Treering {
  constructor(address, namespace = "default") {
    const { TREERING_CA: ca, TREERING_TOKEN: token } = process.env;
    const credentials = address.startsWith("https://")
      ? grpc.credentials.createSsl(ca ? readFileSync(ca) : null)
      : grpc.credentials.createInsecure();
    const connect = (Service) =>
      new Service(address.replace("https://", ""), credentials, {
        "grpc.max_receive_message_length": 64 << 20,
      });
    this.events = connect(api.Events);
    this.conversations = connect(api.Conversations);
    this.contexts = connect(api.Contexts);
    this.tools = connect(api.Tools);
    this.index = connect(api.Search);
    this.metadata = new grpc.Metadata();
    this.metadata.set("treering-namespace", namespace);
    if (token) this.metadata.set("authorization", `Bearer ${token}`);
  }

  /** A call with one answer, as a promise. */
  call(service, method, request, seconds = 30) {
    const options = { deadline: Date.now() + seconds * 1000 };
    return new Promise((resolve, reject) => {
      service[method](request, this.metadata, options, (error, answer) =>
        error ? reject(error) : resolve(answer),
      );
    });
  }

  /**
   * Appends all of the events or none. `expected`: the revision that the branch's
   * head must have. `key`: a repeated append with the same key and events changes nothing.
   */
  append(events, { conversation = "", branch = "", expected, key = "" } = {}) {
    return this.call(this.events, "Append", {
      conversation_id: conversation,
      branch,
      events,
      expected: expected === undefined ? undefined : { revision: expected },
      idempotency_key: key,
    });
  }

  /** The history of a branch, oldest first. */
  async *read(conversation, branch = "", where = {}) {
    const request = { branch: { conversation_id: conversation, branch }, ...where };
    for await (const { events } of this.events.Read(request, this.metadata)) yield* events;
  }

  /** Events after a revision; then `caught_up`; then new events. */
  async *subscribe(conversation, branch = "", after = 0) {
    const request = { branch: { conversation_id: conversation, branch }, after_revision: after };
    const stream = this.events.Subscribe(request, this.metadata);
    // The loop gets the errors; this handler ignores the one that `cancel` causes.
    stream.on("error", () => {});
    try {
      yield* stream;
    } finally {
      stream.cancel(); // leaving the loop ends the subscription
    }
  }

  /** A new branch that shares everything up to revision `at`. */
  fork(conversation, at, name, branch = "") {
    const request = { conversation_id: conversation, branch, at_revision: at, name };
    return this.call(this.conversations, "Fork", request);
  }

  /**
   * Builds the next request: the body to send, and its explanation.
   * `provider`: "openai-chat", "openai-responses", "anthropic", "gemini" or
   * "neutral". `policy`: for example { budget_tokens: 16000 }.
   */
  async build(conversation, provider, { branch = "", model = "", policy = {}, at_least } = {}) {
    const answer = await this.call(this.contexts, "Build", {
      conversation_id: conversation,
      branch,
      provider: `PROVIDER_${provider.toUpperCase().replaceAll("-", "_")}`,
      model,
      policy: Buffer.from(JSON.stringify(policy)),
      at_least,
    });
    return { body: JSON.parse(answer.request), explanation: answer.explanation };
  }

  /** Hits, best first. `at_least`: wait until this position is indexed. */
  async search(query, { limit = 10, ...filters } = {}) {
    const { hits } = await this.call(this.index, "Search", { query, limit, ...filters });
    return hits;
  }

  /** Calls that wait for a decision. */
  async pending(conversation = "") {
    const request = { conversation_id: conversation };
    const { calls } = await this.call(this.tools, "Pending", request);
    return calls;
  }

  /** Answers when the call is decided, or after the timeout. */
  waitForDecision(conversation, call_id, seconds) {
    const request = { conversation_id: conversation, call_id, timeout_ms: seconds * 1000 };
    return this.call(this.tools, "WaitForDecision", request, seconds + 10);
  }

  close() {
    for (const service of [this.events, this.conversations, this.contexts, this.tools, this.index]) {
      service.close();
    }
  }
}
