// Tests of LangGraph threads as conversations, also when programs and servers are killed.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { HumanMessage, RemoveMessage } from "@langchain/core/messages";
import { Command, emptyCheckpoint, REMOVE_ALL_MESSAGES } from "@langchain/langgraph";
import { JsonPlusSerializer, uuid6 } from "@langchain/langgraph-checkpoint";
import { Event as EventCodec } from "../src/gen/treering/v1/event.js";
import * as treering from "../src/index.js";
import { messages, TreeringSaver } from "../src/langgraph/index.js";
import type { Parsed } from "../src/words.js";
import { agent, ask, asking, CONFIG, history, said, told } from "./langgraph-graphs.js";
import { serving } from "./model.js";
import { inPython, skip } from "./python.js";
import { all, only, Server, shared } from "./support.js";

const open = shared();
const WEATHER = 'call weather {"city": "Bergen"}';

const bytesOf = async (conv: treering.Conversation): Promise<number> =>
  (await all(conv.events())).reduce(
    (sum, { proto }) => sum + EventCodec.encode(proto).finish().length,
    0,
  );

// A state that is kept as bytes only cannot be searched, forked or sent to another model.
test("messages become messages, calls and results", async () => {
  const db = open();
  const { url } = await serving();
  const saver = new TreeringSaver(db);
  const graph = agent(saver, url);
  await ask(graph, WEATHER);
  const conv = await saver.conversation("thread");
  assert.deepEqual(await said(conv), [
    WEATHER,
    "I use weather.",
    "weather",
    "It rains in Bergen.",
    "The tool says: It rains in Bergen.",
  ]);
  const hit = only(await db.search("rains", { kinds: "tool_result_recorded" }));
  assert.equal(hit.tool, "weather");
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  const roles = body.messages.map((each: Parsed) => each.role);
  assert.deepEqual(roles, ["user", "assistant", "user", "assistant"]);
  assert.equal((await conv.toolCalls())[0]?.status, "succeeded");
  // Another program appends to the conversation, and a graph can read its messages.
  await conv.user("From there");
  const last = (await messages(conv)).at(-1);
  assert.deepEqual([last?.type, last?.content], ["human", "From there"]);
  await ask(graph, "From here");
  assert.deepEqual((await said(conv)).slice(-3), [
    "From there",
    "From here",
    "Answer 2 to: From here",
  ]);
});

// The conversation must match the state: a thread that continues from an older checkpoint gets a
// branch, without the messages after that checkpoint.
test("an older checkpoint is a branch", async () => {
  const { url } = await serving();
  const saver = new TreeringSaver(open());
  const graph = agent(saver, url);
  const first = await ask(graph, "One");
  await ask(graph, "Two");
  const conv = await saver.conversation("thread");
  const left = ["One", "Answer 1 to: One", "Two", "Answer 2 to: Two"];
  assert.deepEqual(await said(conv), left);
  await ask(graph, "Other", first);
  const right = ["One", "Answer 1 to: One", "Other", "Answer 2 to: Other"];
  assert.deepEqual(await said(conv), right);
  assert.deepEqual(await said(conv.on("main")), left);
  // Continues from the last state of the first branch, found by its messages.
  const states = await all(graph.getStateHistory(CONFIG));
  const textsOf = ({ values }: Parsed) => (values.messages ?? []).map((each: Parsed) => each.text);
  const newest = states.find((state) => textsOf(state).join() === left.join());
  await ask(graph, "Three", newest?.config);
  assert.deepEqual(await said(conv), [...left, "Three", "Answer 3 to: Three"]);
  assert.equal((await conv.branches()).length, 2);
  // A message that is removed from the middle is removed from the conversation too.
  const gone = (await graph.getState(CONFIG)).values.messages[2];
  await graph.updateState(CONFIG, { messages: [new RemoveMessage({ id: gone?.id ?? "" })] });
  const kept = [...left.slice(0, 2), left[3], "Three", "Answer 3 to: Three"];
  assert.deepEqual(await said(conv), kept);
  // Messages that are removed at the front stay: requests have their own budget.
  const front = (await graph.getState(CONFIG)).values.messages.slice(0, 2);
  const drop = front.map(({ id = "" }) => new RemoveMessage({ id }));
  await graph.updateState(CONFIG, { messages: drop });
  assert.deepEqual(await said(conv), kept);
  assert.equal((await conv.branches()).length, 3);
});

// If a state drops all its messages, the conversation drops them too, but keeps what is not the
// graph's, such as a prompt.
test("a state that is emptied", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const conv = await db.open("thread", { system: "You are brief." });
  await conv.user("From before");
  const graph = agent(saver, (await serving()).url);
  await ask(graph, "One");
  const drop = [new RemoveMessage({ id: REMOVE_ALL_MESSAGES })];
  await graph.updateState(CONFIG, { messages: drop });
  assert.deepEqual((await graph.getState(CONFIG)).values.messages, []);
  assert.deepEqual(await said(conv), ["From before"]);
  await ask(graph, "Two");
  assert.deepEqual(await said(conv), ["From before", "Two", "Answer 1 to: Two"]);
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  assert.match(JSON.stringify(body.system), /You are brief/);
});

