// Makes `src/gen` of the repository's `proto/`: `npm run generate`, for maintainers.
//
// Needs no protoc: buf and ts-proto are development dependencies. With `--check` it writes
// nothing, and fails when what is committed is not what would be made.

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const PROTO = process.env.TREERING_PROTO ?? resolve(PACKAGE, "../../proto");
const COMMITTED = join(PACKAGE, "src", "gen");

const OPTIONS = [
  "importSuffix=.js",
  "esModuleInterop=true",
  // 64 bits: revisions and offsets are numbers; what a number cannot hold is refused.
  "forceLong=number",
  "oneof=unions-value",
  "removeEnumPrefix=true",
  "unrecognizedEnum=false",
  "outputServices=generic-definitions",
  "outputJsonMethods=false",
  "useExactTypes=false",
  // Bytes are views of what came in; the answers are not changed.
  "env=both",
];

function generate(folder) {
  const proto = join(folder, "proto");
  cpSync(PROTO, proto, { recursive: true });
  mkdirSync(join(proto, "google", "rpc"), { recursive: true });
  cpSync(join(PACKAGE, "scripts", "details.proto"), join(proto, "google", "rpc", "details.proto"));
  const plugin = {
    local: join(PACKAGE, "node_modules", ".bin", "protoc-gen-ts_proto"),
    out: join(folder, "gen"),
    opt: OPTIONS,
    include_imports: true,
    include_wkt: true,
  };
  const buf = join(PACKAGE, "node_modules", ".bin", "buf");
  const template = JSON.stringify({ version: "v2", plugins: [plugin] });
  execFileSync(buf, ["generate", proto, "--template", template], {
    cwd: folder,
    stdio: "inherit",
    env: { ...process.env, BUF_CACHE_DIR: join(folder, "cache") },
  });
  return join(folder, "gen");
}

function read(folder) {
  const files = new Map();
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath ?? entry.path, entry.name);
    if (entry.isFile()) files.set(relative(folder, path), readFileSync(path, "utf8"));
  }
  return files;
}

const work = mkdtempSync(join(tmpdir(), "treering-generate-"));
try {
  const made = generate(work);
  if (process.argv.includes("--check")) {
    const [now, then] = [read(made), read(COMMITTED)];
    const names = new Set([...now.keys(), ...then.keys()]);
    const stale = [...names].filter((name) => now.get(name) !== then.get(name));
    if (stale.length) {
      console.error(`not as \`npm run generate\` makes them: ${stale.join(", ")}`);
      process.exitCode = 1;
    }
  } else {
    rmSync(COMMITTED, { recursive: true, force: true });
    cpSync(made, COMMITTED, { recursive: true });
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}
