// Tests what LangGraph's checkpointer reads of a thread in a program that has just started.

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import type { RunnableConfig } from "@langchain/core/runnables";
import { emptyCheckpoint, uuid6 } from "@langchain/langgraph-checkpoint";
import { Event as EventCodec } from "../src/gen/treering/v1/event.js";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { TreeringSaver } from "../src/langgraph/index.js";
import type { Parsed } from "../src/words.js";
import { told } from "./langgraph-graphs.js";
import { CONFIG, message, put, valuesOf } from "./langgraph-steps.js";
import { inPython, skip } from "./python.js";
import { all, Server, shared, texts } from "./support.js";

const open = shared();

/** Returns a function that counts the events the client read since its last call. */
function reads({ mock }: TestContext): () => number {
  const decode = mock.method(EventCodec, "decode");
  return () => {
    const count = decode.mock.callCount();
    decode.mock.resetCalls();
    return count;
  };
}

const same = async (saver: TreeringSaver, config: RunnableConfig, values: Parsed) =>
  assert.deepEqual(told(await valuesOf(saver, config)), told(values));

// The first call of a program must read only what the state needs, however long the thread is.
test("a first call reads no more in a longer thread", async (context) => {
  const db = open();
  const saver = new TreeringSaver(db);
  const counts: number[][] = [];
  const read = reads(context);
  let config = CONFIG;
  let said: BaseMessage[] = [];
  for (let step = 0; step < 120; step += 1) {
    said = [...said, message(step)].slice(-6);
    config = await put(saver, config, step, { values: { messages: said, step } });
    await saver.putWrites(config, [["messages", step]], `task ${step}`);
    if (step !== 39 && step !== 119) continue;
    read();
    const other = new TreeringSaver(db);
    await same(other, CONFIG, { messages: said, step });
    const latest = read();
    await same(new TreeringSaver(db), config, { messages: said, step });
    const byId = read();
    const { messages } = await valuesOf(other, CONFIG);
    const more = new HumanMessage({ content: `Another program ${step}`, id: `other${step}` });
    said = [...messages.slice(1), more];
    read();
    config = await put(other, config, step, { values: { messages: said, step } });
    const after = read();
    // A `put` can also be the first call, in a program that knows the previous checkpoint.
    said = [...said.slice(1), message(1_000 + step)];
    config = await put(new TreeringSaver(db), config, step, { values: { messages: said, step } });
    counts.push([latest, byId, after, read()]);
    assert.equal((await texts(await saver.conversation("thread"))).at(-1), said.at(-1)?.text);
  }
  assert.deepEqual(counts[0], counts[1]);
  const sum = counts[1]?.reduce((one, other) => one + other) ?? 0;
  assert.ok(sum > 0 && sum < 100, String(counts));
  const conversation = await saver.conversation("thread");
  assert.equal((await conversation.branches()).length, 1);
  await same(new TreeringSaver(db), CONFIG, await valuesOf(saver, CONFIG));
  assert.equal((await all(new TreeringSaver(db).list(CONFIG))).length, 124);
});

/** For each first call of a Python program: how many events it read, and what it returned. */
async function firstCallsInPython(address: string, steps = 0): Promise<Parsed> {
  const told = await inPython("langgraph_first_calls.py", address, String(steps));
  for (const name of ["latest", "by id", "put"]) isFew(told[name].read);
  assert.deepEqual(told["by id"].texts, told.latest.texts);
  assert.deepEqual([told.branches, told.sound], [1, true]);
  return told;
}

/** Enough for six messages, of one or two events each, and the events that locate them. */
const isFew = (count: number) => assert.ok(count > 6 && count < 40, `${count} events`);

const textsOf = (messages: readonly BaseMessage[]) => messages.map(({ text }) => text);

/** Makes first calls of JavaScript programs; returns the texts of the last state. */
async function firstCalls(db: treering.Treering, read: () => number): Promise<string[]> {
  read();
  const found = await new TreeringSaver(db).getTuple(CONFIG);
  isFew(read());
  const { config = CONFIG, metadata } = found ?? {};
  const { messages } = await valuesOf(new TreeringSaver(db), config);
  isFew(read());
  const said = [...messages.slice(1), message(1_000)];
  const step = (metadata?.step ?? 0) + 1;
  await put(new TreeringSaver(db), config, step, { values: { messages: said, step } });
  isFew(read());
  return textsOf(said);
}

// Each client must look up the values of checkpoints that the other put, without reading the whole
// thread, and continue on the same branch.
test("Python looks up what JavaScript put", { skip }, async (context) => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const saver = new TreeringSaver(db);
  let config = CONFIG;
  let said: BaseMessage[] = [];
  for (let step = 0; step < 60; step += 1) {
    said = [...said, message(step)].slice(-6);
    config = await put(saver, config, step, { values: { messages: said, step } });
  }
  const told = await firstCallsInPython(server.address);
  assert.deepEqual(told.latest.texts, textsOf(said));
  assert.equal((await firstCalls(db, reads(context)))[4], "More");
  const again = await firstCallsInPython(server.address);
  assert.deepEqual(again.latest.texts.slice(-2), ["More", "Message 1000"]);
});

