"""Servers, stores and clients for the tests. All of them are real, without mocks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import treering
from treering._binary import find_binary

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in a new event loop, with a timeout."""
    return asyncio.run(asyncio.wait_for(work, 120))


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Server:
    """`treering serve` on a port that is the same after restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [find_binary(), "serve", "--data", self.folder, "--listen", self.address, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert b"serving" in line, line

    def end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        self.process = None

    def kill(self) -> None:
        self.end(signal.SIGKILL)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "served")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests share; each test has its own namespace."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session", autouse=True)
def kept_open(store: Path) -> Iterator[treering.Treering]:
    """Keeps the server of the store running between tests."""
    with treering.local(store) as db:
        yield db


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name.split('[')[0][:40]}-{os.urandom(4).hex()}".lower()


@pytest.fixture
def db(store: Path, namespace: str) -> Iterator[treering.Treering]:
    with treering.local(store, namespace=namespace) as db:
        yield db


@pytest.fixture
def conv(db: treering.Treering) -> treering.Conversation:
    return db.create("Example")


@pytest.fixture
def open_async(store: Path, namespace: str) -> Callable[[], treering.aio.AsyncTreering]:
    return lambda: treering.aio.local(store, namespace=namespace)


def texts(conversation: treering.Conversation) -> list[str]:
    return [event.text for event in conversation.events(kinds=["message_appended"])]
