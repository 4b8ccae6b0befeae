// Tests of items: values under paths and keys.

import assert from "node:assert/strict";
import { test } from "node:test";
import { itemOps, make } from "../src/index.js";
import { all, shared } from "./support.js";

const open = shared();

// An item must be read back unchanged, and be found by its content.
test("items are read and found", async () => {
  const db = open();
  const [ada, bob] = [
    ["people", "ada"],
    ["people", "bob"],
  ];
  await db.items.put(ada, "likes", { answers: "short", level: 3 });
  await db.items.put(bob, "likes", { answers: "long", level: 1 });
  const item = await db.items.get(ada, "likes");
  assert.deepEqual(item?.value, { answers: "short", level: 3 });
  assert.equal(item?.expiresAt, undefined);
  const found = await db.items.search(["people"], { where: [["level", ">=", 2]] });
  assert.deepEqual(
    found.map(({ path }) => path),
    [ada],
  );
  const words = await db.items.search(["people"], { query: "long" });
  assert.deepEqual(
    words.map(({ path }) => path),
    [bob],
  );
  assert.ok((words[0]?.score ?? 0) > 0);
  assert.deepEqual(await db.items.paths({ prefix: ["people", "*"] }), [ada, bob]);
  assert.equal(await db.items.delete(bob, "likes"), true);
  assert.equal(await db.items.delete(bob, "likes"), false);
  assert.equal(await db.items.get(bob, "likes"), undefined);
});

// Reads see the state before the batch, values that have no room in an answer are fetched
// separately, and a read can restart the time to live.
test("a batch of items is one step", async () => {
  const db = open();
  const path = ["batch"];
  const results = await db.items.batch([
    itemOps.put(path, "a", 1, { ttlMs: 3_600_000 }),
    itemOps.get(path, "a"),
  ]);
  assert.deepEqual(results[1]?.result, { $case: "got", value: { item: undefined } });
  const first = await db.items.get(path, "a", { refreshTtl: true });
  const second = await db.items.get(path, "a");
  assert.ok((second?.expiresAt ?? 0) > (first?.expiresAt ?? 0));
  const large = "x".repeat(2 << 20);
  await db.items.batch(["a", "b", "c"].map((key) => itemOps.put(path, key, large)));
  const whole = await db.items.search(path);
  assert.deepEqual(
    whole.map(({ value }) => (value as string).length),
    [large.length, large.length, large.length],
  );
});

// Each state is stored as the difference from the previous one, and is read whole.
test("a state is stored as a difference", async () => {
  const conv = await open().create("A state that grows");
  const messages = ["x".repeat(5_000)];
  for (let n = 0; n < 5; n += 1) {
    messages.push(`message ${n}`);
    await conv.append([make.custom("state", { messages }, { key: "state", deltaOf: "state" })]);
  }
  const events = await all(conv.events({ types: ["state"] }));
  const lengths = events.map(({ data }) => (data as { messages: string[] }).messages.length);
  assert.deepEqual(lengths, [2, 3, 4, 5, 6]);
});
