// Vercel's `ai`, with a scripted model, over a real server.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { convertToModelMessages, generateText, type UIMessage, validateUIMessages } from "ai";
import { chatStore } from "../src/ai/index.js";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import type { Parsed } from "../src/words.js";
import { asks, done, scripted, tools, turn } from "./ai-model.js";
import { all, only, shared, temporary, texts } from "./support.js";

const open = shared();

const searching = scripted((results) =>
  results === 0
    ? { text: "I look for it.", call: { tool: "grep", input: { pattern: "PORT" } } }
    : { text: "In config.py, line 12." },
);

const kinds = async (conv: treering.Conversation) =>
  (await all(conv.events())).map((event) => event.kind);

// What a chat was must be what it is after it was loaded, and be here what it is for everybody:
// messages, calls and results, in the order of a conversation.
test("a chat with a tool", async () => {
  const db = open();
  const chats = chatStore(db, { about: { title: "Ports", model: "claude-sonnet-4-5" } });
  const chatId = await chats.createChat();
  assert.deepEqual(await chats.loadChat(chatId), []);
  assert.deepEqual(await chats.loadChat("no such chat"), []);
  const messages = await turn(chats, chatId, searching, asks("Where is the port set?", "q1"));
  await validateUIMessages({ messages, tools: tools as never });
  assert.deepEqual(
    messages.map(({ role }) => role),
    ["user", "assistant"],
  );
  const parts = messages[1]?.parts.map((part) => part.type);
  assert.deepEqual(parts, ["step-start", "text", "tool-grep", "step-start", "text"]);
  const conv = await chats.conversation(chatId);
  const said = (await kinds(conv)).filter((kind) => kind !== "custom");
  assert.deepEqual(said, [
    "conversation_created",
    "message_appended",
    "message_appended",
    "tool_call_requested",
    "tool_result_recorded",
    "message_appended",
  ]);
  // Saved again, as a UI does it: nothing is appended.
  const head = await conv.head();
  await chats.saveChat({ chatId, messages });
  assert.equal(await conv.head(), head);
  // It is a conversation like any other.
  assert.equal((await db.search("7171"))[0]?.tool, "grep");
  const { body } = await conv.request("anthropic", { budget: 60_000 });
  const roles = body.messages.map((message: { role: string }) => message.role);
  assert.deepEqual(roles, ["user", "assistant", "user", "assistant"]);
  assert.equal(body.messages[1].content[1].name, "grep");
  // And goes on, with `generateText` too.
  const next = [...messages, asks("Thanks. Again?")];
  const { text } = await generateText({
    model: scripted(() => ({ text: "As I said." })),
    messages: await convertToModelMessages(next, { tools }),
  });
  const answer: UIMessage = { id: "a2", role: "assistant", parts: [{ type: "text", text }] };
  await chats.saveChat({ chatId, messages: [...next, answer] });
  assert.deepEqual(await chats.loadChat(chatId), [...next, answer]);
});

const removing = scripted((results) =>
  results === 0 ? { call: { tool: "rm", input: { path: "old.txt" } } } : { text: "Well." },
);

