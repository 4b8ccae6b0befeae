"""`treering repair` and `treering salvage` of damaged stores: disks fail, killed, two at once.

Damages a store: its segments (missing, empty, cut, another store's, older copies), its manifest, or
the agreement of log, views and index. Then runs both commands: with failing system calls, killed at
each kind of call and run again, two at once, beside a server, and on full or read-only media.
Expected: no file is deleted, and every earlier file is found unchanged afterwards; the events that
repair reports as lost are exactly those that cannot be read; salvage keeps every readable event up
to its conversation's first damage, at its offset, and `verify --deep` finds its store sound; exit
codes are the documented ones; a second run changes nothing.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections import defaultdict
from pathlib import Path

import client
import grpc
from kinds import damage
from ledger import digest, read_log, told
from load import Load
from server import Refused, Server
from shim import KILL_BEFORE, Shim
from world import DAMAGED, FAILED, LOCKED, NO_SUCH, OK, USAGE, Skip, clear, copy, photograph

SEGMENT = damage.SEGMENT
NEWER = 7

# The conversation for events that stand for what salvage left out.
LEFT_OUT = "treering-salvage"

CALLS = ("open", "write", "sync", "rename", "mkdir", "read", "dirsync", "lock")


def run(world):
    stores = Stores(world)
    plan = [(harm, *one) for harm in HARMS for one in harm.places(stores)]
    world.rng.shuffle(plan)
    # Runs one of each harm first.
    seen = set()
    plan.sort(key=lambda one: one[0].name in seen or seen.add(one[0].name) is not None)
    world.count("harms", len(plan))
    parts = [faults, killed, at_once, beside_a_server, wrong_targets, full_disk, read_only_media]
    rounds = [(harmed, one) for one in plan]
    special = [(part, None) for part in parts]
    # The short form takes some of them, which differ with the seed.
    short = 12
    rounds = rounds[:short] + special + rounds[short:] + special * 9
    for number in world.rounds(short=short + len(parts), long=len(rounds)):
        part, one = rounds[number]
        try:
            part(world, stores, *([one] if one else []))
        except Skip as why:
            world.skip(str(why))


# ---- stores ----


class Stores(damage.Stores):
    """A good store with interleaved conversations and its events, an older copy, another store."""

    def __init__(self, world):
        super().__init__(world)
        with Server(world, self.good, None, SEGMENT) as server:
            load = Load(server, self.ledger, "repair", writers=4)
            load.wait_for(120)
            load.stop()
            self.truth = {e.position.offset: fact(e) for e in read_log(server.client())}
            server.stop()
        self.head = max(self.truth)
        self.later = self.with_a_later_timeline(world)

    def segments(self):
        """The files of the log, with the first and last offset of each."""
        files = sorted((self.good / "log").glob("*.redb"))
        firsts = [int(f.stem.split("-")[0], 16) for f in files]
        ends = [first - 1 for first in firsts[1:]] + [self.head]
        return [(f.relative_to(self.good), first, end) for f, first, end in zip(files, firsts, ends)]

    def with_a_later_timeline(self, world):
        """A copy that lost its last segment, accepted the loss, and got new events."""
        data = copy(self.good, world.folder("later") / "data")
        (data / self.segments()[-1][0]).unlink()
        done = world.run("repair", "--accept-loss", data=data)
        world.expect(done.code == OK, f"a loss is accepted: {done}")
        with Server(world, data, None, SEGMENT) as server:
            db = server.client()
            db.append([client.created("later"), *[client.message("user", f"later {n}") for n in range(40)]])
            db.search("later", at_least=client.event_pb2.Position(offset=1))
            server.stop()
        return data


def fact(event):
    return event.conversation_id, event.revision, event.id, digest(event)


# ---- harms ----


class Harm:
    """Damage to a copy of the store. `places`: the files that it can damage."""

    def __init__(self, name, places, do):
        self.name, self.places, self.do = name, places, do


def segments(which):
    return lambda stores: [(file,) for file, *_ in which(stores.segments())]


def manifest(_):
    return [(MANIFEST,)]


def once(_):
    return [(None,)]


MANIFEST = "log/MANIFEST"
SEALED, LAST, ANY = (segments(f) for f in (lambda s: s[:-1], lambda s: s[-1:], lambda s: s))


def of_file(kind):
    return lambda world, stores, data, file: kind(world, stores, data, Path(file))


def flip_byte(world, stores, data, file):
    path = data / file
    text = bytearray(path.read_bytes())
    at = world.rng.randrange(len(text))
    text[at] ^= 1 << world.rng.randrange(8)
    path.write_bytes(text)


def later_derived(world, stores, data, _):
    """The old log, with the views and the index of a later timeline."""
    copy(stores.later / "index", data / "index")
    shutil.copy2(stores.later / "views.redb", data / "views.redb")


def later_views(world, stores, data, _):
    shutil.copy2(stores.later / "views.redb", data / "views.redb")


def later_index(world, stores, data, _):
    copy(stores.later / "index", data / "index")
    (data / "views.redb").unlink()


def later_manifest(world, stores, data, _):
    shutil.copy2(stores.later / MANIFEST, data / MANIFEST)


def all_segments(world, stores, data, _):
    for path in (data / "log").glob("*.redb"):
        path.unlink()


def two_losses(world, stores, data, _):
    # An idle server joins segments, so there may be only one.
    sealed = stores.segments()[:-1]
    for file, *_ in world.rng.sample(sealed, min(2, len(sealed))):
        (data / file).unlink()
    (data / MANIFEST).unlink()


HARMS = [
    Harm("nothing", once, lambda *_: None),
    Harm("a sealed segment is missing", SEALED, of_file(damage.delete)),
    Harm("the last segment is missing", LAST, of_file(damage.delete)),
    Harm("a sealed segment is empty", SEALED, of_file(damage.empty)),
    Harm("the last segment is empty", LAST, of_file(damage.empty)),
    Harm("a segment is cut in half", ANY, of_file(damage.halve)),
    Harm("a segment is another store's", ANY, of_file(damage.foreign)),
    Harm("the last segment is an older copy", LAST, of_file(damage.older)),
    Harm("a segment has noise", ANY, of_file(damage.noise)),
    Harm("the manifest is missing", manifest, of_file(damage.delete)),
    Harm("the manifest has another byte", manifest, flip_byte),
    Harm("the manifest is an older copy", manifest, of_file(damage.older)),
    Harm("the manifest is another store's", manifest, of_file(damage.foreign)),
    Harm("the manifest is a later timeline's", once, later_manifest),
    Harm("the manifest and two segments are missing", once, two_losses),
    Harm("views and index are of a later timeline", once, later_derived),
    Harm("the views are of a later timeline", once, later_views),
    Harm("the index is of a later timeline, and there are no views", once, later_index),
    Harm("all segments are missing", once, all_segments),
    Harm("the log is missing", once, damage.no_log),
    Harm("the log is an older copy", once, damage.old_log),
    Harm("a segment stands there twice", once, damage.stray_segment),
]

# These lose no event.
LOSE_NOTHING = {"nothing", "the manifest is missing", "the manifest has another byte"}

# Here the store may serve other events than the ledger has, because nothing shows which are right.
OTHERS = {"the manifest is another store's"}


def harmed(world, stores, one):
    harm, file = one
    data = copy(stores.good, world.folder("store") / "data")
    harm.do(world, stores, data, file)
    what = harm.name if file is None or file == MANIFEST else f"{harm.name} ({file.name})"
    raw = copy(data, data.parent / "raw")
    before = contents(data)
    told_of = look(world, stores, data, harm, what)
    taken = salvaged(world, stores, raw, harm, what)
    accepted(world, data, before, what)
    survived = served(world, stores, data, harm, what)
    if survived is None or told_of is None or harm.name in OTHERS:
        return
    judge(world, stores, harm, what, told_of, survived, taken)


# ---- checks ----


def contents(data):
    """The hashes of all files, to find them later under any name."""
    found = {}
    for path in sorted(data.rglob("*")):
        name = str(path.relative_to(data))
        if path.is_file() and path.stat().st_size and name != "LOCK":
            found[hashlib.sha256(path.read_bytes()).hexdigest()] = name
    return found


def nothing_deleted(world, data, before, what):
    after = contents(data)
    gone = sorted(name for sum_, name in before.items() if sum_ not in after)
    world.expect(not gone, f"{what}: not found any more: {gone[:4]}")


def report(world, done, what):
    try:
        return json.loads(done.out)
    except ValueError:
        world.found(f"{what}: no JSON: {done}")
        return None


def look(world, stores, data, harm, what):
    """Runs `repair`: it reports losses, and rebuilds at most a manifest, without a loss."""
    before = photograph(data)
    found = contents(data)
    done = world.run("repair", "--json", data=data)
    said = report(world, done, what) if done.code in (OK, DAMAGED) else None
    world.expect(done.code in (OK, DAMAGED), f"{what}: not an exit code of repair: {done}")
    nothing_deleted(world, data, found, f"{what}, after a look")
    if said is None:
        return None
    world.expect((done.code == OK) == said["whole"], f"{what}: exit code {done.code}, whole is {said['whole']}")
    if said.get("manifest_rebuilt"):
        world.count("manifests made anew without a loss")
        world.expect(said["whole"] and not said["lost"], f"{what}: made anew, and lost {said['lost']}")
    else:
        changed = differing(before, photograph(data))
        world.expect(not changed, f"{what}: a look changed {changed[:4]}")
    if harm.name in LOSE_NOTHING:
        world.expect(done.code == OK and said["whole"], f"{what}: costs nothing, and repair says: {said}")
    again = photograph(data)
    second = world.run("repair", "--json", data=data)
    world.expect(second.code == done.code, f"{what}: the second look: {second}")
    world.expect(photograph(data) == again, f"{what}: a second look changed {differing(again, photograph(data))[:4]}")
    return {n for lost in said["lost"] for n in range(lost["from"], lost["to"] + 1)}


def differing(before, after):
    return sorted(k for k in {*before, *after} if before.get(k) != after.get(k))


def accepted(world, data, before, what):
    done = world.run("repair", "--accept-loss", data=data)
    world.expect(done.code == OK, f"{what}: a loss is accepted: {done}")
    nothing_deleted(world, data, before, f"{what}, accepted")
    after = photograph(data)
    for args in (["repair", "--accept-loss"], ["repair"]):
        again = world.run(*args, data=data)
        world.expect(again.code == OK, f"{what}: a second time: {again}")
        changed = differing(after, photograph(data))
        world.expect(not changed, f"{what}: a second `{' '.join(args)}` changed {changed[:4]}")


def served(world, stores, data, harm, what):
    """The events that a server serves afterwards, by offset. Checks them, and that appends work."""
    try:
        with Server(world, data, None, SEGMENT) as server:
            db = server.client()
            done = db.append([client.created("after"), client.message("user", "after the loss")], str(uuid.uuid4()))
            new = done.events[0].position.offset
            found = {}
            wrong = 0
            for offset in range(1, min(new, stores.head + 1)):
                event = one_event(db, offset)
                if event is not None:
                    found[offset] = fact(event)
                    wrong += found[offset] != stores.truth.get(offset)
            server.stop()
    except (Refused, grpc.RpcError) as refused:
        said = told(refused) if isinstance(refused, grpc.RpcError) else refused
        world.found(f"{what}: after a loss was accepted the store does not serve: {said}")
        return None
    world.count("events held against the truth", len(found))
    if harm.name in OTHERS and found and wrong == len(found):
        return None
    world.expect(not wrong, f"{what}: {wrong} of {len(found)} events are not what they were")
    return found


def one_event(db, offset):
    request = client.events_pb2.ReadRequest(log=client.events_pb2.LogSource(), from_offset=offset, limit=1)
    try:
        for batch in db.events.Read(request, metadata=db.metadata, timeout=30):
            for event in batch.events:
                return event if event.position.offset == offset else None
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.DATA_LOSS:
            raise
    return None


def salvaged(world, stores, raw, harm, what):
    """Checks that salvage changes nothing and makes a sound store. Returns the salvaged events."""
    out = raw.parent / "out"
    clear(out)
    before = photograph(raw)
    done = world.run("salvage", "--to", str(out), "--json", data=raw)
    world.expect(photograph(raw) == before, f"{what}: salvage changed {differing(before, photograph(raw))[:4]}")
    expected = (OK,) if (raw / "log").is_dir() else (NO_SUCH,)
    if not world.expect(done.code in expected, f"{what}: not an exit code of salvage: {done}") or done.code != OK:
        return {}
    world.sound(out, f"{what}: what was salvaged")
    taken = {}
    with Server(world, out, None, SEGMENT) as server:
        for event in read_log(server.client()):
            taken[event.position.offset] = fact(event)
        server.stop()
    if harm.name not in OTHERS:
        wrong = sum(1 for offset, one in taken.items() if stores.truth.get(offset) != one)
        world.expect(not wrong, f"{what}: {wrong} of {len(taken)} salvaged events are not what they were")
        said = json.loads(done.out)["events"]["taken"]
        world.expect(said == len(taken), f"{what}: salvage says that it took {said} events; it has {len(taken)}")
    world.count("events salvaged", len(taken))
    return taken


def sound_beginnings(events):
    """The offsets of each conversation's events before its first gap."""
    by_revision = defaultdict(dict)
    for offset, (conversation, revision, *_) in events.items():
        by_revision[conversation][revision] = offset
    kept = set()
    for offsets in by_revision.values():
        revision = 1
        while revision in offsets:
            kept.add(offsets[revision])
            revision += 1
    return kept


