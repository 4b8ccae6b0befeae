// Where a server is.

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

/** A server that somebody else runs. */
export class Fixed implements Endpoint {
  readonly isOurs = false;
  readonly #address: string;

  constructor(address: string) {
    this.#address = bare(address);
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
