// Tests of conversations: messages, calls, approvals, requests, forks, compaction, search.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { all, next, only, shared, temporary, texts } from "./support.js";

const open = shared();

// A whole step of an agent: events must be stored in order, and the request for each provider must
// have its format.
test("a step of an agent", async () => {
  const db = open();
  const conv = await db.create("Ports", { system: "Be brief.", model: "claude-sonnet-4-5" });
  await conv.user("Where is the port set?", { author: "ada" });
  const answer = await conv.assistant("I look.", {
    toolCalls: [{ id: "c1", tool: "grep", arguments: { pattern: "port" } }],
  });
  const call = only(answer.calls);
  assert.deepEqual(call.arguments, { pattern: "port" });
  await call.start();
  await call.result("config.py:12: PORT = 7171");
  await conv.assistant("In config.py.");
  const kinds = (await all(conv.events())).map((event) => event.kind);
  assert.deepEqual(kinds, [
    "conversation_created",
    "system_prompt_set",
    "message_appended",
    "message_appended",
    "tool_call_requested",
    "tool_call_started",
    "tool_result_recorded",
    "message_appended",
  ]);
  const anthropic = await conv.request("anthropic");
  assert.equal(anthropic.body.model, "claude-sonnet-4-5");
  assert.equal(anthropic.body.messages[1].content[1].type, "tool_use");
  const chat = await conv.request("openai-chat", { model: "gpt-4o" });
  assert.deepEqual(chat.body.messages[0], { role: "system", content: "Be brief." });
  assert.equal(chat.body.messages[2].tool_calls[0].id, "c1");
  assert.ok((await conv.request("gemini", { model: "gemini-2.5-pro" })).body.contents);
  assert.ok((await conv.request("openai-responses", { model: "gpt-5" })).body.input);
  assert.ok(chat.tokens > 0);
  assert.equal(chat.revision, 8);
  assert.equal((await conv.explain("openai-chat", { model: "gpt-4o" })).tokens, chat.tokens);
});

// A model may write arguments that are not JSON. They are stored as its text, and marked for
// readers and for the model.
test("arguments that are not JSON", async () => {
  const conv = await open().create("Odd");
  await conv.user("Go.");
  for (const [number, given] of ['{"a": 1', "", "rm -rf build"].entries()) {
    const toolCalls = [{ id: `c${number}`, tool: "shell", arguments: given }];
    const call = only((await conv.assistant([], { toolCalls })).calls);
    assert.equal(call.arguments, given);
    assert.equal(only(await conv.openCalls()).arguments, given);
    await call.fail("those are no arguments");
    const event = (await all(conv.events())).find(({ callId }) => callId === `c${number}`);
    assert.equal(event?.arguments, given);
    assert.equal(event?.argumentsNotJson, true);
  }
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  const asked: { content: { input: unknown }[] }[] = body.messages;
  assert.deepEqual(
    asked.filter((_, index) => index % 2 === 1).map(({ content }) => content[0]?.input),
    [{ invalid_arguments: '{"a": 1' }, {}, { invalid_arguments: "rm -rf build" }],
  );
});

// `make.rest` keeps the other fields of a provider's message; an object is enough.
test("the other fields of a message", async () => {
  const conv = await open().create("Rest");
  const raw = make.rest({ annotations: [], phase: null }, { origin: "openai-chat" });
  const { revision } = await conv.append([make.assistant("Found it.", { raw })]);
  const event = (await all(conv.events())).find((one) => one.revision === revision);
  const kept = event?.body?.$case === "messageAppended" ? event.body.value.raw : undefined;
  assert.equal(kept?.origin, "openai-chat");
  assert.deepEqual(JSON.parse(Buffer.from(kept?.data ?? []).toString()), {
    annotations: [],
    phase: null,
  });
});

// `withValues` returns prompts, tools and values with the state, in one call.
test("a state with its values", async () => {
  const conv = await open().create("Values");
  await conv.append([make.system("Be kind."), make.tools([make.tool("ls")])]);
  await conv.append([make.system("Be brief.")]);
  await conv.setContext({ cwd: "/" });
  assert.equal((await conv.state()).values, undefined);
  const { values } = await conv.state({ withValues: true });
  assert.equal(values?.systemPrompt, "Be brief.");
  assert.equal(values?.summary, undefined);
  assert.deepEqual(
    values?.toolsDefined.map(({ name }) => name),
    ["ls"],
  );
  assert.deepEqual(values?.activeContext, { cwd: '"/"' });
  const then = await conv.state({ asOf: 2, withValues: true });
  assert.equal(then.values?.systemPrompt, "Be kind.");
});