test("JavaScript looks up what Python put", { skip }, async (context) => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const told = await firstCallsInPython(server.address, 60);
  const said = await firstCalls(db, reads(context));
  assert.deepEqual(said, [...told.latest.texts.slice(2), "More", "Message 1000"]);
  assert.deepEqual((await firstCallsInPython(server.address)).latest.texts, said);
});

/** Random numbers that are the same in every run (mulberry32). */
function chanceOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// A row stores a list as runs of elements of other rows, back to a row with all elements. However a
// list changes, each checkpoint must be read as it was put, by a program that knows the thread and
// by one that looks it up, also after others continued from it.
for (const seed of [1, 2, 3]) {
  test(`lists that change at random, ${seed}`, async () => {
    const chance = chanceOf(seed);
    const below = (count: number) => Math.floor(chance() * count);
    const db = open();
    const saver = new TreeringSaver(db);
    const reader = new TreeringSaver(db, { threadsMax: 0 });
    const held: { config: RunnableConfig; values: Parsed }[] = [];
    let said: BaseMessage[] = [];
    let notes: Parsed[] = [{ note: -1 }];
    let config = CONFIG;
    for (let step = 0; step < 60; step += 1) {
      const writer = below(4) ? saver : reader;
      const which = chance();
      if (which < 0.75 || !said.length) {
        const added = Array.from({ length: 1 + below(2) }, (_, at) => message(step * 3 + at));
        said = [...said, ...added];
        notes = [...notes, { note: step, text: "the same".repeat(5) }];
      } else if (which < 0.85) {
        said = said.slice(1 + below(2));
        notes = notes.length > 1 ? notes.slice(1) : notes;
      } else if (which < 0.92) {
        const other = new HumanMessage({ content: `Instead ${step}`, id: `i${step}` });
        said = said.with(below(said.length), other);
      } else {
        const past = held[below(held.length)];
        config = past?.config ?? CONFIG;
        said = past?.values.messages ?? said;
        notes = past?.values.notes ?? notes;
      }
      const changed = new Set(which < 0.92 ? ["messages", "notes"] : []);
      const values = { messages: said, notes, same: "x".repeat(100) };
      config = await put(writer, config, step, { values, changed: step ? changed : undefined });
      held.push({ config, values });
      await same(reader, CONFIG, values);
    }
    for (const each of [saver, reader, new TreeringSaver(db)]) {
      for (const { config, values } of held.filter((_, index) => index % 4 === 0)) {
        await same(each, config, values);
      }
    }
    assert.ok((await db.verify({ deep: true })).sound);
  });
}

// A list can return to its state in an older row. It must not be searched for in the rows before
// that row: a program that looks up does not have them.
test("a list that returns to an earlier state", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  // The list drops its first elements, later none.
  const notes = Array.from({ length: 20 }, (_, note) => ({ note }));
  const states = notes.map((_, step) => ({
    notes: notes.slice(step < 16 ? Math.max(0, step - 5) : 10, step + 1),
  }));
  let config = CONFIG;
  for (const [step, values] of states.entries())
    config = await put(saver, config, step, { values });
  for (const [step, values] of [...states].reverse().entries()) {
    const other = new TreeringSaver(db);
    await valuesOf(other, CONFIG);
    config = await put(other, config, states.length + step, { values });
    for (const each of [other, new TreeringSaver(db), saver]) await same(each, CONFIG, values);
  }
});

// A program that has read the thread must look for a checkpoint that another program put since;
// otherwise the values that the next one does not change are lost.
test("a checkpoint after one of another program", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const values = { notes: [{ note: 1 }], same: "as it was" };
  const first = await put(saver, CONFIG, 0, { values });
  const second = await put(new TreeringSaver(db), first, 1, { values });
  await put(saver, second, 2, { values, changed: new Set(["notes"]) });
  for (const each of [saver, new TreeringSaver(db)]) await same(each, CONFIG, values);
});

