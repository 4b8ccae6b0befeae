"""Compares LangGraph's SQLite saver with `TreeringSaver` on a thread of growing messages.

Usage: measure_langgraph.py [STEPS [KEPT]]    (default: 400 steps, all messages kept)
Each step puts the writes of a task, and a checkpoint with two more messages, as a graph does. With
KEPT the state has only the last KEPT messages: its size does not grow, and neither should times.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

import treering
from treering.langgraph import TreeringSaver

THREAD: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
LISTED_MAX = 400
"""Longer threads are not listed completely: that takes minutes."""
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "rk", "st", "l")]


def text(chance: random.Random, words: int) -> str:
    """Random words, which compress like prose."""
    return " ".join(chance.choices(WORDS, k=words))


def fill(
    saver: BaseCheckpointSaver[str], steps: range, kept: int
) -> tuple[list[float], list[RunnableConfig]]:
    """Puts the steps. Returns milliseconds and config of each put of a checkpoint."""
    chance = random.Random(steps.start)
    config, took = THREAD, list[float]()
    configs: list[RunnableConfig] = []
    said: list[BaseMessage] = []
    if found := saver.get_tuple(THREAD):
        config, said = found.config, found.checkpoint["channel_values"]["messages"]
    for step in steps:
        added = [
            HumanMessage(text(chance, 120), id=f"human-{step}"),
            AIMessage(text(chance, 120), id=f"ai-{step}"),
        ]
        said = [*said, *added][-kept:]
        if step:
            saver.put_writes(config, [("messages", added)], f"task-{step}")
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["channel_values"] = {"messages": said, "step": step}
        version = f"{step + 1:032}.{chance.random():016}"
        checkpoint["channel_versions"] = {"messages": version, "step": version}
        began = time.perf_counter()
        config = saver.put(
            config,
            checkpoint,
            {"source": "loop", "step": step},
            cast(Any, checkpoint["channel_versions"]),
        )
        took.append((time.perf_counter() - began) * 1000)
        configs.append(config)
    return took, configs


def median(work: Callable[[], object], times: int) -> float:
    """Median milliseconds of `work`."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


Opens = Callable[[], AbstractContextManager[BaseCheckpointSaver[str]]]
"""Opens a saver, like a program that has just started."""


def reads(saver: BaseCheckpointSaver[str], configs: list[RunnableConfig]) -> dict[str, float]:
    """Median milliseconds of each kind of read."""
    chance = random.Random(2)
    took = {
        "get latest": median(lambda: saver.get_tuple(THREAD), 30),
        "get by id": median(lambda: saver.get_tuple(chance.choice(configs)), 30),
        "list, newest 10": median(lambda: list(saver.list(THREAD, limit=10)), 5),
    }
    if len(configs) <= LISTED_MAX:
        took["list, all"] = median(lambda: list(saver.list(THREAD)), 1)
    return took


def firsts(opens: Opens, configs: list[RunnableConfig], kept: int) -> dict[str, float]:
    """Median milliseconds of the first calls of a program."""
    chance = random.Random(3)

    def first(call: Callable[[BaseCheckpointSaver[str]], object]) -> float:
        took = []
        for _ in range(9):
            with opens() as saver:
                began = time.perf_counter()
                call(saver)
                took.append((time.perf_counter() - began) * 1000)
        return statistics.median(took)

    def put() -> float:
        took = []
        for number in range(9):
            with opens() as saver:
                step = len(configs) + number
                took += fill(saver, range(step, step + 1), kept)[0]
        return statistics.median(took)

    return {
        "first get latest": first(lambda saver: saver.get_tuple(THREAD)),
        "first get by id": first(lambda saver: saver.get_tuple(chance.choice(configs))),
        "first list, newest 10": first(lambda saver: list(saver.list(THREAD, limit=10))),
        "first put, after get latest": put(),
    }


def puts(took: list[float]) -> dict[str, float]:
    """Median milliseconds of all puts, and of the last 50."""
    return {
        "put": statistics.median(took),
        "put, last 50": statistics.median(took[-50:]),
    }


def size(folder: Path) -> float:
    """Megabytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main() -> None:
    """Prints the table."""
    steps = range(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
    kept = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        its_folder, our_folder = Path(folder) / "its", Path(folder) / "ours"
        its_folder.mkdir()

        def its_opens() -> AbstractContextManager[BaseCheckpointSaver[str]]:
            return SqliteSaver.from_conn_string(str(its_folder / "its.db"))

        with its_opens() as saver:
            took, configs = fill(saver, steps, kept)
            its = {**puts(took), **reads(saver, configs)}
        its["MB on disk"] = size(its_folder)
        its |= firsts(its_opens, configs, kept)
        with treering.local(our_folder) as db:
            took, configs = fill(TreeringSaver(db), steps, kept)
            warm = TreeringSaver(db)
            warm.get_tuple(THREAD)
            ours = {**puts(took), **reads(warm, configs)}
            our_size = size(our_folder)
            ours |= firsts(lambda: nullcontext(TreeringSaver(db)), configs, kept)
        ours["MB on disk"] = our_size
    print(f"| {len(steps)} steps | SQLite | Treering |\n|---|---:|---:|")
    for name in its:
        print(f"| {name} | {its[name]:.2f} | {ours[name]:.2f} |")


if __name__ == "__main__":
    main()