// A person can deny a call; its tool must then not run.
test("approvals", async () => {
  const db = open();
  const conv = await db.create("Example");
  await conv.user("Clean up.");
  const call = await conv.toolCall("rm", { path: "a" }, { needsApproval: true });
  await assert.rejects(call.waitForApproval({ timeoutMs: 100 }), treering.NotDecided);
  await assert.rejects(call.start(), treering.CallNotApproved);
  const waiting = only(await db.pending());
  assert.deepEqual(waiting.arguments, { path: "a" });
  assert.equal(waiting.status, "pending_approval");
  await db.approve(waiting, { by: "ada" });
  assert.equal(await call.run(({ path }) => `${path} is gone`), "a is gone");

  const second = await conv.toolCall("rm", { path: "/" }, { needsApproval: true });
  await db.deny(only(await conv.pending()), { by: "ada", reason: "not the root" });
  const never = () => assert.fail("it must not run");
  await assert.rejects(second.run(never, { throws: true }), (error) => {
    assert.ok(error instanceof treering.CallDenied);
    assert.deepEqual([error.decidedBy, error.reasonGiven], ["ada", "not the root"]);
    return true;
  });
  const statuses = (await conv.toolCalls()).map((each) => each.status);
  assert.deepEqual(statuses, ["cancelled", "succeeded"]);
  assert.deepEqual(await conv.openCalls(), []);

  // A call that was denied while the agent was away is cancelled when the agent returns.
  await conv.toolCall("rm", { path: "c" }, { needsApproval: true, callId: "away" });
  await db.deny(only(await conv.pending()), { by: "ada" });
  assert.equal(await only(await conv.openCalls()).run(never), undefined);
  assert.deepEqual(await conv.openCalls(), []);

  // An id is enough if one waiting call has it.
  const ask = (on: treering.Conversation, callId: string) =>
    on.toolCall("rm", { path: "d" }, { callId, needsApproval: true });
  await ask(conv, "named");
  await db.approve("named", { by: "ada" });
  await assert.rejects(db.deny("named"), /no call named waits for a decision/);
  const another = await db.create("Another");
  await ask(conv, "twice");
  await ask(another, "twice");
  await assert.rejects(db.approve("twice"), (error: Error) => {
    assert.ok(error instanceof treering.Refused);
    assert.match(error.message, /2 calls twice wait .*pass one/);
    return [conv.id, another.id].every((id) => error.message.includes(id));
  });
  await db.deny(only(await another.pending()));
  await db.deny("twice");
  // An approval is valid only for the arguments that were shown: another hash is refused.
  const third = await conv.toolCall("rm", { path: "b" }, { needsApproval: true });
  const forged = make.decision(third.callId, "approved", new Uint8Array(32), { by: "eve" });
  await assert.rejects(conv.append([forged]), treering.ArgumentsChanged);
});

// A tool that throws must not leave an open call; the model reads the error.
test("calls that run a function", async () => {
  const db = open();
  const conv = await db.create("Example");
  const fails = () => {
    throw new RangeError("no such line");
  };
  const first = await conv.toolCall("read");
  assert.equal(await first.run(fails), undefined);
  const second = await conv.toolCall("read");
  await assert.rejects(second.run(fails, { throws: true }), /no such line/);
  const errors = (await conv.toolCalls()).map((call) => call.error);
  assert.deepEqual(errors, Array(2).fill("RangeError: no such line"));

  const third = await conv.toolCall("sum", { of: [1, 2] });
  assert.deepEqual(await third.run(async ({ of }) => ({ sum: of[0] + of[1] })), { sum: 3 });
  assert.equal((await conv.result(third.callId)).text, '{"sum":3}');
  {
    await using left = await conv.toolCall("left");
    assert.equal(left.hasEnded, false);
  }
  assert.equal((await conv.toolCalls())[0]?.status, "cancelled");
  const failed = await conv.toolCall("once");
  await failed.fail("exit code 1", "the output");
  assert.equal((await conv.result(failed.callId)).error, "exit code 1");
  const call = await conv.assistant([], { toolCalls: [{ tool: "twice" }] });
  await conv.append([make.toolStarted(only(call.calls).callId)]);
  await assert.rejects(only(call.calls).run(fails), treering.CallAlreadyStarted);
});

