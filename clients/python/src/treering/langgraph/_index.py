"""The events of a thread as tables in memory that are kept up to date.

An index starts at the first event and is whole, or it starts at a later event, and older events
are looked up when needed. Afterwards, only new events are read.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP

from treering import new
from treering.langgraph._messages import Framed, Plain, filled, id_of, message_of
from treering.langgraph._places import (
    IN_ROW,
    At,
    Place,
    Run,
    Runs,
    unpacked_at,
)
from treering.v1 import event_pb2 as pb

CHECKPOINT = "langgraph.checkpoint"
WRITES = "langgraph.writes"
MESSAGES = "langgraph.messages"
DELETED = "langgraph.deleted"
LATEST = "langgraph.latest"
"""Precedes each checkpoint, with the event key of its namespace."""

Stored = tuple[str, bytes]
"""A value as the saver's serializer wrote it: type and bytes."""
Key = bytes
"""Hash of a stored value or of a list."""
Named = tuple[str, str]
"""Namespace and id of a checkpoint."""

KEY_BYTES = 12


class Dumps(Protocol):
    """The part of a serializer that the index needs."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """A value as type and bytes."""


class Loads(Protocol):
    """The part of a serializer that reading needs."""

    def loads_typed(self, data: Stored) -> Any:
        """A value from type and bytes."""


@dataclass(frozen=True)
class Spliced:
    """A list, described as a part of another list and the elements after that part."""

    base: Key | None
    start: int
    stop: int
    added: Sequence[Key]


@dataclass(frozen=True)
class Row:
    """A checkpoint without its values."""

    ns: str
    id: str
    parent: str | None
    stored: Stored
    metadata: dict[str, Any]
    values: dict[str, Key]
    revision: int = 0
    branch: int = 0
    at: dict[str, At] | None = None
    """The places of its values; None: not recorded."""
    is_mirrored: bool = False
    """Whether the active branch, to which it was appended, ends with its messages."""


@dataclass(frozen=True)
class Write:
    """A pending write."""

    path: str
    task: str
    idx: int
    channel: str
    stored: Stored


@dataclass
class Branch:
    """A branch of the conversation, and the messages of the graph that are on it."""

    name: str
    head: int = 0
    mirrored: list[Key] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """For each message, the revision of its last event."""
    begin: int = 0
    """Revision of the frame with the first message."""
    is_known: bool = True
    """Whether `mirrored` is known."""
    open: set[str] | None = field(default_factory=set)
    """Calls without a result; None: not known."""
    archived: bool = False


class Index:
    """The tables of a thread."""

    def __init__(self, serde: Dumps, first: int = 1) -> None:
        self.first = first
        """Revision of the first event in the index."""
        self.seen = first - 1
        """Revision of the last event in the index."""
        self.active = 0
        self.branches: dict[int, Branch] = {0: Branch("main")} if first == 1 else {}
        self.tops = set[str]()
        """If the index is not whole: the namespaces whose latest checkpoint it has."""
        self.lacks_deleted = False
        """A deletion was read that may concern checkpoints older than the index."""
        self.rows: dict[str, dict[str, Row]] = {}
        self.writes: dict[Named, dict[tuple[str, int], Write]] = {}
        self.values: dict[Key, Stored] = {}
        self.framed: dict[Key, Framed | Plain] = {}
        """Messages of frames, raw or parsed."""
        self.lists: dict[Key, Spliced] = {}
        self._places: dict[Key, Place] = {}
        """The places of values."""
        self.holds: dict[int, Sequence[Key]] = {}
        """The keys of the values in rows and frames, by revision."""
        self.full: dict[tuple[int, str], Sequence[Run]] = {}
        """Lists that rows record in full, by the row's revision and the channel."""
        self._aliases: dict[Key, Key] = {}
        """Keys computed by programs in another language, by the keys computed here."""
        self._unsettled: dict[str, list[Key]] = {}
        """Messages whose key was not computed here yet, by message id."""
        self._unsorted: list[Key] = []
        """Newer messages that are not in `_unsettled` yet."""
        self._serde = serde
        self._frame: tuple[list[Key], list[list[Any]], list[Any]] | None = None
        self._missing = 0

    # ---- reading ----

    @property
    def is_whole(self) -> bool:
        """Whether the index has every event."""
        return self.first == 1

    def has(self, key: Key) -> bool:
        """Whether the index has a value."""
        return key in self.values or key in self.framed

    def begin(self, first: int) -> None:
        """Limits the index to the events from a revision on."""
        self.first, self.seen, self.branches = first, first - 1, {}

    def newest(self, ns: str) -> Row | None:
        """The checkpoint that was put last."""
        return max(self.rows.get(ns, {}).values(), key=lambda row: row.revision, default=None)

    def latest(self, ns: str) -> Row | None:
        """The checkpoint with the highest id."""
        rows = self.rows.get(ns)
        return rows[max(rows)] if rows else None

    def find(self, ns: str, id: str) -> Row | None:
        """A checkpoint by its id."""
        return self.rows.get(ns, {}).get(id)

    def expanded(self, key: Key) -> list[Key]:
        """The keys of a list's elements."""
        chain = []
        at: Key | None = key
        while at is not None:
            spliced = self.lists[at]
            chain.append(spliced)
            at = spliced.base
        made: list[Key] = []
        for spliced in reversed(chain):
            del made[spliced.stop :]
            del made[: spliced.start]
            made.extend(spliced.added)
        return made

    def settled(self, key: Key, message_id: Any) -> Key:
        """The key in the thread of a message that has this key here.

        Computes the keys only of messages with the same id: others are different messages.
        """
        for other in self._unsorted:
            held = self.framed.get(other)
            if held is not None:
                self._unsettled.setdefault(str(id_of(held)), []).append(other)
        self._unsorted.clear()
        for other in self._unsettled.pop(str(message_id), ()):
            here = key_of(self._serde.dumps_typed(self._message(other)))
            if here != other:
                self._aliases[here] = other
        return self._aliases.get(key, key)

    def _message(self, key: Key) -> BaseMessage:
        held = self.framed[key]
        return held.message() if isinstance(held, Plain) else message_of(filled(held))

    def place(self, key: Key) -> Place:
        """The place of a value or a message."""
        held = self.framed.get(key)
        if held is None:
            return self._places[key]
        return held.place if isinstance(held, Plain) else held[2]

    def runs(self, channel: str, at: Runs) -> list[Run]:
        """All runs of a list."""
        return [*self.full[(at.base, channel)][: at.kept], *at.tail] if at.base else list(at.tail)

    # ---- keeping up to date ----

    def apply(
        self, revision: int, branch: int, event: pb.Event | new.NewEvent, branch_name: str = ""
    ) -> None:
        """Adds the next event."""
        which = event.WhichOneof("body")
        self.seen = revision
        if which == "branch_forked":
            branch = revision
            self._fork(revision, event.branch_forked)
        if branch not in self.branches:
            is_whole = self.is_whole
            open = set[str]() if is_whole else None
            self.branches[branch] = Branch(branch_name, open=open, is_known=is_whole)
        on = self.branches[branch]
        on.head = revision
        if which == "branch_activated":
            self.active = branch
        elif which == "branch_archived":
            on.archived = True
        elif which == "branch_renamed":
            on.name = event.branch_renamed.name
        elif which == "custom":
            self._custom(revision, branch, event.custom)
        elif which is not None:
            _track_calls(on, which, event)
        if self._frame is not None:
            self._take(on, revision, which, event)

    def _fork(self, revision: int, forked: pb.BranchForked) -> None:
        parent = self.branches.get(forked.parent_branch_id) or Branch("", is_known=False)
        kept = bisect_right(parent.ends, forked.fork_revision)
        is_head = forked.fork_revision >= parent.head and parent.open is not None
        self.branches[revision] = Branch(
            forked.name,
            mirrored=parent.mirrored[:kept],
            ends=parent.ends[:kept],
            begin=parent.begin,
            open=set(parent.open or ()) if is_head else None,
            is_known=parent.is_known and self.is_whole,
        )

    def _custom(self, revision: int, branch: int, custom: pb.Custom) -> None:
        if custom.type_name == CHECKPOINT:
            row = self.row_of(revision, branch, custom)
            self.rows.setdefault(row.ns, {})[row.id] = row
        elif custom.type_name == WRITES:
            self.take_writes(custom)
        elif custom.type_name == DELETED:
            self._deleted(ormsgpack.unpackb(custom.data))
        elif custom.type_name == MESSAGES:
            content = json.loads(custom.data.decode())
            keys = [bytes.fromhex(key) for key in content["beside"]["keys"]]
            self._frame = (keys, content["items"], [])
            self._missing = -1

    def row_of(self, revision: int, branch: int, custom: pb.Custom) -> Row:
        """Parses a checkpoint, and adds its values to the index."""
        said = ormsgpack.unpackb(custom.data)
        self.holds[revision] = [key for key, _, _ in said["new"]]
        for index, (key, kind, data) in enumerate(said["new"]):
            self.values[key] = (kind, data)
            self._places.setdefault(key, (revision, index, IN_ROW))
        for key, base, start, stop, added in said["lists"]:
            # A list whose base is missing is looked up when needed.
            if base is None or base in self.lists:
                self.lists.setdefault(key, Spliced(base, start, stop, added))
        at = None
        if "at" in said:
            at = {name: unpacked_at(each, revision) for name, each in said["at"].items()}
            for name, each in at.items():
                if isinstance(each, Runs) and not each.base:
                    self.full[(revision, name)] = each.tail
        return Row(
            ns=said["ns"],
            id=said["id"],
            parent=said["parent"],
            stored=(said["type"], said["checkpoint"]),
            metadata=json.loads(said["metadata"]),
            values=said["values"],
            revision=revision,
            branch=branch,
            at=at,
            is_mirrored=said.get("mirrored", False),
        )

    def take_writes(self, custom: pb.Custom) -> None:
        """Adds the writes of a task."""
        self._writes(ormsgpack.unpackb(custom.data))

    def _writes(self, said: dict[str, Any]) -> None:
        place = (said["ns"], said["id"])
        held = self.writes.setdefault(place, {})
        replaces = all(channel in WRITES_IDX_MAP for _, channel, _, _ in said["writes"])
        for idx, channel, kind, data in said["writes"]:
            at = (said["task"], idx)
            if replaces or at not in held:
                held[at] = Write(said["path"], said["task"], idx, channel, (kind, data))

    def _deleted(self, said: dict[str, Any]) -> None:
        self.lacks_deleted = not self.is_whole
        if said.get("all"):
            self.rows.clear()
            self.writes.clear()
        for ns, id in said.get("places", ()):
            self.rows.get(ns, {}).pop(id, None)
            self.writes.pop((ns, id), None)

    def _take(
        self, on: Branch, revision: int, which: str | None, event: pb.Event | new.NewEvent
    ) -> None:
        """Takes an event of the frame of messages that is being read, or the frame itself."""
        assert self._frame is not None
        keys, packed, held = self._frame
        if self._missing < 0:
            on.begin = on.begin if on.mirrored else revision
            self._missing = sum(count for count, _ in packed)
        else:
            held.append((revision, event))
            self._missing -= 1
        if self._missing > 0:
            return
        self._frame = None
        frame = held[0][0] - 1 if held else revision
        on.mirrored += keys
        end = 0
        for count, _ in packed:
            end += count
            on.ends.append(held[end - 1][0] if count else frame + end)
        self._take_all(frame, keys, packed, [event for _, event in held])

    def take_frame(
        self, frame: int, content: Mapping[str, Any], events: Sequence[pb.Event]
    ) -> None:
        """Adds the messages of a frame, from its content and its events."""
        keys = [bytes.fromhex(key) for key in content["beside"]["keys"]]
        self._take_all(frame, keys, content["items"], events)

    def _take_all(
        self,
        frame: int,
        keys: Sequence[Key],
        packed: Sequence[Sequence[Any]],
        events: Sequence[pb.Event | new.NewEvent],
    ) -> None:
        self.holds[frame] = keys
        self._unsorted += keys
        framed, values = self.framed, self.values
        count_of_all = len(events)
        start = 0
        for index, (key, (count, item)) in enumerate(zip(keys, packed, strict=True)):
            # The bytes of a message without an item are in a row.
            if item is not None and key not in framed and key not in values:
                place = (frame, index, count_of_all)
                framed[key] = (item, events[start : start + count], place)
            start += count


