"""A session's lines for the Claude Agent SDK: its own, and events of other programs as lines."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from treering._adapters import frames
from treering._adapters.responses import FAILED, said
from treering._adapters.unanswered import Unanswered
from treering._words import from_arguments
from treering.types import Event
from treering.v1 import event_pb2 as pb

ABOUT = ("sessionId", "agentId", "isSidechain", "userType", "cwd", "version", "gitBranch")
"""Fields that a made line copies from the SDK's line before it."""

Line = dict[str, Any]
Found = Sequence["frames.Frame | Event"]


def lines(session_id: str, events: Iterable[Event], frame_type: str) -> list[Line]:
    """The SDK's own lines, and lines made from events of other programs, in one chain.

    The parent of a made line is the line before it. If the SDK wrote its next line without the made
    line, that next line's `parentUuid` is changed: the SDK leaves out lines that are not in the
    chain of the last line. Made lines have the same ids each time, so they are recognised when they
    are sent back.
    """
    calls = Unanswered()
    found = list(frames.read(frame_type, calls.noted(events)))
    return list(_Chain(session_id, found, calls).lines())


@dataclass
class _Chain:
    session_id: str
    found: Found
    calls: Unanswered
    tip: str | None = None
    """The id of the last line."""
    open: set[str] = field(default_factory=set)
    """The SDK's own calls without a result: no line may come between a call and its result."""
    about: Line = field(default_factory=dict)
    waiting: list[Line] = field(default_factory=list)
    """Made lines, which come next."""

    def lines(self) -> Iterator[Line]:
        """All lines."""
        own_results = {
            id
            for each in self.found
            if isinstance(each, frames.Frame)
            for framed in each.items
            for id in _ids(framed.item, "tool_result", "tool_use_id")
        }
        others = _Others(self.found, self.calls, own_results)
        for at, each in enumerate(self.found):
            if isinstance(each, frames.Frame):
                for framed in each.items:
                    yield from self._own(framed.item)
            else:
                self.waiting += others.lines_of(at, each)
        yield from self._flushed()

    def _own(self, line: Line) -> Iterator[Line]:
        parent = line.get("parentUuid")
        is_linked = "uuid" in line and "parentUuid" in line
        if is_linked and self.waiting:
            knows = any(parent == each["uuid"] for each in self.waiting)
            if knows or not self.open:
                before = self.tip
                yield from self._flushed()
                if parent is not None and parent == before:
                    line = {**line, "parentUuid": self.tip}
        if is_linked:
            self.tip = line["uuid"]
            self.about = {name: line[name] for name in ABOUT if name in line}
        self.open |= set(_ids(line, "tool_use", "id"))
        self.open -= set(_ids(line, "tool_result", "tool_use_id"))
        yield line

    def _flushed(self) -> Iterator[Line]:
        for line in self.waiting:
            start = {"parentUuid": self.tip, "isSidechain": False, "sessionId": self.session_id}
            yield {**start, **self.about, **line}
            self.tip = line["uuid"]
        self.waiting = []


