"""Calls without a result, and the text that stands in a request for the result.

Providers refuse a call without a result, so adapters put this text in its place. The texts are
those of the server (`src/context/window/calls.rs`): a test compares them with the server's
requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from treering._sync.conversation import Conversation
from treering._words import KindName
from treering.types import Event
from treering.v1 import event_pb2 as pb

TOLD_BY: tuple[KindName, ...] = ("approval_decided", "tool_call_started", "tool_call_cancelled")
"""The kinds of events, besides calls, that determine the text of a call without a result."""

CANCELLED = {
    pb.CANCEL_REASON_DENIED: "denied",
    pb.CANCEL_REASON_INTERRUPTED: "interrupted before it ended",
    pb.CANCEL_REASON_TIMED_OUT: "timed out",
    pb.CANCEL_REASON_SUPERSEDED: "superseded by another call",
}

YET = "no result yet: "
NEVER = "no result: "
WENT_ON = "when the conversation went on"


@dataclass(frozen=True)
class _Stage:
    """The text while a call may still end, and the text after the model has gone on."""

    open: str
    frozen: str
    is_refused: bool = False


REQUESTED = _Stage(f"{YET}the call has not ended", f"{NEVER}the call had not ended {WENT_ON}")
WAITS = _Stage(
    f"{YET}the call waits for approval", f"{NEVER}the call had not been approved {WENT_ON}"
)
APPROVED = _Stage(f"{YET}the call is approved and has not begun", REQUESTED.frozen)


class Unanswered:
    """The stages of the calls of a branch, as far as it was read."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}

    def noted(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yields the same events, and updates the stages."""
        for event in events:
            self.take(event)
            yield event

    def take(self, event: Event) -> None:
        """Updates the stage of the event's call."""
        if event.kind == "tool_call_requested":
            approval = event.proto.tool_call_requested.approval
            is_waiting = approval == pb.APPROVAL_REQUIREMENT_PENDING
            self._stages[event.call_id] = WAITS if is_waiting else REQUESTED
        elif event.kind == "approval_decided":
            self._stages[event.call_id] = _decided(event.proto.approval_decided)
        elif event.kind == "tool_call_started":
            self._stages[event.call_id] = _started(event.proto.tool_call_started.executor)
        elif event.kind == "tool_call_cancelled":
            self._stages[event.call_id] = self._cancelled(event.proto.tool_call_cancelled)

    def told(self, call_id: str, *, went_on: bool) -> str:
        """The text for a call; `went_on`: the model has answered since."""
        stage = self._stages.get(call_id, REQUESTED)
        return stage.frozen if went_on else stage.open

    def _cancelled(self, cancelled: pb.ToolCallCancelled) -> _Stage:
        before = self._stages.get(cancelled.call_id, REQUESTED)
        # The denial has more details than the cancellation that follows it.
        if before.is_refused and cancelled.reason == pb.CANCEL_REASON_DENIED:
            return before
        what = CANCELLED.get(cancelled.reason, CANCELLED[pb.CANCEL_REASON_INTERRUPTED])
        text = _with(what, cancelled.detail)
        return _Stage(text, text, is_refused=True)


def denials(conversation: Conversation, events: Iterable[Event]) -> Iterator[Event]:
    """Denials before these events, of calls whose cancellation is among the events."""
    decided = set[str]()
    for event in events:
        if event.kind == "approval_decided":
            decided.add(event.call_id)
        is_denied = event.proto.tool_call_cancelled.reason == pb.CANCEL_REASON_DENIED
        if event.kind != "tool_call_cancelled" or not is_denied or event.call_id in decided:
            continue
        before = conversation.events(
            first=event.revision, backward=True, kinds=["approval_decided"]
        )
        if found := next((each for each in before if each.call_id == event.call_id), None):
            yield found


def _decided(decided: pb.ApprovalDecided) -> _Stage:
    if decided.decision == pb.DECISION_APPROVED:
        return APPROVED
    what = "the approval expired"
    if decided.decision == pb.DECISION_DENIED:
        what = f"denied by {decided.decided_by}" if decided.decided_by else "denied"
    text = _with(what, decided.reason)
    return _Stage(text, text, is_refused=True)


def _started(executor: str) -> _Stage:
    return _Stage(
        f"{YET}{executor} is running the call" if executor else f"{YET}the call is running",
        f"{NEVER}the call was interrupted, or still ran, {WENT_ON}",
    )


def _with(what: str, detail: str) -> str:
    return f"{what}: {detail}" if detail else what
