// A model that answers over HTTP by fixed rules: frameworks run their real loops against it.
//
// It answers "call NAME ARGUMENTS" with that tool call, a result with its text, and any other
// message with the number of user messages. It has Anthropic's API (streamed) and OpenAI's
// Responses and Chat Completions.

import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { after } from "node:test";
import type { Parsed } from "../src/words.js";

type Said = [role: string, text: string];

/** The server and the requests that it received. */
export interface Model {
  url: string;
  requests: Parsed[];
}

function textsOf(content: Parsed): string {
  if (typeof content === "string") return content;
  return (content ?? []).map((part: Parsed) => part.text ?? "").join("");
}

/** The answer to these messages: a text, and perhaps a call. */
function answer(said: Said[]): { text: string; call?: { name: string; given: string } } {
  const [role, text] = said.at(-1) ?? ["user", ""];
  const asked = said.filter(([role]) => role === "user").length;
  if (role === "tool") return { text: `The tool says: ${text}` };
  const [, name, given] = /^call (\S+) ?(.*)$/s.exec(text) ?? [];
  if (name) return { text: `I use ${name}.`, call: { name, given: given || "{}" } };
  return { text: `Answer ${asked} to: ${text}` };
}

function saidToAnthropic(body: Parsed): Said[] {
  const said: Said[] = [];
  for (const { role, content } of body.messages) {
    const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content;
    for (const block of blocks) {
      if (block.type === "tool_result") said.push(["tool", textsOf(block.content)]);
      const isReminder = block.text?.startsWith("<system-reminder>");
      if (block.type === "text" && !isReminder) said.push([role, block.text]);
    }
  }
  return said;
}

function anthropic(body: Parsed, number: number): Parsed {
  const { text, call } = answer(saidToAnthropic(body));
  const content: Parsed[] = [{ type: "text", text }];
  if (call) {
    const input = JSON.parse(call.given);
    content.push({ type: "tool_use", id: `toolu_${number}`, name: call.name, input });
  }
  return {
    id: `msg_${number}`,
    type: "message",
    role: "assistant",
    model: body.model,
    content,
    stop_reason: call ? "tool_use" : "end_turn",
    stop_sequence: null,
    usage: { input_tokens: 10, output_tokens: 5 },
  };
}

function* anthropicStream(whole: Parsed): Generator<Parsed> {
  yield { type: "message_start", message: { ...whole, content: [], stop_reason: null } };
  for (const [index, block] of whole.content.entries()) {
    const isText = block.type === "text";
    const empty = isText ? { ...block, text: "" } : { ...block, input: {} };
    const delta = isText
      ? { type: "text_delta", text: block.text }
      : { type: "input_json_delta", partial_json: JSON.stringify(block.input) };
    yield { type: "content_block_start", index, content_block: empty };
    yield { type: "content_block_delta", index, delta };
    yield { type: "content_block_stop", index };
  }
  const delta = { stop_reason: whole.stop_reason, stop_sequence: null };
  yield { type: "message_delta", delta, usage: { output_tokens: 5 } };
  yield { type: "message_stop" };
}

function saidToResponses({ input }: Parsed): Said[] {
  if (typeof input === "string") return [["user", input]];
  const said: Said[] = [];
  for (const item of input) {
    if (item.type === "function_call_output") said.push(["tool", textsOf(item.output)]);
    else if (item.role) said.push([item.role, textsOf(item.content)]);
  }
  return said;
}

function responses(body: Parsed, number: number): Parsed {
  const { text, call } = answer(saidToResponses(body));
  const part = { type: "output_text", text, annotations: [], logprobs: [] };
  const status = "completed";
  const output: Parsed[] = [
    { type: "message", id: `msg_${number}`, role: "assistant", status, content: [part] },
  ];
  if (call) {
    output.push({
      type: "function_call",
      id: `fc_${number}`,
      call_id: `call_${number}`,
      name: call.name,
      arguments: call.given,
      status,
    });
  }
  return {
    id: `resp_${number}`,
    object: "response",
    created_at: 1_770_000_000,
    model: body.model,
    status,
    output,
    parallel_tool_calls: true,
    tool_choice: "auto",
    tools: [],
    usage: {
      input_tokens: 10,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 5,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 15,
    },
  };
}

/** The provider's endpoint for compaction: its summary can be read only by the provider. */
function compacted(body: Parsed, number: number): Parsed {
  const encrypted = Buffer.from(JSON.stringify(body.input ?? body.previous_response_id));
  return {
    id: `resp_${number}`,
    object: "response.compaction",
    created_at: 1_770_000_000,
    output: [
      { type: "compaction", id: `cmp_${number}`, encrypted_content: encrypted.toString("base64") },
    ],
    usage: responses({ model: "", input: "" }, number).usage,
  };
}

function chat(body: Parsed, number: number): Parsed {
  const said = body.messages.map(({ role, content }: Parsed) => [role, textsOf(content)]);
  const { text, call } = answer(said);
  const calls = call && [
    {
      id: `call_${number}`,
      type: "function",
      function: { name: call.name, arguments: call.given },
    },
  ];
  return {
    id: `chatcmpl_${number}`,
    object: "chat.completion",
    created: 1_770_000_000,
    model: body.model,
    choices: [
      {
        index: 0,
        message: { role: "assistant", content: text, ...(calls ? { tool_calls: calls } : {}) },
        finish_reason: calls ? "tool_calls" : "stop",
      },
    ],
    usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
  };
}

/** Environment of agents that use only the model, and keep their files in `home`. */
export const agentEnvironment = (model: Model, home: string): Record<string, string> => ({
  ANTHROPIC_BASE_URL: model.url,
  ANTHROPIC_API_KEY: "none",
  OPENAI_BASE_URL: `${model.url}/v1`,
  OPENAI_API_KEY: "none",
  OPENAI_AGENTS_DISABLE_TRACING: "1",
  LANGSMITH_TRACING: "false",
  HOME: home,
  CLAUDE_CONFIG_DIR: join(home, ".claude"),
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  DISABLE_AUTOUPDATER: "1",
});

function reply(request: IncomingMessage, model: Model, text: string): [type: string, body: string] {
  const path = request.url?.split("?")[0] ?? "";
  const asJson = (body: Parsed): [string, string] => ["application/json", JSON.stringify(body)];
  if (request.method !== "POST") return asJson({});
  const body = JSON.parse(text);
  if (path.endsWith("/count_tokens")) return asJson({ input_tokens: 10 });
  model.requests.push(body);
  const number = model.requests.length;
  if (path.endsWith("/responses/compact")) return asJson(compacted(body, number));
  if (path.endsWith("/responses")) return asJson(responses(body, number));
  if (!path.endsWith("/messages")) return asJson(chat(body, number));
  const whole = anthropic(body, number);
  if (!body.stream) return asJson(whole);
  const lines = [...anthropicStream(whole)].map(
    (each) => `event: ${each.type}\ndata: ${JSON.stringify(each)}\n\n`,
  );
  return ["text/event-stream", lines.join("")];
}

/** Starts the model on a local address; it stops after the tests of the file. */
export async function serving(): Promise<Model> {
  const model: Model = { url: "", requests: [] };
  const server = createServer(async (request: IncomingMessage, response: ServerResponse) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const [type, body] = reply(request, model, Buffer.concat(chunks).toString());
    response.writeHead(200, { "Content-Type": type });
    response.end(request.method === "HEAD" ? "" : body);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = server.address();
  model.url = `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
  return model;
}
