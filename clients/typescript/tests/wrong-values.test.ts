// Tests of invalid arguments: the client reports them by name, before it sends anything.

import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as treering from "../src/index.js";
import { itemOps, make } from "../src/index.js";
import { findBinary } from "../src/local/binary.js";
import type { Parsed, ProviderName } from "../src/words.js";
import { shared, temporary, texts } from "./support.js";

const open = shared();
const NAN = Number.NaN;

// `JSON.stringify` writes a number that JSON lacks as `null`, which would change the arguments of a
// tool.
test("numbers that JSON lacks", async () => {
  const db = open();
  const conv = await db.create("Example");
  const before = await conv.head();
  const given: [() => unknown, RegExp][] = [
    [() => conv.toolCall("f", { x: NAN }), /`x` is NaN/],
    [() => conv.assistant([], { toolCalls: [{ tool: "f", arguments: { x: [1, NAN] } }] }), /`x.1`/],
    [() => make.toolCall("c", "f", { x: -Infinity }), /`x` is -Infinity/],
    [() => make.toolCall("c", "f", NAN), /the value is NaN/],
    [() => conv.setContext({ fine: null, odd: NAN }), /`odd` is NaN/],
    [() => db.setContext({ odd: { deep: NAN } }), /`odd.deep` is NaN/],
    [() => itemOps.put(["a"], "k", { n: { m: NAN } }), /`n.m` is NaN/],
    [() => make.config("m", { parameters: { temperature: NAN } }), /`temperature` is NaN/],
    [() => conv.request("anthropic", { policy: { p: NAN } }), /`p` is NaN/],
  ];
  for (const [give, said] of given) {
    await assert.rejects(
      async () => give(),
      (error: Error) => {
        assert.ok(error instanceof TypeError);
        assert.match(error.message, said);
        assert.match(error.message, /null or a string/);
        return true;
      },
    );
  }
  assert.equal(await conv.head(), before);
  // The value of a tool becomes text for the model, and a model's arguments are stored unchanged.
  const asked = { id: "c", tool: "f", arguments: '{"x": NaN}' };
  const [call] = (await conv.assistant([], { toolCalls: [asked] })).calls;
  assert.equal(call?.arguments, '{"x": NaN}');
  await (await conv.toolCall("g", { x: null }, { callId: "d" })).run(() => ({ loss: NAN }));
  assert.equal((await conv.result("d")).text, '{"loss":"NaN"}');
});

// Half of a surrogate pair would silently be stored as U+FFFD.
test("texts that are not Unicode", async () => {
  const db = open();
  const conv = await db.create("Example");
  const before = await conv.head();
  const half = "a\ud800b";
  const given: (() => Promise<unknown>)[] = [
    async () => conv.user(half),
    async () => conv.assistant(["fine", make.reasoning(half)]),
    async () => conv.assistant(make.reasoning("fine", { signature: half })),
    async () => conv.toolCall("f", half),
    async () => conv.system(half),
    async () => db.create(half),
    async () => db.search(half),
    async () => conv.append([make.custom("x", {}, { key: half })]),
    async () => conv.toolResult("c", half.repeat(1 << 20)),
  ];
  for (const give of given) {
    await assert.rejects(give, (error: Error) => {
      assert.ok(error instanceof treering.Invalid, String(error));
      assert.match(error.message, /half of a surrogate pair at index \d+: replace it/);
      return true;
    });
  }
  await assert.rejects(conv.user(half), /events\.0\.body\.value\.parts\.0\.part\.value: .*index 1/);
  assert.equal(await conv.head(), before);
  // JSON can represent it.
  const call = await conv.toolCall("f", { half });
  assert.deepEqual(call.arguments, { half });
  assert.deepEqual((await conv.toolCalls())[0]?.arguments, { half });
  await conv.user("whole: \ud83d\ude00");
  assert.deepEqual(await texts(conv), ["whole: 😀"]);
});

// The error for an invalid part must name the functions that make parts.
test("invalid content", async () => {
  const conv = await open().create("Example");
  for (const content of [null, undefined, 5, {}, [null], [5], [{ type: "text" }]] as Parsed[]) {
    await assert.rejects(async () => conv.user(content), /string or a result of `make\.image`/);
  }
  assert.equal(await conv.head(), 1);
  for (const [provider, message] of [
    ["openai-chat", { content: "x" }],
    ["openai-chat", null],
    ["anthropic", { content: "x" }],
    ["anthropic", { role: "user" }],
  ] as [ProviderName, unknown][]) {
    await assert.rejects(
      conv.extend(provider, [message]),
      /message 0 is not a message of .*: `(role|content)` is missing/,
    );
  }
  assert.equal(await conv.head(), 1);
});

