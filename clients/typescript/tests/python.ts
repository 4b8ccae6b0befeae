// Runs programs with the Python client, if TREERING_PYTHON names an interpreter that has its
// packages.

import { execFile } from "node:child_process";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import type { Parsed } from "../src/words.js";

const python = process.env.TREERING_PYTHON ?? "";
const root = process.env.TREERING_ROOT ?? "../..";

/** Why tests with Python are skipped; false: they are not. */
export const skip = python === "" && "TREERING_PYTHON names no Python";

/** Runs a script of `tests/python`; returns its output, parsed as JSON. */
export async function inPython(script: string, ...given: string[]): Promise<Parsed> {
  const env = {
    ...process.env,
    PYTHONPATH: resolve(root, "clients", "python", "src"),
    PYTHONDONTWRITEBYTECODE: "1",
    LANGSMITH_TRACING: "false",
  };
  const file = join("tests", "python", script);
  const { stdout } = await promisify(execFile)(python, [file, ...given], {
    env,
    maxBuffer: 1 << 26,
  });
  return JSON.parse(stdout);
}
