// The server of a folder: started by this process, or by another one.

import { existsSync, mkdirSync, realpathSync, statSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { bare, type Endpoint } from "../endpoint.js";
import { ClientClosed, Invalid, NoFolder, StoreInUse } from "../errors/index.js";
import { findBinary } from "./binary.js";
import { ServerProcess } from "./process.js";

/** Time to wait for a process that locks the store without serving it. */
const LOCKED_WAIT_MS = 10_000;

/** Options of one client of a folder. */
export interface FolderOptions {
  binary?: string | undefined;
  /** Options of `treering serve`. */
  serve?: readonly string[] | undefined;
  startTimeoutMs: number;
  onServerLog?: ((line: string) => void) | undefined;
}

/**
 * The server of a folder, for all clients here; closing the last client ends it. If the server of
 * another process ends, `renew` starts one here.
 */
export class Folder {
  static readonly #all = new Map<string, Folder>();

  readonly #path: string;
  readonly #binary: string | undefined;
  readonly #serve: readonly string[];
  /** The options of each client that is open. */
  readonly #clients = new Set<FolderOptions>();
  #server: ServerProcess | undefined;
  #address = "";
  #work: Promise<unknown> = Promise.resolve();

  private constructor(path: string, { binary, serve = [] }: FolderOptions) {
    this.#path = path;
    this.#binary = binary;
    this.#serve = [...serve];
  }

  /** Adds a client to a folder. Throws if the folder's server has other options. */
  static at(path: string, options: FolderOptions): Endpoint {
    const real = realPath(path);
    let folder = Folder.#all.get(real);
    if (!folder) {
      folder = new Folder(real, options);
      Folder.#all.set(real, folder);
    }
    return folder.#add(options);
  }

  #add(given: FolderOptions): Endpoint {
    const { binary = this.#binary, serve = [] } = given;
    if (binary !== this.#binary) throw this.#isOpenWithAnother("binary");
    if (serve.length && !isDeepStrictEqual([...serve], this.#serve)) {
      throw this.#isOpenWithAnother("serve");
    }
    const options = { ...given };
    this.#clients.add(options);
    return {
      isOurs: true,
      // The first call starts the server, or finds the one that runs.
      address: () => this.#alone(async () => this.#address || this.#start()),
      // Starts or finds a server again, unless the server that was started here runs.
      renew: () => this.#alone(async () => (this.#server?.runs ? this.#address : this.#start())),
      close: () => this.#remove(options),
    };
  }

  #isOpenWithAnother(name: string): Invalid {
    return new Invalid(
      `${this.#path} is already open in this program with a different \`${name}\`: ` +
        "pass the same value or none, or close its other clients first",
    );
  }

  /** Ends the server when its last client is closed. */
  async #remove(client: FolderOptions): Promise<void> {
    this.#clients.delete(client);
    if (this.#clients.size > 0) return;
    if (Folder.#all.get(this.#path) === this) Folder.#all.delete(this.#path);
    await this.#alone(async () => {
      const server = this.#server;
      this.#server = undefined;
      this.#address = "";
      await server?.end();
    });
  }

  /** Runs one task at a time. */
  #alone<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#work.then(work);
    this.#work = done.catch(() => {});
    return done;
  }

  async #start(): Promise<string> {
    if (this.#clients.size === 0) throw new ClientClosed();
    const program = findBinary(this.#binary);
    const hear = (line: string) => {
      for (const { onServerLog } of this.#clients) onServerLog?.(line);
    };
    // All clients wait for the same start, so the longest timeout counts.
    const timeoutMs = Math.max(...[...this.#clients].map((client) => client.startTimeoutMs));
    const end = Date.now() + LOCKED_WAIT_MS;
    for (;;) {
      const server = new ServerProcess(program, this.#path, this.#serve, hear);
      const line = await server.firstLine(timeoutMs);
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
