"""Data folders with odd names: spaces, newlines, invalid UTF-8, very long, relative.

Expected: each works like any other, or is refused with a message before anything is created.
"""

import os

from ledger import Ledger
from load import fill
from server import Refused, Server
from world import OK

NAMES = [
    b"with space", b"  ", b"new\nline", b"quote'\"$(x)`", b"-dash", b"--data", b"tab\there", "ünïcödé 木".encode(),
    b"not-utf8-\xff\xfe", b"\xc3", b"%41%00", b"a" * 255, b".", b"..hidden", b"semi;colon&", b"star*?[x]", b"log", b"LOCK",
]  # fmt: skip


def run(world):
    names = NAMES if world.long else world.rng.sample(NAMES, 8) + [b"not-utf8-\xff\xfe", b"with space"]
    for name in dict.fromkeys(names):
        world.count("rounds")
        world.begin(repr(name))
        parent = os.fsencode(world.folder("parent"))
        one_path(world, os.path.join(parent, name))
    world.begin("long")
    deep = os.fsencode(world.folder("deep"))
    for length in (1000, 3000, 3900, 4090, 5000):
        world.count("rounds")
        path = deep
        while len(path) < length:
            path = os.path.join(path, b"d" * min(200, max(length - len(path) - 1, 1)))
        one_path(world, path, may_refuse=length > 3500, make=length <= 3500)
    world.begin("relative")
    relative(world)


def one_path(world, path, may_refuse=False, make=True):
    if make:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    ledger = Ledger()
    try:
        with Server(world, os.fsdecode(path)) as server:
            fill(world, server, ledger, conversations=1, large=1)
            ledger.check(server.client(), world, "an odd path")
            server.stop()
    except Refused as refused:
        world.expect(may_refuse and refused.code in (1, 2, 3), f"{len(path)} bytes of path: {refused}")
        world.count("refused")
        return
    done = world.run("ls", data=path)
    world.expect(done.code == OK, f"{done}")
    done = world.run("append", "new", "message", "user", "x", data=path)
    world.expect(done.code == OK, f"{done}")
    world.sound(path, "an odd path")


def relative(world):
    folder = world.folder("relative")
    (folder / "a").mkdir()
    before = os.getcwd()
    os.chdir(folder)
    try:
        for path in ("a/../b", "./c/", "d//e"):
            done = world.run("append", "new", "message", "user", "x", data=path)
            world.expect(done.code == OK, f"{path}: {done}")
            done = world.run("ls", data=path)
            world.expect(done.code == OK, f"{path}: {done}")
            world.sound(path, path)
    finally:
        os.chdir(before)
