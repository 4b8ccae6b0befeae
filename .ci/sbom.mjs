// Checks the bill of materials of the npm package against an installation: sbom.mjs FOLDER
//
// It must list exactly the packages that npm installs, each with version and licence.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const read = (...path) => JSON.parse(readFileSync(join(process.argv[2], "node_modules", ...path)));
const bill = read("treering", "sbom.cdx.json");
assert.equal(bill.bomFormat, "CycloneDX");
assert.equal(bill.metadata.component.name, "treering");
assert.equal(bill.metadata.component.version, read("treering", "package.json").version);
for (const { name, version, licenses } of bill.components) {
  assert.ok(version && licenses?.length, `${name} has no version or no licence`);
}
// Compares no versions: npm may install a release newer than the bill.
const installed = Object.keys(read(".package-lock.json").packages)
  .map((path) => path.slice(path.lastIndexOf("node_modules/") + "node_modules/".length))
  .filter((name) => name !== "treering" && !name.startsWith("@treering/"));
const sorted = (names) => [...new Set(names)].sort();
assert.deepEqual(sorted(bill.components.map(({ name }) => name)), sorted(installed));
assert.ok(installed.length > 1);
console.log(`${bill.components.length} packages`);
