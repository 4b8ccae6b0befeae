"""Files of a data folder are flipped, cut, deleted, swapped, replaced by older ones, by folders, by links.

Every file of a closed store (segments, manifest, views, index, LOCK) gets every kind of damage,
one at a time on a copy. Then commands and a server open the copy.
Expected: an exit code of 0 never comes with wrong or missing data; damage to derived files (views,
index, LOCK) loses nothing; an error names the fault and says what to do; a server that starts
serves only the events that were written.
"""

import json
import os
import re
import shutil

import client
import grpc
from ledger import Ledger, read_log
from load import fill
from server import Refused, Server
from world import DAMAGED, FAILED, LOCKED, NO_SUCH, OK, clear, copy, files_of

SEGMENT = {"TREERING_SEGMENT_BYTES": str(2 << 20)}

# Advice that an error message must contain.
ADVICE = re.compile(r"treering (repair|salvage|rebuild|serve|verify|import|restore)|restore|backup|newer|remove|move|delete|copy|permission", re.I)


def run(world):
    stores = Stores(world)
    plan = [(file, kind) for file in files_of(stores.good) for kind in KINDS]
    plan += [(None, kind) for kind in FOLDER_KINDS]
    flips = [f for f in files_of(stores.good) if f.suffix == ".redb"] * (40 if world.long else 2)
    plan += [(file, flip) for file in flips]
    world.rng.shuffle(plan)
    # The short form runs the most common kinds of damage first.
    plan.sort(key=lambda one: not usual(*one))
    world.count("kinds of damage", len(plan))
    for number in world.rounds(short=30, long=len(plan)):
        if number < len(plan):
            one_round(world, stores, *plan[number])


def usual(file, kind):
    return kind in FOLDER_KINDS or (file is not None and str(file).startswith("log/") and kind in (delete, older, foreign, halve))


class Stores:
    """A good store, an older copy of it, and another store."""

    def __init__(self, world):
        self.world, self.ledger = world, Ledger()
        self.good, self.old, self.other = (world.folder(n) / "data" for n in ("good", "old", "other"))
        self.build(self.good, self.ledger, "half", 3)
        copy(self.good, self.old)
        self.build(self.good, self.ledger, "whole", 3)
        self.build(self.other, Ledger(), "other", 6)
        done = world.run("export", "--format", "openai-chat", data=self.good)
        world.expect(done.code == OK, f"a good store: {done}")
        self.exported = {json.loads(line)["id"]: json.loads(line) for line in done.out.splitlines()}
        world.expect(len(self.exported) == 6, f"a good store exports {len(self.exported)} of 6 conversations")
        self.needles = [e for e in self.ledger.entries if "needle" in str(e.events[-1])]

    def build(self, data, ledger, seed, conversations):
        with Server(self.world, data, None, SEGMENT) as server:
            fill(self.world, server, ledger, conversations, batches=8, large=4, seed=seed, most=400_000)
            db = server.client()
            db.search("needle0x0", at_least=client.event_pb2.Position(offset=ledger.events()))
            server.stop()


# ---- kinds of damage: (world, stores, data, file) ----


def flip(world, stores, data, file):
    path = data / file
    size = path.stat().st_size
    if not size:
        return "is empty"
    with open(path, "r+b") as f:
        # Prefers a byte that is not zero, because files have holes.
        for _ in range(200):
            at = world.rng.randrange(size)
            f.seek(at)
            byte = f.read(1)[0]
            if byte:
                break
        f.seek(at)
        f.write(bytes([byte ^ (1 << world.rng.randrange(8))]))
    return f"has a flipped bit at {at}"


def noise(world, stores, data, file):
    path = data / file
    size = path.stat().st_size
    at = world.rng.randrange(max(size - 4096, 1))
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(world.rng.randbytes(min(4096, size)))
    return f"has 4 KiB of noise at {at}"


def head(world, stores, data, file):
    with open(data / file, "r+b") as f:
        f.write(bytes(min(4096, (data / file).stat().st_size)))
    return "has a head of zeros"


