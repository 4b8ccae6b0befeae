"""Writes a thread of a graph to its conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint

from treering import errors, new
from treering._adapters import frames, odd
from treering._adapters.thread import ATTEMPTS_MAX, before, clear, fitted, open_calls
from treering._sync.conversation import Conversation
from treering.langgraph._index import (
    CHECKPOINT,
    DELETED,
    LATEST,
    MESSAGES,
    WRITES,
    Branch,
    Key,
    Named,
    Row,
    Spliced,
    Stored,
    common,
    key_of,
    list_key,
    overlap,
    packed,
    spliced,
)
from treering.langgraph._lookup import NotSaidError
from treering.langgraph._messages import message_of, plain, typed
from treering.langgraph._others import echoes, is_filled
from treering.langgraph._places import (
    IN_ROW,
    OWN_FRAME,
    OWN_ROW,
    At,
    Place,
    Run,
    Runs,
    checkpoint_key,
    cut,
    latest_key,
    packed_at,
    runs_of,
    said_of,
)
from treering.langgraph._reader import ThreadReader
from treering.types import Receipt
from treering.v1 import event_pb2 as pb

MSGPACK = "application/msgpack"


@dataclass(frozen=True)
class Put:
    """A checkpoint to store."""

    ns: str
    parent: str | None
    checkpoint: Checkpoint
    metadata: str
    """As JSON."""
    new_versions: Any


@dataclass
class _Batch:
    """What a checkpoint adds to the thread."""

    values: dict[Key, Stored] = field(default_factory=dict)
    lists: dict[Key, Spliced] = field(default_factory=dict)
    messages: list[tuple[Key, BaseMessage]] = field(default_factory=list)
    """Of the mirrored channel."""
    has_messages: bool = False
    framed: dict[Key, Place] = field(default_factory=dict)
    """The places of the messages that go to the frame."""
    spans: list[tuple[Key, int, int]] = field(default_factory=list)
    """The messages of the frame: key, and begin and end of the message's events in it."""
    notes: dict[Key, list[str]] = field(default_factory=dict)
    """By message: how its events differ from it."""


@dataclass
class _Turn:
    """The branch to which the messages of a checkpoint go."""

    parent: Branch
    name: str
    open: set[str]
    """Its calls without a result."""
    last: int
    """The branch has the events of the parent up to this revision."""
    events: list[new.NewEvent] = field(default_factory=list)
    """Fork and activation, if the branch is not the active one."""
    added: list[tuple[Key, BaseMessage]] = field(default_factory=list)


