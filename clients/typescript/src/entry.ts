// How a server is entered: with a key, and over TLS where its address says so.

import { readFileSync } from "node:fs";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { Invalid } from "./errors/index.js";

/** What is not given is that of the environment. */
export interface EntryOptions {
  /** The API key (default TREERING_TOKEN). */
  token?: string | undefined;
  /** A PEM file with the certificate of a private CA (default TREERING_CA). */
  ca?: string | undefined;
}

/** The same, if a header can hold it. */
function sendable(value: string, name: string): string {
  if (/^[\x20-\x7e]*$/.test(value)) return value;
  // It may be a key, which is in nobody's log: not even a piece of it.
  throw new Invalid(
    `${name} has a character that cannot be sent, such as an umlaut or the end of a line: ` +
      "use it exactly as it was created",
  );
}

/** What is shown to a server, and how the server is known. */
export class Entry {
  readonly #isSecure: boolean;
  readonly #token: string;
  readonly #ca: string;

  constructor(address = "", options: EntryOptions = {}) {
    this.#isSecure = address.startsWith("https://");
    const { token } = options;
    this.#token =
      token === undefined
        ? sendable(process.env.TREERING_TOKEN ?? "", "TREERING_TOKEN")
        : sendable(token, "`token`");
    this.#ca = options.ca ?? process.env.TREERING_CA ?? "";
  }

  /** Of the channel; none: it is not encrypted. */
  get credentials(): ChannelCredentials | undefined {
    if (!this.#isSecure) return undefined;
    return credentials.createSsl(this.#ca ? readFileSync(this.#ca) : null);
  }

  /** Of each call. */
  get metadata(): Record<string, string> {
    return this.#token ? { authorization: `Bearer ${this.#token}` } : {};
  }

  /** For a command. */
  url(address: string): string {
    return `${this.#isSecure ? "https" : "http"}://${address}`;
  }

  /** Of a command. */
  get environment(): NodeJS.ProcessEnv {
    const { TREERING_DATA: _data, TREERING_TOKEN: _token, TREERING_CA: _ca, ...env } = process.env;
    if (this.#token) env.TREERING_TOKEN = this.#token;
    if (this.#ca && this.#isSecure) env.TREERING_CA = this.#ca;
    return env;
  }
}
