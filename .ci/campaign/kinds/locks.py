"""Locking: LOCK deleted or replaced under a running server, links, several programs at once.

Expected: while a server holds a store, no other process writes to its files, by any path and
whatever happened to LOCK: other processes end with exit code 5 (or, if they only read, with the
right answer). The text in LOCK has no effect. Of several servers that start at once, one serves.
The served store is complete afterwards.
"""

import contextlib
import os
import shutil
import threading

from commands import a_file_to_import, reading, writing
from ledger import Ledger, read_log
from load import Load, fill
from server import Refused, Server
from world import DAMAGED, FAILED, LOCKED, NO_SUCH, OK, REFUSED, clear, copy

# Exit codes of a refused write. 0 would mean a write to a served store.
NOT_WRITTEN = (LOCKED, FAILED, NO_SUCH, REFUSED, DAMAGED)


def run(world):
    attacks = [deleted_lock, replaced_lock, lock_is_a_folder, linked_log, linked_folder, hard_links, moved_folder]
    for number in world.rounds(short=len(attacks), long=len(attacks) * 6):
        beside_a_server(world, attacks[number % len(attacks)], number)
    world.begin("texts")
    stale_texts(world)
    world.begin("two servers")
    for _ in range(20 if world.long else 3):
        two_servers(world)
    world.begin("many commands")
    many_at_once(world)
    world.begin("copies")
    for _ in range(20 if world.long else 3):
        copies(world)


# ---- attacks on the folder; each returns the folder for the commands ----


def deleted_lock(data):
    (data / "LOCK").unlink()
    return data


def replaced_lock(data):
    (data / "LOCK.new").write_text("pid 1\n")
    os.rename(data / "LOCK.new", data / "LOCK")
    return data


def lock_is_a_folder(data):
    (data / "LOCK").unlink()
    (data / "LOCK").mkdir()
    return data


def linked_log(data):
    other = data.parent / "linked-log"
    clear(other)
    other.mkdir()
    (other / "log").symlink_to(data / "log")
    return other


def linked_folder(data):
    other = data.parent / "linked"
    clear(other)
    other.symlink_to(data)
    (data / "LOCK").unlink()
    return other


