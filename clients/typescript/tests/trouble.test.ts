// Tests with killed servers, killed programs, and much load.

import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server as TcpServer } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { createServer as createTlsServer } from "node:tls";
import { pathToFileURL } from "node:url";
import * as treering from "../src/index.js";
import { make } from "../src/index.js";
import { findBinary } from "../src/local/binary.js";
import { all, ends, next, only, Server, shared, temporary, texts } from "./support.js";

const open = shared();

// A server ends between and during the appends of a program that does not know of it: each line
// must be stored once.
for (const how of ["SIGKILL", "SIGTERM"] as const) {
  test(`a server that ends by ${how} while many append`, async () => {
    const server = await Server.start();
    await using db = treering.connect(server.address);
    await db.stats();
    const lines = Array.from({ length: 40 }, (_, n) => `Line ${n}`);
    const writers = Array.from({ length: 8 }, async (_, n) => {
      const conv = await db.create(`Writer ${n}`);
      for (const line of lines) await conv.user(line);
      return texts(conv);
    });
    for (let round = 0; round < 2; round += 1) {
      await sleep(200);
      await server.end(how);
      await sleep(300);
      await server.start();
    }
    for (const stored of await Promise.all(writers)) assert.deepEqual(stored, lines);
    assert.ok((await db.verify({ deep: true })).sound);
  });
}

/** A proxy that delays the first bytes of every connection. */
async function slowLine(port: number, ms: number): Promise<TcpServer> {
  const door = createServer((near) => {
    near.pause();
    setTimeout(() => {
      const far = connect(port, "127.0.0.1");
      near.pipe(far).pipe(near);
      near.on("error", () => far.destroy());
      far.on("error", () => near.destroy());
    }, ms);
  }).listen(0, "127.0.0.1");
  await once(door, "listening");
  return door;
}

// A connection that takes more than a second to establish must not be given up each time.
test("a connection that is slow to establish", async () => {
  const server = await Server.start();
  const door = await slowLine(server.port, 1_600);
  const at = door.address();
  const db = treering.connect(`127.0.0.1:${typeof at === "object" ? at?.port : at}`);
  assert.equal((await (await db.create()).user("Hello")).revision, 2);
  await db.close();
  door.close();
});

// An error from the server also shows that the address is right: while the server restarts, the
// client must retry longer than for an unknown address.
test("a server that only answered with an error", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  await assert.rejects(db.conversation("nothing").state(), treering.ConversationNotFound);
  await server.kill();
  setTimeout(() => void server.start(), 1_500);
  assert.equal((await (await db.create()).user("Hello")).revision, 2);
});

// A server that does not answer must not delay a program beyond its timeout, and a write that it
// accepted must not be duplicated by a retry.
test("a server that hangs", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address, { timeoutMs: 1_500 });
  const conv = await db.create();
  const hello = [make.user("Hello")];
  await server.stop();
  const sent = conv.append(hello, { idempotencyKey: "hello" });
  await assert.rejects(sent, treering.DeadlineExceeded);
  server.signal("SIGCONT");
  await conv.append(hello, { idempotencyKey: "hello", timeoutMs: 30_000 });
  assert.deepEqual(await texts(conv), ["Hello"]);
});

// A break in the middle of a pipelined import must neither lose nor duplicate a batch.
test("many appends through a kill", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const conv = await db.create("Import");
  const lines = Array.from({ length: 2_000 }, (_, n) => `Line ${n}`);
  const batches = lines.map((line) => [conv.id, [make.user(line)]] as const);
  const revisions: number[] = [];
  for await (const answer of db.appendMany(batches, { atOnce: 64 })) {
    assert.ok(answer instanceof treering.Receipt);
    revisions.push(answer.revision);
    if (revisions.length === 700) {
      await server.kill();
      await server.start();
    }
  }
  assert.deepEqual(
    revisions,
    lines.map((_, n) => n + 2),
  );
  assert.deepEqual(await texts(conv), lines);
});

// A refused batch does not affect the others: they are stored.
test("one refusal among many", async () => {
  const db = open();
  const conv = await db.create("Example");
  async function* batches() {
    yield [conv.id, [make.user("one")]] as const;
    yield [conv.id, [make.toolResult("never", "asked")]] as const;
    yield [conv.id, [make.user("three")]] as const;
  }
  const [one, two, three] = await all(db.appendMany(batches()));
  assert.ok(two instanceof treering.CallNotOpen);
  assert.ok(one instanceof treering.Receipt && three instanceof treering.Receipt);
  assert.deepEqual(await texts(conv), ["one", "three"]);
});

