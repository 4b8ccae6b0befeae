// Tests with real conversations: the client must read back what it stored.

import assert from "node:assert/strict";
import { test } from "node:test";
import type * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { all, shared } from "./support.js";
import { FILES, type Trajectory, trajectories, unpack } from "./trajectories.js";

const open = shared();

/** Records the messages and calls of the agent, step by step. */
async function drive(db: treering.Treering, { id, messages }: Trajectory) {
  const conv = await db.create(id, { model: "gpt-4o" });
  const results: string[] = [];
  for (const message of messages) {
    const content = message.content || "";
    if (message.role === "tool") {
      const open = await conv.openCalls();
      const call = open.find(({ callId }) => callId === message.tool_call_id);
      if (call) results.push(content);
      await call?.run(() => content);
    } else if (message.role === "assistant") {
      const toolCalls = message.tool_calls?.map(({ id, function: { name, arguments: args } }) => ({
        id,
        tool: name,
        arguments: args,
      }));
      await conv.assistant(content ? [content] : [], { toolCalls });
    } else {
      await conv.append([make.message(message.role, content)]);
    }
  }
  return { conv, results };
}

// Steps of real agents must be stored word for word, become requests within the budget, and be
// found by search.
for (const source of ["swe-agent", "tau-bench", "claude-code-entire"]) {
  const file = FILES.of(source);
  const skip = !unpack ? "needs Node 22.15" : FILES.missing(source);
  test(`real steps: ${source}`, { skip }, async () => {
    const db = open();
    for await (const trajectory of trajectories(file, 3)) {
      const { messages } = trajectory;
      if (messages.filter(({ role }) => role === "tool").length < 6) continue;
      const { conv, results } = await drive(db, trajectory);
      const stored = await all(conv.events({ kinds: ["tool_result_recorded"] }));
      assert.deepEqual(
        stored.map((event) => event.text),
        results,
      );
      assert.ok(results.length > 5);
      const said = messages.filter(({ role, content }) => role === "user" && content);
      const users = (await all(conv.events())).filter((event) => event.role === "user");
      assert.deepEqual(
        users.map((event) => event.text).filter(Boolean),
        said.map(({ content }) => content),
      );
      for (const provider of ["openai-chat", "anthropic", "gemini", "openai-responses"] as const) {
        const request = await conv.request(provider, { budget: 8_000 });
        assert.ok(request.tokens <= 8_000 || request.overBudget);
      }
      const [longest = ""] = results.sort((a, b) => b.length - a.length);
      const query = longest.split(/\s+/).filter(Boolean).slice(0, 6).join(" ");
      const hits = await db.search(query, { conversation: conv.id, mode: "plain" });
      assert.ok(hits.length > 0);
      const at = Math.floor((await conv.head()) / 2);
      const fork = await conv.fork({ at });
      await fork.user("Try another way.");
      assert.equal((await all(fork.events())).length, at + 2);
      await conv.on("main").compact("", { keepTurns: 1 });
    }
    assert.ok((await db.verify({ deep: true })).sound);
  });
}