// An agent that crashed continues with the calls that it left open.
test("open calls are found again", async () => {
  const db = open();
  const conv = await db.create("Example");
  await conv.assistant([], {
    toolCalls: [
      { id: "c1", tool: "ls", arguments: { path: "." } },
      { id: "c2", tool: "cat", arguments: '{"path":  "x"}' },
    ],
  });
  await conv.toolCall("later", {}, { callId: "c3", needsApproval: true });
  const again = db.conversation(conv.id);
  const calls = await again.openCalls();
  assert.deepEqual(
    calls.map((call) => [call.tool, call.needsApproval]),
    [
      ["ls", false],
      ["cat", false],
      ["later", true],
    ],
  );
  for (const call of calls.slice(0, 2)) await call.run(({ path }) => path);
  assert.deepEqual(
    (await again.openCalls()).map((call) => call.callId),
    ["c3"],
  );
  // A fork inherits open calls, also a fork into a new conversation.
  for (const fork of [await conv.fork(), await conv.fork({ into: "new", name: "elsewhere" })]) {
    const inherited = only(await fork.openCalls());
    assert.deepEqual([inherited.callId, inherited.arguments], ["c3", {}]);
  }
});

test("forks", async () => {
  const db = open();
  const conv = await db.create("Example");
  const said = await conv.user("Left or right?");
  await conv.assistant("Left.");
  const right = await conv.fork({ at: said.revision, name: "right" });
  await right.assistant("Right.");
  assert.deepEqual(await texts(conv), ["Left or right?", "Left."]);
  assert.deepEqual(await texts(right), ["Left or right?", "Right."]);
  const unnamed = await conv.fork({ at: said.revision });
  assert.match(unnamed.branch, /^fork-/);
  const difference = await conv.on("main").diff(right);
  assert.equal(difference.ancestorRevision, said.revision);
  assert.ok(difference.right.some((event) => event.text === "Right."));
  assert.deepEqual(
    (await right.lineage()).steps.map((step) => step.name),
    ["right", "main"],
  );
  const other = await conv.fork({ at: said.revision, into: "new", name: "Another" });
  await other.assistant("Straight on.");
  assert.notEqual(other.id, conv.id);
  assert.deepEqual(await texts(other), ["Left or right?", "Straight on."]);
  await right.activate();
  assert.equal((await texts(conv)).at(-1), "Right.");
  const renamed = await unnamed.rename("third");
  await renamed.archive("enough");
  await assert.rejects(renamed.user("one more"), treering.BranchArchived);
  const branches = (await conv.branches()).map((branch) => [branch.name, branch.archived]);
  assert.deepEqual(Object.fromEntries(branches), { main: false, right: false, third: true });
  await conv.on("main").annotate(said.revision, { score: 0.5, label: "good" });
});

// A request must fit its budget, and contain the whole last message of the user.
test("budgets", async () => {
  const conv = await open().create("Example");
  for (let n = 0; n < 20; n += 1) {
    await conv.user(`Question ${n}`);
    const call = await conv.toolCall("read", { n });
    await call.result(Array.from({ length: 400 }, (_, m) => `line ${m} of file ${n}`).join("\n"));
    await conv.assistant(`Answer ${n}`);
  }
  await conv.user("And now?");
  const model = "gpt-4o";
  const whole = await conv.request("openai-chat", { model });
  const small = await conv.request("openai-chat", { model, budget: 3_000 });
  assert.ok(small.tokens <= 3_000 && whole.tokens > 3_000 && !small.overBudget);
  assert.equal(small.body.messages.at(-1).content, "And now?");
  const policy = { tool_results: "turn_end" };
  assert.ok((await conv.request("openai-chat", { model, policy })).tokens < whole.tokens);
  assert.ok((await conv.request("openai-chat", { model, budget: 5 })).overBudget);
  await assert.rejects(
    conv.request("neutral", { policy: { tool_result: "keep" } }),
    treering.BadPolicy,
  );
  const past = await conv.request("openai-chat", { model, asOf: 2 });
  assert.deepEqual(past.body.messages, [{ role: "user", content: "Question 0" }]);
});

