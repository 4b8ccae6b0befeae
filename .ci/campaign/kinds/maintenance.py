"""Erasing, backups and rebuilds under load, with kills.

Writers append while one thread erases conversations of another namespace, one backs up to a
folder and one rebuilds the views and the index. Segments are small, so that many begin meanwhile.
The server starts three times: SIGKILL ends the first and third run, SIGTERM the second.
Expected: every acknowledged event is there once, before and after a restart; the store is sound; a
restored backup is sound; search does not find erased content.
"""

import threading
import time
import uuid

import client
import grpc
from ledger import Ledger
from load import Load, text_of_size
from server import Server
from world import OK

ENV = {"TREERING_SEGMENT_BYTES": str(1 << 20)}
ERASED = "erased"
# As in load.py, in bytes, but mostly large, so that segments end often.
SIZES = [(0.5, 200, 2_000), (0.9, 20_000, 60_000), (1.0, 66_000, 300_000)]


def run(world):
    for number in world.rounds(short=2, long=40):
        one_round(world, number)


def one_round(world, number):
    data, target = world.folder("store") / "data", world.folder("backup") / "copy"
    ledger, erased = Ledger(), []
    for life in range(3):
        kills = life % 2 == 0
        with Server(world, data, None, ENV) as server:
            load = Load(server, ledger, f"{world.seed}-{number}-{life}", sizes=SIZES)
            stop = threading.Event()
            jobs = [
                threading.Thread(target=erase, args=(world, server, stop, erased, world.rng.random())),
                threading.Thread(target=repeat, args=(world, server, stop, 0.2, "backup", str(target))),
                threading.Thread(target=repeat, args=(world, server, stop, 2, "rebuild")),
            ]
            for job in jobs:
                job.start()
            load.wait_for(world.rng.randint(150, 400), seconds=8)
            if kills:
                server.kill()
                world.count("kills")
            stop.set()
            for job in jobs:
                job.join()
            load.stop()
            if not kills:
                ledger.check(server.client(), world, "before a restart")
                server.stop()
    with Server(world, data, None, ENV) as server:
        db = server.client()
        ledger.check(db, world, "after a restart")
        ledger.settle(db, world)
        ledger.check(db, world, "after sending again")
        for word in erased:
            hits = server.client(ERASED).search(word)
            world.expect(not hits, f"{word}, which was erased, is found")
        server.stop()
    world.sound(data, "after maintenance under load")
    world.count("acknowledged events", ledger.events())
    restored = world.folder("restored") / "data"
    done = world.run("backup", str(target), data=data)
    if world.expect(done.code == OK, f"a backup at the end: {done}"):
        done = world.run("restore", str(target), "--to", str(restored))
        if world.expect(done.code == OK, f"restoring it: {done}"):
            world.sound(restored, "the restored store")


def command(world, server, *words):
    """Runs a command on the server. A failure is a finding if the server is alive."""
    done = world.run(*words, "--server", f"http://{server.address}")
    if done.code == OK:
        world.count(words[0])
    elif done.code not in (4, 5) and lives_on(server):
        world.found(f"on a server under load: {done}")
    return done


def lives_on(server, stop=None):
    """False if the server was killed just now."""
    time.sleep(0.3)
    return server.alive() and not (stop and stop.is_set())


def repeat(world, server, stop, pause, *words):
    while not stop.wait(pause):
        command(world, server, *words)


def erase(world, server, stop, erased, salt):
    number = 0
    while not stop.is_set():
        conversation, word = str(uuid.uuid4()), f"needle{int(salt * 1e9)}x{number}"
        number += 1
        text = f"{word} " + text_of_size(world.rng, 3_000)
        db = client.Treering(server.address, ERASED)
        try:
            events = [client.created("goes"), client.message("user", text)]
            db.append(events, conversation)
        except grpc.RpcError as error:
            if lives_on(server, stop):
                world.found(f"an append beside the load: {error}")
            return
        finally:
            db.close()
        done = command(world, server, "erase", conversation, "--yes", "--namespace", ERASED)
        if done.code == OK:
            erased.append(word)
