// Every page runs as it stands: each block of code, and what it prints. The package is the
// built one, under its own name.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { test } from "node:test";
import { temporary } from "./support.js";

const PAGES = ["README.md", ...readdirSync("docs").map((name) => join("docs", name))];
const BLOCK = /```(ts|text)\n(.*?)```/gs;
const IMPORT = /^import .*?;\n/gms;
/** Between what two blocks print. */
const MARK = "----8<----";

for (const page of PAGES) {
  test(page, () => {
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
    mkdirSync("build/pages", { recursive: true });
    const file = join(process.cwd(), "build/pages", `${basename(page, ".md")}.ts`);
    // As TypeScript for whoever checks its types, and as JavaScript: the pages are both.
    writeFileSync(file, module);
    writeFileSync(file.replace(/ts$/, "mjs"), module);
    const ran = spawnSync(process.execPath, [file.replace(/ts$/, "mjs")], {
      cwd: temporary(),
      encoding: "utf8",
      timeout: 60_000,
    });
    assert.equal(ran.status, 0, ran.stderr);
    const said = ran.stdout.split(`${MARK}\n`);
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
