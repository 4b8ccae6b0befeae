// Tests of the Claude Agent SDK's `SessionStore`: the SDK's contract, and what it does beyond.

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import {
  deleteSession,
  foldSessionSummary,
  forkSession,
  getSessionMessages,
  InMemorySessionStore,
  listSessions,
  renameSession,
  type SessionStoreEntry,
} from "@anthropic-ai/claude-agent-sdk";
import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import { Event as EventCodec } from "../src/gen/treering/v1/event.js";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import type { Parsed } from "../src/words.js";
import { KEY, line, ODD, turn } from "./claude-lines.js";
import { inPython, skip } from "./python.js";
import { all, only, Server, shared, texts } from "./support.js";

const open = shared();
const SUB = "subagents/agent-1";

const conversation = (db: treering.Treering) =>
  db.conversation(`${KEY.projectKey}/${KEY.sessionId}`);

type Store = TreeringSessionStore | InMemorySessionStore;
type Story = (store: Store, other: Store) => Promise<unknown>;

const entry = (n: number, more: object = {}): SessionStoreEntry => ({ type: "x", n, ...more });
const ids = async (store: Store, projectKey: string) =>
  (await store.listSessions(projectKey)).map(({ sessionId }) => sessionId).sort();

const appendsAndLoads: Story = async (store, other) => {
  await store.append(KEY, [entry(1, { uuid: "z" })]);
  await store.append(KEY, []);
  await store.append(KEY, [entry(2, { uuid: "a" }), entry(3, { uuid: "m" })]);
  await other.append({ ...KEY, subpath: SUB }, [entry(5)]);
  await store.append({ ...KEY, projectKey: "other" }, [entry(6)]);
  return [
    await other.load(KEY),
    await store.load({ ...KEY, sessionId: "nope" }),
    await store.load({ ...KEY, subpath: "nope" }),
    await store.load({ ...KEY, subpath: SUB }),
    await other.load({ ...KEY, projectKey: "other" }),
  ];
};

const lists: Story = async (store, other) => {
  for (const sessionId of ["a", "b"])
    await store.append({ projectKey: "proj", sessionId }, [entry(1)]);
  for (const name of ["1", "2"]) {
    await other.append({ projectKey: "proj", sessionId: "a", subpath: `subagents/${name}` }, [
      entry(1),
    ]);
  }
  await store.append({ projectKey: "other", sessionId: "c" }, [entry(1)]);
  for (const { mtime } of await store.listSessions("proj")) {
    assert.ok(Number.isInteger(mtime) && mtime > 1e12);
  }
  return [
    await ids(store, "proj"),
    await ids(other, "other"),
    await ids(store, "never"),
    (await store.listSubkeys({ projectKey: "proj", sessionId: "a" })).sort(),
    await store.listSubkeys({ projectKey: "proj", sessionId: "b" }),
    await other.listSubkeys({ projectKey: "proj", sessionId: "never" }),
  ];
};

const deletes: Story = async (store, other) => {
  const subs = ["1", "2"].map((name) => ({ ...KEY, subpath: `subagents/agent-${name}` }));
  const others = [
    { ...KEY, sessionId: "sess2" },
    { ...KEY, projectKey: "other" },
  ];
  const keys = [KEY, ...subs, ...others];
  const loaded = async () => Promise.all(keys.map((key) => other.load(key)));
  await store.delete({ ...KEY, sessionId: "never written" });
  for (const key of keys) await store.append(key, [entry(1)]);
  await store.delete(subs[0] ?? KEY);
  const told = [await loaded(), await store.listSubkeys(KEY), await ids(store, "proj")];
  await other.delete(KEY);
  told.push(await loaded(), await store.listSubkeys(KEY), await ids(store, "proj"));
  await store.append(KEY, [entry(2)]);
  return [...told, await loaded(), await ids(store, "proj")];
};

