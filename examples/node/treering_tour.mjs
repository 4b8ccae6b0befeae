// A tour of a running Treering server, from Node.js.
//
//     treering serve --data ./store            # in another terminal
//     node treering_tour.mjs 127.0.0.1:7171
//
// Its tools really run: they read the API's own .proto files. It checks everything
// that it prints; if a check fails, it prints which one, and exits with 1.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import grpc from "@grpc/grpc-js";
import {
  PROTO,
  Treering,
  created,
  decision,
  message,
  refusal,
  textOf,
  toolCall,
  toolResult,
} from "./client.mjs";

const say = (step, text) => console.log(`${step.padEnd(10)} ${text}`);

const revisionsOf = (events) => events.map((event) => event.revision);

async function collect(stream) {
  const all = [];
  for await (const item of stream) all.push(item);
  return all;
}

/** Checks that a call is refused with this code and reason. */
async function refused(call, code, reason) {
  const error = await call.then(
    () => assert.fail(`it was taken, where ${reason} was expected`),
    (error) => error,
  );
  if (error instanceof assert.AssertionError) throw error;
  const told = refusal(error);
  assert.deepEqual([error.code, told.reason], [code, reason], "the code and the rule");
  return told.facts;
}

// ---- the agent's tools ----

const listFiles = (folder) => readdirSync(join(PROTO, folder)).sort().join("\n");

const readFile = (path) => readFileSync(join(PROTO, path), "utf8");

// ---- the tour ----

/** A conversation: a question, and two tool calls that run in parallel. */
async function appendATurn(db) {
  const asked = await db.append([
    created("A tour from Node.js"),
    message("user", "Which call follows a conversation as it grows?"),
    message("assistant", "I look at the API."),
    toolCall("call_list", "list_files", { folder: "treering/v1" }),
    toolCall("call_read", "read_file", { path: "treering/v1/events.proto" }),
  ]);
  const conversation = asked.events[0].conversation_id;
  // The last call gets its result first.
  const done = await db.append(
    [
      toolResult("call_read", readFile("treering/v1/events.proto")),
      toolResult("call_list", listFiles("treering/v1")),
    ],
    { conversation },
  );
  const revisions = revisionsOf([...asked.events, ...done.events]);
  assert.deepEqual(revisions, [1, 2, 3, 4, 5, 6, 7], "revisions have no gaps");
  say("append", `conversation ${conversation}, revisions 1 to 7`);
  return { conversation, last: done.events.at(-1) };
}

/** Two answers to the same question, on two branches. */
async function forkAndRead(db, conversation) {
  const fork = await db.fork(conversation, 7, "shorter");
  const long = "Subscribe follows it, after it has caught up.";
  await db.append([message("assistant", long)], { conversation });
  await db.append([message("assistant", "Subscribe.")], { conversation, branch: "shorter" });
  const shared = [1, 2, 3, 4, 5, 6, 7];
  const expected = { main: [...shared, 9], shorter: [...shared, fork.branch.branch_id, 10] };
  for (const [branch, revisions] of Object.entries(expected)) {
    const events = await collect(db.read(conversation, branch));
    assert.deepEqual(revisionsOf(events), revisions, `the history of ${branch}`);
    say("read", `${branch}: ${revisions} ends with ${JSON.stringify(textOf(events.at(-1)))}`);
  }
}

/** Existing events, then CaughtUp, then new events. */
async function follow(db, conversation) {
  const seen = [];
  for await (const item of db.subscribe(conversation, "main", 7)) {
    if (item.item === "caught_up") {
      seen.push("caught up");
      await db.append([message("user", "Thank you.")], { conversation });
    } else if (item.item === "event") {
      seen.push(item.event.revision);
      if (seen.includes("caught up")) break;
    }
  }
  assert.deepEqual(seen, [9, "caught up", 11], "a subscription catches up, then follows");
  say("subscribe", seen.join(", "));
}

/** A tool result can be searched at once; hits have byte ranges. */
async function searchResults(db, conversation, last) {
  const hits = await db.search('"stored events from a place on"', {
    conversation_id: conversation,
    tools: ["read_file"],
    at_least: last.position,
  });
  assert.equal(hits.length, 1, "one passage has the phrase");
  const [hit] = hits;
  assert.deepEqual([hit.call_id, hit.revision], ["call_read", 6], "the hit names the result");
  const text = Buffer.from(readFile("treering/v1/events.proto"));
  const passage = text.subarray(hit.byte_start, hit.byte_end);
  assert.match(passage.toString(), /stored events from a place on/, "the byte range holds the phrase");
  // The same bytes from the server, without the rest of the result.
  const request = {
    conversation_id: conversation,
    revision: hit.revision,
    byte_start: hit.byte_start,
    byte_length: hit.byte_end - hit.byte_start,
  };
  const parts = await collect(db.tools.GetResult(request, db.metadata));
  const fetched = Buffer.concat(parts.map((part) => part.chunk));
  assert.ok(fetched.equals(passage), "GetResult gives the same bytes");
  const where = `revision ${hit.revision}, line ${hit.line}, bytes ${hit.byte_start}-${hit.byte_end}`;
  say("search", `${hit.tool} ${hit.call_id}: ${where}`);
}

