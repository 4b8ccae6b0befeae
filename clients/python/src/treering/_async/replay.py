"""Replay: runs an agent again with the recorded results of its tools."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from treering._words import json_text
from treering.errors import NotRecorded

if TYPE_CHECKING:
    from treering._async.conversation import AsyncConversation
    from treering.v1.event_pb2 import ToolResultRecorded


class AsyncReplay:
    """Answers tool calls with recorded results.

    The n-th call of a tool with the same arguments gets the n-th recorded result. A call that was
    not recorded raises `NotRecorded`.

    >>> async with conv.tool_call("add", {"a": 1, "b": 2}) as call:
    ...     done = await call.result("3")
    >>> replay = conv.replay()
    >>> await replay.call("add", {"b": 2, "a": 1})
    '3'
    """

    def __init__(self, conversation: AsyncConversation) -> None:
        self._conversation = conversation
        self._asked: Counter[tuple[str, str]] = Counter()
        self.missed: list[tuple[str, Any]] = []
        """Calls that were not recorded: tool and arguments."""

    async def result(self, tool: str, arguments: Any = None) -> ToolResultRecorded:
        """Returns the recorded result event."""
        arguments = {} if arguments is None else arguments
        asked = (tool, json_text(_ordered(arguments)))
        self._asked[asked] += 1
        found = await self._conversation.recorded(tool, arguments, self._asked[asked])
        if found is None:
            self.missed.append((tool, arguments))
            raise NotRecorded(
                f"{tool} has no recorded call number {self._asked[asked]} with these arguments"
            )
        return found

    async def call(self, tool: str, arguments: Any = None) -> str:
        """Returns the text of the recorded result."""
        found = await self.result(tool, arguments)
        return "".join(part.text for part in found.parts)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value