def link_if_there(source, target):
    """Makes a hard link, unless the running server renamed or deleted the file meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        os.link(source, target)


def hard_links(data):
    """Hard links to the same files in another folder, as `cp -al` makes them."""
    other = data.parent / "hard"
    clear(other)
    shutil.copytree(data, other, copy_function=link_if_there)
    (other / "LOCK").unlink()
    return other


def moved_folder(data):
    other = data.parent / "elsewhere"
    clear(other)
    os.rename(data, other)
    (other / "LOCK").unlink()
    return other


def beside_a_server(world, attack, number):
    what = f"{attack.__name__.replace('_', ' ')} under a running server"
    data = world.folder("store") / "data"
    ledger = Ledger()
    server = Server(world, data)
    fill(world, server, ledger, conversations=2)
    conversation = ledger.entries[0].conversation
    jsonl = a_file_to_import(data.parent)
    load = Load(server, ledger, f"{world.seed}-{number}", writers=2, pace=0.02)
    where = attack(data)
    for command in reading(conversation):
        done = world.run(*command, "--wait", "0", data=where, seconds=60)
        fine = (OK, LOCKED, DAMAGED, FAILED) if attack is lock_is_a_folder else (OK, LOCKED, DAMAGED)
        world.expect(done.code in fine, f"{what}: {done}")
    for command in writing(conversation, jsonl):
        check_refused(world, command, where, what)
    load.stop()
    ledger.check(server.client(), world, f"{what}, on the server")
    server.kill()
    now = where if attack is moved_folder else data
    reopen(world, now, ledger, what)


def check_refused(world, command, where, what):
    """Checks that a writing command beside a server is refused quickly."""
    done = world.run(*command, "--wait", "0", data=where, seconds=15)
    # -1: it ran until the timeout, which `run` has reported already.
    world.expect(done.code in (*NOT_WRITTEN, -1), f"{what}: it writes to a served store: {done}")


def reopen(world, data, ledger, what):
    try:
        lock = data / "LOCK"
        if lock.is_dir():
            lock.rmdir()
        with Server(world, data) as server:
            db = server.client()
            ledger.check(db, world, f"{what}, after a restart")
            server.stop()
    except Refused as refused:
        world.found(f"{what}: the store does not open any more: {refused}")
        return
    world.sound(data, what)


def stale_texts(world):
    """The text in LOCK is for people; the operating system holds the lock."""
    data = world.folder("texts") / "data"
    with Server(world, data) as server:
        fill(world, server, Ledger(), conversations=1)
        server.stop()
    texts = [b"", b"pid 1\naddress http://127.0.0.1:1\n", b"pid 99999999\n", b"pid -1\n", b"\xff\xfe\x00" * 50,
             b"pid " + b"9" * 5000, str(os.getpid()).encode()]  # fmt: skip
    for text in texts:
        (data / "LOCK").write_bytes(text)
        done = world.run("ls", data=data)
        world.expect(done.code == OK, f"LOCK says {text[:20]!r}: {done}")
        done = world.run("append", "new", "message", "user", "x", data=data)
        world.expect(done.code == OK, f"LOCK says {text[:20]!r}: {done}")
        with Server(world, data) as server:
            done = world.run("--wait", "0", "append", "new", "message", "user", "x", data=data)
            world.expect(done.code == LOCKED, f"a served folder: {done}")
            world.expect(server.address in done.err, f"the refusal does not say where the server is: {done}")
            server.stop()


def two_servers(world):
    data = world.folder("two") / "data"
    if world.rng.random() < 0.5:
        with Server(world, data) as server:
            server.stop()
    won, refused = [], []

    def start():
        try:
            won.append(Server(world, data))
        except Refused as one:
            refused.append(one)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.expect(len(won) == 1, f"of three servers started at once {len(won)} serve: {[str(r) for r in refused]}")
    for one in refused:
        world.expect(one.code == LOCKED, f"a second server: {one}")
    for server in won:
        server.kill()


def many_at_once(world):
    """Eight commands that append at the same time, repeatedly."""
    data = world.folder("many") / "data"
    for _ in range(4 if world.long else 2):
        done = []
        append = ["append", "new", "message", "user", "x"]
        threads = [threading.Thread(target=lambda: done.append(world.run(*append, data=data))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        world.count("appends taken", sum(d.code == OK for d in done))
        for one in done:
            world.expect(one.code in (OK, LOCKED), f"appends at once: {one}")
    listed = world.run("ls", "--json", data=data)
    taken = world.counts["appends taken"]
    world.expect(listed.out.count("\n") == taken, f"{taken} appends exited with 0, {listed.out.count(chr(10))} conversations are there")
    world.sound(data, "many appends at once")


def copies(world):
    """A copy of a folder during writes: it must give an error or right data, never wrong data."""
    data = world.folder("copied") / "data"
    ledger = Ledger()
    with Server(world, data, env={"TREERING_SEGMENT_BYTES": str(2 << 20)}) as server:
        load = Load(server, ledger, f"{world.seed}-copy", writers=3)
        load.wait_for(world.rng.randint(20, 100))
        try:
            torn = copy(data, world.work / "torn")
        except shutil.Error:
            # The server deleted a file during the copy.
            torn = None
        load.stop()
        server.kill()
    if torn is None:
        world.count("copies without a file that went")
        return
    try:
        with Server(world, torn) as server:
            stored = list(read_log(server.client()))
            problems = [p for p in ledger.compare(stored) if not p.startswith("LOST")]
            world.expect(not problems, f"a torn copy is served, and wrong: {problems[:1]}")
            world.count("copies that opened")
            server.stop()
    except Refused:
        world.count("copies that were refused")
    except Exception as error:
        world.count(f"copies that said {type(error).__name__}")
