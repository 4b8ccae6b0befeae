// Tests of event keys, attributes, and lookups by them.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { all, shared } from "./support.js";

const open = shared();

// A framework resumes from its newest state, which differs between branches.
test("events by key, type and kind", async () => {
  const db = open();
  const conv = await db.create("States");
  for (let n = 0; n < 5; n += 1) {
    const event = make.custom("state", { n }, { key: `state/${n}`, text: `state no ${n}` });
    await conv.append([make.foundBy(event, { attributes: { even: String(n % 2 === 0) } })]);
  }
  const main = conv.on("main");
  const other = await conv.fork({ at: 3, name: "other" });
  await other.append([make.custom("state", { n: 99 }, { key: "state/0" })]);

  assert.deepEqual((await main.latest({ key: "state/3" }))?.data, { n: 3 });
  assert.equal((await main.latest({ type: "state" }))?.key, "state/4");
  assert.equal((await other.latest({ type: "state" }))?.key, "state/0");
  assert.equal(await other.latest({ key: "state/3" }), undefined);
  assert.equal((await main.latest({ kind: "conversation_created" }))?.revision, 1);
  assert.equal((await main.latest({ type: "state" }, { asOf: 3 }))?.key, "state/1");

  const found = await db.latest([conv.id], { branch: "main", keys: ["state/1", "no"] });
  assert.deepEqual(
    found.map((event) => event?.revision),
    [3, undefined],
  );
  const even = await all(main.events({ attributes: { even: "true" }, headersOnly: true }));
  assert.deepEqual(
    even.map((event) => [event.key, event.typeName]),
    [
      ["state/0", "state"],
      ["state/2", "state"],
      ["state/4", "state"],
    ],
  );
  const last = await all(main.events({ keyPrefix: "state/", backward: true, limit: 1 }));
  assert.deepEqual(last[0]?.attributes, { even: "true" });
  const soon = new Date(Date.now() + 60_000);
  assert.deepEqual(await all(conv.events({ keyPrefix: "state/", since: soon })), []);
  const hits = await db.search("state no 3", { kinds: ["custom"] });
  assert.equal([...hits][0]?.revision, 5);
});

// Bodies that have no room in an answer are fetched by further calls.
test("events by name, with all their bodies", async () => {
  const db = open();
  const conv = await db.create("Large");
  const ids: string[] = [];
  for (let n = 0; n < 6; n += 1) {
    const event = make.custom("large", new Uint8Array(1 << 20).fill(n), { key: `k${n}` });
    ids.push(...(await conv.append([event])).eventIds);
  }
  const nowhere = "00000000-0000-7000-8000-000000000001";
  const got = await db.getEvents([...ids.reverse(), nowhere, [conv.id, 1], [conv.id, 99]]);
  assert.deepEqual(
    got.map((event) => event?.revision),
    [7, 6, 5, 4, 3, 2, undefined, 1, undefined],
  );
  for (const event of got.slice(0, 6)) {
    assert.ok(event?.data instanceof Uint8Array && event.data.length === 1 << 20);
  }
  const [header] = await conv.getEvents([2], { headersOnly: true });
  assert.deepEqual([header?.key, header?.body], ["k0", undefined]);
});

// Values that have no room in one answer are fetched by the next call.
test("a context by key", async () => {
  const conv = await open().create("Context");
  const large = "x".repeat(2 << 20);
  await conv.setContext({ a: 1, large1: large, large2: large, b: [2] });
  assert.deepEqual(await conv.context("b", "none"), { b: [2] });
  assert.deepEqual(await conv.context(), { a: 1, b: [2], large1: large, large2: large });
});

// Invalid keys are refused, and nothing is stored.
test("keys are bounded", async () => {
  const conv = await open().create("Bounds");
  for (const key of ["k".repeat(513), "a\0b"]) {
    await assert.rejects(conv.append([make.foundBy(make.user("no"), { key })]), treering.Invalid);
  }
  assert.equal(await conv.head(), 1);
});

// A feed delivers some events twice, in different batches. Each is stored once, and both receipts
// have its revision. Different content under a known id or key is refused.
test("a feed that is read again", async () => {
  const db = open();
  const conv = await db.create("Feed");
  const ids = Array.from({ length: 6 }, () => crypto.randomUUID());
  const feed = ids.map((id, n) => make.withId(make.user(`no ${n}`), id));
  const first = await conv.append(feed.slice(0, 3));
  assert.deepEqual([first.eventIds, first.known], [ids.slice(0, 3), []]);
  const again = await conv.append(feed.slice(1), { skipKnown: true });
  assert.deepEqual(again.known, [0, 1]);
  assert.deepEqual(again.revisions.slice(0, 2), first.revisions.slice(1));
  await assert.rejects(conv.append(feed.slice(0, 1)), treering.EventIdTaken);
  const other = make.withId(make.user("other"), ids[0] ?? "");
  await assert.rejects(conv.append([other], { skipKnown: true }), treering.EventIdConflict);

  const lines = [0, 1, 2].map((n) => make.once(make.user(`line ${n}`), `line/${n}`));
  await conv.append(lines.slice(0, 2));
  assert.deepEqual((await conv.append(lines)).known, [0, 1]);
  const changed = make.once(make.user("other"), "line/0");
  await assert.rejects(conv.append([changed]), treering.IdempotencyConflict);
});

// Two agents share one plan: an agent that has not seen the newest version must be refused.
test("an append after a newer event with the key", async () => {
  const conv = await open().create("Plans");
  const plan = (text: string) => make.foundBy(make.user(text), { key: "plan" });
  const first = await conv.append([plan("one")], { expectedKeys: { plan: null } });
  await conv.append([make.user("not about the plan")]);
  const second = await conv.append([plan("two")], { expectedKeys: { plan: first.revision } });
  const late = conv.append([plan("late")], { expectedKeys: { plan: first.eventIds[0] ?? "" } });
  await assert.rejects(late, (error: unknown) => {
    assert.ok(error instanceof treering.LatestMismatch);
    assert.equal(error.eventId, second.eventIds[0]);
    return true;
  });
  await conv.append([plan("three")], { expectedKeys: { plan: second.eventIds[0] ?? null } });
});