test("compaction", async () => {
  const conv = await open().create("Example");
  assert.equal((await conv.compact()).done, false);
  for (let n = 0; n < 6; n += 1) {
    await conv.user(`Question ${n}`);
    await conv.assistant(`Answer ${n}`);
  }
  const plan = await conv.planCompaction({ keepTurns: 2 });
  assert.equal(plan.summarisedTurns, 4);
  const summarise = async (made: treering.CompactionPlan) => `They asked ${made.summarisedTurns}.`;
  const done = await conv.compact(summarise, { keepTurns: 2 });
  assert.equal(done.cutRevision, plan.cutRevision);
  const said = JSON.stringify((await conv.request("openai-chat", { model: "gpt-4o" })).body);
  assert.ok(said.includes("They asked 4.") && !said.includes("Question 0"));
  const expanded = (await all(conv.expand())).filter((event) => event.role === "user");
  assert.deepEqual(
    expanded.map((event) => event.text),
    [0, 1, 2, 3].map((n) => `Question ${n}`),
  );
  const middle = (await conv.head()) - 2;
  await assert.rejects(conv.compact("Here?", { cutRevision: middle }), treering.NotATurnBoundary);
});

test("contexts", async () => {
  const db = open();
  const conv = await db.create("Example");
  await conv.setContext({ file: "a.py", count: 3 }, { provider: "editor" });
  await conv.setContext({ file: "b.py" }, { remove: ["count"] });
  assert.deepEqual(await conv.context(), { file: "b.py" });
  assert.deepEqual(await conv.context("nothing"), {});
  await db.setContext({ user: { name: "Ada" } });
  assert.deepEqual(await db.context(), { user: { name: "Ada" } });
  await conv.user("Who am I?");
  const body = JSON.stringify(
    (await conv.request("anthropic", { model: "claude-sonnet-4-5" })).body,
  );
  assert.ok(body.includes("b.py") && body.includes("Ada"));
  await using changes = conv.watchContext();
  const first = await next(changes);
  assert.deepEqual([first.key, first.value], ["file", "b.py"]);
  await conv.setContext({ line: 7 }, { remove: ["file"] });
  const later = [await next(changes), await next(changes)];
  const seen = later.map((change) => `${change.key} ${change.removed}`).sort();
  assert.deepEqual(seen, ["file true", "line false"]);
});

test("sub-contexts", async () => {
  const conv = await open().create("Example");
  await conv.user("Count the files.");
  const call = await conv.toolCall("delegate", { task: "count" });
  const child = await conv.spawn("count", { call, system: "You count." });
  await child.run(async () => {
    await child.user("How many?");
    await child.assistant("Twelve.");
  });
  assert.equal((await conv.result(call.callId)).text, "Twelve.");
  const failing = await conv.spawn("divide");
  const work = failing.run(async () => {
    throw new RangeError("division by zero");
  });
  await assert.rejects(work, RangeError);
  await assert.rejects(failing.user("still there?"), treering.Sealed);
  const third = await conv.spawn("third");
  await third.return("by hand");
  assert.equal((await conv.lineage()).children.length, 3);
});

test("replay", async () => {
  const conv = await open().create("Example");
  for (const answer of ["first", "second"]) {
    const call = await conv.toolCall("date", { zone: "utc", at: 1 });
    await call.result(answer);
  }
  const replay = conv.replay();
  const asked = { at: 1, zone: "utc" };
  assert.equal(await replay.call("date", asked), "first");
  assert.equal(await replay.call("date", asked), "second");
  await assert.rejects(replay.call("date", { zone: "cet" }), treering.NotRecorded);
  assert.deepEqual(replay.missed, [{ tool: "date", arguments: { zone: "cet" } }]);
});

test("knowledge from results", async () => {
  const conv = await open().create("Example");
  const call = await conv.toolCall("Read", { file_path: "src/main.py" });
  await call.result("import os\n");
  assert.equal(only((await conv.knowledge()).files).path, "src/main.py");
  const filled = await conv.suggestArguments("Read", { file_path: null });
  assert.match(Buffer.from(filled.arguments).toString(), /src\/main\.py/);
  assert.deepEqual(await conv.missingPrerequisites("Read"), []);
  assert.equal(typeof (await conv.guidance()), "string");
  assert.equal(only(await conv.snapshots()).toolName, "Read");
});

