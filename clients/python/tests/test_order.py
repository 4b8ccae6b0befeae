"""The writes of one client are stored in the order in which it sends them, cancelled ones too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

import treering
from treering import new
from treering.aio import AsyncTreering

from .conftest import Server, run, texts
from .test_trouble import stop

ROUNDS = 400


def is_in_order(lines: list[str], rounds: int) -> bool:
    """Each acknowledged line is stored once; a cancelled line is stored before it or not at all."""
    acknowledged = [line for line in lines if line.startswith("kept")]
    assert acknowledged == [f"kept {n}" for n in range(rounds)]
    numbers = [(int(line.split()[1]), line.startswith("kept")) for line in lines]
    return numbers == sorted(set(numbers))


# An agent is interrupted while it appends an answer, and then appends that it was interrupted. In
# 28 to 50 of 400 rounds, the answer was stored after the interruption.
def test_a_cancelled_append_is_not_after_a_later_one(server: Server) -> None:
    async def work() -> list[str]:
        async with treering.aio.connect(server.address) as db:
            conv = await db.create()
            for number in range(ROUNDS):
                given_up = asyncio.create_task(conv.user(f"left {number}"))
                await asyncio.sleep(number % 8 * 0.0003)
                given_up.cancel()
                await asyncio.gather(given_up, return_exceptions=True)
                await conv.user(f"kept {number}")
            return [event.text async for event in conv.events(kinds=["message_appended"])]

    assert is_in_order(run(work()), ROUNDS)


# The same with a timeout instead of a cancellation, with both clients.
def test_an_append_whose_time_is_up_is_not_after_a_later_one(server: Server) -> None:
    rounds = 100
    with treering.connect(server.address) as db:
        conv = db.create()
        for number in range(rounds):
            with contextlib.suppress(treering.DeadlineExceeded):
                conv.append([new.user(f"left {number}")], timeout=number % 8 * 0.0003)
            conv.user(f"kept {number}")
        assert is_in_order(texts(conv), rounds)

    async def work() -> list[str]:
        async with treering.aio.connect(server.address) as db:
            conv = await db.create()
            for number in range(rounds):
                with contextlib.suppress(treering.DeadlineExceeded):
                    late = [new.user(f"left {number}")]
                    await conv.append(late, timeout=number % 8 * 0.0003)
                await conv.user(f"kept {number}")
            return [event.text async for event in conv.events(kinds=["message_appended"])]

    assert is_in_order(run(work()), rounds)


# Ctrl-C during an append, in a program that continues, such as a notebook or a prompt.
def test_an_interrupted_append_is_not_after_a_later_one(server: Server) -> None:
    rounds = 100
    with treering.connect(server.address) as db:
        conv = db.create()
        for number in range(rounds):
            pause = number % 8 * 0.0003
            timer = threading.Timer(pause, os.kill, (os.getpid(), signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                conv.user(f"left {number}")
                time.sleep(30)
            conv.user(f"kept {number}")
        assert is_in_order(texts(conv), rounds)


# An import ends after its first answer. Batches that it has sent are stored before later appends
# or not at all.
def test_batches_that_nobody_waits_for_are_not_after_a_later_append(
    db: treering.Treering, open_async: Callable[[], AsyncTreering]
) -> None:
    rounds = 20

    def batches(conversation: str, number: int) -> list[tuple[str, list[new.NewEvent]]]:
        return [(conversation, [new.user(f"left {number} {n}")]) for n in range(64)]

    conv = db.create()
    for number in range(rounds):
        for _ in db.append_many(batches(conv.id, number)):
            break
        conv.user(f"kept {number}")
    stored = texts(conv)

    async def work() -> list[str]:
        async with open_async() as client:
            conv = await client.create()
            for number in range(rounds):
                answers = client.append_many(batches(conv.id, number))
                first = asyncio.ensure_future(answers.__anext__())
                await asyncio.sleep(number % 4 * 0.0005)
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                await conv.user(f"kept {number}")
            return [event.text async for event in conv.events(kinds=["message_appended"])]

    for lines in (stored, run(work())):
        numbers = [int(line.split()[1]) for line in lines]
        assert numbers == sorted(numbers)
        assert [line for line in lines if line.startswith("kept")] == [
            f"kept {number}" for number in range(rounds)
        ]
        assert all(
            not lines[at].startswith("kept") or numbers[at + 1 : at + 2] in ([], [numbers[at] + 1])
            for at in range(len(lines))
        )


# A server that hangs must not delay a cancelled task, or the client's next write, beyond their
# timeouts. When the server continues, the order of writes must be kept.
def test_a_server_that_hangs_while_a_write_is_cancelled(server: Server) -> None:
    assert server.process
    process = server.process

    async def work() -> list[str]:
        async with treering.aio.connect(server.address, timeout=1) as db:
            conv = await db.create()
            stop(process)
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(conv.user("left"), 0.2)
            with pytest.raises(treering.DeadlineExceeded):
                await conv.user("late")
            assert time.monotonic() - began < 30
            process.send_signal(signal.SIGCONT)
            await conv.append([new.user("kept")], timeout=60)
            return [event.text async for event in conv.events(kinds=["message_appended"])]

    assert run(work()) == ["left", "kept"]
