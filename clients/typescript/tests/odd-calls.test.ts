// Tests of calls that a framework accepts and the store does not, such as without an id or a name.

import assert from "node:assert/strict";
import { test } from "node:test";
import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import { MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import type { AgentInputItem } from "@openai/agents";
import { chatStore } from "../src/ai/index.js";
import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import type * as treering from "../src/index.js";
import { messages, TreeringSaver } from "../src/langgraph/index.js";
import { TreeringSession } from "../src/openai-agents/index.js";
import type { Parsed } from "../src/words.js";
import { KEY, line } from "./claude-lines.js";
import { CONFIG, said, told } from "./langgraph-graphs.js";
import { all, shared, texts } from "./support.js";

const open = shared();
const LONG = "x".repeat(600);
const warnings: string[] = [];
process.on("warning", ({ name, message }) => {
  if (name === "TreeringWarning") warnings.push(message);
});

const tick = () => new Promise((resolve) => setImmediate(resolve));

/** Runs a graph that adds one of these lists in each turn; returns the messages of its state. */
async function talk(saver: TreeringSaver, answers: BaseMessage[][]): Promise<BaseMessage[]> {
  let turn = 0;
  const graph = new StateGraph(MessagesAnnotation)
    .addNode("say", () => ({ messages: answers[turn++] ?? [] }))
    .addEdge(START, "say")
    .compile({ checkpointer: saver });
  for (const number of answers.keys()) {
    await graph.invoke({ messages: [{ role: "user", content: `Question ${number}` }] }, CONFIG);
  }
  return (await graph.getState(CONFIG)).values.messages;
}

const asks = (call: Parsed, content = "hm") =>
  new AIMessage({ content, tool_calls: [{ name: "f", args: {}, type: "tool_call", ...call }] });

const DEEP: unknown[] = [];
let inner = DEEP;
for (let depth = 0; depth < 500; depth += 1) {
  const next: unknown[] = [];
  inner.push(next);
  inner = next;
}

const ODD: Record<string, Parsed> = {
  "an empty id": { id: "" },
  "no id": {},
  "an id that is null": { id: null },
  "a long id": { id: LONG },
  "an empty name": { id: "c1", name: "" },
  "a long name": { id: "c1", name: "ä".repeat(300) },
  "arguments that are nested too deep": { id: "c1", args: { deep: DEEP } },
  "a number that JSON lacks": { id: "c1", args: { x: Number.NaN } },
};

// A result that a TypeScript program adds must find the call that a Python program recorded. The
// packages derived different ids from a long id. The Python package has the same test.
test("a long id has the same stand-in in both packages", async () => {
  const db = open();
  const name = "f";
  await new TreeringSession("user-42", db).addItems([
    { type: "function_call", callId: "c".repeat(600), name, arguments: "{}" },
  ]);
  const [call] = await (await db.conversation("user-42")).toolCalls();
  assert.equal(call?.callId, "call_57fd257874f8d878d660bf59");
});

// An odd call must not block the messages after it. If the server refuses it with each later
// checkpoint, they are silently missing in the log, in requests, and for other frameworks.
for (const [name, call] of Object.entries(ODD)) {
  test(`a thread of LangGraph continues after ${name}`, async () => {
    const db = open();
    const saver = new TreeringSaver(db);
    const result = new ToolMessage({ content: "found it", tool_call_id: call.id ?? "" });
    const state = await talk(saver, [[asks(call), result], [new AIMessage("third giraffe")]]);
    const conv = await saver.conversation("thread");
    const expected = ["Question 0", "hm", "found it", "Question 1", "third giraffe"];
    const found = (await said(conv)).filter((each) => expected.includes(each));
    assert.deepEqual(found, expected);
    assert.equal((await db.search("giraffe")).length, 1);
    const request = await conv.request("openai-chat", { model: "gpt-4o" });
    assert.match(JSON.stringify(request.body), /third giraffe/);
    const others = await new TreeringSession("thread", db).getItems();
    assert.match(JSON.stringify(others), /found it.*third giraffe/);
    // The state is unchanged, and another program continues with it.
    const again: Parsed = await new TreeringSaver(db).getTuple(CONFIG);
    assert.deepEqual(told(again.checkpoint.channel_values.messages), told(state));
    await talk(new TreeringSaver(db), [[new AIMessage("fourth")]]);
    assert.deepEqual((await texts(conv)).slice(-3), ["third giraffe", "Question 0", "fourth"]);
    await tick();
    assert.ok(warnings.length > 0);
    assert.equal(new Set(warnings).size, warnings.length, "a warning comes once");
  });
}

// An odd call is stored as far as possible: with its name, its arguments and its result.
test("odd calls have their results", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const calls = ["", ""].map((id, at) => ({ name: `f${at}`, args: { at }, id, type: "tool_call" }));
  const both = new AIMessage({ id: "m1", content: "", tool_calls: calls as never });
  const result = (content: string, id: string) => new ToolMessage({ content, tool_call_id: id });
  await talk(saver, [
    [both],
    [result("first", ""), result("second", "")],
    [asks({ id: LONG, name: LONG })],
    [result("third", LONG)],
  ]);
  const conv = await saver.conversation("thread");
  const stored = (await conv.toolCalls()).reverse();
  const found = stored.map((each) => [each.tool, each.status, each.resultHead]);
  assert.deepEqual(found, [
    ["f0", "succeeded", "first"],
    ["f1", "succeeded", "second"],
    ["x".repeat(512), "succeeded", "third"],
  ]);
  const ids = stored.map(({ callId }) => callId);
  for (const id of ids) assert.match(id, /^call_[0-9a-f]{24}$/);
  assert.equal(new Set(ids).size, 3);
  const asked = (await messages(conv)).flatMap((each) => (each as AIMessage).tool_calls ?? []);
  assert.equal(asked.length, 3);
});

