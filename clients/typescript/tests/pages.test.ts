// Runs every page of the docs: each block of code must print what the page shows. The pages import
// the built package by its name. Agents use a model that repeats its input.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { agentEnvironment, serving } from "./model.js";
import { temporary } from "./support.js";

const pagesIn = (folder: string): string[] =>
  readdirSync(folder)
    .filter((name) => name.endsWith(".md"))
    .map((name) => join(folder, name));
const PAGES = ["README.md", ...pagesIn("docs"), ...pagesIn("docs/adapters")];
const BLOCK = /```(ts|text)\n(.*?)```/gs;
const IMPORT = /^import .*?;\n/gms;
/** Separates the output of two blocks. */
const MARK = "----8<----";

for (const page of PAGES) {
  test(page, async () => {
    const blocks = [...readFileSync(page, "utf8").matchAll(BLOCK)].map(
      ([, kind = "", text = ""]) => ({
        kind,
        text,
      }),
    );
    const code = blocks.filter(({ kind }) => kind === "ts").map(({ text }) => text);
    const imports = new Set(code.flatMap((text) => text.match(IMPORT) ?? []));
    const bodies = code.map((text) => text.replace(IMPORT, ""));
    const module = [...imports, bodies.join(`\nconsole.log("${MARK}");\n`)].join("");
    // Pages of adapters need the types of their frameworks.
    const folder = join(process.cwd(), "build/pages", page.includes("adapters") ? "adapters" : "");
    mkdirSync(folder, { recursive: true });
    const file = join(folder, `${basename(page, ".md")}.ts`);
    // Written as TypeScript, for type checks, and as JavaScript: the code is valid as both.
    writeFileSync(file, module);
    writeFileSync(file.replace(/ts$/, "mjs"), module);
    const { stdout } = await promisify(execFile)(process.execPath, [file.replace(/ts$/, "mjs")], {
      cwd: temporary(),
      env: { ...process.env, ...agentEnvironment(await serving(), temporary()) },
      timeout: 60_000,
    });
    const said = stdout.split(`${MARK}\n`);
    let shown = 0;
    let at = -1;
    for (const { kind, text } of blocks) {
      if (kind === "ts") {
        at += 1;
        continue;
      }
      assert.equal(said[at], text, page);
      shown += 1;
    }
    assert.ok(shown > 0);
  });
}
