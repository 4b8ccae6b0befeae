# Made of _async/calls.py by scripts/make_sync.py: change that, and run it again.
"""A tool call: requested, approved, run, ended."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treering import _requests, errors, new
from treering._background import despite_sync
from treering._words import CancelReasonName, from_arguments, json_bytes, result_text
from treering.new import Output, Part
from treering.types import Receipt, ToolCall

if TYPE_CHECKING:
    from treering._sync.conversation import Conversation

ERROR_CHARS_MAX = 2_000
"""Maximum length of the text of an exception in a failed result."""


class Call:
    """A tool call of a conversation.

    As a context manager it appends the request, waits for approval if needed, appends the start,
    and makes sure that the call ends. An exception is recorded as a failed result and propagates.
    An interruption is recorded as a cancellation. Without a result, an empty one is recorded.

    >>> with conv.tool_call("grep", {"pattern": "port"}) as call:
    ...     done = call.result("config.py:12: PORT = 7171")
    >>> (conv.tool_calls())[0].status
    'succeeded'
    """

    def __init__(
        self,
        conversation: Conversation,
        call_id: str,
        tool: str,
        arguments: Any,
        *,
        needs_approval: bool = False,
        message_revision: int = 0,
        executor: str = "",
        approval_timeout: float | None = None,
        is_requested: bool = False,
        is_started: bool = False,
    ) -> None:
        self.conversation = conversation
        self.call_id = call_id
        self.tool = tool
        self.raw_arguments = json_bytes(arguments, "arguments", as_is=True)
        """The arguments as stored, byte for byte."""
        self.needs_approval = needs_approval
        self.message_revision = message_revision
        self.executor = executor
        self.approval_timeout = approval_timeout
        self.is_requested = is_requested
        self.is_started = is_started
        self.has_ended = False
        self._began: float | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.call_id!r}, {self.tool!r})"

    @property
    def arguments(self) -> Any:
        """The parsed arguments; a string if the model wrote invalid JSON."""
        return from_arguments(self.raw_arguments)

    def _asked(self) -> new.NewEvent:
        return new.tool_call(
            self.call_id,
            self.tool,
            self.raw_arguments,
            needs_approval=self.needs_approval,
            message_revision=self.message_revision,
        )

    def request(self) -> Call:
        """Appends the request, once."""
        if not self.is_requested:
            self.conversation.append([self._asked()])
            self.is_requested = True
        return self

    def wait_for_approval(self, timeout: float | None = None) -> ToolCall:
        """Waits for the decision; None waits without a limit.

        Raises `CallDenied`, `ApprovalExpired`, or `NotDecided` after the timeout.
        """
        self.request()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 300.0 if end is None else max(0.0, end - time.monotonic())
            call = self.conversation.wait_for_decision(self.call_id, min(left, 300.0))
            if call.status == "denied":
                proto = call.proto
                raise errors.CallDenied(self.call_id, proto.decided_by, proto.decision_reason)
            if call.status == "expired":
                raise errors.ApprovalExpired(f"call {self.call_id} was not decided in time")
            if call.status != "pending_approval":
                return call
            if end is not None and time.monotonic() >= end:
                raise errors.NotDecided(f"call {self.call_id} has no decision yet")

    def start(self) -> None:
        """Appends the start, once."""
        events = [] if self.is_requested else [self._asked()]
        if not self.is_started:
            events.append(new.tool_started(self.call_id, executor=self.executor))
        if events:
            self.conversation.append(events)
        self.is_requested = self.is_started = True
        self._began = time.monotonic()

    def result(
        self,
        *content: Output,
        success: bool = True,
        error: str = "",
        structured: Any = None,
        milliseconds: int | None = None,
    ) -> Receipt:
        """Appends the result, up to 64 MiB less 64 KiB: texts and parts; dicts and lists as JSON.
        Large texts are sent in chunks."""
        content = tuple(_requests.fitting(content))
        self.request()
        if milliseconds is None and self._began is not None:
            milliseconds = round((time.monotonic() - self._began) * 1000)
        receipt = self.conversation.tool_result(
            self.call_id,
            *content,
            success=success,
            error=error,
            structured=structured,
            milliseconds=milliseconds,
        )
        self.has_ended = True
        return receipt

    def run(self, function: Callable[..., Any], *, raises: bool = False) -> Any:
        """Calls `function` with the arguments as keywords, and records the outcome.

        Text is recorded unchanged, other values as JSON. An exception or a denial is recorded for
        the model to read. It is raised only with `raises`; otherwise the method returns None.

        >>> answer = conv.assistant(tool_calls=[("c1", "add", {"a": 1, "b": 2})])
        >>> answer.calls[0].run(lambda a, b: {"sum": a + b})
        {'sum': 3}
        >>> (conv.result("c1")).text
        '{"sum":3}'
        """
        try:
            with self:
                given = self.arguments or {}
                if not isinstance(given, dict):
                    raise TypeError("the arguments are not a JSON object")
                value = function(**given)
                if inspect.isawaitable(value):
                    value = value
                self.result(*_told(value))
                return value
        except errors.TreeringError as error:
            if raises or not isinstance(error, (errors.CallDenied, errors.ApprovalExpired)):
                raise
        except Exception:
            if raises:
                raise
        return None

    def fail(self, error: str, *content: Output) -> Receipt:
        """Appends a failed result, with optional content."""
        return self.result(*content, success=False, error=error)

    def cancel(self, reason: CancelReasonName = "interrupted", detail: str = "") -> Receipt:
        """Appends a cancellation: the call ended without a result."""
        self.request()
        event = new.tool_cancelled(self.call_id, reason, detail)
        receipt = self.conversation.append([event])
        self.has_ended = True
        return receipt

    def __enter__(self) -> Call:
        if self.needs_approval:
            try:
                self.wait_for_approval(self.approval_timeout)
            except errors.CallDenied as denied:
                self.cancel("denied", denied.reason_given)
                raise
            except errors.ApprovalExpired:
                self.cancel("timed_out")
                raise
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.has_ended:
            return
        if error is None:
            self.result()
        elif isinstance(error, Exception):
            # The program must get this error, not a failure to record it.
            text = "".join([type(error).__name__, ": " if str(error) else "", str(error)])
            despite_sync(lambda: self.fail(text[:ERROR_CHARS_MAX]))
        else:
            despite_sync(lambda: self.cancel("interrupted", type(error).__name__))


class Answer:
    """A recorded answer of the model with its calls."""

    def __init__(self, receipt: Receipt, calls: Sequence[Call]) -> None:
        self.receipt = receipt
        self.calls = tuple(calls)

    @property
    def revision(self) -> int:
        """Revision of its last event."""
        return self.receipt.revision

    def __repr__(self) -> str:
        return f"{type(self).__name__}(revision={self.revision}, calls={list(self.calls)})"


def _told(value: Any) -> list[Part]:
    """Converts what a function returned to the content of a result."""
    if value is None:
        return []
    return [value if isinstance(value, str) else result_text(value)]