// `openai_chat`, as other programs write it, must work for requests and for answers.
test("names of providers", async () => {
  const conv = await open().create("Example");
  const chat = { choices: [{ message: { role: "assistant", content: "Hello" } }] };
  for (const name of ["openai-chat", "openai_chat", "OpenAI-Chat"] as ProviderName[]) {
    await conv.extend(name, [{ role: "user", content: "Hello" }]);
    await conv.record(name, chat);
    assert.ok((await conv.request(name, { model: "gpt-4o" })).body.messages);
  }
  const unknown = "openai_chats" as ProviderName;
  for (const call of [async () => conv.request(unknown), async () => conv.record(unknown, chat)]) {
    await assert.rejects(call, /`openai_chats` is not allowed here: use one of .*openai-chat/);
  }
});

// A response that is not an answer (an error, a piece of a stream, another provider's format) must
// be refused, not stored as an empty answer.
test("responses that are not answers", async () => {
  const conv = await open().create("Example");
  const error = { error: { type: "overloaded_error", message: "secret" } };
  const piece = { choices: [{ index: 0, delta: { content: "Hel" } }] };
  const chat = { choices: [{ message: { role: "assistant", content: "Hello" } }] };
  const given: [ProviderName, unknown, RegExp][] = [
    [
      "anthropic",
      { foo: 1 },
      /not an answer of anthropic: it has no list `content`, or it is empty; its fields: foo/,
    ],
    ["anthropic", { type: "error", ...error }, /it is an error/],
    ["anthropic", chat, /its fields: choices/],
    ["anthropic", { content: "Hello" }, /no list `content`/],
    ["anthropic", { content: [{ type: "tool_use", name: "ls" }] }, /`id`/],
    ["anthropic", { content: ["Hello"] }, /not an answer of anthropic/],
    ["anthropic", null, /it is null/],
    ["openai-chat", error, /it is an error/],
    ["openai-chat", piece, /no `message`: for a stream/],
    ["openai-chat", { choices: [] }, /no list `choices`/],
    ["openai-responses", { ...error, output: null }, /it is an error/],
    ["openai-responses", chat, /no list `output`/],
    ["gemini", { promptFeedback: { blockReason: "SAFETY" } }, /its fields: promptFeedback/],
    ["gemini", {}, /its fields: nothing/],
  ];
  for (const [provider, response, said] of given) {
    await assert.rejects(conv.record(provider, response), (refused: Error) => {
      assert.ok(refused instanceof TypeError);
      assert.match(refused.message, said);
      assert.doesNotMatch(refused.message, /secret/);
      return true;
    });
  }
  assert.equal(await conv.head(), 1);
  // An answer may be empty.
  await conv.record("anthropic", { content: [], stop_reason: "end_turn" });
  await conv.record("gemini", { candidates: [{ finishReason: "SAFETY" }] });
  await conv.record("openai-responses", { output: [], status: "incomplete", error: null });
  await conv.record("openai-chat", chat);
  assert.deepEqual(await texts(conv), ["", "", "", "Hello"]);
});

// Errors of the system must become errors of the client, which programs catch.
test("invalid folders and addresses", async () => {
  const file = join(temporary(), "file");
  writeFileSync(file, "x");
  for (const path of [file, join(file, "below"), "/proc/nowhere"]) {
    assert.throws(
      () => treering.local(path),
      (error: Error) => {
        assert.ok(error instanceof treering.NoFolder, String(error));
        assert.match(error.message, new RegExp(path));
        assert.match(error.advice, /folder/);
        return true;
      },
    );
  }
  for (const address of ["", "http://", "not an address", "host:port", "host:0", "host:70000"]) {
    assert.throws(
      () => treering.connect(address),
      (error: Error) => {
        assert.ok(error instanceof treering.Invalid, String(error));
        assert.match(error.message, /is not an address: use host:port/);
        return true;
      },
    );
  }
  for (const address of ["localhost:7171", "http://[::1]:7171/", "https://x", "unix:/run/x"]) {
    await treering.connect(address).close();
  }
  assert.throws(
    () => treering.connect("localhost:1", { token: "nöpe\n" }),
    (error: Error) => {
      assert.ok(error instanceof treering.Invalid, String(error));
      assert.match(error.message, /`token` has a character that cannot be sent/);
      assert.doesNotMatch(error.message, /pe/);
      return true;
    },
  );
  assert.throws(
    () => treering.connect("localhost:1", { namespace: "nöpe\n" }),
    (error: Error) => {
      assert.ok(error instanceof treering.Invalid, String(error));
      assert.match(error.message, /`namespace` has a character that cannot be sent/);
      return true;
    },
  );
});

