// Tests the Claude Agent SDK's agent on sessions in the store.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { query } from "@anthropic-ai/claude-agent-sdk";
import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import * as treering from "../src/index.js";
import type { Parsed } from "../src/words.js";
import { agentEnvironment, type Model, serving } from "./model.js";
import { all, only, Server, temporary, texts } from "./support.js";

interface Asked {
  store: TreeringSessionStore;
  model: Model;
  cwd: string;
  prompt: string;
  resume?: string;
  forkSession?: boolean;
}

/** Runs a turn without the files of earlier turns; returns the session's id. */
async function turn({ store, model, prompt, ...given }: Asked): Promise<string> {
  let session = "";
  const options = {
    ...given,
    sessionStore: store,
    model: "claude-sonnet-4-5",
    allowedTools: ["Read"],
    settingSources: [],
    env: { ...process.env, ...agentEnvironment(model, temporary()) },
  };
  for await (const message of query({ prompt, options })) {
    if (message.type !== "result") continue;
    assert.ok(!message.is_error, JSON.stringify(message));
    session = message.session_id;
  }
  return session;
}

// An agent runs a tool, the server is killed, and the agent continues from the store without its
// files. A fork by the SDK has the same past, and a request for another provider's model can be
// built from before the last turn.
test("an agent continues after the server was killed", async () => {
  const cwd = temporary();
  writeFileSync(join(cwd, "config.py"), "PORT = 7171\n");
  const server = await Server.start();
  const model = await serving();
  await using db = treering.connect(server.address);
  const asked = `call Read ${JSON.stringify({ file_path: join(cwd, "config.py") })}`;
  const store = new TreeringSessionStore(db);
  const session = await turn({ store, model, cwd, prompt: asked });
  await server.kill();
  await server.start();
  const other = new TreeringSessionStore(db);
  const prompt = "And the address?";
  assert.equal(await turn({ store: other, model, cwd, prompt, resume: session }), session);
  // The model was sent the messages from before the kill.
  assert.match(JSON.stringify(model.requests.at(-1).messages.slice(0, -1)), /7171/);
  const summary = only(await all(db.conversations()));
  const conv = db.conversation(summary.conversationId);
  assert.deepEqual((await texts(conv)).slice(-2), [prompt, `Answer 2 to: ${prompt}`]);
  const call = only(await conv.toolCalls());
  assert.deepEqual([call.tool, call.status], ["Read", "succeeded"]);
  const again = (await all(conv.events())).find(({ text }) => text === prompt);
  const branch = await conv.fork({ at: (again?.revision ?? 0) - 1, name: "other" });
  await branch.user("And the protocol?");
  const { body } = await branch.request("openai-chat", { model: "gpt-4o" });
  const roles = body.messages.map(({ role }: Parsed) => role);
  assert.deepEqual(roles, ["user", "assistant", "tool", "assistant", "user"]);
  const forked = await turn({
    store,
    model,
    cwd,
    prompt: "Or?",
    resume: session,
    forkSession: true,
  });
  assert.notEqual(forked, session);
  assert.equal((await all(db.conversations())).length, 2);
  assert.match(
    JSON.stringify(await store.load({ projectKey: keyOf(summary.title), sessionId: forked })),
    /7171/,
  );
});

const keyOf = (title: string): string => title.split("/")[0] ?? "";

// A program and the SDK's subprocess are killed while a tool runs. The messages are in the store,
// and another program continues the session without the files of the first.
test("a program that is killed", async () => {
  const server = await Server.start();
  const model = await serving();
  await using db = treering.connect(server.address);
  const folder = temporary();
  const session = randomUUID();
  const start = async (resume: string, prompt: string): Promise<[string, Parsed]> => {
    const given = [server.address, folder, session, resume, prompt];
    const child = spawn(process.execPath, ["build/tests/claude-program.js", ...given], {
      env: { ...process.env, ...agentEnvironment(model, temporary()) },
      stdio: ["ignore", "pipe", "inherit"],
      detached: true,
    });
    const exited = once(child, "exit");
    let said = "";
    for await (const chunk of child.stdout) said += chunk;
    const [code, signal] = await exited;
    return [said, signal ?? code];
  };
  const asked = 'call mcp__sky__weather {"city": "Bergen"}';
  assert.deepEqual(await start("", asked), ["", "SIGKILL"]);
  const { conversationId } = only(await all(db.conversations()));
  const conv = db.conversation(conversationId);
  assert.deepEqual(await texts(conv), [asked, "I use mcp__sky__weather."]);
  assert.equal(only(await conv.openCalls()).tool, "mcp__sky__weather");
  assert.deepEqual(await start(session, "And now?"), ["Answer 2 to: And now?\n", 0]);
  assert.equal((await texts(conv)).at(-1), "Answer 2 to: And now?");
  assert.ok((await conv.request("openai-chat", { model: "gpt-4o" })).tokens > 0);
  assert.ok((await db.verify({ deep: true })).sound);
});
