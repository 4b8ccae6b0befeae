"""kill -9 at any moment under load, with keyed retries.

The process dies in the middle of whatever it does; the kernel and its page cache live on.
Expected: what was acknowledged is there, once, at the place and with the id that the answer
told; what nobody knows about is there whole or not at all, and once after it was sent again.
Half of the deaths are at a chosen system call instead of a chosen moment, so that the seams
(between a rename and the sync of its folder, say) are hit as often as the long stretches.
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
            # Killed on its way up, by a rule.
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
