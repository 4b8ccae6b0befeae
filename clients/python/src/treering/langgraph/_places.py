"""Places of the values of a thread, with which a checkpoint is read without the steps before it.

A value is in the row of the checkpoint that added it. A message may be in a frame instead, with
its typed events. A row records the places of its values. It records a list as runs of adjacent
elements, relative to a row that records the list in full. So the size of a row does not grow with
the list, and two look-ups find the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treering._adapters.thread import short

IN_ROW = -1
"""Instead of the number of a frame's events: the holder is a row."""
OWN_ROW = 0
"""Instead of a revision: the row itself."""
OWN_FRAME = -1
"""Instead of a revision: the frame directly after the row."""
TAIL_RUNS_MAX = 32
"""Most runs that a row records relative to another row; with more, it records the list in full."""
FULL_RUNS_MAX = 4
"""Lists of at most this many runs are always recorded in full, which saves a look-up."""

Place = tuple[int, int, int]
"""Revision of the holder (a row or frame), index of the value in it, number of its events."""
Run = tuple[int, int, int, int]
"""Revision of the holder, index of the first value, number of values, number of its events."""


@dataclass(frozen=True)
class Runs:
    """The place of a list: the first runs of a row that records it in full, and `tail`."""

    base: int
    """Revision of that row; 0: there is none, and `tail` has all runs."""
    kept: int
    tail: Sequence[Run]


At = Place | Runs
"""The place of a channel's value."""


def checkpoint_key(ns: str, id: str) -> str:
    """The event key of a checkpoint and of the writes to it."""
    return short(f"langgraph/checkpoint/{ns}/{id}".replace("\0", " "))


def latest_key(ns: str) -> str:
    """The event key of the latest checkpoint of a namespace."""
    return short(f"langgraph/latest/{ns}".replace("\0", " "))


def runs_of(places: Iterable[Place]) -> list[Run]:
    """Combines adjacent places into runs."""
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
    """Describes runs relative to a row that records the list in full."""
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
    """Encodes a place for a row."""
    return [at.base, at.kept, list(at.tail)] if isinstance(at, Runs) else list(at)


def unpacked_at(said: Sequence[Any], row: int) -> At:
    """Decodes a place from the row with this revision."""
    if isinstance(said[2], list):
        return Runs(said[0], said[1], [(_revision(run[0], row), *run[1:]) for run in said[2]])
    return (_revision(said[0], row), said[1], said[2])


def _revision(said: int, row: int) -> int:
    return said if said > 0 else row - said
