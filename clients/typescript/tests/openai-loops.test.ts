// Tests the OpenAI Agents SDK's agent loop on sessions in the store.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import {
  MemorySession,
  OpenAIResponsesCompactionSession,
  RunState,
  type Session,
} from "@openai/agents";
import OpenAI from "openai";
import * as treering from "../src/index.js";
import { messages, TreeringSaver } from "../src/langgraph/index.js";
import { TreeringSession } from "../src/openai-agents/index.js";
import type { Parsed } from "../src/words.js";
import { ask, agent as graphOf } from "./langgraph-graphs.js";
import { type Model, serving } from "./model.js";
import { agent, runner } from "./openai-agent.js";
import { all, only, Server, shared, texts } from "./support.js";

const open = shared();
const WEATHER = 'call weather {"city": "Bergen"}';

/** Runs turns with and without a tool, and removes the last one. */
async function turns(session: Session, { url }: Model): Promise<unknown[]> {
  const runs = runner(url);
  const answers: unknown[] = [];
  for (const prompt of ["Hello", WEATHER, "And now?"]) {
    answers.push((await runs.run(agent(), prompt, { session })).finalOutput);
  }
  await session.popItem();
  await session.popItem();
  return [...answers, (await runs.run(agent(), "What was it?", { session })).finalOutput];
}

// The model must be sent the same, and answer the same, with either session.
test("agents behave the same with either session", async () => {
  const db = open();
  const sessions = [new MemorySession({ sessionId: "s" }), new TreeringSession("s", db)];
  const told: unknown[] = [];
  for (const session of sessions) {
    const model = await serving();
    const answers = await turns(session, model);
    assert.equal(answers[1], "The tool says: It rains in Bergen.");
    const items = JSON.parse(JSON.stringify(await session.getItems()));
    told.push([answers, model.requests.map(({ input }) => input), items]);
  }
  assert.deepEqual(told[1], told[0]);
  const hit = only(await db.search("rains", { kinds: "tool_result_recorded" }));
  assert.equal(hit.tool, "weather");
  const { body } = await db.conversation("s").request("anthropic", { model: "claude-sonnet-4-5" });
  const roles = body.messages.map(({ role }: Parsed) => role);
  assert.deepEqual(roles.slice(0, 4), ["user", "assistant", "user", "assistant"]);
});

// The SDK compacts a session after a turn: the next request contains what is left.
test("agents whose session is compacted", async () => {
  const told: unknown[] = [];
  for (const underlyingSession of [new MemorySession(), new TreeringSession("s", open())]) {
    const model = await serving();
    const session = new OpenAIResponsesCompactionSession({
      underlyingSession,
      client: new OpenAI({ baseURL: `${model.url}/v1`, apiKey: "none" }) as never,
      compactionMode: "input",
      shouldTriggerCompaction: ({ sessionItems }) => sessionItems.length >= 5,
    });
    const runs = runner(model.url);
    for (const prompt of ["Hello", WEATHER, "And now?"])
      await runs.run(agent(), prompt, { session });
    const items: Parsed[] = await underlyingSession.getItems();
    const kinds = items.map(({ type, role }) => role ?? type);
    assert.deepEqual(kinds, ["compaction", "user", "assistant"]);
    told.push([kinds, model.requests.at(-1).input]);
  }
  assert.deepEqual(told[1], told[0]);
});

// A call needs a decision of a person: the run stops, its state is stored, and the run continues.
test("a run that waits for a person", async () => {
  const { url } = await serving();
  const session = new TreeringSession("waits", open());
  const careful = agent();
  for (const each of careful.tools) {
    if (each.type === "function") each.needsApproval = async () => true;
  }
  const runs = runner(url);
  const first = await runs.run(careful, WEATHER, { session });
  assert.equal(first.interruptions.length, 1);
  const state = await RunState.fromString(careful, first.state.toString());
  for (const interruption of state.getInterruptions()) state.approve(interruption);
  const second = await runs.run(careful, state, { session });
  assert.equal(second.finalOutput, "The tool says: It rains in Bergen.");
  const kinds = ((await session.getItems()) as Parsed[]).map(({ type, role }) => role ?? type);
  assert.deepEqual(kinds, [
    "user",
    "assistant",
    "function_call",
    "function_call_result",
    "assistant",
  ]);
});

