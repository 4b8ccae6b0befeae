"""Converts values of frameworks that the store refuses to values that it accepts.

The framework's own value stays unchanged; only the typed events beside it differ. A call id that
is empty or too long is replaced by a stand-in, also in the call's result. Values that JSON or UTF-8
cannot represent become text. If the store still refuses an item, only its text is stored as events,
or no events. The items after it are stored as usual.
"""

from __future__ import annotations

import base64
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, time
from hashlib import blake2b
from typing import Any, TypeVar

from treering import errors, new
from treering._adapters import frames
from treering._adapters.thread import SHORT_BYTES_MAX
from treering._sync.conversation import Conversation
from treering.types import Event
from treering.v1 import event_pb2 as pb

log = logging.getLogger("treering.adapters")

T = TypeVar("T")

UNNAMED = "unnamed"
"""The tool of a call without a tool name."""
STAND_IN_BYTES = 12
REFUSALS_MAX = 3
"""Refusals before this number may be due to other writers."""
ODD_MAX = 8
"""Refusals before this number are attributed to one item each; later ones to all items."""
TEXT_ONLY, NOTHING = 1, 2

NOT_SHAPED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
"""Exceptions of parsing a value in an unknown format."""

AS_TEXT = "values that JSON or UTF-8 cannot represent are stored as text"
IN_PART = "parts in an unknown format are stored only as the framework's own value"

Standing = dict[str, "deque[str]"]
"""Maps a framework's call id to the stand-ins for it, of calls without a result."""


# ---- values ----


def strict_json(value: Any) -> str:
    """Converts a value to JSON that every parser accepts; raises if there is none."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text


def plainly(value: Any) -> Any:
    """Converts a value to one that JSON can represent; other values become text."""
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {_text(str(key)): plainly(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [plainly(each) for each in value]
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if dump := getattr(value, "model_dump", None):
        return plainly(dump())
    return _text(str(value))


def _text(text: str) -> str:
    """Joins the halves of surrogate pairs, and replaces a lone half by U+FFFD."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ---- items as events ----


def spoken(
    item: T, read: Callable[[T], Iterable[new.NewEvent]], plain: Callable[[T], T] = plainly
) -> tuple[list[new.NewEvent], list[str]]:
    """Converts an item to events, with notes on what was changed."""
    made: list[new.NewEvent] = []
    try:
        return list(read(item)), []
    except NOT_SHAPED:
        pass
    try:
        for event in read(plain(item)):
            made.append(event)
        return made, [AS_TEXT]
    except NOT_SHAPED:
        return made, [IN_PART]


def within(
    events: Sequence[new.NewEvent], seed: str, standing: Standing
) -> tuple[list[new.NewEvent], list[str]]:
    """The events with ids and names that the store accepts, and notes on what was changed.

    `seed` is the item's own id or its place; stand-ins are derived from it.
    """
    notes: list[str] = []
    calls = 0
    for event in events:
        which = event.WhichOneof("body")
        if which == "tool_call_requested":
            _call(event.tool_call_requested, f"{seed}/{calls}", standing, notes)
            calls += 1
        elif which in ("tool_result_recorded", "tool_call_cancelled"):
            ended = getattr(event, which)
            if is_odd(ended.call_id):
                waiting = standing.get(ended.call_id)
                ended.call_id = waiting.popleft() if waiting else short_id(ended.call_id)
        elif which == "message_appended":
            _bounded(event.message_appended, MESSAGE_NAMES, notes)
            _bounded(event.message_appended.usage, ("model",), notes)
        for part in _parts(event):
            held = part.WhichOneof("part")
            if held == "reasoning":
                _bounded(part.reasoning, ("provider", "model", "id"), notes)
            elif held in ("image", "file", "audio"):
                _bounded(getattr(part, held), ("media_type", "name", "detail"), notes)
    return list(events), notes


def stand_in(seed: str) -> str:
    """An id derived from a message's own id or place, and from the call's place in it."""
    digest = blake2b(seed.encode(errors="replace"), digest_size=STAND_IN_BYTES)
    return f"call_{digest.hexdigest()}"


def short_id(id: str) -> str:
    """The stand-in for an id that is too long, the same as in the TypeScript package, so that a
    result finds a call that a program in the other language recorded. An empty id stays empty."""
    return f"call_{blake2b(id.encode()).hexdigest()[: 2 * STAND_IN_BYTES]}" if id else ""


MESSAGE_NAMES = ("author", "message_id", "finish_reason", "tool_call_id", "tool_name")


def _call(call: pb.ToolCallRequested, seed: str, standing: Standing, notes: list[str]) -> None:
    if is_odd(call.call_id):
        problem = "empty" if not call.call_id else "too long"
        # Of two open calls with the same id, the second one needs another id.
        is_used = standing.get(call.call_id)
        named = stand_in(seed) if is_used else short_id(call.call_id) or stand_in(seed)
        standing.setdefault(call.call_id, deque()).append(named)
        notes.append(f"a call's id is {problem} and was replaced by {named}")
        call.call_id = named
    if not call.tool:
        call.tool = UNNAMED
        notes.append(f"a call has no tool name: `{UNNAMED}` is used")
    _bounded(call, ("tool", "item_id"), notes)