// An error must name the program that is missing or is not a Treering server.
test("programs that are not a server", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treering-ts-"));
  const none = treering.local(folder, { binary: "/nonexistent/treering" });
  await assert.rejects(none.connect(), (error: Error) => {
    assert.ok(error instanceof treering.NoBinary, String(error));
    assert.match(error.message, /\/nonexistent\/treering/);
    return true;
  });
  await none.close();
  const { TREERING_BINARY: program } = process.env;
  const served = treering.local(temporary(), { binary: findBinary() });
  const commanded = treering.connect(await served.address());
  try {
    process.env.TREERING_BINARY = "/nonexistent/treering";
    await assert.rejects(commanded.command("ls"), treering.NoBinary);
  } finally {
    process.env.TREERING_BINARY = program;
  }
  await commanded.close();
  await served.close();
  const other = treering.local(folder, { binary: "/bin/false" });
  await assert.rejects(other.connect(), (error: Error) => {
    assert.ok(error instanceof treering.ServerNotStarted, String(error));
    assert.match(error.message, /\/bin\/false did not start: it exited with code 1 and no output/);
    return true;
  });
  await other.close();
});

// After `close`, the advice must not be to check whether the server runs.
test("a client that was closed", async () => {
  const db = treering.local(temporary());
  const conv = await db.create("Example");
  await db.close();
  for (const call of [() => db.stats(), () => conv.user("?"), () => conv.head()]) {
    await assert.rejects(call, (error: Error) => {
      assert.ok(error instanceof treering.ClientClosed && error instanceof treering.Unreachable);
      assert.match(error.message, /this client was closed/);
      assert.match(error.advice, /Open another client/);
      return true;
    });
  }
});

// `create` with a known source id makes another conversation, and `open` does not.
test("one source id, twice", async () => {
  const db = open();
  const first = await db.open("once", { source: "example" });
  assert.equal((await db.open("once", { source: "example" })).id, first.id);
  const second = await db.create("", { source: "example", sourceId: "once" });
  assert.notEqual(second.id, first.id);
  await assert.rejects(db.conversation("once").head(), treering.AmbiguousSourceId);
});

// A single kind may be a string, which must not be read letter by letter.
test("a string in place of a list", async () => {
  const db = open();
  const conv = await db.create("One");
  await conv.append([make.user("Hello"), make.custom("note", {}, { key: "a" })]);
  for await (const event of conv.events({ kinds: "message_appended" })) {
    assert.equal(event.text, "Hello");
  }
  for await (const event of db.events({ kinds: "message_appended" })) {
    assert.equal(event.text, "Hello");
  }
  const of = { kinds: "message_appended", keys: "a", types: "note" } as const;
  const newest = await db.latest([conv.id], of);
  assert.deepEqual(
    newest.map((event) => event?.kind),
    ["custom", "custom", "message_appended"],
  );
  for await (const event of conv.subscribe({ kinds: "message_appended" })) {
    assert.equal(event.text, "Hello");
    break;
  }
});

// `since` takes the texts that the command line takes, such as "2 days".
test("times as text", async () => {
  const db = open();
  const conv = await db.create("Times");
  await conv.user("Hello");
  const count = async (found: AsyncIterable<unknown>) => {
    let number = 0;
    for await (const _ of found) number += 1;
    return number;
  };
  for (const past of ["2 days", "3h ago", "1 week", "2026-01-31", "2026-01-31 08:00"]) {
    assert.equal((await db.search("Hello", { since: past })).length, 1, past);
    assert.equal((await db.search("Hello", { until: past, happenedUntil: past })).length, 0);
    assert.equal(await count(conv.events({ since: past })), 2);
    assert.equal(await count(db.events({ until: past })), 0);
    assert.equal(await count(db.conversations({ updatedSince: past })), 1);
    assert.equal(await count(db.conversations({ updatedUntil: past })), 0);
  }
  for (const bad of ["soon", "", "two days", "99999999999999 days", "2026-13-01"]) {
    await assert.rejects(db.search("Hello", { since: bad }), /`since` is not a time: use a Date/);
  }
});

// A result may be an object, as `call.run` takes it.
test("a result that is an object", async () => {
  const conv = await open().create("Example");
  const value = { rows: [1, null], name: "bär", part: "of it" };
  await (await conv.toolCall("f", {}, { callId: "ran" })).run(() => value);
  await (await conv.toolCall("f", {}, { callId: "one" })).result(value);
  await (await conv.toolCall("f", {}, { callId: "two" })).request();
  await conv.toolResult("two", value);
  for (const id of ["ran", "one", "two"]) {
    assert.equal((await conv.result(id)).text, JSON.stringify(value));
  }
  await (await conv.toolCall("f", {}, { callId: "four" })).result(make.json({ a: 1 }));
  assert.equal((await conv.result("four")).text, '{"a":1}');
});
