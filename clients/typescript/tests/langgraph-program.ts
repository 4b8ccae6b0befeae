// A program with an agent, which a test runs and kills: ADDRESS MODEL_URL HOW WHO.

import * as treering from "../src/index.js";
import { TreeringSaver } from "../src/langgraph/index.js";
import { agent, ask, CONFIG } from "./langgraph-graphs.js";

const [address, url = "", how, who] = process.argv.slice(2);
const db = treering.connect(address);
const tools = {
  dies: ({ text }: { text: string }) => {
    if (how === "dies") process.kill(process.pid, "SIGKILL");
    return `lived through ${text}`;
  },
};
const graph = agent(new TreeringSaver(db), url, tools);
if (how === "many") {
  for (let number = 0; number < 12; number += 1) await ask(graph, `${who} ${number}`);
} else {
  const asked = { messages: [{ role: "user", content: 'call dies {"text": "it"}' }] };
  await graph.invoke(how === "dies" ? asked : null, { ...CONFIG, durability: "sync" });
}
await db.close();
