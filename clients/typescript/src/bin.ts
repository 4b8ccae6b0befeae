#!/usr/bin/env node
// The `treering` command: finds the native program, usually in the platform package, and runs it.

import { spawn } from "node:child_process";
import { constants } from "node:os";
import { NoBinary } from "./errors/index.js";
import { findBinary } from "./local/binary.js";

try {
  const child = spawn(findBinary(), process.argv.slice(2), { stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => child.kill(signal));
  child.once("error", (error) => {
    console.error(error.message);
    process.exitCode = 1;
  });
  child.once("exit", (code, signal) => {
    process.exitCode = code ?? 128 + (signal ? constants.signals[signal] : 0);
  });
} catch (error) {
  if (!(error instanceof NoBinary)) throw error;
  console.error(String(error));
  process.exitCode = 1;
}