def judge(world, stores, harm, what, lost, survived, taken):
    readable = set(survived)
    # New events may reuse lost offsets behind the end of the log; `served` does not return those.
    both = lost & readable
    world.expect(not both, f"{what}: {len(both)} events were called lost and can be read: {sorted(both)[:5]}")
    beyond = set(stores.truth) - readable - lost
    if harm.name in LOSE_NOTHING:
        world.expect(readable == set(stores.truth), f"{what}: of {stores.head} events {len(readable)} are left")
    if "noise" not in harm.name and "older copy" not in harm.name and "later" not in harm.name:
        world.expect(not beyond, f"{what}: {len(beyond)} events cannot be read and were not called lost: {sorted(beyond)[:5]}")
    missing = sound_beginnings(survived) - set(taken)
    world.expect(not missing, f"{what}: salvage left {len(missing)} events that can be read: {sorted(missing)[:5]}")
    more = set(taken) - readable
    world.expect(not more, f"{what}: salvage took {len(more)} events that repair gave up: {sorted(more)[:5]}")


# ---- faults during repair and salvage ----


def trouble(world, stores):
    """A copy that lost a segment in the middle and the content of the last one."""
    data = copy(stores.good, world.folder("store") / "data")
    files = [file for file, *_ in stores.segments()]
    (data / world.rng.choice(files[:-1])).unlink()
    os.truncate(data / files[-1], 0)
    return data