def halve(world, stores, data, file):
    os.truncate(data / file, (data / file).stat().st_size // 2)
    return "is cut in half"


def shorten(world, stores, data, file):
    os.truncate(data / file, max((data / file).stat().st_size - 1, 0))
    return "lacks its last byte"


def empty(world, stores, data, file):
    os.truncate(data / file, 0)
    return "is empty"


def longer(world, stores, data, file):
    with open(data / file, "ab") as f:
        f.write(world.rng.randbytes(5000))
    return "has noise behind it"


def delete(world, stores, data, file):
    (data / file).unlink()
    return "is deleted"


def older(world, stores, data, file):
    source = stores.old / file
    if not source.is_file():
        (data / file).unlink()
        return "is deleted, as in an older copy"
    shutil.copy2(source, data / file)
    return "is an older copy's"


def foreign(world, stores, data, file):
    source = stores.other / file
    if not source.is_file():
        same = sorted(p for p in stores.other.rglob(f"*{file.suffix}") if p.is_file() and p.parent.name == file.parent.name)
        if not same:
            return None
        source = same[-1]
    shutil.copy2(source, data / file)
    return "is another store's"


def directory(world, stores, data, file):
    (data / file).unlink()
    (data / file).mkdir()
    return "is a folder"


def dangling(world, stores, data, file):
    (data / file).unlink()
    (data / file).symlink_to("/nowhere/at/all")
    return "is a link to nowhere"


def moved(world, stores, data, file):
    away = data.parent / "moved"
    clear(away)
    shutil.move(data / file, away)
    (data / file).symlink_to(away)
    return "is a link to itself, moved"


def unreadable(world, stores, data, file):
    if os.geteuid() == 0:
        return None
    os.chmod(data / file, 0)
    return "may not be read"


KINDS = [flip, noise, head, halve, shorten, empty, longer, delete, older, foreign, directory, dangling, moved, unreadable]


def stray_segment(world, stores, data, _):
    source = sorted((data / "log").glob("*.redb"))[0]
    shutil.copy2(source, data / "log" / "0000000000ffffff.redb")
    return "log/ has a stray 0000000000ffffff.redb"


def stray_foreign(world, stores, data, _):
    source = sorted((stores.other / "log").glob("*.redb"))[-1]
    shutil.copy2(source, data / "log" / "0000000000ffffff.redb")
    return "log/ has another store's 0000000000ffffff.redb"


def stray_empty(world, stores, data, _):
    (data / "log" / "00000000000fffff.redb").touch()
    (data / "log" / "0000000000000002.redb.new").write_bytes(b"half")
    (data / "log" / "note.txt").write_bytes(b"a note")
    return "log/ has stray files"


def no_log(world, stores, data, _):
    shutil.rmtree(data / "log")
    return "log/ is gone"


def empty_log(world, stores, data, _):
    for path in (data / "log").iterdir():
        path.unlink()
    return "log/ is empty"


def old_log(world, stores, data, _):
    copy(stores.old / "log", data / "log")
    return "log/ is an older copy's"


def foreign_log(world, stores, data, _):
    copy(stores.other / "log", data / "log")
    return "log/ is another store's"


def foreign_index(world, stores, data, _):
    copy(stores.other / "index", data / "index")
    return "index/ is another store's"


def foreign_views(world, stores, data, _):
    for path in stores.other.glob("views*"):
        shutil.copy2(path, data / path.name)
    return "the views are another store's"


def old_derived(world, stores, data, _):
    copy(stores.old / "index", data / "index")
    shutil.copy2(stores.old / "views.redb", data / "views.redb")
    return "views and index are an older copy's"


def no_derived(world, stores, data, _):
    shutil.rmtree(data / "index")
    (data / "views.redb").unlink()
    return "views and index are gone"


def file_for_log(world, stores, data, _):
    shutil.rmtree(data / "log")
    (data / "log").write_bytes(b"")
    return "log is a file"


def file_for_index(world, stores, data, _):
    shutil.rmtree(data / "index")
    (data / "index").write_bytes(b"")
    return "index is a file"


def linked_log(world, stores, data, _):
    away = data.parent / "moved-log"
    clear(away)
    shutil.move(data / "log", away)
    (data / "log").symlink_to(away)
    return "log is a link to itself, moved"


def strays_above(world, stores, data, _):
    (data / "views.rebuild.redb").write_bytes(b"half made")
    (data / "stray").mkdir()
    (data / "stray" / "file").write_bytes(b"x")
    (data / ".DS_Store").write_bytes(b"x")
    return "has stray files"


def last_segment_empty(world, stores, data, _):
    path = sorted((data / "log").glob("*.redb"))[-1]
    os.truncate(path, 0)
    return "the last segment is empty"


FOLDER_KINDS = [
    stray_segment, stray_foreign, stray_empty, no_log, empty_log, old_log, foreign_log, foreign_index, foreign_views,
    old_derived, no_derived, file_for_log, file_for_index, linked_log, strays_above, last_segment_empty,
]  # fmt: skip

# These lose nothing: all events are there, and the damage can be rebuilt or ignored.
HARMLESS = {foreign_index, foreign_views, old_derived, no_derived, file_for_index, strays_above, linked_log, moved}


def harmless(file, kind):
    # The program must not remove a LOCK that it cannot lock.
    if kind in (directory, dangling) and file is not None and file.name == "LOCK":
        return False
    return kind in HARMLESS or (file is not None and file.parts[0] != "log")


# ---- checks ----


def one_round(world, stores, file, kind):
    data = copy(stores.good, world.folder("store") / "data")
    said = kind(world, stores, data, file)
    if said is None:
        return
    what = f"{file or 'the folder'} {said}"
    free = harmless(file, kind)
    if kind is foreign_log:
        whole_other(world, stores, data, what)
        return
    world.count("harmless" if free else "of the log")
    pristine = copy(data, data.parent / "pristine")
    for command in (["ls", "--json"], ["export", "--format", "openai-chat"], ["verify"], ["verify", "--deep"]):
        copy(pristine, data)
        check_command(world, stores, data, command, what, free)
    copy(pristine, data)
    check_server(world, stores, data, what, free)


def whole_other(world, stores, data, what):
    """Another store's whole log has its own manifest, so nothing shows whether log or views were
    replaced. The program must refuse it, or serve the other store completely."""
    done = world.run("export", "--format", "openai-chat", data=data)
    other = world.run("export", "--format", "openai-chat", data=stores.other)
    same = sorted(done.out.splitlines()) == sorted(other.out.splitlines())
    world.expect(done.code != OK or same, f"{what}: neither refused nor the other store, whole: {done}")


def check_command(world, stores, data, command, what, free):
    done = world.run(*command, data=data)
    if done.code != OK:
        check_refusal(world, done, what, free)
    if command[0] == "export":
        check_export(world, stores, done, what)
    if command[0] == "ls" and done.code == OK:
        ids = {json.loads(line)["conversation"] for line in done.out.splitlines()}
        world.expect(ids >= set(stores.exported), f"{what}: ls exits with 0 and lists {len(ids & set(stores.exported))} of {len(stores.exported)} conversations")
    if command == ["verify", "--deep"] and done.code == OK:
        after = world.run("export", "--format", "openai-chat", data=data)
        whole = after.code == OK and after.out.count("\n") == len(stores.exported)
        world.expect(whole, f"{what}: verify --deep finds all sound, and export gives {after.out.count(chr(10))} of {len(stores.exported)} conversations")


def check_refusal(world, done, what, free):
    command = " ".join(done.args)
    world.count("refusals")
    # Deep verify may fail here: it reports damage to views and index.
    if free and "verify" not in done.args:
        world.found(f"{what}, which costs no data: {done}")
    world.expect(done.code in (DAMAGED, NO_SUCH, FAILED) or free, f"{what}: not an exit code for damage: {done}")
    text = done.err + (done.out if "verify" in done.args else "")
    world.expect(ADVICE.search(text), f"{what}: `{command}` does not say what to do: {text[-300:]}")
    if done.args[0] == "verify":
        world.expect("`treering verify` lists" not in text, f"{what}: verify advises to run verify: {text[-300:]}")


def check_export(world, stores, done, what):
    lines, wrong = {}, 0
    for line in done.out.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            wrong += 1
            continue
        lines[one["id"]] = one
    for id_, one in lines.items():
        good = stores.exported.get(id_)
        if good is None:
            wrong += 1
        elif one != good:
            # An incomplete conversation must end at the damage, and the exit code must not be 0.
            part = one["messages"] == good["messages"][: len(one["messages"])]
            wrong += not part or done.code == OK
    world.expect(not wrong, f"{what}: export gives {wrong} wrong conversations: {done}")
    if done.code == OK:
        world.expect(len(lines) == len(stores.exported), f"{what}: SILENT LOSS: export exits with 0 and has {len(lines)} of {len(stores.exported)} conversations")


def check_server(world, stores, data, what, free):
    try:
        with Server(world, data, None, SEGMENT) as server:
            world.count("starts")
            check_served(world, stores, server, what, free)
            server.stop()
    except Refused as refused:
        world.count("starts refused")
        world.expect(not free, f"{what}, which costs no data: {refused}")
        world.expect(ADVICE.search(refused.said), f"{what}: the server does not say what to do: {refused}")
        world.expect(refused.code != LOCKED, f"{what}: damage is called a lock: {refused}")


def check_served(world, stores, server, what, free):
    db = server.client()
    try:
        stored = list(read_log(db))
    except grpc.RpcError as error:
        world.count("reads that say so")
        world.expect(not free, f"{what}, which costs no data: the log cannot be read: {error.details()}")
        world.expect(error.code() == grpc.StatusCode.DATA_LOSS, f"{what}: reading answers {error.code().name}: {error.details()}")
        return
    problems = stores.ledger.compare(stored)
    world.expect(not problems, f"{what}: the server serves it with OK: {(problems or [''])[0]} (and {len(problems) - 1} more)")
    if problems:
        return
    for entry in world.rng.sample(stores.needles, min(4, len(stores.needles))):
        check_search(world, db, entry, stores, what)


def check_search(world, db, entry, stores, what):
    text = client.text_of(entry.events[-1])
    words = text.split()
    request = f'"{words[0]} {words[1]} {words[2]}"'
    try:
        hits = db.search(request, at_least=client.event_pb2.Position(offset=stores.ledger.events()), limit=5)
    except grpc.RpcError as error:
        world.found(f"{what}: search answers {error.code().name}: {error.details()[:200]}")
        return
    at = {(h.conversation_id, h.revision) for h in hits}
    world.expect(at == {(entry.conversation, entry.places[-1][1])}, f"{what}: search for {request} finds {at}")
