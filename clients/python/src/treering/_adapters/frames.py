"""Stores a framework's items so that the framework gets them back exactly.

An item (a line of a transcript, an input item, a message) is stored as typed events, for
search and requests, and in a frame: a custom event with everything that the typed events do
not contain. Text is stored once: the frame has a reference in the place of each longer
string that an event contains.

A frame comes before the events of its items, in the same batch.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from treering import new
from treering._words import json_text
from treering.types import Event
from treering.v1 import event_pb2 as pb

REFERENCE = "$treering"
"""The key of a reference in a frame."""
WHOLE = "whole"
"""The key, in the place of a reference, of an item that references would not restore exactly."""
STRING_CHARS_MIN = 24
"""Shorter strings are stored without a reference."""


@dataclass
class Framed:
    """An item with the events that hold it."""

    item: Any
    events: list[Event] = field(default_factory=list)


@dataclass
class Frame:
    """A frame that was read."""

    event: Event
    items: list[Framed]
    beside: dict[str, Any]
    """Data of the adapter beside the items."""


# ---- writing ----


def frame(
    type_name: str,
    items: Sequence[tuple[Any, Sequence[new.NewEvent]]],
    beside: dict[str, Any] | None = None,
) -> list[new.NewEvent]:
    """Makes a frame, followed by the events of its items: a batch, or a part of one."""
    packed = [[len(events), _pack(item, events)] for item, events in items]
    content: dict[str, Any] = {"items": packed}
    if beside:
        content["beside"] = beside
    # ASCII: an item may have lone surrogates.
    data = json.dumps(content, separators=(",", ":"), ensure_ascii=True).encode()
    custom = new.custom(type_name, data, content_type="application/json")
    return [custom, *(event for _, events in items for event in events)]


def _pack(item: Any, events: Sequence[new.NewEvent]) -> Any:
    """The item with references to its events, or the whole item if they do not restore it."""
    held = dict(_held(events))
    strings, objects = dict[str, str](), dict[str, str]()
    for place, value in held.items():
        if isinstance(value, str):
            strings.setdefault(value, place)
        elif value is not None and (text := _text_or_none(value)):
            objects.setdefault(text, place)
    packed = _without(item, strings, objects)
    return packed if _same(_filled(packed, held), item) else {REFERENCE: {WHOLE: item}}


def _same(one: Any, other: Any) -> bool:
    """Whether both have the same JSON, in the same order of keys. Does not serialise them."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) if not isinstance(one, float) else repr(one) == repr(other)


def _without(value: Any, strings: dict[str, str], objects: dict[str, str]) -> Any:
    if isinstance(value, str):
        place = strings.get(value) if len(value) >= STRING_CHARS_MIN else None
        return value if place is None else {REFERENCE: place}
    if isinstance(value, list):
        made = [_without(each, strings, objects) for each in value]
        return made if any(a is not b for a, b in zip(made, value, strict=True)) else value
    if isinstance(value, dict):
        if objects and len(value) > 0 and (place := objects.get(_text_or_none(value))):
            return {REFERENCE: place}
        found = {key: _without(each, strings, objects) for key, each in value.items()}
        return found if any(found[key] is not value[key] for key in value) else value
    return value


def _text_or_none(value: Any) -> str:
    try:
        return json_text(value)
    except (TypeError, ValueError):
        return ""


# ---- reading ----


def beside(event: Event) -> dict[str, Any]:
    """Data of the adapter beside the items of a frame."""
    kept: dict[str, Any] = json.loads(event.proto.custom.data).get("beside") or {}
    return kept


def read(type_name: str, events: Iterable[Event]) -> Iterator[Frame | Event]:
    """Yields, in order, frames of this type, and events that belong to no frame.

    If a fork has cut a frame, the frame has only its complete items.
    """
    waiting: _Waiting | None = None
    for event in events:
        if waiting is not None and not waiting.is_next(event):
            yield from waiting.cut()
            waiting = None
        if waiting is not None:
            waiting.held.append(event)
        elif event.kind == "custom" and event.proto.custom.type_name == type_name:
            waiting = _Waiting(event)
        else:
            yield event
        if waiting is not None and waiting.is_whole():
            yield waiting.frame()
            waiting = None
    if waiting is not None:
        yield from waiting.cut()


class _Waiting:
    """A frame whose events are not all read yet."""

    def __init__(self, event: Event) -> None:
        content = json.loads(event.proto.custom.data)
        self.event = event
        self.packed: list[list[Any]] = content["items"]
        self.beside: dict[str, Any] = content.get("beside") or {}
        self.count: int = sum(count for count, _ in self.packed)
        self.held: list[Event] = []

    def is_next(self, event: Event) -> bool:
        """Whether the event is in the batch, whose revisions have no gaps; a cut leaves a gap."""
        return event.revision == self.event.revision + len(self.held) + 1

    def is_whole(self) -> bool:
        """Whether all its events were read."""
        return len(self.held) == self.count

    def frame(self) -> Frame:
        """The frame with its complete items."""
        frame = Frame(self.event, [], self.beside)
        start = 0
        for count, item in self.packed:
            own = self.held[start : start + count]
            start += count
            if len(own) < count:
                break
            frame.items.append(Framed(filled(item, [event.proto for event in own]), own))
        return frame

    def cut(self) -> Iterator[Frame | Event]:
        """The complete items as a frame, then the events of an incomplete item."""
        frame = self.frame()
        # Items without events at the end may be after the cut: they are left out.
        while frame.items and not frame.items[-1].events:
            frame.items.pop()
        if frame.items:
            yield frame
        yield from self.held[sum(len(item.events) for item in frame.items) :]