// OpenAI and Gemini report cached tokens as part of the input, Anthropic beside it. A sum over the
// conversations of several providers counted some of them twice.
test("usage has cached tokens beside the input", async () => {
  const db = open();
  const answers = {
    anthropic: {
      content: [{ type: "text", text: "So" }],
      usage: { input_tokens: 60, output_tokens: 20, cache_read_input_tokens: 40 },
    },
    "openai-chat": {
      choices: [{ message: { content: "So" } }],
      usage: {
        prompt_tokens: 100,
        completion_tokens: 20,
        prompt_tokens_details: { cached_tokens: 40 },
      },
    },
    gemini: {
      candidates: [{ content: { role: "model", parts: [{ text: "So" }] } }],
      usageMetadata: {
        promptTokenCount: 100,
        candidatesTokenCount: 15,
        thoughtsTokenCount: 5,
        cachedContentTokenCount: 40,
      },
    },
  };
  for (const [provider, body] of Object.entries(answers)) {
    const conv = await db.create("");
    await conv.user("So?");
    await conv.record(provider as keyof typeof answers, body);
    const said = (await all(conv.events())).at(-1)?.proto.body;
    const usage = said?.$case === "messageAppended" ? said.value.usage : undefined;
    const counts = [usage?.inputTokens, usage?.cacheReadInputTokens, usage?.outputTokens];
    assert.deepEqual(counts.map(Number), [60, 40, 20], provider);
  }
});

// An answer must be sent back to its provider unchanged: reasoning with its signature, calls with
// their ids and arguments.
test("answers are sent back unchanged", async () => {
  const db = open();
  const claude = await db.create("", { model: "claude-sonnet-4-5" });
  await claude.user("Where?");
  const content = [
    { type: "thinking", thinking: "They want the port.", signature: "c2lnbmVk" },
    { type: "text", text: "I look." },
    { type: "tool_use", id: "toolu_1", name: "grep", input: { pattern: "port" } },
  ];
  const answered = await claude.record("anthropic", {
    id: "msg_1",
    model: "claude-sonnet-4-5",
    stop_reason: "tool_use",
    content,
    usage: { input_tokens: 100, output_tokens: 20, cache_read_input_tokens: 50 },
  });
  await only(answered.calls).run(() => "there");
  const { messages } = (await claude.request("anthropic")).body;
  assert.equal(messages[1].content[0].signature, "c2lnbmVk");
  assert.deepEqual(messages[1].content[2].input, { pattern: "port" });
  assert.equal(messages[2].content[0].tool_use_id, "toolu_1");

  const chat = await db.create("", { model: "gpt-4o" });
  await chat.user("Where?");
  const call = {
    id: "call_1",
    type: "function",
    function: { name: "grep", arguments: '{"a":  1}' },
  };
  const message = { role: "assistant", content: null, tool_calls: [call] };
  const asked = await chat.record("openai-chat", { choices: [{ message }] });
  await only(asked.calls).result("there");
  const said = (await chat.request("openai-chat")).body.messages[1];
  assert.equal(said.tool_calls[0].function.arguments, '{"a":  1}');

  const responses = await db.create("", { model: "gpt-5" });
  await responses.user("Where?");
  const output = [
    {
      type: "reasoning",
      id: "rs_1",
      summary: [{ text: "A port." }],
      encrypted_content: "Z2VoZWlt",
    },
    { type: "function_call", id: "fc_1", call_id: "call_1", name: "grep", arguments: "{}" },
  ];
  const made = await responses.record("openai-responses", { model: "gpt-5", output });
  await only(made.calls).result("there");
  const { body } = await responses.request("openai-responses");
  const input: { type: string; id?: string }[] = body.input;
  // The items keep the ids that OpenAI gave them.
  assert.deepEqual(
    input.slice(1).map((item) => item.id),
    ["rs_1", "fc_1", undefined],
  );
  assert.deepEqual(
    input.map((item) => item.type),
    ["message", "reasoning", "function_call", "function_call_output"],
  );

  const gemini = await db.create("", { model: "gemini-2.5-pro" });
  await gemini.user("Where?");
  const parts = [
    { text: "I look." },
    { functionCall: { name: "grep", args: { pattern: "port" } } },
    { functionCall: { name: "ls", args: {} } },
  ];
  const candidates = [{ finishReason: "STOP", content: { role: "model", parts } }];
  const answer = await gemini.record("gemini", { responseId: "r1", candidates });
  for (const each of answer.calls) await each.result("there");
  assert.equal((await gemini.request("gemini")).body.contents[2].parts.length, 2);
});

