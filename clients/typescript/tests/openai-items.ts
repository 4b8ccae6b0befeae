// Items of the OpenAI Agents SDK, for its tests.

import type { AgentInputItem } from "@openai/agents";
import type { Parsed } from "../src/words.js";

export const asked = (content: string): AgentInputItem => ({ role: "user", content });

const status = "completed";

const ALL: Parsed[] = [
  { role: "user", content: "Where is the port of the server set?" },
  {
    type: "message",
    role: "user",
    content: [
      { type: "input_text", text: "What is in this picture of the office?" },
      { type: "input_image", image: "data:image/png;base64,iVBORw0KGgo=", detail: "low" },
      { type: "input_image", image: { id: "file_2" } },
      { type: "input_file", file: { id: "file_1" } },
      { type: "audio", audio: "UklGRg==", format: "wav" },
    ],
  },
  { role: "system", content: "Answer in one sentence, please, whatever is asked." },
  {
    id: "rs_1",
    type: "reasoning",
    content: [{ type: "input_text", text: "I should look into the configuration." }],
    providerData: { encrypted_content: "gAAAAAbm90IHJlYWxseSBlbmNyeXB0ZWQ=" },
  },
  {
    id: "msg_1",
    type: "message",
    role: "assistant",
    status,
    content: [
      {
        type: "output_text",
        text: "I look for it in the configuration of the server.",
        providerData: { annotations: [] },
      },
    ],
  },
  {
    id: "fc_1",
    type: "function_call",
    callId: "call_1",
    name: "grep",
    arguments: '{"pattern":  "PORT", "n": 1.0}',
    status,
    providerData: { id: "fc_1" },
  },
  {
    type: "function_call_result",
    name: "grep",
    callId: "call_1",
    status,
    output: { type: "text", text: "config.py:12: PORT = 7171" },
  },
  { type: "function_call", callId: "call_2", name: "grep", arguments: '{"pattern": "untermin' },
  {
    type: "function_call_result",
    name: "grep",
    callId: "call_2",
    status: "incomplete",
    output: [{ type: "input_text", text: "these are no arguments" }],
  },
  { type: "function_call_result", name: "x", callId: "call_unknown", status, output: "an orphan" },
  {
    id: "ws_1",
    type: "hosted_tool_call",
    name: "web_search_call",
    status,
    providerData: { type: "web_search_call", action: { query: "what port does a server have" } },
  },
  {
    id: "mcp_1",
    type: "hosted_tool_call",
    name: "weather",
    arguments: "{}",
    output: "rain until the evening, then clear",
    status,
  },
  {
    type: "shell_call",
    callId: "call_3",
    action: { commands: ["ls"], timeoutMs: 5 },
    status,
  },
  {
    type: "shell_call_output",
    callId: "call_3",
    output: [{ stdout: "config.py", stderr: "", outcome: { type: "exit", exitCode: 0 } }],
  },
  { type: "computer_call", callId: "call_4", status, actions: [{ type: "screenshot" }] },
  {
    type: "computer_call_result",
    callId: "call_4",
    output: { type: "computer_screenshot", data: "data:image/png;base64,iVBORw0KGgo=" },
  },
  {
    type: "function_call_result",
    name: "draw",
    callId: "call_5",
    status,
    output: { type: "image", image: { data: Uint8Array.of(1, 2, 3), mediaType: "image/png" } },
  },
  { type: "compaction", id: "cmp_1", encrypted_content: "opaque" },
  { type: "unknown", providerData: { type: "later", more: [1, 2.5, null] } },
  {
    role: "assistant",
    status,
    content: [{ type: "refusal", refusal: "I would rather not say." }],
  },
  { role: "user", content: "half of a pair \ud83d, a \0, and $treering" },
  { $treering: "0.p0.text", role: "nobody" },
  { role: "user", content: "what looks like a reference", x: { $treering: "0.p0.text" } },
  { $treering: { whole: { role: "user", content: "what looks like a wrapped item" } } },
  { id: "fc_1", type: "function_call", callId: "again", name: "a", arguments: "{}" },
  { id: "fc_2", type: "function_call", callId: "again", name: "b", arguments: "[]" },
];

/** One item of each kind, and unusual items. */
export const ITEMS = ALL as AgentInputItem[];
