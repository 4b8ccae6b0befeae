"""The entries of a branch: the library's own, and messages of other programs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import pydantic
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessage
from pydantic_core import from_json

from treering import new
from treering._adapters import frames
from treering._adapters.unanswered import Unanswered, denials
from treering._sync.conversation import Conversation
from treering.pydantic_ai._messages import UNKNOWN_TOOL, message_of, message_of_events, side
from treering.types import Event

ENTRY = "pydantic-ai.entry"
"""A message's frame: its entry id, and what the typed events do not contain."""
RECORD = "pydantic-ai.record"
"""The library's record of the conversation; precedes the messages that were saved with it."""

EVENTS_OF_SAVE = 24
"""Most saves have no more events."""
EVENTS_OF_ENTRY = 4
"""Most messages have no more events."""

_records: pydantic.TypeAdapter[ConversationRecord] = pydantic.TypeAdapter(ConversationRecord)


@dataclass(frozen=True)
class Prompt:
    """The event that holds the instructions of a message."""

    conversation_id: str
    revision: int


PromptText = Callable[[Prompt], str]


@dataclass
class Placed:
    """A message and its place: the first and the last event that hold it."""

    id: str
    made: Callable[[], ModelMessage]
    first: Event
    last: Event

    @cached_property
    def message(self) -> ModelMessage:
        """The message; built on first use, because many callers need only the place."""
        return self.made()


@dataclass
class Saved:
    """A record as it was saved."""

    record: ConversationRecord | None
    """None: the conversation was deleted here."""
    event: Event
    added: int
    """Entries that were saved with it."""
    restarts: bool
    """Whether the history starts here, without the earlier entries."""


@dataclass
class Line:
    """A branch up to a revision, or its end."""

    entries: list[Placed] = field(default_factory=list)
    """Since the last record, if only the end was read."""
    saved: Saved | None = None

    @property
    def is_cut(self) -> bool:
        """Whether a fork cut off the entries saved with the record: read the earlier events."""
        return self.saved is not None and self.saved.added > 0 and not self.entries

    @property
    def head_id(self) -> str | None:
        """The last entry's id, even if the entry precedes the part that was read."""
        if self.entries:
            return self.entries[-1].id
        if self.is_cut:
            return None
        return self.saved.record.head_id if self.saved and self.saved.record else None

    def index(self, entry_id: str) -> int | None:
        """The position of an entry."""
        found = (n for n, each in enumerate(self.entries) if each.id == entry_id)
        return next(found, None)

    def chained(self) -> list[ConversationEntry]:
        """The entries, each with the id of the one before it."""
        chain: list[ConversationEntry] = []
        for each in self.entries:
            parent = chain[-1].id if chain else None
            chain.append(ConversationEntry(id=each.id, parent_id=parent, message=each.message))
        return chain


def record_event(
    record: ConversationRecord | None, added: int = 0, *, restarts: bool = False
) -> new.NewEvent:
    """The event of a record; None marks the conversation as deleted."""
    data: dict[str, Any] = {"added": added}
    if record is not None:
        data["record"] = _records.dump_python(record, mode="json")
    if restarts or record is None:
        data["restarts"] = True
    return new.custom(RECORD, data)


def _saved(event: Event) -> Saved:
    data = from_json(event.proto.custom.data)
    given = data.get("record")
    record = None if given is None else _records.validate_python(given)
    return Saved(record, event, data["added"], bool(data.get("restarts")))


def as_saved(
    conversation_id: str, head: int, record: Event | None, entry: Event | None
) -> ConversationRecord | None:
    """The saved record, if the conversation ends with what was saved with it. Takes the newest
    events of both types; None: the conversation must be read."""
    if record is None or record.conversation_id != conversation_id:
        return None
    saved = _saved(record)
    if saved.record is None:
        return None
    last, head_id = record.revision, saved.record.head_id
    if entry is not None and entry.revision > record.revision:
        packed = from_json(entry.proto.custom.data)["items"]
        last = entry.revision + sum(count for count, _ in packed)
        head_id = frames.filled(packed[-1][1], []).get("id")
    elif saved.added:
        return None
    return saved.record if (last, head_id) == (head, saved.record.head_id) else None


