"""What is looked up of a thread, where its index does not have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ormsgpack

from treering import _requests
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering._sync.reading import read_pages
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
from treering.types import Event
from treering.v1 import event_pb2 as pb

SPOKEN: tuple[KindName, ...] = (
    "message_appended",
    "tool_call_requested",
    "tool_result_recorded",
    "tool_call_cancelled",
)
"""What stands behind a frame of messages."""
BY_NAME_MAX = 48
"""So many events of frames are asked for one by one; of more, stretches are read."""
STRETCH_EVENTS_MAX = 16
"""A stretch that has so many events for one that is wanted is not read."""


class NotSaidError(Exception):
    """Look-ups cannot tell: the thread has to be read."""


@dataclass
class Found:
    """A checkpoint that was looked up, and the writes to it."""

    row: Row
    writes: Sequence[Event]


class Lookups:
    """Look-ups in one conversation."""

    def __init__(self, db: Treering, conversation: Conversation) -> None:
        self._db = db
        self._conversation = conversation

    def latest(self, ns: str) -> int:
        """Revision of the event before the namespace's latest checkpoint; 0: it has none.

        Raises `NotSaidError` where the newest checkpoint need not be the latest one: its id is
        not the highest, or another program put one at the same time.
        """
        key = latest_key(ns)
        # On the active branch is the newest one, but where somebody has changed branches. Then
        # those that are newer are found when what is new is read.
        [newest] = self._db.latest([self._conversation.id], keys=[key])
        if newest is None:
            newest = next(self._events(key=key, backward=True, limit=1), None)
        if newest is None:
            return 0
        said = _said(newest)
        if said["ns"] != ns:
            raise NotSaidError
        ids = [said["top"] or said["id"]]
        seen = said["seen"] + said["before"]
        if seen + 1 < newest.revision:
            between = self._events(key=key, first=said["seen"] + 1, last=newest.revision - 1)
            ids += [_said(event)["id"] for event in between]
        if max(ids) > said["id"]:
            raise NotSaidError
        return newest.revision

    def since(self, revision: int) -> Iterator[Event]:
        """Every event from there on."""
        return self._events(first=revision)

    def named(self, index: Index, ns: str, id: str) -> Found | None:
        """A checkpoint by its id."""
        events = list(self._events(key=checkpoint_key(ns, id)))
        row: Row | None = None
        for event in events:
            custom = event.proto.custom
            if custom.type_name == CHECKPOINT:
                made = index.row_of(event.revision, event.proto.branch_id, custom)
                row = made if (made.ns, made.id) == (ns, id) else row
        if row is None:
            return None
        if self.is_anything_deleted(row.revision):
            raise NotSaidError
        return Found(row, [each for each in events if each.proto.custom.type_name == WRITES])

    def row(self, index: Index, revision: int) -> Row:
        """The checkpoint at a revision."""
        [event] = self._db.get_events([(self._conversation.id, revision)])
        if event is None or event.proto.custom.type_name != CHECKPOINT:
            raise NotSaidError
        return index.row_of(revision, event.proto.branch_id, event.proto.custom)

    def writes(self, ns: str, id: str) -> Iterator[Event]:
        """Writes to a checkpoint, in their order."""
        return self._events(key=checkpoint_key(ns, id), types=WRITES)

    def is_anything_deleted(self, first: int, last: int = 0) -> bool:
        """Whether something was taken back between these revisions."""
        found = self._events(types=DELETED, first=first, last=last, limit=1, headers_only=True)
        return next(found, None) is not None

    def _events(
        self,
        *,
        key: str = "",
        types: str | Sequence[str] = (),
        kinds: Sequence[KindName] = (),
        first: int = 0,
        last: int = 0,
        backward: bool = False,
        limit: int = 0,
        headers_only: bool = False,
    ) -> Iterator[Event]:
        """Of all branches. Backward, `first` and `last` are not for it."""
        return self._conversation.events(
            key=key,
            types=types,
            kinds=kinds,
            first=first,
            last=last,
            backward=backward,
            limit=limit,
            headers_only=headers_only,
            all_branches=True,
        )

    # ---- values ----

    def bring(self, index: Index, row: Row) -> None:
        """Takes into the index what the checkpoint's values are made of.

        Raises `NotSaidError` where its writer did not say where they are.
        """
        if row.at is None or set(row.at) != set(row.values):
            raise NotSaidError
        lists = {name: at for name, at in row.at.items() if isinstance(at, Runs)}
        wanted = {at.base for name, at in lists.items() if (at.base, name) not in index.full}
        frames: dict[int, int] = {}
        for name, at in row.at.items():
            if not isinstance(at, Runs) and not index.has(row.values[name]):
                _want(at[0], at[2], wanted, frames)
        self._rows(index, wanted - {0})
        runs = {name: _runs(index, name, at) for name, at in lists.items()}
        wanted = set()
        for each in runs.values():
            for revision, _, _, events in each:
                if revision not in index.holds:
                    _want(revision, events, wanted, frames)
        self._rows(index, wanted)
        self._frames(index, frames)
        for name, each in runs.items():
            key, keys = row.values[name], _keys(index, each)
            if not is_list(key, keys):
                raise NotSaidError
            index.lists[key] = Spliced(None, 0, 0, keys)

    def _rows(self, index: Index, revisions: Iterable[int]) -> None:
        names = [(self._conversation.id, revision) for revision in sorted(revisions)]
        for event in self._db.get_events(names) if names else ():
            if event is None or event.proto.custom.type_name != CHECKPOINT:
                raise NotSaidError
            index.row_of(event.revision, event.proto.branch_id, event.proto.custom)

    def _frames(self, index: Index, frames: dict[int, int]) -> None:
        if not frames:
            return
        events = {event.revision: event for page in self._of_frames(frames) for event in page}
        for revision, count in frames.items():
            frame = events.get(revision)
            if frame is None or frame.custom.type_name != MESSAGES:
                raise NotSaidError
            try:
                own = [(at, events[at]) for at in range(revision + 1, revision + count + 1)]
            except KeyError:
                raise NotSaidError from None
            index.take_frame(revision, frame.custom, own)

    def _of_frames(self, frames: dict[int, int]) -> Iterator[Iterable[pb.Event]]:
        first = min(frames)
        last = max(revision + count for revision, count in frames.items())
        count = len(frames) + sum(frames.values())
        if count <= BY_NAME_MAX or last - first > STRETCH_EVENTS_MAX * count:
            names = [
                (self._conversation.id, revision + number)
                for revision, count in frames.items()
                for number in range(count + 1)
            ]
            yield [event.proto for event in self._db.get_events(names) if event is not None]
            return
        yield from self._stretch(first, last, types=MESSAGES)
        yield from self._stretch(first, last, kinds=SPOKEN)

    def _stretch(
        self, first: int, last: int, *, types: str = "", kinds: Sequence[KindName] = ()
    ) -> Iterator[Iterable[pb.Event]]:
        request = _requests.read(
            self._conversation.id,
            "",
            all_branches=True,
            kinds=kinds,
            first=first,
            last=last,
            backward=False,
            limit=0,
            headers_only=False,
            filters={"types": types} if types else {},
        )
        return read_pages(self._db._transport, request)


def _said(event: Event) -> dict[str, Any]:
    if event.proto.custom.type_name != LATEST:
        raise NotSaidError
    said: dict[str, Any] = ormsgpack.unpackb(event.proto.custom.data)
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