class _Others:
    """Converts events of other programs to lines, without their place in the chain."""

    def __init__(self, found: Found, calls: Unanswered, own_results: set[str]) -> None:
        self._calls = calls
        self._found = found
        self._known = own_results | {each.call_id for each in self._events("tool_call_requested")}
        self._results = {each.call_id: each for each in self._events("tool_result_recorded")}
        self._last = max((at for at, each in enumerate(found) if _is_answer(each)), default=0)

    def _events(self, kind: str) -> Iterator[Event]:
        for each in self._found:
            if isinstance(each, Event) and each.kind == kind:
                yield each

    def lines_of(self, at: int, event: Event) -> Iterator[Line]:
        """The lines of an event. Results of other programs' calls come directly after the calls."""
        if event.kind == "message_appended":
            yield from self._message(at, event)
        elif event.kind == "tool_call_requested":
            yield self._call(at, event)
            after = self._found[at + 1] if at + 1 < len(self._found) else None
            if not (isinstance(after, Event) and after.kind == "tool_call_requested"):
                yield from self._answers(at)
        elif event.kind == "tool_result_recorded" and event.call_id not in self._known:
            # The call is the SDK's own; another program recorded its result.
            yield _line(event, event.id, "user", [self._result(event.call_id, event)])

    def _answers(self, at: int) -> Iterator[Line]:
        """Results of consecutive calls, the last at `at`: models refuse calls without a result."""
        begin = at
        while begin and _is_call(self._found[begin - 1]):
            begin -= 1
        for each in self._found[begin : at + 1]:
            if isinstance(each, Event):
                result = self._results.get(each.call_id)
                content = self._result(each.call_id, result, went_on=at < self._last)
                # The id is the same with and without a result: it is the parent of later lines.
                id = str(uuid5(UUID(each.id), "result"))
                yield _line(result or each, id, "user", [content])

    def _result(self, call_id: str, event: Event | None, *, went_on: bool = False) -> Line:
        if event is None:
            text, success = f"{FAILED}{self._calls.told(call_id, went_on=went_on)}", False
        else:
            result = event.proto.tool_result_recorded
            text, success = said(result.parts) or result.error_message, result.success
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return block if success else {**block, "is_error": True}

    def _call(self, at: int, event: Event) -> Line:
        call = event.proto.tool_call_requested
        given = from_arguments(call.arguments)
        args = given if isinstance(given, dict) else {"arguments": given}
        use = {"type": "tool_use", "id": call.call_id, "name": call.tool, "input": args}
        return self._answer(at, event, use, "tool_use")

    def _message(self, at: int, event: Event) -> Iterator[Line]:
        parts = event.proto.message_appended.parts
        blocks = [block for part in parts if (block := _block(part))]
        if not blocks:
            return
        if event.role != "assistant":
            text = blocks[0].get("text") if len(blocks) == 1 else None
            yield _line(event, event.id, "user", text or blocks)
            return
        for number, block in enumerate(blocks):
            # Each line has one block of an answer.
            id = event.id if number == 0 else str(uuid5(UUID(event.id), str(number)))
            yield self._answer(at, event, block, "end_turn", id=id)

    def _answer(self, at: int, event: Event, block: Line, reason: str, *, id: str = "") -> Line:
        while at and _is_answer(self._found[at - 1]) and isinstance(self._found[at - 1], Event):
            at -= 1
        first = self._found[at]
        line = _line(event, id or event.id, "assistant", [block])
        # All lines of an answer have the same message id.
        line["message"] |= {
            "id": f"msg_{UUID(first.id if isinstance(first, Event) else event.id).hex}",
            "type": "message",
            "model": event.proto.message_appended.usage.model or "unknown",
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return line


def _line(event: Event, uuid: str, role: str, content: Any) -> Line:
    time = event.occurred_at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    message = {"role": role, "content": content}
    return {"type": role, "message": message, "uuid": uuid, "timestamp": time}


def _is_call(each: frames.Frame | Event) -> bool:
    return isinstance(each, Event) and each.kind == "tool_call_requested"


def _is_answer(each: frames.Frame | Event) -> bool:
    """Whether the model wrote it."""
    if isinstance(each, Event):
        return _is_call(each) or each.role == "assistant"
    return any(framed.item.get("type") == "assistant" for framed in each.items)


def _ids(line: Line, kind: str, name: str) -> Iterator[str]:
    message = line.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == kind:
            yield str(block.get(name))


def _block(part: pb.ContentPart) -> Line | None:
    which = part.WhichOneof("part")
    # Reasoning is left out: only models of its provider accept it.
    if which == "reasoning":
        return None
    if which == "image":
        if part.image.WhichOneof("source") == "data":
            data = base64.b64encode(part.image.data).decode()
            source = {"type": "base64", "media_type": part.image.media_type, "data": data}
        else:
            source = {"type": "url", "url": part.image.uri}
        return {"type": "image", "source": source}
    text = said([part])
    return {"type": "text", "text": text} if text else None