/** A writer that has not seen the last event is refused, with the facts. */
async function loseARace(db, conversation) {
  const late = db.append([message("user", "Too late")], { conversation, branch: "main", expected: 7 });
  const facts = await refused(late, grpc.status.ABORTED, "REVISION_MISMATCH");
  assert.deepEqual([facts.expected, facts.actual], ["7", "11"], "the facts");
  say("refused", `REVISION_MISMATCH: expected ${facts.expected}, the head is ${facts.actual}`);
}

/** A retry after a lost answer does not append the events again. */
async function repeatAKey(db, conversation) {
  const send = (text) =>
    db.append([message("assistant", text)], { conversation, branch: "main", key: `${conversation}/1` });
  const first = await send("You are welcome.");
  const again = await send("You are welcome.");
  assert.deepEqual([first.repeated_key, again.repeated_key], [false, true], "the second is known");
  assert.deepEqual(again.events, first.events, "both answers are the same");
  say("key", `sent twice, stored once, as revision ${again.events[0].revision}`);
  await refused(send("Something else."), grpc.status.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT");
  say("refused", "IDEMPOTENCY_CONFLICT: the key was used for other content");
}

/** One program waits, another decides, for exactly these arguments. */
async function approve(db, conversation) {
  const ask = toolCall("call_tools", "read_file", { path: "treering/v1/tool.proto" }, true);
  await db.append([message("user", "And the tools?"), ask], { conversation });
  const result = toolResult("call_tools", readFile("treering/v1/tool.proto"));
  const waiting = db.waitForDecision(conversation, "call_tools", 20);
  const [call] = await db.pending(conversation);
  const failed = grpc.status.FAILED_PRECONDITION;
  await refused(db.append([result], { conversation }), failed, "CALL_NOT_APPROVED");
  say("refused", "CALL_NOT_APPROVED: nobody has approved it");
  const changed = decision({ ...call, arguments_hash: Buffer.alloc(32) }, "approved", "ada");
  await refused(db.append([changed], { conversation }), failed, "ARGUMENTS_CHANGED");
  say("refused", "ARGUMENTS_CHANGED: an approval of other arguments");
  await db.append([decision(call, "approved", "ada", "only reads")], { conversation });
  const waited = await waiting;
  assert.deepEqual([waited.decided, waited.call.decided_by], [true, "ada"], "the wait has ended");
  await db.append([result], { conversation });
  assert.deepEqual(await db.pending(conversation), [], "nothing waits any more");
  say("approve", `${waited.call.tool} ${waited.call.arguments} by ada, then run`);
}

/** One fork, two providers: each gets the same history in its own format. */
async function buildForTwo(db, conversation) {
  const where = { conversation, branch: "shorter" };
  const asked = await db.append([message("user", "In one word?")], where);
  const at_least = asked.events.at(-1).position;
  const of = (provider, model) => db.build(conversation, provider, { ...where, model, at_least });
  const chat = await of("openai-chat", "gpt-4o");
  const answers = chat.body.messages.filter((m) => m.role === "tool").map((m) => m.tool_call_id);
  assert.deepEqual(answers, ["call_list", "call_read"], "one tool message a call");
  assert.equal(chat.body.messages.at(-1).content, "In one word?", "the question is last");
  assert.equal(chat.explanation.basis.estimate, false, "OpenAI's tokens are counted");
  say("build", `openai-chat: ${chat.body.messages.length} messages, ${chat.explanation.tokens} tokens`);
  const gemini = await of("gemini", "gemini-2.5-flash");
  const batches = gemini.body.contents
    .map(({ parts }) => parts.filter((part) => part.functionResponse).length)
    .filter((results) => results > 0);
  assert.deepEqual(batches, [2], "one content a batch, with as many parts as calls");
  assert.equal(gemini.explanation.basis.estimate, true, "other tokens are estimated");
  say("build", `gemini: ${gemini.body.contents.length} contents, about ${gemini.explanation.tokens} tokens`);
}

async function tour(address) {
  const db = new Treering(address);
  try {
    const { conversation, last } = await appendATurn(db);
    await forkAndRead(db, conversation);
    await follow(db, conversation);
    await searchResults(db, conversation, last);
    await loseARace(db, conversation);
    await repeatAKey(db, conversation);
    await approve(db, conversation);
    await buildForTwo(db, conversation);
    const kinds = ["EVENT_KIND_TOOL_RESULT_RECORDED"];
    const results = await collect(db.read(conversation, "main", { kinds }));
    assert.equal(results.length, 3, "every result is there");
    say("done", `see it: treering log --server http://${address} ${conversation}`);
  } finally {
    db.close();
  }
}

try {
  await tour(process.argv[2] ?? "127.0.0.1:7171");
} catch (error) {
  if (error instanceof assert.AssertionError) {
    console.error(`not as it must be: ${error.message}`);
  } else if (error.code !== undefined && error.metadata) {
    console.error(`the server answered ${grpc.status[error.code]}: ${error.details}`);
  } else {
    throw error;
  }
  process.exitCode = 1;
}