def is_custom(event: Event, type_name: str) -> bool:
    """Whether an event is a custom event of this type."""
    return event.kind == "custom" and event.proto.custom.type_name == type_name


# ---- reading ----


def whole(conversation: Conversation, head: int, prompt: PromptText) -> Line:
    """Reads a whole branch up to a revision."""
    return line_of(conversation.events(last=head), prompt, Unanswered())


def end(conversation: Conversation, head: int, prompt: PromptText) -> Line:
    """Reads the last record and what follows it; the whole branch, if it has no record."""
    taken: list[Event] = []
    for event in _backward(conversation, head, EVENTS_OF_SAVE):
        taken.append(event)
        if is_custom(event, RECORD):
            break
    return _line_of_end(conversation, taken, prompt)


def _backward(conversation: Conversation, head: int, likely: int) -> Iterator[Event]:
    """Events, newest first: reads as many as are likely to be needed, then all."""
    count = 0
    for event in conversation.events(first=head, backward=True, limit=likely):
        count += 1
        yield event
    if count == likely:
        yield from islice(conversation.events(first=head, backward=True), count, None)


def newest(conversation: Conversation, head: int, count: int, prompt: PromptText) -> Line | None:
    """The newest `count` entries with the one before them; None: read all."""
    taken: list[Event] = []
    found = 0
    for event in _backward(conversation, head, (count + 1) * EVENTS_OF_ENTRY):
        taken.append(event)
        found += is_custom(event, ENTRY)
        if found > count:
            break
    line = _line_of_end(conversation, taken, prompt)
    is_enough = len(line.entries) > count and not _lacks_a_name(line.entries[-count:])
    return line if is_enough else None


def _line_of_end(conversation: Conversation, backward: list[Event], prompt: PromptText) -> Line:
    forward = backward[::-1]
    calls = Unanswered()
    for denial in denials(conversation, forward):
        calls.take(denial)
    return line_of(forward, prompt, calls)


def _lacks_a_name(entries: list[Placed]) -> bool:
    return any(
        getattr(part, "tool_name", "") == UNKNOWN_TOOL
        for each in entries
        for part in each.message.parts
    )


def line_of(events: Iterable[Event], prompt: PromptText, calls: Unanswered) -> Line:
    """Converts events of a branch, in order, to entries; `calls` has read the events before."""
    line = Line()
    tools: dict[str, str] = {}
    group: list[Event] = []

    def flush() -> None:
        if group and (message := message_of_events(group, tools, calls)):
            # The id is that of the last event: a message that grows becomes a new entry.
            line.entries.append(Placed(group[-1].id, partial(_as_is, message), group[0], group[-1]))
        group.clear()

    for found in frames.read(ENTRY, calls.noted(events)):
        if isinstance(found, frames.Frame):
            flush()
            line.entries.extend(_entries(found, prompt))
            tools.update(_called(found))
        elif is_custom(found, RECORD):
            flush()
            line.saved = _saved(found)
            if line.saved.restarts:
                line.entries.clear()
        elif of := side(found):
            if group and side(group[0]) != of:
                flush()
            group.append(found)
            if found.kind == "tool_call_requested":
                tools[found.call_id] = found.tool
    flush()
    return line


def _entries(frame: frames.Frame, prompt: PromptText) -> Iterator[Placed]:
    for framed in frame.items:
        last = framed.events[-1] if framed.events else frame.event
        made = partial(_message, framed.item["message"], prompt)
        yield Placed(framed.item["id"], made, frame.event, last)


def _message(given: dict[str, Any], prompt: PromptText) -> ModelMessage:
    held = given.get("instructions")
    if isinstance(held, dict):
        text = prompt(Prompt(held["conversation_id"], held["revision"]))
        given = {**given, "instructions": text}
    return message_of(given)


def _as_is(message: ModelMessage) -> ModelMessage:
    return message


def _called(frame: frames.Frame) -> Iterator[tuple[str, str]]:
    for framed in frame.items:
        for event in framed.events:
            if event.kind == "tool_call_requested":
                yield event.call_id, event.tool
