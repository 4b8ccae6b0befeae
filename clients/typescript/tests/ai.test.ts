// Tests of the chat store for Vercel's `ai`, with a scripted model and a real server.

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

// A loaded chat must equal the saved chat, and be stored as an ordinary conversation: messages,
// calls and results, in order.
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
  // A UI saves the same chat again: nothing is appended.
  const head = await conv.head();
  await chats.saveChat({ chatId, messages });
  assert.equal(await conv.head(), head);
  // Search and requests work as for any conversation.
  assert.equal((await db.search("7171"))[0]?.tool, "grep");
  const { body } = await conv.request("anthropic", { budget: 60_000 });
  const roles = body.messages.map((message: { role: string }) => message.role);
  assert.deepEqual(roles, ["user", "assistant", "user", "assistant"]);
  assert.equal(body.messages[1].content[1].name, "grep");
  // The chat continues, also with `generateText`.
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

// A person decides outside the UI. The tool runs when the chat continues, not before, and not at
// all after a denial.
for (const approved of [true, false]) {
  test(`a person ${approved ? "approves" : "denies"} a call`, async () => {
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
    // A UI that does not know the decision yet must not undo it.
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

// The UI's own decision (`addToolApprovalResponse`) is part of the messages, also when the call and
// the decision are saved together.
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

// Regenerated or edited messages must stay in the store, but not be part of the chat.
test("chats are regenerated, edited and forked", async () => {
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
  // Regenerated: the last answer differs.
  const second = [...first.slice(0, 3), say("a3", "No.")];
  await chats.saveChat({ chatId, messages: second });
  assert.deepEqual(await chats.loadChat(chatId), second);
  // Edited: the first question differs.
  const third = [asks("Up or down?", "q1")];
  await chats.saveChat({ chatId, messages: third });
  assert.deepEqual(await chats.loadChat(chatId), third);
  await chats.saveChat({ chatId, messages: [] });
  assert.deepEqual(await chats.loadChat(chatId), []);
  const conv = db.conversation(chatId);
  assert.deepEqual(await texts(conv.on("main")), ["Left or right?", "Left.", "Sure?", "Yes."]);
  assert.equal((await conv.branches()).length, 4);
  assert.ok((await db.search("Yes", { conversation: conv.id })).length > 0);

  // Forked: two chats share a past, and continue independently.
  await chats.saveChat({ chatId, messages: first });
  const fork = await chats.forkChat({ chatId, upTo: "a1" });
  assert.deepEqual(await chats.loadChat(fork), first.slice(0, 2));
  const other = [...first.slice(0, 2), asks("And now?", "q3"), say("a4", "Right.")];
  await chats.saveChat({ chatId: fork, messages: other });
  assert.deepEqual(await chats.loadChat(fork), other);
  assert.deepEqual(await chats.loadChat(chatId), first);
  // After a regeneration, the fork is still the same chat.
  const again = [...other.slice(0, 3), say("a5", "Straight on.")];
  await chats.saveChat({ chatId: fork, messages: again });
  await chats.saveChat({ chatId: fork, messages: [...again, asks("Good.", "q4")] });
  assert.deepEqual(await chats.loadChat(fork), [...again, asks("Good.", "q4")]);
  assert.deepEqual(await chats.loadChat(await chats.forkChat({ chatId })), first);
  await assert.rejects(chats.forkChat({ chatId, upTo: "nowhere" }), treering.NotFound);
});

// A conversation that was forked into a new conversation is a chat too. An edit of its inherited
// part is refused: that part belongs to the other conversation.
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

/** A message with every kind of part. */
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

// A loaded chat must equal the saved chat, whatever parts it has, also when it was saved repeatedly
// while it grew.
test("a message with every kind of part", async () => {
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
  // A request can be built from it, and contains the signature of the reasoning.
  const { body } = await conv.request("anthropic");
  assert.ok(JSON.stringify(body).includes("c2lnbmVk"));
});

// A text that still streams is not stored as a message yet; a call goes through several states.
test("a message that is saved while it streams", async () => {
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

// Events that another program appended without `ai` are part of the chat too.
test("a chat with events of another program", async () => {
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

// Two tabs save at once: both chats are stored, each on its branch, and one of them is loaded.
test("two tabs that save at once", async () => {
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

// A program that runs `streamText` is killed repeatedly, at any time. After a restart it continues
// from the saved chat: each saved step is stored once.
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
  // A fork after the question continues as a separate chat.
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

// `streamText` refuses calls without results, so every turn after a killed tool would fail. A
// loaded chat has the text that the server's requests have instead of a result; it is not stored.
test("a chat continues after a call without a result", async () => {
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
  // The first call may still end.
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
  // The result is recorded late.
  await conv.toolResult("a", "found");
  assert.deepEqual((await told())[0], ["output-available", undefined]);
});
