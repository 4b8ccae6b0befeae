// Authentication and encryption: an API key, and TLS if the address begins with `https://`.

import { readFileSync } from "node:fs";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { Invalid } from "./errors/index.js";

/** Options that are not given are read from the environment. */
export interface EntryOptions {
  /** The API key (default TREERING_TOKEN). */
  token?: string | undefined;
  /** A PEM file with the certificate of a private CA (default TREERING_CA). */
  ca?: string | undefined;
}

/** Returns the value, or throws if a header cannot hold it. */
export function sendable(value: string, name: string): string {
  if (/^[\x20-\x7e]*$/.test(value)) return value;
  // The value may be a key, so the error contains no part of it: errors are logged.
  throw new Invalid(
    `${name} has a character that cannot be sent, such as an umlaut or the end of a line: ` +
      "use it exactly as it was created",
  );
}

/** The API key for a server, and the CA that verifies the server. */
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

  /** Credentials of the channel; undefined if it is not encrypted. */
  get credentials(): ChannelCredentials | undefined {
    if (!this.#isSecure) return undefined;
    return credentials.createSsl(this.#ca ? readFileSync(this.#ca) : null);
  }

  /** Metadata of each call. */
  get metadata(): Record<string, string> {
    return this.#token ? { authorization: `Bearer ${this.#token}` } : {};
  }

  /** Returns the address as a URL, for a command. */
  url(address: string): string {
    return `${this.#isSecure ? "https" : "http"}://${address}`;
  }

  /** Environment variables for a command. */
  get environment(): NodeJS.ProcessEnv {
    const { TREERING_DATA: _data, TREERING_TOKEN: _token, TREERING_CA: _ca, ...env } = process.env;
    if (this.#token) env.TREERING_TOKEN = this.#token;
    if (this.#ca && this.#isSecure) env.TREERING_CA = this.#ca;
    return env;
  }
}
