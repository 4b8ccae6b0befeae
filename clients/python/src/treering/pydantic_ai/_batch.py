"""Converts messages to the events of one append, as their branch accepts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.conversation_store import ConversationEntry
from pydantic_ai.messages import ModelMessagesTypeAdapter

from treering import new
from treering._adapters import frames, odd
from treering._sync.conversation import Conversation
from treering.pydantic_ai._line import ENTRY, Prompt
from treering.pydantic_ai._messages import plain, typed
from treering.v1 import conversation_pb2
from treering.v1 import event_pb2 as pb

ENTRIES_AT_ONCE_MAX = 1_000
"""Most messages that are stored in one step."""
BYTES_AT_ONCE_MAX = 32 << 20
"""Most bytes of these messages, as the library writes them; one message may have more."""
PROMPT_CHARS_MIN = 48
"""Shorter instructions are stored with the message, not as a reference."""


@dataclass
class _Call:
    """An open call."""

    approval: conversation_pb2.ApprovalStatus.ValueType
    arguments_hash: bytes = b""


@dataclass
class Before:
    """The state of the branch before the batch."""

    calls: dict[str, _Call] = field(default_factory=dict)
    prompt: Prompt | None = None
    prompt_text: str = ""

    @staticmethod
    def of(branch: conversation_pb2.BranchState, prompt_text: str) -> Before:
        """Converts a branch's state."""
        calls = {
            call.call_id: _Call(call.approval, call.arguments_hash) for call in branch.open_calls
        }
        if not branch.HasField("system_prompt"):
            return Before(calls)
        held = branch.system_prompt
        return Before(calls, Prompt(held.conversation_id, held.revision), prompt_text)


def batches(entries: Sequence[ConversationEntry]) -> list[list[ConversationEntry]]:
    """Splits entries into steps that the store accepts; at least one step."""
    made: list[list[ConversationEntry]] = [[]]
    size = 0
    for entry in entries:
        # A single entry is not split, so its size is not needed.
        more = _size(entry) if len(entries) > 1 else 0
        if made[-1] and (len(made[-1]) == ENTRIES_AT_ONCE_MAX or size + more > BYTES_AT_ONCE_MAX):
            made.append([])
            size = 0
        made[-1].append(entry)
        size += more
    return made


def _size(entry: ConversationEntry) -> int:
    try:
        return len(ModelMessagesTypeAdapter.dump_json([entry.message]))
    except ValueError:
        # A lone surrogate cannot be encoded.
        return len(repr(entry.message))


@dataclass
class Made:
    """Entries as frames and events."""

    events: list[new.NewEvent] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """For each entry, where its typed events begin and end."""
    notes: list[list[str]] = field(default_factory=list)
    """For each entry, how its events differ from it."""


def events_of(
    entries: Sequence[ConversationEntry],
    before: Before,
    waiting: Collection[str],
    conversation: Conversation | None,
    lessened: odd.Lessened | None,
) -> Made:
    """The entries' frames and events; without `lessened`, frames only.

    `waiting` are the ids of calls that need approval; `conversation` has the earlier events.
    """
    open_calls = dict(before.calls)
    prompt, prompt_text = before.prompt, before.prompt_text
    made = Made()
    standing: odd.Standing = {}
    is_looked_up = False
    for entry in entries:
        message = plain(entry.message)
        own: list[new.NewEvent] = []
        begin = 0
        if lessened is not None:
            text = odd.plainly(message.get("instructions"))
            if text and text != prompt_text:
                own.append(new.system(text))
                prompt, prompt_text = None, text
            elif prompt and len(text or "") >= PROMPT_CHARS_MIN and text == message["instructions"]:
                message["instructions"] = {
                    "conversation_id": prompt.conversation_id,
                    "revision": prompt.revision,
                }
            events, notes = typed(message, waiting)
            if not is_looked_up and odd.has_odd_result(events):
                is_looked_up = True
                for id, earlier in _standing(conversation, before).items():
                    standing.setdefault(id, deque()).extendleft(reversed(earlier))
            events, more = odd.within(events, entry.id, standing)
            begin = len(own)
            denied = _denied(message)
            own += _fitted(lessened.of(entry.id, events), open_calls, denied)
            made.notes.append([*notes, *more, *lessened.notes(entry.id)])
        end = len(made.events) + 1 + len(own)
        made.spans.append((entry.id, end - len(own) + begin, end))
        made.events += frames.frame(ENTRY, [({"id": entry.id, "message": message}, own)])
    return made