// A subscriber must not notice a restart of the server: no event is lost or repeated.
test("subscriptions survive restarts", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const conv = await db.create("Followed");
  await conv.user("0");
  const follow = async () => {
    const seen: string[] = [];
    for await (const event of conv.subscribe({ kinds: ["message_appended"] })) {
      seen.push(event.text);
      if (event.text === "19") break;
    }
    return seen;
  };
  const followAll = async () => {
    const seen: number[] = [];
    for await (const event of db.subscribe({ heartbeatSeconds: 1 })) {
      seen.push(event.revision);
      if (event.text === "19") break;
    }
    return seen;
  };
  const followers = Promise.all([follow(), followAll()]);
  for (let n = 1; n < 20; n += 1) {
    if (n === 7 || n === 13) {
      await server.kill();
      await sleep(200);
      await server.start();
    }
    await conv.user(String(n));
  }
  const [seen, everything] = await followers;
  assert.deepEqual(
    seen,
    Array.from({ length: 20 }, (_, n) => String(n)),
  );
  assert.deepEqual(
    everything,
    Array.from({ length: 21 }, (_, n) => n + 1),
  );
});

test("a context watch reports changes after a restart", async () => {
  const server = await Server.start();
  await using db = treering.connect(server.address);
  const conv = await db.create();
  await conv.setContext({ a: 1, b: 2 });
  await using changes = conv.watchContext();
  assert.deepEqual([(await next(changes)).key, (await next(changes)).key].sort(), ["a", "b"]);
  await server.kill();
  await server.start();
  await conv.setContext({ a: 3 }, { remove: ["b"] });
  const later = [await next(changes), await next(changes)];
  const told = later.map(({ key, value }) => [key, value]).sort();
  assert.deepEqual(told, [
    ["a", 3],
    ["b", undefined],
  ]);
});

// Closing a subscription, or the client, ends the loop over it.
test("a subscription is closed outside its loop", async () => {
  const db = open();
  const conv = await db.create();
  const follow = async (events: treering.Subscription) =>
    (await all(events)).map((event) => event.kind);
  const events = conv.subscribe();
  const followed = follow(events);
  while (!events.caughtUp) await sleep(10);
  await events.close();
  assert.deepEqual(await followed, ["conversation_created"]);
  await conv.user("later");
  assert.equal((await next(conv.subscribe({ after: events.after }))).text, "later");
  const left = conv.subscribe({ fromNow: true });
  const leaving = follow(left);
  await sleep(100);
  await db.close();
  assert.deepEqual(await leaving, []);
});

/** Starts a program that imports the client as `treering`. */
function program(folder: string, code: string, ...given: string[]): ChildProcess {
  const client = pathToFileURL(join(process.cwd(), "build", "src", "index.js"));
  const file = join(folder, "program.mjs");
  writeFileSync(file, `import * as treering from "${client}";\n${code}`);
  const child = spawn(process.execPath, [file, ...given], { stdio: ["ignore", "pipe", "inherit"] });
  return child;
}

/** The first line that a program prints. */
async function firstLine(child: ChildProcess): Promise<string> {
  if (!child.stdout) throw new Error("no output");
  for await (const line of createInterface({ input: child.stdout })) return line;
  throw new Error("it said nothing");
}

// The client must never send plain text to an `https` address.
test("a proxy that speaks TLS", {
  skip: spawnSync("openssl", ["version"]).status !== 0,
}, async () => {
  const server = await Server.start();
  const folder = temporary();
  const [key, cert] = [join(folder, "key.pem"), join(folder, "cert.pem")];
  const request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
  const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
  const made = spawnSync("openssl", [...request, ...names, "-keyout", key, "-out", cert]);
  assert.equal(made.status, 0, String(made.stderr));
  const pems = { key: readFileSync(key), cert: readFileSync(cert), ALPNProtocols: ["h2"] };
  const door = createTlsServer(pems, (near) => {
    const far = connect(server.port, "127.0.0.1");
    near.pipe(far).pipe(near);
    near.on("error", () => far.destroy());
    far.on("error", () => near.destroy());
  }).listen(0, "127.0.0.1");
  await once(door, "listening");
  const at = door.address();
  const address = `https://localhost:${typeof at === "object" ? at?.port : at}`;
  process.env.GRPC_DEFAULT_SSL_ROOTS_FILE_PATH = cert;
  const code = `
const db = treering.connect(process.argv[2]);
const conv = await db.create("Behind a proxy");
console.log((await conv.user("Hello")).revision);
await db.close();
`;
  const child = program(folder, code, address);
  assert.equal(await firstLine(child), "2");
  delete process.env.GRPC_DEFAULT_SSL_ROOTS_FILE_PATH;
  // A certificate that no known CA signed is rejected.
  await using db = treering.connect(address, { timeoutMs: 1_000 });
  await assert.rejects(db.stats(), treering.Unavailable);
  door.close();
});