// A person decides somewhere else, and the tool runs when the chat goes on: not before, and
// not at all after a no.
for (const approved of [true, false]) {
  test(`a person says ${approved ? "yes" : "no"}`, async () => {
    const db = open();
    const chats = chatStore(db);
    const chatId = crypto.randomUUID();
    done.length = 0;
    const waits = await turn(chats, chatId, removing, asks("Clean up."));
    const asked = waits[1]?.parts.at(-1);
    assert.ok(asked?.type === "tool-rm" && asked.state === "approval-requested");
    const waiting = only(await db.pending());
    assert.deepEqual([waiting.tool, waiting.arguments], ["rm", { path: "old.txt" }]);
    const { toolCallId } = asked;
    await chats.decide({ chatId, toolCallId, approved, reason: "I know it", by: "ada" });
    await assert.rejects(chats.decide({ chatId, toolCallId, approved }), treering.NotFound);
    const decided = (await chats.loadChat(chatId))[1]?.parts.at(-1);
    assert.ok(decided?.type === "tool-rm" && decided.state === "approval-responded");
    assert.deepEqual([decided.approval.approved, decided.approval.reason], [approved, "I know it"]);
    // A UI that has not heard of it yet must not take it back.
    await chats.saveChat({ chatId, messages: waits });
    assert.deepEqual((await chats.loadChat(chatId))[1]?.parts.at(-1), decided);
    assert.deepEqual(done, []);
    const messages = await turn(chats, chatId, removing);
    assert.deepEqual(done, approved ? ["rm old.txt"] : []);
    const part = messages[1]?.parts.find((each) => each.type === "tool-rm");
    assert.ok(part?.type === "tool-rm");
    assert.equal(part.state, approved ? "output-available" : "output-denied");
    assert.deepEqual(messages[1]?.parts.at(-1), { type: "text", text: "Well.", state: "done" });
    const call = only(await (await chats.conversation(chatId)).toolCalls());
    assert.equal(call.status, approved ? "succeeded" : "cancelled");
    assert.equal(call.proto.decidedBy, "ada");
    assert.equal((await kinds(await chats.conversation(chatId))).includes("branch_forked"), false);
  });
}

// The UI's own decision (`addToolApprovalResponse`) comes with the messages, also when the
// call and the decision are saved in one.
test("a decision that comes with the messages", async () => {
  const db = open();
  const chats = chatStore(db);
  const approval = { id: "appr_1", approved: true, reason: "fine" } as const;
  const messages: UIMessage[] = [
    asks("Clean up."),
    {
      id: "a1",
      role: "assistant",
      parts: [
        { type: "step-start" },
        {
          type: "tool-rm",
          toolCallId: "c1",
          state: "output-available",
          input: { path: "a" },
          output: "a is gone",
          approval,
        },
        { type: "step-start" },
        { type: "text", text: "Gone.", state: "done" },
      ],
    },
  ];
  await chats.saveChat({ chatId: "chat-1", messages });
  assert.deepEqual(await chats.loadChat("chat-1"), messages);
  const call = only(await db.conversation("chat-1").toolCalls());
  assert.deepEqual([call.status, call.proto.decisionReason], ["succeeded", "fine"]);
});

// What was regenerated or edited must not be lost, and not be sent either.
test("chats go other ways", async () => {
  const db = open();
  const chats = chatStore(db);
  const chatId = "ways";
  const say = (id: string, text: string): UIMessage => ({
    id,
    role: "assistant",
    parts: [{ type: "text", text, state: "done" }],
  });
  const first = [
    asks("Left or right?", "q1"),
    say("a1", "Left."),
    asks("Sure?", "q2"),
    say("a2", "Yes."),
  ];
  await chats.saveChat({ chatId, messages: first });
  // Regenerated: the last answer is another one.
  const second = [...first.slice(0, 3), say("a3", "No.")];
  await chats.saveChat({ chatId, messages: second });
  assert.deepEqual(await chats.loadChat(chatId), second);
  // Edited: the first question is another one.
  const third = [asks("Up or down?", "q1")];
  await chats.saveChat({ chatId, messages: third });
  assert.deepEqual(await chats.loadChat(chatId), third);
  await chats.saveChat({ chatId, messages: [] });
  assert.deepEqual(await chats.loadChat(chatId), []);
  const conv = db.conversation(chatId);
  assert.deepEqual(await texts(conv.on("main")), ["Left or right?", "Left.", "Sure?", "Yes."]);
  assert.equal((await conv.branches()).length, 4);
  assert.ok((await db.search("Yes", { conversation: conv.id })).length > 0);

  // Forked: two chats with one past, each with a future of its own.
  await chats.saveChat({ chatId, messages: first });
  const fork = await chats.forkChat({ chatId, upTo: "a1" });
  assert.deepEqual(await chats.loadChat(fork), first.slice(0, 2));
  const other = [...first.slice(0, 2), asks("And now?", "q3"), say("a4", "Right.")];
  await chats.saveChat({ chatId: fork, messages: other });
  assert.deepEqual(await chats.loadChat(fork), other);
  assert.deepEqual(await chats.loadChat(chatId), first);
  // The fork itself goes another way, and is still the fork.
  const again = [...other.slice(0, 3), say("a5", "Straight on.")];
  await chats.saveChat({ chatId: fork, messages: again });
  await chats.saveChat({ chatId: fork, messages: [...again, asks("Good.", "q4")] });
  assert.deepEqual(await chats.loadChat(fork), [...again, asks("Good.", "q4")]);
  assert.deepEqual(await chats.loadChat(await chats.forkChat({ chatId })), first);
  await assert.rejects(chats.forkChat({ chatId, upTo: "nowhere" }), treering.NotFound);
});

