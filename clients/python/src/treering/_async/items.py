"""Items: JSON values under paths and keys, shared by all conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treering._async.transport import AsyncTransport
from treering._item_ops import Condition, conditions, delete_op, get_op, paths_op, put_op, search_op
from treering._keys import key_or_new, life_seconds
from treering._methods import ITEMS_BATCH, ITEMS_READ
from treering._words import SearchByName
from treering.types import Item
from treering.v1 import items_pb2 as pb


class AsyncItems:
    """JSON values under a path (a sequence of labels) and a key, shared by the namespace.

    >>> await db.items.put(("users", "ada"), "likes", {"answers": "short", "level": 3})
    >>> item = await db.items.get(("users", "ada"), "likes")
    >>> item.value["answers"]
    'short'
    >>> found = await db.items.search(("users",), where=[("level", ">=", 3)])
    >>> [item.key for item in found]
    ['likes']
    """

    def __init__(self, transport: AsyncTransport, actor: str) -> None:
        self._transport = transport
        self._actor = actor

    async def put(
        self,
        path: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        text: str | None = None,
        idempotency_key: str = "",
    ) -> None:
        """Puts or replaces a value. `ttl` is its time to live in seconds. Search uses `text`
        instead of all texts in the value.
        """
        await self.batch([put_op(path, key, value, ttl, text)], idempotency_key=idempotency_key)

    async def get(self, path: Sequence[str], key: str, *, refresh_ttl: bool = False) -> Item | None:
        """Returns an item, or None. `refresh_ttl` restarts its time to live."""
        answer = await self._send([get_op(path, key, refresh_ttl)], "")
        got = answer.results[0].got
        return Item.of(got.item) if got.HasField("item") else None

    async def delete(self, path: Sequence[str], key: str, *, idempotency_key: str = "") -> bool:
        """Deletes an item; false if it did not exist. Its history stays until it is erased."""
        answer = await self._send([delete_op(path, key)], idempotency_key)
        return answer.HasField("position")

    async def search(
        self,
        under: Sequence[str] = (),
        *,
        query: str = "",
        by: SearchByName = "words",
        where: Iterable[Condition] = (),
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool = False,
    ) -> list[Item]:
        """Searches the items under a path: newest first, or best first with a query. `by` says
        whether the query's words are compared, its meaning, or both. Meanings need an embedder,
        and are compared about a second after a put.

        `where` is a list of conditions `(field, sign, value)` that must all hold, with one of the
        signs `= != > >= < <=`. A sequence of names is a nested field.
        """
        op = search_op(under, query, conditions(where), limit, offset, refresh_ttl, by)
        answer = await self._send([op], "")
        return await self._whole(answer.results[0].found.items)

    async def paths(
        self,
        *,
        prefix: Sequence[str] = (),
        suffix: Sequence[str] = (),
        depth_max: int = 0,
        limit: int = 100,
        offset: int = 0,
    ) -> list[tuple[str, ...]]:
        """Lists the paths that have items, sorted. `*` in `prefix` or `suffix` matches any label.
        Paths are cut to `depth_max` labels; 0 means no limit.
        """
        op = paths_op([("prefix", prefix), ("suffix", suffix)], depth_max, limit, offset)
        answer = await self._send([op], "")
        return [tuple(each.path) for each in answer.results[0].paths.paths]

    async def batch(
        self, ops: Iterable[pb.ItemOp], *, idempotency_key: str = ""
    ) -> list[pb.ItemResult]:
        """Runs operations (made by `treering.items`) in one step. Reads see the state before the
        batch; all changes apply, or none. Returns the results in order.
        """
        asked = list(ops)
        if not asked:
            return []
        return list((await self._send(asked, idempotency_key)).results)

    async def values(self, items: Iterable[pb.Item]) -> list[Item]:
        """Returns items of a `batch` result, with the values that it left out."""
        return await self._whole(items)

    async def _send(self, ops: Sequence[pb.ItemOp], idempotency_key: str) -> pb.ItemsResponse:
        if not any(_changes(op) for op in ops):
            return await self._transport.unary(ITEMS_READ, pb.ReadItemsRequest(ops=ops))
        key = key_or_new(idempotency_key)
        request = pb.ItemsRequest(
            ops=ops,
            idempotency_key=key,
            key_life_seconds=life_seconds(idempotency_key, None),
            actor=self._actor,
        )
        answer = await self._transport.unary(ITEMS_BATCH, request, key=key)
        self._transport.saw(answer.position.offset)
        return answer

    async def _whole(self, items: Iterable[pb.Item]) -> list[Item]:
        whole: list[Item] = []
        for item in items:
            if not item.value_left_out:
                whole.append(Item.of(item))
                continue
            # An answer contains its first value, whatever its size.
            answer = await self._send([get_op(item.path, item.key, False)], "")
            got = answer.results[0].got
            if got.HasField("item"):
                whole.append(Item.of(got.item, score=Item.of(item).score))
        return whole


def _changes(op: pb.ItemOp) -> bool:
    which = op.WhichOneof("op")
    changing: Mapping[str | None, bool] = {
        "put": True,
        "delete": True,
        "get": op.get.refresh_ttl,
        "search": op.search.refresh_ttl,
    }
    return changing.get(which, False)