const SHARED = `
import { setTimeout as sleep } from "node:timers/promises";
import { readFileSync } from "node:fs";
const db = treering.local(process.argv[2]);
const conv = await db.open("shared", { title: "Shared" });
await conv.user(process.argv[3]);
const { dataDir } = await db.stats();
console.log("ready");
`;

/** Whether a server holds the folder: then no other server can. */
async function isHeld(store: string): Promise<boolean> {
  // In a separate process, because this process would use its own server.
  const child = spawn(process.env.TREERING_BINARY ?? "treering", [
    ...["serve", "--json", "--until-stdin-closes", "--listen", "127.0.0.1:0"],
    ...["--data", store, "--wait", "0"],
  ]);
  const line = await firstLine(child);
  child.stdin?.end();
  await once(child, "close");
  return !line.includes('"serving"');
}

// Two programs use one store: the second uses the server of the first. When the first is killed,
// and its server ends with it, the second starts its own.
test("two processes on one store", async () => {
  const [folder, store] = [temporary(), temporary()];
  const first = program(folder, `${SHARED}await sleep(600_000);`, store, "first");
  assert.equal(await firstLine(first), "ready");
  const db = treering.local(store);
  const conv = await db.open("shared");
  await conv.user("second");
  const events = conv.subscribe({ kinds: ["message_appended"] });
  assert.deepEqual([(await next(events)).text, (await next(events)).text], ["first", "second"]);
  first.kill("SIGKILL");
  await once(first, "exit");
  await conv.user("alone");
  assert.equal((await next(events)).text, "alone");
  assert.deepEqual(await texts(conv), ["first", "second", "alone"]);
  await db.close();
  assert.equal(await isHeld(store), false);
});

// A server that outlives its program would hold the folder.
test("a server ends with its program", async () => {
  const [folder, store] = [temporary(), temporary()];
  for (const end of ["", "await db.close();", "process.exit(3);", "throw new Error('x');"]) {
    const child = program(
      folder,
      SHARED + end.replace("throw", "if (dataDir) throw"),
      store,
      "hello",
    );
    const exited = once(child, "exit");
    assert.equal(await firstLine(child), "ready");
    await exited;
    for (let n = 0; n < 100 && (await isHeld(store)); n += 1) await sleep(50);
    assert.equal(await isHeld(store), false, end);
  }
});

test("objects for one folder share a server", async () => {
  const store = temporary();
  const one = treering.local(store);
  const two = treering.local(store, { namespace: "other" });
  assert.equal(await one.address(), await two.address());
  await one.create("One");
  await one.close();
  assert.deepEqual(await all(two.conversations()), []);
  await two.create("Two");
  await two.close();
  await assert.rejects(two.create("Three"), treering.Unreachable);
});

// The options of a second client of a folder were ignored silently.
test("clients of one folder with different options", async () => {
  const [folder, store] = [temporary(), temporary()];
  const serve = ["--memory", "96MiB"];
  const isRefused = (name: string) => (error: Error) => {
    assert.ok(error instanceof treering.Invalid, String(error));
    const opened = `is already open in this program with a different \`${name}\`: pass the same`;
    assert.ok(error.message.includes(opened), error.message);
    return true;
  };
  const one = treering.local(store, { serve });
  const two = treering.local(store);
  const three = treering.local(store, { serve: [...serve] });
  assert.equal(await one.address(), await two.address());
  assert.equal(await one.address(), await three.address());
  const other = ["--memory", "128MiB"];
  assert.throws(() => treering.local(store, { serve: other }), isRefused("serve"));
  const binary = join(folder, "treering");
  assert.throws(() => treering.local(store, { binary }), isRefused("binary"));
  for (const db of [one, two, three]) await db.close();
  // Refused clients do not count as clients of the folder.
  assert.throws(() => treering.local(store, { serve, token: "a\n" }), /`token` has/);
  assert.throws(() => treering.local(store, { serve, namespace: "a\n" }), /`namespace` has/);
  await using _ = treering.local(store);
  assert.throws(() => treering.local(store, { serve }), isRefused("serve"));
});

