"""A thread of a graph: its conversation, and what is in it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from treering import errors, new
from treering._adapters import frames
from treering._adapters.thread import ATTEMPTS_MAX, Thread, before, fitted, open_calls, rewind
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.langgraph._index import (
    CHECKPOINT,
    DELETED,
    MESSAGES,
    WRITES,
    Branch,
    Index,
    Key,
    Place,
    Row,
    Spliced,
    Stored,
    common,
    hashed,
    key_of,
    overlap,
    packed,
    spliced,
)
from treering.langgraph._known import Read, Written
from treering.langgraph._messages import message_of, plain, typed
from treering.types import Receipt
from treering.v1 import event_pb2 as pb

REFUSALS_MAX = 3
"""So often the typed form of messages is tried; then they are kept as values only."""


@dataclass
class _Batch:
    """What a checkpoint adds to the thread."""

    values: dict[Key, Stored] = field(default_factory=dict)
    lists: dict[Key, Spliced] = field(default_factory=dict)
    messages: list[tuple[Key, BaseMessage]] = field(default_factory=list)
    """Of the mirrored channel."""
    has_messages: bool = False


@dataclass
class _Turn:
    """Where the messages of a checkpoint go."""

    parent: Branch
    name: str
    open: set[str]
    """Its calls without a result."""
    events: list[new.NewEvent] = field(default_factory=list)
    """Fork and activate, if it is another branch than before."""
    added: list[tuple[Key, BaseMessage]] = field(default_factory=list)


class GraphThread:
    """A thread. Whoever uses it holds its lock."""

    def __init__(
        self,
        db: Treering,
        source: str,
        id: str,
        serde: SerializerProtocol,
        mirrored_channel: str,
    ) -> None:
        self.id = id
        self.lock = threading.RLock()
        self.index = Index(serde)
        self._messages_read = Read()
        self._messages_written = Written()
        self._serde = serde
        self._mirrored_channel = mirrored_channel
        self._thread = Thread(db, source, id, title=id)
        self._conversation: Conversation | None = None

    def open(self) -> Conversation:
        """The conversation; begins it the first time."""
        if self._conversation is None:
            self._conversation = self._thread.open()
            self._read(self._conversation)
        return self._conversation

    def refresh(self) -> bool:
        """Reads what is new; false when there is no such thread."""
        found = self._conversation or self._thread.find()
        if found is None:
            return False
        self._conversation = found
        self._read(found)
        return True

    def _read(self, conversation: Conversation) -> None:
        for event in conversation.events(first=self.index.seen + 1, all_branches=True):
            if event.revision == self.index.seen + 1:
                self.index.apply(event.revision, event.proto.branch_id, event.proto, event.branch)

    # ---- values ----

    def load(self, key: Key) -> Any:
        """A value."""
        if key in self.index.lists:
            return [self._element(each) for each in self.index.expanded(key)]
        return self._serde.loads_typed(self.index.values[key])

    def _element(self, key: Key) -> Any:
        if (known := self._messages_read.copy_of(key)) is not None:
            return known
        stored = self.index.values[key]
        value = self._serde.loads_typed(stored)
        if isinstance(value, BaseMessage):
            self._messages_read.keep(key, value)
            return self._messages_read.copy_of(key) or value
        return value

    def _value(self, batch: _Batch, value: Any, old: Key | None, is_mirrored: bool) -> Key:
        if is_mirrored and value == []:
            batch.has_messages = True
        if not _is_kept_as_list(value):
            return self._kept(batch, value)
        if is_mirrored and all(isinstance(each, BaseMessage) for each in value):
            keys = [self._message(batch, each) for each in value]
            self._messages_written.turn()
            batch.has_messages = True
        else:
            keys = [self._kept(batch, each) for each in value]
        key = hashed(b"list\0" + b"".join(keys))
        if key not in self.index.lists and key not in batch.lists:
            before = self.index.expanded(old) if old in self.index.lists else []
            batch.lists[key] = spliced(old, before, keys)
        return key

    def _kept(self, batch: _Batch, value: Any) -> Key:
        stored = self._serde.dumps_typed(value)
        key = key_of(stored)
        key = self.index.aliases.get(key, key)
        if key not in self.index.values:
            batch.values[key] = stored
        return key

    def _message(self, batch: _Batch, message: BaseMessage) -> Key:
        key = self._messages_written.key_of(message)
        if key is None or key not in self.index.values:
            key = self._kept(batch, message)
            self._messages_written.note(message, key)
        batch.messages.append((key, message))
        return key

    # ---- checkpoints ----

    def put(
        self,
        ns: str,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: str,
        new_versions: Any,
    ) -> None:
        """Stores a checkpoint."""
        conversation = self.open()
        refusals = 0
        for _ in range(ATTEMPTS_MAX):
            batch = _Batch()
            values = self._values(batch, ns, parent, checkpoint, new_versions)
            is_typed = batch.has_messages and refusals < REFUSALS_MAX
            try:
                turn = self._turn(batch) if is_typed else None
                framed = self._frame(batch, turn) if turn else []
                row = self._row(batch, ns, parent, checkpoint, metadata, values)
                self._append(conversation, turn, row, framed)
                return
            except errors.Conflict:
                # Another program wrote to the thread.
                self._read(conversation)
            except (errors.Refused, errors.Invalid, errors.NotFound):
                if not is_typed:
                    raise
                refusals += 1
                self._read(conversation)
                for known in self.index.branches.values():
                    known.open = None
        raise errors.RevisionMismatch(f"others write to the thread {self.id} all the time")

    def _values(
        self,
        batch: _Batch,
        ns: str,
        parent: str | None,
        checkpoint: Checkpoint,
        new_versions: Any,
    ) -> dict[str, Key]:
        before = self.index.find(ns, parent) if parent else None
        old = before.values if before else {}
        versions = self._versions(before)
        values: dict[str, Key] = {}
        for channel, value in checkpoint["channel_values"].items():
            version = checkpoint["channel_versions"].get(channel)
            is_mirrored = ns == "" and channel == self._mirrored_channel
            is_same = (
                channel not in new_versions
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

    def _row(
        self,
        batch: _Batch,
        ns: str,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: str,
        values: dict[str, Key],
    ) -> new.NewEvent:
        kind, data = self._serde.dumps_typed({**checkpoint, "channel_values": {}})
        said = {
            "ns": ns,
            "id": checkpoint["id"],
            "parent": parent,
            "type": kind,
            "checkpoint": data,
            "metadata": metadata,
            "values": values,
            "new": [[key, *stored] for key, stored in batch.values.items()],
            "lists": [
                [key, each.base, each.start, each.stop, each.added]
                for key, each in batch.lists.items()
            ],
        }
        return new.custom(CHECKPOINT, packed(said), content_type="application/msgpack")

    def _append(
        self,
        conversation: Conversation,
        turn: _Turn | None,
        row: new.NewEvent,
        framed: list[new.NewEvent],
    ) -> None:
        if turn is None:
            self._took(conversation.append([row]), [row])
            return
        events = [*turn.events, row, *framed]
        for event in events:
            if not event.HasField("branch_forked"):
                event.branch = turn.name
        on = conversation.on(turn.parent.name)
        self._took(on.append(events, expected=turn.parent.head), events)

    # ---- messages ----

    def _turn(self, batch: _Batch) -> _Turn:
        """Where to write so that the branch says what the state says."""
        wanted = [key for key, _ in batch.messages]
        id = self._branch_for(wanted)
        branch = self.index.branches[id]
        same = common(branch.mirrored, wanted)
        if same == len(branch.mirrored):
            turn = _Turn(branch, branch.name, self._open(branch))
        elif ending := overlap(branch.mirrored, wanted):
            # The state has let go of its first messages; the conversation need not.
            same = ending
            turn = _Turn(branch, branch.name, self._open(branch))
        else:
            name = f"from-{self.index.seen}"
            at = branch.ends[same - 1] if same else self._before_all(branch)
            forked = pb.BranchForked(name=name, parent_branch_id=id, fork_revision=at)
            turn = _Turn(branch, name, self._open_at(branch, at))
            turn.events.append(new.NewEvent(branch_forked=forked))
        if turn.events or id != self.index.active:
            turn.events.append(new.branch_activated())
        turn.added = batch.messages[same:]
        return turn

    def _branch_for(self, wanted: Sequence[Key]) -> int:
        """The branch that has most of these messages, if possible with no others after them."""
        active = self.index.branches[self.index.active].mirrored
        if common(active, wanted) == len(active) or overlap(active, wanted):
            return self.index.active

        def worth(id: int) -> tuple[bool, int, bool]:
            mirrored = self.index.branches[id].mirrored
            same = common(mirrored, wanted)
            return bool(mirrored) and same == len(mirrored), same, id == self.index.active

        return max((id for id, on in self.index.branches.items() if not on.archived), key=worth)

    def _frame(self, batch: _Batch, turn: _Turn) -> list[new.NewEvent]:
        """The messages that are new on the branch."""
        if not turn.added:
            return []
        items = [self._framed(batch, *each, turn.open) for each in turn.added]
        return frames.frame(MESSAGES, items, {"keys": [key.hex() for key, _ in turn.added]})

    def _framed(
        self, batch: _Batch, key: Key, message: BaseMessage, open: set[str]
    ) -> tuple[Any, list[new.NewEvent]]:
        """A message with its events; its fields go to the frame, or else its bytes to the row."""
        events = fitted(typed(message), open)
        stored = batch.values.get(key)
        said = plain(message) if stored else None
        if said is None or self._serde.dumps_typed(message_of(said)) != stored:
            return None, events
        del batch.values[key]
        return said, events

    def _before_all(self, branch: Branch) -> int:
        """What others wrote before the graph said anything stays: prompts, for example."""
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
        """Stores what a task wrote."""
        said = {"ns": ns, "id": id, "task": task, "path": path, "writes": list(writes)}
        event = new.custom(WRITES, packed(said), content_type="application/msgpack")
        self._took(self.open().append([event]), [event])

    # ---- deleting ----

    def delete(self, places: Iterable[Place]) -> None:
        """Takes checkpoints back, with their writes."""
        taken = list(places)
        if taken:
            event = new.custom(DELETED, packed({"places": taken}))
            self._took(self.open().append([event]), [event])

    def delete_all(self) -> None:
        """Takes everything back."""
        if not self.refresh() or not (self.index.rows or self.index.writes):
            return
        conversation = self.open()
        event = new.custom(DELETED, packed({"all": True}))
        conversation.append([event])
        for _ in range(ATTEMPTS_MAX):
            try:
                rewind(conversation, conversation.state(), 1)
                break
            except errors.Conflict:
                continue
        self._read(conversation)

    def needed(self) -> Iterator[Row]:
        """The latest checkpoint of each namespace, and what its delta channels come from."""
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
        """What was appended is known without reading it, if nothing came between."""
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
    """Lists of what is more than a number are stored by what is added to them."""
    return (
        type(value) is list
        and bool(value)
        and not any(isinstance(each, (int, float, type(None))) for each in value)
    )
