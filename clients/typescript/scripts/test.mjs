// Builds, and runs the tests: `npm test`, or `npm test -- --test-name-pattern=forks`.
// TREERING_BINARY names the server's program.

import { spawnSync } from "node:child_process";
import { readdirSync, rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");

function run(program, ...given) {
  const { status } = spawnSync(program, given, { cwd: PACKAGE, stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
}

const tsc = join(PACKAGE, "node_modules", ".bin", "tsc");
rmSync(join(PACKAGE, "build"), { recursive: true, force: true });
run(process.execPath, join("scripts", "build.mjs"));
run(tsc, "-p", "tsconfig.json");
const tests = readdirSync(join(PACKAGE, "build", "tests"))
  .filter((name) => name.endsWith(".test.js"))
  .map((name) => join("build", "tests", name));
const isGiven = (name) =>
  process.argv.slice(2).includes(name.replace(/^build\/tests\/|\.js$/g, ""));
const chosen = tests.some(isGiven) ? tests.filter(isGiven) : tests;
const options = process.argv.slice(2).filter((given) => given.startsWith("--"));
run(
  process.execPath,
  "--test",
  "--test-concurrency=4",
  "--test-timeout=400000",
  ...options,
  ...chosen,
);