// A start used the timeout and the log of the folder's first client only.
test("clients of one folder with different timeouts and logs", async () => {
  const [folder, store] = [temporary(), temporary()];
  const binary = join(folder, "slow");
  const script = `#!/bin/sh\necho hello >&2\nsleep 1\nexec "${findBinary()}" "$@"\n`;
  writeFileSync(binary, script, { mode: 0o755 });
  const logs: Record<string, string[]> = { hasty: [], patient: [], closed: [] };
  const client = (name: string, startTimeoutMs: number) => {
    const onServerLog = (line: string) => void logs[name]?.push(line);
    return treering.local(store, { binary, startTimeoutMs, onServerLog });
  };
  await using hasty = client("hasty", 100);
  await assert.rejects(hasty.connect(), treering.ServerNotStarted);
  await using patient = client("patient", 60_000);
  await client("closed", 100).close();
  await patient.create();
  assert.deepEqual(logs, { hasty: ["hello", "hello"], patient: ["hello"], closed: [] });
});

test("errors of a server that cannot start", async () => {
  const folder = temporary();
  const options = { binary: join(folder, "nowhere") };
  await assert.rejects(treering.local(folder, options).stats(), (error) => {
    assert.ok(error instanceof treering.NoBinary);
    assert.match(error.message, /ENOENT/);
    return true;
  });
  const wrong = treering.local(temporary(), { serve: ["--no-such-option"] });
  await assert.rejects(wrong.stats(), /no-such-option/);
});

// A proxy from the environment must not be used for local servers: it cannot reach them.
test("no proxy is used for a local server", async () => {
  for (const name of ["http_proxy", "https_proxy", "grpc_proxy"]) {
    process.env[name] = "http://127.0.0.1:9";
  }
  await using db = treering.local(temporary(), { timeoutMs: 10_000 });
  assert.equal(await (await db.create()).head(), 1);
  for (const name of ["http_proxy", "https_proxy", "grpc_proxy"]) delete process.env[name];
});

// The server of a local store is started again after it was killed.
test("a local server is started again", { skip: !existsSync("/proc") }, async () => {
  const store = temporary();
  await using db = treering.local(store);
  const conv = await db.create();
  for (let n = 0; n < 30; n += 1) {
    await conv.user(String(n));
    if (n % 10 === 5) await killServerOf(store);
  }
  assert.deepEqual(
    await texts(conv),
    Array.from({ length: 30 }, (_, n) => String(n)),
  );
});

// A client that is closed while it retries must not start a server that nothing stops.
test("a client is closed while it retries", { skip: !existsSync("/proc") }, async () => {
  const store = temporary();
  for (let n = 0; n < 5; n += 1) {
    const db = treering.local(store);
    const conv = await db.create();
    await killServerOf(store);
    // On a fast machine, the write may still succeed.
    const written = conv.user("too late").catch((error: unknown) => {
      assert.ok(error instanceof treering.TreeringError);
    });
    await sleep(n * 15);
    await db.close();
    await written;
    assert.equal(await isHeld(store), false);
  }
});

/** Kills the server of a folder, which it finds by its command line. */
async function killServerOf(store: string): Promise<void> {
  const { readdirSync, readFileSync } = await import("node:fs");
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const given = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      if (!given.includes("serve") || !given.includes(store)) continue;
      process.kill(Number(pid), "SIGKILL");
      assert.ok(await ends(Number(pid)));
    } catch (error) {
      // The process ended meanwhile.
      if ((error as NodeJS.ErrnoException).code === undefined) throw error;
    }
  }
}

test("ten thousand events", async () => {
  const db = open();
  const conv = await db.create("Long");
  const lines = Array.from({ length: 10_000 }, (_, n) => `Line ${n}`);
  function* batches() {
    for (let at = 0; at < lines.length; at += 100) {
      yield [conv.id, lines.slice(at, at + 100).map((line) => make.user(line))] as const;
    }
  }
  for await (const receipt of db.appendMany(batches()))
    assert.ok(receipt instanceof treering.Receipt);
  assert.equal(await conv.head(), 10_001);
  assert.deepEqual(await texts(conv), lines);
  const newest = await all(conv.events({ backward: true, limit: 2 }));
  assert.deepEqual(
    newest.map((event) => event.text),
    ["Line 9999", "Line 9998"],
  );
  const some = await all(conv.events({ first: 5_000, last: 5_002 }));
  assert.deepEqual(
    some.map((event) => event.revision),
    [5000, 5001, 5002],
  );
  assert.equal((await next(conv.events({ headersOnly: true }))).body, undefined);
  assert.equal((await db.search("9999", { conversation: conv.id }))[0]?.revision, 10_001);
  // The stream waits for a slow reader, and leaving the loop ends the read.
  let seen = 0;
  for await (const event of conv.events()) {
    if (event.revision % 1_000 === 0) await sleep(5);
    seen += 1;
    if (seen === 5_000) break;
  }
  assert.equal(seen, 5_000);
});

