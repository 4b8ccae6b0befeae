"""Results of tools that are not in a request yet, because other calls of the same answer run.

They are stored beside the history until the request has them, so that a program that resumes
after it was killed does not run these tools again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)

from treering import new
from treering.pydantic_ai._line import ENTRY, is_custom
from treering.types import Event

RETURNED = "pydantic-ai.returned"
"""The result of a tool, stored after the answer that called the tool."""


def is_awaited(messages: Sequence[Any]) -> bool:
    """Whether the newest message is an answer with several calls."""
    last = messages[-1] if messages else None
    return isinstance(last, ModelResponse) and len(last.tool_calls) > 1


def returned_event(tool: str, call_id: str, value: Any) -> new.NewEvent | None:
    """An event with a tool's result; None: JSON cannot represent the result."""
    is_told = isinstance(value, ToolReturn)
    told = value if isinstance(value, ToolReturn) else ToolReturn(value)
    part = ToolReturnPart(tool, told.return_value, call_id, metadata=told.metadata)
    beside = [UserPromptPart(told.content)] if told.content else []
    request = ModelRequest(parts=[part, *beside])
    try:
        [said] = ModelMessagesTypeAdapter.dump_python([request], mode="json")
        data = {"id": call_id, "request": said, "told": is_told, "tools": told.tools}
        event = new.custom(RETURNED, json.dumps(data, allow_nan=False).encode())
        event.custom.content_type = "application/json"
        _value(data)
    except (TypeError, ValueError):
        return None
    return event


def _value(data: dict[str, Any]) -> Any:
    [request] = ModelMessagesTypeAdapter.validate_python([data["request"]])
    part, *beside = request.parts
    assert isinstance(part, ToolReturnPart)
    if not data["told"]:
        return part.content
    content = [each.content for each in beside if isinstance(each, UserPromptPart)]
    return ToolReturn(
        part.content,
        content=content[0] if content else None,
        metadata=part.metadata,
        tools=data["tools"],
    )


def returned(backward: Iterable[Event]) -> dict[str, Any]:
    """The results of calls of the newest message, by call id."""
    found: dict[str, Any] = {}
    for event in backward:
        if is_custom(event, ENTRY):
            break
        if is_custom(event, RETURNED):
            data = json.loads(event.proto.custom.data)
            found.setdefault(data["id"], _value(data))
    return found
