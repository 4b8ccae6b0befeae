// A program that writes to a session at the same time as another: ADDRESS NAME.

import { TreeringSessionStore } from "../src/claude-agent-sdk/index.js";
import * as treering from "../src/index.js";
import { KEY } from "./claude-lines.js";

const [address, name = ""] = process.argv.slice(2);
await using db = treering.connect(address);
const store = new TreeringSessionStore(db);
for (let number = 0; number < 40; number += 1) {
  const entries = [name, "both"].map((who) => ({
    type: "user",
    uuid: `${who}-${number}`,
    message: { role: "user", content: `${who} says ${number}` },
  }));
  await store.append(KEY, entries);
}
