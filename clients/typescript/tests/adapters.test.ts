// Tests of what the adapters share: frames, names, MessagePack.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import { blake2b } from "../src/adapters/blake2b.js";
import { filled, frame, jsonOf } from "../src/adapters/frames.js";
import { rewind, short } from "../src/adapters/thread.js";
import { make } from "../src/index.js";
import { packed, unpacked } from "../src/langgraph/msgpack.js";
import { fromPython } from "../src/langgraph/python.js";
import { type Parsed, utf8 } from "../src/words.js";
import { shared, texts } from "./support.js";

const open = shared();
const hex = (text: string) => Buffer.from(blake2b(utf8(text), 16)).toString("hex");

// Long names are shortened as in the Python client: with other hashes, another conversation would
// be used.
test("names that are too long", () => {
  assert.equal(hex(""), "cae66941d9efbd404e4d88758ea67670");
  assert.equal(hex("abc"), "cf4ab791c62b8d2b2109c90275287816");
  assert.equal(hex("x".repeat(600)), "dedbd85b39d010398f521b688167210a");
  assert.equal(short("short"), "short");
  assert.equal(short("x".repeat(600)), `${"x".repeat(479)}-${hex("x".repeat(600))}`);
  assert.equal(short("ä".repeat(300)), `${"ä".repeat(239)}-${hex("ä".repeat(300))}`);
  assert.equal(short("half \ud83d"), "half ?");
});

/** Returns the text of a frame and its item, after encoding and decoding. */
function stored(
  item: Parsed,
  ...events: ReturnType<typeof make.user>[]
): { text: string; item: Parsed } {
  const [custom] = frame("a frame", [[item, events]]);
  const data = custom?.body?.$case === "custom" ? custom.body.value.data : utf8("");
  const [[, packedItem]] = jsonOf(data).items;
  return {
    text: Buffer.from(data).toString(),
    item: filled(
      packedItem,
      events.map(({ body }) => body),
    ),
  };
}

// Content of an event must not be stored twice. An item that looks like a reference, or that an
// event does not store exactly, must still be restored exactly.
test("frames restore their items exactly", () => {
  const long = "a text that is long enough to be worth a reference";
  const image = Buffer.from("a picture of some length").toString("base64");
  const cases: [Parsed, ReturnType<typeof make.user>[]][] = [
    [{ text: long, again: [long] }, [make.user(long)]],
    [{ input: { path: "a", n: [1, 2.5] } }, [make.toolCall("c", "t", { path: "a", n: [1, 2.5] })]],
    [
      { given: '{"a":  1.0, "b": "and so on"}' },
      [make.toolCall("c", "t", '{"a":  1.0, "b": "and so on"}')],
    ],
    [
      { url: `data:image/png;base64,${image}`, image },
      [make.user(make.image(Buffer.from(image, "base64"), { mediaType: "image/png" }))],
    ],
    [
      { thought: long, sig: "c2lnbmF0dXJlIG9mIHNvbWUgbGVuZ3Ro" },
      [make.assistant(make.reasoning(long, { signature: "c2lnbmF0dXJlIG9mIHNvbWUgbGVuZ3Ro" }))],
    ],
    [{ summary: long }, [make.compacted(long, 3)]],
    [{ $treering: "0.p0.text" }, [make.user(long)]],
    [{ $treering: { whole: long } }, [make.user(long)]],
    [{ text: `half of a pair \ud83d ${long}` }, [make.user(`half of a pair \ud83d ${long}`)]],
    [[null, true, 0, -0.5, "", {}, [], { ["__proto__"]: { a: 1 } }], []],
  ];
  for (const [item, events] of cases) {
    const { text, item: back } = stored(item, ...events);
    assert.deepEqual(back, item);
    assert.equal(JSON.stringify(back), JSON.stringify(item));
    const isLooselySaid = JSON.stringify(item).includes("$treering") || text.includes("half of");
    if (events.length && !isLooselySaid) assert.ok(!text.includes(long), text);
  }
  // Python writes NaN and infinities, which JSON lacks.
  assert.deepEqual(jsonOf(utf8('{"a":NaN,"b":"NaN","c":[-Infinity]}')), {
    a: null,
    b: "NaN",
    c: [null],
  });
});