// A conversation that was forked into one of its own, elsewhere, is a chat too. Where its past
// is another's, it must not be cut at a place that only looks the same.
test("a chat in a conversation that was forked", async () => {
  const db = open();
  const chats = chatStore(db);
  const say = (id: string): UIMessage => ({
    id,
    role: "assistant",
    parts: [{ type: "text", text: id, state: "done" }],
  });
  const past = [asks("One", "q1"), say("a1"), asks("Two", "q2"), say("a2")];
  await chats.saveChat({ chatId: "old", messages: past });
  const { id: chatId } = await db.conversation("old").fork({ into: "new" });
  assert.deepEqual(await chats.loadChat(chatId), past);
  const now = [...past, asks("Three", "q3"), say("a3")];
  await chats.saveChat({ chatId, messages: now });
  const again = [...now.slice(0, 5), say("a4")];
  await chats.saveChat({ chatId, messages: again });
  assert.deepEqual(await chats.loadChat(chatId), again);
  const earlier = [...past.slice(0, 1), say("a5")];
  await assert.rejects(chats.saveChat({ chatId, messages: earlier }), treering.Refused);
  assert.deepEqual(await chats.loadChat(chatId), again);
  assert.deepEqual(await chats.loadChat("old"), past);
});

/** Everything that a message can hold. */
const RICH: UIMessage = {
  id: "rich",
  role: "assistant",
  metadata: { tokens: 12, model: "m", nested: { a: [1, null] } },
  parts: [
    { type: "step-start" },
    {
      type: "reasoning",
      text: "They want the port.",
      state: "done",
      providerMetadata: { anthropic: { signature: "c2lnbmVk" } },
    },
    { type: "text", text: "Ich schaue: ä\n\u{1f600}", state: "done" },
    { type: "text", text: "" },
    {
      type: "tool-grep",
      toolCallId: "t1",
      state: "output-available",
      input: { pattern: "a", b: [1, { c: null }] },
      output: { lines: ["x", "y"], n: 1.5 },
      callProviderMetadata: { google: { thoughtSignature: "x" } },
    },
    { type: "tool-grep", toolCallId: "t2", state: "output-available", input: {}, output: "text" },
    {
      type: "tool-grep",
      toolCallId: "t3",
      state: "output-available",
      input: { a: 1 },
      output: null,
    },
    { type: "tool-grep", toolCallId: "t4", state: "output-available", input: { a: 1 }, output: "" },
    {
      type: "tool-grep",
      toolCallId: "t5",
      state: "output-error",
      input: { a: 1 },
      errorText: "no",
    },
    {
      type: "tool-grep",
      toolCallId: "t6",
      state: "output-error",
      rawInput: '{"a": ',
      errorText: "no JSON",
    } as never,
    {
      type: "dynamic-tool",
      toolName: "mcp",
      toolCallId: "t7",
      state: "output-available",
      input: "just text",
      output: [1, 2],
      providerExecuted: true,
    } as never,
    { type: "step-start" },
    { type: "source-url", sourceId: "s1", url: "https://example.com", title: "A page" },
    { type: "source-document", sourceId: "s2", mediaType: "text/plain", title: "A file" },
    { type: "file", mediaType: "image/png", url: "data:image/png;base64,iVBORw==" },
    {
      type: "file",
      mediaType: "text/plain",
      filename: "a.txt",
      url: "data:text/plain,not%20base64",
    },
    {
      type: "file",
      mediaType: "application/pdf",
      filename: "b.pdf",
      url: "https://example.com/b.pdf",
    },
    { type: "data-weather", id: "d1", data: { city: "Jena" } },
    {
      type: "text",
      text: "Done.",
      state: "done",
      providerMetadata: { openai: { itemId: "msg_1" } },
    },
    { type: "tool-rm", toolCallId: "t8", state: "input-available", input: { path: "a" } },
  ],
};

