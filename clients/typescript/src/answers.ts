// What a provider answered, and lists of messages in its shape, as events.

import type { ContentPart, NewEvent, Usage } from "./gen/treering/v1/event.js";
import * as make from "./make.js";
import { text } from "./parts.js";
import type { Parsed, ProviderName } from "./words.js";

/** A call that an answer asks for. */
export interface AskedCall {
  /** The provider's id; one is made where there is none. */
  id?: string | undefined;
  tool: string;
  /** A string or bytes are kept as they are. */
  arguments?: unknown;
  /** The provider's id of the item beside the call's. */
  itemId?: string | undefined;
}

/** An answer of a model. */
export interface AnswerParts {
  parts: ContentPart[];
  calls: (AskedCall & { id: string })[];
  usage: Usage | undefined;
  messageId: string;
  finishReason: string;
}

const empty = (): AnswerParts => ({
  parts: [],
  calls: [],
  usage: undefined,
  messageId: "",
  finishReason: "",
});

type Reader<T> = (body: Parsed) => T;

function readerOf<T>(readers: Record<string, Reader<T>>, provider: string): Reader<T> {
  const reader = readers[provider];
  if (!reader) throw new TypeError(`\`${provider}\` is none of ${Object.keys(readers).join(", ")}`);
  return reader;
}

/** An answer in the provider's own shape. */
export function readAnswer(provider: ProviderName, response: unknown): AnswerParts {
  const readers = {
    anthropic,
    "openai-chat": openaiChat,
    "openai-responses": openaiResponses,
    gemini,
  };
  const reader = readerOf<AnswerParts>(readers, provider);
  mustBeAnswer(provider, response);
  return reader(response);
}

/** The list that an answer of each provider has. */
const LISTS: Partial<Record<ProviderName, string>> = {
  anthropic: "content",
  "openai-chat": "choices",
  "openai-responses": "output",
  gemini: "candidates",
};

/** What was no answer would be a model that said nothing. */
function mustBeAnswer(provider: ProviderName, response: Parsed): void {
  const no = (why: string) => new TypeError(`this is no answer of ${provider}: ${why}`);
  if (typeof response !== "object" || response === null) {
    throw no(`it is ${response === null ? "null" : typeof response}`);
  }
  const name = LISTS[provider] ?? "";
  const { [name]: list, error } = response;
  if (error && (!Array.isArray(list) || !list.length)) throw no("it is an error");
  const mayBeEmpty = provider === "anthropic" || provider === "openai-responses";
  if (!Array.isArray(list) || !(list.length || mayBeEmpty)) {
    const has = Object.keys(response).join(", ") || "nothing";
    throw no(`it has no list \`${name}\`, but ${has}`);
  }
  const strange = list.findIndex((each) => typeof each !== "object" || each === null);
  if (strange >= 0) throw no(`\`${name}.${strange}\` is ${typeof list[strange]}`);
  if (provider === "openai-chat" && typeof list[0].message !== "object") {
    throw no("its choice has no `message`: of a stream, put the pieces together first");
  }
  if (provider !== "anthropic") return;
  for (const [index, block] of list.entries()) {
    if (block.type !== "tool_use") continue;
    const lacking = ["id", "name"].find((field) => typeof block[field] !== "string");
    if (lacking) throw no(`\`content.${index}\` is a call whose \`${lacking}\` is missing`);
  }
}

/** An answer in Anthropic's shape, whatever of it is odd. */
export const readBlocks = (body: unknown): AnswerParts => anthropic(body);

function anthropic(body: Parsed): AnswerParts {
  const answer = empty();
  const model: string = body.model ?? "";
  answer.messageId = body.id ?? "";
  answer.finishReason = body.stop_reason ?? "";
  for (const block of body.content ?? []) {
    if (block.type === "tool_use") {
      answer.calls.push({ id: block.id, tool: block.name, arguments: block.input ?? {} });
    } else {
      answer.parts.push(anthropicBlock(block, model));
    }
  }
  const used = body.usage;
  if (used) {
    answer.usage = make.usage({
      input: used.input_tokens,
      output: used.output_tokens,
      cacheRead: used.cache_read_input_tokens ?? 0,
      cacheCreation: used.cache_creation_input_tokens ?? 0,
      model,
    });
  }
  return answer;
}

function anthropicBlock(block: Parsed, model: string): ContentPart {
  const from = { provider: "anthropic", model };
  switch (block.type) {
    case "text":
      return text(block.text);
    case "thinking":
      return make.reasoning(block.thinking ?? "", { ...from, signature: block.signature });
    case "redacted_thinking":
      return make.reasoning("", { ...from, signature: block.data, redacted: true });
    default:
      return make.json(block);
  }
}

function openaiChat(body: Parsed): AnswerParts {
  const answer = empty();
  const choice = body.choices?.[0] ?? {};
  const message = choice.message ?? {};
  answer.messageId = body.id ?? "";
  answer.finishReason = choice.finish_reason ?? "";
  if (message.content) answer.parts.push(text(message.content));
  if (message.refusal) answer.parts.push(make.refusal(message.refusal));
  for (const call of message.tool_calls ?? []) {
    const { name, arguments: args } = call.function ?? {};
    answer.calls.push({ id: call.id, tool: name, arguments: args || "{}" });
  }
  if (body.usage) {
    answer.usage = openaiUsage(body.usage, "prompt_tokens", "completion_tokens", body.model);
  }
  return answer;
}

