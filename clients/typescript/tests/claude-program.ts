// A program with an agent of the Claude Agent SDK: ADDRESS FOLDER SESSION RESUME PROMPT. Its tool
// kills it and the SDK's subprocess as soon as the call is stored.

import { createSdkMcpServer, query, tool } from "@anthropic-ai/claude-agent-sdk";
import { z } from "zod";
import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import * as treering from "../src/index.js";
import { all } from "./support.js";

const [address, cwd, session, resume, prompt = ""] = process.argv.slice(2);
const db = treering.connect(address);

const isStored = async (): Promise<boolean> => {
  for (const { conversationId } of await all(db.conversations())) {
    if ((await db.conversation(conversationId).openCalls()).length) return true;
  }
  return false;
};

const weather = tool("weather", "The weather.", { city: z.string() }, async () => {
  // The SDK stores events in the background.
  while (!(await isStored())) await new Promise((resolve) => setTimeout(resolve, 50));
  process.kill(0, "SIGKILL");
  return { content: [] };
});

const options = {
  sessionStore: new TreeringSessionStore(db),
  sessionStoreFlush: "eager" as const,
  ...(resume ? { resume } : { sessionId: session }),
  cwd,
  model: "claude-sonnet-4-5",
  mcpServers: { sky: createSdkMcpServer({ name: "sky", tools: [weather] }) },
  allowedTools: ["mcp__sky__weather"],
  settingSources: [],
};
for await (const message of query({ prompt, options: options as never })) {
  if (message.type === "result" && "result" in message) console.log(message.result);
}
await db.close();
