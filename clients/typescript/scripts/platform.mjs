// Packs the `treering` program for this machine:
// `node scripts/platform.mjs PROGRAM FOLDER BILL [NOTICES]`.
// BILL is the file that `packaging/sbom.py make` wrote: the package has it as sbom.cdx.json.
// NOTICES is the file that `packaging/notices.py` wrote.
//
// Makes FOLDER/treering-PLATFORM-ARCH-VERSION.tgz, with the program stripped. It is installed
// beside `treering`, which finds it there. Alone, `npx PACKAGE` runs the program.

import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const NOTICES = "THIRD-PARTY-NOTICES.txt";
const [program, folder, bill, notices] = process.argv.slice(2);
if (!program || !folder || !bill) {
  console.error("usage: node scripts/platform.mjs PROGRAM FOLDER BILL [NOTICES]");
  process.exit(2);
}

const { platform, arch } = process;
const file = platform === "win32" ? "treering.exe" : "treering";
const { version, license } = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8"));
const about = {
  name: `@treering/${platform}-${arch}`,
  version,
  description: `The program of treering for ${platform} ${arch}`,
  license,
  os: [platform],
  cpu: [arch],
  ...(platform === "linux" ? { libc: ["glibc"] } : {}),
  // Not `treering`, which is the command of the main package.
  bin: { [`treering-${platform}-${arch}`]: `bin/${file}` },
  files: ["bin", "LICENSE-APACHE", "LICENSE-MIT", NOTICES, "sbom.cdx.json"],
};

const work = mkdtempSync(join(tmpdir(), "treering-platform-"));
try {
  writeFileSync(join(work, "package.json"), `${JSON.stringify(about, null, 2)}\n`);
  for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) {
    copyFileSync(join(PACKAGE, name), join(work, name));
  }
  copyFileSync(bill, join(work, "sbom.cdx.json"));
  if (notices) copyFileSync(notices, join(work, NOTICES));
  const copy = join(work, "bin", file);
  mkdirSync(dirname(copy));
  copyFileSync(program, copy);
  chmodSync(copy, 0o755);
  // Symbols are most of the file, and only debuggers need them.
  spawnSync("strip", [...(platform === "darwin" ? ["-x"] : []), copy], { stdio: "inherit" });
  execFileSync("npm", ["pack", "--silent", "--pack-destination", resolve(folder)], {
    cwd: work,
    stdio: "inherit",
    shell: platform === "win32",
  });
} finally {
  rmSync(work, { recursive: true, force: true });
}
