// Where a server is.

import { Invalid } from "./errors/index.js";

/** Something that has an address. */
export interface Endpoint {
  /** Where the server is now: `host:port`. */
  address(): Promise<string>;
  /** The same, after nothing answered there. */
  renew(): Promise<string>;
  /** Nobody here needs the server any more. */
  close(): Promise<void>;
  /** It is started at need, so it is no stranger when it does not answer. */
  readonly isOurs: boolean;
}

/** `http://host:port` and `host:port` as `host:port`. */
export const bare = (address: string): string =>
  address.replace(/^https?:\/\//, "").replace(/\/+$/, "");

/** Names that gRPC has for other addresses. */
const OTHER_WAYS = /^(unix|unix-abstract|vsock|dns|ipv4|ipv6|xds|passthrough):/;
const PORT = /^[0-9]{1,5}$/;

/** The same, if it can be an address. */
function checked(address: string): string {
  if (OTHER_WAYS.test(address)) return address;
  let host = bare(address);
  let port = "443";
  // Of an IPv6 address without brackets, nobody knows where it ends.
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

/** A server that somebody else runs. */
export class Fixed implements Endpoint {
  readonly isOurs = false;
  readonly #address: string;

  constructor(address: string) {
    this.#address = bare(checked(address));
  }

  async address(): Promise<string> {
    return this.#address;
  }

  /** As it was given: it may come back there. */
  async renew(): Promise<string> {
    return this.#address;
  }

  /** It is not ours to end. */
  async close(): Promise<void> {}
}
