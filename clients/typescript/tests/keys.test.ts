// Tests of API keys: the client sends its key, and every refusal has a class.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as treering from "../src/index.js";
import { findBinary } from "../src/local/binary.js";

const makeKey = (folder: string, name: string, role: string): string =>
  execFileSync(findBinary(), ["keys", "create", name, "--role", role, "--data", folder], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  }).trim();

test("an API key determines what a client may do", async () => {
  const above = mkdtempSync(join(tmpdir(), "treering-keys-"));
  const folder = join(above, "store");
  try {
    await using db = treering.local(folder);
    await db.create("Before the first key");
    const token = makeKey(folder, "agent", "writer");
    await assert.rejects(db.create("After it"), treering.KeyMissing);
    const address = await db.address();

    await using mine = treering.connect(address, { token, actor: "somebody else" });
    const conv = await mine.create("With a key");
    const actors: string[] = [];
    for await (const event of conv.events()) actors.push(event.actor);
    assert.deepEqual(actors, ["agent"]);
    assert.equal((await mine.command("ls")).length, 2);

    await using mistyped = treering.connect(address, { token: token.slice(0, -1) });
    await assert.rejects(mistyped.create("Not with this"), treering.KeyMalformed);
    await using elsewhere = treering.connect(address, { token, namespace: "other" });
    await assert.rejects(elsewhere.create("Not there"), (error) => {
      assert.ok(error instanceof treering.RoleMissing);
      assert.ok(error instanceof treering.PermissionDenied);
      assert.ok(["writer", "approver"].includes(error.role));
      return true;
    });
  } finally {
    rmSync(above, { recursive: true, force: true });
  }
});