// A chat must come back as it was, with whatever stands in it, also when it was saved again
// and again while it grew.
test("everything that a message can hold", async () => {
  const db = open();
  const chats = chatStore(db, { about: { model: "claude-sonnet-4-5" } });
  const picture = {
    type: "file",
    mediaType: "image/png",
    url: "data:image/png;base64,AAAA",
  } as const;
  const user: UIMessage = {
    id: "q",
    role: "user",
    parts: [picture, { type: "text", text: "What is this?" }, { type: "data-note", data: 1 }],
  };
  const system: UIMessage = {
    id: "s",
    role: "system",
    parts: [{ type: "text", text: "Be brief." }],
  };
  const whole = [system, user, RICH];
  await chats.saveChat({ chatId: "at once", messages: whole });
  assert.deepEqual(await chats.loadChat("at once"), whole);
  for (let size = 0; size <= RICH.parts.length; size += 1) {
    const messages = [system, user, { ...RICH, parts: RICH.parts.slice(0, size) }];
    await chats.saveChat({ chatId: "bit by bit", messages });
    assert.deepEqual(await chats.loadChat("bit by bit"), messages);
  }
  const conv = db.conversation("bit by bit");
  assert.equal((await conv.branches()).length, 1);
  assert.deepEqual(
    (await conv.openCalls()).map((call) => call.callId),
    ["t8"],
  );
  // Each of them is a request that a provider takes.
  const { body } = await conv.request("anthropic");
  assert.ok(JSON.stringify(body).includes("c2lnbmVk"));
});

// While it streams, a text is not yet what was said; and a call goes from state to state.
test("a message that is saved while it comes", async () => {
  const db = open();
  const chats = chatStore(db);
  const chatId = "streaming";
  const rest = { type: "tool-grep", toolCallId: "c1" };
  const states: object[][] = [
    [{ type: "text", text: "I lo", state: "streaming" }],
    [{ type: "text", text: "I look.", state: "streaming" }],
    [{ type: "text", text: "I look.", state: "done" }],
    [
      { type: "text", text: "I look.", state: "done" },
      { ...rest, state: "input-streaming", input: { pat: "" } },
    ],
    [
      { type: "text", text: "I look.", state: "done" },
      { ...rest, state: "input-available", input: { pattern: "x" } },
    ],
    [
      { type: "text", text: "I look.", state: "done" },
      {
        ...rest,
        state: "output-available",
        input: { pattern: "x" },
        output: "1",
        preliminary: true,
      },
    ],
    [
      { type: "text", text: "I look.", state: "done" },
      { ...rest, state: "output-available", input: { pattern: "x" }, output: "12" },
      { type: "text", text: "There.", state: "done" },
    ],
  ];
  for (const parts of states) {
    const message = { id: "a", role: "assistant", parts } as unknown as UIMessage;
    await chats.saveChat({ chatId, messages: [asks("?", "q"), message] });
    assert.deepEqual(await chats.loadChat(chatId), [asks("?", "q"), message]);
  }
  const conv = db.conversation(chatId);
  assert.equal((await conv.branches()).length, 1);
  assert.deepEqual(await texts(conv), ["?", "I look.", "There."]);
  assert.equal((await conv.result("c1")).text, "12");
});

