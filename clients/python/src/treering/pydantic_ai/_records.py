"""The current record of a conversation, also after another program wrote to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from copy import copy

from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.usage import RunUsage

from treering._sync.conversation import Conversation
from treering.pydantic_ai._line import Line
from treering.types import ConversationState, when


def record_of(
    id: str, conversation: Conversation, state: ConversationState, line: Line
) -> ConversationRecord | None:
    """The saved record, if nothing follows it; otherwise a record of the current state."""
    saved = line.saved.record if line.saved else None
    is_own = line.saved is not None and line.saved.event.conversation_id == conversation.id
    if saved is not None and is_own and line.head_id == saved.head_id:
        return dataclasses.replace(saved, conversation_id=id or saved.conversation_id)
    if line.head_id is None:
        return None
    if saved is None:
        return ConversationRecord(
            conversation_id=id or state.summary.source_id or conversation.id,
            head_id=line.head_id,
            usage=_used(line),
            revision=f"{conversation.id}@{line.head_id}",
            updated_at=when(state.summary.updated_at),
        )
    # Another program continued or forked the conversation.
    return ConversationRecord(
        conversation_id=id or (saved.conversation_id if is_own else conversation.id),
        head_id=line.head_id,
        usage=copy(saved.usage),
        deferred_tool_requests=unanswered(
            saved.deferred_tool_requests, (entry.message for entry in line.entries)
        ),
        scope=saved.scope,
        forked_from=saved.forked_from if is_own else saved.conversation_id,
        forked_at=saved.forked_at if is_own else None,
        branches=list(saved.branches) if is_own else [],
        revision=f"{saved.revision}@{conversation.id}@{line.head_id}",
        updated_at=when(state.summary.updated_at),
    )


def _used(line: Line) -> RunUsage:
    usage = RunUsage()
    for entry in line.entries:
        if isinstance(entry.message, ModelResponse):
            usage.requests += 1
            usage.incr(entry.message.usage)
    return usage


def unanswered(
    requests: DeferredToolRequests | None, messages: Iterable[ModelMessage]
) -> DeferredToolRequests | None:
    """The calls that still wait after these messages."""
    if requests is None:
        return None
    answered = [
        part.tool_call_id
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    return requests.remaining(
        DeferredToolResults(calls=dict.fromkeys(answered), approvals=dict.fromkeys(answered, True))
    )