// The latest checkpoint is the one with the highest id, as in LangGraph, even if another program
// with a slow clock put one later, or another branch was activated.
test("the latest is not always the newest", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const [early, late] = [uuid6(1), uuid6(2)].map((id) => id.slice(0, -1));
  const said = (...numbers: number[]) => ({ messages: numbers.map(message) });
  const first = await put(saver, CONFIG, 0, { values: said(0), id: `${early}0` });
  await put(saver, first, 1, { values: said(0, 1), id: `${late}0` });
  await put(saver, first, 2, { values: said(0, 2), id: `${early}f` });
  const other = new TreeringSaver(db);
  await same(other, CONFIG, said(0, 1));
  const conv = await saver.conversation("thread");
  assert.notEqual((await conv.branches()).find(({ active }) => active)?.name, "main");
  await conv.on("main").append([make.branchActivated()]);
  for (const each of [new TreeringSaver(db), other, saver]) await same(each, CONFIG, said(0, 1));
  await put(new TreeringSaver(db), first, 3, { values: said(0, 1, 3) });
  for (const each of [new TreeringSaver(db), other, saver]) await same(each, CONFIG, said(0, 1, 3));
  assert.deepEqual(await texts(conv), ["Message 0", "Message 1", "Message 3"]);
});

// A deleted checkpoint is not found by its key, and the next one that is put is the latest.
test("deleted checkpoints are not looked up", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const knows = new TreeringSaver(db);
  const configs = [CONFIG];
  for (let step = 0; step < 6; step += 1) {
    const messages = Array.from({ length: step + 1 }, (_, number) => message(number));
    configs.push(await put(saver, configs.at(-1) ?? CONFIG, step, { values: { messages } }));
  }
  const last = configs.at(-1) ?? CONFIG;
  assert.equal((await valuesOf(knows, CONFIG)).messages.length, 6);
  await saver.deleteThread("thread");
  for (const each of [new TreeringSaver(db), knows]) {
    assert.equal(await each.getTuple(last), undefined);
    assert.equal(await each.getTuple(CONFIG), undefined);
  }
  const anew = await put(new TreeringSaver(db), CONFIG, 7, { values: { messages: [message(7)] } });
  for (const each of [new TreeringSaver(db), knows, saver]) {
    for (const config of [CONFIG, anew]) await same(each, config, { messages: [message(7)] });
    assert.equal(await each.getTuple(last), undefined);
  }
  const nowhere = { configurable: { thread_id: "no such thread" } };
  assert.equal(await new TreeringSaver(db).getTuple(nowhere), undefined);
});

// A graph puts the messages that it read. A message that was changed in place is stored as a new
// message; unchanged messages are not stored again.
test("messages that are changed in place", async () => {
  const db = open();
  const saver = new TreeringSaver(db);
  const said = [
    new HumanMessage({ content: "One", id: "1" }),
    new AIMessage({ content: "Two", id: "2", additional_kwargs: { a: 1 } }),
    new HumanMessage({ content: "Three", id: "3" }),
    new AIMessage({ content: "Four", id: "4" }),
  ];
  const config = await put(saver, CONFIG, 0, { values: { messages: said } });
  const other = new TreeringSaver(db);
  const { messages } = await valuesOf(other, CONFIG);
  messages[1].additional_kwargs.a = 2;
  messages[2].content = "Changed";
  await put(other, config, 1, { values: { messages } });
  const fields = (list: Parsed[]) => list.map((each) => [each.content, each.additional_kwargs]);
  for (const each of [new TreeringSaver(db), other, saver]) {
    assert.deepEqual(fields((await valuesOf(each, CONFIG)).messages), fields(messages));
    assert.deepEqual(fields((await valuesOf(each, config)).messages), fields(said));
  }
  assert.deepEqual(await texts(await saver.conversation("thread")), [
    "One",
    "Two",
    "Changed",
    "Four",
  ]);
});

// As in LangGraph's SQLite savers, a name with a dot is a path into the metadata. Checkpoints of
// Python with numbers that JSON lacks must be readable, and a `put` without versions, as in older
// programs, must work.
test("filters with paths, and a put without versions", { skip }, async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  await inPython("langgraph_metadata.py", server.address);
  const saver = new TreeringSaver(db);
  const config = { configurable: { thread_id: "thread", checkpoint_ns: "" } };
  const found = async (filter: Record<string, unknown>) =>
    (await all(saver.list(config, { filter } as never))).length;
  assert.equal(await found({ "user.name": "ada", step: 1 }), 1);
  assert.equal(await found({ "user.name": "bob" }), 0);
  assert.equal(await found({ "nobody.name.first": "ada" }), 0);
  assert.deepEqual((await saver.getTuple(config))?.metadata, {
    step: 1,
    score: null,
    text: "NaN, or Infinity",
    user: { name: "ada" },
  });
  const checkpoint = { ...emptyCheckpoint(), id: uuid6(1), channel_values: { x: 2 } };
  const put = saver.put.bind(saver) as (...given: unknown[]) => Promise<RunnableConfig>;
  const other = { configurable: { thread_id: "other" } };
  const stored = await put(other, checkpoint, { "a.b": 1 });
  assert.deepEqual((await saver.getTuple(stored))?.checkpoint.channel_values, { x: 2 });
  const filter = { "a.b": 1 };
  assert.equal((await all(saver.list(other, { filter } as never))).length, 1);
});
