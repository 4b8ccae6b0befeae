"""Where values of a thread are, so that a checkpoint is read without the steps before it.

A value is in the row of the checkpoint that brought it, or, of a message, in the frame with the
typed events that hold it. A row says where its values are. A list is said as runs of elements
that stand together, on from a row that says it in full: so what a row takes does not grow with
the list, and two look-ups find all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treering._adapters.thread import short

IN_ROW = -1
"""In the place of the number of a frame's events: the holder is a row."""
OWN_ROW = 0
"""In the place of a revision: the row that says it."""
OWN_FRAME = -1
"""The frame right behind it."""
TAIL_RUNS_MAX = 32
"""So many runs a row says before it says the list in full."""
FULL_RUNS_MAX = 4
"""Lists of so few runs are always said in full: that saves a look-up."""

Place = tuple[int, int, int]
"""Revision of the holder, which of its values, and the number of events of that frame."""
Run = tuple[int, int, int, int]
"""Revision of the holder, its first value, how many, and the number of events of that frame."""


@dataclass(frozen=True)
class Runs:
    """Where a list is: the first runs of a row that says it in full, and these."""

    base: int
    """Revision of that row; 0: there is none, and these are all."""
    kept: int
    tail: Sequence[Run]


At = Place | Runs
"""Where a channel's value is."""


def checkpoint_key(ns: str, id: str) -> str:
    """What a checkpoint and the writes to it are found by."""
    return short(f"langgraph/checkpoint/{ns}/{id}".replace("\0", " "))


def latest_key(ns: str) -> str:
    """What the latest checkpoint of a namespace is found by."""
    return short(f"langgraph/latest/{ns}".replace("\0", " "))


def runs_of(places: Iterable[Place]) -> list[Run]:
    """Places as runs."""
    runs: list[Run] = []
    revision = begin = count = events = 0
    for at, index, of in places:
        if count and at == revision and index == begin + count:
            count += 1
            continue
        if count:
            runs.append((revision, begin, count, events))
        revision, begin, count, events = at, index, 1, of
    if count:
        runs.append((revision, begin, count, events))
    return runs


def cut(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The runs of a part of a list."""
    kept: list[Run] = []
    begin = 0
    for at, index, count, events in runs:
        first, last = max(start, begin), min(stop, begin + count)
        if first < last:
            kept.append((at, index + first - begin, last - first, events))
        begin += count
    return kept


def said_of(runs: list[Run], base: int, of_base: Sequence[Run]) -> Runs:
    """Runs as they are said, on from a row that says the list in full."""
    if len(runs) <= FULL_RUNS_MAX:
        return Runs(0, 0, runs)
    kept = 0
    for one, other in zip(runs, of_base, strict=False):
        if one != other:
            break
        kept += 1
    if kept == 0 or len(runs) - kept > TAIL_RUNS_MAX:
        return Runs(0, 0, runs)
    return Runs(base, kept, runs[kept:])


def packed_at(at: At) -> list[Any]:
    """As a row has it."""
    return [at.base, at.kept, list(at.tail)] if isinstance(at, Runs) else list(at)


def unpacked_at(said: Sequence[Any], row: int) -> At:
    """From the row with this revision."""
    if isinstance(said[2], list):
        return Runs(said[0], said[1], [(_revision(run[0], row), *run[1:]) for run in said[2]])
    return (_revision(said[0], row), said[1], said[2])


def _revision(said: int, row: int) -> int:
    return said if said > 0 else row - said