function openaiResponses(body: Parsed): AnswerParts {
  const answer = empty();
  const model: string = body.model ?? "";
  answer.finishReason = body.status ?? "";
  for (const item of body.output ?? []) {
    if (item.type === "message") {
      answer.messageId = item.id ?? "";
      for (const part of item.content ?? []) {
        const isRefusal = part.type === "refusal";
        answer.parts.push(isRefusal ? make.refusal(part.refusal ?? "") : text(part.text ?? ""));
      }
    } else if (item.type === "reasoning") {
      const thought = (item.summary ?? []).map((part: Parsed) => part.text ?? "").join("\n");
      const { encrypted_content: signature, id } = item;
      answer.parts.push(make.reasoning(thought, { signature, id, model, provider: "openai" }));
    } else if (item.type === "function_call") {
      const { call_id: id, id: itemId, name: tool } = item;
      answer.calls.push({ id, tool, arguments: item.arguments || "{}", itemId });
    } else {
      answer.parts.push(make.json(item));
    }
  }
  if (body.usage) answer.usage = openaiUsage(body.usage, "input_tokens", "output_tokens", model);
  return answer;
}

function openaiUsage(used: Parsed, sent: string, got: string, model: string | undefined): Usage {
  return make.usage({
    input: used[sent],
    output: used[got],
    cacheRead: used[`${sent}_details`]?.cached_tokens ?? 0,
    reasoning: used[`${got}_details`]?.reasoning_tokens ?? 0,
    model,
  });
}

function gemini(body: Parsed): AnswerParts {
  const answer = empty();
  const model: string = body.modelVersion ?? "";
  const candidate = body.candidates?.[0] ?? {};
  answer.messageId = body.responseId ?? "";
  answer.finishReason = String(candidate.finishReason ?? "");
  for (const [index, part] of (candidate.content?.parts ?? []).entries()) {
    const signature = part.thoughtSignature;
    if (part.thought || signature) {
      const thought = part.thought ? (part.text ?? "") : "";
      answer.parts.push(make.reasoning(thought, { signature, provider: "google", model }));
    }
    if (part.text && !part.thought) answer.parts.push(text(part.text));
    const call = part.functionCall;
    if (call) {
      // Gemini gives no ids: the place in the answer tells them apart.
      const id = call.id || `${answer.messageId || "call"}_${index}`;
      answer.calls.push({ id, tool: call.name, arguments: call.args ?? {} });
    }
  }
  const used = body.usageMetadata;
  if (used) {
    answer.usage = make.usage({
      input: used.promptTokenCount,
      output: used.candidatesTokenCount,
      cacheRead: used.cachedContentTokenCount,
      reasoning: used.thoughtsTokenCount,
      model,
    });
  }
  return answer;
}

/** A list of messages in the provider's own shape as events. */
export function readMessages(provider: ProviderName, history: Iterable<unknown>): NewEvent[] {
  const readers = { "openai-chat": chatMessage, anthropic: anthropicMessage };
  const reader = readerOf<NewEvent[]>(readers, provider);
  return [...history].flatMap((message, index) => {
    mustBeMessage(provider, message, index);
    return reader(message);
  });
}

function mustBeMessage(provider: ProviderName, message: Parsed, index: number): void {
  const isObject = typeof message === "object" && message !== null;
  const hasContent =
    provider !== "anthropic" ||
    typeof message?.content === "string" ||
    Array.isArray(message?.content);
  if (isObject && typeof message.role === "string" && hasContent) return;
  const lacks = isObject && typeof message.role === "string" ? "content" : "role";
  throw new TypeError(`messages.${index} is none of ${provider}: it has no \`${lacks}\``);
}

function chatMessage(message: Parsed): NewEvent[] {
  const { role } = message;
  const content = chatContent(message.content);
  if (role === "tool" || role === "function") {
    return [make.toolResult(message.tool_call_id ?? "", content)];
  }
  if (role !== "assistant") return [make.message(role, content, { author: message.name })];
  const answer = openaiChat({ choices: [{ message: { ...message, content: null } }] });
  return eventsOf({ ...answer, parts: [...content, ...answer.parts] });
}

function chatContent(content: Parsed): ContentPart[] {
  if (!content) return [];
  if (typeof content === "string") return [text(content)];
  return content.map((part: Parsed) => {
    if (part.type === "text") return text(part.text);
    if (part.type !== "image_url") return make.json(part);
    return make.image(part.image_url.url, { detail: part.image_url.detail });
  });
}

function anthropicMessage(message: Parsed): NewEvent[] {
  const { content, role } = message;
  const blocks: Parsed[] =
    typeof content === "string" ? [{ type: "text", text: content }] : content;
  if (role === "assistant") return eventsOf(anthropic({ content: blocks }));
  const events = blocks
    .filter((block) => block.type === "tool_result")
    .map((block) =>
      make.toolResult(block.tool_use_id, anthropicContent(block.content), {
        success: !block.is_error,
      }),
    );
  const said = blocks.filter((block) => block.type !== "tool_result");
  if (said.length) events.push(make.message(role, anthropicContent(said)));
  return events;
}

function anthropicContent(content: Parsed): ContentPart[] {
  if (!content) return [];
  if (typeof content === "string") return [text(content)];
  return content.map((block: Parsed) => {
    const { source } = block;
    if (block.type === "text") return text(block.text);
    if (block.type === "image" && source?.type === "base64") {
      return make.image(Buffer.from(source.data, "base64"), { mediaType: source.media_type });
    }
    if (block.type === "image" && source?.type === "url") return make.image(source.url);
    return make.json(block);
  });
}

/** An answer as a message, if it says anything, and its calls. */
function eventsOf(answer: AnswerParts): NewEvent[] {
  const calls = answer.calls.map(({ id, tool, arguments: args, itemId }) =>
    make.toolCall(id, tool, args, { itemId }),
  );
  return answer.parts.length ? [make.assistant(answer.parts), ...calls] : calls;
}