def whole_afterwards(world, data, before, what):
    """Checks that a repair without faults completes, and that the store opens."""
    done = world.run("repair", "--accept-loss", data=data)
    world.expect(done.code == OK, f"{what}; then again: {done}")
    nothing_deleted(world, data, before, f"{what}, then again")
    done = world.run("ls", data=data)
    world.expect(done.code == OK, f"{what}; the store opens: {done}")


def faults(world, stores):
    data = trouble(world, stores)
    raw, before = copy(data, data.parent / "raw"), contents(data)
    shim = Shim(world, data.parent)
    for _ in range(12 if world.long else 4):
        op, error = world.rng.choice(CALLS), world.rng.choice([errno.EIO, errno.ENOSPC, errno.EMFILE])
        skip, count = world.rng.randrange(6), world.rng.choice([1, -1])
        for args in (["repair", "--accept-loss"], ["salvage", "--to", str(data.parent / "out")], ["repair"]):
            copy(raw, data)
            clear(data.parent / "out")
            shim.clear_rules()
            shim.rule(op, error=error, skip=skip, count=count)
            done = world.run(*args, data=data, env=shim.environment())
            met, what = shim.hits(), f"{errno.errorcode[error]} of {op} from call {skip} on ({count}) in `{args[0]}`"
            shim.clear_rules()
            world.count("faults met", met)
            world.expect(done.code in (OK, FAILED, LOCKED, DAMAGED), f"{what}: {done}")
            nothing_deleted(world, data, before, what)
            if args[0] == "salvage":
                after_a_broken_salvage(world, data, raw, done, what)
            whole_afterwards(world, data, before, what)