test("big results", async () => {
  const lines = Array.from({ length: 400_000 }, (_, n) => `${n}: ä line of a long log`);
  const text = lines.join("\n");
  await using db = treering.local(temporary());
  const conv = await db.create("Big");
  const call = await conv.toolCall("cat", {}, { callId: "big" });
  await call.result(text);
  assert.ok((await conv.result("big")).text === text);
  const last = await conv.result("big", { lines: [399_999, 400_000] });
  assert.equal(last.text, lines.slice(-2).join("\n"));
  const part = await conv.result("big", { bytes: [0, 10] });
  assert.equal(part.totalBytes, Buffer.byteLength(text));
  const event = only(await all(conv.events({ kinds: ["tool_result_recorded"] })));
  assert.ok(event.text === text);
  const huge = "x".repeat(48 << 20);
  const second = await conv.toolCall("cat", {}, { callId: "huge" });
  await second.result(huge);
  assert.ok((await conv.result("huge")).text === huge);
  const third = await conv.toolCall("cat", {}, { callId: "too much" });
  await assert.rejects(third.result("x".repeat(70 << 20)), treering.Invalid);
  await third.fail("too much");
});

test("many at once", async () => {
  const db = open();
  const agent = async (number: number) => {
    const conv = await db.create(`Agent ${number}`);
    for (let step = 0; step < 5; step += 1) {
      const call = await conv.toolCall("step", { n: step });
      await call.result(`${number}.${step}`);
    }
    return (await all(conv.events())).length;
  };
  const lengths = await Promise.all(Array.from({ length: 40 }, (_, n) => agent(n)));
  assert.deepEqual(lengths, Array(40).fill(16));
});

const AGENT = `
import { setTimeout as sleep } from "node:timers/promises";

const model = ({ messages }) => {
  const results = JSON.stringify(messages).split('"tool_result"').length - 1;
  if (results === 6) return { id: "end", content: [{ type: "text", text: "Counted." }] };
  const call = { type: "tool_use", id: \`call_\${results}\`, name: "count", input: { n: results } };
  return { id: \`msg_\${results}\`, content: [call] };
};
const count = async ({ n }) => {
  await sleep(50);
  return \`counted \${n}\`;
};

const db = treering.local(process.argv[2]);
const conv = await db.open("job", { model: "claude-sonnet-4-5" });
await conv.user("Count to six.", { idempotencyKey: "the question" });
console.log("ready");
for (;;) {
  for (const call of await conv.openCalls()) await call.run(count);
  const request = await conv.request("anthropic");
  if (request.body.messages.at(-1).role === "assistant") break;
  await conv.record("anthropic", model(request.body), { expected: request.revision });
}
await db.close();
`;

// An agent and its server are killed repeatedly, at any time. After restarts of the same program,
// each step must be stored exactly once.
test("an agent that is killed at any time", { skip: !existsSync("/proc") }, async () => {
  const [folder, store] = [temporary(), temporary()];
  let kills = 0;
  for (;;) {
    const child = program(folder, AGENT, store);
    const exited = once(child, "exit");
    await firstLine(child);
    // Waits longer each time, so that the program ends on any machine.
    const done = await Promise.race([exited, sleep(50 * 1.7 ** kills, undefined, { ref: false })]);
    if (done) {
      assert.equal(done[0], 0);
      break;
    }
    kills += 1;
    child.kill("SIGKILL");
    if (kills % 2) await killServerOf(store);
    await exited;
  }
  assert.ok(kills > 2);
  await using db = treering.local(store);
  const conv = db.conversation("job");
  assert.deepEqual(await texts(conv), ["Count to six.", "Counted."]);
  const results = await all(conv.events({ kinds: ["tool_result_recorded"] }));
  const six = [0, 1, 2, 3, 4, 5];
  assert.deepEqual(
    results.map((event) => event.text),
    six.map((n) => `counted ${n}`),
  );
  const asked = await all(conv.events({ kinds: ["tool_call_requested"] }));
  assert.deepEqual(
    asked.map((event) => event.callId),
    six.map((n) => `call_${n}`),
  );
  assert.ok((await db.verify({ deep: true })).sound);
});
