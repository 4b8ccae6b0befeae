"""Heavy calls beside light ones: deep verifies, rebuilds, a huge Build, deep forks, cancelled calls.

The store has many events, one open turn of very many messages and calls, and a long chain of
forks. Calls read all of it, with a light client beside them.
Expected: all calls of the light client succeed; cancelled calls stop using processor time;
SIGTERM ends the process within a time limit whatever runs; every heavy call is answered or refused
with a reason. Prints latencies as ratios to idle, and checks only a generous limit.
"""

import contextlib
import json
import os
import threading
import time

import client
import grpc
from light import Light, median, p99
from server import Server

from treering.v1 import admin_pb2, admin_pb2_grpc

# Longest light call, in seconds: detects a stalled server, and is far above a good latency.
STILL_SECONDS = 5

HEAVY_SECONDS = 60

# Seconds for which the long form repeats each attack: p99 needs some hundred answers.
LONG_SECONDS = 20

# Seconds until the work of cancelled calls must have ended.
SETTLED_SECONDS = 20


def run(world):
    world.count("rounds")
    data = world.folder("store") / "data"
    server = Server(world, data)
    try:
        places = build_up(world, server)
        light = Light(server)
        time.sleep(1)
        before = server.cpu()
        time.sleep(LONG_SECONDS if world.long else 2)
        world.light_load = (server.cpu() - before) / (LONG_SECONDS if world.long else 2)
        light.stop()
        idle = median(light.health), p99(light.health), median(light.append), p99(light.append)
        for attack in (verify_twice, rebuild_twice, huge_build, many_builds, deep_fork, whole_reads, cancelled):
            world.begin(attack.__name__)
            beside(world, server, attack, places, idle)
        world.begin("SIGTERM")
        sigterm_under_load(world, server, places)
    finally:
        server.kill()
    world.sound(data, "after heavy calls")


def build_up(world, server):
    """Appends an open turn of many events, and a chain of forks."""
    db = server.client()
    many = 100_000 if world.long else 20_000
    conversation = db.append([client.created("heavy"), client.message("user", "begin")]).events[0].conversation_id
    for n in range(0, many, 500):
        events = []
        for k in range(n, n + 500, 2):
            events += [client.tool_call(f"c{k}", "read", {"n": k}), client.tool_result(f"c{k}", f"result {k} needle")]
        db.append(events, conversation)
    depth = 2000 if world.long else 400
    forked = db.append([client.created("deep"), client.message("user", "root")]).events[0].conversation_id
    branch, head = "main", 2
    for n in range(depth):
        done = db.fork(forked, head, f"b{n}", branch)
        branch = f"b{n}"
        head = db.append([client.message("user", f"on {n}")], forked, branch).events[-1].revision
    world.count("events in one turn", many)
    world.count("forks in a chain", depth)
    return conversation, forked, branch, depth


def beside(world, server, attack, places, idle):
    """Runs an attack beside the light client, and checks the light client."""
    if not server.alive():
        world.found(f"the server is gone: {server.log()[-300:]}")
        return
    light = Light(server)
    began = time.monotonic()
    with as_from_elsewhere():
        said = attack(world, server, places)
        while world.long and time.monotonic() - began < LONG_SECONDS:
            said = attack(world, server, places)
    seconds = time.monotonic() - began
    light.stop()
    ratios = [value / max(base, 1e-6) for value, base in zip((median(light.health), p99(light.health), median(light.append), p99(light.append)), idle)]
    print(
        f"  {attack.__name__}: {seconds:.1f} s; health {ratios[0]:.1f} × (p99 {ratios[1]:.1f} ×),"
        f" append {ratios[2]:.1f} × (p99 {ratios[3]:.1f} ×) idle; peak {server.rss()[1] >> 20} MiB; {said}",
        flush=True,
    )
    world.expect(not light.errors, f"{attack.__name__}: calls of the light client failed: {light.errors[:2]}")
    worst = max(light.health + light.append, default=0)
    world.expect(worst < STILL_SECONDS, f"{attack.__name__}: a light call took {worst:.1f} s")


@contextlib.contextmanager
def as_from_elsewhere():
    """Lowers the priority of the heavy clients: in use they run on other machines, so here they
    must not take processor time from the server and the light client."""
    set_priority(10)
    try:
        yield
    finally:
        # Only root may raise the priority again; otherwise it stays low for later attacks.
        with contextlib.suppress(PermissionError):
            set_priority(0)


