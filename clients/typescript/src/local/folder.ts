// The server of a folder: started by this process, or by another one.

import { existsSync, mkdirSync, realpathSync, statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { bare, type Endpoint } from "../endpoint.js";
import { ClientClosed, NoFolder, StoreInUse } from "../errors/index.js";
import { findBinary } from "./binary.js";
import { ServerProcess } from "./process.js";

/** Time to wait for a process that locks the store without serving it. */
const LOCKED_WAIT_MS = 10_000;

/** Options of the server of a folder. */
export interface FolderOptions {
  binary?: string | undefined;
  /** Options of `treering serve`. */
  serve: readonly string[];
  startTimeoutMs: number;
  onServerLog: (line: string) => void;
}

/**
 * The server of a folder, for all clients here; closing the last client ends it. If the server of
 * another process ends, `renew` starts one here.
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

  /** Returns the object of a folder, for one more client. */
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

  /** Returns the address. The first call starts the server, or finds the one that runs. */
  address(): Promise<string> {
    return this.#alone(async () => this.#address || this.#start());
  }

  /** Starts or finds a server again, unless the server that was started here runs. */
  renew(): Promise<string> {
    return this.#alone(async () => (this.#server?.runs ? this.#address : this.#start()));
  }

  /** Ends the server when its last client is closed. */
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

  /** Process id of the server that was started here. */
  get pid(): number | undefined {
    return this.#server?.pid;
  }

  /** Runs one task at a time. */
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
      // The other process may be about to serve, or to end.
      if (Date.now() > end) throw new StoreInUse(`${this.#path} is locked by ${line.locked_by}`);
      await sleep(50);
    }
  }
}

/** Node's `recursive` never returns where no folder can be made, as below `/proc`. */
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
  // Several paths of one folder are one store, so create the folder and resolve its path.
  try {
    makeFolder(full);
    return realpathSync(full);
  } catch (error) {
    throw new NoFolder(`cannot open a store at ${full}: ${(error as Error).message}`);
  }
}
