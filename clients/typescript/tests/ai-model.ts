// A scripted model for `ai`, its tools, and a turn of a chat on a server.

import {
  convertToModelMessages,
  createUIMessageStream,
  simulateReadableStream,
  stepCountIs,
  streamText,
  tool,
  type UIMessage,
} from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { z } from "zod";
import type { ChatStore } from "../src/ai/index.js";

const usage = {
  inputTokens: { total: 3, noCache: 3, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: 10, text: 10, reasoning: undefined },
};

/** Returns the model's answer, by the number of results since the last user message. */
export type Script = (results: number) => { text?: string; call?: { tool: string; input: object } };

/** A model that answers as the script says. */
export function scripted(script: Script): MockLanguageModelV3 {
  const answer = (prompt: { role: string; content: unknown }[]) => {
    const asked = prompt.findLastIndex(({ role }) => role === "user");
    const since = prompt.slice(asked + 1).filter(({ role }) => role === "tool");
    const results = since.flatMap(({ content }) =>
      (content as { type: string }[]).filter(({ type }) => type === "tool-result"),
    ).length;
    return { ...script(results), id: `call_${asked}_${results}` };
  };
  return new MockLanguageModelV3({
    doGenerate: async ({ prompt }) => {
      const { text, call, id } = answer(prompt);
      return {
        content: [
          ...(text ? [{ type: "text" as const, text }] : []),
          ...(call ? [{ type: "tool-call" as const, ...callOf(id, call) }] : []),
        ],
        finishReason: { unified: call ? "tool-calls" : "stop", raw: undefined },
        usage,
        warnings: [],
      };
    },
    doStream: async ({ prompt }) => {
      const { text, call, id } = answer(prompt);
      const words = text?.split(/(?<= )/) ?? [];
      return {
        stream: simulateReadableStream({
          chunks: [
            ...(text ? [{ type: "text-start" as const, id: "t" }] : []),
            ...words.map((delta) => ({ type: "text-delta" as const, id: "t", delta })),
            ...(text ? [{ type: "text-end" as const, id: "t" }] : []),
            ...(call ? [{ type: "tool-call" as const, ...callOf(id, call) }] : []),
            {
              type: "finish" as const,
              finishReason: {
                unified: call ? ("tool-calls" as const) : ("stop" as const),
                raw: undefined,
              },
              usage,
            },
          ],
        }),
      };
    },
  });
}

const callOf = (toolCallId: string, call: { tool: string; input: object }) => ({
  toolCallId,
  toolName: call.tool,
  input: JSON.stringify(call.input),
});

/** Log of the tool calls that ran. */
export const done: string[] = [];

export const tools = {
  grep: tool({
    description: "Looks for a pattern",
    inputSchema: z.object({ pattern: z.string() }),
    execute: async ({ pattern }) => {
      done.push(`grep ${pattern}`);
      return { file: "config.py", line: 12, text: `${pattern} = 7171` };
    },
  }),
  rm: tool({
    description: "Removes a file",
    inputSchema: z.object({ path: z.string() }),
    needsApproval: true,
    execute: async ({ path }) => {
      done.push(`rm ${path}`);
      return `${path} is gone`;
    },
  }),
  count: tool({
    description: "Counts",
    inputSchema: z.object({ n: z.number() }),
    execute: async ({ n }) => {
      await new Promise((resolve) => setTimeout(resolve, 40));
      return `counted ${n}`;
    },
  }),
};

/** Runs one answer of the model, and saves the chat at the end of each step. */
export async function turn(
  chats: ChatStore,
  chatId: string,
  model: MockLanguageModelV3,
  asked?: UIMessage,
): Promise<UIMessage[]> {
  const messages = [...(await chats.loadChat(chatId)), ...(asked ? [asked] : [])];
  if (asked) await chats.saveChat({ chatId, messages });
  const result = streamText({
    model,
    tools,
    messages: await convertToModelMessages(messages, { tools }),
    stopWhen: stepCountIs(10),
    onError: ({ error }) => {
      throw error;
    },
  });
  const save = ({ messages }: { messages: UIMessage[] }) => chats.saveChat({ chatId, messages });
  const stream = createUIMessageStream({
    originalMessages: messages,
    generateId: () => crypto.randomUUID(),
    execute: ({ writer }) => writer.merge(result.toUIMessageStream()),
    onStepFinish: save,
    onFinish: save,
  });
  for await (const _ of stream) {
    // A server would send it to the browser.
  }
  return chats.loadChat(chatId);
}

/** A user message. */
export const asks = (text: string, id: string = crypto.randomUUID()): UIMessage => ({
  id,
  role: "user",
  parts: [{ type: "text", text }],
});
