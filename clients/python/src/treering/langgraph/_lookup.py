"""Looks up what the index of a thread lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import ormsgpack

from treering import _methods as m
from treering import _requests
from treering._requests import EventFilters
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering._sync.reading import read_pages
from treering._sync.transport import Transport
from treering._words import KindName
from treering.langgraph._index import (
    CHECKPOINT,
    DELETED,
    LATEST,
    MESSAGES,
    WRITES,
    Index,
    Key,
    Row,
    Spliced,
    is_list,
)
from treering.langgraph._places import IN_ROW, Run, Runs, checkpoint_key, latest_key
from treering.v1 import event_pb2 as pb
from treering.v1 import events_pb2

SPOKEN: tuple[KindName, ...] = (
    "message_appended",
    "tool_call_requested",
    "tool_result_recorded",
    "tool_call_cancelled",
)
"""The kinds of the events that follow a frame of messages."""
BY_NAME_MAX = 48
"""Most events of frames that are fetched by revision; for more, a range is read."""
STRETCH_EVENTS_MAX = 16
"""A range is read only if it has at most this many events for each wanted one."""
NEW_EVENTS = 4
"""New events that are fetched by revision, which costs less than a read."""


class NotSaidError(Exception):
    """Look-ups cannot answer: the whole thread must be read."""


@dataclass
class Found:
    """A checkpoint that was looked up, and the writes to it."""

    row: Row
    writes: Sequence[pb.Event]


class Reading:
    """A read in progress. Several may run at the same time."""

    def __init__(self, transport: Transport, request: events_pb2.ReadRequest) -> None:
        self._transport = transport
        self._request = request
        self._begun = transport.begin(m.READ, request)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun is not None:
            self._begun.cancel()

    def __iter__(self) -> Iterator[pb.Event]:
        return chain.from_iterable(read_pages(self._transport, self._request, self._begun))


class Lookups:
    """Look-ups in one conversation."""

    def __init__(self, db: Treering, conversation: Conversation) -> None:
        self._db = db
        self._conversation = conversation

    def latest(self, ns: str) -> int:
        """Revision of the event before the namespace's latest checkpoint; 0: it has none.

        Raises `NotSaidError` if the newest checkpoint may not be the latest: its id is not the
        highest, or another program put a checkpoint at the same time.
        """
        key = latest_key(ns)
        # The newest event is on the active branch, unless a program switched branches. Then the
        # read of the new events finds the newer ones.
        [newest] = self._db.latest([self._conversation.id], keys=[key])
        at = newest.proto if newest else None
        if at is None:
            with self._read(key=key, backward=True, limit=1) as found:
                at = next(iter(found), None)
        if at is None:
            return 0
        said = _said(at)
        if said["ns"] != ns:
            raise NotSaidError
        ids = [said["top"] or said["id"]]
        seen = said["seen"] + said["before"]
        if seen + 1 < at.revision:
            with self._read(key=key, first=said["seen"] + 1, last=at.revision - 1) as between:
                ids += [_said(event)["id"] for event in between]
        if max(ids) > said["id"]:
            raise NotSaidError
        return at.revision

    def since(self, revision: int, expected: int = NEW_EVENTS) -> Iterator[pb.Event]:
        """Every event from a revision on. Up to `expected` events are fetched without a read."""
        names = [(self._conversation.id, revision + number) for number in range(expected)]
        for event in self._db.get_events(names) if names else ():
            if event is None:
                return
            yield event.proto
        with self._read(first=revision + expected) as events:
            yield from events

    def named(self, index: Index, ns: str, id: str) -> Found | None:
        """Returns a checkpoint by its id."""
        key = checkpoint_key(ns, id)
        with self._read(types=DELETED, backward=True, limit=1, headers_only=True) as deleted:
            with self._read(key=key) as read:
                events = list(read)
            row: Row | None = None
            for event in events:
                if event.custom.type_name == CHECKPOINT:
                    made = index.row_of(event.revision, event.branch_id, event.custom)
                    row = made if (made.ns, made.id) == (ns, id) else row
            if row is None:
                return None
            if any(event.revision > row.revision for event in deleted):
                raise NotSaidError
        return Found(row, [each for each in events if each.custom.type_name == WRITES])

    def newest(self, index: Index, ns: str, count: int) -> list[Found]:
        """A namespace's checkpoints with the highest ids, highest first.

        Raises `NotSaidError` if these may not be the ones that were put last.
        """
        with (
            self._read(types=DELETED, backward=True, limit=1, headers_only=True) as deleted,
            self._read(key=latest_key(ns), backward=True, limit=count + 1) as read,
        ):
            events = list(read)
            said = [_said(event) for event in events]
            ids = [each["id"] for each in said]
            if any(each["ns"] != ns for each in said) or sorted(set(ids), reverse=True) != ids:
                raise NotSaidError
            if len(said) > count:
                # Checkpoints older than this one have no higher id, unless put meanwhile.
                last, at = said[-1], events[-1].revision
                is_alone = last["seen"] + last["before"] + 1 == at
                if not is_alone or (last["top"] or "") > last["id"]:
                    raise NotSaidError
            events = events[:count]
            if any(event.revision > events[-1].revision for event in deleted if events):
                raise NotSaidError
        rows = [
            index.row_of(*each)
            for each in self._checkpoints(event.revision + 1 for event in events)
        ]
        if [(row.ns, row.id) for row in rows] != [(ns, id) for id in ids[:count]]:
            raise NotSaidError
        with ExitStack() as stack:
            writes = [stack.enter_context(self.writes(row.ns, row.id)) for row in rows]
            self.bring(index, *rows)
            return [Found(row, list(each)) for row, each in zip(rows, writes, strict=True)]

    def row(self, index: Index, revision: int) -> Row:
        """The checkpoint at a revision."""
        [found] = self._checkpoints([revision])
        return index.row_of(*found)

    def _checkpoints(self, revisions: Iterable[int]) -> Iterator[tuple[int, int, pb.Custom]]:
        """The revision, branch and content of each checkpoint."""
        names = [(self._conversation.id, revision) for revision in revisions]
        for event in self._db.get_events(names) if names else ():
            if event is None or event.proto.custom.type_name != CHECKPOINT:
                raise NotSaidError
            yield event.revision, event.proto.branch_id, event.proto.custom

    def writes(self, ns: str, id: str) -> Reading:
        """Writes to a checkpoint, in their order."""
        return self._read(key=checkpoint_key(ns, id), types=WRITES)

    def is_anything_deleted(self, first: int, last: int) -> bool:
        """Whether checkpoints were deleted between these revisions."""
        with self._read(types=DELETED, first=first, last=last, headers_only=True) as found:
            return any(True for _ in found)

    def _read(
        self,
        *,
        key: str = "",
        types: str = "",
        kinds: Sequence[KindName] = (),
        first: int = 0,
        last: int = 0,
        backward: bool = False,
        limit: int = 0,
        headers_only: bool = False,
    ) -> Reading:
        """Reads all branches. Do not combine `backward` with `first` or `last`."""
        filters: EventFilters = {}
        if key:
            filters["key"] = key
        if types:
            filters["types"] = types
        request = _requests.read(
            self._conversation.id,
            "",
            all_branches=True,
            kinds=kinds,
            first=first,
            last=last,
            backward=backward,
            limit=limit,
            headers_only=headers_only,
            filters=filters,
        )
        return Reading(self._db._transport, request)

    # ---- values ----

    def bring(self, index: Index, *rows: Row) -> None:
        """Adds to the index what the values of checkpoints consist of.

        Raises `NotSaidError` if a checkpoint does not record the places of its values.
        """
        lists: list[tuple[str, Key, Runs]] = []
        wanted = set[int]()
        frames: dict[int, int] = {}
        for row in rows:
            if row.at is None or set(row.at) != set(row.values):
                raise NotSaidError
            for name, at in row.at.items():
                if isinstance(at, Runs):
                    lists.append((name, row.values[name], at))
                elif not index.has(row.values[name]):
                    _want(at[0], at[2], wanted, frames)
        wanted |= {at.base for name, _, at in lists if (at.base, name) not in index.full}
        self._rows(index, wanted - {0})
        runs = [(key, _runs(index, name, at)) for name, key, at in lists]
        wanted = set()
        for _, each in runs:
            for revision, _, _, events in each:
                if revision not in index.holds:
                    _want(revision, events, wanted, frames)
        self._rows(index, wanted)
        self._frames(index, frames)
        for key, each in runs:
            keys = _keys(index, each)
            if not is_list(key, keys):
                raise NotSaidError
            index.lists[key] = Spliced(None, 0, 0, keys)

    def _rows(self, index: Index, revisions: Iterable[int]) -> None:
        for each in self._checkpoints(sorted(revisions)):
            index.row_of(*each)

    def _frames(self, index: Index, frames: dict[int, int]) -> None:
        if not frames:
            return
        wanted = [
            revision + number for revision, count in frames.items() for number in range(count + 1)
        ]
        events: dict[int, pb.Event] = {}
        first, last = min(wanted), max(wanted)
        if len(wanted) > BY_NAME_MAX and last - first <= STRETCH_EVENTS_MAX * len(wanted):
            # A read ends when it reaches its limit.
            events = self._stretch(first, last, len(frames), max(1, sum(frames.values())))
            missing = [at for at in wanted if at not in events]
            # Unwanted events in the range counted towards the limits.
            if len(missing) > BY_NAME_MAX:
                events |= self._stretch(min(missing), last)
        names = [(self._conversation.id, at) for at in wanted if at not in events]
        for event in self._db.get_events(names) if names else ():
            if event is None:
                raise NotSaidError
            events[event.revision] = event.proto
        found = [events[revision].custom for revision in frames]
        if any(custom.type_name != MESSAGES for custom in found):
            raise NotSaidError
        # Parsing one JSON text is faster than parsing many.
        contents = json.loads(b"[" + b",".join([custom.data for custom in found]) + b"]")
        for content, (revision, count) in zip(contents, frames.items(), strict=True):
            own = [events[at] for at in range(revision + 1, revision + count + 1)]
            index.take_frame(revision, content, own)

    def _stretch(
        self, first: int, last: int, frames: int = 0, spoken: int = 0
    ) -> dict[int, pb.Event]:
        """Frames and the events behind them, by revision, up to these limits; 0: no limit."""
        with (
            self._read(first=first, last=last, types=MESSAGES, limit=frames) as said,
            self._read(first=first, last=last, kinds=SPOKEN, limit=spoken) as held,
        ):
            return {event.revision: event for read in (said, held) for event in read}


def _said(event: pb.Event) -> dict[str, Any]:
    if event.custom.type_name != LATEST:
        raise NotSaidError
    said: dict[str, Any] = ormsgpack.unpackb(event.custom.data)
    return said


def _want(revision: int, events: int, rows: set[int], frames: dict[int, int]) -> None:
    if events == IN_ROW:
        rows.add(revision)
    else:
        frames[revision] = events


def _runs(index: Index, name: str, at: Runs) -> list[Run]:
    try:
        return index.runs(name, at)
    except KeyError:
        raise NotSaidError from None


def _keys(index: Index, runs: Iterable[Run]) -> list[Key]:
    keys: list[Key] = []
    for revision, begin, count, _ in runs:
        keys += index.holds[revision][begin : begin + count]
    return keys
