// What OpenAI's Responses API, and what speaks its words, says of calls and contents.

import type { ContentPart } from "../gen/treering/v1/event.js";
import { jsonText, laxJsonText } from "../words.js";
import { warnOnce } from "./warning.js";

/** Arguments as the model wrote them, be they JSON or not; a value as JSON, as far as it has it. */
export function givenArguments(given: unknown): string {
  if (typeof given === "string") return given.toWellFormed();
  try {
    return jsonText(given ?? {});
  } catch {
    warnOnce("arguments that JSON cannot represent are stored as text");
    return laxJsonText(given);
  }
}

/** The text of parts. */
export const said = (parts: readonly ContentPart[]): string =>
  parts
    .map(({ part }) => {
      const isSaid = part?.$case === "text" || part?.$case === "refusal" || part?.$case === "json";
      return isSaid ? part.value : "";
    })
    .join("");