def after_a_broken_salvage(world, data, raw, done, what):
    out = data.parent / "out"
    if done.code == OK:
        world.sound(out, what)
    clear(out)
    again = world.run("salvage", "--to", str(out), data=data)
    world.expect(again.code == OK, f"{what}; then again: {again}")
    world.sound(out, f"{what}; then again")


def killed(world, stores):
    data = trouble(world, stores)
    raw, before = copy(data, data.parent / "raw"), contents(data)
    shim = Shim(world, data.parent)
    for _ in range(20 if world.long else 5):
        op, skip = world.rng.choice(["open", "write", "sync", "rename", "mkdir", "dirsync"]), world.rng.randrange(5)
        for args in (["repair", "--accept-loss"], ["salvage", "--to", str(data.parent / "out")]):
            copy(raw, data)
            clear(data.parent / "out")
            shim.clear_rules()
            shim.rule(op, action=KILL_BEFORE, skip=skip)
            words = [world.binary, *args, "--data", str(data)]
            env = {**os.environ, **shim.environment()}
            done = subprocess.run(words, capture_output=True, env=env, timeout=180, check=False)
            shim.clear_rules()
            what = f"`{args[0]}` killed before its {op} number {skip}"
            world.count("killed", done.returncode == -signal.SIGKILL)
            nothing_deleted(world, data, before, what)
            if args[0] == "salvage":
                world.expect(contents(data) == before, f"{what} changed the damaged store")
                left = (data.parent / "out").exists() and any((data.parent / "out").iterdir())
                again = world.run("salvage", "--to", str(data.parent / "out"), data=data)
                world.expect(again.code == (USAGE if left else OK), f"{what}; then again: {again}")
            whole_afterwards(world, data, before, what)


