// Uses the official JavaScript SDKs, for proxy.py: node proxy_sdk.mjs API URL CONVERSATION.
// Prints the conversation as a JSON list: role and text, calls, results.

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [api, url, conversation] = process.argv.slice(2);
const defaultHeaders = { "x-treering-conversation": conversation };
const schema = { type: "object", properties: { key: { type: "string" } } };
const said = [];
const note = (...what) => said.push(what);

async function chat(stream) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-none", defaultHeaders });
  const tools = [{ type: "function", function: { name: "lookup", parameters: schema } }];
  const messages = [
    { role: "system", content: "be brief" },
    { role: "user", content: "look x up" },
  ];
  note("system", "be brief");
  note("user", "look x up");
  for (let turn = 0; turn < 2; turn++) {
    const asked = { model: "gpt-4o", messages, tools };
    const completion = stream
      ? await client.chat.completions.stream(asked).finalChatCompletion()
      : await client.chat.completions.create(asked);
    const answer = completion.choices[0].message;
    messages.push(answer);
    if (answer.content) note("assistant", answer.content);
    for (const call of answer.tool_calls ?? []) {
      note("call", call.function.name, JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content: "x is 7" });
      note("result", "x is 7");
    }
  }
}

// Non-streamed requests name the last answer; streamed requests repeat all items.
async function responses(stream) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-none", defaultHeaders });
  const tools = [{ type: "function", name: "lookup", parameters: schema, strict: false }];
  let input = [{ role: "user", content: "look x up" }];
  let last;
  note("system", "be brief");
  note("user", "look x up");
  for (let turn = 0; turn < 2; turn++) {
    const asked = { model: "gpt-5.4", instructions: "be brief", tools, input };
    let answer;
    if (stream) {
      answer = await client.responses.stream({ ...asked, store: false }).finalResponse();
      input = [...input, ...answer.output];
    } else {
      answer = await client.responses.create({ ...asked, previous_response_id: last });
      last = answer.id;
      input = [];
    }
    for (const item of answer.output) {
      if (item.type === "message") note("assistant", item.content[0].text);
      if (item.type === "function_call") {
        note("call", item.name, JSON.parse(item.arguments));
        input.push({ type: "function_call_output", call_id: item.call_id, output: "x is 7" });
        note("result", "x is 7");
      }
    }
  }
}

async function messages(stream) {
  const client = new Anthropic({ baseURL: url, apiKey: "sk-none", defaultHeaders });
  const tools = [{ name: "lookup", input_schema: schema }];
  const asked = [{ role: "user", content: "look x up" }];
  note("system", "be brief");
  note("user", "look x up");
  for (let turn = 0; turn < 2; turn++) {
    const more = {
      model: "claude-sonnet-4-5",
      max_tokens: 100,
      system: "be brief",
      tools,
      messages: asked,
    };
    const answer = stream
      ? await client.messages.stream(more).finalMessage()
      : await client.messages.create(more);
    asked.push({ role: "assistant", content: answer.content });
    const results = [];
    for (const block of answer.content) {
      if (block.type === "text") note("assistant", block.text);
      if (block.type === "tool_use") {
        note("call", block.name, block.input);
        note("result", "x is 7");
        results.push({ type: "tool_result", tool_use_id: block.id, content: "x is 7" });
      }
    }
    if (results.length > 0) asked.push({ role: "user", content: results });
  }
}

const [name, how] = api.split("-");
await { chat, responses, messages }[name](how === "stream");
console.log(JSON.stringify(said));
