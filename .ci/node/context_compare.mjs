// Compares the requests that Treering builds with those of another library.
//
//     node context_compare.mjs ADDRESS TRAJECTORIES.jsonl [--all | --sample=N]
//     node context_compare.mjs --prove        (only the self test)
//
// For recorded conversations (every k-th of each source; `--all`: all of them) the
// `ai` package with its OpenAI, Anthropic and Google providers builds a request
// from the recorded lines, and Treering builds one from the imported conversation.
// Both must have the same meaning (see meaning.mjs), at the head and at a cut near
// the middle. Counts the histories that the library refuses.
//
// Exits with 1 on a difference and prints where it begins.

import assert from "node:assert/strict";
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { cuts, modelMessages, usable } from "./history.mjs";
import { MODELS, requestOf } from "./library.mjs";
import { meaning } from "./meaning.mjs";
import { Server } from "./server.mjs";
import { EVENTS, PROMPT } from "./story.mjs";

// Maximum number of conversations of each source in the sample.
const SAMPLE = 40;

// Differences to print for each provider; all are counted.
const SHOWN = 5;

// Conversations compared at the same time, to use more than one core of the server.
const AT_ONCE = 4;

/** Every k-th line of each source of the file, so that there are at most `size`. */
async function* chosen(file, size) {
  const bySource = new Map();
  for await (const line of createInterface({ input: createReadStream(file) })) {
    if (!line.trim()) continue;
    const { source } = JSON.parse(line);
    if (!bySource.has(source)) bySource.set(source, []);
    bySource.get(source).push(line);
  }
  for (const lines of bySource.values()) {
    const step = Math.max(1, Math.ceil(lines.length / size));
    for (let at = 0; at < lines.length; at += step) yield JSON.parse(lines[at]);
  }
}

class Report {
  messages = { compared: 0, all: 0 };
  same = new Map();
  skipped = new Map();
  different = new Map();

  count(counts, what) {
    counts.set(what, (counts.get(what) ?? 0) + 1);
  }

  differs(provider, where, one, other) {
    const found = this.different.get(provider) ?? [];
    this.different.set(provider, [...found, { where, one, other }]);
  }

  print() {
    const { compared, all } = this.messages;
    console.log(`${compared} of ${all} messages of the sample are in a compared request`);
    for (const [what, count] of [...this.same].sort())
      console.log(`same meaning  ${String(count).padStart(6)}  ${what}`);
    for (const [why, count] of [...this.skipped].sort())
      console.log(`skipped       ${String(count).padStart(6)}  ${why}`);
    for (const [provider, found] of this.different) {
      console.log(`\n${provider}: ${found.length} different`);
      for (const { where, one, other } of found.slice(0, SHOWN)) {
        console.log(`  ${where}\n    treering: ${one}\n    library:  ${other}`);
      }
    }
  }
}

async function compare(server, ids, conversation, report) {
  const { source, id, messages } = conversation;
  const { count: last, why } = usable(conversation);
  if (why) report.count(report.skipped, `${source}: only the part before it ${why}`);
  const conversationId = ids.get(`${source} ${id}`);
  assert(conversationId, `${source} ${id} is in the store`);
  const revisions = await server.revisions(conversationId);
  assert(revisions.length >= last, `${source} ${id}: an event for each message`);
  const places = cuts(messages.slice(0, last));
  report.messages.all += messages.length;
  report.messages.compared += places[0] ?? 0;
  for (const count of places) {
    const prompt = modelMessages(messages.slice(0, count));
    if (!prompt.messages.length) continue;
    // The library gets no tool definitions and does not infer any, so neither does this policy.
    const policy = { enhancers: { tools: { params: { from_calls: false } } } };
    const place = { as_of_revision: revisions[count - 1], policy };
    for (const provider of Object.keys(MODELS)) {
      const where = `${source} ${id}, ${count} of ${messages.length} messages`;
      await comparePair(server, provider, { conversationId, place, prompt, where, source }, report);
    }
  }
}

/** Compares the story of story.mjs: tools, an image, results in another order than their calls. */
async function compareStory(server, report) {
  const conversationId = await server.append(EVENTS);
  for (const provider of Object.keys(MODELS)) {
    const what = {
      conversationId,
      place: { policy: {} },
      prompt: PROMPT,
      where: "the story",
      source: "told-twice",
    };
    await comparePair(server, provider, what, report);
    await seesSnapshots(server, provider, conversationId);
  }
}

