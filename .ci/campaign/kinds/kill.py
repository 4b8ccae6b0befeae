"""kill -9 at any moment under load, with keyed retries.

The process dies at any point; the kernel and its page cache survive.
Expected: every acknowledged batch is there once, at the position and with the ids of the answer;
an unanswered batch is there completely or not at all, and once after a retry.
Half of the kills are at a chosen system call instead of a random moment, so that short windows
(such as between a rename and the sync of its folder) are hit as often as long ones.
"""

import shim as shims
from ledger import Ledger
from load import Load
from server import Refused, Server
from world import Skip


def run(world):
    for number in world.rounds(short=6, long=150):
        one_round(world, number)


def one_round(world, number):
    data = world.folder("store") / "data"
    ledger = Ledger()
    try:
        shim = shims.Shim(world, data) if number % 2 else None
    except Skip as why:
        world.skip(str(why))
        shim = None
    env = {"TREERING_SEGMENT_BYTES": str(2 << 20)} if number % 3 else {}
    for life in range(3):
        if shim:
            shim.clear_rules()
            when = world.rng.choice([shims.KILL_BEFORE, shims.KILL_AFTER])
            op = world.rng.choice(["any", "write", "sync", "rename", "dirsync", "truncate", "open", "unlink"])
            skip = world.rng.randint(0, 12) if op in ("rename", "dirsync", "truncate", "unlink") else world.rng.randint(10, 900)
            shim.rule(op, when, skip=skip)
        try:
            with Server(world, data, shim, env) as server:
                load = Load(server, ledger, f"{world.seed}-{number}-{life}")
                load.wait_for(world.rng.randint(5, 250), seconds=6)
                server.kill()
                load.stop()
        except Refused as refused:
            # A rule killed the server during its start.
            if refused.code != -9 or not shim:
                raise
        world.count("kills")
    if shim:
        shim.clear_rules()
    with Server(world, data, None, env) as server:
        db = server.client()
        ledger.check(db, world, "after the kill")
        ledger.settle(db, world)
        ledger.check(db, world, "after sending again")
        server.stop()
    world.sound(data, "after the kills")
    ledger.check_export(world, data, "after the kills")
    world.count("acknowledged events", ledger.events())