/** What other programs see of a conversation: calls with their results, and texts. */
async function seen(conv: treering.Conversation) {
  const calls = (await conv.toolCalls()).map(({ tool, status, resultHead }) => {
    return [tool.slice(0, 8), status, resultHead];
  });
  return { calls, said: await texts(conv) };
}

// The same calls in the other adapters: an odd call must not take the items that are added with it
// along, and a call without an id must keep its result.
for (const [name, { id, tool }] of Object.entries({
  "an empty id": { id: "", tool: "look" },
  "a long id": { id: LONG, tool: "look" },
  "an empty name": { id: "c1", tool: "" },
  "a long name": { id: "c1", tool: LONG },
})) {
  test(`a session of OpenAI's SDK with ${name}`, async () => {
    const db = open();
    const session = new TreeringSession("s", db);
    const call = { type: "function_call", callId: id, name: tool, arguments: '{"a": 1}' };
    const output = { type: "text", text: "it is there" };
    const result = { type: "function_call_result", callId: id, name: tool, output };
    const items = [
      { role: "user", content: "Look" },
      { ...call, status: "completed" },
      { ...result, status: "completed" },
      { role: "user", content: "And on" },
    ] as AgentInputItem[];
    await session.addItems(items.slice(0, 2));
    await session.addItems(items.slice(2));
    const shown = { "": "function", [LONG]: "xxxxxxxx" }[tool] ?? tool;
    const conv = await session.conversation();
    assert.deepEqual(await seen(conv), {
      calls: [[shown, "succeeded", "it is there"]],
      said: ["Look", "And on"],
    });
    assert.deepEqual(await new TreeringSession("s", db).getItems(), items);
  });

  test(`a session of Claude's SDK with ${name}`, async () => {
    const db = open();
    const store = new TreeringSessionStore(db);
    const use = { type: "tool_use", id, name: tool, input: { a: 1 } };
    const result = { type: "tool_result", tool_use_id: id, content: "it is there" };
    const lines = [
      line("user", "Look"),
      line("assistant", [{ type: "text", text: "I do" }, use]),
      line("user", [result]),
      line("assistant", [{ type: "text", text: "And on" }]),
    ];
    await store.append(KEY, lines.slice(0, 2));
    await new TreeringSessionStore(db).append(KEY, lines.slice(2));
    const shown = { "": "unnamed", [LONG]: "xxxxxxxx" }[tool] ?? tool;
    const conv = db.conversation(`${KEY.projectKey}/${KEY.sessionId}`);
    assert.deepEqual(await seen(conv), {
      calls: [[shown, "succeeded", "it is there"]],
      said: ["Look", "I do", "And on"],
    });
    assert.deepEqual(await store.load(KEY), lines);
  });

  test(`a chat of ai with ${name}`, async () => {
    const db = open();
    const chats = chatStore(db);
    const chatId = await chats.createChat();
    const begin = { type: `tool-${tool}`, toolCallId: id, input: { a: 1 } };
    const asked = [
      { id: "q", role: "user", parts: [{ type: "text", text: "Look" }] },
      { id: "a", role: "assistant", parts: [{ ...begin, state: "input-available" }] },
    ] as Parsed[];
    await chats.saveChat({ chatId, messages: asked });
    const [end] = asked[1].parts;
    const answered = structuredClone(asked);
    answered[1].parts = [
      { ...end, state: "output-available", output: "it is there" },
      { type: "text", text: "And on", state: "done" },
    ];
    await chats.saveChat({ chatId, messages: answered });
    const shown = { "": "unnamed", [LONG]: "xxxxxxxx" }[tool] ?? tool;
    const conv = await chats.conversation(chatId);
    assert.deepEqual(await seen(conv), {
      calls: [[shown, "succeeded", "it is there"]],
      said: ["Look", "And on"],
    });
    assert.deepEqual(await chatStore(db).loadChat(chatId), answered);
    assert.equal((await conv.branches()).length, 1);
  });
}

