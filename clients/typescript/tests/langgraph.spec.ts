// LangGraph's whole test suite for checkpointers, for Vitest: `langgraph.test` runs it.

import { randomUUID } from "node:crypto";
import {
  type CheckpointSaverTestInitializer,
  deltaChannelHistoryTests,
  validate,
} from "@langchain/langgraph-checkpoint-validation";
import * as treering from "../src/index.js";
import { TreeringSaver } from "../src/langgraph/index.js";

const folder = process.env.TREERING_SUITE_STORE ?? "";
const open: treering.Treering[] = [];

const initializer: CheckpointSaverTestInitializer<TreeringSaver> = {
  checkpointerName: "TreeringSaver",
  createCheckpointer: () => {
    const db = treering.local(folder, { namespace: `suite-${randomUUID()}` });
    open.push(db);
    return new TreeringSaver(db);
  },
  afterAll: async () => {
    for (const db of open.splice(0)) await db.close();
  },
};

validate(initializer);
deltaChannelHistoryTests(initializer);
