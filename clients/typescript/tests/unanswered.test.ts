// Tests of calls without a result: each adapter must give the texts of the server's requests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ToolMessage } from "@langchain/core/messages";
import { Unanswered } from "../src/adapters/unanswered.js";
import { chatStore } from "../src/ai/index.js";
import type * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { messages } from "../src/langgraph/index.js";
import { TreeringSession } from "../src/openai-agents/index.js";
import type { CancelReasonName, Parsed } from "../src/words.js";
import { all, shared } from "./support.js";

const open = shared();
const REASONS: CancelReasonName[] = ["denied", "interrupted", "timed_out", "superseded"];
const WAITING = ["waits", "yes", "no", "no_more", "silent", "late"];

/** Appends an answer with a call in each state without a result. */
async function asked(conv: treering.Conversation, db: treering.Treering): Promise<void> {
  await conv.user("Go.");
  const why = REASONS.map((reason) => `${reason}_why`);
  const names = ["plain", "runs", "by", ...WAITING, ...REASONS, ...why];
  await conv.assistant("I look.", {
    toolCalls: names.map((at) => ({ id: at, tool: "look", arguments: { at } })),
    needsApproval: (_, { at }) => WAITING.includes(at),
  });
  await conv.append([make.toolStarted("runs"), make.toolStarted("by", { executor: "worker 7" })]);
  const pending = new Map((await conv.pending()).map((call) => [call.callId, call]));
  const waiting = (id: string) => pending.get(id) as treering.ToolCall;
  await db.approve(waiting("yes"), { by: "ada" });
  await db.deny(waiting("no"), { by: "ada", reason: "not there" });
  await db.deny(waiting("no_more"), { by: "ada", reason: "never" });
  await db.deny(waiting("silent"));
  const { argumentsHash } = waiting("late");
  await conv.append([
    make.decision("late", "expired", argumentsHash, { reason: "an hour" }),
    make.toolCancelled("no_more", "denied", "said so"),
    ...REASONS.map((reason) => make.toolCancelled(reason, reason)),
    ...REASONS.map((reason) => make.toolCancelled(`${reason}_why`, reason, "a reason")),
  ]);
}

const textOf = (content: Parsed): string =>
  typeof content === "string" ? content : content.map(({ text }: Parsed) => text).join("");

/** The texts of results in a request, by call id. A field beside the text says that they failed. */
async function ofRequest(conv: treering.Conversation): Promise<Record<string, string>> {
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  const blocks: Parsed[] = body.messages.flatMap(({ content }: Parsed) => content);
  const results = blocks.filter(({ type }) => type === "tool_result");
  assert.ok(results.every((result) => result.is_error));
  return Object.fromEntries(results.map((each) => [each.tool_use_id, textOf(each.content)]));
}

/** The same in OpenAI's format, where the text says that they failed. */
async function ofOpenaiRequest(conv: treering.Conversation): Promise<Record<string, string>> {
  const { body } = await conv.request("openai-responses", { model: "gpt-5" });
  const outputs: Parsed[] = body.input.filter(
    ({ type }: Parsed) => type === "function_call_output",
  );
  return Object.fromEntries(outputs.map((each) => [each.call_id, textOf(each.output)]));
}

// A denied or cancelled call must have the same text in each adapter and in requests, so that a
// model reads the same everywhere.
test("texts are those of requests", async () => {
  const db = open();
  const conv = await db.create();
  await asked(conv, db);
  for (const wentOn of [false, true]) {
    if (wentOn) await conv.assistant("Well.");
    const expected = await ofRequest(conv);
    assert.equal(Object.keys(expected).length, 17);
    const calls = new Unanswered();
    for await (const event of conv.events()) calls.take(event);
    const told = Object.keys(expected).map((id) => [id, calls.told(id, wentOn)]);
    assert.deepEqual(Object.fromEntries(told), expected);
  }
});

test("LangGraph gets the texts of requests", async () => {
  const db = open();
  const conv = await db.create();
  await asked(conv, db);
  for (const wentOn of [false, true]) {
    if (wentOn) {
      await conv.user("Hurry.");
      await conv.assistant("Well.");
    }
    const results = (await messages(conv)).filter(ToolMessage.isInstance);
    const told = results.map((each) => [each.tool_call_id, each.text]);
    assert.deepEqual(Object.fromEntries(told), await ofRequest(conv));
  }
});

test("OpenAI's SDK gets the texts of requests", async () => {
  const db = open();
  const id = crypto.randomUUID();
  const conv = await db.open(id);
  await asked(conv, db);
  const session = new TreeringSession(id, db);
  for (const wentOn of [false, true]) {
    if (wentOn) await conv.assistant("Well.");
    const items = await session.getItems();
    const results = items.filter((item) => item.type === "function_call_result");
    const told = results.map((each) => [each.callId, each.output]);
    assert.equal(told.length, 17);
    assert.deepEqual(Object.fromEntries(told), await ofOpenaiRequest(conv));
  }
  // A call that was denied and then cancelled has the name of who denied it, also if only the
  // newest items are read.
  const newest = await session.getItems(10);
  const [first] = newest.filter((item) => "callId" in item && item.callId === "no_more");
  assert.ok(first?.type === "function_call_result");
  assert.equal(first.output, "Error: denied by ada: never");
  assert.equal((await all(conv.events({ kinds: ["tool_result_recorded"] }))).length, 0);
});

test("`ai` gets the texts of requests", async () => {
  const db = open();
  const chats = chatStore(db);
  const chatId = await chats.createChat();
  const conv = await chats.conversation(chatId);
  await asked(conv, db);
  for (const wentOn of [false, true]) {
    await conv.user("Hurry.");
    if (wentOn) {
      await conv.assistant("Well.");
      await conv.user("And?");
    }
    const parts = (await chats.loadChat(chatId)).flatMap(({ parts }) => parts as Parsed[]);
    const failed = parts.filter(({ state }) => state === "output-error");
    const told = failed.map(({ toolCallId, errorText }) => [toolCallId, errorText]);
    const expected = await ofRequest(conv);
    // A denial has its own state.
    for (const id of ["no", "no_more", "silent", "late"]) delete expected[id];
    assert.deepEqual(Object.fromEntries(told), expected);
  }
});
