// A CommonJS project: its compiler must accept the classes of this package as those of the
// frameworks, and Node must run the compiled program.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { temporary } from "./support.js";

const PACKAGE = resolve(process.cwd());

const PROGRAM = `
import type { Session } from "@openai/agents";
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import * as treering from "treering";
import { chatStore } from "treering/ai";
import { TreeringSaver } from "treering/langgraph";
import { TreeringSession } from "treering/openai-agents";
import { event } from "treering/proto";

async function main(): Promise<void> {
  const db = treering.local("./store");
  const graph = new StateGraph(MessagesAnnotation)
    .addNode("model", async () => ({ messages: [new AIMessage("On 7171.")] }))
    .addEdge(START, "model")
    .compile({ checkpointer: new TreeringSaver(db) });
  const config = { configurable: { thread_id: "thread" } };
  await graph.invoke({ messages: [new HumanMessage("Which port?")] }, config);
  const { messages } = (await graph.getState(config)).values;
  const session: Session = new TreeringSession("session", db);
  await session.addItems([{ role: "user", content: "Hello" }]);
  const items = await session.getItems();
  console.log(messages.length, items.length, event.Role.USER, typeof chatStore);
  await db.close();
}
void main();
`;

// With types for ES modules only, `compile({ checkpointer })` fails with TS2322: LangGraph has
// separate classes for CommonJS.
test("a CommonJS project", () => {
  const folder = temporary();
  mkdirSync(join(folder, "node_modules"));
  symlinkSync(PACKAGE, join(folder, "node_modules", "treering"));
  for (const name of ["@langchain", "@openai", "@types"]) {
    symlinkSync(join(PACKAGE, "node_modules", name), join(folder, "node_modules", name));
  }
  writeFileSync(join(folder, "package.json"), JSON.stringify({ type: "commonjs" }));
  writeFileSync(join(folder, "main.ts"), PROGRAM);
  const options = ["--module", "node16", "--target", "es2022", "--strict", "--skipLibCheck"];
  const lib = ["--lib", "es2023,esnext.disposable", "--types", "node"];
  const tsc = join(PACKAGE, "node_modules", ".bin", "tsc");
  const run = (program: string, ...given: string[]) => {
    const done = spawnSync(program, given, { cwd: folder, encoding: "utf8" });
    assert.equal(done.status, 0, done.stdout + done.stderr);
    return done.stdout;
  };
  run(tsc, ...options, ...lib, "main.ts");
  assert.equal(run(process.execPath, "main.js"), "2 1 3 function\n");
});