// With one row for each checkpoint, the size of a thread would grow with the square of its length.
test("a growing list is stored by its additions", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const values: Parsed = { messages: [], docs: [], same: "x".repeat(5_000) };
  const sizes: number[] = [];
  let config: Parsed = { configurable: { thread_id: "grows", checkpoint_ns: "" } };
  for (let step = 0; step < 60; step += 1) {
    const content = `Message ${step} ${"and so on ".repeat(50)}`;
    values.messages = [...values.messages, new HumanMessage({ content, id: `${step}` })];
    values.docs = [...values.docs, { text: `Document ${content}` }];
    const versions = { messages: step + 1, docs: step + 1, same: 1 };
    const { same: _, ...changed } = versions;
    const checkpoint = {
      ...emptyCheckpoint(),
      id: uuid6(step),
      channel_values: { ...values },
      channel_versions: versions,
    };
    const metadata = { source: "loop" as const, step, parents: {} };
    config = await saver.put(config, checkpoint, metadata, step ? changed : versions);
    sizes.push(await bytesOf(db.conversation("grows")));
  }
  const grown = (from: number, to: number) => (sizes[to] ?? 0) - (sizes[from] ?? 0);
  assert.ok(grown(39, 59) < 1.1 * grown(19, 39));
  assert.ok((sizes.at(-1) ?? 0) < 200_000, `${sizes.at(-1)} bytes`);
  for (const each of [saver, new TreeringSaver(db)]) {
    const latest = await each.getTuple({ configurable: { thread_id: "grows" } });
    assert.deepEqual(told(latest?.checkpoint.channel_values), told(values));
  }
});

/** Makes the bytes unreadable for other programs. */
class Shifting extends JsonPlusSerializer {
  override async dumpsTyped(value: unknown): Promise<[string, Uint8Array]> {
    const [kind, data] = await super.dumpsTyped(value);
    return [kind, data.map((each) => each ^ 0x55)];
  }
  override async loadsTyped(kind: string, data: Uint8Array): Promise<unknown> {
    return super.loadsTyped(
      kind,
      data.map((each) => each ^ 0x55),
    );
  }
}

// A program that encrypts the state does not want its messages stored in plain text.
test("a thread with a serializer of its own is not mirrored", async () => {
  const saver = new TreeringSaver(open(), { serde: new Shifting() });
  const graph = agent(saver, (await serving()).url);
  await ask(graph, "A secret word: xylophone");
  await ask(graph, "Another");
  assert.equal((await graph.getState(CONFIG)).values.messages.length, 4);
  const conv = await saver.conversation("thread");
  assert.deepEqual(await said(conv), []);
  for (const { proto } of await all(conv.events())) {
    assert.ok(!Buffer.from(EventCodec.encode(proto).finish()).includes("xylophone"));
  }
});

// ---- trouble ----

// The server is killed in the middle of several runs: the runs continue, and a new program reads
// the whole thread.
test("a run with a server that is killed", async () => {
  const server = await Server.start();
  const { url } = await serving();
  await using db = treering.connect(server.address);
  const dangerous = async ({ text }: Parsed) => {
    await server.kill();
    await server.start();
    return `killed for ${text}`;
  };
  const graph = agent(new TreeringSaver(db), url, { dangerous });
  for (const number of [0, 1, 2]) await ask(graph, `call dangerous {"text": "${number}"}`);
  const other = agent(new TreeringSaver(db), url);
  const kept = (await other.getState(CONFIG)).values.messages;
  const turn = ["human", "ai", "tool", "ai"];
  assert.deepEqual(
    kept.map(({ type }: Parsed) => type),
    [...turn, ...turn, ...turn],
  );
  assert.deepEqual(await history(other), await history(graph));
  assert.equal((await said(await new TreeringSaver(db).conversation("thread"))).length, 15);
  assert.ok((await db.verify({ deep: true })).sound);
});

const program = (...given: string[]): ChildProcess =>
  spawn(process.execPath, ["build/tests/langgraph-program.js", ...given], { stdio: "inherit" });

