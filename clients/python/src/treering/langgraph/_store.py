"""LangGraph's store, on the items of the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from langgraph.store.base.embed import get_text_at_path, tokenize_path

from treering import items, types
from treering._adapters.thread import done
from treering._sync.client import Treering
from treering._words import SearchByName
from treering.v1 import items_pb2 as pb

__all__ = ["TreeringStore"]

OPS_MAX = 1000
"""Most operations in one batch of the server."""
SEARCHES_MAX = 100
"""Most searches and lists of namespaces in one batch."""

SIGNS: dict[str, items.Sign] = {
    "$eq": "=",
    "$ne": "!=",
    "$gt": ">",
    "$gte": ">=",
    "$lt": "<",
    "$lte": "<=",
}


class TreeringStore(BaseStore):
    """LangGraph's store, on the items of a namespace.

    Stores with the same name are one store: the name is the first label of every path. Nothing is
    cached, and several programs may use a store. A query finds words in all texts of a value, or in
    those that `index` of the put names. With `by="both"` or `by="meaning"` it also finds values
    that say the same in other words, if the server has an embedder. Expired items disappear
    without `sweep_ttl`.

    >>> store = treering.langgraph.TreeringStore(db)
    >>> store.put(("users", "ada"), "likes", {"answers": "short"})
    >>> store.get(("users", "ada"), "likes").value
    {'answers': 'short'}
    """

    supports_ttl = True

    def __init__(
        self,
        db: Treering,
        name: str = "langgraph-store",
        *,
        ttl: TTLConfig | None = None,
        by: SearchByName = "words",
    ) -> None:
        self.ttl_config = ttl
        self.by = by
        self.name = name
        self._items = db.items

    # ---- LangGraph's calls ----

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Runs up to 1,000 operations in one step: reads first, then writes."""
        asked = list(ops)
        results: list[Result] = []
        for some in _steps(asked):
            answers = self._items.batch(self._op(op) for op in some)
            results += [self._result(*each) for each in zip(some, answers, strict=True)]
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same as `batch`. Completes its writes even if it is cancelled."""
        asked = list(ops)
        if any(isinstance(op, PutOp) for op in asked):
            return await done(lambda: self.batch(asked))
        return await asyncio.to_thread(self.batch, asked)

    def sweep_ttl(self) -> int:
        """Returns 0: expired items need no sweep."""
        return 0

    def start_ttl_sweeper(self, sweep_interval_minutes: int | None = None) -> Future[None]:
        """Starts nothing, for programs that start a sweeper of other stores."""
        started = Future[None]()
        started.set_result(None)
        return started

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Returns True: there is nothing to stop."""
        return True

    # ---- operations ----

    def _op(self, op: Op) -> pb.ItemOp:
        if isinstance(op, GetOp):
            return items.get(self._path(op.namespace), op.key, self._refreshes(op))
        if isinstance(op, PutOp):
            return self._put(op)
        if isinstance(op, SearchOp):
            return items.search(
                self._path(op.namespace_prefix),
                op.query or "",
                items.conditions(_conditions((), op.filter or {})),
                op.limit,
                op.offset,
                self._refreshes(op),
                self.by,
            )
        if isinstance(op, ListNamespacesOp):
            return self._paths(op)
        raise ValueError(f"{type(op).__name__} is not a store operation")

    def _path(self, namespace: Sequence[str]) -> list[str]:
        return [self.name, *namespace]

    def _refreshes(self, op: GetOp | SearchOp) -> bool:
        refreshes = bool(self.ttl_config and self.ttl_config.get("refresh_on_read"))
        return refreshes and op.refresh_ttl

    def _put(self, op: PutOp) -> pb.ItemOp:
        path = self._path(op.namespace)
        if op.value is None:
            return items.delete(path, op.key)
        ttl = None if op.ttl is None else op.ttl * 60
        return items.put(path, op.key, op.value, ttl, _text(op))

    def _paths(self, op: ListNamespacesOp) -> pb.ItemOp:
        matches: list[tuple[Literal["prefix", "suffix"], Sequence[str]]] = [("prefix", [self.name])]
        for condition in op.match_conditions or ():
            path = [str(label) for label in condition.path]
            if condition.match_type == "prefix":
                matches.append(("prefix", self._path(path)))
            else:
                # The suffix must not match the store's name: require as many labels after it.
                matches += [("suffix", path), ("prefix", [self.name, *("*" for _ in path)])]
        depth_max = 0 if op.max_depth is None else op.max_depth + 1
        return items.paths(matches, depth_max, op.limit, op.offset)

    # ---- answers ----

    def _result(self, op: Op, answer: pb.ItemResult) -> Result:
        if isinstance(op, GetOp):
            if not answer.got.HasField("item"):
                return None
            [found] = self._items.values([answer.got.item])
            return Item(**_told(found))
        if isinstance(op, SearchOp):
            return [
                SearchItem(**_told(found), score=found.score)
                for found in self._items.values(answer.found.items)
            ]
        if isinstance(op, ListNamespacesOp):
            return [tuple(each.path[1:]) for each in answer.paths.paths]
        return None


def _steps(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Splits operations into the batches that the server accepts."""
    step: list[Op] = []
    searches = 0
    for op in ops:
        is_search = isinstance(op, (SearchOp, ListNamespacesOp))
        if len(step) == OPS_MAX or (is_search and searches == SEARCHES_MAX):
            yield step
            step, searches = [], 0
        step.append(op)
        searches += is_search
    if step:
        yield step


def _told(found: types.Item) -> dict[str, Any]:
    return {
        "value": found.value,
        "key": found.key,
        "namespace": found.path[1:],
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }


def _text(op: PutOp) -> str | None:
    """The text that queries search; None: all texts of the value."""
    if op.index is False:
        return ""
    if not op.index:
        return None
    texts: list[str] = []
    for path in op.index:
        texts += get_text_at_path(op.value, tokenize_path(path))
    return "\n".join(texts)


# ---- conditions ----


def _conditions(
    field: tuple[str, ...], wanted: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], items.Sign, Any]]:
    for name, value in wanted.items():
        names = (*field, name)
        if not isinstance(value, Mapping):
            yield names, "=", value
        elif any(str(key).startswith("$") for key in value):
            for operator, to in value.items():
                if operator not in SIGNS:
                    raise ValueError(f"Unsupported operator: {operator}")
                yield names, SIGNS[operator], to
        else:
            yield from _conditions(names, value)
