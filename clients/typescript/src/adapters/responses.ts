// What OpenAI's Responses API, and what speaks its words, says of calls and contents.

import type { ContentPart } from "../gen/treering/v1/event.js";
import { jsonText } from "../words.js";

/** Arguments as JSON text, as they are where they are JSON; all else is put into an object. */
export function givenArguments(given: unknown): string {
  if (typeof given !== "string") return jsonText(given ?? {});
  try {
    JSON.parse(given);
    return given;
  } catch {
    return jsonText({ raw: given });
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
