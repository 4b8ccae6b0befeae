// Tests of errors: the client has a class for every reason of the server.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { BY_REASON } from "../src/errors/translate.js";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { Attempts, STRANGER_PATIENCE_MS } from "../src/retry.js";
import { shared } from "./support.js";

const open = shared();

test("two writers", async () => {
  const conv = await open().create("Example");
  await conv.user("one", { expected: 1 });
  await assert.rejects(conv.user("two", { expected: 1 }), (error) => {
    assert.ok(error instanceof treering.RevisionMismatch);
    assert.ok(error instanceof treering.Conflict && error instanceof treering.TreeringError);
    assert.deepEqual([error.expected, error.actual], [1, 2]);
    assert.deepEqual([error.rule, error.name], ["REVISION_MISMATCH", "RevisionMismatch"]);
    assert.match(String(error), /decide again/);
    return true;
  });
});

test("refusals have classes", async () => {
  const db = open();
  const conv = await db.create("Example");
  const nowhere = db.conversation("0199aaaa-0000-7000-8000-000000000000");
  await assert.rejects(nowhere.user("?"), treering.ConversationNotFound);
  await assert.rejects(conv.on("nowhere").user("?"), treering.BranchNotFound);
  await assert.rejects(conv.toolResult("never", "x"), treering.CallNotOpen);
  const taken = db.append([make.created()], { conversation: conv.id });
  await assert.rejects(taken, treering.ConversationExists);
  await assert.rejects(conv.append([]), treering.EmptyBatch);
  await conv.append([make.user("a")], { idempotencyKey: "k" });
  const other = conv.append([make.user("b")], { idempotencyKey: "k" });
  await assert.rejects(other, treering.IdempotencyConflict);
  assert.deepEqual(await db.knownKeys(["k", "l"]), [true, false]);
  await assert.rejects(conv.fork({ at: 99, name: "late" }), treering.NotFound);
  await conv.fork({ name: "twice" });
  await assert.rejects(conv.fork({ name: "twice" }), treering.BranchNameTaken);
  await assert.rejects(
    conv.append([make.toolCall("c", "t", "[".repeat(1_000) + "]".repeat(1_000))]),
    treering.Invalid,
  );
  await conv.seal();
  await assert.rejects(conv.user("more"), treering.Sealed);
});

test("an address without a server", async () => {
  const db = treering.connect("127.0.0.1:1", { timeoutMs: 30_000 });
  await assert.rejects(db.stats(), (error) => {
    assert.ok(error instanceof treering.Unreachable);
    assert.match(error.advice, /running/);
    return true;
  });
  await db.close();
  await assert.rejects(db.stats(), treering.Unreachable);
});

// An address that never answered is given up within a second, so that a wrong address is noticed
// early. An address that has answered is tried longer: its server may be restarting.
test("how long an address is tried", (context) => {
  const tried = (patienceMs: number | undefined) => {
    context.mock.timers.enable({ apis: ["Date"], now: 0 });
    const attempts = new Attempts(false, "", 60_000, patienceMs);
    const error = new treering.Unreachable("refused");
    for (let pause = attempts.pauseAfter(error); pause; pause = attempts.pauseAfter(error)) {
      context.mock.timers.tick(Math.ceil(pause));
    }
    const ms = Date.now();
    context.mock.timers.reset();
    return ms;
  };
  const ms = tried(STRANGER_PATIENCE_MS);
  assert.ok(ms > 500 && ms < 1_000, String(ms));
  assert.ok(tried(undefined) > 50_000);
});

test("timeouts and abort signals", async () => {
  const conv = await open().create("Example");
  const late = conv.append([make.user("late")], { timeoutMs: 0 });
  await assert.rejects(late, treering.TreeringError);
  const stop = new AbortController();
  const waiting = conv.append([make.user("never")], { signal: stop.signal });
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await assert.rejects(conv.request("neutral", { signal: AbortSignal.abort() }), /abort/);
  const call = await conv.toolCall("rm", {}, { needsApproval: true });
  const waits = call.waitForApproval({ signal: AbortSignal.timeout(50) });
  await assert.rejects(waits, { name: "TimeoutError" });
  const ended = new AbortController();
  const kinds: string[] = [];
  for await (const event of conv.subscribe({
    signal: ended.signal,
    kinds: ["conversation_created"],
  })) {
    kinds.push(event.kind);
    setTimeout(() => ended.abort(), 10);
  }
  assert.deepEqual(kinds, ["conversation_created"]);
});

/** Source code of the server, if it is in the same repository. */
const SERVER = join(process.env.TREERING_ROOT ?? "../..", "src");

// Programs cannot catch a reason without a class.
test("every reason has a class", { skip: !existsSync(join(SERVER, "server")) }, () => {
  const read = (path: string) => readFileSync(join(SERVER, path), "utf8");
  const matches = (text: string, pattern: RegExp) =>
    [...text.matchAll(pattern)].map(([, name]) => name ?? "");
  const files = (folder: string) =>
    readdirSync(join(SERVER, folder), { recursive: true, encoding: "utf8" })
      .filter((file) => file.endsWith(".rs") && !file.includes("test"))
      .map((file) => read(join(folder, file)))
      .join("\n");
  const reasons = new Set([
    ...matches(read("domain/rejection.rs"), /=> "([A-Z_]+)"/g),
    ...matches(read("server/status/mod.rs"), /Code::\w+, "([A-Z_]+)"/g),
    ...matches(files("server"), /with_error_info\(\s*"([A-Z_]+)"/g),
    ...matches(files("server/admission"), /"((?:[A-Z]+_)+[A-Z]+)"/g),
  ]);
  reasons.delete("OUT_DIR");
  assert.ok(reasons.size > 50);
  assert.deepEqual(
    [...reasons].filter((reason) => !BY_REASON.has(reason)),
    [],
  );
});

test("every class has advice", () => {
  for (const [reason, kind] of BY_REASON) {
    assert.ok(new kind("").advice, reason);
    assert.ok(Object.values(treering).includes(kind as never), reason);
  }
});