def at_once(world, stores):
    data = trouble(world, stores)
    raw, before = copy(data, data.parent / "raw"), contents(data)
    for _ in range(20 if world.long else 4):
        copy(raw, data)
        words = [world.binary, "repair", "--accept-loss", "--data", str(data)]
        both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        ended = [(p.communicate(timeout=180), p.returncode) for p in both]
        codes = sorted(code for _, code in ended)
        world.expect(codes[0] == OK and codes[1] in (OK, LOCKED), f"two repairs at once: {[(c, e[1].decode()[-200:]) for e, c in ended]}")
        nothing_deleted(world, data, before, "two repairs at once")
        asides = len(list((data / "log").glob("set-aside-*")))
        world.expect(asides == 1, f"two repairs at once: {asides} of them moved something aside")
        whole_afterwards(world, data, before, "two repairs at once")


def beside_a_server(world, stores):
    data = copy(stores.good, world.folder("store") / "data")
    with Server(world, data, None, SEGMENT) as server:
        for args in (["repair"], ["repair", "--accept-loss"], ["salvage", "--to", str(data.parent / "out")]):
            clear(data.parent / "out")
            done = world.run(*args, data=data)
            world.expect(done.code == LOCKED, f"beside a running server: {done}")
        db = server.client()
        db.append([client.created("beside")], str(uuid.uuid4()))
        server.stop()
    world.sound(data, "after repairs beside a server")


