// Writes sbom.cdx.json: the packages that the client needs when it runs. `npm pack` calls this.
//
// npm lists a separate installation, because `npm sbom --omit dev` leaves out packages that a
// development dependency needs too (here the runtime of Protocol Buffers).

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const { name, version, description, license, dependencies } = JSON.parse(
  readFileSync(join(PACKAGE, "package.json"), "utf8"),
);

const work = mkdtempSync(join(tmpdir(), "treering-sbom-"));
try {
  // npm names a project after its folder.
  const folder = join(work, name);
  mkdirSync(folder);
  const about = { name, version, description, license, dependencies };
  writeFileSync(join(folder, "package.json"), JSON.stringify(about));
  copyFileSync(join(PACKAGE, ".npmrc"), join(folder, ".npmrc"));
  const npm = (...given) =>
    execFileSync("npm", given, {
      cwd: folder,
      encoding: "utf8",
      shell: process.platform === "win32",
    });
  npm("install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund");
  writeFileSync(join(PACKAGE, "sbom.cdx.json"), npm("sbom", "--sbom-format", "cyclonedx"));
} finally {
  rmSync(work, { recursive: true, force: true });
}
