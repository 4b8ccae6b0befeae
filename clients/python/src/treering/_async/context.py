"""Reads and writes a branch's active context or the namespace's long-term context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from treering._async.transport import AsyncTransport
from treering._keys import key_or_new
from treering._methods import GET_CONTEXT, SET
from treering._words import from_json, json_bytes
from treering.types import Receipt
from treering.v1 import context_pb2, event_pb2


async def get(
    transport: AsyncTransport, conversation_id: str, branch: str, keys: Iterable[str]
) -> dict[str, Any]:
    """Returns the current values of these keys, or of all keys."""
    wanted = list(keys)
    values: dict[str, Any] = {}
    while True:
        request = context_pb2.GetContextRequest(
            conversation_id=conversation_id, branch=branch, keys=wanted
        )
        answer = await transport.unary(GET_CONTEXT, request)
        for entry in answer.entries:
            values[entry.key] = from_json(entry.value)
        if not answer.left_out:
            return dict(sorted(values.items()))
        # An answer holds at least one value, so this ends.
        wanted = list(answer.left_out)


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
    """Sets and removes keys in one batch."""
    key = key_or_new(idempotency_key)
    request = context_pb2.SetContextRequest(
        conversation_id=conversation_id,
        branch=branch,
        set=[
            event_pb2.ContextSet(
                key=name, value=json_bytes(value, f"the value of {name!r}"), provider=provider
            )
            for name, value in values.items()
        ],
        remove=list(remove),
        idempotency_key=key,
        actor=actor,
    )
    receipt = Receipt.of(await transport.unary(SET, request, key=key))
    transport.saw(receipt.position)
    return receipt
