// Tests of LangGraph threads with messages of other programs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import type { AgentInputItem } from "@openai/agents";
import { messages, TreeringSaver } from "../src/langgraph/index.js";
import { TreeringSession } from "../src/openai-agents/index.js";
import { CONFIG, said } from "./langgraph-graphs.js";
import { shared, texts } from "./support.js";

const open = shared();

/** A graph, and a function that runs a turn and returns the texts that the model was sent. */
function listening(saver: TreeringSaver) {
  const sent: string[][] = [];
  const graph = new StateGraph(MessagesAnnotation)
    .addNode("answer", ({ messages }) => {
      sent.push(messages.map(({ text }) => text));
      return { messages: [new AIMessage(`Answer ${messages.length}`)] };
    })
    .addEdge(START, "answer")
    .compile({ checkpointer: saver });
  const ask = async (prompt: string, before: BaseMessage[] = []) => {
    await graph.invoke({ messages: [...before, new HumanMessage(prompt)] }, CONFIG);
    return sent.at(-1);
  };
  return { ask, graph };
}

const ITEMS = [
  { role: "user", content: "Where is it?" },
  { type: "function_call", callId: "c1", name: "grep", arguments: '{"p": 1}', status: "completed" },
  {
    type: "function_call_result",
    callId: "c1",
    name: "grep",
    status: "completed",
    output: { type: "text", text: "It is there." },
  },
  {
    type: "message",
    role: "assistant",
    status: "completed",
    content: [{ type: "output_text", text: "There." }],
  },
] as AgentInputItem[];

// A graph that continues a conversation of another framework is given its messages. Neither these
// messages nor the graph's own may be stored twice.
test("a graph continues after another framework", async () => {
  const db = open();
  const session = new TreeringSession("thread", db);
  await session.addItems(ITEMS);
  const saver = new TreeringSaver(db);
  const { ask } = listening(saver);
  const conv = await saver.conversation("thread");
  const before = await messages(conv, { others: true });
  assert.deepEqual(
    before.map(({ type, text }) => [type, text]),
    [
      ["human", "Where is it?"],
      ["ai", ""],
      ["tool", "It is there."],
      ["ai", "There."],
    ],
  );
  const heard = ["Where is it?", "", "It is there.", "There.", "And now?"];
  assert.deepEqual(await ask("And now?", before), heard);
  const all = ["Where is it?", "grep", "It is there.", "There.", "And now?", "Answer 5"];
  assert.deepEqual(await said(conv), all);
  assert.deepEqual(await messages(conv, { others: true }), []);
  // Each continues where the other stopped.
  await session.addItems([{ role: "user", content: "From there" }]);
  const others = await messages(conv, { others: true });
  assert.deepEqual(await ask("From here", others), [
    ...heard,
    "Answer 5",
    "From there",
    "From here",
  ]);
  assert.deepEqual((await said(conv)).slice(6), ["From there", "From here", "Answer 8"]);
  assert.equal((await conv.branches()).length, 1);
  // A program that reads the thread for the first time continues too.
  const again = listening(new TreeringSaver(db));
  assert.equal((await again.ask("Last"))?.length, 10);
  assert.deepEqual((await texts(conv)).slice(-2), ["Last", "Answer 10"]);
});

// Messages that are passed in again are recognised by their ids, by the state and by the
// conversation.
test("messages that are passed in again", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const { ask, graph } = listening(saver);
  await ask("One");
  const conv = await saver.conversation("thread");
  await conv.user("From elsewhere");
  const all = await messages(conv);
  const state = (await graph.getState(CONFIG)).values.messages as BaseMessage[];
  assert.deepEqual(
    all.slice(0, 2).map(({ id }) => id),
    state.map(({ id }) => id),
  );
  assert.match(all[2]?.id ?? "", /^[0-9a-f-]{36}#\d+$/);
  assert.deepEqual(await messages(conv), all);
  assert.deepEqual(await ask("Two", all), ["One", "Answer 1", "From elsewhere", "Two"]);
  assert.deepEqual(await ask("Three", await messages(conv)), [
    ...["One", "Answer 1", "From elsewhere", "Two", "Answer 4", "Three"],
  ]);
  const spoken = ["One", "Answer 1", "From elsewhere", "Two", "Answer 4", "Three", "Answer 6"];
  assert.deepEqual(await texts(conv), spoken);
  assert.deepEqual(
    (await messages(conv)).map(({ text }) => text),
    spoken,
  );
  assert.equal((await conv.branches()).length, 1);
});

// Messages of another conversation, or with changed text, are stored as new messages.
test("messages of another conversation", async () => {
  const db = open();
  const other = await db.create("Another");
  await other.user("Over there");
  const saver = new TreeringSaver(db);
  const { ask, graph } = listening(saver);
  await ask("Here", await messages(other));
  const conv = await saver.conversation("thread");
  assert.deepEqual(await texts(conv), ["Over there", "Here", "Answer 2"]);
  await conv.user("By hand");
  const [last] = await messages(conv, { others: true });
  const changed = new HumanMessage({ id: last?.id ?? "", content: "Changed" });
  await graph.updateState(CONFIG, { messages: [changed] });
  assert.deepEqual((await texts(conv)).slice(-2), ["By hand", "Changed"]);
});

// Providers refuse calls without results, so every turn after a killed tool would fail.
test("messages have a result for an open call", async () => {
  const saver = new TreeringSaver(open());
  const { ask } = listening(saver);
  const conv = await saver.conversation("thread");
  await conv.user("Look");
  const toolCalls = [{ id: "open", tool: "cat", arguments: {} }];
  await conv.assistant("I look.", { toolCalls });
  const before = await messages(conv);
  const told = "no result yet: the call has not ended";
  assert.equal(before.at(-1)?.text, told);
  assert.deepEqual(await ask("And on", before), ["Look", "I look.", told, "And on"]);
  const later = "no result: the call had not ended when the conversation went on";
  assert.deepEqual(
    (await messages(conv)).map(({ text }) => text),
    ["Look", "I look.", later, "And on", "Answer 4"],
  );
  assert.deepEqual(await texts(conv), ["Look", "I look.", "And on", "Answer 4"]);
  assert.equal((await conv.openCalls()).length, 1);
});
