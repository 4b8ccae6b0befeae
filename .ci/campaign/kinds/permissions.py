"""File modes, umask, read-only media, newer formats, clocks before 1970.

Expected: folders are 0700 and files 0600 for any umask; every reading command works on read-only
media and changes no byte, name or time; on a folder without a store it exits with 3 and creates
nothing; a newer format is an error that says so; a wrong clock stops nothing.
"""

import os
import re
import shutil
import stat
import subprocess

import shim as shims
from commands import reading
from ledger import Ledger
from load import fill
from server import Refused, Server
from world import NO_SUCH, OK, Skip, clear, copy, photograph


def run(world):
    for part in (modes, reading_changes_nothing, no_store, read_only_media, newer_format, clocks):
        world.count("rounds")
        world.begin(part.__name__)
        try:
            part(world)
        except Skip as why:
            world.skip(str(why))


def a_store(world, name):
    data = world.folder(name) / "data"
    ledger = Ledger()
    with Server(world, data) as server:
        fill(world, server, ledger, conversations=2)
        server.stop()
    return data, ledger


def modes(world):
    for umask in ("022", "000", "077"):
        data = world.folder(f"umask-{umask}") / "data"
        with Server(world, data, limits=f"umask {umask}", env={"TREERING_SEGMENT_BYTES": str(2 << 20)}) as server:
            fill(world, server, Ledger(), conversations=3, large=3)
            server.stop()
        world.run("rebuild", data=data, limits=f"umask {umask}")
        for path in [data, *sorted(data.rglob("*"))]:
            mode = stat.S_IMODE(path.stat().st_mode)
            wanted = 0o700 if path.is_dir() else 0o600
            name = path.relative_to(data.parent)
            world.expect(mode == wanted, f"umask {umask}: {name} has mode {mode:04o}, not {wanted:04o}")


def reading_changes_nothing(world):
    data, ledger = a_store(world, "reading")
    conversation = ledger.entries[0].conversation
    for command in reading(conversation):
        before = photograph(data)
        done = world.run(*command, data=data)
        world.expect(done.code == OK, f"a closed store: {done}")
        changed = {k for k in {*before, *photograph(data)} if before.get(k) != photograph(data).get(k)}
        world.expect(not changed, f"`{command[0]}` only reads, and changed {sorted(changed)[:6]}")


def no_store(world):
    for command in reading("01900000-0000-7000-8000-0000000000c1"):
        folder = world.folder("none")
        for data in (folder / "not-there", folder / "empty"):
            if data.name == "empty":
                data.mkdir()
            done = world.run(*command, data=data)
            world.expect(done.code == NO_SUCH, f"a folder that is no store ({data.name}): not exit code 3: {done}")
            made = sorted(p.name for p in data.rglob("*")) if data.exists() else []
            gone = data.exists() == (data.name == "empty")
            world.expect(gone and not made, f"`{command[0]}` made {made or data.name} where no store was")


def read_only_media(world):
    if os.geteuid() != 0 or not shutil.which("mount") or not shutil.which("unshare"):
        raise Skip("read-only media: a mount needs root")
    data, ledger = a_store(world, "media")
    # Mounts in a new mount namespace, which ends with the process.
    mount = f'mount --bind "{data}" "{data}" && mount -o remount,bind,ro "{data}"'
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode:
        raise Skip(f"read-only media: {probe.stderr.decode().strip()}")
    for command in reading(ledger.entries[0].conversation):
        before = photograph(data)
        words = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", world.binary, *command, "--data", str(data)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        world.count("commands")
        world.expect(done.returncode == OK, f"`{' '.join(command)}` on read-only media exits with {done.returncode}: {done.stderr.strip()[-300:]}")
        world.expect(photograph(data) == before, f"`{command[0]}` changed read-only media")


def newer_format(world):
    """Sets format versions of the log's files to 127: of redb files and of Treering's own."""
    data, _ = a_store(world, "newer")
    for path in sorted((data / "log").iterdir()):
        for what, at in marks(path):
            other = copy(data, data.parent / "other")
            with open(other / "log" / path.name, "r+b") as file:
                file.seek(at)
                file.write(bytes([0x7F]))
            # `verify` opens sealed segments too; other commands open them on the first read.
            done = world.run("verify", data=other)
            said = (done.out + done.err).replace(str(other), "").lower()
            world.expect(done.code != OK, f"{path.name} with {what} 127: {done}")
            world.expect("permission" not in said, f"{path.name} with {what} 127: speaks of permissions: {done}")
            world.count("newer formats")
            world.expect(re.search(r"version|newer|format|damaged", said), f"{path.name} with {what} 127: {done}")
            clear(other)


def marks(path):
    start = path.read_bytes()[:64]
    # redb: 9 bytes of magic, a byte of flags, two of padding, the page size; the file format
    # version is the first byte of each of its two commit slots, at 64 and at 192.
    if start[:4] == b"redb":
        return [("a file format of redb", 64), ("a second one", 192)]
    return [("a format version", 3)]


def clocks(world):
    """Clocks before 1970, at 0, far in the future, and going back between two runs."""
    shims.build(world.work.parent)
    data = world.folder("clock") / "data"
    ledger = Ledger()
    for n, seconds in enumerate((1_700_000_000, -86_400 * 365 * 10, 0, -1, 4_102_444_800, 253_402_300_000)):
        env = {"LD_PRELOAD": str(shims.library), "CAMPAIGN_CLOCK": str(seconds)}
        try:
            with Server(world, data, env=env) as server:
                fill(world, server, ledger, conversations=1, large=0, seed=f"clock {n}")
                ledger.check(server.client(), world, f"the clock shows {seconds} s")
                server.stop()
        except Refused as refused:
            world.found(f"the clock shows {seconds} s: {refused}")
        except RuntimeError as error:
            world.found(f"the clock shows {seconds} s: {error}")
        done = world.run("append", "new", "message", "user", "x", "--namespace", "other", data=data, env=env)
        world.expect(done.code == OK, f"the clock shows {seconds} s: {done}")
        done = world.run("ls", data=data, env=env)
        world.expect(done.code == OK, f"the clock shows {seconds} s: {done}")
    world.sound(data, "after wrong clocks")