def _bounded(of: Any, names: Sequence[str], notes: list[str]) -> None:
    for name in names:
        if len(given := getattr(of, name)) > SHORT_BYTES_MAX // 4 and is_odd(given):
            setattr(of, name, cut(given))
            notes.append(f"its `{name}` is too long and was truncated")


def is_odd(id: str) -> bool:
    """Whether the store refuses this call id."""
    return not id or len(id.encode()) > SHORT_BYTES_MAX


def cut(text: str) -> str:
    """Truncates a text to the maximum length of a name."""
    return text.encode()[:SHORT_BYTES_MAX].decode(errors="ignore")


def has_odd_result(events: Iterable[new.NewEvent]) -> bool:
    """Whether an outcome has an invalid call id, so that stand-ins are needed."""
    return any(
        event.WhichOneof("body") in ("tool_result_recorded", "tool_call_cancelled")
        and is_odd(getattr(event, event.WhichOneof("body") or "").call_id)
        for event in events
    )


def standing_in(
    conversation: Conversation,
    frame_type: str,
    typed: Callable[[Any], Sequence[new.NewEvent]],
    open: Iterable[str],
) -> Standing:
    """Finds the stand-ins in a conversation. Frames contain the framework's own ids."""
    waiting = set(open)
    standing: Standing = {}
    for found in frames.read(frame_type, conversation.events()):
        for framed in found.items if isinstance(found, frames.Frame) else ():
            named = [event.call_id for event in framed.events if _asks(event)]
            given = [
                event.tool_call_requested.call_id
                for event in typed(framed.item)
                if event.WhichOneof("body") == "tool_call_requested"
            ]
            for own, id in zip(given, named, strict=False):
                if is_odd(own) and id in waiting:
                    standing.setdefault(own, deque()).append(id)
    return standing


def _asks(event: Event) -> bool:
    return event.kind == "tool_call_requested"


# ---- refused items ----


class Lessened:
    """How much is stored of items that the store refused: only their text, or no events."""

    def __init__(self) -> None:
        self._levels: dict[Hashable, int] = {}
        self._refusals = 0

    def of(self, item: Hashable, events: Sequence[new.NewEvent]) -> Sequence[new.NewEvent]:
        """The events to append for an item."""
        level = self._levels.get(item, 0)
        if level == 0:
            return events
        return text_only(events) if level == TEXT_ONLY else []

    def notes(self, item: Hashable) -> list[str]:
        """Notes on what was changed in an item."""
        level = self._levels.get(item, 0)
        if level == 0:
            return []
        held = "only its text" if level == TEXT_ONLY else "nothing"
        return [f"the store refused its events: {held} is stored"]

    def refused(
        self, refusal: errors.TreeringError, items: Sequence[tuple[Hashable, int, int]]
    ) -> bool:
        """Reduces the events of refused items; false if there is nothing left to reduce.

        `items` are the items, each with where its events begin and end in the batch.
        """
        self._refusals += 1
        if not isinstance(refusal, errors.Invalid) and self._refusals < REFUSALS_MAX:
            # Another writer may be the cause.
            return True
        index = refusal.metadata.get("event_index", "")
        at = int(index) if index.isdecimal() and self._refusals < ODD_MAX else -1
        odd = [item for item, first, end in items if first <= at < end]
        if not odd:
            odd = [item for item, first, end in items if first < end]
        for item in odd:
            self._levels[item] = min(NOTHING, self._levels.get(item, 0) + 1)
        return bool(odd)


def spans(items: Iterable[Sequence[new.NewEvent]]) -> list[tuple[int, int, int]]:
    """The items of one frame, each with where its events begin and end in the batch."""
    made = []
    end = 1
    for index, events in enumerate(items):
        made.append((index, end, end + len(events)))
        end += len(events)
    return made


def text_only(events: Iterable[new.NewEvent]) -> list[new.NewEvent]:
    """The texts of events, as messages."""
    made = []
    for event in events:
        role = event.message_appended.role or pb.ROLE_TOOL
        texts = [pb.ContentPart(text=part.text) for part in _parts(event) if part.text]
        if texts:
            body = pb.MessageAppended(role=role, parts=texts)
            made.append(pb.NewEvent(message_appended=body))
    return made


def _parts(event: new.NewEvent) -> Sequence[pb.ContentPart]:
    return event.message_appended.parts or event.tool_result_recorded.parts


def warn(what: str, notes: Iterable[str]) -> None:
    """Logs the notes, each once."""
    if text := "; ".join(dict.fromkeys(notes)):
        log.warning("%s: %s", what, text)