class GraphThread(ThreadReader):
    """Reads and writes a thread. The caller must hold its lock."""

    # ---- values ----

    def _value(self, batch: _Batch, value: Any, old: Key | None, is_mirrored: bool) -> Key:
        if is_mirrored and value == []:
            batch.has_messages = True
        if not _is_kept_as_list(value):
            return self._kept(batch, value)
        if is_mirrored and all(isinstance(each, BaseMessage) for each in value):
            keys = self._messages(batch, value)
        else:
            keys = [self._kept(batch, each) for each in value]
        key = list_key(keys)
        if key not in self.index.lists and key not in batch.lists:
            before = self.index.expanded(old) if old in self.index.lists else []
            batch.lists[key] = spliced(old, before, keys)
        return key

    def _kept(self, batch: _Batch, value: Any) -> Key:
        stored = self._serde.dumps_typed(value)
        key = key_of(stored)
        if isinstance(value, BaseMessage) and not self.index.has(key):
            key = self.index.settled(key, value.id)
        if not self.index.has(key):
            batch.values[key] = stored
        return key

    def _messages(self, batch: _Batch, messages: Sequence[BaseMessage]) -> list[Key]:
        keys: list[Key] = []
        values, framed = self.index.values, self.index.framed
        known = self._messages_written.keys_of(messages)
        for key, message in zip(known, messages, strict=True):
            if key is None or (key not in framed and key not in values):
                key = self._kept(batch, message)
                self._messages_written.note(message, key)
            keys.append(key)
        self._messages_written.turn()
        batch.messages = list(zip(keys, messages, strict=True))
        batch.has_messages = True
        return keys

    # ---- checkpoints ----

    def put(self, put: Put) -> None:
        """Stores a checkpoint."""
        conversation = self.open()
        self._know(put.ns)
        lessened = odd.Lessened()
        is_mirrored = True
        for _ in range(ATTEMPTS_MAX):
            batch, turn, first = _Batch(), None, 0
            try:
                before = self._parent(put)
                values = self._values(batch, put, before)
                turn = self._turn(batch) if batch.has_messages and is_mirrored else None
                framed = self._frame(batch, turn, lessened) if turn else []
                rows = self._rows(batch, put, before, values, turn)
                first = len(turn.events) + len(rows) if turn else 0
                self._append(conversation, turn, rows, framed)
                self._warn(batch)
                return
            except NotSaidError:
                self._read_all(conversation)
            except errors.Conflict:
                # Another program wrote to the thread.
                self._read(conversation)
            except (errors.Refused, errors.Invalid, errors.NotFound) as refusal:
                spans = [(key, first + begin, first + end) for key, begin, end in batch.spans]
                if not lessened.refused(refusal, spans):
                    if turn is None:
                        raise
                    # Store the messages as values only.
                    is_mirrored = False
                self._read(conversation)
                for known in self.index.branches.values():
                    known.open = None
        raise errors.RevisionMismatch(f"other writers kept writing to thread {self.id}")

    def _know(self, ns: str) -> None:
        """Looks up the latest checkpoint if it is not known; reads a new thread in full."""
        try:
            for each in dict.fromkeys(("", ns)):
                if not self.index.seen or not (self.index.is_whole or each in self.index.tops):
                    self._latest(each)
        except NotSaidError:
            self._read_all(self.open())
        if not self.index.seen:
            self._read_all(self.open())

    def _parent(self, put: Put) -> Row | None:
        if not put.parent:
            return None
        row = self.index.find(put.ns, put.parent)
        if row is None and not self.index.is_whole:
            row = self._by_id(put.ns, put.parent)
        if row is not None:
            self._bring(row)
        return row

    def _values(self, batch: _Batch, put: Put, before: Row | None) -> dict[str, Key]:
        checkpoint = put.checkpoint
        old = before.values if before else {}
        versions = self._versions(before)
        values: dict[str, Key] = {}
        for channel, value in checkpoint["channel_values"].items():
            version = checkpoint["channel_versions"].get(channel)
            is_mirrored = put.ns == "" and channel == self._mirrored_channel
            is_same = (
                channel not in put.new_versions
                and version is not None
                and version == versions.get(channel)
                and channel in old
            )
            if is_same:
                values[channel] = old[channel]
            else:
                values[channel] = self._value(batch, value, old.get(channel), is_mirrored)
        return values

    def _versions(self, row: Row | None) -> dict[str, Any]:
        if row is None:
            return {}
        versions: dict[str, Any] = self._serde.loads_typed(row.stored)["channel_versions"]
        return versions

    def _rows(
        self,
        batch: _Batch,
        put: Put,
        before: Row | None,
        values: dict[str, Key],
        turn: _Turn | None,
    ) -> list[new.NewEvent]:
        """The event that names the checkpoint as the latest, and the checkpoint."""
        kind, data = self._serde.dumps_typed({**put.checkpoint, "channel_values": {}})
        ns, id = put.ns, put.checkpoint["id"]
        latest = self.index.latest(ns)
        pointer = {
            "ns": ns,
            "id": id,
            "top": latest.id if latest else None,
            "seen": self.index.seen,
            "before": len(turn.events) if turn else 0,
        }
        said = {
            "ns": ns,
            "id": id,
            "parent": put.parent,
            "type": kind,
            "checkpoint": data,
            "metadata": put.metadata,
            "values": values,
            "new": [[key, *stored] for key, stored in batch.values.items()],
            "lists": [
                [key, each.base, each.start, each.stop, each.added]
                for key, each in batch.lists.items()
            ],
            "at": self._at(batch, before, values),
            "mirrored": turn is not None or (ns == "" and self._is_mirrored(values)),
        }
        return [
            new.custom(LATEST, packed(pointer), content_type=MSGPACK, key=latest_key(ns)),
            new.custom(CHECKPOINT, packed(said), content_type=MSGPACK, key=checkpoint_key(ns, id)),
        ]

    def _at(self, batch: _Batch, before: Row | None, values: dict[str, Key]) -> dict[str, Any]:
        """The places of the values, packed."""
        own: dict[Key, Place] = {
            key: (OWN_ROW, index, IN_ROW) for index, key in enumerate(batch.values)
        }
        own.update(batch.framed)
        known = self.index.place
        made = dict[str, Any]()
        for channel, key in values.items():
            old = before.at.get(channel) if before and before.at else None
            at: At
            if before and old and before.values.get(channel) == key:
                at = old
                if isinstance(old, Runs) and not old.base:
                    at = Runs(before.revision, len(old.tail), ())
            elif key in batch.lists or key in self.index.lists:
                at = self._runs(batch, before, channel, key, own)
            else:
                at = own.get(key) or known(key)
            made[channel] = packed_at(at)
        return made

    def _runs(
        self, batch: _Batch, before: Row | None, channel: str, key: Key, own: dict[Key, Place]
    ) -> Runs:
        """The place of a list, relative to the place of the list before it, if that has runs."""
        known = self.index.place
        old = before.at.get(channel) if before and before.at else None
        added = batch.lists.get(key)
        runs: list[Run] = []
        if isinstance(old, Runs) and before and added and added.base == before.values[channel]:
            runs = cut(self.index.runs(channel, old), added.start, added.stop)
            keys: Sequence[Key] = added.added
        elif added:
            keys = self._expanded(added)
        else:
            keys = self.index.expanded(key)
        runs += runs_of(own.get(each) or known(each) for each in keys)
        if not isinstance(old, Runs) or before is None:
            return Runs(0, 0, runs)
        base = old.base or before.revision
        return said_of(runs, base, self.index.full[(base, channel)])

    def _expanded(self, each: Spliced) -> list[Key]:
        kept = self.index.expanded(each.base)[each.start : each.stop] if each.base else []
        return [*kept, *each.added]

    def _is_mirrored(self, values: dict[str, Key]) -> bool:
        """Whether the active branch ends with the messages."""
        key = values.get(self._mirrored_channel)
        branch = self._known_branch()
        if key is None or branch is None:
            return False
        keys = self.index.expanded(key) if key in self.index.lists else []
        return branch.mirrored[-len(keys) :] == keys if keys else False

    def _append(
        self,
        conversation: Conversation,
        turn: _Turn | None,
        rows: list[new.NewEvent],
        framed: list[new.NewEvent],
    ) -> None:
        if turn is None:
            self._took(conversation.append(rows), rows)
            return
        events = [*turn.events, *rows, *framed]
        for event in events:
            if not event.HasField("branch_forked"):
                event.branch = turn.name
        on = conversation.on(turn.parent.name)
        self._took(on.append(events, expected=turn.parent.head), events)

    # ---- messages ----

    def _turn(self, batch: _Batch) -> _Turn:
        """Chooses or forks the branch that can have exactly the messages of the state."""
        wanted = [key for key, _ in batch.messages]
        if not self.index.is_whole:
            known = self._known_branch()
            mirrored = known.mirrored if known else []
            goes_on = common(mirrored, wanted) == len(mirrored) or overlap(mirrored, wanted)
            if known is None or not goes_on:
                raise NotSaidError
        id = self._branch_for(wanted)
        branch = self.index.branches[id]
        same = common(branch.mirrored, wanted)
        if same == len(branch.mirrored):
            turn = _Turn(branch, branch.name, self._open(branch), branch.head)
        elif ending := overlap(branch.mirrored, wanted):
            # The state dropped its first messages; the conversation keeps them.
            same = ending
            turn = _Turn(branch, branch.name, self._open(branch), branch.head)
        else:
            name = f"from-{self.index.seen}"
            at = branch.ends[same - 1] if same else self._before_all(branch)
            forked = pb.BranchForked(name=name, parent_branch_id=id, fork_revision=at)
            turn = _Turn(branch, name, self._open_at(branch, at), at)
            turn.events.append(new.NewEvent(branch_forked=forked))
        if turn.events or id != self.index.active:
            turn.events.append(new.branch_activated())
        turn.added = batch.messages[same:]
        return turn

    def _known_branch(self) -> Branch | None:
        """The active branch, if the messages at its end are known."""
        index = self.index
        branch = index.branches.get(index.active)
        if branch is None or branch.is_known:
            return branch
        # Only checkpoints add messages, so what the newest one records is still true.
        row = index.newest("")
        if row is None or not row.is_mirrored or row.branch != index.active:
            return None
        self._bring(row)
        key = row.values.get(self._mirrored_channel)
        branch.mirrored = index.expanded(key) if key in index.lists else []
        branch.is_known = True
        return branch

    def _branch_for(self, wanted: Sequence[Key]) -> int:
        """The branch with most of these messages, preferably without others after them."""
        active = self.index.branches[self.index.active].mirrored
        if common(active, wanted) == len(active) or overlap(active, wanted):
            return self.index.active

        def worth(id: int) -> tuple[bool, int, bool]:
            mirrored = self.index.branches[id].mirrored
            same = common(mirrored, wanted)
            return bool(mirrored) and same == len(mirrored), same, id == self.index.active

        return max((id for id, on in self.index.branches.items() if not on.archived), key=worth)

    def _frame(self, batch: _Batch, turn: _Turn, lessened: odd.Lessened) -> list[new.NewEvent]:
        """The frame with the messages that are new on the branch."""
        if not turn.added:
            return []
        items: list[tuple[Any, list[new.NewEvent]]] = []
        end = 1
        for (key, message), events in zip(turn.added, self._spoken(batch, turn), strict=True):
            batch.notes[key] += lessened.notes(key)
            own = fitted(lessened.of(key, events), turn.open)
            items.append((self._item(batch, key, message), own))
            batch.spans.append((key, end, end + len(own)))
            end += len(own)
        for index, ((key, _), (said, _)) in enumerate(zip(turn.added, items, strict=True)):
            if said is not None:
                batch.framed[key] = (OWN_FRAME, index, end - 1)
        return frames.frame(MESSAGES, items, {"keys": [key.hex() for key, _ in turn.added]})

    def _spoken(self, batch: _Batch, turn: _Turn) -> list[list[new.NewEvent]]:
        """The new messages as events that the store accepts."""
        start = len(batch.messages) - len(turn.added)
        branch = self.open().on(turn.parent.name)
        # The branch already has the messages of other programs that the state took over.
        there = echoes(branch, (message for _, message in turn.added), turn.last)
        read: list[tuple[list[new.NewEvent], list[str]]] = [
            ([], []) if message.id in there or is_filled(message) else typed(message)
            for _, message in turn.added
        ]
        standing: odd.Standing = {}
        if any(odd.has_odd_result(events) for events, _ in read):
            for place, (_, message) in enumerate(batch.messages[:start]):
                odd.within(typed(message)[0], message.id or str(place), standing)
        made = []
        for place, ((key, message), (events, notes)) in enumerate(
            zip(turn.added, read, strict=True), start
        ):
            events, more = odd.within(events, message.id or str(place), standing)
            batch.notes[key] = notes + more
            made.append(events)
        return made

    def _item(self, batch: _Batch, key: Key, message: BaseMessage) -> Any:
        """A message's fields, which go to the frame; None: its bytes go to the row."""
        stored = batch.values.get(key)
        said = plain(message) if stored else None
        if said is None or self._serde.dumps_typed(message_of(said)) != stored:
            return None
        del batch.values[key]
        return said

    def _warn(self, batch: _Batch) -> None:
        """Warns once for each message that the log does not have as the state has it."""
        for key, notes in batch.notes.items():
            if notes and key not in self._warned:
                self._warned.add(key)
                odd.warn(f"langgraph, thread {self.id[:80]}, a message", notes)

    def _before_all(self, branch: Branch) -> int:
        """The revision before the graph's first message. A fork there keeps earlier prompts."""
        return before(self.open().on(branch.name), branch.begin) if branch.begin else 1

    def _open(self, branch: Branch) -> set[str]:
        if branch.open is None:
            branch.open = open_calls(self.open().on(branch.name).state())
        return set(branch.open)

    def _open_at(self, branch: Branch, revision: int) -> set[str]:
        return open_calls(self.open().on(branch.name).state(as_of=revision))

    # ---- writes ----

    def put_writes(
        self,
        ns: str,
        id: str,
        task: str,
        path: str,
        writes: Sequence[tuple[int, str, str, bytes]],
    ) -> None:
        """Stores the writes of a task."""
        said = {"ns": ns, "id": id, "task": task, "path": path, "writes": list(writes)}
        key = checkpoint_key(ns, id)
        event = new.custom(WRITES, packed(said), content_type=MSGPACK, key=key)
        self._took(self.open().append([event]), [event])

    # ---- deleting ----

    def delete(self, places: Iterable[Named]) -> None:
        """Deletes checkpoints, with their writes."""
        taken = list(places)
        if taken:
            event = new.custom(DELETED, packed({"places": taken}))
            self._took(self.open().append([event]), [event])

    def delete_all(self) -> None:
        """Deletes all checkpoints; the conversation continues on an empty branch."""
        if not self.refresh() or not (self.index.rows or self.index.writes):
            return
        conversation = self.open()
        event = new.custom(DELETED, packed({"all": True}))
        conversation.append([event])
        clear(conversation)
        self._read(conversation)

    def needed(self) -> Iterator[Row]:
        """The latest checkpoint of each namespace, and those that its delta channels need."""
        for ns in self.index.rows:
            row = self.index.latest(ns)
            if row is None:
                continue
            yield row
            missing = set(row.metadata.get("counters_since_delta_snapshot") or ())
            missing -= set(row.values)
            while missing and row is not None and row.parent:
                row = self.index.find(ns, row.parent)
                if row is not None:
                    yield row
                    missing -= set(row.values)

    def _took(self, receipt: Receipt, events: Sequence[new.NewEvent]) -> None:
        """Adds appended events to the index without a read, if no other events came between."""
        if receipt.repeated or receipt.revisions[0] != self.index.seen + 1:
            return
        branch = self.index.active
        for revision, event in zip(receipt.revisions, events, strict=True):
            which = event.WhichOneof("body")
            if which == "branch_forked":
                branch = revision
            elif event.branch:
                branch = self._named(event.branch, branch)
            self.index.apply(revision, branch, event)

    def _named(self, name: str, otherwise: int) -> int:
        for id, branch in self.index.branches.items():
            if branch.name == name:
                return id
        return otherwise


def _is_kept_as_list(value: Any) -> bool:
    """Whether only additions to a list are stored: not if it contains numbers or None."""
    return (
        type(value) is list
        and bool(value)
        and not any(isinstance(each, (int, float, type(None))) for each in value)
    )