const summaries: Story = async (store, other) => {
  const at = (second: number, more: object = {}) =>
    entry(1, { timestamp: `2024-01-01T00:00:0${second}.000Z`, ...more });
  await store.append(KEY, [at(0, { customTitle: "first" }), at(1)]);
  await other.append(KEY, [at(2, { customTitle: "second" })]);
  await store.append({ ...KEY, projectKey: "other" }, [at(0)]);
  const [summary] = await store.listSessionSummaries("proj");
  const [listed] = await store.listSessions("proj");
  assert.ok(summary && listed && summary.mtime >= listed.mtime && summary.mtime > 1e12);
  const again = foldSessionSummary(structuredClone(summary), KEY, [at(3)]);
  assert.equal(again.mtime, summary.mtime);
  await store.append({ ...KEY, subpath: SUB }, [at(9, { customTitle: "subagent" })]);
  const told = (await other.listSessionSummaries("proj")).map(({ data }) => data);
  assert.deepEqual(told, [summary.data]);
  await store.delete(KEY);
  const none = await store.listSessionSummaries("never");
  return [told, again.data, await other.listSessionSummaries("proj"), none];
};

/** Calls the SDK's own functions with a store. */
const functions: Story = async (store) => {
  const dir = "/home/ada/app";
  const key = { ...KEY, projectKey: "-home-ada-app" };
  const entries = turn();
  for (const [index, each] of entries.entries()) {
    if (index) each.parentUuid = entries[index - 1]?.uuid ?? null;
  }
  await store.append(key, entries.slice(0, 2));
  await store.append(key, entries.slice(2));
  const options = { dir, sessionStore: store };
  const said = async (id: string) =>
    (await getSessionMessages(id, options)).map(({ message }) => message);
  const told: unknown[] = [await said(key.sessionId)];
  await renameSession(key.sessionId, "The port", options);
  const { sessionId } = await forkSession(key.sessionId, options);
  const listed = await listSessions(options);
  told.push(listed.map((each) => [each.summary, each.firstPrompt, each.customTitle]).sort());
  told.push(await said(sessionId));
  await deleteSession(key.sessionId, options);
  assert.equal((await listSessions(options)).length, 1);
  return told;
};

const STORIES = { appendsAndLoads, lists, deletes, summaries, functions };

// The SDK documents what a store must do, and has an in-memory store as the reference. Ours must
// behave the same, also when another store object takes part.
for (const [name, story] of Object.entries(STORIES)) {
  test(`same as the in-memory store: ${name}`, async () => {
    const db = open();
    const its = new InMemorySessionStore();
    const ours = await story(new TreeringSessionStore(db), new TreeringSessionStore(db));
    assert.deepEqual(ours, await story(its, its));
  });
}

// A session that is kept as lines only cannot be searched, forked or sent to another model.
test("lines become messages, calls and results", async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  const entries = turn();
  await store.append(KEY, entries);
  assert.deepEqual(await store.load(KEY), entries);
  const conv = conversation(db);
  const kinds = (await all(conv.events())).map(({ kind }) => kind);
  assert.deepEqual(
    kinds.filter((kind) => kind !== "custom"),
    [
      "conversation_created",
      "message_appended",
      "message_appended",
      "tool_call_requested",
      "tool_result_recorded",
      "message_appended",
    ],
  );
  const hit = only(await db.search("7171", { kinds: "tool_result_recorded" }));
  assert.deepEqual([hit.tool, hit.snippet], ["Grep", "src/config.py:12: PORT = 7171"]);
  const { body } = await conv.request("anthropic", { model: "claude-sonnet-4-5" });
  const roles = body.messages.map(({ role }: Parsed) => role);
  assert.deepEqual(roles, ["user", "assistant", "user", "assistant"]);
  const [thought, , use] = body.messages[1].content;
  assert.equal(thought.signature, "c2ln");
  assert.deepEqual(use.input, { pattern: "PORT" });
  // The same for a model of another maker.
  const other = await conv.request("openai-chat", { model: "gpt-4o" });
  assert.equal(other.body.messages[2].role, "tool");
});

// Long texts are stored once, in the typed events: a second copy would double the store.
test("a long text is stored once", async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  const text = "a line of a log with a word that is not anywhere else\n".repeat(400);
  const use = { type: "tool_use", id: "toolu_9", name: "Bash", input: { command: text } };
  const result = { type: "tool_result", tool_use_id: "toolu_9", content: text };
  const entries = [
    line("assistant", [use]),
    line("user", [result], { toolUseResult: { stdout: text } }),
  ];
  await store.append(KEY, entries);
  assert.deepEqual(await store.load(KEY), entries);
  const events = await all(conversation(db).events());
  const sizes = events.map(({ proto }) => EventCodec.encode(proto).finish().length);
  assert.ok(sizes.reduce((a, b) => a + b) < 2 * text.length + 3_000);
});

