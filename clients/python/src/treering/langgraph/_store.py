"""What a graph remembers across threads: LangGraph's store, as a conversation's events."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import ormsgpack
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from treering import new
from treering._adapters.thread import Thread, done
from treering._sync.client import Treering
from treering._sync.conversation import Conversation
from treering._words import json_bytes
from treering.v1 import event_pb2 as pb

__all__ = ["TreeringStore"]

SOURCE = "langgraph-store"
ITEMS = "langgraph.items"

Namespace = tuple[str, ...]


@dataclass
class _Kept:
    """An item as it is stored."""

    value: bytes
    """JSON text."""
    created_at: datetime
    updated_at: datetime
    ttl: float | None
    """Minutes from its last use."""
    expires_at: datetime | None

    def is_there(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


class TreeringStore(BaseStore):
    """LangGraph's store: every change of an item is an event of one conversation.

    `name` is the conversation's source id; stores of one name are one store. What is there is
    kept in memory, and each call reads what is new, so programs may use a store at once. An
    item whose time is over is gone, whether or not `sweep_ttl` was called.

    >>> store = treering.langgraph.TreeringStore(db)
    >>> store.put(("users", "ada"), "likes", {"answers": "short"})
    >>> store.get(("users", "ada"), "likes").value
    {'answers': 'short'}
    """

    supports_ttl = True

    def __init__(
        self, db: Treering, name: str = "langgraph-store", *, ttl: TTLConfig | None = None
    ) -> None:
        self.ttl_config = ttl
        self._thread = Thread(db, SOURCE, name, title=name)
        self._items: dict[Namespace, dict[str, _Kept]] = {}
        self._seen = 0
        self._lock = threading.RLock()

    @property
    def conversation(self) -> Conversation:
        """The conversation that has the items; begins it the first time."""
        return self._thread.open()

    # ---- LangGraph's calls ----

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Reads, then writes: the writes of a batch are stored all at once."""
        asked = list(ops)
        with self._lock:
            self._refresh()
            now = datetime.now(timezone.utc)
            results = [self._result(op, now) for op in asked]
            changes = self._changes(asked)
            touched = self._touched(asked, results)
            if changes or touched:
                self._write(changes, touched, now)
            return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same as `batch`; ends when what it writes is stored, or is not."""
        asked = list(ops)
        if any(isinstance(op, PutOp) for op in asked):
            return await done(lambda: self.batch(asked))
        return await asyncio.to_thread(self.batch, asked)

    def sweep_ttl(self) -> int:
        """Takes out what is over; how many."""
        with self._lock:
            self._refresh()
            now = datetime.now(timezone.utc)
            over = [
                [list(namespace), key, None, None]
                for namespace, items in self._items.items()
                for key, kept in items.items()
                if not kept.is_there(now)
            ]
            if over:
                self._write(over, [], now)
            return len(over)

    # ---- reading ----

    def _result(self, op: Op, now: datetime) -> Result:
        if isinstance(op, GetOp):
            kept = self._items.get(op.namespace, {}).get(op.key)
            there = kept is not None and kept.is_there(now)
            return _item(op.namespace, op.key, kept) if kept is not None and there else None
        if isinstance(op, SearchOp):
            return self._search(op, now)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op, now)
        if isinstance(op, PutOp):
            return None
        raise ValueError(f"{type(op).__name__} is no operation of a store")

    def _search(self, op: SearchOp, now: datetime) -> list[SearchItem]:
        depth = len(op.namespace_prefix)
        found = [
            (kept.updated_at, namespace, key, kept)
            for namespace, items in self._items.items()
            if namespace[:depth] == tuple(op.namespace_prefix)
            for key, kept in items.items()
            if kept.is_there(now) and (not op.filter or _fits(json.loads(kept.value), op.filter))
        ]
        found.sort(key=lambda each: each[0], reverse=True)
        return [
            SearchItem(
                namespace, key, json.loads(kept.value), kept.created_at, kept.updated_at, None
            )
            for _, namespace, key, kept in found[op.offset : op.offset + op.limit]
        ]

    def _namespaces(self, op: ListNamespacesOp, now: datetime) -> list[Namespace]:
        there = {
            namespace if op.max_depth is None else namespace[: op.max_depth]
            for namespace, items in self._items.items()
            if any(kept.is_there(now) for kept in items.values())
            and all(_matches(condition, namespace) for condition in op.match_conditions or ())
        }
        return sorted(there)[op.offset : op.offset + op.limit]

    def _refresh(self) -> None:
        conversation = self._thread.find()
        if conversation is None:
            return
        for event in conversation.events(first=self._seen + 1):
            self._apply(event.revision, event.proto)

    # ---- writing ----

    def _changes(self, ops: Sequence[Op]) -> list[list[Any]]:
        last = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        return [
            [
                list(namespace),
                key,
                None if op.value is None else json_bytes(op.value),
                op.ttl,
            ]
            for (namespace, key), op in last.items()
        ]

    def _touched(self, ops: Sequence[Op], results: Sequence[Result]) -> list[list[Any]]:
        """Items that were read, and live longer for it."""
        if not (self.ttl_config and self.ttl_config.get("refresh_on_read")):
            return []
        read: dict[tuple[Namespace, str], None] = {}
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, (GetOp, SearchOp)) and op.refresh_ttl and result:
                for item in result if isinstance(result, list) else [result]:
                    if isinstance(item, Item):
                        read[item.namespace, item.key] = None
        return [
            [list(namespace), key]
            for namespace, key in read
            if self._items[namespace][key].ttl is not None
        ]

    def _write(self, changes: list[Any], touched: list[Any], now: datetime) -> None:
        said = {"at": now.isoformat(), "items": changes, "touched": touched}
        event = new.custom(ITEMS, ormsgpack.packb(said), content_type="application/msgpack")
        conversation = self.conversation
        if self._seen == 0:
            self._refresh()
        receipt = conversation.append([event])
        if receipt.revision == self._seen + 1:
            self._apply(receipt.revision, event)

    def _apply(self, revision: int, event: pb.Event | new.NewEvent) -> None:
        self._seen = revision
        if event.WhichOneof("body") != "custom" or event.custom.type_name != ITEMS:
            return
        said = ormsgpack.unpackb(event.custom.data)
        at = datetime.fromisoformat(said["at"])
        for labels, key, value, ttl in said["items"]:
            items = self._items.setdefault(tuple(labels), {})
            if value is None:
                items.pop(key, None)
                continue
            before = items.pop(key, None)
            created_at = before.created_at if before and before.is_there(at) else at
            items[key] = _Kept(value, created_at, at, ttl, _end(at, ttl))
        for labels, key in said["touched"]:
            kept = self._items.get(tuple(labels), {}).get(key)
            if kept is not None:
                kept.expires_at = _end(at, kept.ttl)


def _end(at: datetime, ttl: float | None) -> datetime | None:
    return None if ttl is None else at + timedelta(minutes=ttl)


def _item(namespace: Namespace, key: str, kept: _Kept) -> Item:
    return Item(
        value=json.loads(kept.value),
        key=key,
        namespace=namespace,
        created_at=kept.created_at,
        updated_at=kept.updated_at,
    )


# ---- conditions ----


def _matches(condition: MatchCondition, namespace: Namespace) -> bool:
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=False))


def _fits(value: Any, wanted: Mapping[str, Any]) -> bool:
    return all(_is(value.get(key), condition) for key, condition in wanted.items())


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if any(str(key).startswith("$") for key in wanted):
            return all(_compares(value, operator, to) for operator, to in wanted.items())
        return isinstance(value, Mapping) and _fits(value, wanted)
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(_is(one, other) for one, other in zip(value, wanted, strict=True))
        )
    return bool(value == wanted)


def _compares(value: Any, operator: str, to: Any) -> bool:
    if operator == "$eq":
        return bool(value == to)
    if operator == "$ne":
        return bool(value != to)
    if operator not in ("$gt", "$gte", "$lt", "$lte"):
        raise ValueError(f"Unsupported operator: {operator}")
    try:
        if not isinstance(value, str) or not isinstance(to, str):
            value, to = float(value), float(to)
    except (TypeError, ValueError):
        return False
    return bool(
        {
            "$gt": value > to,
            "$gte": value >= to,
            "$lt": value < to,
            "$lte": value <= to,
        }[operator]
    )
