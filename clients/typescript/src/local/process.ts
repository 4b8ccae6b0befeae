// A server process. `treering serve --json --until-stdin-closes` prints its address in one line,
// and ends when its stdin closes: so it does not outlive this process, however this process ends.

import { type ChildProcess, spawn } from "node:child_process";
import type { Socket } from "node:net";
import { createInterface } from "node:readline";
import { NoBinary, ServerNotStarted } from "../errors/index.js";

/** Time for a server to finish its calls; then it gets SIGTERM, then SIGKILL. */
const END_WAIT_MS = 20_000;

/** Lines of the server's output that are kept, for errors. */
const LINES_KEPT = 20;

/** The first line that the server prints. */
export interface FirstLine {
  /** Address of this server. */
  serving?: string;
  /** Address of another process that serves the folder. */
  server?: string;
  /** The process that locks the folder without serving it. */
  locked_by?: string;
}

export class ServerProcess {
  readonly #binary: string;
  readonly #process: ChildProcess;
  readonly #said: string[] = [];
  readonly #ended: Promise<void>;
  #hasEnded = false;
  #cannotRun = false;

  constructor(
    binary: string,
    path: string,
    options: readonly string[],
    hear: (line: string) => void,
  ) {
    this.#binary = binary;
    const serve = ["serve", "--json", "--until-stdin-closes", "--listen", "127.0.0.1:0"];
    // `Folder` waits for a locked folder.
    this.#process = spawn(binary, [...serve, "--data", path, "--wait", "0", ...options], {
      stdio: ["pipe", "pipe", "pipe"],
      env: { TREERING_LOG: "warn", ...process.env, NO_COLOR: "1" },
      // Ctrl-C is for this program only; the server ends with it.
      detached: true,
      windowsHide: true,
    });
    this.#ended = new Promise((resolve) => {
      const end = (error?: unknown) => {
        if (error instanceof Error) {
          this.#said.push(error.message);
          this.#cannotRun = this.pid === undefined;
        }
        this.#hasEnded = true;
        resolve();
      };
      this.#process.once("error", end);
      this.#process.once("close", () => end());
    });
    this.#process.stdin?.on("error", () => {});
    if (this.#process.stderr) {
      createInterface({ input: this.#process.stderr }).on("line", (line) => {
        this.#said.push(line.trim());
        if (this.#said.length > LINES_KEPT) this.#said.shift();
        hear(line);
      });
    }
  }

  /** Process id of the server. */
  get pid(): number | undefined {
    return this.#process.pid;
  }

  get runs(): boolean {
    return !this.#hasEnded;
  }

  /** Returns the first line of the server; empty if it did not come in time. */
  async firstLine(timeoutMs: number): Promise<FirstLine> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => resolve(undefined), timeoutMs);
    });
    const found = await Promise.race([this.#readLine(), late]);
    clearTimeout(timer);
    if (found === undefined && this.runs) {
      this.#said.push(`it did not serve within ${Math.round(timeoutMs / 1000)} s`);
    }
    return found ?? {};
  }

  async #readLine(): Promise<FirstLine | undefined> {
    if (!this.#process.stdout) return undefined;
    const lines = createInterface({ input: this.#process.stdout });
    const found = await new Promise<FirstLine | undefined>((resolve) => {
      lines.on("line", (line) => {
        try {
          const read: unknown = JSON.parse(line);
          if (typeof read === "object" && read) resolve(read);
        } catch {
          // Not JSON: the expected line may still come.
        }
      });
      // When the pipe ends, all lines have been read.
      lines.once("close", () => resolve(undefined));
      this.#process.once("error", () => resolve(undefined));
    });
    if (found === undefined) await this.#ended;
    return found;
  }

  /** Lets this program end while the server runs; the server ends with it. */
  letProgramEnd(): void {
    this.#process.unref();
    const { stdin, stdout, stderr } = this.#process;
    for (const pipe of [stdin, stdout, stderr]) (pipe as Socket | null)?.unref?.();
  }

  /** Makes the error for a server that did not start. */
  notStarted(): ServerNotStarted | NoBinary {
    const said = this.#said.join(" ");
    if (this.#cannotRun) return new NoBinary(`${this.#binary} cannot be run: ${said}`);
    const { exitCode } = this.#process;
    const how = exitCode === null ? "" : `it exited with code ${exitCode} and `;
    return new ServerNotStarted(`${this.#binary} did not start: ${said || `${how}no output`}`);
  }

  /** Ends the server after it has finished its calls. */
  async end(): Promise<void> {
    this.#process.stdin?.end();
    for (const signal of ["SIGTERM", "SIGKILL"] as const) {
      if (await this.#endsWithin(END_WAIT_MS)) return;
      this.#process.kill(signal);
    }
    await this.#ended;
  }

  async #endsWithin(ms: number): Promise<boolean> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), ms);
    });
    const ended = await Promise.race([this.#ended.then(() => true), late]);
    clearTimeout(timer);
    return ended;
  }
}
