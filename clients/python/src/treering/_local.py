"""The server of a client: at an address, or started by this process for a folder.

`treering serve --json --until-stdin-closes` prints its address in one line, and ends when its
stdin closes. So it ends with this process, even after a crash.
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
"""Seconds for a server to finish its calls; then it is terminated, then killed."""
HOLD_BACK = 1.0
"""Seconds that a server's log lines are held back until it is known whether it serves."""
LOCKED_WAIT = 10.0
"""Seconds to wait for a process that has the store open and does not serve it."""


class Endpoint(Protocol):
    """The place of a server. Methods may block."""

    def address(self) -> str:
        """Current address of the server: `host:port`."""

    def renew(self) -> str:
        """Finds the address again, after no server answered there."""

    def close(self) -> None:
        """Releases the server: its client was closed."""


OTHER_WAYS = ("unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:", "xds:", "passthrough:")
"""Prefixes of the other kinds of addresses that gRPC supports."""


def checked(address: str) -> str:
    """Returns the address. Raises if its form is invalid."""
    if not isinstance(address, str):
        raise TypeError(f"an address is a str such as 127.0.0.1:7171, not {address!r}")
    if address.startswith(OTHER_WAYS):
        return address
    host, port = bare(address), "443"
    # In an IPv6 address without brackets, a port cannot be recognised.
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
    """Removes the scheme: `http://host:port` becomes `host:port`."""
    for scheme in ("http://", "https://"):
        address = address.removeprefix(scheme)
    return address.rstrip("/")


class Fixed:
    """A server that this process did not start, at a fixed address."""

    def __init__(self, address: str) -> None:
        self._address = bare(checked(address))

    def address(self) -> str:
        """The given address."""
        return self._address

    def renew(self) -> str:
        """The given address: the server may come back there."""
        return self._address

    def close(self) -> None:
        """Does nothing: this process did not start the server."""


def run_command(
    entry: Entry, address: str, namespace: str, arguments: Sequence[str | os.PathLike[str]]
) -> list[Any]:
    """Runs a `treering` command on a server. Returns the parsed lines of JSON that it prints."""
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
    """The server of a folder, started by this process or by another one.

    Clients of the same folder share it, and the last one that closes ends it. If the other
    process has ended, `renew` starts a server.
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
        """Returns the shared object for a folder. Raises if its server has other options."""
        real = os.path.realpath(path)
        with cls._lock:
            local = cls._all.get(real)
            if local is None:
                local = cls._all[real] = Local(real, options, timeout)
            elif options and options != local._options:
                raise ValueError(
                    f"{real} is already open in this program with a different `options`: "
                    "pass the same value or none, or close its other clients first"
                )
            local._users += 1
            # All clients wait for the same start, so the longest timeout counts.
            local._start_timeout = max(local._start_timeout, timeout)
            return local

    def address(self) -> str:
        """On the first call, starts the server or finds the one that has the folder open."""
        with self._mutex:
            if not self._address:
                self._start()
            return self._address

    def renew(self) -> str:
        """Starts or finds the server again, unless the one that `address` started still runs."""
        with self._mutex:
            if self._server is None or not self._server.runs():
                self._start()
            return self._address

    def close(self) -> None:
        """Ends the server if this was its last client in this process."""
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
        """Process id of the server that this process started."""
        return self._server.pid if self._server else None

    def _start(self) -> None:
        end = time.monotonic() + LOCKED_WAIT
        while True:
            server = _Server(self._path, self._options)
            line = server.first_line(self._start_timeout)
            # A lock is no reason for warnings: mostly, another process serves the folder.
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
            # The process with the lock may be about to serve, or to end.
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
                    # The server need not wait for the lock: `_start` does.
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
                # Ctrl-C must not reach the server: it ends with this process.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def runs(self) -> bool:
        return self._process.poll() is None

    def first_line(self, timeout: float) -> dict[str, Any]:
        """The server's first JSON object; empty if it ended or exceeded the timeout."""
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
        """Ends the server after it has finished its calls."""
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
        """Logs the lines that were held back, and from now on every line."""
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
            with contextlib.suppress(ValueError):  # the pipe was closed
                for line in pipe or ():
                    to(line)

        thread = threading.Thread(target=run, name="treering-server", daemon=True)
        thread.start()
        return thread