def _standing(conversation: Conversation | None, before: Before) -> odd.Standing:
    if conversation is None:
        return {}
    return odd.standing_in(
        conversation, ENTRY, lambda item: typed(item["message"])[0], before.calls
    )


def _denied(message: dict[str, Any]) -> set[str]:
    parts = message["parts"]
    return {part["tool_call_id"] for part in parts if part.get("outcome") == "denied"}


def _fitted(
    events: Sequence[new.NewEvent], calls: dict[str, _Call], denied: Collection[str]
) -> list[new.NewEvent]:
    """Adapts the events to a branch with these open calls; keeps `calls` up to date.

    A call whose id is open supersedes that call; a result without a call becomes a message of a
    tool. A decision is added before the result of a call that waits for one.
    """
    made: list[new.NewEvent] = []
    for event in events:
        which = event.WhichOneof("body")
        if which == "tool_call_requested":
            call = event.tool_call_requested
            if call.call_id in calls:
                made.append(new.tool_cancelled(call.call_id, "superseded"))
            needs = call.approval == pb.APPROVAL_REQUIREMENT_PENDING
            calls[call.call_id] = _Call(
                conversation_pb2.APPROVAL_STATUS_PENDING
                if needs
                else conversation_pb2.APPROVAL_STATUS_NOT_REQUIRED
            )
        elif which == "tool_result_recorded":
            call_id = event.tool_result_recorded.call_id
            made += _decided(call_id, calls, call_id in denied, event)
            if calls.pop(call_id, None) is None:
                event = _of_a_tool(event)
        elif (
            which == "tool_call_cancelled"
            and calls.pop(event.tool_call_cancelled.call_id, None) is None
        ):
            event = _of_a_tool(event)
        made.append(event)
    return made


def _decided(
    call_id: str, calls: dict[str, _Call], is_denied: bool, result: new.NewEvent
) -> list[new.NewEvent]:
    """The decision that a result implies, if none is recorded."""
    call = calls.get(call_id)
    if call is None or call.approval == conversation_pb2.APPROVAL_STATUS_NOT_REQUIRED:
        return []
    if call.approval == conversation_pb2.APPROVAL_STATUS_PENDING and call.arguments_hash:
        if is_denied:
            return [new.decision(call_id, "denied", call.arguments_hash)]
        return [new.decision(call_id, "approved", call.arguments_hash)]
    if result.tool_result_recorded.success and call.approval in (
        conversation_pb2.APPROVAL_STATUS_DENIED,
        conversation_pb2.APPROVAL_STATUS_EXPIRED,
    ):
        # The call ran although it was not approved: its result becomes a message of a tool.
        del calls[call_id]
        return [new.tool_cancelled(call_id, "denied")]
    return []


def _of_a_tool(event: new.NewEvent) -> new.NewEvent:
    if event.HasField("tool_result_recorded"):
        result = event.tool_result_recorded
        message = pb.MessageAppended(
            role=pb.ROLE_TOOL, parts=result.parts, tool_call_id=result.call_id
        )
    else:
        cancelled = event.tool_call_cancelled
        message = pb.MessageAppended(
            role=pb.ROLE_TOOL,
            parts=new.parts([cancelled.detail or "cancelled"]),
            tool_call_id=cancelled.call_id,
        )
    made = new.NewEvent(message_appended=message)
    if event.HasField("occurred_at"):
        made.occurred_at.CopyFrom(event.occurred_at)
    return made