def _track_calls(on: Branch, which: str, event: pb.Event | new.NewEvent) -> None:
    if on.open is None:
        return
    if which == "tool_call_requested":
        on.open.add(event.tool_call_requested.call_id)
    elif which in ("tool_result_recorded", "tool_call_cancelled"):
        on.open.discard(getattr(event, which).call_id)


def key_of(stored: Stored) -> Key:
    """The key of a value."""
    return hashed(stored[0].encode() + b"\0" + stored[1])


def hashed(content: bytes) -> Key:
    """The key of this content."""
    return blake2b(content, digest_size=KEY_BYTES).digest()


def list_key(keys: Sequence[Key]) -> Key:
    """The key of a list of values with these keys."""
    return hashed(b"list\0" + b"".join(keys))


def is_list(key: Key, keys: Sequence[Key]) -> bool:
    """Whether the list with this key has these elements.

    The key of a JavaScript program is the start of a longer hash, over hexadecimal digits.
    """
    if key == list_key(keys):
        return True
    return key == blake2b(b"list\0" + b"".join(keys).hex().encode()).digest()[:KEY_BYTES]


def packed(said: dict[str, Any]) -> bytes:
    """Encodes the content of a custom event."""
    return ormsgpack.packb(said)


def common(one: Sequence[Key], other: Sequence[Key]) -> int:
    """The length of the common prefix of two lists."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def overlap(one: Sequence[Key], other: Sequence[Key]) -> int:
    """The length of the longest suffix of the first list that is a prefix of the second."""
    if not other or not one:
        return 0
    longest = min(len(one), len(other))
    ends = [at for at in range(len(one) - longest, len(one)) if one[at] == other[0]]
    for at in ends:
        if list(one[at:]) == list(other[: len(one) - at]):
            return len(one) - at
    return 0


def spliced(key: Key | None, old: Sequence[Key], now: Sequence[Key]) -> Spliced:
    """Describes a list as a part of an earlier list."""
    same = common(old, now)
    if same == 0 and (ending := overlap(old, now)):
        return Spliced(key, len(old) - ending, len(old), now[ending:])
    if same == 0:
        return Spliced(None, 0, 0, now)
    return Spliced(key, 0, same, now[same:])


def ordered(writes: Iterable[Write]) -> list[Write]:
    """Writes in the order in which LangGraph applies them."""
    return sorted(writes, key=lambda write: (write.path, write.task, write.idx))
