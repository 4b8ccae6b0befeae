"""Reads a thread of a graph into an index in memory."""

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
"""Look-ups of older checkpoints before the whole thread is read. After that read, each further
checkpoint costs less than a look-up."""
UNNAMED = "langgraph: no thread id"
"""The source id of a thread with an empty id."""
OF_A_LIST = 2
"""Look-ups that a list of the newest checkpoints counts as."""
STEP_EVENTS = 8
"""Approximate number of events from the one that names the latest checkpoint to the head."""


class ThreadReader:
    """Reads a thread. The caller must hold its lock.

    The index starts at the latest checkpoint, and older checkpoints are looked up, until a call
    needs the whole thread.
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
        """Returns the conversation; the first call creates it if needed."""
        if self._conversation is None:
            self._conversation = self._thread.open()
        return self._conversation

    # ---- reading ----

    def refresh(self) -> bool:
        """Reads the whole thread, or its new events; false if there is no such thread."""
        found = self._conversation or self._thread.find()
        if found is None:
            return False
        self._conversation = found
        self._read_all(found)
        return True

    def find(self, ns: str, id: str | None) -> tuple[Row, list[Write]] | None:
        """Returns a checkpoint by its id, or the latest, with the writes to it.

        Looks up what it needs, or else reads the whole thread.
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
        """Returns the checkpoints with the highest ids; None: the whole thread must be read."""
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
        # Does not check that the conversation exists: the first look-up fails if it does not.
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
        """Starts the index at a checkpoint, and reads the events from there on."""
        index = self.index if not self.index.seen else Index(self._serde)
        index.begin(revision)
        self.index = index
        self._forget()
        for event in lookups.since(revision, STEP_EVENTS):
            if self._conversation is None:
                self._conversation = self._db.conversation(event.conversation_id)
            if event.revision == revision:
                # A checkpoint is appended to the active branch.
                index.active = event.branch_id
            if event.revision == index.seen + 1:
                index.apply(event.revision, event.branch_id, event, event.branch)
        if index.lacks_deleted:
            raise NotSaidError
        return index

    def _add(self, lookups: Lookups, row: Row) -> None:
        """Adds a checkpoint that is older than the start of the index."""
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
        """Replaces the writes of a checkpoint, in order; later reads may repeat some."""
        self.index.writes.pop((row.ns, row.id), None)
        for event in writes:
            self.index.take_writes(event.custom)

    def _bring(self, row: Row, *, with_writes: bool = False) -> None:
        """Looks up those values of a checkpoint that the index lacks."""
        if self.index.is_whole and self.index.seen:
            return
        lookups = self._lookups()
        # Writes may precede their checkpoint and the start of the index.
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
        """Returns a value."""
        if key in self.index.lists:
            return self._elements(self.index.expanded(key))
        return self._element(key)

    def loaded(self, row: Row) -> dict[str, Any]:
        """Returns the values of a checkpoint from which a graph will continue."""
        self._messages_written.reads()
        self._is_noted = True
        try:
            return {channel: self.load(key) for channel, key in row.values.items()}
        finally:
            self._is_noted = False

    def _elements(self, keys: Iterable[Key]) -> list[Any]:
        """Returns the elements of a list, which may be very long."""
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
        # Parsed forms are kept from the second load on: many callers load only once.
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
