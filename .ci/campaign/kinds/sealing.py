"""Every system call of sealing a segment fails once, for a while, or right at a power loss.

Fills a store until the next append begins a new segment. A first run counts the system calls of
that append (opens, writes, syncs, renames, syncs of the folder …). Then each call, one at a time
on a copy, fails with EIO or EMFILE once, fails until the disk is healthy, or has a kill and a
power loss right before or right after it.
Expected: no acknowledged event is lost, before a restart, after it, and after a power loss.
"""

import errno
import random
import time
import uuid
from pathlib import Path

import client
import powerloss
import shim as shims
from ledger import Ledger, told
from server import Refused, Server
from world import copy

# Builds that do not read TREERING_SEGMENT_BYTES end segments at their default size.
# TREERING_KEEP_FRAMES stops the packing of sealed segments, whose calls would be counted too.
SEGMENT = {"TREERING_SEGMENT_BYTES": str(2 << 20), "TREERING_KEEP_FRAMES": "1"}
MOST_BYTES = 160 << 20
# Timeout that detects a writer that does not recover.
RECOVERY_SECONDS = 20

# Maximum number of appends after a restart before the segment ends.
MOST_LEAD = 80

COUNTED = ("open", "write", "sync", "rename", "dirsync", "truncate", "unlink", "mkdir")

FATES = ["once", "while", "kill before", "kill after", "once, then power", "while, then power"]


def run(world):
    base, entries = up_to_the_seal(world)
    calls, lead = count_calls(world, base, entries)
    plan = [(op, n, fate) for op, many in calls.items() for n in range(many) for fate in FATES]
    world.count("places in the seal", len(plan))
    random.Random(world.seed).shuffle(plan)
    for number in world.rounds(short=16, long=len(plan)):
        if number < len(plan):
            one_round(world, base, entries, lead, *plan[number])


def batch(number, size):
    """An event with incompressible data, the same in every run."""
    data = random.Random(f"sealing {number}").randbytes(size)
    body = client.event_pb2.Custom(type_name="fill", content_type=str(number), data=data)
    return [client.event_pb2.NewEvent(custom=body)]


def segments(data):
    return len(list((Path(data) / "log").glob("*.redb")))


def append(db, ledger, number, size):
    conversation = str(uuid.UUID(int=7 << 64, version=4))
    events = batch(number, size) if number else [client.created("sealing")]
    # Each entry has its own writer, because a retried batch may come after a later one.
    entry = ledger.note(number, conversation, "", events)
    return entry, ledger.send(db, entry)


def up_to_the_seal(world):
    """A folder whose next append begins a segment; its ledger and the sizes of all appends."""
    sizes = fill_until_sealed(world)
    base, ledger = world.folder("base") / "data", Ledger()
    with Server(world, base, None, SEGMENT) as server:
        db = server.client()
        for number, size in enumerate(sizes[:-1]):
            append(db, ledger, number, size)
        server.stop()
    return base, (ledger, sizes)


def fill_until_sealed(world):
    data, ledger, sizes = world.folder("probe") / "data", Ledger(), []
    with Server(world, data, None, SEGMENT) as server:
        db = server.client()
        begun, written = segments(data), 0
        while written < MOST_BYTES:
            # Small appends first; large ones when the segments are evidently not small.
            sizes.append(40_000 if written < (4 << 20) else 900_000)
            entry, error = append(db, ledger, len(sizes) - 1, sizes[-1])
            if error is not None:
                raise RuntimeError(f"a healthy server refused: {told(error)}")
            written += sizes[-1]
            if segments(data) > begun:
                world.count("KiB up to the seal", written >> 10)
                return sizes
    raise RuntimeError(f"no segment ended within {MOST_BYTES >> 20} MiB")


def again(entries):
    """A copy of the base's ledger, with the next number and size."""
    ledger, sizes = entries
    fresh = Ledger()
    fresh.entries = list(ledger.entries)
    return fresh, len(fresh.entries), sizes[-1]


def count_calls(world, base, entries):
    data = copy(base, world.folder("count") / "data")
    ledger, number, size = again(entries)
    shim = shims.Shim(world, data)
    with Server(world, data, shim, SEGMENT) as server:
        db = server.client()
        begun = segments(data)
        # Closing a segment shrinks it, so a few more appends may fit.
        for lead in range(MOST_LEAD):
            before = shim.calls()
            append(db, ledger, number + lead, size)
            delta = {op: n - before[op] for op, n in shim.calls().items()}
            if segments(data) > begun:
                return {op: delta[op] for op in COUNTED if delta[op]}, lead
    raise RuntimeError(f"{MOST_LEAD} more appends end no segment")


def one_round(world, base, entries, lead, op, nth, fate):
    data = copy(base, world.folder("store") / "data")
    ledger, number, size = again(entries)
    shim = shims.Shim(world, data)
    shim.power()
    error = errno.EMFILE if op == "open" else errno.EIO
    what = f"sealing: {op} {nth + 1} fails with {errno.errorcode[error]}: {fate}"
    if fate.startswith("kill"):
        what = f"sealing: power loss right {fate.split()[1]} {op} {nth + 1}"
    try:
        with Server(world, data, shim, SEGMENT) as server:
            db = server.client()
            for _ in range(lead):
                append(db, ledger, number, size)
                number += 1
            action = {"kill before": shims.KILL_BEFORE, "kill after": shims.KILL_AFTER}.get(fate, shims.FAIL)
            shim.rule(op, action, error, nth, -1 if fate.startswith("while") else 1)
            append(db, ledger, number, size)
            if server.alive():
                time.sleep(0.3 if fate.startswith("while") else 0.05)
                append(db, ledger, number + 1, 500)
            world.count("calls that failed", shim.hits())
            shim.clear_rules()
            if server.alive():
                go_on(world, server, ledger, number + 2, what)
            server.kill()
    except Refused as refused:
        world.found(f"{what}: {refused}")
        return
    if fate.startswith("kill") or fate.endswith("power"):
        lost = powerloss.lose(shim, world.rng.choice(["all", "random"]), world.rng)
        what += f" ({lost['names']} names, {lost['pages']} pages lost)"
    reopen(world, data, ledger, what)


def go_on(world, server, ledger, number, what):
    """Checks that appends succeed within a time limit once the disk is healthy."""
    db = server.client()
    until = time.monotonic() + RECOVERY_SECONDS
    error = True
    while error is not None and time.monotonic() < until:
        _, error = append(db, ledger, number, 300)
        number += 1
        time.sleep(0.02 if error is None else 0.3)
    if error is not None:
        world.found(f"{what}: no append is taken with the disk healthy again: {told(error)}")
        return
    for more in range(5):
        append(db, ledger, number + more, 300)
    ledger.check(server.client(), world, f"{what}, before a restart")


def reopen(world, data, ledger, what):
    try:
        with Server(world, data, None, SEGMENT) as server:
            db = server.client()
            if ledger.check(db, world, f"{what}, after a restart"):
                ledger.settle(db, world)
                append(db, ledger, len(ledger.entries), 300)
                ledger.check(db, world, f"{what}, after going on")
            server.stop()
    except Refused as refused:
        world.found(f"{what}: the store does not open: {refused}")
        return
    world.sound(data, what)
