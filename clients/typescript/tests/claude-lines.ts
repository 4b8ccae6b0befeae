// Lines of transcripts, for the tests of the Claude Agent SDK's sessions.

import { randomUUID } from "node:crypto";
import type { SessionStoreEntry } from "@anthropic-ai/claude-agent-sdk";
import type { Parsed } from "../src/words.js";

export const KEY = { projectKey: "proj", sessionId: "6a2c8c0e-7e0a-4e0e-9a62-0d5a0c1b2d3e" };

/** A line of a transcript. */
export function line(kind: string, content: unknown, more: Parsed = {}): SessionStoreEntry {
  const { message, ...others } = more;
  return {
    type: kind,
    uuid: randomUUID(),
    parentUuid: null,
    sessionId: KEY.sessionId,
    timestamp: "2026-03-01T10:00:00.000Z",
    message: { role: kind, content, ...message },
    ...others,
  };
}

const FOUND = "src/config.py:12: PORT = 7171";

/** A question, a call with its result, an answer. */
export const turn = (): SessionStoreEntry[] => [
  line("user", "Where is the port of the server set, and to what?"),
  line(
    "assistant",
    [
      { type: "thinking", thinking: "I should look for it.", signature: "c2ln" },
      { type: "text", text: "I look for it in the configuration." },
      { type: "tool_use", id: "toolu_1", name: "Grep", input: { pattern: "PORT" } },
    ],
    {
      message: {
        id: "msg_1",
        model: "claude-sonnet-4-5",
        stop_reason: "tool_use",
        usage: { input_tokens: 12, output_tokens: 9 },
      },
    },
  ),
  line("user", [{ type: "tool_result", tool_use_id: "toolu_1", content: FOUND }], {
    toolUseResult: { numFiles: 1, content: FOUND },
  }),
  line("assistant", [{ type: "text", text: "In src/config.py, line 12, to 7171." }]),
];

const said = (content: unknown): SessionStoreEntry => ({
  type: "user",
  message: { role: "user", content },
});
const answered = (...content: unknown[]): SessionStoreEntry => ({
  type: "assistant",
  message: { content },
});
const png = (data: string) => ({
  type: "image",
  source: { type: "base64", media_type: "image/png", data },
});

/** Lines with unusual or invalid content. */
export const ODD: SessionStoreEntry[] = [
  said("half of a pair: \ud83d and a \0, in a text of some length"),
  said(null),
  said([{ type: "text" }]),
  said([{ type: "later", x: [1, 1.5] }]),
  answered({ type: "tool_use", id: "", name: "" }),
  answered({ type: "tool_use", id: 7, name: [] }),
  answered({ type: "tool_use", id: "same", name: "Bash", input: { a: 1.5, b: 1e30 } }),
  answered({ type: "tool_use", id: "same", name: "Bash", input: [] }),
  said([{ type: "tool_result", tool_use_id: "nobody", content: "orphan" }]),
  said([png("iVBORw0KGgo="), png("no base64!")]),
  { type: "summary", summary: "A title", leafUuid: "x" },
  { type: "system", subtype: "compact_boundary", $treering: "0.p0.text" },
  { type: "x", deep: { $treering: "0.arguments" }, true: true, "1": 1, "1.0": 1 },
  { type: "user", message: 7 },
  { type: "assistant", message: { content: "a text alone" } },
];

/** A recorded conversation as the SDK would write it. */
export function* linesOf(messages: Parsed[]): Generator<SessionStoreEntry> {
  for (const { role, content, tool_call_id, tool_calls = [], x } of messages) {
    const text = content || "";
    if (role === "tool") {
      const result = { type: "tool_result", tool_use_id: tool_call_id, content: text };
      yield line("user", [result], { toolUseResult: { stdout: text } });
    } else if (role === "assistant") {
      if (text) yield line("assistant", [{ type: "text", text }]);
      for (const { id, function: asked } of tool_calls) {
        const input = JSON.parse(asked.arguments);
        yield line("assistant", [{ type: "tool_use", id, name: asked.name, input }]);
      }
    } else {
      yield line("user", text, x?.compact_summary ? { isCompactSummary: true } : {});
    }
  }
}
