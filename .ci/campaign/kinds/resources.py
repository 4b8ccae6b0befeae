"""Too few file descriptors, a full disk, little address space, a file size limit; then recovery.

Expected: a connected light client is served or gets a reason; no acknowledged event is lost; a
refusal gives its reason; the same process recovers once the limit is gone; the accept loop does
not spin; the disk is reported as full only when it nearly is.
"""

import os
import random
import shutil
import socket
import subprocess
import threading
import time

from ledger import Ledger, told
from load import Load
from server import Refused, Server
from world import Skip

import client

SEGMENT = {"TREERING_SEGMENT_BYTES": str(2 << 20)}

# Timeout that detects a server that does not recover.
RECOVERY_SECONDS = 30


def run(world):
    parts = [few_files, full_disk, address_space, file_size]
    for number in world.rounds(short=len(parts), long=len(parts) * 8):
        try:
            parts[number % len(parts)](world)
        except Skip as why:
            world.skip(str(why))


def after(world, data, ledger, what):
    """Checks the store with a server without the limit."""
    try:
        with Server(world, data, env=SEGMENT) as server:
            db = server.client()
            if ledger.check(db, world, f"{what}, after a restart"):
                ledger.settle(db, world)
                ledger.check(db, world, f"{what}, after sending again")
            server.stop()
    except Refused as refused:
        world.found(f"{what}: the store does not open afterwards: {refused}")
        return
    world.sound(data, what)
    world.count("acknowledged events", ledger.events())


def few_files(world):
    """A small `ulimit -n` and more connections than that, while segments end."""
    files = world.rng.choice([64, 96, 128])
    what = f"ulimit -n {files} with a storm of connections"
    data, ledger = world.folder("files") / "data", Ledger()
    with Server(world, data, env=SEGMENT) as server:
        server.stop()
    try:
        server = Server(world, data, env=SEGMENT, limits=f"ulimit -n {files}")
    except Refused as refused:
        world.found(f"ulimit -n {files}: {refused}")
        return
    with server:
        load = Load(server, ledger, f"{world.seed}-{world.round}", writers=2, sizes=[(1.0, 20_000, 60_000)])
        load.wait_for(5)
        storm = [socket.socket() for _ in range(files * 3)]
        host, port = server.address.split(":")
        for one in storm:
            one.settimeout(0.5)
            try:
                one.connect((host, int(port)))
            except OSError:
                pass
        world.count("connections", len(storm))
        before, answers = server.cpu(), load.answers
        load.pace, began = 0.05, time.monotonic()
        went_on = load.wait_for(answers + 120, 20)
        world.expect(went_on, f"{what}: a connected client got {load.answers - answers} answers meanwhile; {list(load.errors)[-1:]}")
        load.stop()
        spent = (server.cpu() - before) / (time.monotonic() - began)
        world.count("processor time in %, under the storm", round(100 * spent))
        # Packing ended segments takes a moment; a spinning accept loop never stops.
        spent = 1.0
        for _ in range(5):
            if spent >= 0.5:
                spent = used(server)
        world.expect(spent < 0.5, f"{what}: idle, it uses {100 * spent:.0f} % of a core")
        for one in storm:
            one.close()
        until = time.monotonic() + RECOVERY_SECONDS
        while server.healthy(seconds=1) != "SERVING" and time.monotonic() < until:
            time.sleep(0.2)
        world.expect(server.healthy() == "SERVING", f"{what}: not serving afterwards: {server.healthy()}")
        db = server.client()
        ledger.settle(db, world)
        ledger.check(db, world, f"{what}, before a restart")
        searchable(world, server.client("searched"), what)
        server.kill()
    after(world, data, ledger, what)


def used(server):
    """The share of a core that a server uses over 1.5 s."""
    before, began = server.cpu(), time.monotonic()
    time.sleep(1.5)
    return (server.cpu() - before) / (time.monotonic() - began)


def searchable(world, db, what):
    """Checks that the index survived or was rebuilt."""
    done = db.append([client.created("after"), client.message("user", "findmeagain")])
    hits = db.search("findmeagain", at_least=done.events[-1].position)
    world.expect(len(hits) == 1, f"{what}: search finds {len(hits)} of 1")