// The SDK's lines are an internal format, so unusual or invalid lines must be loaded unchanged.
for (const [number, odd] of ODD.entries()) {
  test(`an odd line is loaded unchanged: ${number}`, async () => {
    const store = new TreeringSessionStore(open());
    await store.append(KEY, [odd]);
    await store.append(KEY, [odd, ...turn()]);
    const loaded = (await store.load(KEY)) ?? [];
    assert.equal(JSON.stringify(loaded.slice(0, 2)), JSON.stringify([odd, odd]));
    assert.equal(loaded.length, 6);
  });
}

// A batch that is sent again, by this program or another, must not duplicate a line. Lines without
// an id are stored again, because they cannot be recognised.
test("lines that are sent again", async () => {
  const db = open();
  const [first, second] = [new TreeringSessionStore(db), new TreeringSessionStore(db)];
  const entries = turn();
  const tag = { type: "tag", tag: "a" };
  await Promise.all([
    first.append(KEY, entries.slice(0, 3)),
    first.append(KEY, entries.slice(0, 3)),
  ]);
  await second.append(KEY, [...entries, ...entries.slice(3), tag]);
  await first.append(KEY, [...entries, tag]);
  assert.deepEqual(await second.load(KEY), [...entries, tag, tag]);
});

// For the SDK, a deleted session is gone, and starts empty when it is written to. Its messages can
// still be read on the conversation's branches.
test("a session that is deleted and started again", async () => {
  const db = open();
  const [store, other] = [new TreeringSessionStore(db), new TreeringSessionStore(db)];
  const entries = turn();
  await store.append(KEY, entries);
  await other.append({ ...KEY, subpath: SUB }, entries);
  for (let round = 0; round < 3; round += 1) {
    await other.delete(KEY);
    assert.equal(await store.load(KEY), null);
    assert.deepEqual(await store.listSessions("proj"), []);
    assert.deepEqual(await store.listSessionSummaries("proj"), []);
    await store.append(KEY, entries);
    assert.deepEqual(await other.load(KEY), entries);
    assert.equal((await store.listSessions("proj")).length, 1);
    assert.deepEqual(await store.listSubkeys(KEY), []);
  }
  const branches = await conversation(db).branches();
  const left = branches.filter(({ archived }) => !archived).map(({ name }) => name);
  assert.deepEqual(left, ["main"]);
  for (const { name } of branches) {
    assert.match((await texts(conversation(db).on(name))).at(-1) ?? "", /7171/);
  }
});

// A branch that was forked in the middle of a batch is a session too, with the lines up to the
// fork.
test("a session that continues from a fork", async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  const entries = turn();
  await store.append(KEY, entries);
  const main = conversation(db).on("main");
  for (const [kind, count] of [
    ["tool_result_recorded", 3],
    ["tool_call_requested", 2],
  ] as const) {
    const at = (await all(main.events())).find((event) => event.kind === kind)?.revision;
    await main.fork({ at, name: kind, activate: true });
    for (const each of [store, new TreeringSessionStore(db)]) {
      assert.deepEqual(await each.load(KEY), entries.slice(0, count));
      assert.equal((await each.listSessions("proj")).length, 1);
    }
    await store.append(KEY, [...entries.slice(0, 1), line("user", "In the fork")]);
    assert.equal((await new TreeringSessionStore(db).load(KEY))?.length, count + 1);
  }
});

// A request of a compacted session must not contain the messages that its summary replaces.
test("a session that was compacted", async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  const summary = "This session goes on from: the port is 7171.";
  const entries = [
    ...turn(),
    { type: "system", subtype: "compact_boundary" },
    line("user", summary, { isCompactSummary: true }),
    line("user", "And the address of the server?"),
  ];
  for (const each of entries) await store.append(KEY, [each]);
  assert.deepEqual(await store.load(KEY), entries);
  const { body } = await conversation(db).request("anthropic", { model: "claude-sonnet-4-5" });
  const sent = JSON.stringify(body.messages);
  assert.match(sent, /goes on from: the port is 7171/);
  assert.doesNotMatch(sent, /src\/config.py:12/);
  assert.match(sent, /address of the server/);
});

