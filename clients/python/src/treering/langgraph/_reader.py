"""A thread of a graph: what of it is in memory, and how it gets there."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from treering import errors
from treering._adapters.thread import Thread
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.langgraph._index import Index, Key, Row, Write, ordered
from treering.langgraph._known import Read, Written
from treering.langgraph._lookup import Lookups, NotSaidError
from treering.langgraph._messages import Plain, filled, formed, message_of
from treering.v1 import event_pb2 as pb

LOOKED_UP_MAX = 4
"""So many older checkpoints are looked up; whoever wants more reads the thread once: the next ones
are then faster than a look-up."""
UNNAMED = "langgraph: no thread id"
"""The source id of the thread whose id is empty."""
OF_A_LIST = 2
"""A list of the newest counts as so many."""
STEP_EVENTS = 8
"""About so many events stand behind the one that says which checkpoint is the latest."""


class ThreadReader:
    """A thread as it is read. Whoever uses it holds its lock.

    What was read is an index. Until something needs more, it begins at the latest checkpoint, and
    what is older is looked up.
    """

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
        self._db = db
        self._messages_read = Read()
        self._messages_written = Written()
        self._serde = serde
        self._mirrored_channel = mirrored_channel
        self._thread = Thread(db, source, id or UNNAMED, title=id)
        self._conversation: Conversation | None = None
        self._is_noted = False
        self._has_loaded = False
        self._looked_up = 0
        self._brought = set[int]()
        self._has_writes = set[int]()
        self._warned = set[Key]()

    def open(self) -> Conversation:
        """The conversation; begins it the first time."""
        if self._conversation is None:
            self._conversation = self._thread.open()
        return self._conversation

    # ---- reading ----

    def refresh(self) -> bool:
        """Reads all of the thread, or what is new; false when there is no such thread."""
        found = self._conversation or self._thread.find()
        if found is None:
            return False
        self._conversation = found
        self._read_all(found)
        return True

    def find(self, ns: str, id: str | None) -> tuple[Row, list[Write]] | None:
        """A checkpoint by its id, or the latest, with the writes to it.

        What it needs of the thread is looked up, or else all of it is read.
        """
        try:
            row = self._by_id(ns, id) if id else self._latest(ns)
            if row is not None:
                self._bring(row, with_writes=True)
        except NotSaidError:
            if not self.refresh():
                return None
            row = self.index.find(ns, id) if id else self.index.latest(ns)
        except errors.NotFound:
            return None
        if row is None:
            return None
        return row, ordered(self.index.writes.get((ns, row.id), {}).values())

    def newest(self, ns: str, count: int) -> list[Row] | None:
        """The checkpoints with the highest ids; None: all of the thread has to be read."""
        if self.index.is_whole and self.index.seen:
            return None
        self._looked_up += OF_A_LIST
        if self._looked_up > LOOKED_UP_MAX:
            return None
        try:
            found = self._lookups().newest(self.index, ns, count)
        except NotSaidError:
            return None
        except errors.NotFound:
            return []
        for each in found:
            self._take_writes(each.row, each.writes)
        return [each.row for each in found]

    def _lookups(self) -> Lookups:
        # Not looked for first: whether there is one, the first look-up says.
        found = self._conversation or self._db.conversation(self._thread.source_id)
        return Lookups(self._db, found)

    def _latest(self, ns: str) -> Row | None:
        index = self.index
        if index.seen:
            self._read_new()
        if not index.seen or not (index.is_whole or ns in index.tops):
            lookups = self._lookups()
            revision = lookups.latest(ns)
            if not index.seen and not revision:
                return None
            if not index.seen or (ns == "" and 0 < revision < index.first):
                index = self._begin(lookups, revision)
            elif revision > index.seen:
                self._read_new()
            elif 0 < revision < index.first:
                self._add(lookups, lookups.row(index, revision + 1))
            index.tops.add(ns)
        return index.latest(ns)

    def _begin(self, lookups: Lookups, revision: int) -> Index:
        """Reads the thread from a checkpoint on."""
        index = self.index if not self.index.seen else Index(self._serde)
        index.begin(revision)
        self.index = index
        self._forget()
        for event in lookups.since(revision, STEP_EVENTS):
            if self._conversation is None:
                self._conversation = self._db.conversation(event.conversation_id)
            if event.revision == revision:
                # A checkpoint stands on the branch that is the active one then.
                index.active = event.branch_id
            if event.revision == index.seen + 1:
                index.apply(event.revision, event.branch_id, event, event.branch)
        if index.lacks_deleted:
            raise NotSaidError
        return index

    def _add(self, lookups: Lookups, row: Row) -> None:
        """Takes in a checkpoint that is older than what was read."""
        if lookups.is_anything_deleted(row.revision, self.index.first):
            raise NotSaidError
        self.index.rows.setdefault(row.ns, {})[row.id] = row

    def _by_id(self, ns: str, id: str) -> Row | None:
        index = self.index
        if index.seen:
            self._read_new()
            if (row := index.find(ns, id)) or index.is_whole:
                return row
        self._looked_up += 1
        if self._looked_up > LOOKED_UP_MAX:
            raise NotSaidError
        found = self._lookups().named(index, ns, id)
        if found is None:
            return None
        self._take_writes(found.row, found.writes)
        self._has_writes.add(found.row.revision)
        if index.seen:
            index.rows.setdefault(ns, {})[id] = found.row
        return found.row

    def _take_writes(self, row: Row, writes: Iterable[pb.Event]) -> None:
        """All of a checkpoint's writes, in their order; later ones may come again."""
        self.index.writes.pop((row.ns, row.id), None)
        for event in writes:
            self.index.take_writes(event.custom)

    def _bring(self, row: Row, *, with_writes: bool = False) -> None:
        """Looks up what a checkpoint is made of, where that is not known."""
        if self.index.is_whole and self.index.seen:
            return
        lookups = self._lookups()
        # Some may have come before it, and before all that was read.
        wants_writes = with_writes and row.revision not in self._has_writes
        with lookups.writes(row.ns, row.id) if wants_writes else nullcontext(()) as writes:
            if row.revision not in self._brought:
                lookups.bring(self.index, row)
            if wants_writes:
                self._take_writes(row, writes)
        if self.index.seen:
            self._brought.add(row.revision)
            if with_writes:
                self._has_writes.add(row.revision)

    def _forget(self) -> None:
        self._brought.clear()
        self._has_writes.clear()

    def _read_new(self) -> None:
        self._read(self.open())
        if self.index.lacks_deleted:
            raise NotSaidError

    def _read_all(self, conversation: Conversation) -> None:
        if not self.index.is_whole:
            self.index = Index(self._serde)
            self._forget()
        self._read(conversation)

    def _read(self, conversation: Conversation) -> None:
        index = self.index
        lookups = Lookups(self._db, conversation)
        new = lookups.since(index.seen + 1) if index.seen else lookups.since(1, 0)
        for event in new:
            if event.revision == index.seen + 1:
                index.apply(event.revision, event.branch_id, event, event.branch)

    # ---- values ----

    def load(self, key: Key) -> Any:
        """A value."""
        if key in self.index.lists:
            return self._elements(self.index.expanded(key))
        return self._element(key)

    def loaded(self, row: Row) -> dict[str, Any]:
        """The values of a checkpoint that a graph is to go on from."""
        self._messages_written.reads()
        self._is_noted = True
        try:
            return {channel: self.load(key) for channel, key in row.values.items()}
        finally:
            self._is_noted = False

    def _elements(self, keys: Iterable[Key]) -> list[Any]:
        """The elements of a list: there may be very many."""
        framed = self.index.framed
        made: list[Any] = []
        for key in keys:
            held = framed.get(key)
            if isinstance(held, Plain):
                form, message = held.form, held.message()
            elif held is not None and (found := formed(held)) is not None:
                form, fields = found
                if self._has_loaded:
                    framed[key] = Plain(form, fields.copy(), held[2])
                message = form.message(fields)
            else:
                made.append(self._element(key))
                continue
            if self._is_noted:
                self._messages_written.note_read(message, key, form.empty)
            made.append(message)
        # Whoever loads once need not be ready for more.
        self._has_loaded = True
        return made

    def _element(self, key: Key) -> Any:
        if (known := self._messages_read.copy_of(key)) is not None:
            return known
        held = self.index.framed.get(key)
        if held is None:
            value = self._serde.loads_typed(self.index.values[key])
        elif isinstance(held, Plain):
            return held.message()
        else:
            value = message_of(deepcopy(filled(held)))
        if isinstance(value, BaseMessage) and self._messages_read.keep(key, value):
            return self._messages_read.copy_of(key) or value
        return value
