// Tests of LangGraph's checkpointer: LangGraph's own suite, and a comparison with `MemorySaver`.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import {
  AIMessage,
  HumanMessage,
  RemoveMessage,
  SystemMessage,
  ToolMessage,
} from "@langchain/core/messages";
import {
  Annotation,
  type BaseCheckpointSaver,
  Command,
  DeltaChannel,
  emptyCheckpoint,
  interrupt,
  MemorySaver,
  MessagesAnnotation,
  START,
  StateGraph,
} from "@langchain/langgraph";
import { uuid6 } from "@langchain/langgraph-checkpoint";
import { type SaverOptions, TreeringSaver } from "../src/langgraph/index.js";
import type { Parsed } from "../src/words.js";
import { agent, ask, builder, CONFIG, history } from "./langgraph-graphs.js";
import { serving } from "./model.js";
import { all, shared, temporary } from "./support.js";

const open = shared();
const run = promisify(execFile);

// LangGraph's suite defines what a checkpointer must do: all tests must pass, none may be skipped.
test("LangGraph's own suite", { timeout: 240_000 }, async () => {
  const vitest = join("node_modules", ".bin", "vitest");
  const options = ["run", "langgraph.spec", "--globals", "--dir", "build/tests"];
  const { stdout } = await run(vitest, [...options, "--reporter", "json"], {
    env: { ...process.env, TREERING_SUITE_STORE: temporary() },
    maxBuffer: 1 << 26,
  });
  const report = JSON.parse(stdout.slice(stdout.indexOf('{"numTotalTestSuites"')));
  assert.ok(report.success);
  assert.equal(report.numPassedTests, report.numTotalTests);
  assert.ok(report.numPassedTests > 700, `${report.numPassedTests} tests`);
});

// ---- the same with both checkpointers ----

type Story = (saver: BaseCheckpointSaver, url: string) => Promise<unknown>;

const turns: Story = async (saver, url) => {
  const graph = agent(saver, url);
  for (const prompt of ["Hello", 'call weather {"city": "Bergen"}', "And now?"]) {
    await ask(graph, prompt);
  }
  return history(graph);
};

const anotherPast: Story = async (saver, url) => {
  const graph = agent(saver, url);
  await ask(graph, "One");
  await ask(graph, "Two");
  const past = (await all(graph.getStateHistory(CONFIG)))[3]?.config ?? CONFIG;
  const fork = await graph.updateState(past, { messages: [new HumanMessage("Instead")] }, "ask");
  await graph.invoke(null, fork);
  await ask(graph, "Three", fork);
  await ask(graph, "Four");
  const copy = (await all(graph.getStateHistory(CONFIG)))[2]?.config ?? CONFIG;
  await graph.updateState(copy, null, "__copy__");
  return history(graph);
};

const Said = Annotation.Root({
  said: Annotation<string[]>({ reducer: (a, b) => [...a, ...b], default: () => [] }),
});

const askedAndAnswered: Story = async (saver) => {
  const graph = new StateGraph(Said)
    .addNode("ask", () => ({ said: [`you said ${interrupt("what?")}`] }))
    .addNode("then", () => ({ said: ["then"] }))
    .addEdge(START, "ask")
    .addEdge("ask", "then")
    .compile({ checkpointer: saver, interruptBefore: ["then"] });
  await graph.invoke({ said: ["begin"] }, CONFIG);
  const answers = [await history(graph)];
  await graph.invoke(new Command({ resume: "this" }), CONFIG);
  answers.push(await history(graph));
  await graph.invoke(null, CONFIG);
  return [...answers, await history(graph)];
};

const aNodeThatFailsOnce: Story = async (saver) => {
  const ran: string[] = [];
  let mayWork = false;
  const graph = new StateGraph(Said)
    .addNode("works", () => {
      ran.push("works");
      return { said: ["works"] };
    })
    .addNode("fails", () => {
      if (!mayWork) throw new Error("not yet");
      return { said: ["at last"] };
    })
    .addEdge(START, "works")
    .addEdge(START, "fails")
    .compile({ checkpointer: saver });
  await assert.rejects(graph.invoke({ said: ["begin"] }, CONFIG), /not yet/);
  const answers = [await history(graph)];
  mayWork = true;
  await graph.invoke(null, CONFIG);
  return [...answers, await history(graph), ran.length];
};

