// The part of MessagePack that threads need. They write maps, lists, texts, bytes and whole
// numbers, and read anything that Python's serializer writes.

import { utf8 } from "../words.js";

/** The values of a thread's rows. */
export type Packable =
  | null
  | boolean
  | number
  | string
  | Uint8Array
  | readonly Packable[]
  | { readonly [key: string]: Packable };

/** Decodes the bytes of an extension. */
export type Extension = (code: number, data: Uint8Array) => unknown;

// ---- writing ----

/** Encodes a value as MessagePack. */
export function packed(value: Packable): Uint8Array {
  const pieces: Uint8Array[] = [];
  write(value, pieces);
  return Buffer.concat(pieces);
}

function write(value: Packable, to: Uint8Array[]): void {
  if (value === null) to.push(Uint8Array.of(0xc0));
  else if (typeof value === "boolean") to.push(Uint8Array.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number") to.push(numberBytes(value));
  else if (typeof value === "string") {
    const bytes = utf8(value);
    to.push(head(bytes.length, { fix: [0xa0, 32], codes: [0xd9, 0xda, 0xdb] }), bytes);
  } else if (value instanceof Uint8Array) {
    to.push(head(value.length, { codes: [0xc4, 0xc5, 0xc6] }), value);
  } else if (isList(value)) {
    to.push(head(value.length, { fix: [0x90, 16], codes: [undefined, 0xdc, 0xdd] }));
    for (const each of value) write(each, to);
  } else {
    const entries = Object.entries(value);
    to.push(head(entries.length, { fix: [0x80, 16], codes: [undefined, 0xde, 0xdf] }));
    for (const entry of entries) for (const each of entry) write(each, to);
  }
}

const isList = (value: Packable): value is readonly Packable[] => Array.isArray(value);

interface Codes {
  /** The code of the shortest form, to which the length is added, and the end of its lengths. */
  fix?: readonly [code: number, end: number];
  /** The codes of the forms whose length takes one, two or four bytes. */
  codes: readonly (number | undefined)[];
}

function head(length: number, { fix, codes }: Codes): Uint8Array {
  if (fix && length < fix[1]) return Uint8Array.of(fix[0] + length);
  const [one, two, four] = codes;
  const bytes = new DataView(new ArrayBuffer(5));
  if (one !== undefined && length < 0x100) {
    bytes.setUint8(0, one);
    bytes.setUint8(1, length);
    return new Uint8Array(bytes.buffer, 0, 2);
  }
  if (two !== undefined && length < 0x10000) {
    bytes.setUint8(0, two);
    bytes.setUint16(1, length);
    return new Uint8Array(bytes.buffer, 0, 3);
  }
  bytes.setUint8(0, four ?? 0);
  bytes.setUint32(1, length);
  return new Uint8Array(bytes.buffer);
}

function numberBytes(value: number): Uint8Array {
  if (Number.isInteger(value) && value >= -32 && value < 128) return Uint8Array.of(value & 0xff);
  const bytes = new DataView(new ArrayBuffer(9));
  if (Number.isInteger(value) && value >= 0 && value < 2 ** 32) {
    const isShort = value < 2 ** 16;
    bytes.setUint8(0, isShort ? 0xcd : 0xce);
    if (isShort) bytes.setUint16(1, value);
    else bytes.setUint32(1, value);
    return new Uint8Array(bytes.buffer, 0, isShort ? 3 : 5);
  }
  if (Number.isSafeInteger(value)) {
    bytes.setUint8(0, 0xd3);
    bytes.setBigInt64(1, BigInt(value));
  } else {
    bytes.setUint8(0, 0xcb);
    bytes.setFloat64(1, value);
  }
  return new Uint8Array(bytes.buffer);
}

// ---- reading ----

/** Decodes a value from MessagePack. Keys become strings, as objects require. */
export function unpacked(bytes: Uint8Array, extension: Extension = asItIs): unknown {
  return new Reader(bytes, extension).value();
}

const asItIs: Extension = (_, data) => data;

class Reader {
  readonly #view: DataView;
  readonly #bytes: Uint8Array;
  readonly #extension: Extension;
  #at = 0;

  constructor(bytes: Uint8Array, extension: Extension) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#extension = extension;
  }

  value(): unknown {
    const code = this.#uint(1);
    if (code < 0x80) return code;
    if (code < 0x90) return this.#map(code & 0x0f);
    if (code < 0xa0) return this.#list(code & 0x0f);
    if (code < 0xc0) return this.#text(code & 0x1f);
    if (code >= 0xe0) return code - 0x100;
    return this.#long(code);
  }

  #long(code: number): unknown {
    switch (code) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return code === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return new Uint8Array(this.#take(this.#uint(1 << (code - 0xc4))));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.#extended(this.#uint(1 << (code - 0xc7)));
      case 0xca:
        return this.#view.getFloat32(this.#skip(4));
      case 0xcb:
        return this.#view.getFloat64(this.#skip(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#uint(1 << (code - 0xcc));
      case 0xcf:
        return Number(this.#view.getBigUint64(this.#skip(8)));
      case 0xd0:
        return this.#view.getInt8(this.#skip(1));
      case 0xd1:
        return this.#view.getInt16(this.#skip(2));
      case 0xd2:
        return this.#view.getInt32(this.#skip(4));
      case 0xd3:
        return Number(this.#view.getBigInt64(this.#skip(8)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#uint(1 << (code - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#list(this.#uint(2 << (code - 0xdc)));
      case 0xde:
      case 0xdf:
        return this.#map(this.#uint(2 << (code - 0xde)));
      default:
        if (code >= 0xd4 && code <= 0xd8) return this.#extended(1 << (code - 0xd4));
        throw new TypeError(`invalid MessagePack type byte ${code}`);
    }
  }

  #skip(bytes: number): number {
    this.#at += bytes;
    return this.#at - bytes;
  }

  /** Reads an unsigned integer of one, two or four bytes. */
  #uint(bytes: number): number {
    const at = this.#skip(bytes);
    if (bytes === 1) return this.#view.getUint8(at);
    return bytes === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #take(length: number): Uint8Array {
    const at = this.#skip(length);
    if (this.#at > this.#bytes.length) throw new TypeError("truncated MessagePack");
    return this.#bytes.subarray(at, at + length);
  }

  #text(length: number): string {
    return Buffer.from(this.#take(length)).toString("utf8");
  }

  #list(length: number): unknown[] {
    return Array.from({ length }, () => this.value());
  }

  #map(length: number): Record<string, unknown> {
    const entries = Array.from({ length }, () => [String(this.value()), this.value()] as const);
    return Object.fromEntries(entries);
  }

  #extended(length: number): unknown {
    const code = this.#view.getInt8(this.#skip(1));
    return this.#extension(code, this.#take(length));
  }
}