// Each client unpacks rows that the other packed. Covers every length with its own encoding.
test("MessagePack round trip", () => {
  const edges = [7, 8, 16, 31, 32, 53].flatMap((bits) => [2 ** bits - 1, 2 ** bits]).slice(0, -1);
  const numbers = [0, 1, ...edges, -1, -32, -33, -(2 ** 40), 0.5, -1e300];
  const lengths = [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536];
  const values: Parsed[] = [null, true, false, ...numbers];
  for (const length of lengths) {
    values.push("ä".repeat(length), new Uint8Array(length).fill(7));
    values.push(Array.from({ length }, (_, n) => n % 100));
    values.push(Object.fromEntries(Array.from({ length }, (_, n) => [`key ${n}`, n])));
  }
  assert.ok(isDeepStrictEqual(unpacked(packed(values)), values));
  assert.throws(() => unpacked(packed("a long text").subarray(0, 5)), TypeError);
  assert.throws(() => unpacked(Uint8Array.of(0xc1)), TypeError);
});

const PYTHON: [string, unknown][] = [
  ["c7110093a86275696c74696e73a3736574920102", new Set([1, 2])],
  [
    "c72d0093a475756964a455554944d9203030303030303030303030303030303030303030303030303030303030303037",
    "00000000-0000-0000-0000-000000000007",
  ],
  ["c71a0193a7706174686c6962a9506f7369785061746893a12fa161a162", "/a/b"],
  ["c7150193a86461746574696d65a46461746593cd07ea0301", "2026-03-01"],
  [
    "c73b0394a86461746574696d65a86461746574696d65b9323032362d30332d30315430303a30303a30302b30303a3030ad66726f6d69736f666f726d6174",
    "2026-03-01T00:00:00+00:00",
  ],
  ["82a1619401c0cb4004000000000000c4017803a174", { a: [1, null, 2.5, Uint8Array.of(120)], 3: "t" }],
  [
    "c7d30594ba6c616e67636861696e5f636f72652e6d657373616765732e6169a941494d65737361676589a7636f6e74656e74a548656c6c6fb16164646974696f6e616c5f6b776172677380b1726573706f6e73655f6d6574616461746180a474797065a26169a46e616d65c0a26964c0aa746f6f6c5f63616c6c739184a46e616d65a174a46172677380a26964a163a474797065a9746f6f6c5f63616c6cb2696e76616c69645f746f6f6c5f63616c6c7390ae75736167655f6d65746164617461c0b36d6f64656c5f76616c69646174655f6a736f6e",
    "Hello",
  ],
  ["c70307920102", [1, 2]],
];

// Bytes that Python's serializer wrote for a set, a UUID, a path, a date and time, a message and a
// snapshot of a delta channel.
test("values from Python's serializer", () => {
  for (const [bytes, value] of PYTHON) {
    const read: Parsed = fromPython("msgpack", Buffer.from(bytes, "hex"));
    assert.deepEqual(read?.toDict?.().data.content ?? read?.value ?? read, value);
  }
  assert.equal(fromPython("null", utf8("")), null);
  assert.throws(() => fromPython("pickle", utf8("")), /Python's serializer/);
});

// The old branch got the name with the head appended, which the store refused for long names.
test("a branch with the longest name is rewound repeatedly", async () => {
  const conv = await open().create("Example");
  const first = await conv.user("one");
  const name = "b".repeat(200);
  const branch = await conv.fork({ at: first.revision, name });
  for (const text of ["two", "three"]) {
    await branch.user(text);
    await rewind(branch, await branch.state(), first.revision);
  }
  assert.deepEqual(await texts(branch), ["one"]);
  assert.equal((await conv.branches()).length, 4);
});