const messagesThatGoAndChange: Story = async (saver, url) => {
  const graph = agent(saver, url);
  for (const number of [0, 1, 2]) {
    const message = new HumanMessage({ content: `Number ${number}`, id: `h${number}` });
    await graph.invoke({ messages: [message] }, CONFIG);
  }
  const changed = new HumanMessage({ content: "Changed", id: "h1" });
  await graph.updateState(CONFIG, { messages: [changed, new RemoveMessage({ id: "h2" })] });
  await ask(graph, "After it");
  const { messages } = (await graph.getState(CONFIG)).values;
  const drop = messages.slice(0, 3).map(({ id }: { id: string }) => new RemoveMessage({ id }));
  await graph.updateState(CONFIG, { messages: drop });
  await ask(graph, "The end");
  return history(graph);
};

const graphsInGraphs: Story = async (saver, url) => {
  const inner = builder(url).compile({ checkpointer: true });
  const graph = new StateGraph(MessagesAnnotation)
    .addNode("inner", inner)
    .addEdge(START, "inner")
    .compile({ checkpointer: saver });
  await ask(graph as never, 'call weather {"city": "Oslo"}');
  await ask(graph as never, "Again");
  const tuples = await all(saver.list(CONFIG));
  const spaces = tuples.map(({ config }) => config.configurable?.checkpoint_ns.split(":")[0]);
  return [await history(graph), [...new Set(spaces)].sort()];
};

const sends: Story = async (saver) => {
  const { Send } = await import("@langchain/langgraph");
  const graph = new StateGraph(Said)
    .addNode("one", ({ said }: typeof Said.State) => ({ said: [`one of ${said.join()}`] }))
    .addNode("all", () => ({ said: ["all"] }))
    .addConditionalEdges(START, () => ["a", "b"].map((each) => new Send("one", { said: [each] })))
    .addEdge("one", "all")
    .compile({ checkpointer: saver, interruptBefore: ["all"] });
  await graph.invoke({ said: [] }, CONFIG);
  await graph.invoke(null, CONFIG);
  return history(graph);
};

const aDeltaChannel: Story = async (saver) => {
  const reducer = (state: string[], writes: unknown[]) => [
    ...state,
    ...(writes as string[][]).flat(),
  ];
  const State = Annotation.Root({
    log: (() =>
      new DeltaChannel(reducer as never, {
        snapshotFrequency: 7,
        initialValueFactory: () => [] as never,
      })) as never,
  });
  const grown = (name: string) => (state: Parsed) => ({ log: [`${state.log.length} of ${name}`] });
  const graph = new StateGraph(State as Parsed)
    .addNode("one", grown("one"))
    .addNode("two", grown("two"))
    .addEdge(START, "one" as never)
    .addEdge("one" as never, "two" as never)
    .compile({ checkpointer: saver });
  for (let number = 0; number < 10; number += 1) {
    await graph.invoke({ log: [`turn ${number}`] } as never, CONFIG);
  }
  return history(graph);
};

/** Unusual values that a graph may have. */
const ODD: Record<string, Parsed> = {
  none: null,
  nothing: undefined,
  empty: [],
  numbers: Array.from({ length: 1000 }, (_, n) => n),
  mixed: [1, "two", null, { three: [4] }],
  bytes: Uint8Array.of(0, 255),
  "list of bytes": [new Uint8Array(100).fill(97), new Uint8Array(100).fill(98)],
  set: new Set([1, 2]),
  map: new Map([["a", { b: 1 }]]),
  pattern: /a+/i,
  nested: { messages: [new HumanMessage({ content: "in an object", id: "x" })] },
  messages: [
    new SystemMessage({ content: "brief", id: "s" }),
    new HumanMessage({
      content: [{ type: "text", text: "a text of some length, to be kept once" }],
      id: "h",
    }),
    new AIMessage({
      content: "",
      id: "a",
      tool_calls: [{ id: "c", name: "t", args: { x: 1.5 }, type: "tool_call" }],
      usage_metadata: { input_tokens: 1, output_tokens: 2, total_tokens: 3 },
    }),
    new ToolMessage({ content: "result", tool_call_id: "c", id: "t" }),
    new ToolMessage({ content: "an orphan", tool_call_id: "nobody", artifact: { raw: [1] } }),
    new AIMessage({
      content: "odd",
      id: "b",
      additional_kwargs: { deep: { $treering: 1 }, none: undefined, set: new Set([1]) },
    }),
    new HumanMessage({ content: "half of a pair \ud83d and a \u0000, to be kept as it is" }),
  ],
  texts: ["the same text", "the same text"],
  big: "x".repeat(9_000),
};

