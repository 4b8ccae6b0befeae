// Generates `src/gen` from the repository's `proto/`, on `npm run generate` and on `npm install` of
// a working tree. It is not committed; the package on npm has the compiled code.
//
// Needs no protoc: buf and ts-proto are development dependencies.

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const PROTO = process.env.TREERING_PROTO ?? resolve(PACKAGE, "../../proto");
const GENERATED = join(PACKAGE, "src", "gen");

const OPTIONS = [
  "importSuffix=.js",
  "esModuleInterop=true",
  // 64-bit revisions and offsets are numbers; decoding fails if a number cannot hold the value.
  "forceLong=number",
  "oneof=unions-value",
  "removeEnumPrefix=true",
  "unrecognizedEnum=false",
  "outputServices=generic-definitions",
  "outputJsonMethods=false",
  "useExactTypes=false",
  // Bytes are views of the received buffer; nothing changes the answers.
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
  // Options of the schema; only the server's build reads them.
  for (const unused of ["treering/v1/options.ts", "google/protobuf/descriptor.ts"]) {
    rmSync(join(folder, "gen", unused));
  }
  return join(folder, "gen");
}

const work = mkdtempSync(join(tmpdir(), "treering-generate-"));
try {
  const generated = generate(work);
  rmSync(GENERATED, { recursive: true, force: true });
  cpSync(generated, GENERATED, { recursive: true });
} finally {
  rmSync(work, { recursive: true, force: true });
}