// The server is killed in the middle of a run: the run continues, and nothing is lost or
// duplicated.
test("a run with a server that is killed", async () => {
  const server = await Server.start();
  const { url } = await serving();
  await using db = treering.connect(server.address);
  await db.stats();
  const dangerous = agent(async (city) => {
    await server.kill();
    setTimeout(() => void server.start(), 300);
    return `killed for ${city}`;
  });
  const session = new TreeringSession("through a kill", db);
  for (const _ of [1, 2, 3]) await runner(url).run(dangerous, WEATHER, { session });
  const kept: Parsed[] = await new TreeringSession("through a kill", db).getItems();
  const turn = ["user", "assistant", "function_call", "function_call_result", "assistant"];
  assert.deepEqual(
    kept.map(({ type, role }) => role ?? type),
    [...turn, ...turn, ...turn],
  );
  assert.ok((await db.verify({ deep: true })).sound);
});

/** Runs a program; returns its output, and its exit code or signal. */
async function ran(...given: string[]): Promise<[said: string, ended: unknown]> {
  const child = spawn(process.execPath, ["build/tests/openai-program.js", ...given], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = once(child, "exit");
  let said = "";
  for await (const chunk of child.stdout) said += chunk;
  const [code, signal] = await exited;
  return [said, signal ?? code];
}

// A program is killed while its tool runs: stored items are kept, the next program continues the
// session, and a fork continues from before the kill.
test("a program that is killed", async () => {
  const server = await Server.start();
  const { url } = await serving();
  await using db = treering.connect(server.address);
  assert.deepEqual(await ran(server.address, url, "Hello"), ["Answer 1 to: Hello\n", 0]);
  assert.deepEqual(await ran(server.address, url, WEATHER), ["", "SIGKILL"]);
  const conv = db.conversation("s");
  const before = await texts(conv);
  assert.deepEqual(before.slice(0, 2), ["Hello", "Answer 1 to: Hello"]);
  const [said, ended] = await ran(server.address, url, "And now?");
  assert.equal(ended, 0);
  assert.match(said, /^Answer \d to: And now\?\n$/);
  assert.deepEqual((await texts(conv)).slice(-2), ["And now?", said.trim()]);
  const hello = (await all(conv.events())).find(({ text }) => text === "Answer 1 to: Hello");
  await conv.fork({ at: hello?.revision, name: "other" });
  const session = new TreeringSession("s", db, { branch: "other" });
  const { finalOutput } = await runner(url).run(agent(), "Or?", { session });
  assert.equal(finalOutput, "Answer 2 to: Or?");
  const other = await session.conversation();
  assert.deepEqual((await texts(other)).slice(-2), ["Or?", "Answer 2 to: Or?"]);
  assert.ok((await conv.request("anthropic", { model: "claude-sonnet-4-5" })).tokens > 0);
  assert.ok((await db.verify({ deep: true })).sound);
});

// Two programs add items to one session, and pop items: every item is stored once, and no item is
// popped twice.
test("two programs on one session", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const ends = await Promise.all(["a", "b"].map((who) => ran(server.address, "add", who)));
  const taken = ends.flatMap(([said]): Parsed[] => JSON.parse(said));
  const kept: Parsed[] = await new TreeringSession("s", db).getItems();
  const contents = (items: Parsed[]): string[] => items.map(({ content }) => content);
  assert.equal(taken.length, 20);
  const added = ["a", "b"].flatMap((who) => Array.from({ length: 30 }, (_, n) => `${who} ${n}`));
  assert.deepEqual(contents([...kept, ...taken]).sort(), added.sort());
  for (const who of ["a", "b"]) {
    const own = contents(kept).filter((text) => text.startsWith(who));
    const numbers = own.map((text) => Number(text.split(" ")[1]));
    assert.deepEqual(
      numbers,
      [...numbers].sort((a, b) => a - b),
    );
  }
  assert.ok((await db.verify({ deep: true })).sound);
});

// A session begins with the messages of a LangGraph thread, and graphs read what the agent adds.
test("an agent continues the thread of a graph", async () => {
  const db = open();
  const { url } = await serving();
  const saver = new TreeringSaver(db);
  await ask(graphOf(saver, url), WEATHER);
  const session = new TreeringSession("thread", db);
  const { finalOutput } = await runner(url).run(agent(), "And now?", { session });
  assert.equal(finalOutput, "Answer 2 to: And now?");
  const conv = await session.conversation();
  const held = await messages(conv);
  assert.deepEqual(
    held.map(({ type }) => type),
    ["human", "ai", "tool", "ai", "human", "ai"],
  );
  assert.equal(only(await conv.toolCalls()).tool, "weather");
  assert.equal((await conv.branches()).length, 1);
});