// Servers with Gemini's API may repeat a response id, or give none. The ids of calls must still
// differ: an answer with the id of an open call is refused.
test("calls of Gemini have unique ids", async () => {
  const conv = await open().create("", { model: "gemini-2.5-pro" });
  const parts = ["grep", "ls"].map((name) => ({ functionCall: { name, args: {} } }));
  const candidates = [{ finishReason: "STOP", content: { role: "model", parts } }];
  await conv.user("Where?");
  const ids: string[] = [];
  for (const responseId of ["r1", "r1", undefined, undefined]) {
    const { calls } = await conv.record("gemini", { responseId, candidates });
    ids.push(...calls.map(({ callId }) => callId));
  }
  assert.equal(new Set(ids).size, 8);
  // A repeated write returns the same calls.
  const again = { idempotencyKey: "answer-5" };
  const [first, second] = [
    await conv.record("gemini", { responseId: "r1", candidates }, again),
    await conv.record("gemini", { responseId: "r1", candidates }, again),
  ];
  assert.equal(first.revision, second.revision);
  assert.deepEqual(
    first.calls.map(({ callId }) => callId),
    second.calls.map(({ callId }) => callId),
  );
});

// A request for the provider of a list of messages must contain the same messages.
test("lists of messages", async () => {
  const db = open();
  const call = { id: "c1", type: "function", function: { name: "grep", arguments: '{"p": 1}' } };
  const chat = [
    { role: "user", content: "Where?" },
    { role: "assistant", content: "I look.", tool_calls: [call] },
    { role: "tool", tool_call_id: "c1", content: "there" },
    { role: "assistant", content: "There." },
  ];
  const conv = await db.create("", { model: "gpt-4o" });
  await conv.extend("openai-chat", chat);
  assert.deepEqual((await conv.request("openai-chat")).body.messages, chat);
  const png = { type: "base64", media_type: "image/png", data: "iVBORw==" };
  const blocks = [
    { role: "user", content: "Where?" },
    {
      role: "assistant",
      content: [{ type: "tool_use", id: "t1", name: "grep", input: { pattern: "port" } }],
    },
    {
      role: "user",
      content: [
        { type: "tool_result", tool_use_id: "t1", content: "no", is_error: true },
        { type: "text", text: "Look elsewhere." },
        { type: "image", source: png },
      ],
    },
  ];
  const claude = await db.create("", { model: "claude-sonnet-4-5" });
  await claude.extend("anthropic", blocks);
  const then = (await claude.request("anthropic")).body.messages[2].content;
  assert.ok(then[0].is_error);
  assert.equal(then[2].source.data, "iVBORw==");
  await assert.rejects(claude.extend("gemini", []), /openai-chat/);
});

test("media and custom events", async () => {
  const conv = await open().create("Example");
  const picture = make.image(new Uint8Array([0x89, 0x50]), { mediaType: "image/png" });
  await conv.user(["What is this?", picture, make.json({ a: 1 })]);
  const { messages } = (await conv.request("anthropic", { model: "claude-sonnet-4-5" })).body;
  assert.equal(messages[0].content[1].type, "image");
  await conv.custom("trace", { ms: 12 });
  await conv.custom("blob", new Uint8Array([0, 1]));
  const [trace, blob] = await all(conv.events({ kinds: ["custom"] }));
  assert.deepEqual(trace?.data, { ms: 12 });
  assert.deepEqual([...(blob?.data ?? [])], [0, 1]);
  const sealed = await conv.seal("done", { summary: "It was a picture." });
  assert.equal(sealed.revision, await conv.head());
});