// A program is killed in the middle of a step. Another continues there, without asking the model
// for the same answer again, and a fork continues differently.
test("a program that is killed", async () => {
  const server = await Server.start();
  const model = await serving();
  const [, killed] = await once(program(server.address, model.url, "dies"), "exit");
  assert.equal(killed, "SIGKILL");
  const [code] = await once(program(server.address, model.url, "goes on"), "exit");
  assert.equal(code, 0);
  await using db = treering.connect(server.address);
  const saver = new TreeringSaver(db);
  const graph = agent(saver, model.url);
  const kept = (await graph.getState(CONFIG)).values.messages.map(({ text }: Parsed) => text);
  assert.deepEqual(kept.slice(2), ["lived through it", "The tool says: lived through it"]);
  assert.equal(model.requests.length, 2);
  const conv = await saver.conversation("thread");
  assert.equal((await said(conv))[3], "lived through it");
  const called = (await all(graph.getStateHistory(CONFIG))).find(({ next }) => next[0] === "act");
  const instead = { messages: [new HumanMessage("Never mind")] };
  const fork = await graph.updateState(called?.config ?? {}, instead, "act");
  await graph.invoke(null, fork);
  assert.equal((await said(conv)).at(-1), "Answer 2 to: Never mind");
  assert.equal((await said(conv.on("main"))).at(-1), "The tool says: lived through it");
  assert.ok((await db.verify({ deep: true })).sound);
});

// Two programs write to one thread, which LangGraph does not order. All checkpoints of both are
// stored, and the conversation matches the state of one of them.
test("two programs on one thread", async () => {
  const server = await Server.start();
  const { url } = await serving();
  // The first two create the thread; the others look it up.
  for (const pair of [
    ["a", "b"],
    ["c", "d"],
  ]) {
    const programs = pair.map((who) => program(server.address, url, "many", who));
    const codes = await Promise.all(programs.map((each) => once(each, "exit")));
    assert.deepEqual(
      codes.map(([code]) => code),
      [0, 0],
    );
  }
  await using db = treering.connect(server.address);
  const saver = new TreeringSaver(db);
  const tuples = await all(saver.list(CONFIG));
  assert.equal(tuples.filter(({ metadata }) => metadata?.source === "input").length, 48);
  const states: string[] = [];
  for (const { config, checkpoint } of tuples) {
    assert.deepEqual((await saver.getTuple(config))?.checkpoint, checkpoint);
    const held = (checkpoint.channel_values.messages ?? []) as HumanMessage[];
    states.push(JSON.stringify(held.map(({ text }: Parsed) => text)));
  }
  assert.ok(states.includes(JSON.stringify(await said(await saver.conversation("thread")))));
  assert.ok((await db.verify({ deep: true })).sound);
});

// Programs in two languages share one store. Each reads and continues a thread of the other, and
// its conversation keeps one branch.
test("threads of the Python client", { skip }, async () => {
  const server = await Server.start();
  const { url } = await serving();
  const python = (...prompts: string[]) =>
    inPython("langgraph_thread.py", server.address, "default", url, ...prompts);
  await using db = treering.connect(server.address);
  const first = await python("From Python", WEATHER);
  const saver = new TreeringSaver(db);
  const graph = agent(saver, url);
  const conv = await saver.conversation("thread");
  const held = async () =>
    (await graph.getState(CONFIG)).values.messages.map((each: Parsed) => [
      each.type,
      each.text,
      (each.tool_calls ?? []).map(({ args }: Parsed) => args),
    ]);
  assert.deepEqual(await held(), first.said);
  assert.equal(first.said.length, 6);
  assert.equal((await history(graph)).length, first.steps);
  await ask(graph, "From JavaScript");
  await ask(graph, WEATHER.replace("Bergen", "Oslo"));
  const second = await python("And Python again");
  assert.deepEqual(await held(), second.said);
  assert.equal(second.said.length, 14);
  assert.equal(second.steps, (await history(graph)).length);
  assert.deepEqual(
    second.mirrored,
    second.said.map(([, text]: string[]) => text),
  );
  // A new program in each language sees the same.
  const other = agent(new TreeringSaver(db), url);
  assert.deepEqual(await history(other), await history(graph));
  await ask(other, "The end");
  assert.deepEqual((await python()).said, await held());
  assert.equal((await conv.branches()).length, 1);
  assert.ok(second.sound);
});

// A run that waits for an answer in one language continues with it in the other.
test("a run that waits, in two languages", { skip }, async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const graph = asking(new TreeringSaver(db));
  const python = (thread: string, how: string) =>
    inPython("langgraph_interrupt.py", server.address, thread, how);
  const [mine, theirs] = ["mine", "theirs"].map((thread_id) => ({ configurable: { thread_id } }));
  await graph.invoke({ said: ["begin"] }, mine);
  const waiting = await graph.getState(mine ?? CONFIG);
  assert.equal(waiting.tasks[0]?.interrupts[0]?.value, "what?");
  assert.deepEqual(await python("mine", "this"), ["begin", "you said this", "then"]);
  assert.deepEqual(await python("theirs", ""), ["begin"]);
  const { said } = await graph.invoke(new Command({ resume: "that" }), theirs);
  assert.deepEqual(said, ["begin", "you said that", "then"]);
  const ended = await graph.getState(mine ?? CONFIG);
  assert.deepEqual([ended.values.said, ended.next], [["begin", "you said this", "then"], []]);
});