def full_disk(world):
    """Fills a small file system, then removes a ballast file."""
    if os.geteuid() != 0:
        raise Skip("a full disk: a mount needs root")
    place = world.folder("small")
    size = 32 << 20
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        raise Skip(f"a full disk: {mounted.stderr.decode().strip()}")
    try:
        fill_up(world, place, size)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def fill_up(world, place, size):
    what = "a full disk"
    data, ledger = place / "data", Ledger(namespace="full")
    ballast = place / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    env = SEGMENT if world.round % 8 < 4 else {}
    with Server(world, data, env=env) as server:
        db = server.client("full")
        written, error = until_refused(db, ledger, [60_000, 4_000, 200], size)
        if error is None:
            world.found(f"{what}: never refused on {size >> 20} MiB")
            return
        used = size - shutil.disk_usage(place).free
        world.count("percent of the disk in use at the refusal", round(100 * used / size))
        world.count("KiB of content at the refusal", written >> 10)
        world.expect(error.code().name in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNKNOWN"), f"{what}: {told(error)}")
        world.expect(used > 0.75 * size, f"{what}: refused with {100 * used / size:.0f} % of the disk in use: {told(error)}")
        ledger.check(db, world, f"{what}, while it is full")
        ballast.unlink()
        until, refused = time.monotonic() + RECOVERY_SECONDS, error
        while refused is not None and time.monotonic() < until:
            entry = ledger.note("again", ledger.entries[0].conversation, "", [client.message("user", f"room {len(ledger.entries)}")])
            refused = ledger.send(db, entry)
            time.sleep(0 if refused is None else 0.3)
        world.expect(refused is None, f"{what}: with room again small appends stay refused for {RECOVERY_SECONDS} s: {told(refused)}")
        if refused is None:
            ledger.settle(db, world)
            ledger.check(db, world, f"{what}, with room again")
        server.kill()
    restart_in_place(world, data, ledger, what)


def until_refused(db, ledger, sizes, most):
    """Appends of each size until refused. Returns the accepted bytes, and the last error."""
    rng, written, error = random.Random(5), 0, None
    created = ledger.note("one", "0e8fb6ae-8c2c-4a86-8b5c-000000000001", "", [client.created("full")])
    ledger.send(db, created)
    for size in sizes:
        failures = 0
        while failures < 3 and written < 2 * most:
            body = client.event_pb2.Custom(type_name="fill", content_type=str(len(ledger.entries)), data=rng.randbytes(size))
            # Each entry has its own writer, because a refused batch may come after later ones.
            entry = ledger.note(len(ledger.entries), created.conversation, "", [client.event_pb2.NewEvent(custom=body)])
            error = ledger.send(db, entry)
            failures = 0 if error is None else failures + 1
            written += size if error is None else 0
    return written, error


def restart_in_place(world, data, ledger, what):
    try:
        with Server(world, data, env=SEGMENT) as server:
            ledger.check(server.client("full"), world, f"{what}, after a restart")
            server.stop()
        world.sound(data, what)
    except Refused as refused:
        world.found(f"{what}: the store does not open afterwards: {refused}")


def address_space(world):
    """`ulimit -v` little above the need at the start, with reads and writes of large bodies."""
    data, ledger = world.folder("space") / "data", Ledger()
    with Server(world, data) as server:
        with open(f"/proc/{server.process.pid}/status") as status:
            size = next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))
        server.stop()
    limit = size + (768 << 10)
    what = f"ulimit -v {limit >> 10} MiB"
    try:
        server = Server(world, data, env={**SEGMENT, "MALLOC_ARENA_MAX": "2"}, limits=f"ulimit -v {limit}")
    except Refused as refused:
        world.found(f"{what}: {refused}")
        return
    with server:
        load = Load(server, ledger, f"{world.seed}-{world.round}", writers=6, sizes=[(0.5, 100, 5_000), (1.0, 500_000, 3_000_000)])
        load.wait_for(60, 20)
        load.stop()
        readers = [threading.Thread(target=lambda: ledger.check(server.client(), world, what)) for _ in range(3)]
        for one in readers:
            one.start()
        for one in readers:
            one.join()
        world.expect(server.alive(), f"{what}: the server ended: {server.log()[-300:]}")
        server.kill()
    after(world, data, ledger, what)


def file_size(world):
    """RLIMIT_FSIZE: writes beyond it fail (its signal is ignored)."""
    data, ledger = world.folder("size") / "data", Ledger()
    with Server(world, data) as server:
        server.stop()
    what = "ulimit -f of 3 MiB"
    try:
        server = Server(world, data, limits="trap '' XFSZ; ulimit -f 3072")
    except Refused as refused:
        world.found(f"{what}: {refused}")
        return
    with server:
        load = Load(server, ledger, f"{world.seed}-{world.round}", writers=2, sizes=[(1.0, 5_000, 60_000)], retry=False)
        load.wait_for(300, 5)
        load.stop()
        world.count("refused at the bound", sum(load.errors.values()))
        world.expect(server.alive(), f"{what}: the server ended: {server.log()[-300:]}")
        if server.alive():
            ledger.check(server.client(), world, what)
        server.kill()
    after(world, data, ledger, what)
