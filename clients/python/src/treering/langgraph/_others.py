"""Returns the messages of a conversation, of all programs, as LangChain messages.

A graph's own messages come back unchanged. The id of other messages names their first event, so
that a state takes each message once, and the thread does not append it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import ormsgpack
from langchain_core import messages as lc
from langchain_core.messages import BaseMessage

from treering._adapters import frames
from treering._adapters.odd import NOT_SHAPED
from treering._adapters.responses import said
from treering._adapters.unanswered import TOLD_BY, Unanswered
from treering._sync.conversation import Conversation
from treering._words import KindName
from treering.langgraph._index import CHECKPOINT, MESSAGES, Loads, Stored
from treering.langgraph._messages import message_of
from treering.types import Event

SPOKEN: tuple[KindName, ...] = (
    "message_appended",
    "tool_call_requested",
    "tool_result_recorded",
)
PLACE = re.compile(r"([0-9a-f-]{36})#([1-9][0-9]*)")
"""The id of another program's message: conversation and revision of its first event."""

FILLED = re.compile(r"[0-9a-f-]{36}#open/.+", re.DOTALL)
"""The id of a message that stands for a missing result: conversation and call id."""


def is_filled(message: BaseMessage) -> bool:
    """Whether a message stands for a missing result."""
    return isinstance(message.id, str) and FILLED.fullmatch(message.id) is not None


def place_of(message: BaseMessage, conversation_id: str) -> int:
    """The revision of a message's first event; 0: the message was not read from the log."""
    found = PLACE.fullmatch(message.id) if isinstance(message.id, str) else None
    return int(found[2]) if found and found[1] == conversation_id else 0


def echoes(conversation: Conversation, messages: Iterable[BaseMessage], last: int) -> set[str]:
    """Returns the ids of the messages that other programs already appended to the branch.

    A message that was changed since is a new one, and not among them.
    """
    given = {place: each for each in messages if (place := place_of(each, conversation.id))}
    if not given:
        return set()
    kinds: list[KindName] = [*SPOKEN, "tool_call_cancelled", "custom"]
    events = conversation.events(first=min(given), last=last, kinds=kinds)
    there = set[str]()
    for message in _others_in(_until(events, max(given))):
        one = given.get(place_of(message, conversation.id))
        # The name of the tool is in the call, which may precede the events that were read.
        if one is not None and one.id and one == message.model_copy(update={"name": one.name}):
            there.add(one.id)
    return there


def _until(events: Iterable[Event], last: int) -> Iterator[Event]:
    """Events up to the end of the message at `last`: the calls of an answer follow it."""
    for event in events:
        if event.revision > last and event.kind not in ("tool_call_requested", "custom"):
            return
        yield event


def _others_in(events: Iterable[Event]) -> Iterator[BaseMessage]:
    for found in _groups(events):
        if not isinstance(found, frames.Frame):
            yield from messages_of(found)


def _groups(events: Iterable[Event]) -> Iterator[frames.Frame | list[Event]]:
    """A graph's own frames, and the events of other programs between them."""
    others: list[Event] = []
    for found in frames.read(MESSAGES, events):
        if isinstance(found, frames.Frame):
            yield others
            others = []
            yield found
        elif found.kind in SPOKEN:
            others.append(found)
    yield others


# ---- reading ----


def messages_in(conversation: Conversation, serde: Loads) -> list[BaseMessage]:
    """Returns all messages on the branch."""
    given: dict[str, Stored] = {}
    made: list[BaseMessage] = []
    known: dict[str | None, BaseMessage] = {}
    calls = Unanswered()
    events = calls.noted(conversation.events(kinds=[*SPOKEN, *TOLD_BY, "custom"]))
    for group in _groups(_noted(events, given)):
        for message in _said(group, given, serde):
            if is_filled(message):
                continue
            # A message that a state took over stays at its first position. Ids of models repeat
            # for other answers: some servers have only a thousand ids.
            before = known.get(message.id)
            if before is None or not (before == message or PLACE.fullmatch(message.id or "")):
                made.append(message)
            if message.id is not None:
                known.setdefault(message.id, message)
    return list(_answered(made, conversation.id, calls))


