// BLAKE2b with a digest of any length. Node's has 64 bytes only, and a shorter digest is not a part
// of it. For short inputs, such as names.

const MASK = (1n << 64n) - 1n;
const BLOCK_BYTES = 128;

const IV = [
  0x6a09e667f3bcc908n,
  0xbb67ae8584caa73bn,
  0x3c6ef372fe94f82bn,
  0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n,
  0x9b05688c2b3e6c1fn,
  0x1f83d9abfb41bd6bn,
  0x5be0cd19137e2179n,
];

const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const ROUNDS = 12;

/** Columns, then diagonals. */
const MIXES = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
] as const;

const rotated = (word: bigint, bits: bigint): bigint =>
  ((word >> bits) | (word << (64n - bits))) & MASK;

/** Returns a digest of at most 64 bytes (RFC 7693, without a key). */
export function blake2b(input: Uint8Array, digestBytes: number): Uint8Array {
  const h = [...IV];
  h[0] = (h[0] ?? 0n) ^ 0x01010000n ^ BigInt(digestBytes);
  const blocks = Math.max(1, Math.ceil(input.length / BLOCK_BYTES));
  const padded = new Uint8Array(blocks * BLOCK_BYTES);
  padded.set(input);
  const view = new DataView(padded.buffer);
  for (let block = 0; block < blocks; block += 1) {
    const isLast = block === blocks - 1;
    const count = isLast ? input.length : (block + 1) * BLOCK_BYTES;
    compress(h, view, block * BLOCK_BYTES, BigInt(count), isLast);
  }
  const digest = new DataView(new ArrayBuffer(64));
  for (const [index, word] of h.entries()) digest.setBigUint64(index * 8, word, true);
  return new Uint8Array(digest.buffer).subarray(0, digestBytes);
}

function compress(
  h: bigint[],
  view: DataView,
  start: number,
  count: bigint,
  isLast: boolean,
): void {
  const v = new BigUint64Array([...h, ...IV]);
  const at = (index: number): bigint => v[index] ?? 0n;
  v[12] = at(12) ^ count;
  if (isLast) v[14] = at(14) ^ MASK;
  const word = (index: number) => view.getBigUint64(start + index * 8, true);
  for (let round = 0; round < ROUNDS; round += 1) {
    const order = SIGMA[round % SIGMA.length] ?? [];
    for (const [index, [a, b, c, d]] of MIXES.entries()) {
      const [x, y] = [word(order[index * 2] ?? 0), word(order[index * 2 + 1] ?? 0)];
      v[a] = at(a) + at(b) + x;
      v[d] = rotated(at(d) ^ at(a), 32n);
      v[c] = at(c) + at(d);
      v[b] = rotated(at(b) ^ at(c), 24n);
      v[a] = at(a) + at(b) + y;
      v[d] = rotated(at(d) ^ at(a), 16n);
      v[c] = at(c) + at(d);
      v[b] = rotated(at(b) ^ at(c), 63n);
    }
  }
  for (let index = 0; index < 8; index += 1) {
    h[index] = (h[index] ?? 0n) ^ at(index) ^ at(index + 8);
  }
}
