// Compiles `src`: `npm run build`. `dist` has ES modules, `dist/cjs` the same for `require`.
//
// Types are compiled for CommonJS too. Frameworks have separate types for CommonJS, and a class
// that extends a class of an ES module does not fit these.

import { spawnSync } from "node:child_process";
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const COMMONJS = JSON.stringify({ type: "commonjs" });

function compile(folder, config) {
  const tsc = join(PACKAGE, "node_modules", ".bin", "tsc");
  const { status } = spawnSync(tsc, ["-p", config], { cwd: folder, stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
}

rmSync(join(PACKAGE, "dist"), { recursive: true, force: true });
compile(PACKAGE, "tsconfig.build.json");

// In the package's folder, so that its dependencies are found.
const work = mkdtempSync(join(PACKAGE, ".cjs-"));
process.on("exit", () => rmSync(work, { recursive: true, force: true }));
cpSync(join(PACKAGE, "src"), join(work, "src"), { recursive: true });
rmSync(join(work, "src", "bin.ts"));
for (const name of readdirSync(join(work, "src"), { recursive: true })) {
  const file = join(work, "src", name);
  if (!name.endsWith(".ts")) continue;
  const text = readFileSync(file, "utf8");
  // CommonJS has `__filename` instead.
  if (text.includes("import.meta.url")) {
    writeFileSync(file, text.replaceAll("import.meta.url", "__filename"));
  }
}
writeFileSync(join(work, "package.json"), COMMONJS);
const compilerOptions = {
  rootDir: "src",
  outDir: join(PACKAGE, "dist", "cjs"),
  verbatimModuleSyntax: false,
};
writeFileSync(
  join(work, "tsconfig.json"),
  JSON.stringify({ extends: "../tsconfig.json", compilerOptions, include: ["src"] }),
);
mkdirSync(compilerOptions.outDir, { recursive: true });
compile(work, "tsconfig.json");
writeFileSync(join(compilerOptions.outDir, "package.json"), COMMONJS);