def _answered(
    messages: Sequence[BaseMessage], conversation_id: str, calls: Unanswered
) -> Iterator[BaseMessage]:
    """Adds a message for each missing result, because providers refuse calls without a
    result.
    """
    missing = _missing(messages)
    answers = [at for at, each in enumerate(messages) if isinstance(each, lc.AIMessage)]
    waiting: list[lc.ToolMessage] = []
    for at, message in enumerate(messages):
        if not isinstance(message, lc.ToolMessage):
            yield from waiting
            waiting = []
        yield message
        for call in missing.get(at, ()):
            filled = lc.ToolMessage(
                content=calls.told(call["id"] or "", went_on=at != answers[-1]),
                tool_call_id=call["id"],
                name=call["name"],
                status="error",
                id=f"{conversation_id}#open/{call['id']}",
            )
            waiting.append(filled)
    yield from waiting


def _missing(messages: Sequence[BaseMessage]) -> dict[int, list[lc.ToolCall]]:
    """The calls without a later result, by the index of their answer. Call ids may repeat:
    a result belongs to the last call before it.
    """
    missing: dict[int, list[lc.ToolCall]] = {}
    results = set[str]()
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, lc.ToolMessage):
            results.add(message.tool_call_id)
        elif isinstance(message, lc.AIMessage):
            asked = [call for call in message.tool_calls if call["id"]]
            missing[at] = [call for call in asked if call["id"] not in results]
            results.difference_update(call["id"] or "" for call in asked)
    return missing


def _said(
    group: frames.Frame | list[Event], given: Mapping[str, Stored], serde: Loads
) -> Iterator[BaseMessage]:
    return _own(group, given, serde) if isinstance(group, frames.Frame) else messages_of(group)


def _noted(events: Iterable[Event], given: dict[str, Stored]) -> Iterator[Event]:
    """Drops approvals and starts of calls; collects the bytes in rows by their keys."""
    for event in events:
        if event.kind in ("approval_decided", "tool_call_started"):
            continue
        if event.kind == "custom" and event.proto.custom.type_name == CHECKPOINT:
            for key, kind, data in ormsgpack.unpackb(event.proto.custom.data)["new"]:
                given[key.hex()] = (kind, data)
        yield event


def _own(frame: frames.Frame, given: Mapping[str, Stored], serde: Loads) -> Iterator[BaseMessage]:
    """A graph's own messages."""
    for key, framed in zip(frame.beside["keys"], frame.items, strict=False):
        try:
            value = (
                serde.loads_typed(given[key]) if framed.item is None else message_of(framed.item)
            )
        except NOT_SHAPED:
            value = None
        if isinstance(value, BaseMessage):
            yield value
        else:
            # Another serializer wrote the bytes.
            yield from messages_of(framed.events)


def messages_of(events: Iterable[Event]) -> Iterator[BaseMessage]:
    """Converts events of any program to messages."""
    answer: lc.AIMessage | None = None
    tools: dict[str, str] = {}
    for event in events:
        id = f"{event.proto.conversation_id}#{event.revision}"
        if event.kind == "tool_call_requested":
            answer = answer or lc.AIMessage(content="", id=id)
            tools[event.call_id] = event.tool
            answer.tool_calls.append(_called(event))
            continue
        if answer is not None:
            yield answer
            answer = None
        if event.kind == "message_appended" and event.role == "assistant":
            answer = lc.AIMessage(content=event.text, id=id)
        elif (made := _message(event, tools)) is not None:
            made.id = id
            yield made
    if answer is not None:
        yield answer


def _called(event: Event) -> lc.ToolCall:
    given = event.arguments
    name = "invalid_arguments" if event.arguments_not_json else "value"
    args = given if isinstance(given, dict) else {name: given}
    return lc.ToolCall(name=event.tool, args=args, id=event.call_id, type="tool_call")


def _message(event: Event, tools: Mapping[str, str]) -> BaseMessage | None:
    if event.kind == "tool_result_recorded":
        result = event.proto.tool_result_recorded
        return lc.ToolMessage(
            content=said(result.parts) or result.error_message,
            tool_call_id=result.call_id,
            name=tools.get(result.call_id),
            status="success" if result.success else "error",
        )
    if event.kind != "message_appended":
        return None
    if event.role == "tool":
        message = event.proto.message_appended
        return lc.ToolMessage(content=said(message.parts), tool_call_id=message.tool_call_id)
    if event.role == "user":
        return lc.HumanMessage(content=event.text)
    return lc.SystemMessage(content=event.text)
