// A history with features that the recorded histories lack, in two forms: events
// for Treering, and messages and tools for the `ai` package.

import { jsonSchema } from "ai";

const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const TOOLS = {
  read: {
    description: "Reads a part of a file.",
    schema: {
      type: "object",
      properties: {
        path: { type: "string", description: "From the root." },
        lines: { type: "array", items: { type: "integer" } },
        how: { type: "string", enum: ["text", "hex"] },
      },
      required: ["path"],
      additionalProperties: false,
    },
  },
  now: { description: "What time it is.", schema: { type: "object", properties: {} } },
};

const say = (role, ...parts) => ({
  message_appended: { role: `ROLE_${role.toUpperCase()}`, parts },
});

const call = (call_id, tool, args) => ({
  tool_call_requested: {
    call_id,
    tool,
    arguments: Buffer.from(JSON.stringify(args)),
    approval: "APPROVAL_REQUIREMENT_NOT_REQUIRED",
  },
});

const result = (call_id, text) => ({
  tool_result_recorded: { call_id, success: true, parts: [{ text }] },
});

/** Long enough that its snapshot is shorter. */
const FILE = JSON.stringify({
  lines: Array.from({ length: 60 }, (_, at) => `line ${at + 1} says nothing of note`),
  more: false,
});

/** The story as events for Treering. */
export const EVENTS = [
  { conversation_created: { title: "A story told twice", source: "told-twice", source_id: "1" } },
  { system_prompt_set: { id: "main", content: "Be brief." } },
  {
    tools_defined: {
      tools: Object.entries(TOOLS).map(([name, { description, schema }]) => ({
        name,
        description,
        input_schema: Buffer.from(JSON.stringify(schema)),
      })),
    },
  },
  say(
    "user",
    { text: "What is on this?" },
    { image: { media_type: "image/png", data: Buffer.from(PNG, "base64") } },
  ),
  say("assistant", { text: "I look at the file and the clock." }),
  call("call_a", "read", { path: "a.txt", lines: [1, 20] }),
  call("call_b", "now", {}),
  result("call_b", "noon"),
  result("call_a", FILE),
  say("assistant", { text: "A dot." }),
  say("user", { text: "And now?" }),
  say("assistant"),
  call("call_c", "now", {}),
  result("call_c", "one"),
];

const text = (words) => ({ type: "text", text: words });
const asked = (toolCallId, toolName, input) => ({ type: "tool-call", toolCallId, toolName, input });
const answered = (toolCallId, toolName, value) => ({
  role: "tool",
  content: [{ type: "tool-result", toolCallId, toolName, output: { type: "text", value } }],
});

/** The story as arguments for the library. */
export const PROMPT = {
  system: "Be brief.",
  tools: Object.fromEntries(
    Object.entries(TOOLS).map(([name, { description, schema }]) => [
      name,
      { description, inputSchema: jsonSchema(schema) },
    ]),
  ),
  messages: [
    {
      role: "user",
      content: [text("What is on this?"), { type: "image", image: PNG, mediaType: "image/png" }],
    },
    {
      role: "assistant",
      content: [
        text("I look at the file and the clock."),
        asked("call_a", "read", { path: "a.txt", lines: [1, 20] }),
        asked("call_b", "now", {}),
      ],
    },
    answered("call_b", "now", "noon"),
    answered("call_a", "read", FILE),
    { role: "assistant", content: [text("A dot.")] },
    { role: "user", content: [text("And now?")] },
    { role: "assistant", content: [asked("call_c", "now", {})] },
    answered("call_c", "now", "one"),
  ],
};
