"""Small requests that ask for much: millions of empty elements, nesting, half-sent messages, storms.

Sends every call bodies that compress to a thousandth and decode to about the size limit of a
request. Then opens connections that send half a message, nothing, garbage, or only resets. A light
client runs beside all of this.
Expected: a request uses memory of at most 4 × its size limit, and is answered; the unfinished
messages of all connections share one limit; all calls of the light client succeed; the process
stays alive, and ends on SIGTERM.
"""

import gzip
import random
import threading
import time
from pathlib import Path

import http2
from light import Light, p99
from server import Server

import client
from google.protobuf import descriptor as descriptors

# Maximum memory for one request: 4 × the limit of its decoded bytes (16 MiB), and a margin for
# the allocator and concurrent work.
REQUEST_LIMIT = 16 << 20
MOST_FOR_ONE = 4 * REQUEST_LIMIT + (48 << 20)

# Maximum memory for all half-sent requests together: 192 MiB of bytes, their buffers (up to
# twice that), and concurrent work.
MOST_HELD = 448 << 20

EVENTS = "/treering.v1.Events/"
N = REQUEST_LIMIT - 4096


def run(world):
    data = world.folder("store") / "data"
    bodies(world, data)
    # A new process, because memory that the allocator keeps would hide later growth.
    with Server(world, data) as server:
        light = Light(server)
        time.sleep(1)
        idle = p99(light.health), p99(light.append)
        for attack in (half_sent, many_streams, no_preface, slow, garbage, rapid_reset, storm):
            world.count("rounds")
            world.begin(attack.__name__)
            if world.expect(server.alive(), f"the server is gone: {server.log()[-300:]}"):
                attack(world, server)
        light.stop()
        world.begin("light client")
        world.count("answers to the light client", len(light.append))
        world.expect(not light.errors, f"{len(light.errors)} calls of the light client failed: {light.errors[:2]}")
        if idle[0] and light.health:
            print(f"  light client under attack: health p99 {p99(light.health) / idle[0]:.1f} × idle, append p99 {p99(light.append) / max(idle[1], 1e-6):.1f} × idle")
        if server.alive():
            server.stop()
    world.sound(data, "after the attacks")


# ---- bodies ----


def varint(n):
    out = b""
    while n >= 128:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def nested(path, payload):
    for number in reversed(path):
        payload = field(number, payload)
    return payload


