// Measures a program's first calls of LangGraph's checkpointer, and a read of the whole thread:
// `node scripts/measure-langgraph.mjs [STEPS [KEPT]]` (400 steps, all messages kept), after
// `npm run build`. Each step puts a task's writes, and a checkpoint with two more messages. With
// KEPT, the state has only that number of last messages: its size does not grow.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { emptyCheckpoint, uuid6 } from "@langchain/langgraph-checkpoint";
import * as treering from "../dist/index.js";
import { TreeringSaver } from "../dist/langgraph/index.js";

const THREAD = { configurable: { thread_id: "thread", checkpoint_ns: "" } };
const WORDS = 120;
const TIMES = 25;
const [steps = 400, kept = 0] = process.argv.slice(2).map(Number);

/** Words that differ from message to message. */
function text(number) {
  const word = (at) => (((number * WORDS + at) * 2_654_435_761) % 2 ** 32).toString(36).slice(0, 6);
  return Array.from({ length: WORDS }, (_, at) => word(at)).join(" ");
}

/** Begins a step after this state: puts its task's writes. */
async function begun(saver, { config, messages }, step) {
  const added = [
    new HumanMessage({ content: text(2 * step), id: `human-${step}` }),
    new AIMessage({ content: text(2 * step + 1), id: `ai-${step}` }),
  ];
  if (step) await saver.putWrites(config, [["messages", added]], `task-${step}`);
  return { config, step, messages: [...messages, ...added].slice(-kept) };
}

/** Puts the step's checkpoint; returns the new state. */
async function put(saver, { config, step, messages }) {
  const versions = { messages: step + 1, step: step + 1 };
  const checkpoint = {
    ...emptyCheckpoint(),
    id: uuid6(step),
    channel_values: { messages, step },
    channel_versions: versions,
  };
  const metadata = { source: "loop", step, parents: {} };
  return { config: await saver.put(config, checkpoint, metadata, versions), messages };
}

/** Returns the milliseconds of each call, as the first call of a program. */
async function firsts(db, time) {
  const ms = async (call) => {
    const began = performance.now();
    await call();
    return performance.now() - began;
  };
  const took = {};
  const latest = new TreeringSaver(db);
  let found;
  took["get latest"] = await ms(async () => {
    found = await latest.getTuple(THREAD);
  });
  const { config, checkpoint } = found;
  took["get by id"] = await ms(() => new TreeringSaver(db).getTuple(config));
  const state = { config, messages: checkpoint.channel_values.messages };
  const step = await begun(latest, state, steps + time);
  took["put, after get latest"] = await ms(() => put(latest, step));
  took["get latest, all of the thread read"] = await ms(async () => {
    for await (const _ of new TreeringSaver(db).list(THREAD, { limit: 1 }));
  });
  return took;
}

const median = (each) => each.sort((a, b) => a - b)[Math.floor(each.length / 2)] ?? 0;

const folder = mkdtempSync(join(tmpdir(), "treering-measure-"));
const db = treering.local(folder);
try {
  let state = { config: THREAD, messages: [] };
  const saver = new TreeringSaver(db);
  for (let step = 0; step < steps; step += 1) {
    state = await put(saver, await begun(saver, state, step));
  }
  const took = [];
  for (let time = 0; time < TIMES; time += 1) took.push(await firsts(db, time));
  console.log(`| a program's first call | ${steps} steps |\n|---|---:|`);
  for (const name of Object.keys(took[0])) {
    console.log(`| ${name} | ${median(took.map((each) => each[name])).toFixed(1)} |`);
  }
} finally {
  await db.close();
  rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
}