test("search", async () => {
  const db = open();
  const about = { labels: { team: "ops" }, source: "tests", sourceId: "disks-1" };
  const conv = await db.create("Disks", about);
  const bash = await conv.toolCall("bash", { command: "df /var" });
  await bash.result("one\ntwo\nNo spáce left on device\nfour\nfive");
  const python = await conv.toolCall("python", { code: "1/0" });
  await python.fail("ZeroDivisionError", "no spáce in the code");
  const hits = await db.search("spáce left", { contextLines: 1 });
  assert.deepEqual([hits[0]?.tool, hits[0]?.line, hits.complete], ["bash", 3, true]);
  assert.deepEqual(hits[0]?.highlights, ["spáce", "left"]);
  assert.equal(hits[0]?.proto.context, "two\nNo spáce left on device\nfour");
  const failed = await db.search("spáce", { success: false });
  assert.deepEqual(
    failed.map((hit) => hit.tool),
    ["python"],
  );
  const narrowed = { tools: ["bash"], labels: "team=ops", sources: "tests" };
  assert.equal((await db.search("spáce", narrowed)).total, 1);
  assert.equal((await db.search("spáce", { labels: "team=dev" })).length, 0);
  assert.equal((await db.search("spáce", { since: new Date(Date.now() + 60_000) })).length, 0);
  assert.equal((await db.search("No \\S+ left", { regex: true }))[0]?.line, 3);
  assert.ok((await conv.search("device", { kinds: "tool_result_recorded" })).length > 0);
  await assert.rejects(db.search("(", { regex: true }), treering.BadQuery);
  // This server has no embedder.
  await assert.rejects(db.search("car", { by: "meaning" }), treering.NoEmbedder);
  const [hit] = await db.search("spáce");
  await assert.rejects(db.search("", { similarTo: hit }), treering.NoEmbedder);
});

test("conversations are found again", async () => {
  const db = open();
  const made: string[] = [];
  for (let n = 0; n < 7; n += 1)
    made.push((await db.create(`Number ${n}`, { source: "tests" })).id);
  const listed = (await all(db.conversations({ pageSize: 3 }))).map((each) => each.conversationId);
  assert.deepEqual(listed, made.reverse());
  const first = await db.open("my-session", { title: "One" });
  assert.equal((await db.open("my-session", { title: "Two" })).id, first.id);
  await first.user("Hello");
  assert.deepEqual(await texts(db.conversation("my-session")), ["Hello"]);
  assert.equal(only(await db.find("my-sess")).title, "One");
});

test("the store", async () => {
  const db = open();
  const conv = await db.create("Example");
  await conv.user("Hello");
  assert.equal((await db.stats()).events, 2);
  assert.ok((await db.verify({ deep: true })).sound);
  assert.deepEqual(await all(db.faults()), []);
  assert.ok(await db.isReady());
  assert.equal(await db.isReady({ service: "nonsense" }), false);
  const kinds = (await all(db.events({ limit: 2 }))).map((event) => event.kind);
  assert.deepEqual(kinds, ["conversation_created", "message_appended"]);
  assert.equal((await next(db.events({ backward: true }))).text, "Hello");
  const log = await db.command("log", conv.id);
  assert.deepEqual(
    log.map((line) => line.revision),
    [1, 2],
  );
  await assert.rejects(db.command("log", "nowhere"), (error) => {
    assert.ok(error instanceof treering.CommandFailed);
    assert.equal(error.exitCode, 3);
    return true;
  });
  const lines = join(temporary(), "old.jsonl");
  writeFileSync(lines, '{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}');
  assert.equal(only(await db.command("import", lines)).new, 1);
});

test("projections and index are rebuilt", async () => {
  await using db = treering.local(temporary());
  const conv = await db.create("Rebuilt");
  await conv.user("A lighthouse at the quay");
  assert.equal((await db.rebuild()).events, 2);
  assert.equal((await db.search("lighthouse"))[0]?.conversationId, conv.id);
});

// A model reads a shortened result again with the tool that the request offers.
test("results that were shortened are read again", async () => {
  const policies = { context: { tool_results: "turn_end", read_tool: true } };
  const conv = await open().create("", { policies });
  await conv.user("Test it.");
  const call = await conv.toolCall("bash", { command: "cargo test" });
  await call.result(Array.from({ length: 500 }, (_, n) => `test number_${n} ... ok`).join("\n"));
  await conv.assistant("It works.");
  await conv.user("Which was the last?");
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  const tools: { name: string; input_schema: { properties: object } }[] = body.tools;
  const tool = tools.find(({ name }) => name === "treering_read_result");
  const [key = ""] = Object.keys(tool?.input_schema.properties ?? {});
  const { revision } = only(await all(conv.events({ kinds: ["tool_result_recorded"] })));
  const read = await conv.readResult({ [key]: `#${revision}` });
  assert.ok(read.text.endsWith("test number_499 ... ok"));
  const line = await conv.result(call.callId, { lines: [2, 2] });
  assert.equal(line.text, "test number_1 ... ok\n");
});