// What another program, without `ai`, did in the conversation is in the chat too.
test("a chat that others go on with", async () => {
  const db = open();
  const chats = chatStore(db);
  const conv = await db.open("common");
  await conv.user(["Look at this", make.image(new Uint8Array([0]), { mediaType: "image/png" })]);
  await conv.assistant("I look.", {
    toolCalls: [{ id: "c1", tool: "grep", arguments: { pattern: "x" } }],
  });
  const [before] = await conv.openCalls();
  const half = await chats.loadChat("common");
  assert.deepEqual(
    half.map(({ parts }) => parts.map((part) => part.type)),
    [
      ["text", "file"],
      ["step-start", "text", "tool-grep"],
    ],
  );
  await chats.saveChat({ chatId: "common", messages: half });
  await before?.run(() => ({ found: 1 }));
  await conv.assistant("There.");
  const messages = await chats.loadChat("common");
  await validateUIMessages({ messages, tools: tools as never });
  const part = messages[1]?.parts[2];
  assert.ok(part?.type === "tool-grep" && part.state === "output-available");
  assert.deepEqual(part.output, '{"found":1}');
  const next = [...messages, asks("Thanks.")];
  await chats.saveChat({ chatId: "common", messages: next });
  assert.deepEqual(await chats.loadChat("common"), next);
  assert.equal((await conv.branches()).length, 1);
  await convertToModelMessages(next, { tools });
});

// Two tabs save at once: both are stored, each on its way, and the chat is one of them.
test("two that save at once", async () => {
  const db = open();
  const chats = chatStore(db);
  const chatId = "tabs";
  const first = [asks("Hello", "q1")];
  await Promise.all([1, 2, 3].map(() => chats.saveChat({ chatId, messages: first })));
  assert.deepEqual(await chats.loadChat(chatId), first);
  const ways = ["one", "two"].map((text) => [...first, asks(text, text)]);
  await Promise.all(ways.map((messages) => chats.saveChat({ chatId, messages })));
  const now = await chats.loadChat(chatId);
  assert.ok(ways.some((messages) => JSON.stringify(messages) === JSON.stringify(now)));
  const said = (await all(db.conversation(chatId).events({ allBranches: true }))).map(
    ({ text }) => text,
  );
  assert.equal(said.filter((text) => text === "Hello").length, 1);
  assert.ok(said.includes("one") && said.includes("two"));
});

const AGENT = `
const db = treering.local(process.argv[2]);
const chats = chatStore(db);
const model = scripted((results) =>
  results === 5 ? { text: "Counted." } : { call: { tool: "count", input: { n: results } } },
);
const messages = await chats.loadChat("job");
console.log("ready");
// Where the last answer is a text, all is done.
if (messages.at(-1)?.parts.at(-1).type !== "text" || messages.length === 1) {
  const asked = messages.length ? undefined : asks("Count to five.", "q");
  await turn(chats, "job", model, asked);
}
await db.close();
`;

