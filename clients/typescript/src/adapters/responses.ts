// Arguments and contents in the format of OpenAI's Responses API, which several frameworks use.

import type { ContentPart } from "../gen/treering/v1/event.js";
import { jsonText, laxJsonText } from "../words.js";
import { warnOnce } from "./warning.js";

/** Returns the arguments that a model wrote as text, JSON or not; other values as JSON. */
export function givenArguments(given: unknown): string {
  if (typeof given === "string") return given.toWellFormed();
  try {
    return jsonText(given ?? {});
  } catch {
    warnOnce("arguments that JSON cannot represent are stored as text");
    return laxJsonText(given);
  }
}

/** Returns the text of parts. */
export const said = (parts: readonly ContentPart[]): string =>
  parts
    .map(({ part }) => {
      const isSaid = part?.$case === "text" || part?.$case === "refusal" || part?.$case === "json";
      return isSaid ? part.value : "";
    })
    .join("");
