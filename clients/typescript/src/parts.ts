// Parts of messages and results.

import type { ContentPart, Media } from "./gen/treering/v1/event.js";
import { jsonText, laxJsonText, unicode, utf8 } from "./words.js";

/** Text, or a part from `image`, `file`, `audio`, `reasoning`, `refusal` or `json`. */
export type Part = string | ContentPart;

/** One part or several. */
export type Content = Part | readonly Part[];

/** Output of a tool: content, or an object, which is recorded as JSON text. */
export type Output = Content | Readonly<Record<string, unknown>>;

/** Converts the output of a tool to parts. */
export function outputs(output: Output): ContentPart[] {
  const isContent = typeof output !== "object" || output === null || Array.isArray(output);
  if (isContent || isPart(output)) return parts(output as Content);
  return [text(laxJsonText(output))];
}

const isPart = (given: object): given is ContentPart =>
  "part" in given &&
  (given.part === undefined || (given.part as { $case?: unknown } | null)?.$case !== undefined);

/** Converts texts and parts to parts. */
export function parts(content: Content): ContentPart[] {
  const all: readonly unknown[] = Array.isArray(content) ? content : [content];
  return all.map((part) => {
    if (typeof part === "string") return text(part);
    if (typeof part === "object" && part !== null && "part" in part) return part as ContentPart;
    const given = part === null ? "null" : typeof part;
    throw new TypeError(`a part is a string or a result of \`make.image\` and so on, not ${given}`);
  });
}

/** A text. */
export const text = (value: string): ContentPart => ({ part: { $case: "text", value } });

/** Options of an image, file or audio. */
export interface MediaOptions {
  /** For example `image/png`. */
  mediaType?: string | undefined;
  name?: string | undefined;
  /** The provider's hint: "low", "high". */
  detail?: string | undefined;
}

function media(source: Uint8Array | URL | string, options: MediaOptions): Media {
  return {
    mediaType: options.mediaType ?? "",
    source:
      source instanceof Uint8Array
        ? { $case: "data", value: source }
        : { $case: "uri", value: String(source) },
    name: options.name ?? "",
    detail: options.detail ?? "",
  };
}

/** An image: bytes or a URL. */
export const image = (
  source: Uint8Array | URL | string,
  options: MediaOptions = {},
): ContentPart => ({
  part: { $case: "image", value: media(source, options) },
});

/** A file: bytes or a URL. */
export const file = (
  source: Uint8Array | URL | string,
  options: MediaOptions = {},
): ContentPart => ({
  part: { $case: "file", value: media(source, options) },
});

/** Audio: bytes or a URL. */
export const audio = (
  source: Uint8Array | URL | string,
  options: MediaOptions = {},
): ContentPart => ({
  part: { $case: "audio", value: media(source, options) },
});

/** Options of reasoning. */
export interface ReasoningOptions {
  /** Opaque; sent back unmodified. */
  signature?: Uint8Array | string | undefined;
  /** The provider sent it encrypted: only `signature` is known. */
  redacted?: boolean | undefined;
  provider?: string | undefined;
  model?: string | undefined;
  id?: string | undefined;
}

/** Reasoning of a model. Requests send it only to the same provider and model family. */
export function reasoning(text: string, options: ReasoningOptions = {}): ContentPart {
  const { signature = "" } = options;
  const value = {
    text,
    signature: typeof signature === "string" ? utf8(unicode(signature)) : signature,
    redacted: options.redacted ?? false,
    provider: options.provider ?? "",
    model: options.model ?? "",
    id: options.id ?? "",
  };
  return { part: { $case: "reasoning", value } };
}

/** A refusal of a model. */
export const refusal = (text: string): ContentPart => ({ part: { $case: "refusal", value: text } });

/** A part that is JSON. */
export const json = (value: unknown): ContentPart => ({
  part: { $case: "json", value: jsonText(value) },
});

/** Returns the texts of parts, joined. */
export const textOf = (all: readonly ContentPart[]): string =>
  all.map(({ part }) => (part?.$case === "text" ? part.value : "")).join("");
