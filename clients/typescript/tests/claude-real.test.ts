// Tests the Claude Agent SDK's `SessionStore` with real sessions.

import assert from "node:assert/strict";
import { test } from "node:test";
import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import { linesOf } from "./claude-lines.js";
import { all, shared } from "./support.js";
import { FILES, trajectories, unpack } from "./trajectories.js";

const open = shared();

// Real sessions, with all their unusual lines, are loaded unchanged.
const noFile = !unpack ? "needs Node 22.15" : FILES.missing("claude-code-entire");
test("real sessions", { skip: noFile }, async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  for await (const { id, messages } of trajectories(FILES.of("claude-code-entire"), 8)) {
    const key = { projectKey: "real", sessionId: id };
    const entries = [...linesOf(messages)];
    for (let at = 0; at < entries.length; at += 7)
      await store.append(key, entries.slice(at, at + 7));
    assert.deepEqual(await new TreeringSessionStore(db).load(key), entries);
    const conv = db.conversation(`real/${id}`);
    const results = await all(conv.events({ kinds: ["tool_result_recorded"] }));
    assert.ok(results.length >= 0.9 * messages.filter(({ role }) => role === "tool").length);
    const { body } = await conv.request("anthropic", {
      model: "claude-sonnet-4-5",
      budget: 60_000,
    });
    assert.ok(body.messages.length);
  }
  assert.ok((await db.verify({ deep: true })).sound);
});