/** Checks that the comparison distinguishes full results from their snapshots. */
async function seesSnapshots(server, provider, conversationId) {
  const told = { model: MODELS[provider], as_of_revision: 0 };
  const inFull = await server.build(conversationId, provider, { ...told, policy: {} });
  const policy = { tool_results: "turn_end" };
  const inShort = await server.build(conversationId, provider, { ...told, policy });
  assert(
    firstDifference(meaning(provider, inFull), meaning(provider, inShort)),
    `${provider}: snapshots are seen`,
  );
}

async function comparePair(
  server,
  provider,
  { conversationId, place, prompt, where, source },
  report,
) {
  let library;
  try {
    library = await requestOf(provider, prompt);
  } catch (error) {
    return report.count(
      report.skipped,
      `${source}: ${provider}: the library says ${error.name}: ${error.message.slice(0, 80)}`,
    );
  }
  try {
    const built = await server.build(conversationId, provider, {
      model: MODELS[provider],
      ...place,
    });
    const difference = firstDifference(meaning(provider, built), meaning(provider, library));
    if (difference) report.differs(provider, where, ...difference);
    else report.count(report.same, `${provider.padEnd(17)} ${source}`);
  } catch (error) {
    report.differs(provider, where, `${error.name}: ${error.message}`, "a request");
  }
}

/** The first pair of lines that differ, around the difference; null if none differ. */
function firstDifference(ours, theirs) {
  const at = [...ours, ...theirs].findIndex((_, index) => ours[index] !== theirs[index]);
  if (at < 0) return null;
  const [one, other] = [ours[at] ?? "(ends)", theirs[at] ?? "(ends)"];
  let from = 0;
  while (from < one.length && one[from] === other[from]) from += 1;
  const shown = (text) =>
    `line ${at}, ${text.slice(0, 24)} … ${JSON.stringify(text.slice(Math.max(0, from - 20), from + 120))}`;
  return [shown(one), shown(other)];
}

// ---- the self test ----

const STORY = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Read both." },
  {
    role: "assistant",
    content: "I read.",
    tool_calls: ["a", "b"].map((id) => ({
      id,
      function: { name: "read", arguments: JSON.stringify({ of: id, n: 1 }) },
    })),
  },
  { role: "tool", tool_call_id: "b", content: "B" },
  { role: "tool", tool_call_id: "a", content: '{"text": "A", "n": 2}' },
  { role: "user", content: "And?" },
  { role: "assistant", content: "Both  read." },
];

const STORY_MEANS = [
  "system: Be brief.",
  "user: Read both.",
  "assistant: I read.",
  'call 1: read {"n":1,"of":"a"}',
  'call 2: read {"n":1,"of":"b"}',
  'result 1: {"n":2,"text":"A"}',
  "result 2: B",
  "user: And?",
  "assistant: Both read.",
];

/** Checks that a story has the same meaning for all providers, and that every change is found. */
async function prove() {
  const changes = [
    (story) => (story[0].content = "Be long."),
    (story) => (story[2].tool_calls[1].function.arguments = '{"of":"c","n":1}'),
    (story) => (story[2].tool_calls[0].function.name = "write"),
    (story) => (story[3].content = "C"),
    (story) => ([story[3].tool_call_id, story[4].tool_call_id] = ["a", "b"]),
    (story) => (story[5].content = "And now?"),
    (story) => story.splice(5, 1),
    (story) => story.pop(),
  ];
  for (const provider of Object.keys(MODELS)) {
    const told = meaning(provider, await requestOf(provider, modelMessages(STORY)));
    assert.deepEqual(told, STORY_MEANS, provider);
    for (const change of changes) {
      const story = structuredClone(STORY);
      change(story);
      const other = meaning(provider, await requestOf(provider, modelMessages(story)));
      assert(firstDifference(other, told), `${provider}: ${change} is seen`);
    }
  }
  console.log(`self test: ${changes.length} changes of a story are seen in each provider's shape`);
}

// ---- the run ----

async function run(address, file, size) {
  const server = new Server(address);
  const report = new Report();
  const ids = await server.conversations();
  const waiting = chosen(file, size);
  const worker = async () => {
    for await (const conversation of waiting) await compare(server, ids, conversation, report);
  };
  await compareStory(server, report);
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  server.close();
  report.print();
  return report.different.size === 0;
}

const sample = process.argv.find((word) => word.startsWith("--sample="))?.split("=")[1];
const size = process.argv.includes("--all") ? Infinity : Number(sample ?? SAMPLE);
const [address, file] = process.argv.slice(2).filter((word) => !word.startsWith("--"));
await prove();
if (!process.argv.includes("--prove")) {
  assert(address && file, "usage: context_compare.mjs ADDRESS TRAJECTORIES.jsonl [--all]");
  const started = Date.now();
  const same = await run(address, file, size);
  console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
  if (!same) process.exit(1);
}
