"""A capability for agents that stores messages as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from pydantic_ai import AgentRunResult, DeferredToolRequests, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RunUsage

from treering._adapters.thread import done
from treering.errors import TreeringError
from treering.pydantic_ai._log import Log
from treering.pydantic_ai._records import unanswered
from treering.pydantic_ai._returned import is_awaited, returned_event

if TYPE_CHECKING:
    from treering.pydantic_ai._store import TreeringConversationStore


class Steps(AbstractCapability[Any]):
    """Stores the messages of a run as they come: see `TreeringConversationStore.steps`.

    Prompts and tool results are stored before the model is called, and an answer before its tools
    run; results of parallel calls are stored as they come. To resume after a crash, load the
    conversation and run it without a prompt. If the conversation has changed since it was loaded,
    the run raises `ConversationConflict` before it calls the model; to repeat a prompt, use a
    `branch`.
    """

    def __init__(self, store: TreeringConversationStore, log: Log, scope: str | None) -> None:
        self._store = store
        self._log = log
        self._scope = scope

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Returns None: its store cannot be serialized."""
        return None

    async def for_run(self, ctx: RunContext[Any]) -> Steps:
        """Returns a new instance for the run."""
        return _Run(self._store, self._log, self._scope)


class _Run(Steps):
    """One run."""

    def __init__(self, store: TreeringConversationStore, log: Log, scope: str | None) -> None:
        super().__init__(store, log, scope)
        self._record: ConversationRecord | None = None
        self._revision: str | None = None
        self._head_id: str | None = None
        self._known: list[ModelMessage] = []
        """Messages of the run that are stored."""
        self._to_approve: set[str] = set()
        """Tools whose calls need approval."""
        self._returned: dict[str, Any] = {}
        """By call id, results stored by a program that ended before it stored the request."""

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Finds which part of the history is stored, and stores the rest."""
        await self._begin(ctx.conversation_id or "", ctx.messages)
        if is_awaited(ctx.messages):
            id = ctx.conversation_id or ""
            self._returned = await asyncio.to_thread(self._log.returned, id)
        await self._step(ctx)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Stores the request."""
        tools = request_context.model_request_parameters.function_tools
        self._to_approve = {tool.name for tool in tools if tool.kind == "unapproved"}
        await self._step(ctx)
        return request_context

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:
        """Stores the answer."""
        if ctx.messages and self._is_answered(ctx.messages[-1]):
            await self._step(ctx)
        return result

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Stores the result of a tool; does not run a tool again whose result is stored."""
        if call.tool_call_id in self._returned:
            return self._returned.pop(call.tool_call_id)
        value = await handler(args)
        if is_awaited(ctx.messages):
            event = returned_event(call.tool_name, call.tool_call_id, value)
            if event is not None:
                # If the store cannot be reached, storing the next request raises.
                with suppress(TreeringError):
                    id = ctx.conversation_id or ""
                    await done(lambda: self._log.note_returned(id, event))
        return value

    async def on_run_error(
        self, ctx: RunContext[Any], *, error: BaseException
    ) -> AgentRunResult[Any]:
        """Stores the messages of a step that failed."""
        if not isinstance(error, (ConversationConflict, TreeringError)):
            # The program must get the original error, not one of the store.
            with suppress(ConversationConflict, TreeringError):
                await self._step(ctx)
        raise error

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Stores the usage of the run, and the calls that it waits for."""
        output = result.output
        deferred = output if isinstance(output, DeferredToolRequests) else None
        fresh = self._fresh(result.all_messages())
        record = self._record
        if fresh or record is None or not _is_told(record, result.usage, deferred):
            await self._save(result.conversation_id, fresh, result.usage, deferred)
        # The result can now be saved or continued, as after `store.save(result)`.
        if told := getattr(result, "_conversation_saved", None):
            told(self._revision)
        return result

    async def _step(self, ctx: RunContext[Any]) -> None:
        """Stores the new messages, if there are any."""
        if fresh := self._fresh(ctx.messages):
            waiting = self._record.deferred_tool_requests if self._record else None
            rest = unanswered(waiting, fresh)
            await self._save(ctx.conversation_id or "", fresh, ctx.usage, rest)

    async def _save(
        self,
        conversation_id: str,
        fresh: Sequence[ModelMessage],
        usage: RunUsage,
        deferred: DeferredToolRequests | None,
    ) -> None:
        record = self._record
        entries: list[ConversationEntry] = []
        for message in fresh:
            parent = entries[-1].id if entries else self._head_id
            entries.append(ConversationEntry(parent_id=parent, message=message))
        updated = ConversationRecord(
            conversation_id=conversation_id,
            head_id=entries[-1].id if entries else self._head_id,
            usage=copy(usage),
            deferred_tool_requests=deferred,
            scope=record.scope if record else self._scope,
            forked_from=record.forked_from if record else None,
            forked_at=record.forked_at if record else None,
            branches=list(record.branches) if record else [],
        )
        expected, waiting = self._revision, self._waiting(fresh)
        await done(lambda: self._log.write(updated, entries, expected, waiting))
        self._record, self._revision, self._head_id = updated, updated.revision, updated.head_id
        self._known += fresh

    async def _begin(self, conversation_id: str, messages: Sequence[ModelMessage]) -> None:
        """Finds which messages are stored: they must be the end of the stored history."""
        record = await self._store.read_record(conversation_id)
        if record is not None:
            if self._scope is not None and record.scope != self._scope:
                raise ConversationConflict(conversation_id)
            # At least one, to detect a stored history that was not loaded.
            count = max(1, len(messages))
            try:
                stored = await self._store.read_history(record.head_id, limit=count)
            except LookupError:
                raise ConversationConflict(conversation_id) from None
            kept = [_said(entry.message) for entry in stored]
            given = [_said(message) for message in messages[: len(kept)]]
            count = next((n for n in range(len(kept), 0, -1) if kept[-n:] == given[:n]), 0)
            if count == 0 and kept:
                raise ConversationConflict(conversation_id)
            self._known = list(messages[:count])
            self._record, self._revision = record, record.revision
            self._head_id = record.head_id

    def _fresh(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """The messages after the last known one, also in a history that was rewritten."""
        known = {id(message) for message in self._known}
        last = _said(self._known[-1]) if self._known else ""
        for index in range(len(messages), 0, -1):
            message = messages[index - 1]
            if id(message) in known or _said(message) == last:
                return list(messages[index:])
        return list(messages)

    def _is_answered(self, last: ModelMessage) -> bool:
        return isinstance(last, ModelResponse) and all(each is not last for each in self._known)

    def _waiting(self, messages: Sequence[ModelMessage]) -> set[str]:
        return {
            call.tool_call_id
            for message in messages
            if isinstance(message, ModelResponse)
            for call in message.tool_calls
            if call.tool_name in self._to_approve
        }


def _is_told(
    record: ConversationRecord, usage: RunUsage, deferred: DeferredToolRequests | None
) -> bool:
    return (record.usage, record.deferred_tool_requests) == (usage, deferred)


def _said(message: ModelMessage) -> str:
    """The content to compare. A request that is sent again has a new time and instructions."""
    [written] = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    return json.dumps([written["kind"], written["parts"]])
