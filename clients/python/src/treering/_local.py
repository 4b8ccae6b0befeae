"""Where the server is: at an address, or started here for a folder.

`treering serve --json --until-stdin-closes` says in one line where it listens, and ends
when the pipe to it closes, so it does not outlive this process however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

from treering._binary import find_binary, starting
from treering._entry import Entry
from treering.errors import CommandFailed, ServerNotStarted, StoreInUse

log = logging.getLogger("treering.server")

END_WAIT = 20.0
"""Seconds for a server to finish what it took; then it is told to end, then killed."""
HOLD_BACK = 1.0
"""So long what a server says is kept until it is known whether it serves, in seconds."""
LOCKED_WAIT = 10.0
"""Seconds for a process that holds the store without serving it to let go."""


class Endpoint(Protocol):
    """Something that has an address. Its methods may block."""

    def address(self) -> str:
        """Where the server is now: `host:port`."""

    def renew(self) -> str:
        """The same, after nothing answered there."""

    def close(self) -> None:
        """Nobody here needs the server any more."""


OTHER_WAYS = ("unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:", "xds:", "passthrough:")
"""Names that gRPC has for other addresses."""


def checked(address: str) -> str:
    """The same, if it can be an address."""
    if not isinstance(address, str):
        raise TypeError(f"an address is a str such as 127.0.0.1:7171, not {address!r}")
    if address.startswith(OTHER_WAYS):
        return address
    host, port = bare(address), "443"
    # Of an IPv6 address without brackets, nobody knows where it ends.
    if host.count(":") == 1 or "]:" in host:
        host, _, port = host.rpartition(":")
    is_host = host and host.isprintable() and not set(host) & set(" /?#@")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
    if not (is_host and is_port):
        raise ValueError(
            f"{address!r} is not an address: use host:port, http://host:port or https://host:port"
        )
    return address


def bare(address: str) -> str:
    """`http://host:port` and `host:port` as `host:port`."""
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    return address.rstrip("/")


class Fixed:
    """A server that somebody else runs."""

    def __init__(self, address: str) -> None:
        self._address = bare(checked(address))

    def address(self) -> str:
        """As it was given."""
        return self._address

    def renew(self) -> str:
        """As it was given: it may come back there."""
        return self._address

    def close(self) -> None:
        """It is not ours to end."""


def run_command(
    entry: Entry, address: str, namespace: str, arguments: Sequence[str | os.PathLike[str]]
) -> list[Any]:
    """What a command of `treering` prints on a server, from its lines of JSON."""
    program = find_binary()
    with starting(program):
        done = subprocess.run(
            [
                *(program, *(os.fspath(each) for each in arguments), "--json"),
                *("--server", entry.url(address), "--namespace", namespace),
            ],
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            env=entry.environment(),
        )
    if done.returncode:
        raise CommandFailed(done.stderr.strip(), done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines() if line]


class Local:
    """The server of a folder: started here, or that of another process.

    Objects for one folder share it; the last one that is closed ends it. When the other
    process ends, `renew` starts one here.
    """

    _all: dict[str, Local] = {}
    _lock = threading.Lock()

    def __init__(self, path: str, options: tuple[str, ...], start_timeout: float) -> None:
        self._path = path
        self._options = options
        self._start_timeout = start_timeout
        self._users = 0
        self._server: _Server | None = None
        self._address = ""
        self._mutex = threading.RLock()

    @classmethod
    def at(cls, path: str | os.PathLike[str], options: tuple[str, ...], timeout: float) -> Local:
        """The one for this folder."""
        real = os.path.realpath(path)
        with cls._lock:
            local = cls._all.get(real)
            if local is None:
                local = cls._all[real] = Local(real, options, timeout)
            local._users += 1
            return local

    def address(self) -> str:
        """Starts the server, or finds the one that holds the folder, the first time."""
        with self._mutex:
            if not self._address:
                self._start()
            return self._address

    def renew(self) -> str:
        """Looks again, unless the server that was started here runs."""
        with self._mutex:
            if self._server is None or not self._server.runs():
                self._start()
            return self._address

    def close(self) -> None:
        """Ends the server when nobody here uses it any more."""
        with Local._lock:
            self._users -= 1
            if self._users > 0:
                return
            Local._all.pop(self._path, None)
        with self._mutex:
            server, self._server, self._address = self._server, None, ""
        if server:
            server.end()

    @property
    def pid(self) -> int | None:
        """Of the server that was started here."""
        return self._server.pid if self._server else None

    def _start(self) -> None:
        end = time.monotonic() + LOCKED_WAIT
        while True:
            server = _Server(self._path, self._options)
            line = server.first_line(self._start_timeout)
            # That another process serves the folder is no trouble.
            server.tell(logging.DEBUG if "locked_by" in line else logging.WARNING)
            if "serving" in line:
                self._server, self._address = server, bare(line["serving"])
                return
            server.end()
            if address := line.get("server"):
                self._server, self._address = None, bare(address)
                return
            if "locked_by" not in line:
                raise ServerNotStarted(server.last_words())
            # It may be about to serve, or to end.
            if time.monotonic() > end:
                raise StoreInUse(f"{self._path} is locked by {line['locked_by']}")
            time.sleep(0.05)


class _Server:
    """A server process."""

    def __init__(self, path: str, options: tuple[str, ...]) -> None:
        self._owner = os.getpid()
        self._said: deque[str] = deque(maxlen=20)
        self._lines: queue.Queue[str] = queue.Queue()
        self._level: int | None = None
        self._untold: list[str] = []
        self._telling = threading.Lock()
        self._program = find_binary()
        self._process = self._begin(path, options)
        self._readers = [
            self._read(self._process.stdout, self._lines.put),
            self._read(self._process.stderr, self._hear),
        ]
        atexit.register(self.end)

    def _begin(self, path: str, options: tuple[str, ...]) -> subprocess.Popen[str]:
        environment: Mapping[str, str] = {"TREERING_LOG": "warn", **os.environ, "NO_COLOR": "1"}
        with starting(self._program):
            return subprocess.Popen(
                [
                    self._program,
                    "serve",
                    "--json",
                    "--until-stdin-closes",
                    "--listen",
                    "127.0.0.1:0",
                    "--data",
                    path,
                    # Whoever has the folder is waited for here.
                    "--wait",
                    "0",
                    *options,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
                # Ctrl-C is for the program; the server ends with it.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def runs(self) -> bool:
        return self._process.poll() is None

    def first_line(self, timeout: float) -> dict[str, Any]:
        """What the server says of itself; empty when it ended or took too long."""
        began = time.monotonic()
        end = began + timeout
        while True:
            try:
                line = self._lines.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > began + HOLD_BACK:
                    self.tell(logging.WARNING)
                late = time.monotonic() > end
                if late:
                    self._said.append(f"it did not start to serve within {timeout:.0f} s")
                ended = not self.runs() and not self._readers[0].is_alive()
                if late or (ended and self._lines.empty()):
                    return {}
                continue
            with contextlib.suppress(json.JSONDecodeError):
                read = json.loads(line)
                if isinstance(read, dict):
                    return read

    def last_words(self) -> str:
        self._readers[1].join(timeout=1)
        ended = self._process.poll()
        how = "no output" if ended is None else f"it exited with code {ended} without output"
        return f"{self._program} did not start: {' '.join(self._said) or how}"

    def end(self) -> None:
        """Lets it finish what it took."""
        atexit.unregister(self.end)
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        for then in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(END_WAIT)
                break
            except subprocess.TimeoutExpired:
                then()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def tell(self, level: int) -> None:
        """Logs what it said, and from now on what it says."""
        with self._telling:
            self._level = level
            untold, self._untold = self._untold, []
            for line in untold:
                log.log(level, "%s", line)

    def _hear(self, line: str) -> None:
        self._said.append(line.strip())
        with self._telling:
            if self._level is None:
                self._untold.append(line.rstrip())
            else:
                log.log(self._level, "%s", line.rstrip())

    @staticmethod
    def _read(pipe: IO[str] | None, to: Any) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(ValueError):  # closed meanwhile
                for line in pipe or ():
                    to(line)

        thread = threading.Thread(target=run, name="treering-server", daemon=True)
        thread.start()
        return thread
