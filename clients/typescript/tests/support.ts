// Servers, stores and clients for the tests. There are no mocks.

import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as treering from "../src/index.js";
import { findBinary } from "../src/local/binary.js";

/** A folder that is removed after the tests of the file. */
export function temporary(): string {
  const folder = mkdtempSync(join(tmpdir(), "treering-ts-"));
  after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
  return folder;
}

/** A store that the tests of a file share; each test has its own namespace. */
export function shared(): () => treering.Treering {
  const open: treering.Treering[] = [];
  // The hooks run in this order: first the store is closed, then its folder is removed.
  after(async () => {
    for (const db of open) await db.close();
  });
  const folder = temporary();
  return () => {
    const db = treering.local(folder, { namespace: `test-${randomUUID()}` });
    open.push(db);
    return db;
  };
}

export async function freePort(): Promise<number> {
  const taken = createServer().listen(0, "127.0.0.1");
  await once(taken, "listening");
  const address = taken.address();
  taken.close();
  await once(taken, "close");
  return typeof address === "object" && address ? address.port : 0;
}

/** `treering serve` on a port that stays the same across restarts. */
export class Server {
  #process: ChildProcess | undefined;

  private constructor(
    readonly folder: string,
    readonly port: number,
  ) {}

  static async start(): Promise<Server> {
    const running: Server[] = [];
    after(async () => running[0]?.kill());
    const server = new Server(temporary(), await freePort());
    running.push(server);
    await server.start();
    return server;
  }

  get address(): string {
    return `127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const options = ["serve", "--data", this.folder, "--listen", this.address, "--json"];
    const child = spawn(findBinary(), options, { stdio: ["ignore", "pipe", "ignore"] });
    this.#process = child;
    const [line] = await once(child.stdout, "data");
    if (!String(line).includes("serving")) throw new Error(String(line));
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  /** Suspends the server; waits for all threads, which may still answer after the signal. */
  async stop(): Promise<void> {
    this.signal("SIGSTOP");
    const tasks = `/proc/${this.#process?.pid}/task`;
    const runs = (task: string) => !/\) T /.test(readFileSync(join(tasks, task, "stat"), "utf8"));
    while (existsSync(tasks) && readdirSync(tasks).some(runs)) await sleep(10);
  }

  async end(how: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    if (!child) return;
    this.#process = undefined;
    child.kill(how);
    await once(child, "exit");
  }

  async kill(): Promise<void> {
    await this.end("SIGKILL");
  }
}

/** All items of a stream, as a list. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}

/** The texts of the messages of a conversation. */
export async function texts(conversation: treering.Conversation): Promise<string[]> {
  const said = await all(conversation.events({ kinds: ["message_appended"] }));
  return said.map((event) => event.text);
}

/** The only item of a list. */
export function only<T>(items: readonly T[]): T {
  const [item] = items;
  if (items.length !== 1 || item === undefined) throw new Error(`there are ${items.length}`);
  return item;
}

/** The next item of a stream that does not end. */
export async function next<T>(items: AsyncIterator<T>): Promise<T> {
  const { done, value } = await items.next();
  if (done) throw new Error("it ended");
  return value;
}

/** Whether a process ends within a minute; ours need less. */
export async function ends(pid: number): Promise<boolean> {
  const end = Date.now() + 60_000;
  while (Date.now() < end) {
    try {
      process.kill(pid, 0);
    } catch {
      return true;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}
