// Finds the `treering` program and runs its commands.

import { execFile } from "node:child_process";
import { accessSync, closeSync, constants, openSync, readSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, dirname, join } from "node:path";
import type { Entry } from "../entry.js";
import { CommandFailed, NoBinary } from "../errors/index.js";
import type { Parsed } from "../words.js";

const NAME = process.platform === "win32" ? "treering.exe" : "treering";

/** Error codes of the system for a program that it cannot run. */
const NOT_RUN = ["ENOENT", "EACCES", "ENOEXEC"];

/** Longest output of a command, in bytes. */
const OUTPUT_BYTES_MAX = 1 << 30;

/** The package that has the program for this machine. */
export const platformPackage = (): string => `@treering/${process.platform}-${process.arch}`;

/** Finds the program: by the given path, TREERING_BINARY, the platform's package, the PATH. */
export function findBinary(named?: string): string {
  const found = named || process.env.TREERING_BINARY || fromPackage() || fromPath();
  if (!found) throw new NoBinary("no treering program found");
  return found;
}

function fromPackage(): string | undefined {
  try {
    const about = createRequire(import.meta.url).resolve(`${platformPackage()}/package.json`);
    const path = join(dirname(about), "bin", NAME);
    return isProgram(path) ? path : undefined;
  } catch {
    return undefined;
  }
}

function fromPath(): string | undefined {
  const folders = (process.env.PATH ?? "").split(delimiter).filter(Boolean);
  return folders
    .map((folder) => join(folder, NAME))
    .find((path) => isProgram(path) && !isScript(path));
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Whether it is a script: the packages' own commands are, and would look for the program again. */
function isScript(path: string): boolean {
  const file = openSync(path, "r");
  try {
    const begin = Buffer.alloc(2);
    readSync(file, begin, 0, 2, 0);
    return begin.toString("latin1") === "#!";
  } finally {
    closeSync(file);
  }
}

/** Runs a `treering` command on a server and returns its parsed lines of JSON. */
export async function runCommand(
  binary: string,
  entry: Entry,
  address: string,
  namespace: string,
  given: readonly string[],
): Promise<Parsed[]> {
  const all = [...given, "--json", "--server", entry.url(address), "--namespace", namespace];
  const env = entry.environment;
  return new Promise((resolve, reject) => {
    const child = execFile(
      binary,
      all,
      { env, maxBuffer: OUTPUT_BYTES_MAX, windowsHide: true },
      (error, stdout, stderr) => {
        if (error) {
          if (NOT_RUN.includes(String(error.code))) {
            reject(new NoBinary(`${binary} cannot be run: ${error.message}`));
            return;
          }
          const code = typeof error.code === "number" ? error.code : -1;
          reject(new CommandFailed(stderr.trim() || error.message, code));
          return;
        }
        resolve(
          stdout
            .split("\n")
            .filter(Boolean)
            .map((line) => JSON.parse(line)),
        );
      },
    );
    child.stdin?.end();
  });
}
