"""The library's `ConversationStore`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic_ai import DeferredToolResults, ToolDenied
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)

import treering
from treering._adapters.thread import done
from treering._sync.client import Treering
from treering.pydantic_ai._log import Log
from treering.pydantic_ai._steps import Steps

CALLS_READ_MAX = 1_000


class TreeringConversationStore(ConversationStore):
    """Stores Pydantic AI's conversations as Treering's conversations.

    The id of a conversation is its source id or its UUID. Conversations of other programs can be
    loaded and continued. A `branch` of the library is a branch; a `fork` is a conversation that
    shares the history. `delete` replaces the branch by an empty one; the old branch is archived and
    stays readable. `list_conversations` lists the conversations that this class created.
    """

    def __init__(self, db: Treering) -> None:
        self._log = Log(db)

    def conversation(self, conversation_id: str) -> treering.Conversation | None:
        """Returns the conversation, for search, forks and requests."""
        return self._log.conversation(conversation_id)

    def steps(self, *, scope: str | None = None) -> Steps:
        """Returns a capability for agents that stores messages as they come, not at the end of a
        run."""
        return Steps(self, self._log, scope)

    async def decisions(self, conversation: Conversation) -> DeferredToolResults | None:
        """Returns the decisions on the calls that wait for approval.

        None if there are none yet. Pass the result to the next run as `deferred_tool_results`.
        """
        waiting = conversation.deferred_tool_requests
        if waiting is None or not waiting.approvals:
            return None
        found = await asyncio.to_thread(self._log.conversation, conversation.conversation_id)
        if found is None:
            return None
        calls = await asyncio.to_thread(lambda: found.tool_calls(limit=CALLS_READ_MAX))
        ids = {call.tool_call_id for call in waiting.approvals}
        approvals: dict[str, Any] = {}
        for call in calls:
            if call.call_id not in ids or call.call_id in approvals:
                continue
            if call.status == "approved":
                approvals[call.call_id] = True
            elif call.status in ("denied", "expired"):
                reason = call.proto.decision_reason
                approvals[call.call_id] = ToolDenied(reason) if reason else ToolDenied()
        return DeferredToolResults(approvals=approvals) if approvals else None

    # ---- the library's calls ----

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Returns the record of a conversation."""
        return await asyncio.to_thread(self._log.record, conversation_id)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Returns the records, last saved first."""
        return await asyncio.to_thread(self._log.records, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Stores a record and new messages: all or none, up to 1,000 messages or 32 MiB."""
        await done(lambda: self._log.write(record, new_entries, expected_revision))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Deletes a conversation. Its messages stay readable on an archived branch."""
        await done(lambda: self._log.delete(conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Returns a message by entry id. Raises `KeyError`."""
        return (await self.read_history(entry_id))[-1]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Returns the messages up to an entry, or only the last of them."""
        return await asyncio.to_thread(self._log.history, head_id, limit)
