"""Builds the protobuf messages of item operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from treering._words import SearchByName, json_bytes, number
from treering.v1 import items_pb2 as pb
from treering.v1 import search_pb2

Sign = Literal["=", "!=", ">", ">=", "<", "<="]
Condition = tuple[str | Sequence[str], Sign, Any]
"""Field, sign and value. A sequence of names is a nested field."""

SIGNS: dict[str, pb.ItemComparison.ValueType] = {
    "=": pb.ITEM_COMPARISON_EQUAL,
    "!=": pb.ITEM_COMPARISON_NOT_EQUAL,
    ">": pb.ITEM_COMPARISON_GREATER,
    ">=": pb.ITEM_COMPARISON_GREATER_OR_EQUAL,
    "<": pb.ITEM_COMPARISON_LESS,
    "<=": pb.ITEM_COMPARISON_LESS_OR_EQUAL,
}


def _labels(path: Sequence[str]) -> list[str]:
    if isinstance(path, str):
        raise TypeError(f"a path is a sequence of labels, for example ({path!r},), not a str")
    return list(path)


def put_op(
    path: Sequence[str], key: str, value: Any, ttl: float | None = None, text: str | None = None
) -> pb.ItemOp:
    """Puts a value. `ttl` is in seconds."""
    if ttl is not None and ttl <= 0:
        raise ValueError("ttl must be above 0: omit it for an item that does not expire")
    encoded = json_bytes(value, f"the value of {key!r}")
    put = pb.PutItem(path=_labels(path), key=key, value=encoded, text=text)
    if ttl is not None:
        put.ttl_ms = max(1, round(ttl * 1000))
    return pb.ItemOp(put=put)


def get_op(path: Sequence[str], key: str, refresh_ttl: bool = False) -> pb.ItemOp:
    """Gets an item."""
    return pb.ItemOp(get=pb.GetItem(path=_labels(path), key=key, refresh_ttl=refresh_ttl))


def delete_op(path: Sequence[str], key: str) -> pb.ItemOp:
    """Deletes an item."""
    return pb.ItemOp(delete=pb.DeleteItem(path=_labels(path), key=key))


def conditions(where: Iterable[Condition]) -> list[pb.ItemCondition]:
    """Converts the conditions of a search."""
    made = []
    for field, sign, value in where:
        if sign not in SIGNS:
            raise ValueError(f"`{sign}` is not allowed here: use one of {' '.join(SIGNS)}")
        names = [field] if isinstance(field, str) else list(field)
        encoded = json_bytes(value, f"the value for {field!r}")
        made.append(pb.ItemCondition(field=names, comparison=SIGNS[sign], value=encoded))
    return made


def search_op(
    under: Sequence[str] = (),
    query: str = "",
    filter: Iterable[pb.ItemCondition] = (),
    limit: int = 10,
    offset: int = 0,
    refresh_ttl: bool = False,
    by: SearchByName = "words",
) -> pb.ItemOp:
    """Searches items."""
    return pb.ItemOp(
        search=pb.SearchItems(
            under=_labels(under),
            query=query,
            filter=filter,
            limit=limit,
            offset=offset,
            refresh_ttl=refresh_ttl,
            by=number(search_pb2.SearchBy, "SEARCH_BY", by),
        )
    )


def paths_op(
    matches: Iterable[tuple[Literal["prefix", "suffix"], Sequence[str]]] = (),
    depth_max: int = 0,
    limit: int = 100,
    offset: int = 0,
) -> pb.ItemOp:
    """Lists paths."""
    ends = {"prefix": pb.PATH_END_PREFIX, "suffix": pb.PATH_END_SUFFIX}
    return pb.ItemOp(
        list_paths=pb.ListItemPaths(
            matches=[
                pb.PathMatch(end=ends[end], path=_labels(path)) for end, path in matches if path
            ],
            depth_max=depth_max,
            limit=limit,
            offset=offset,
        )
    )
