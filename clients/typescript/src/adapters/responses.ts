// What OpenAI's Responses API, and what speaks its words, says of calls and contents.

import type { ContentPart } from "../gen/treering/v1/event.js";
import { jsonText } from "../words.js";

/** Arguments as the model wrote them, be they JSON or not; a value as JSON. */
export const givenArguments = (given: unknown): string =>
  typeof given === "string" ? given : jsonText(given ?? {});

/** The text of parts. */
export const said = (parts: readonly ContentPart[]): string =>
  parts
    .map(({ part }) => {
      const isSaid = part?.$case === "text" || part?.$case === "refusal" || part?.$case === "json";
      return isSaid ? part.value : "";
    })
    .join("");