def set_priority(nice):
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def at_once(*calls):
    """Runs calls in threads; returns their results or error codes."""
    results = [None] * len(calls)

    def run_one(n):
        try:
            results[n] = calls[n]()
        except grpc.RpcError as error:
            results[n] = error.code().name

    threads = [threading.Thread(target=run_one, args=(n,)) for n in range(len(calls))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return results


def admin(server):
    db = server.client()
    return admin_pb2_grpc.AdminStub(db.channel), db.metadata


def verify(server, seconds=HEAVY_SECONDS):
    stub, metadata = admin(server)
    last = None
    for last in stub.Verify(admin_pb2.VerifyRequest(deep=True), metadata=metadata, timeout=seconds):
        pass
    return f"sound {last.outcome.sound}"


def rebuild(server, **what):
    stub, metadata = admin(server)
    for _ in stub.Rebuild(admin_pb2.RebuildRequest(**what), metadata=metadata, timeout=HEAVY_SECONDS):
        pass
    return "done"


def open_files(server):
    folder = f"/proc/{server.process.pid}/fd"
    found = set()
    for fd in os.listdir(folder):
        try:
            found.add(os.readlink(f"{folder}/{fd}"))
        except FileNotFoundError:
            pass
    return found


def verify_twice(world, server, places):
    results = at_once(lambda: verify(server), lambda: verify(server))
    world.expect(any(r == "sound True" for r in results), f"of two deep verifies none says that all is sound: {results}")
    return results


def rebuild_twice(world, server, places):
    results = at_once(lambda: rebuild(server, views=True), lambda: rebuild(server, views=True), lambda: rebuild(server, index=True))
    world.expect("done" in results, f"of three rebuilds none is done: {results}")
    views = sorted(p.name for p in server.data.glob("views*"))
    world.count("checks")
    done = server.client().append([client.created("after"), client.message("user", "after the rebuild")])
    world.expect(done.events, "no append after the rebuilds")
    held = open_files(server)
    gone = [one for one in held if "views" in one and "(deleted)" in one]
    world.expect(not gone, f"after two rebuilds the server works on deleted views: {gone}; {views}")
    return results


def build(server, places, seconds=HEAVY_SECONDS):
    db = server.client()
    request = client.context_pb2.BuildRequest(conversation_id=places[0], provider=client.context_pb2.Provider.Value("PROVIDER_OPENAI_CHAT"))
    return db.contexts.Build(request, metadata=db.metadata, timeout=seconds).request


def huge_build(world, server, places):
    built = at_once(lambda: build(server, places))[0]
    if not world.expect(isinstance(built, bytes), f"Build of an open turn answers {built} (guard {HEAVY_SECONDS} s)"):
        return built
    # Without a budget, the request must have the whole open turn.
    messages = json.loads(built)["messages"]
    results = sum(1 for m in messages if m["role"] == "tool")
    begins = messages[0].get("content") == "begin"
    world.expect(
        begins and results == world.counts["events in one turn"] // 2,
        f"Build of an open turn begins with its user's message: {begins}; {results} results of {world.counts['events in one turn'] // 2}",
    )
    return f"{len(built) >> 10} KiB"


def many_builds(world, server, places):
    """Eight Builds with a deadline of one second."""
    results = at_once(*[lambda: build(server, places, 1)] * 8)
    settle(world, server, "eight Builds after their deadline")
    return ["answered" if isinstance(one, bytes) else one for one in results]


def deep_fork(world, server, places):
    _, forked, branch, depth = places
    db = server.client()
    began = time.monotonic()
    texts = [client.text_of(e) for e in db.read(forked, branch) if e.WhichOneof("body") == "message_appended"]
    world.expect(texts == ["root"] + [f"on {n}" for n in range(depth)], f"a chain of {depth} forks reads {len(texts)} messages")
    deep_seconds = time.monotonic() - began
    db.build(forked, "openai-chat", branch)
    db.conversations.Lineage(client.conversation_pb2.LineageRequest(conversation_id=forked, branch=branch), metadata=db.metadata, timeout=30)
    return f"read {deep_seconds:.2f} s for {depth} forks"


def whole_reads(world, server, places):
    """Readers of the whole log that read a little and then wait."""
    streams = []
    for _ in range(20):
        db = server.client()
        stream = db.events.Read(client.events_pb2.ReadRequest(log=client.events_pb2.LogSource()), metadata=db.metadata)
        next(stream)
        streams.append(stream)
    time.sleep(1)
    for stream in streams:
        stream.cancel()
    return f"{len(streams)} streams"


def cancelled(world, server, places):
    """Deep verifies that the client cancels."""
    stub, metadata = admin(server)
    for _ in range(6):
        stream = stub.Verify(admin_pb2.VerifyRequest(deep=True), metadata=metadata)
        threading.Timer(0.3, stream.cancel).start()
        try:
            for _ in stream:
                pass
        except grpc.RpcError:
            pass
        world.count("cancelled calls")
    settle(world, server, "cancelled verifies")
    return "cancelled"


def settle(world, server, what):
    """Waits until the server uses little processor time: work that continues keeps a core busy."""
    usual = world.light_load + 0.5
    until = time.monotonic() + SETTLED_SECONDS
    while time.monotonic() < until:
        before, began = server.cpu(), time.monotonic()
        time.sleep(1)
        load = (server.cpu() - before) / (time.monotonic() - began)
        if load < usual:
            return
    world.found(
        f"{what}: {SETTLED_SECONDS} s later the server still uses {load:.1f} s of processor time a second,"
        f" and {world.light_load:.1f} s for the light client alone"
    )


def sigterm_under_load(world, server, places):
    """SIGTERM while verifies and Builds run."""
    threads = [threading.Thread(target=lambda: at_once(lambda: verify(server)), daemon=True) for _ in range(2)]
    threads += [threading.Thread(target=lambda: at_once(lambda: build(server, places)), daemon=True) for _ in range(2)]
    for one in threads:
        one.start()
    time.sleep(0.7)
    began = time.monotonic()
    server.process.terminate()
    try:
        code = server.process.wait(30)
        world.expect(code == 0, f"SIGTERM under heavy calls: exit code {code}")
    except Exception:
        world.found("SIGTERM under heavy calls: not ended within 30 s")
        server.process.kill()
    print(f"  SIGTERM under heavy calls: {time.monotonic() - began:.1f} s", flush=True)
