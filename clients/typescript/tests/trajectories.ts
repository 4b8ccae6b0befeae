// Recorded conversations of real agents.

import { createReadStream, existsSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import * as zlib from "node:zlib";

const DATA = join(process.env.TREERING_TEST_DATA ?? "../../../shared/data", "trajectories");

/** Paths of the recorded conversations. */
export const FILES = {
  of: (source: string): string => join(DATA, `${source}.jsonl.zst`),
  missing: (source: string) => !existsSync(FILES.of(source)) && "there are no trajectories",
};

/** Decompresses zstd; only in Node 22.15 or later. */
export const unpack = (zlib as { createZstdDecompress?: () => NodeJS.ReadWriteStream })
  .createZstdDecompress;

/** A recorded conversation. */
export interface Trajectory {
  id: string;
  messages: {
    role: "system" | "user" | "assistant" | "tool";
    content?: string | null;
    tool_call_id?: string;
    tool_calls?: { id: string; function: { name: string; arguments: string } }[];
  }[];
}

/** The first `count` conversations of a file. */
export async function* trajectories(file: string, count: number): AsyncGenerator<Trajectory> {
  if (!unpack) return;
  const input = createReadStream(file).pipe(unpack());
  let left = count;
  for await (const line of createInterface({ input })) {
    yield JSON.parse(line);
    left -= 1;
    if (left === 0) return;
  }
}
