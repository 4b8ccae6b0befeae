// Checks the table of methods against the sources.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import type { Method } from "../src/methods.js";
import * as methods from "../src/methods.js";

const { health: _, ...services } = methods;
const table = Object.entries(services).flatMap(([service, all]) =>
  Object.entries(all as Record<string, Method<unknown, unknown>>).map(
    ([name, method]) => [`${service}.${name}`, method] as const,
  ),
);

// A write can be retried only with a key, so every write must have one.
test("every write has a key", () => {
  for (const [name, method] of table) {
    // A default message has all fields of its type.
    const { fromPartial } = method.request as unknown as { fromPartial(of: object): object };
    const hasKey = "idempotencyKey" in fromPartial({}) || name === "tools.recordResult";
    assert.equal(method.needsKey, hasKey, name);
  }
});

// A method that the client does not use is missing in its API.
test("the client uses every method", () => {
  const code = readdirSync("src", { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".ts") && !file.startsWith("gen"))
    .map((file) => readFileSync(join("src", file), "utf8"))
    .join("\n");
  assert.ok(table.length > 30);
  const unused = table
    .map(([name]) => name)
    .filter((name) => {
      const [service = "", method = ""] = name.split(".");
      const imported =
        service === "events" ? "eventMethods|events" : `${service}|${service}Methods`;
      return !new RegExp(`\\b(${imported})\\.${method}\\b`).test(code);
    });
  assert.deepEqual(unused, []);
});
