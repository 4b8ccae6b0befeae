// Graphs for the tests of the checkpointer, and functions that compare their histories.

import { AIMessage, type BaseMessage, isBaseMessage, ToolMessage } from "@langchain/core/messages";
import {
  Annotation,
  type BaseCheckpointSaver,
  interrupt,
  MessagesAnnotation,
  START,
  StateGraph,
} from "@langchain/langgraph";
import type { Conversation } from "../src/index.js";
import type { Parsed } from "../src/words.js";
import { all } from "./support.js";

export const CONFIG = { configurable: { thread_id: "thread" } };

export type ToolFunctions = Record<string, (args: Parsed) => string | Promise<string>>;

const usual: ToolFunctions = { weather: ({ city }) => `It rains in ${city}.` };

/** An agent of two nodes: one asks the model over HTTP, one runs its tools. */
export function builder(url: string, tools = usual) {
  const ask = async ({ messages }: typeof MessagesAnnotation.State) => {
    const answered = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      body: JSON.stringify({ model: "gpt-4o", messages: messages.map(inOpenaiShape) }),
    });
    const { message } = ((await answered.json()) as Parsed).choices[0];
    const calls = (message.tool_calls ?? []).map((call: Parsed) => ({
      id: call.id,
      name: call.function.name,
      args: JSON.parse(call.function.arguments),
      type: "tool_call",
    }));
    return { messages: [new AIMessage({ content: message.content, tool_calls: calls })] };
  };
  const act = async ({ messages }: typeof MessagesAnnotation.State) => {
    const calls = (messages.at(-1) as AIMessage).tool_calls ?? [];
    const made = calls.map(async ({ id = "", name, args }) => {
      const content = (await tools[name]?.(args)) ?? "no such tool";
      return new ToolMessage({ content, tool_call_id: id });
    });
    return { messages: await Promise.all(made) };
  };
  const next = ({ messages }: typeof MessagesAnnotation.State) =>
    (messages.at(-1) as AIMessage | undefined)?.tool_calls?.length ? "act" : "__end__";
  return new StateGraph(MessagesAnnotation)
    .addNode("ask", ask)
    .addNode("act", act)
    .addEdge(START, "ask")
    .addConditionalEdges("ask", next, ["act", "__end__"])
    .addEdge("act", "ask");
}

export const agent = (checkpointer: BaseCheckpointSaver, url: string, tools = usual) =>
  builder(url, tools).compile({ checkpointer });

const Said = Annotation.Root({
  said: Annotation<string[]>({ reducer: (a, b) => [...a, ...b], default: () => [] }),
});

/** A graph with an interrupt that waits for an answer. */
export const asking = (checkpointer: BaseCheckpointSaver) =>
  new StateGraph(Said)
    .addNode("ask", () => ({ said: [`you said ${interrupt("what?")}`] }))
    .addNode("then", () => ({ said: ["then"] }))
    .addEdge(START, "ask")
    .addEdge("ask", "then")
    .compile({ checkpointer });

export type AgentGraph = ReturnType<typeof agent>;

function inOpenaiShape(message: BaseMessage): Parsed {
  if (message.type === "tool") {
    const { tool_call_id } = message as ToolMessage;
    return { role: "tool", tool_call_id, content: message.text };
  }
  const role = { human: "user", ai: "assistant" }[message.type as string] ?? message.type;
  return { role, content: message.text };
}

/** Runs one turn; returns the config of its last checkpoint. */
export async function ask(graph: AgentGraph, content: string, config: object = CONFIG) {
  await graph.invoke({ messages: [{ role: "user", content }] }, config);
  return (await graph.getState(CONFIG)).config;
}

/** A value without what differs between runs: ids, times, versions. */
export function told(value: unknown): unknown {
  if (isBaseMessage(value as never)) {
    const { type, content, tool_calls = [] } = value as AIMessage;
    return [type, content, tool_calls.map(({ name, args }) => [name, args])];
  }
  if (Array.isArray(value)) return value.map(told);
  if (value?.constructor !== Object) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, told(each)]));
}

/** A graph with a history. */
interface Told {
  getStateHistory(config: typeof CONFIG): AsyncIterable<Parsed>;
}

/** The history of a thread, newest first, without what differs between runs. */
export async function history(graph: Told, config = CONFIG): Promise<unknown[]> {
  const states = await all(graph.getStateHistory(config));
  return states.map(({ values, next, metadata, tasks, parentConfig }) => [
    told(values),
    next,
    metadata?.source,
    metadata?.step,
    tasks.map((task: Parsed) => [
      task.name,
      task.error !== undefined,
      task.interrupts.map((each: Parsed) => each.value),
    ]),
    parentConfig === undefined,
  ]);
}

/** The texts of messages and results, and the tools of calls, in order. */
export async function said(conv: Conversation): Promise<string[]> {
  const kinds = ["message_appended", "tool_call_requested", "tool_result_recorded"] as const;
  return (await all(conv.events({ kinds }))).map((event) => event.text || event.tool);
}