const program = (...given: string[]): ChildProcess =>
  spawn(process.execPath, ["build/tests/claude-writer.js", ...given], { stdio: "inherit" });

// Two programs write to one session: a resumed one, and one that still runs.
test("two programs on one session", async () => {
  const server = await Server.start();
  const programs = ["a", "b"].map((who) => once(program(server.address, who), "exit"));
  for (const [code] of await Promise.all(programs)) assert.equal(code, 0);
  await using db = treering.connect(server.address);
  const loaded = (await new TreeringSessionStore(db).load(KEY)) ?? [];
  const uuids = loaded.map(({ uuid = "" }) => uuid);
  assert.equal(new Set(uuids).size, 120);
  assert.equal(uuids.length, 120);
  for (const who of ["a", "b", "both"]) {
    const own = uuids.filter((uuid) => uuid.split("-")[0] === who);
    assert.deepEqual(
      own,
      Array.from({ length: 40 }, (_, n) => `${who}-${n}`),
    );
  }
  assert.ok((await db.verify({ deep: true })).sound);
});

// The server is killed while a session is written: accepted lines are stored once, and the session
// continues.
test("a server that is killed while a session is written", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  await db.stats();
  const store = new TreeringSessionStore(db);
  const entries = Array.from({ length: 40 }, (_, number) => line("user", `Line ${number}`));
  for (const [number, each] of entries.entries()) {
    if (number === 10 || number === 25) {
      await server.kill();
      setTimeout(() => void server.start(), 200);
    }
    await store.append(KEY, [each]);
  }
  assert.deepEqual(await store.load(KEY), entries);
  assert.deepEqual(await new TreeringSessionStore(db).load(KEY), entries);
  assert.ok((await db.verify({ deep: true })).sound);
});

// Programs in two languages share one store. Each reads the lines of the other, and the summaries,
// which the two SDKs keep in different formats.
test("sessions of the Python client", { skip }, async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const store = new TreeringSessionStore(db);
  const [mine, theirs] = [turn(), turn()];
  const python = (entries: SessionStoreEntry[]) =>
    inPython("claude_sessions.py", server.address, JSON.stringify(KEY), JSON.stringify(entries));
  await store.append(KEY, mine);
  const first = await python([...mine.slice(2), ...theirs]);
  assert.deepEqual(first.loaded, [...mine, ...theirs]);
  assert.deepEqual(await store.load(KEY), first.loaded);
  const whole = foldSessionSummary(undefined, KEY, first.loaded).data;
  assert.deepEqual((await store.listSessionSummaries("proj"))[0]?.data, whole);
  assert.equal(
    first.summaries[0].first_prompt,
    "Where is the port of the server set, and to what?",
  );
  const named = [{ type: "custom-title", customTitle: "Ports", sessionId: KEY.sessionId }];
  await store.append(KEY, named);
  const second = await python([]);
  assert.equal(second.summaries[0].custom_title, "Ports");
  assert.equal((await store.listSessionSummaries("proj"))[0]?.data.customTitle, "Ports");
  for (const odd of ODD) await store.append({ ...KEY, sessionId: "odd" }, [odd]);
  const key = JSON.stringify({ ...KEY, sessionId: "odd" });
  const { loaded } = await inPython("claude_sessions.py", server.address, key, "[]");
  assert.deepEqual(loaded, ODD);
  assert.deepEqual(await store.load({ ...KEY, sessionId: "odd" }), ODD);
});

const NO_RESULT = "Error: no result: the call had not ended when the conversation went on";
const OTHERS = [
  ["Which port?", "image"],
  ["I look."],
  ["c1"],
  ["c2"],
  ["PORT = 7171"],
  [NO_RESULT],
  ["It is 7171."],
];

/** Links each line to the line before it by `parentUuid`. */
function linked(entries: SessionStoreEntry[], parent: string | null): Parsed[] {
  let parentUuid = parent;
  return entries.map((each) => {
    const line = { ...each, parentUuid };
    parentUuid = String(each.uuid);
    return line;
  });
}

