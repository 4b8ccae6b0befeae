"""Reading and writing a context: a branch's active one, or the namespace's long-term one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from treering._async.transport import AsyncTransport
from treering._keys import key_or_new
from treering._methods import SET, WATCH
from treering._words import from_json, json_bytes
from treering.types import Receipt
from treering.v1 import context_pb2, event_pb2


async def get(
    transport: AsyncTransport, conversation_id: str, branch: str, keys: Iterable[str]
) -> dict[str, Any]:
    """All keys as they are now."""
    request = context_pb2.WatchContextRequest(
        conversation_id=conversation_id, branch=branch, keys=list(keys)
    )
    values: dict[str, Any] = {}
    answers = transport.read(WATCH, lambda: request)
    try:
        async for answer in answers:
            which = answer.WhichOneof("item")
            if which == "entry":
                values[answer.entry.key] = from_json(answer.entry.value)
            elif which == "caught_up":
                break
    finally:
        await answers.aclose()
    return values


async def change(
    transport: AsyncTransport,
    conversation_id: str,
    branch: str,
    values: Mapping[str, Any],
    remove: Iterable[str],
    provider: str,
    idempotency_key: str,
    actor: str,
) -> Receipt:
    """Sets and removes keys, all at once."""
    key = key_or_new(idempotency_key)
    request = context_pb2.SetContextRequest(
        conversation_id=conversation_id,
        branch=branch,
        set=[
            event_pb2.ContextSet(key=name, value=json_bytes(value), provider=provider)
            for name, value in values.items()
        ],
        remove=list(remove),
        idempotency_key=key,
        actor=actor,
    )
    receipt = Receipt.of(await transport.unary(SET, request, key=key))
    transport.saw(receipt.position)
    return receipt
