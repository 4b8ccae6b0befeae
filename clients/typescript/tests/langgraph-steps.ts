// Puts checkpoints without a graph, for the tests of lookups.

import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import type { RunnableConfig } from "@langchain/core/runnables";
import { emptyCheckpoint } from "@langchain/langgraph";
import { uuid6 } from "@langchain/langgraph-checkpoint";
import type { TreeringSaver } from "../src/langgraph/index.js";
import type { Parsed } from "../src/words.js";

export const CONFIG: RunnableConfig = { configurable: { thread_id: "thread", checkpoint_ns: "" } };

/** Values and options of a checkpoint. */
export interface Step {
  values: Parsed;
  id?: string;
  /** Channels with a new version; unset: all. */
  changed?: ReadonlySet<string>;
}

/** Puts a checkpoint; returns its config. */
export async function put(
  saver: TreeringSaver,
  config: RunnableConfig,
  step: number,
  { values, id = uuid6(step), changed }: Step,
): Promise<RunnableConfig> {
  const channels = Object.keys(values);
  const isNew = (name: string) => !changed || changed.has(name);
  const versions = Object.fromEntries(channels.filter(isNew).map((name) => [name, step + 2]));
  const checkpoint = {
    ...emptyCheckpoint(),
    id,
    channel_values: { ...values },
    channel_versions: { ...Object.fromEntries(channels.map((name) => [name, 1])), ...versions },
  };
  return saver.put(config, checkpoint, { source: "loop", step, parents: {} }, versions);
}

/** The message with this number. */
export const message = (number: number): BaseMessage =>
  new (number % 2 ? AIMessage : HumanMessage)({ content: `Message ${number}`, id: `m${number}` });

/** The channel values of a checkpoint. */
export async function valuesOf(saver: TreeringSaver, config: RunnableConfig): Promise<Parsed> {
  const found = await saver.getTuple(config);
  if (!found) throw new Error("there is no such checkpoint");
  return found.checkpoint.channel_values;
}
