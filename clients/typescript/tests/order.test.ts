// The writes of one client are stored in the order in which it sends them, also abandoned writes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { Server, texts } from "./support.js";

const ROUNDS = 400;

function isInOrder(lines: readonly string[], rounds: number): void {
  const kept = lines.filter((line) => line.startsWith("kept"));
  assert.deepEqual(
    kept,
    Array.from({ length: rounds }, (_, n) => `kept ${n}`),
  );
  const places = lines.map((line) => {
    const [word, number] = line.split(" ");
    return Number(number) * 2 + (word === "kept" ? 1 : 0);
  });
  assert.deepEqual(
    places,
    [...new Set(places)].sort((a, b) => a - b),
  );
}

// An agent is interrupted while it records an answer, and records the interruption. The answer must
// not be stored after the interruption.
for (const how of ["signal", "timeoutMs"] as const) {
  test(`an append that is abandoned by ${how} is stored before a later one`, async () => {
    const server = await Server.start();
    await using db = treering.connect(server.address);
    const conv = await db.create();
    for (let n = 0; n < ROUNDS; n += 1) {
      const abort = new AbortController();
      const options = how === "signal" ? { signal: abort.signal } : { timeoutMs: (n % 4) + 1 };
      const left = conv.append([make.user(`left ${n}`)], options).catch((error: unknown) => {
        assert.ok(abort.signal.aborted || error instanceof treering.DeadlineExceeded);
      });
      if (how === "signal") {
        await sleep(n % 4);
        abort.abort();
      }
      await left;
      await conv.user(`kept ${n}`);
    }
    isInOrder(await texts(conv), ROUNDS);
  });
}

// An import is stopped after its first answer: the batches that were sent are stored before later
// events.
test("abandoned batches are stored before a later append", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const conv = await db.create();
  for (let n = 0; n < 20; n += 1) {
    const batches = Array.from({ length: 64 }, () => [conv.id, [make.user(`left ${n}`)]] as const);
    for await (const _ of db.appendMany(batches)) break;
    await conv.user(`kept ${n}`);
  }
  const numbers = (await texts(conv)).map((line) => line.replace("left", "a").replace("kept", "b"));
  const places = numbers.map((line) => Number(line.slice(2)) * 2 + (line[0] === "b" ? 1 : 0));
  assert.deepEqual(
    places,
    [...places].sort((a, b) => a - b),
  );
});
