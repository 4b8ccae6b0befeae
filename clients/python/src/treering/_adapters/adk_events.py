"""Converts events of other programs to events of Google's Agent Development Kit (ADK)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from treering._adapters.responses import FAILED, said
from treering._adapters.unanswered import Unanswered
from treering._words import from_arguments
from treering.types import Event
from treering.v1 import event_pb2 as pb

MODEL = "model"
"""The author of an answer without an author, while the session has no agent."""


class Others:
    """Converts events of other programs in a session, and tracks its calls."""

    def __init__(self) -> None:
        self.calls = Unanswered()
        """Must be given every event."""
        self._agent = MODEL
        self._tools: dict[str, str] = {}

    def saw(self, item: dict[str, Any]) -> None:
        """Tracks an event of the ADK. Its agent becomes the author of other programs' answers, so
        that it continues from them as its own."""
        author = item.get("author")
        if author and author != "user":
            self._agent = author
        for part in (item.get("content") or {}).get("parts") or ():
            if call := part.get("function_call"):
                self._tools[str(call.get("id"))] = str(call.get("name") or "")

    def item_of(self, event: Event) -> dict[str, Any] | None:
        """Converts an event of another program; None if the ADK has no such event."""
        if event.kind == "message_appended":
            return self._message(event)
        if event.kind == "tool_call_requested":
            call = event.proto.tool_call_requested
            self._tools[call.call_id] = call.tool
            given = from_arguments(call.arguments)
            args = given if isinstance(given, dict) else {"arguments": given}
            part = {"function_call": {"id": call.call_id, "name": call.tool, "args": args}}
            return self._item(event, self._agent, [part])
        if event.kind == "tool_result_recorded":
            result = event.proto.tool_result_recorded
            text = said(result.parts) or result.error_message
            return self._answer(event, event.call_id, text, success=result.success)
        if event.kind == "tool_call_cancelled":
            text = f"{FAILED}{self.calls.told(event.call_id, went_on=True)}"
            return self._answer(event, event.call_id, text, success=False)
        return None

    def answered(self, items: list[dict[str, Any]], own: set[str]) -> Iterator[dict[str, Any]]:
        """Adds an answer after each call of another program without an answer: models refuse such
        calls. `own` are the ids of the ADK's own events: the ADK handles its calls itself.
        """
        answers = {id for item in items for id in _ids(item, "function_response")}
        last = max((at for at, item in enumerate(items) if item["author"] != "user"), default=0)
        for at, item in enumerate(items):
            yield item
            for id in _ids(item, "function_call") if item["id"] not in own else ():
                if id not in answers:
                    text = f"{FAILED}{self.calls.told(id, went_on=at < last)}"
                    made = self._response(id, text, success=False)
                    yield {**item, "id": f"{item['id']}-answer", "content": _content("user", made)}

    def _answer(self, event: Event, call_id: str, text: str, *, success: bool) -> dict[str, Any]:
        part = self._response(call_id, text, success=success)
        return self._item(event, self._agent, [part], role="user")

    def _response(self, call_id: str, text: str, *, success: bool) -> dict[str, Any]:
        response = {"result" if success else "error": text}
        name = self._tools.get(call_id, "")
        return {"function_response": {"id": call_id, "name": name, "response": response}}

    def _message(self, event: Event) -> dict[str, Any] | None:
        message = event.proto.message_appended
        parts = [made for part in message.parts if (made := _part(part))]
        if not parts:
            return None
        is_answer = event.role == "assistant"
        author = (message.author or self._agent) if is_answer else "user"
        return self._item(event, author, parts)

    def _item(
        self,
        event: Event,
        author: str,
        parts: list[dict[str, Any]],
        *,
        role: str = "",
    ) -> dict[str, Any]:
        return {
            "id": event.id,
            "author": author,
            "invocation_id": f"treering-{event.id}",
            "timestamp": event.occurred_at.timestamp(),
            "content": _content(role or ("user" if author == "user" else "model"), *parts),
            "actions": {},
        }


def _content(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _ids(item: dict[str, Any], kind: str) -> Iterator[str]:
    for part in (item.get("content") or {}).get("parts") or ():
        if part.get(kind):
            yield str(part[kind].get("id"))


def _part(part: pb.ContentPart) -> dict[str, Any] | None:
    which = part.WhichOneof("part")
    # Reasoning is left out: only models of its provider accept it.
    if which == "reasoning":
        return None
    if which in ("image", "file", "audio"):
        media: pb.Media = getattr(part, which)
        if media.WhichOneof("source") == "data":
            data = base64.urlsafe_b64encode(media.data).decode()
            return {"inline_data": {"mime_type": media.media_type, "data": data}}
        return {"file_data": {"mime_type": media.media_type, "file_uri": media.uri}}
    text = said([part])
    return {"text": text} if text else None
