"""Single system calls fail: once, for a while, or always; then the disk is healthy again.

Each round picks a call (open, write, sync, rename, truncate, allocate, mkdir, unlink, mmap,
read, sync of a folder, lock), an error (EIO, ENOSPC, EMFILE, EINTR, a short write), a duration
(from the n-th call on; once, thirty times, or until the disk is healthy) and a place (the log, the
views, the index or all files).
Expected: no acknowledged event is lost or duplicated; the process survives, accepts appends again
without a restart once the disk is healthy, and reports its health correctly; a power loss right
afterwards loses no acknowledged event; the store is sound after a restart.
"""

import errno
import time

import powerloss
import shim as shims
from ledger import Ledger, told
from load import Load
from server import Refused, Server

OPS = ["sync", "sync", "write", "write", "open", "rename", "truncate", "allocate", "mkdir",
       "unlink", "mmap", "read", "dirsync", "lock"]  # fmt: skip
ERRORS = {
    "open": [errno.EMFILE, errno.EIO, errno.ENOSPC, errno.EINTR],
    "write": [errno.EIO, errno.ENOSPC, errno.EINTR, "short"],
    "mmap": [errno.ENOMEM, errno.EMFILE],
    "read": [errno.EIO, errno.EINTR],
    "lock": [errno.EINTR, errno.ENOLCK],
}
OTHERWISE = [errno.EIO, errno.ENOSPC, errno.EINTR]
PLACES = ["/log", "/log", "/views", "/index", ""]

# Timeout that detects a server that does not recover.
RECOVERY_SECONDS = 30


def run(world):
    for number in world.rounds(short=14, long=400):
        one_round(world, number)


def one_round(world, number):
    rng = world.rng
    data = world.folder("store") / "data"
    ledger = Ledger()
    shim = shims.Shim(world, data)
    shim.power()
    op = OPS[number % len(OPS)]
    error = rng.choice(ERRORS.get(op, OTHERWISE))
    # Real file systems do not return EINTR forever.
    count = rng.choice([1, 30]) if error == errno.EINTR else rng.choice([1, 30, -1])
    place = rng.choice(PLACES)
    what = f"{op} fails with {name(error)} {times(count)} in {place or 'all'}"
    env = {"TREERING_SEGMENT_BYTES": str(2 << 20)}
    if number % 4:
        with Server(world, data, None, env) as server:
            server.stop()
    try:
        with Server(world, data, shim, env) as server:
            load = Load(server, ledger, f"{world.seed}-{number}", writers=4)
            load.wait_for(rng.randint(5, 60))
            action = shims.SHORT if error == "short" else shims.FAIL
            shim.rule(op, action, 0 if error == "short" else error, rng.randint(0, 5), count, place)
            time.sleep(rng.choice([0.3, 1.0, 3.0]))
            world.count("calls that failed", shim.hits())
            shim.clear_rules()
            recover(world, server, load, ledger, what)
            load.stop()
            world.expect(server.alive(), f"{what}: the server ended: {server.log()[-300:]}")
            if server.alive():
                ledger.check(server.client(), world, f"{what}, before a restart")
            server.kill()
    except Refused as refused:
        world.found(f"{what}: {refused}")
        return
    how = rng.choice(["none", "all", "random"])
    if how != "none":
        lost = powerloss.lose(shim, how, rng)
        what += f", then a power loss ({how}: {lost['names']} names, {lost['pages']} pages)"
    shim.reset()
    reopen(world, data, env, ledger, what)


def recover(world, server, load, ledger, what):
    """Checks that the same process accepts appends once the disk is healthy."""
    before = load.answers
    if load.wait_for(before + 4, RECOVERY_SECONDS):
        world.count("recoveries")
        health = server.healthy()
        world.expect(health == "SERVING", f"{what}: it takes appends again and its health says {health}")
        return
    health = server.healthy() if server.alive() else "gone"
    last = list(load.errors.items())[-1:]
    world.found(f"{what}: no append is taken {RECOVERY_SECONDS} s after the disk is healthy again; health {health}; {last}")


def reopen(world, data, env, ledger, what):
    try:
        with Server(world, data, None, env) as server:
            db = server.client()
            if ledger.check(db, world, f"{what}, after a restart"):
                ledger.settle(db, world)
                ledger.check(db, world, f"{what}, after sending again")
            server.stop()
    except Refused as refused:
        world.found(f"{what}: the store does not open: {refused}")
        return
    world.sound(data, what)
    world.count("acknowledged events", ledger.events())


def name(error):
    return errno.errorcode.get(error, error) if error != "short" else "half a write"


def times(count):
    return {1: "once", -1: "until it is mended"}.get(count, f"{count} times")