def filled(packed: Any, events: Sequence[new.NewEvent | pb.Event]) -> Any:
    """Restores an item of a frame from its events."""
    return _filled(packed, _Held(events))


class _Held:
    """The values that a frame can refer to, by place, computed when needed."""

    def __init__(self, events: Sequence[new.NewEvent | pb.Event]) -> None:
        self._events = events
        self._all: dict[str, Any] | None = None

    def get(self, place: str, otherwise: Any) -> Any:
        """The value at a place, or `otherwise`."""
        if place.endswith(".text") and (text := _text(place, self._events)) is not None:
            return text
        if self._all is None:
            self._all = dict(_held(self._events))
        return self._all.get(place, otherwise)


def text_of(packed: Any, events: Sequence[new.NewEvent | pb.Event]) -> str | None:
    """The text of a part that a value of a frame refers to; None if it is no such reference."""
    if packed.__class__ is not dict or len(packed) != 1:
        return None
    place = packed.get(REFERENCE)
    return _text(place, events) if place.__class__ is str else None


def _text(place: str, events: Sequence[new.NewEvent | pb.Event]) -> str | None:
    """The text of a part at a place, or None: a value of an item may only look like a place."""
    if (numbers := _numbers(place)) is None or numbers[0] >= len(events):
        return None
    event, part = events[numbers[0]], numbers[1]
    # Unset bodies have no parts, and an unset text is empty.
    parts = event.message_appended.parts or event.tool_result_recorded.parts
    return (parts[part].text or None) if part < len(parts) else None


@lru_cache(1024)
def _numbers(place: str) -> tuple[int, int] | None:
    """Index of event and part in a place such as `1.p0.text`."""
    names = place.split(".")
    if len(names) != 3 or not (names[0].isdecimal() and names[1][1:].isdecimal()):
        return None
    index, part = int(names[0]), int(names[1][1:])
    return (index, part) if place == f"{index}.p{part}.text" else None


def _filled(packed: Any, held: _Held | dict[str, Any]) -> Any:
    if isinstance(packed, dict) and packed.keys() == {REFERENCE}:
        whole = packed[REFERENCE]
        if isinstance(whole, dict) and whole.keys() == {WHOLE}:
            return whole[WHOLE]
    return _with(packed, held)


def _with(packed: Any, held: _Held | dict[str, Any]) -> Any:
    if packed.__class__ is dict:
        if len(packed) == 1 and REFERENCE in packed:
            place = packed[REFERENCE]
            if place.__class__ is str:
                return held.get(place, packed)
        return {
            key: _with(each, held) if each.__class__ in _CONTAINERS else each
            for key, each in packed.items()
        }
    if packed.__class__ is list:
        return [_with(each, held) if each.__class__ in _CONTAINERS else each for each in packed]
    return packed


_CONTAINERS = frozenset((dict, list))


# ---- values of events ----


def _held(events: Sequence[new.NewEvent | pb.Event]) -> Iterator[tuple[str, Any]]:
    """Every value that a frame can refer to, with its place: `1.p0.text`."""
    for index, event in enumerate(events):
        which = event.WhichOneof("body")
        if which in ("message_appended", "tool_result_recorded"):
            body = getattr(event, which)
            for number, part in enumerate(body.parts):
                yield from _of_part(f"{index}.p{number}", part)
            if which == "tool_result_recorded" and body.error_message:
                yield f"{index}.error", body.error_message
        elif which == "tool_call_requested":
            arguments = event.tool_call_requested.arguments.decode(errors="replace")
            yield f"{index}.arguments", arguments
            yield f"{index}.input", _json_or_none(arguments)
        elif which == "compacted":
            yield f"{index}.summary", event.compacted.summary
        elif which == "system_prompt_set":
            yield f"{index}.content", event.system_prompt_set.content


def _of_part(place: str, part: pb.ContentPart) -> Iterator[tuple[str, Any]]:
    which = part.WhichOneof("part")
    if which in ("text", "refusal"):
        yield f"{place}.text", getattr(part, which)
    elif which == "json":
        yield f"{place}.text", part.json
        yield f"{place}.json", _json_or_none(part.json)
    elif which == "reasoning":
        yield f"{place}.text", part.reasoning.text
        yield f"{place}.signature", part.reasoning.signature.decode(errors="replace")
    elif which in ("image", "file", "audio"):
        media: pb.Media = getattr(part, which)
        if media.WhichOneof("source") == "data":
            text = base64.b64encode(media.data).decode()
            yield f"{place}.base64", text
            if "+" in text or "/" in text:
                yield f"{place}.base64url", text.replace("+", "-").replace("/", "_")
            yield f"{place}.url", f"data:{media.media_type};base64,{text}"
        else:
            yield f"{place}.url", media.uri


def _json_or_none(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, (dict, list)) else None