// A program that drives streamText is killed anywhere, again and again. Started anew it goes
// on where the chat was saved: each step that was saved is there once.
test("a chat whose program is killed", async () => {
  const [folder, store] = [temporary(), temporary()];
  const from = (path: string) => pathToFileURL(join(process.cwd(), "build", path));
  const file = join(folder, "program.mjs");
  const imports = [
    `import * as treering from "${from("src/index.js")}";`,
    `import { chatStore } from "${from("src/ai/index.js")}";`,
    `import { asks, scripted, turn } from "${from("tests/ai-model.js")}";`,
  ];
  writeFileSync(file, imports.join("\n") + AGENT);
  let kills = 0;
  for (;;) {
    const child = spawn(process.execPath, [file, store], { stdio: ["ignore", "pipe", "inherit"] });
    const exited = once(child, "exit");
    const lines = createInterface({ input: child.stdout });
    await once(lines, "line");
    const ended = await Promise.race([exited, sleep(60 * 1.5 ** kills, undefined, { ref: false })]);
    if (ended) {
      assert.equal(ended[0], 0);
      break;
    }
    kills += 1;
    child.kill("SIGKILL");
    await exited;
  }
  assert.ok(kills > 1);
  await using db = treering.local(store);
  const conv = db.conversation("job");
  const results = await all(conv.events({ kinds: ["tool_result_recorded"] }));
  assert.deepEqual(
    results.map((event) => event.text),
    [0, 1, 2, 3, 4].map((n) => `counted ${n}`),
  );
  assert.deepEqual(await texts(conv), ["Count to five.", "Counted."]);
  assert.deepEqual(await conv.openCalls(), []);
  // Forked after the second step, it goes on from there in a chat of its own.
  const chats = chatStore(db);
  const messages = await chats.loadChat("job");
  assert.equal(messages.length, 2);
  const fork = await chats.forkChat({ chatId: "job", upTo: "q" });
  const again = await turn(
    chats,
    fork,
    scripted(() => ({ text: "I will not." })),
  );
  assert.deepEqual(again[1]?.parts.at(-1), { type: "text", text: "I will not.", state: "done" });
  assert.deepEqual(await chats.loadChat("job"), messages);
  assert.ok((await db.verify({ deep: true })).sound);
});

// A program was killed while a tool ran, and the chat went on: `streamText` refuses calls without
// results, so that every turn after that failed. It reads what a request of the server says, and
// nothing of it is stored.
test("a chat goes on after a call without a result", async () => {
  const db = open();
  const chats = chatStore(db);
  const chatId = await chats.createChat();
  const conv = await chats.conversation(chatId);
  await conv.user("Go.");
  await conv.assistant("I look.", {
    toolCalls: [
      { id: "a", tool: "grep", arguments: { pattern: "x" } },
      { id: "b", tool: "grep", arguments: { pattern: "y" } },
    ],
  });
  await conv.append([make.toolCancelled("b", "timed_out", "a minute")]);
  const told = async () => {
    const parts = (await chats.loadChat(chatId)).flatMap((message) => message.parts as Parsed[]);
    const calls = parts.filter(({ type }) => type === "tool-grep");
    return calls.map(({ state, errorText }) => [state, errorText]);
  };
  const requested = async () => {
    const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
    const blocks: Parsed[] = body.messages.flatMap(({ content }: Parsed) => content);
    const results = blocks.filter(({ type }) => type === "tool_result");
    return results.map(({ content }) => (typeof content === "string" ? content : content[0].text));
  };
  const [open_, ended] = await requested();
  // It may still end.
  assert.deepEqual(await told(), [
    ["input-available", undefined],
    ["output-error", ended],
  ]);
  await chats.saveChat({ chatId, messages: [...(await chats.loadChat(chatId)), asks("And on?")] });
  assert.deepEqual((await told())[0], ["output-error", open_]);
  for (const number of [1, 2]) {
    const messages = await chats.loadChat(chatId);
    const { text } = await generateText({
      model: scripted(() => ({ text: `On ${number}.` })),
      messages: await convertToModelMessages(messages, { tools }),
    });
    const answer: UIMessage = {
      id: `a${number}`,
      role: "assistant",
      parts: [{ type: "text", text }],
    };
    await chats.saveChat({
      chatId,
      messages: [...messages, answer, asks("And on?", `q${number}`)],
    });
    const [first] = await requested();
    assert.deepEqual((await told())[0], ["output-error", first]);
    assert.match(first, /^no result: /);
  }
  assert.equal((await kinds(conv)).includes("tool_result_recorded"), false);
  assert.equal((await kinds(conv)).includes("branch_forked"), false);
  // It comes after all.
  await conv.toolResult("a", "found");
  assert.deepEqual((await told())[0], ["output-available", undefined]);
});
