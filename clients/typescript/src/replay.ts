// Replay: runs an agent again with the recorded results of its tools.

import { NotRecorded } from "./errors/index.js";
import type { ToolResultRecorded } from "./gen/treering/v1/event.js";
import { textOf } from "./parts.js";
import { jsonText } from "./words.js";

/** The method of a conversation that its replays use. */
export interface ReplayHost {
  recorded(
    tool: string,
    args: unknown,
    occurrence: number,
  ): Promise<ToolResultRecorded | undefined>;
}

/**
 * Answers tool calls with recorded results.
 *
 * The n-th call of a tool with the same arguments gets the n-th recorded result. A call that was
 * not recorded throws `NotRecorded`.
 */
export class Replay {
  readonly #host: ReplayHost;
  readonly #asked = new Map<string, number>();
  /** Calls that were not recorded. */
  readonly missed: { tool: string; arguments: unknown }[] = [];

  constructor(host: ReplayHost) {
    this.#host = host;
  }

  /** Returns the recorded result event. */
  async result(tool: string, args: unknown = {}): Promise<ToolResultRecorded> {
    const asked = jsonText([tool, ordered(args)]);
    const times = (this.#asked.get(asked) ?? 0) + 1;
    this.#asked.set(asked, times);
    const found = await this.#host.recorded(tool, args, times);
    if (!found) {
      this.missed.push({ tool, arguments: args });
      throw new NotRecorded(`${tool} has no recorded call number ${times} with these arguments`);
    }
    return found;
  }

  /** Returns the text of the recorded result. */
  async call(tool: string, args: unknown = {}): Promise<string> {
    return textOf((await this.result(tool, args)).parts);
  }
}

function ordered(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(ordered);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, inner]) => [key, ordered(inner)]));
}
