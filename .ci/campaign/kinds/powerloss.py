"""Power loss under load: unsynced names and data are reverted.

See ../powerloss.py for the model and its limits. Each round runs a server with the shim under
load, kills it at a random moment or at a system call, reverts unsynced changes (all of them, or a
random part, in pages or in sectors), and starts a server. In every third round a sync fails
before the kill; the pages that Linux drops then are reverted too.
Expected: the store opens, has every acknowledged event once, and accepts appends.
"""

import errno

import powerloss
import shim as shims
from ledger import Ledger
from load import Load
from server import Refused, Server


def run(world):
    for number in world.rounds(short=12, long=300):
        one_round(world, number)


def one_round(world, number):
    data = world.folder("store") / "data"
    ledger = Ledger()
    shim = shims.Shim(world, data)
    env = {"TREERING_SEGMENT_BYTES": str(2 << 20)} if number % 2 else {}
    if number % 4:
        # Starts with an existing store. In the other rounds the loss may affect its creation.
        with Server(world, data, None, env) as server:
            server.stop()
    for life in range(2):
        shim.reset()
        shim.power()
        choose(world, shim, number)
        try:
            with Server(world, data, shim, env) as server:
                load = Load(server, ledger, f"{world.seed}-{number}-{life}", writers=4)
                load.wait_for(world.rng.choice([0, 1, 5, 40, 200]), seconds=4)
                server.kill()
                load.stop()
        except Refused as refused:
            if refused.code != -9:
                world.count("starts that failing calls refused")
        how = world.rng.choice(["all", "random", "random"])
        lost = powerloss.lose(shim, how, world.rng, world.rng.choice([4096, 4096, 512]))
        world.count("power losses")
        world.count("names lost", lost["names"])
        world.count("pages lost", lost["pages"])
        why = f"after a power loss ({how}: {lost['names']} names, {lost['pages']} pages)"
        shim.reset()
        try:
            with Server(world, data, shim, env) as server:
                db = server.client()
                if not ledger.check(db, world, why):
                    return
                ledger.settle(db, world)
                ledger.check(db, world, f"{why}, after sending again")
                server.stop()
        except Refused as refused:
            world.found(f"{why} the store does not open: {refused}")
            return
    world.sound(data, why)
    ledger.check_export(world, data, why)
    world.count("acknowledged events", ledger.events())


def choose(world, shim, number):
    """Chooses how this run of the server ends, and which sync fails before."""
    rng = world.rng
    if number % 3 == 2:
        pattern = rng.choice(["/log/", "/log/", ""])
        shim.rule("sync", error=errno.EIO, skip=rng.randint(1, 40), count=rng.choice([1, 1, 3]), pattern=pattern)
    if number % 2:
        op = rng.choice(["write", "sync", "rename", "dirsync", "open", "truncate", "mkdir"])
        few = op in ("rename", "dirsync", "truncate", "mkdir")
        skip = rng.randint(0, 8) if few else rng.randint(0, 400)
        shim.rule(op, rng.choice([shims.KILL_BEFORE, shims.KILL_AFTER]), skip=skip)
