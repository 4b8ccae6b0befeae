"""Compiles `shim.c`, and sets its rules while a server runs."""

import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from world import Skip, clear

# The same order as in shim.c.
OPS = ["open", "write", "sync", "rename", "truncate", "allocate", "mkdir", "unlink", "mmap", "read", "dirsync", "lock"]
ANY = len(OPS)
FAIL, KILL_BEFORE, KILL_AFTER, SHORT, DELAY = range(5)

RULES = 8
HEAD = struct.Struct("<16q4i")
RULE = struct.Struct("<4i3q88s")

library = None


def build(work):
    """Compiles the shim once."""
    global library
    if sys.platform != "linux":
        raise Skip("faults are injected with LD_PRELOAD: Linux only")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("no C compiler")
    if library is None:
        library = Path(work) / "shim.so"
        source = Path(__file__).with_name("shim.c")
        words = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            library = None
            raise Skip(f"the shim does not compile here: {done.stderr[:500]}")
    return library


class Shim:
    """Injects faults between the servers of a data folder and their disk."""

    def __init__(self, world, data, name="control"):
        self.library = build(world.work.parent)
        self.data = Path(data).resolve()
        self.control = world.work / f"{name}-{self.data.name}"
        self.reset()

    def reset(self):
        """Clears rules, journal and graves: treats the current state as synced."""
        clear(self.control)
        (self.control / "graves").mkdir(parents=True)
        path = self.control / "rules"
        path.write_bytes(bytes(HEAD.size + RULES * RULE.size))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.used = 0
        self.clear_rules()

    def environment(self):
        preload = f"{self.library}:{os.environ['LD_PRELOAD']}" if os.environ.get("LD_PRELOAD") else str(self.library)
        return {"LD_PRELOAD": preload, "CAMPAIGN_ROOT": str(self.data), "CAMPAIGN_CONTROL": str(self.control)}

    def clear_rules(self):
        self.set("armed", 0)
        for n in range(RULES):
            self.memory[HEAD.size + n * RULE.size : HEAD.size + (n + 1) * RULE.size] = RULE.pack(-1, 0, 0, 0, 0, 0, 0, b"")
        self.used = 0

    def set(self, what, value):
        at = 16 * 8 + 4 * ["armed", "journal", "fast"].index(what)
        self.memory[at : at + 4] = struct.pack("<i", value)

    def power(self):
        """Journals changes for a power loss. Syncs then succeed without reaching the disk."""
        self.set("journal", 1)
        self.set("fast", 1)
        return self

    def rule(self, op, action=FAIL, error=errno.EIO, skip=0, count=1, pattern=""):
        """Lets `skip` matching calls pass, then applies `action` to `count` calls (-1: all)."""
        number = ANY if op == "any" else OPS.index(op)
        at = HEAD.size + self.used * RULE.size
        self.memory[at : at + RULE.size] = RULE.pack(number, action, error, 0, skip, count, 0, pattern.encode())
        self.used += 1
        self.set("armed", 1)
        return self.used - 1

    def hits(self, rule=None):
        rules = range(self.used) if rule is None else [rule]
        return sum(RULE.unpack_from(self.memory, HEAD.size + n * RULE.size)[6] for n in rules)

    def calls(self):
        """The number of calls of each kind on the files of the folder."""
        return dict(zip(OPS, HEAD.unpack_from(self.memory, 0)[:16]))

    def log_opens(self):
        """The number of opens of the log's files."""
        return HEAD.unpack_from(self.memory, 0)[len(OPS)]
