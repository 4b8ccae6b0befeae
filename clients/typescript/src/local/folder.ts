// The server of a folder: started here, or that of another process.

import { existsSync, mkdirSync, realpathSync, statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { bare, type Endpoint } from "../endpoint.js";
import { ClientClosed, NoFolder, StoreInUse } from "../errors/index.js";
import { findBinary } from "./binary.js";
import { ServerProcess } from "./process.js";

/** Time for a process that holds the store without serving it to let go. */
const LOCKED_WAIT_MS = 10_000;

/** How the server of a folder is started. */
export interface FolderOptions {
  binary?: string | undefined;
  /** Options of `treering serve`. */
  serve: readonly string[];
  startTimeoutMs: number;
  onServerLog: (line: string) => void;
}

/**
 * Objects for one folder share it; the last one that is closed ends it. When the other
 * process ends, `renew` starts one here.
 */
export class Folder implements Endpoint {
  static readonly #all = new Map<string, Folder>();

  readonly isOurs = true;
  readonly #path: string;
  readonly #options: FolderOptions;
  #users = 0;
  #server: ServerProcess | undefined;
  #address = "";
  #work: Promise<unknown> = Promise.resolve();

  private constructor(path: string, options: FolderOptions) {
    this.#path = path;
    this.#options = options;
  }

  /** The one for this folder. */
  static at(path: string, options: FolderOptions): Folder {
    const real = realPath(path);
    let folder = Folder.#all.get(real);
    if (!folder) {
      folder = new Folder(real, options);
      Folder.#all.set(real, folder);
    }
    folder.#users += 1;
    return folder;
  }

  /** Starts the server, or finds the one that holds the folder, the first time. */
  address(): Promise<string> {
    return this.#alone(async () => this.#address || this.#start());
  }

  /** Looks again, unless the server that was started here runs. */
  renew(): Promise<string> {
    return this.#alone(async () => (this.#server?.runs ? this.#address : this.#start()));
  }

  /** Ends the server when nobody here uses it any more. */
  async close(): Promise<void> {
    this.#users -= 1;
    if (this.#users > 0) return;
    Folder.#all.delete(this.#path);
    await this.#alone(async () => {
      const server = this.#server;
      this.#server = undefined;
      this.#address = "";
      await server?.end();
    });
  }

  /** Of the server that was started here. */
  get pid(): number | undefined {
    return this.#server?.pid;
  }

  /** One thing after another. */
  #alone<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#work.then(work);
    this.#work = done.catch(() => {});
    return done;
  }

  async #start(): Promise<string> {
    if (this.#users <= 0) throw new ClientClosed();
    const { binary, serve, startTimeoutMs, onServerLog } = this.#options;
    const program = findBinary(binary);
    const end = Date.now() + LOCKED_WAIT_MS;
    for (;;) {
      const server = new ServerProcess(program, this.#path, serve, onServerLog);
      const line = await server.firstLine(startTimeoutMs);
      if (line.serving) {
        server.letProgramEnd();
        this.#server = server;
        this.#address = bare(line.serving);
        return this.#address;
      }
      await server.end();
      if (line.server) {
        this.#server = undefined;
        this.#address = bare(line.server);
        return this.#address;
      }
      if (!line.locked_by) throw server.notStarted();
      // It may be about to serve, or to end.
      if (Date.now() > end) throw new StoreInUse(`${this.#path} is locked by ${line.locked_by}`);
      await sleep(50);
    }
  }
}

/** Node's own recursion does not end where nothing can be made, as below `/proc`. */
function makeFolder(path: string): void {
  if (existsSync(path) && statSync(path).isDirectory()) return;
  const above = dirname(path);
  if (!existsSync(above)) makeFolder(above);
  try {
    mkdirSync(path);
  } catch (error) {
    // Another program may have been first.
    if (!existsSync(path) || !statSync(path).isDirectory()) throw error;
  }
}

function realPath(path: string): string {
  const full = resolve(path);
  // Two names of one folder are one store, also before there is one.
  try {
    makeFolder(full);
    return realpathSync(full);
  } catch (error) {
    throw new NoFolder(`cannot open a store at ${full}: ${(error as Error).message}`);
  }
}