/** The lines that the SDK sends: it follows `parentUuid` back from the last line. */
function chained(entries: Parsed[]): Parsed[] {
  const chain: Parsed[] = [];
  for (let at = entries.at(-1); at; ) {
    chain.unshift(at);
    const { parentUuid } = at;
    at = parentUuid && entries.find(({ uuid }) => uuid === parentUuid);
    assert.ok(at || parentUuid === null);
    assert.ok(chain.length <= entries.length);
  }
  return chain;
}

/** The content of a line, in short form. */
function told({ message: { content } }: Parsed): unknown[] {
  if (typeof content === "string") return [content];
  return content.map((block: Parsed) => block.text ?? block.id ?? block.content ?? block.type);
}

// The SDK silently omits messages that are not in the chain of its lines. Messages of another
// adapter, a program or a person must be in it, the same on each load and in both languages, and
// must not be stored again when the SDK sends them back.
test("a session with messages of other programs", async () => {
  const db = open();
  const store = new TreeringSessionStore(db);
  const own = linked(turn(), null);
  await store.append(KEY, own);
  const conv = conversation(db);
  const png = make.image(Uint8Array.of(255, 254), { mediaType: "image/png" });
  await conv.user(["Which port?", png]);
  await conv.assistant([make.reasoning("Hm."), "I look."], {
    toolCalls: [
      { id: "c1", tool: "grep", arguments: { pattern: "PORT" } },
      { id: "c2", tool: "ls" },
    ],
  });
  await conv.toolResult("c1", "PORT = 7171");
  await conv.assistant("It is 7171.");
  const loaded: Parsed[] = (await store.load(KEY)) ?? [];
  assert.deepEqual(loaded.slice(0, own.length), own);
  assert.deepEqual(chained(loaded), loaded);
  assert.deepEqual(loaded.slice(own.length).map(told), OTHERS);
  assert.deepEqual(await new TreeringSessionStore(db).load(KEY), loaded);
  const head = await conv.head();
  for (const each of [store, new TreeringSessionStore(db)]) {
    await each.append(KEY, loaded);
    await each.append(KEY, loaded.slice(-3));
  }
  assert.equal(await conv.head(), head);
  // The SDK continues after these lines while another program ends the call: no link breaks.
  const more = linked(turn(), loaded.at(-1).uuid);
  await store.append(KEY, more);
  await conv.toolResult("c2", "README.md");
  const again: Parsed[] = (await store.load(KEY)) ?? [];
  assert.deepEqual(chained(again), again);
  assert.deepEqual(again.slice(-more.length), more);
  assert.deepEqual(told(again[own.length + 5]), ["README.md"]);
  // A running agent that does not know these lines continues after its own last line. No line may
  // come between its calls and their results.
  await conv.user("And a person asks.");
  const unaware = linked(turn(), more.at(-1).uuid);
  await store.append(KEY, unaware.slice(0, 2));
  await conv.user("Meanwhile");
  await store.append(KEY, unaware.slice(2));
  const last: Parsed[] = (await new TreeringSessionStore(db).load(KEY)) ?? [];
  assert.deepEqual(chained(last), last);
  assert.deepEqual(
    last.slice(-6).map((each) => told(each).at(-1)),
    [
      "And a person asks.",
      told(unaware[0])[0],
      "toolu_1",
      told(unaware[2])[0],
      "Meanwhile",
      told(unaware[3])[0],
    ],
  );
  await store.append(KEY, last);
  const said = await texts(conv);
  assert.equal(said.filter((each) => ["Which port?", "Meanwhile"].includes(each)).length, 2);
});

// Both clients must make the same lines of other programs' messages; otherwise the links between
// lines break.
test("messages of other programs in the Python client", { skip }, async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  await new TreeringSessionStore(db).append(KEY, linked(turn(), null));
  const conv = conversation(db);
  await conv.user(["Which port?", make.image("https://example.com/a.png")]);
  await conv.assistant(["I look.", "Twice."], {
    toolCalls: [
      { id: "c1", tool: "grep", arguments: { pattern: "PORT" } },
      { id: "c2", tool: "ls", arguments: "not json" },
    ],
  });
  await conv.toolResult("c1", "it is not there", { success: false });
  const loaded = await new TreeringSessionStore(db).load(KEY);
  assert.equal(loaded?.length, 4 + 1 + 4 + 2);
  assert.deepEqual(await inPython("claude_load.py", server.address), loaded);
});
