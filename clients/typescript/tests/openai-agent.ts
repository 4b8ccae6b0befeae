// An agent of the OpenAI Agents SDK, for its tests.

import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";
import { z } from "zod";

type Weather = (city: string) => string | Promise<string>;

const rains: Weather = (city) => `It rains in ${city}.`;

export const agent = (weather = rains) =>
  new Agent({
    name: "Helper",
    instructions: "Be brief.",
    model: "gpt-4o",
    tools: [
      tool({
        name: "weather",
        description: "The weather.",
        parameters: z.object({ city: z.string() }),
        execute: ({ city }) => weather(city),
      }),
    ],
  });

/** Runs agents with the model at this address. */
export const runner = (url: string): Runner => {
  const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none" });
  return new Runner({ modelProvider, tracingDisabled: true });
};