test("settings change in a conversation", async () => {
  const settings = { model: "gpt-4o", mode: "planning", parameters: { temperature: 0.2 } };
  const conv = await open().create("Settings", settings);
  await conv.user("Hello");
  await conv.system("Be brief.");
  await conv.defineTools([make.tool("ls", "Lists", { type: "object" }, { guidance: "First." })]);
  const { body } = await conv.request("openai-chat");
  assert.deepEqual([body.model, body.temperature], ["gpt-4o", 0.2]);
  assert.equal(body.tools[0].function.name, "ls");
  await conv.configure("gpt-4.1", { mode: "coding" });
  assert.equal((await conv.state()).branch?.config?.mode, "coding");
  assert.equal((await conv.state({ asOf: 2 })).branch?.config?.mode, "planning");
});

test("batches over branches", async () => {
  const db = open();
  const conv = await db.create("Batches");
  const other = await conv.fork({ name: "other" });
  const batch = [make.user("here"), { ...make.user("there"), branch: "other" }];
  const to = { conversation: conv.id, branch: "main" };
  const head = await conv.on("main").head();
  await assert.rejects(db.append(batch, { ...to, expected: 99 }), treering.RevisionMismatch);
  await db.append(batch, { ...to, expected: head });
  assert.deepEqual(await texts(conv.on("main")), ["here"]);
  assert.deepEqual(await texts(other), ["there"]);
});

// Returned objects are used like other values: printed, compared, sent as JSON.
test("returned objects are values", async () => {
  const conv = await open().create("Example");
  await conv.user("Hello");
  const [once, again] = [await all(conv.events()), await all(conv.events())];
  assert.deepEqual(once, again);
  assert.ok(JSON.stringify(once).includes("Hello"));
  assert.ok(JSON.stringify(await conv.state()).includes("Example"));
  const request = await conv.request("openai-chat", { model: "gpt-4o" });
  assert.deepEqual(JSON.parse(Buffer.from(request.raw).toString()), request.body);
});

// A generated key is kept long enough for retries, not for ever. A given key is kept for ever,
// unless the program says for how long.
test("idempotency keys expire", async () => {
  const conv = await open().create("Keys");
  const hello = [make.user("Hello")];
  const keyed = { idempotencyKey: "ts-hello", keyLifeSeconds: 3 };
  const first = await conv.append(hello, keyed);
  assert.ok((await conv.append(hello, keyed)).repeated);
  await new Promise((ended) => setTimeout(ended, 3_020));
  const later = await conv.append(hello, keyed);
  assert.ok(!later.repeated);
  assert.equal(later.revision, first.revision + 1);
  await assert.rejects(conv.append(hello, { ...keyed, keyLifeSeconds: 0.5 }), RangeError);
});

// A rewind returns the removed events. The branch continues without them, and nothing is lost.
test("a branch is rewound", async () => {
  const db = open();
  const conv = await db.create("Rewound");
  const asked = await conv.user("Left or right?");
  await conv.assistant("Left.");
  const rewound = await conv.rewind(asked.revision, { idempotencyKey: "ts-pop" });
  assert.deepEqual(
    rewound.events.map((event) => event.text),
    ["Left."],
  );
  await conv.user("Why not right?", { expected: rewound.head });
  const again = await conv.rewind(asked.revision, { idempotencyKey: "ts-pop" });
  assert.ok(again.repeated && again.kept === rewound.kept);
  const names = (await conv.branches()).map((branch) => branch.name);
  assert.ok(names.includes("main") && names.includes(rewound.kept));
});

// A program gives its thread a name. Labels and metadata of the thread can be changed and listed
// by.
test("threads have names, labels and metadata", async () => {
  const db = open();
  const createIfMissing = { title: "Thread", source: "ts-tests" };
  const first = await db.append([make.user("Hello")], {
    conversation: "ts thread α",
    createIfMissing,
  });
  const more = await db.append([make.user("More")], {
    conversation: "ts thread α",
    createIfMissing,
  });
  assert.deepEqual([first.created, more.created], [true, false]);
  const conv = db.conversation(first.conversationId);
  await conv.change({ labels: { team: "ts" }, metadata: { draft: true } });
  const titles: string[] = [];
  for await (const one of db.conversations({ labels: { team: "ts" }, metadata: { draft: true } })) {
    titles.push(one.title);
  }
  assert.deepEqual(titles, ["Thread"]);
});
