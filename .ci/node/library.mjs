// Builds the request that the `ai` package and its providers would send. Sends
// nothing: a replaced `fetch` keeps the body and returns a canned answer.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";

// The library warns about every reasoning block or metadata that it drops.
globalThis.AI_SDK_LOG_WARNINGS = false;

/** Models that support system prompts and tools. */
export const MODELS = {
  "openai-chat": "gpt-4o",
  "openai-responses": "gpt-4o",
  anthropic: "claude-sonnet-4-5",
  gemini: "gemini-2.5-flash",
};

const ANSWERS = {
  "openai-chat": {
    id: "chat_1",
    object: "chat.completion",
    created: 0,
    model: MODELS["openai-chat"],
    choices: [{ index: 0, message: { role: "assistant", content: "ok" }, finish_reason: "stop" }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  },
  "openai-responses": {
    id: "resp_1",
    object: "response",
    created_at: 0,
    model: MODELS["openai-responses"],
    status: "completed",
    output: [
      {
        type: "message",
        id: "msg_1",
        role: "assistant",
        status: "completed",
        content: [{ type: "output_text", text: "ok", annotations: [] }],
      },
    ],
    usage: { input_tokens: 1, output_tokens: 1 },
  },
  anthropic: {
    id: "msg_1",
    type: "message",
    role: "assistant",
    model: MODELS.anthropic,
    content: [{ type: "text", text: "ok" }],
    stop_reason: "end_turn",
    stop_sequence: null,
    usage: { input_tokens: 1, output_tokens: 1 },
  },
  gemini: {
    candidates: [{ content: { role: "model", parts: [{ text: "ok" }] }, finishReason: "STOP" }],
    usageMetadata: { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 },
  },
};

/** The body that the library sends for a prompt. */
export async function requestOf(provider, prompt) {
  let body;
  const fetch = async (_, { body: sent }) => {
    body = JSON.parse(sent);
    const headers = { "content-type": "application/json" };
    return new Response(JSON.stringify(ANSWERS[provider]), { status: 200, headers });
  };
  await generateText({ model: modelOf(provider, fetch), maxRetries: 0, ...prompt });
  return body;
}

function modelOf(provider, fetch) {
  const settings = { apiKey: "none", fetch };
  const id = MODELS[provider];
  if (provider === "openai-chat") return createOpenAI(settings).chat(id);
  if (provider === "openai-responses") return createOpenAI(settings).responses(id);
  if (provider === "anthropic") return createAnthropic(settings)(id);
  return createGoogleGenerativeAI(settings)(id);
}
