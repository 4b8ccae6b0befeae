// A program with an agent, which a test runs and kills: ADDRESS MODEL_URL PROMPT; or one that adds
// items to a session and pops some, at the same time as another: ADDRESS add WHO.

import * as treering from "../src/index.js";
import { TreeringSession } from "../src/openai-agents/index.js";
import { agent, runner } from "./openai-agent.js";
import { asked } from "./openai-items.js";

const [address, url = "", prompt = ""] = process.argv.slice(2);
const db = treering.connect(address);
const session = new TreeringSession("s", db);
if (url === "add") {
  const taken: unknown[] = [];
  for (let number = 0; number < 30; number += 1) {
    await session.addItems([asked(`${prompt} ${number}`)]);
    if (number % 3 === 2) taken.push(await session.popItem());
  }
  console.log(JSON.stringify(taken));
} else {
  const deadly = agent(() => {
    process.kill(process.pid, "SIGKILL");
    return "";
  });
  const { finalOutput } = await runner(url).run(deadly, prompt, { session });
  console.log(finalOutput);
}
await db.close();
