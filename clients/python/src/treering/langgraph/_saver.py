"""LangGraph's checkpointer: stores threads of graphs as conversations."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Interrupt

from treering._adapters.thread import PAGE_MAX, done
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering.langgraph._index import Row, Write, ordered
from treering.langgraph._others import messages_in
from treering.langgraph._reader import UNNAMED
from treering.langgraph._thread import GraphThread, Put

__all__ = ["TreeringSaver", "messages"]

SOURCE = "langgraph"
LISTED_MAX = 16
"""Most checkpoints of a list that are looked up; for more, the thread is read."""
THREADS_MAX = 128
"""Threads that are cached in memory."""


def messages(
    conversation: Conversation, *, serde: SerializerProtocol | None = None
) -> list[BaseMessage]:
    """Returns the messages of a conversation, of all programs, as LangChain messages.

    Messages of graphs are returned unchanged; others have the id `CONVERSATION#REVISION`. Pass all
    of them to a graph to add the messages of other programs: its state takes each message once. A
    call without a result gets a message that says so, which is not stored. `serde` is the
    serializer of the saver, if it has its own.
    """
    return messages_in(conversation, serde or JsonPlusSerializer())


class TreeringSaver(BaseCheckpointSaver[str]):
    """Stores LangGraph's threads as conversations.

    `thread_id` is the conversation's source id or its UUID. The messages of the root graph's
    `messages_key` channel are events on the branches of the conversation. The active branch has
    those of the last checkpoint; continuing from an older checkpoint makes a branch. A value is
    stored once, and of a list only what was added. With an encrypting serializer, messages are not
    events.

    Checkpoints are looked up. Threads are cached in memory, and each call reads what is new, so
    several programs may use one thread.
    """

    def __init__(
        self,
        db: Treering,
        *,
        serde: SerializerProtocol | None = None,
        messages_key: str = "messages",
        threads_max: int = THREADS_MAX,
    ) -> None:
        super().__init__(serde=serde)
        self._db = db
        self._messages_key = messages_key
        self._threads_max = threads_max
        # The key includes the serializer: `with_allowlist` returns a saver that shares this dict
        # and may read more types.
        self._threads: OrderedDict[tuple[str, int], GraphThread] = OrderedDict()
        self._mutex = threading.Lock()

    def conversation(self, thread_id: str) -> Conversation:
        """Returns the conversation of a thread, and creates it if needed."""
        return self._thread(thread_id).open()

    # ---- reading ----

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint by id, or the latest."""
        asked = config["configurable"]
        ns = asked.get("checkpoint_ns", "")
        thread = self._thread(asked["thread_id"])
        id = get_checkpoint_id(config)
        with thread.lock:
            found = thread.find(ns, id)
            if found is None:
                return None
            row, writes = found
            return self._tuple(thread, row, writes, thread.loaded(row), config if id else None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Lists checkpoints of one thread or of all, newest first."""
        asked = config["configurable"] if config else {}
        thread_id = asked.get("thread_id")
        end = get_checkpoint_id(before) if before else None
        is_of_all = not (filter or end or asked.get("checkpoint_id"))
        if thread_id is not None and limit is not None and is_of_all:
            newest = self._newest(thread_id, asked.get("checkpoint_ns"), limit)
            if newest is not None:
                yield from newest
                return
        threads = self._all() if thread_id is None else [self._thread(thread_id)]
        found: list[tuple[GraphThread, Row]] = []
        for thread in threads:
            with thread.lock:
                if thread.refresh():
                    found.extend((thread, row) for row in _rows(thread, asked, filter, end))
        found.sort(key=lambda each: each[1].id, reverse=True)
        for thread, row in found if limit is None else found[: max(0, limit)]:
            with thread.lock:
                made = self._listed(thread, row)
            yield made

    def _newest(
        self, thread_id: Any, ns: str | None, limit: int
    ) -> Sequence[CheckpointTuple] | None:
        """The newest checkpoints of a namespace, if they can be looked up."""
        if ns is None or not 0 < limit <= LISTED_MAX:
            return None
        thread = self._thread(thread_id)
        with thread.lock:
            rows = thread.newest(ns, limit)
            # Not lazily: the next call may drop what was looked up.
            return None if rows is None else [self._listed(thread, row) for row in rows]

    def _listed(self, thread: GraphThread, row: Row) -> CheckpointTuple:
        writes = ordered(thread.index.writes.get((row.ns, row.id), {}).values())
        values = {channel: thread.load(key) for channel, key in row.values.items()}
        return self._tuple(thread, row, writes, values, None)

    def _tuple(
        self,
        thread: GraphThread,
        row: Row,
        writes: Sequence[Write],
        values: dict[str, Any],
        config: RunnableConfig | None,
    ) -> CheckpointTuple:
        checkpoint = self.serde.loads_typed(row.stored)
        checkpoint["channel_values"] = values
        return CheckpointTuple(
            config or _config(thread.id, row.ns, row.id),
            checkpoint,
            cast(CheckpointMetadata, dict(row.metadata)),
            _config(thread.id, row.ns, row.parent) if row.parent else None,
            [(write.task, write.channel, self._written(write)) for write in writes],
        )

    def _written(self, write: Write) -> Any:
        value = self.serde.loads_typed(write.stored)
        if write.channel == INTERRUPT and write.stored[0] == "json":
            # JavaScript's interrupts are plain objects.
            asked = value if isinstance(value, list) else [value]
            return [Interrupt(each.get("value"), id=each.get("id", "")) for each in asked]
        return value

    # ---- writing ----

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions | None = None,
    ) -> RunnableConfig:
        """Stores a checkpoint. Without `new_versions`, all of its values are new."""
        if new_versions is None:
            new_versions = dict.fromkeys(checkpoint["channel_values"], "")
        asked = config["configurable"]
        ns = asked.get("checkpoint_ns", "")
        thread = self._thread(asked["thread_id"])
        kept = json.dumps(get_checkpoint_metadata(config, metadata), ensure_ascii=False)
        with thread.lock:
            kept = kept.encode("utf-8", "ignore").decode()
            thread.put(Put(ns, asked.get("checkpoint_id"), checkpoint, kept, new_versions))
        return _config(asked["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores the writes of a task until the next checkpoint."""
        asked = config["configurable"]
        thread = self._thread(asked["thread_id"])
        made = [
            (WRITES_IDX_MAP.get(channel, idx), channel, *self.serde.dumps_typed(value))
            for idx, (channel, value) in enumerate(writes)
        ]
        if not made:
            return
        with thread.lock:
            thread.put_writes(
                asked.get("checkpoint_ns", ""), asked["checkpoint_id"], task_id, task_path, made
            )

    # ---- deleting and copying ----

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread: its conversation continues on an empty branch."""
        thread = self._thread(thread_id)
        with thread.lock:
            thread.delete_all()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints of these runs. Reads every thread: runs have no index."""
        wanted = set(run_ids)
        for thread in self._all() if wanted else ():
            with thread.lock:
                thread.refresh()
                thread.delete(
                    (row.ns, row.id)
                    for rows in thread.index.rows.values()
                    for row in rows.values()
                    if row.metadata.get("run_id") in wanted
                )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints and writes of a thread to another one."""
        source = self._thread(source_thread_id)
        target = self._thread(target_thread_id)
        with source.lock:
            if not source.refresh():
                return
            rows = sorted(
                (row for rows in source.index.rows.values() for row in rows.values()),
                key=lambda row: row.id,
            )
            copies = [(row, self._listed(source, row)) for row in rows]
            writes = {place: list(held.values()) for place, held in source.index.writes.items()}
        with target.lock:
            for row, made in copies:
                versions = made.checkpoint["channel_versions"]
                metadata = json.dumps(row.metadata, ensure_ascii=False)
                target.put(Put(row.ns, row.parent, made.checkpoint, metadata, versions))
            for (ns, id), held in writes.items():
                for write in held:
                    one = [(write.idx, write.channel, *write.stored)]
                    target.put_writes(ns, id, write.task, write.path, one)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Deletes all checkpoints but the latest of each namespace, or (`delete`) all.

        Keeps what the latest needs to rebuild its delta channels.
        """
        for thread_id in thread_ids:
            thread = self._thread(thread_id)
            with thread.lock:
                if strategy != "keep_latest":
                    thread.delete_all()
                elif thread.refresh():
                    kept = {(row.ns, row.id) for row in thread.needed()}
                    thread.delete(
                        (ns, id)
                        for ns, rows in thread.index.rows.items()
                        for id in rows
                        if (ns, id) not in kept
                    )

    # ---- asyncio ----

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The same as `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The same as `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions | None = None,
    ) -> RunnableConfig:
        """The same as `put`. Completes the write even if it is cancelled."""
        return await done(lambda: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """The same as `put_writes`. Completes the write even if it is cancelled."""
        await done(lambda: self.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """The same as `delete_thread`."""
        await done(lambda: self.delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """The same as `delete_for_runs`."""
        await done(lambda: self.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """The same as `copy_thread`."""
        await done(lambda: self.copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """The same as `prune`."""
        await done(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The same as `get_delta_channel_history`."""
        return await asyncio.to_thread(
            self.get_delta_channel_history, config=config, channels=channels
        )

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Returns a version of a channel after this one. Two successors of one version differ."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"

    # ---- threads ----

    def _thread(self, thread_id: Any) -> GraphThread:
        name = str(thread_id)
        with self._mutex:
            # The thread keeps its serializer alive, so no other serializer gets the same `id`.
            key = (name, id(self.serde))
            thread = self._threads.get(key)
            if thread is None:
                mirrored = "" if _encrypts(self.serde) else self._messages_key
                thread = GraphThread(self._db, SOURCE, name, self.serde, mirrored)
                self._threads[key] = thread
            self._threads.move_to_end(key)
            while len(self._threads) > self._threads_max:
                self._threads.popitem(last=False)
            return thread

    def _all(self) -> Iterator[GraphThread]:
        for summary in list(self._db.conversations(source=SOURCE, page_size=PAGE_MAX)):
            id = summary.title or summary.source_id
            yield self._thread("" if summary.source_id == UNNAMED else id)


def _encrypts(serde: SerializerProtocol) -> bool:
    return isinstance(serde, EncryptedSerializer)


def _config(thread_id: Any, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _rows(
    thread: GraphThread,
    asked: Mapping[str, Any],
    filter: Mapping[str, Any] | None,
    end: str | None,
) -> Iterator[Row]:
    ns, id = asked.get("checkpoint_ns"), asked.get("checkpoint_id")
    for rows in thread.index.rows.values():
        for row in rows.values():
            if (
                (ns is None or row.ns == ns)
                and (not id or row.id == id)
                and (end is None or row.id < end)
                and all(_at(row.metadata, key) == value for key, value in (filter or {}).items())
            ):
                yield row


def _at(metadata: Mapping[str, Any], name: str) -> Any:
    """The value that a filter names: `a.b` is also `b` in `a`, as in LangGraph's SQLite saver."""
    if name in metadata:
        return metadata[name]
    value: Any = metadata
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