// An item that the store does not accept must not prevent others from being stored as messages.
test("an odd item does not affect others of its batch", async () => {
  const db = open();
  const session = new TreeringSession("s", db);
  const items = [
    { role: "user", content: "Look" },
    { type: "function_call", callId: "c", name: "f", arguments: JSON.stringify(DEEP) },
    { role: "user", content: "And on" },
  ] as AgentInputItem[];
  await session.addItems(items);
  assert.deepEqual(await texts(await session.conversation()), ["Look", "And on"]);
  assert.deepEqual(await session.getItems(), items);
  await session.replaceHistoryWithCompaction(items);
  assert.deepEqual(await texts(await session.conversation()), ["Look", "And on"]);
  assert.deepEqual(await session.getItems(), items);
  const events = await all((await session.conversation()).events());
  assert.ok(events.every(({ kind }) => kind !== "tool_call_requested"));
});

// A framework must read its own texts unchanged, also with half of a surrogate pair. Others read
// U+FFFD.
test("texts that are not Unicode are read unchanged", async () => {
  const db = open();
  const half = "giraffe \ud800 of a text that is long enough to be referred to";
  const saver = new TreeringSaver(db);
  const call = { id: "c1", name: "f\ud800", args: { half } };
  const state = await talk(saver, [[asks(call, half)], [new AIMessage("after")]]);
  const again: Parsed = await new TreeringSaver(db).getTuple(CONFIG);
  assert.deepEqual(told(again.checkpoint.channel_values.messages), told(state));
  const shown = half.replace("\ud800", "\ufffd");
  const conv = await saver.conversation("thread");
  assert.deepEqual(await texts(conv), ["Question 0", shown, "Question 1", "after"]);
  const chats = chatStore(db);
  const chatId = await chats.createChat();
  const output = { state: "output-available", input: {}, output: half };
  const parts = [
    { type: "text", text: half },
    { type: "tool-f", toolCallId: "c", ...output },
  ];
  const messages = [{ id: "a", role: "assistant", parts }] as Parsed[];
  await chats.saveChat({ chatId, messages });
  assert.deepEqual(await chatStore(db).loadChat(chatId), messages);
  await chats.saveChat({ chatId, messages: [{ ...messages[0], metadata: { seen: true } }] });
  assert.deepEqual(await texts(await chats.conversation(chatId)), [shown]);
});