def wrong_targets(world, stores):
    data = trouble(world, stores)
    before = photograph(data)
    full = data.parent / "full"
    full.mkdir()
    (full / "a note").write_text("mine")
    for target in (full, data, full / "a note"):
        done = world.run("salvage", "--to", str(target), data=data)
        world.expect(done.code == USAGE, f"salvage to {target.name}: {done}")
    done = world.run("salvage", "--to", str(data / "inside"), data=data)
    world.expect(done.code == USAGE, f"salvage into the damaged store itself: {done}")
    world.expect((full / "a note").read_text() == "mine", "salvage to a folder that is not empty changed it")
    changed = differing(before, photograph(data))
    world.expect(not changed, f"salvage to a wrong place changed the store: {changed[:4]}")
    for nothing in (data.parent / "not-there", full):
        for args in (["repair"], ["repair", "--accept-loss"], ["salvage", "--to", str(data.parent / "out")]):
            done = world.run(*args, data=nothing)
            world.expect(done.code == NO_SUCH, f"where no store is ({nothing.name}): {done}")
    world.expect(not (data.parent / "not-there").exists(), "a repair made a folder where none was")
    world.expect(sorted(p.name for p in full.iterdir()) == ["a note"], "a repair made something where no store was")


def in_a_mount(world, mount, args, data):
    if os.geteuid() != 0 or not shutil.which("mount") or not shutil.which("unshare"):
        raise Skip("mounts need root")
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode:
        raise Skip(f"mounts: {probe.stderr.decode().strip()}")
    words = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", world.binary, *args, "--data", str(data)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
    world.count("commands")
    world.expect("panicked" not in done.stderr and done.returncode >= 0, f"a crash: {done.stderr[-300:]}")
    return done


def full_disk(world, stores):
    data = trouble(world, stores)
    before = photograph(data)
    small = data.parent / "small"
    small.mkdir(exist_ok=True)
    # Makes the disk smaller than the salvaged store, which may be small itself.
    room = data.parent / "room"
    clear(room)
    world.run("salvage", "--to", str(room), data=data)
    taken = sum(path.stat().st_blocks // 2 for path in room.rglob("*"))
    size = max(16, taken // world.rng.choice([2, 4, 16]))
    mount = f'mount -t tmpfs -o size={size}k tmpfs "{small}"'
    done = in_a_mount(world, mount, ["salvage", "--to", str(small / "out")], data)
    world.expect(done.returncode == FAILED, f"salvage to a full disk exits with {done.returncode}: {done.stderr[-300:]}")
    world.expect("room" in done.stderr or "space" in done.stderr, f"salvage to a full disk says: {done.stderr[-300:]}")
    world.expect(photograph(data) == before, "salvage to a full disk changed the damaged store")


def read_only_media(world, stores):
    data = trouble(world, stores)
    before, out = photograph(data), data.parent / "out"
    mount = f'mount --bind "{data}" "{data}" && mount -o remount,bind,ro "{data}"'
    done = in_a_mount(world, mount, ["repair", "--json"], data)
    world.expect(done.returncode == DAMAGED, f"repair on read-only media exits with {done.returncode}: {done.stderr[-300:]}")
    done = in_a_mount(world, mount, ["salvage", "--to", str(out)], data)
    world.expect(done.returncode == OK, f"salvage from read-only media exits with {done.returncode}: {done.stderr[-300:]}")
    world.sound(out, "salvaged from read-only media")
    done = in_a_mount(world, mount, ["repair", "--accept-loss"], data)
    world.expect(done.returncode not in (OK, 101), f"a loss on read-only media cannot be accepted: {done.returncode}")
    target = data.parent / "target"
    target.mkdir()
    mount = f'mount --bind "{target}" "{target}" && mount -o remount,bind,ro "{target}"'
    done = in_a_mount(world, mount, ["salvage", "--to", str(target / "out")], data)
    world.expect(done.returncode == FAILED, f"salvage to read-only media exits with {done.returncode}: {done.stderr[-300:]}")
    world.expect(photograph(data) == before, "a store on read-only media changed")
