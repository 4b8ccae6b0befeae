// Converts lines of the Claude Agent SDK's transcripts to typed events.

import type { SessionStoreEntry } from "@anthropic-ai/claude-agent-sdk";
import { readBlocks, readMessages } from "../answers.js";
import { type NewEvent, RawEncoding } from "../gen/treering/v1/event.js";
import * as make from "../make.js";
import { textOf } from "../parts.js";
import { type Parsed, utf8 } from "../words.js";

/** Marks a user message that the SDK inserted. */
const META = {
  origin: "claude-code",
  provider: "",
  model: "",
  encoding: RawEncoding.JSON_PATCH,
  data: utf8('[{"op":"add","path":"/isMeta","value":true}]'),
};

/** Whether a line is the summary of a compaction. */
export const isSummary = (entry: SessionStoreEntry): boolean =>
  entry.type === "user" && entry.isCompactSummary === true;

/** Converts a line to events; none if it is not a message. `cut` is where a summary cuts. */
export function typed(entry: SessionStoreEntry, cut: number): NewEvent[] {
  try {
    return events(entry, cut);
  } catch (error) {
    // The line has an unknown shape: only the frame holds it.
    if (error instanceof TypeError) return [];
    throw error;
  }
}

function events(entry: SessionStoreEntry, cut: number): NewEvent[] {
  const message: Parsed = entry.message;
  const isSaid = entry.type === "user" || entry.type === "assistant";
  if (!isSaid || typeof message !== "object" || message === null) return [];
  if (entry.type === "assistant") return answered(message);
  const said = readMessages("anthropic", [message]);
  const [only] = said;
  if (cut && isSummary(entry) && said.length === 1 && only?.body?.$case === "messageAppended") {
    return [make.compacted(textOf(only.body.value.parts), cut, { trigger: "imported" })];
  }
  if (entry.isMeta === true) {
    for (const { body } of said) if (body?.$case === "messageAppended") body.value.raw = META;
  }
  return said;
}

function answered(message: Parsed): NewEvent[] {
  const { content } = message;
  const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content;
  const { parts, calls, ...facts } = readBlocks({ ...message, content: blocks });
  const asked = calls.map(({ id, tool, arguments: given }) => make.toolCall(id, tool, given));
  return parts.length ? [make.assistant(parts, facts), ...asked] : asked;
}
