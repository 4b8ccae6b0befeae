"""The environment of each kind of attack: binary, folder, seed, counts and findings."""

import os
import random
import resource
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

# Timeout of a command. It detects a hanging command and is no performance limit.
COMMAND_SECONDS = 180

# Findings to print for each round; all are counted.
SHOWN = 3

# Exit codes as `treering --help` lists them.
OK, FAILED, USAGE, NO_SUCH, REFUSED, LOCKED, DAMAGED = range(7)


class Broken(Exception):
    """An invariant does not hold. The message has the expected and the actual result."""


class Skip(Exception):
    """This machine cannot run the kind (no root, no compiler …)."""


class Done:
    """The result of a command."""

    def __init__(self, args, code, out, err, seconds):
        self.args, self.code, self.out, self.err = args, code, out, err
        self.seconds = seconds

    def __str__(self):
        lines = self.err.strip().splitlines()[-3:]
        if "verify" in self.args:
            # `verify` reports faults on standard output.
            lines = self.out.strip().splitlines()[:3] + lines
        said = " | ".join(lines)[:600]
        return f"`treering {' '.join(map(show, self.args))}` exited with {self.code}: {said}"


def show(arg):
    return os.fsdecode(arg).encode("utf-8", "backslashreplace").decode()


class World:
    """The state of one kind of attack."""

    def __init__(self, binary, work, kind, seed, long, only_round=None):
        self.binary, self.kind, self.seed, self.long = str(binary), kind, seed, long
        self.work = Path(work) / kind
        self.work.mkdir(parents=True)
        self.only_round = only_round
        self.counts, self.shown, self.broken, self.skipped = Counter(), Counter(), [], []
        self.round, self.rng = "", random.Random(f"{seed}:{kind}")
        self.began = time.monotonic()

    def rounds(self, short, long):
        """The numbers of the rounds. Each round has its own seed."""
        for number in range(long if self.long else short):
            if self.only_round is None or self.only_round == number:
                self.counts["rounds"] += 1
                yield self.begin(number)

    def begin(self, name):
        self.round = name
        self.rng = random.Random(f"{self.seed}:{self.kind}:{name}")
        return name

    def count(self, what, n=1):
        self.counts[what] += n

    def found(self, what):
        """Records and prints a broken invariant; the campaign continues."""
        self.broken.append(str(what))
        self.shown[self.round] += 1
        if self.shown[self.round] > SHOWN:
            return
        repeat = f"--only {self.kind} --seed {self.seed}"
        if isinstance(self.round, int):
            repeat += f" --round {self.round}"
        print(f"  BROKEN [{self.kind} {self.round}] {what}\n         repeat: {repeat}", flush=True)

    def skip(self, what):
        self.skipped.append(what)
        print(f"  skipped [{self.kind}] {what}", flush=True)

    def expect(self, holds, what):
        """Counts a check, and records a finding if it does not hold."""
        self.count("checks")
        if not holds:
            self.found(what)
        return bool(holds)

    def folder(self, name):
        """Makes an empty folder below the folder of this kind."""
        path = self.work / name
        clear(path)
        path.mkdir(parents=True)
        return path

    def run(self, *args, data=None, env=None, limits="", stdin=None, seconds=COMMAND_SECONDS, text=True):
        """Runs the binary to its end. `limits`: shell code before it, such as `ulimit -n 32`."""
        words = [self.binary, *args]
        if data is not None:
            words += ["--data", os.fspath(data)]
        if limits:
            words = ["bash", "-c", f'{limits}; exec "$@"', "bash", *words]
        began = time.monotonic()
        try:
            done = subprocess.run(
                words,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                timeout=seconds,
                env={**os.environ, **(env or {})},
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.found(f"`treering {' '.join(map(show, args))}` did not end within {seconds} s")
            return Done(args, -1, "", "hung", seconds)
        out = done.stdout.decode("utf-8", "replace") if text else done.stdout
        err = done.stderr.decode("utf-8", "replace")
        result = Done(args, done.returncode, out, err, time.monotonic() - began)
        self.count("commands")
        # A command must never crash.
        if done.returncode < 0 or done.returncode == 101 or "panicked at" in err:
            self.found(f"a crash: {result}")
        return result

    def sound(self, data, why, env=None):
        """Checks that `verify --deep` finds no fault."""
        done = self.run("verify", "--deep", data=data, env=env)
        return self.expect(done.code == OK, f"{why}: {done}")


def clear(path):
    """Removes a file or folder, read-only or not."""
    path = Path(path)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o700)
        shutil.rmtree(path)


def copy(source, to):
    """Copies a data folder, with its symbolic links."""
    clear(to)
    shutil.copytree(source, to, symlinks=True)
    return Path(to)


def files_of(data):
    """The files of a data folder, relative and in a fixed order."""
    return sorted(p.relative_to(data) for p in Path(data).rglob("*") if p.is_file())


def photograph(data):
    """Names, contents, modes and times of a folder, to detect changes."""
    seen = {}
    for path in sorted(Path(data).rglob("*")):
        stat = path.lstat()
        what = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        seen[str(path.relative_to(data))] = (stat.st_mode, stat.st_mtime_ns, hash(what), len(what))
    return seen


def descriptors():
    """Raises the limit of open files to its maximum, for storms of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
