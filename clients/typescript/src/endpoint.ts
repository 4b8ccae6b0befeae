// Addresses of servers.

import { Invalid } from "./errors/index.js";

/** A server with an address that may change. */
export interface Endpoint {
  /** Returns the current address: `host:port`. */
  address(): Promise<string>;
  /** Returns the address to try after the last one did not answer. */
  renew(): Promise<string>;
  /** Releases the server: this client no longer needs it. */
  close(): Promise<void>;
  /** The client starts the server on demand. If it does not answer, calls retry to the deadline. */
  readonly isOurs: boolean;
}

/** Removes `http://` or `https://` and slashes at the end. */
export const bare = (address: string): string =>
  address.replace(/^https?:\/\//, "").replace(/\/+$/, "");

/** Schemes of gRPC for other kinds of addresses. */
const OTHER_WAYS = /^(unix|unix-abstract|vsock|dns|ipv4|ipv6|xds|passthrough):/;
const PORT = /^[0-9]{1,5}$/;

/** Returns the address, or throws if it is invalid. */
function checked(address: string): string {
  if (OTHER_WAYS.test(address)) return address;
  let host = bare(address);
  let port = "443";
  // In an IPv6 address without brackets, a port cannot be recognised.
  if (host.split(":").length === 2 || host.includes("]:")) {
    const at = host.lastIndexOf(":");
    port = host.slice(at + 1);
    host = host.slice(0, at);
  }
  const isPort = PORT.test(port) && Number(port) > 0 && Number(port) < 65_536;
  if (isPort && /^[^\s\p{Cc}/?#@]+$/u.test(host)) return address;
  const shown = JSON.stringify(address);
  throw new Invalid(
    `${shown} is not an address: use host:port, http://host:port or https://host:port`,
  );
}

/** A server that this client does not start, at a fixed address. */
export class Fixed implements Endpoint {
  readonly isOurs = false;
  readonly #address: string;

  constructor(address: string) {
    this.#address = bare(checked(address));
  }

  async address(): Promise<string> {
    return this.#address;
  }

  /** Returns the same address: the server may restart there. */
  async renew(): Promise<string> {
    return this.#address;
  }

  /** Does nothing: the client did not start the server. */
  async close(): Promise<void> {}
}