const oddValues: Story = async (saver) => {
  const values = { ...ODD };
  const versions = Object.fromEntries(Object.keys(values).map((name) => [name, 1]));
  let config: Parsed = { configurable: { thread_id: "odd", checkpoint_ns: "" } };
  const more = new HumanMessage({ content: "more", id: "m" });
  const first = new HumanMessage({ content: "first", id: "f" });
  const changes: ((before: Parsed[]) => Parsed[])[] = [
    (before) => [...before, more],
    (before) => [first, ...before.slice(1)],
    (before) => before.slice(2),
    () => [],
  ];
  for (const [step, change] of changes.entries()) {
    const checkpoint = {
      ...emptyCheckpoint(),
      id: uuid6(step),
      ts: `${step}`,
      channel_values: { ...values },
      channel_versions: { ...versions },
    };
    const fresh = step === 0 ? versions : { messages: versions.messages ?? 0 };
    const metadata: Parsed = { source: "loop", step, parents: {}, odd: [null, { a: "\0" }] };
    config = await saver.put(config, checkpoint, metadata, fresh);
    await saver.putWrites(
      config,
      [["a", values] as never, ["__error__", "e"]],
      `task ${step}`,
      "p",
    );
    await saver.putWrites(config, [["a", "ignored"]], `task ${step}`, "p");
    await saver.putWrites(config, [["__error__", "replaced"]], `task ${step}`, "p");
    values.messages = change(values.messages);
    versions.messages = step + 2;
  }
  const kept: unknown[] = [];
  for (const each of await all(saver.list({ configurable: { thread_id: "odd" } }))) {
    const one = await saver.getTuple(each.config);
    assert.deepEqual(one?.checkpoint, each.checkpoint);
    const { id: _, ...checkpoint } = each.checkpoint;
    kept.push(checkpoint, each.metadata, each.pendingWrites);
  }
  return kept;
};

const lists: Story = async (saver, url) => {
  const graph = agent(saver, url);
  const configs = ["a", "b"].map((thread_id) => ({ configurable: { thread_id } }));
  const [first = CONFIG, second = CONFIG] = configs;
  for (const config of configs) {
    for (const number of [0, 1]) {
      await graph.invoke({ messages: [new HumanMessage(`Number ${number}`)] }, config);
    }
  }
  const answers: unknown[] = [];
  const middle = (await all(saver.list(first)))[3]?.config;
  const filters = [undefined, { source: "loop" }, { source: "input", step: -1 }, { source: "no" }];
  for (const filter of filters) {
    for (const limit of [undefined, 1, 3]) {
      for (const before of [undefined, middle]) {
        const found = await all(saver.list(first, { filter, limit, before } as never));
        answers.push(found.map(({ metadata }) => metadata?.step));
      }
    }
  }
  const everywhere = await all(saver.list({ configurable: {} }));
  answers.push(everywhere.map(({ config }) => config.configurable?.thread_id).sort());
  await saver.deleteThread("a");
  answers.push(await all(saver.list(first)), await saver.getTuple(first));
  await graph.invoke({ messages: [new HumanMessage("Anew")] }, first);
  return [...answers, await history(graph, first), await history(graph, second)];
};

const STORIES = {
  turns,
  anotherPast,
  askedAndAnswered,
  aNodeThatFailsOnce,
  messagesThatGoAndChange,
  graphsInGraphs,
  sends,
  aDeltaChannel,
  oddValues,
  lists,
};

/** Checks that a story has the same result as with `MemorySaver`, and that the store is sound. */
async function isSame(story: Story, options: SaverOptions = {}): Promise<void> {
  const db = open();
  const ours = await story(new TreeringSaver(db, options), (await serving()).url);
  const its = await story(new MemorySaver(), (await serving()).url);
  assert.deepEqual(ours, its);
  assert.ok((await db.verify({ deep: true })).sound);
}

for (const [name, story] of Object.entries(STORIES)) {
  // Graphs that were written for LangGraph's own saver must behave the same.
  test(`same as MemorySaver: ${name}`, () => isSame(story));
  // The same without threads in memory, so that each call looks up what it needs.
  test(`same as MemorySaver, without a cache: ${name}`, () => isSame(story, { threadsMax: 0 }));
}