def repeats(number, wire=2):
    """As many empty elements as fit."""
    one = varint(number << 3 | 2) + b"\x00"
    return one * (N // len(one))


def append_bodies():
    """Bodies with many elements of each kind that an append can have."""
    event = [5]
    yield "empty events", repeats(5)
    yield "empty expectations", repeats(6)
    for name, kind in (("message_appended", 28), ("tool_result_recorded", 32)):
        parts = {28: 2, 32: 5}[kind]
        yield f"empty parts of {name}", nested([*event, kind], repeats(parts))
    for name, kind, number in (
        ("names of tools", 37, 1), ("guidance", 38, 1), ("entities", 39, 1), ("tool definitions", 45, 1),
        ("labels", 20, 3), ("policies", 20, 6),
    ):  # fmt: skip
        yield f"empty {name}", nested([*event, kind], repeats(number))
    yield "parameters of a config", nested([*event, 21, 1], repeats(3))
    yield "packed revisions", nested([*event, 48, 1], b"\x01" * N)
    yield "a text of 16 MiB", nested([*event, 28, 2, 1], b"a" * N)
    yield "JSON, nested deeply", nested([*event, 35], field(1, b"k") + field(2, b"[" * N))
    yield "JSON, nested in arguments", nested([*event, 29], field(1, b"c") + field(2, b"t") + field(3, b'{"a":' * (N // 5)))
    yield "JSON of many members", nested([*event, 35], field(1, b"k") + field(2, b"[" + b"0," * (N // 2 - 8) + b"0]"))
    yield "unknown fields", repeats(1999)
    yield "groups, nested deeply", (varint(1000 << 3 | 3)) * (N // 2)
    yield "messages, nested deeply", deep(5, 28, 2, 5)
    yield "varints that do not end", b"\x28" + b"\xff" * N


def deep(*numbers):
    payload = b""
    for n in range(4000):
        payload = field(numbers[n % len(numbers)], payload)
    return payload


def other_bodies():
    """Bodies for the other calls: some written by hand, and one for each field by the schema."""
    yield "/treering.v1.Search/Search", "operators", field(1, b"a OR " * (N // 5))
    yield "/treering.v1.Search/Search", "parentheses", field(1, b"(" * N)
    yield "/treering.v1.Search/Search", "prefixes", field(1, b"a* " * 50_000)
    yield "/treering.v1.Contexts/Build", "a policy, nested deeply", field(7, b"[" * N) + field(8, b"[" * N)
    yield "/treering.v1.Tools/Recorded", "arguments, nested deeply", field(3, b"t") + field(4, b'{"a":' * (N // 5))
    yield "/treering.v1.Tools/SuggestArguments", "arguments, nested deeply", field(3, b"t") + field(4, b"[" * N)
    for path, request in requests():
        for one in request.fields:
            repeated = getattr(one, "is_repeated", None)
            if repeated is None:
                repeated = one.label == descriptors.FieldDescriptor.LABEL_REPEATED
            if repeated:
                packed = one.type in (descriptors.FieldDescriptor.TYPE_ENUM, descriptors.FieldDescriptor.TYPE_UINT64)
                yield path, f"{one.name}", field(one.number, b"\x1c" * N) if packed else repeats(one.number)
            elif one.type == descriptors.FieldDescriptor.TYPE_STRING:
                yield path, f"{one.name} of 16 MiB", field(one.number, b"x" * N)
        yield path, "unknown fields", repeats(1999)
    yield "/grpc.health.v1.Health/Check", "a service's name of 16 MiB", field(1, b"x" * N)
    yield "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "a symbol of 16 MiB", field(4, b"x" * N)


def requests():
    """The path and the request's descriptor of each call."""
    # `client` does not import the module of admin.proto.
    from treering.v1 import admin_pb2

    modules = [client.events_pb2, client.conversation_pb2, client.context_pb2, client.tool_pb2, client.search_pb2, admin_pb2]
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method.input_type


class Fresh:
    """A server with a light client; restarts when it uses much more memory than at its start."""

    def __init__(self, world, data):
        self.world, self.data = world, data
        self.begin()

    def begin(self):
        self.server = Server(self.world, self.data)
        self.light = Light(self.server)
        time.sleep(0.5)
        self.base = self.server.rss()[0]

    def end(self):
        self.light.stop()
        self.world.count("answers to the light client", len(self.light.append))
        if self.server.alive():
            self.world.expect(not self.light.errors, f"calls of the light client failed: {self.light.errors[:2]}")
        self.server.kill()

    def get(self):
        if not self.server.alive() or self.server.rss()[0] > self.base + (64 << 20):
            self.end()
            self.begin()
        return self.server


def bodies(world, data):
    fresh = Fresh(world, data)
    plan = [(EVENTS + "Append", name, body) for name, body in append_bodies()]
    plan += [(EVENTS + "AppendStream", name, body) for name, body in list(append_bodies())[:2]]
    others = list(other_bodies())
    if not world.long:
        others = others[:6] + random.Random(world.seed).sample(others[6:], 8)
    plan += others
    for number, (path, name, body) in enumerate(plan):
        codecs = ["gzip", "zstd"] if world.long else [["gzip", "zstd"][number % 2]]
        for codec in codecs:
            if world.only_round in (None, number):
                world.begin(number)
                world.count("rounds")
                one_body(world, fresh.get(), path, name, body, codec)
    if world.only_round is None:
        world.begin("bomb")
        for codec in ("gzip", "zstd"):
            one_body(world, fresh.get(), EVENTS + "Append", "160 MB of empty events", b"\x2a\x00" * (80 << 20), codec)
    fresh.end()


def compress(codec, body):
    if codec == "gzip":
        return gzip.compress(body, 6 if len(body) < (64 << 20) else 1)
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(3).compress(body)
    return body


def one_body(world, server, path, name, body, codec):
    # A body above 16 MiB may use at most 4 × its decompressed size.
    most = max(MOST_FOR_ONE, 4 * len(body))
    what = f"{path.rsplit('.', 1)[1]}: {name}, {codec}"
    packed = compress(codec, body)
    if not server.alive():
        return
    now = reset_peak(server)
    began = time.monotonic()
    try:
        one = http2.Connection(server.address)
        stream = one.open(path, codec)
        sent = one.data(stream, http2.message(packed, True), end=True, seconds=30)
        ended = one.wait(stream, 60) if sent or stream in one.ended else one.ended.get(stream)
        one.close()
    except http2.Closed as closed:
        ended = f"closed: {closed}"
    world.expect(server.alive(), f"{what} ({len(packed) >> 10} KiB) ends the server: {server.log()[-200:]}")
    if not server.alive():
        return
    streams = path.endswith(("Stream", "Subscribe", "Watch", "Info"))
    world.expect(ended is not None or streams, f"{what} ({len(packed) >> 10} KiB) is not answered within 60 s")
    grown = server.rss()[1] - now
    world.count("bodies")
    world.counts["most MiB for one body"] = max(world.counts["most MiB for one body"], grown >> 20)
    world.expect(grown <= most, f"{what}: {len(packed) >> 10} KiB cost {grown >> 20} MiB in {time.monotonic() - began:.1f} s")


def reset_peak(server):
    """Resets the peak of resident memory. Returns its current value."""
    try:
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    except OSError:
        pass
    return server.rss()[0]


# ---- connections ----


def half_sent(world, server):
    """Connections that send most of several large messages and then wait."""
    before = reset_peak(server)
    held, connections = 0, []
    payload = http2.message(b"x" * (15 << 20))[: 14 << 20]
    for n in range(40 if world.long else 15):
        try:
            one = http2.Connection(server.address)
            connections.append(one)
            for _ in range(7):
                stream = one.open(EVENTS + "Append")
                if not one.data(stream, payload, seconds=0.5):
                    break
                held += len(payload)
        except http2.Closed:
            world.count("connections closed on the way")
    grown = server.rss()[1] - before
    world.count("MiB sent in halves", held >> 20)
    world.counts["most MiB for halves"] = grown >> 20
    world.expect(grown < MOST_HELD, f"{len(connections)} connections with half-sent messages cost {grown >> 20} MiB")
    for one in connections:
        one.close()


def many_streams(world, server):
    """Few connections with many streams, each with half a message."""
    before = reset_peak(server)
    connections = []
    payload = http2.message(b"x" * (4 << 20))[: 2 << 20]
    for _ in range(4):
        try:
            one = http2.Connection(server.address)
            connections.append(one)
            for _ in range(300):
                stream = one.open(EVENTS + "Append", "gzip")
                if not one.data(stream, payload, seconds=0.3):
                    break
        except http2.Closed:
            world.count("connections closed on the way")
    grown = server.rss()[1] - before
    world.expect(grown < MOST_HELD, f"{len(connections)} connections with many half-sent streams cost {grown >> 20} MiB")
    for one in connections:
        one.close()


def no_preface(world, server):
    """Connections that send nothing or half a preface. Some stay open for the final SIGTERM."""
    world.idle = []
    for n in range(300):
        try:
            one = http2.Connection(server.address, preface=False)
            if n % 2:
                one.send(http2.PREFACE[:10])
            world.idle.append(one)
        except (http2.Closed, OSError):
            world.count("connections refused")
    expect_health(world, server, "300 connections without a preface")
    for one in world.idle[:200]:
        one.close()


def slow(world, server):
    """Slow loris: connections that send a byte now and then."""
    connections = []
    for _ in range(60):
        try:
            one = http2.Connection(server.address)
            stream = one.open(EVENTS + "Append")
            connections.append((one, stream))
        except (http2.Closed, OSError):
            world.count("connections refused")
    for _ in range(5):
        for one, stream in connections:
            try:
                one.send(http2.frame(http2.DATA, 0, stream, b"\x00"))
            except http2.Closed:
                pass
        time.sleep(0.2)
    expect_health(world, server, "60 slow connections")
    for one, _ in connections:
        one.close()


def garbage(world, server):
    """Connections that send random bytes and random frames."""
    for n in range(400 if world.long else 80):
        try:
            one = http2.Connection(server.address, preface=world.rng.random() < 0.7)
            for _ in range(world.rng.randint(1, 20)):
                if world.rng.random() < 0.3:
                    one.send(world.rng.randbytes(world.rng.randint(1, 2000)))
                else:
                    kind, flags = world.rng.randrange(12), world.rng.randrange(256)
                    one.send(http2.frame(kind, flags, world.rng.choice([0, 1, 3, 2**31 - 1]), world.rng.randbytes(world.rng.randint(0, 300))))
            one.close()
        except (http2.Closed, OSError):
            pass
        world.count("connections with garbage")
    expect_health(world, server, "garbage")


def rapid_reset(world, server):
    """Streams that are opened and reset at once."""
    resets = 0
    before = server.rss()[0]
    for _ in range(20 if world.long else 4):
        try:
            one = http2.Connection(server.address)
            for _ in range(3000):
                one.reset(one.open(EVENTS + "Append"))
                resets += 1
                if resets % 200 == 0:
                    one.pump(0)
        except http2.Closed:
            world.count("connections closed for resetting")
    world.count("resets", resets)
    expect_health(world, server, "rapid reset")
    grown = server.rss()[0] - before
    world.expect(grown < MOST_HELD, f"rapid resets cost {grown >> 20} MiB")


def storm(world, server):
    """Many well-behaved connections at once."""
    failed = []

    def call():
        try:
            db = client.Treering(server.address, "storm")
            db.append([client.created("storm")])
            db.close()
        except Exception as error:
            failed.append(str(getattr(error, "details", lambda: error)())[:160])

    threads = [threading.Thread(target=call) for _ in range(100)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    world.expect(not failed, f"{len(failed)} of 100 honest connections failed: {failed[:1]}")
    expect_health(world, server, "a storm of connections")


def expect_health(world, server, what):
    health = server.healthy(seconds=10)
    world.expect(health == "SERVING", f"{what}: health says {health}")
