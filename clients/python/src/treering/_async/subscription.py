"""Subscriptions to events and context keys. They survive restarts of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType

from treering._async.transport import AsyncTransport
from treering._methods import SUBSCRIBE, WATCH
from treering._words import KindName, from_json, numbers
from treering.types import ContextChange, Event
from treering.v1 import context_pb2, event_pb2, events_pb2


class AsyncSubscription:
    """A stream of events: existing ones, then new ones.

    After a broken connection or a restart of the server it continues without gaps or repetitions.
    `after` is the place of the last event that it yielded; use it to continue in another process.
    Leaving a loop does not end the subscription; `close` or a `with` block does.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        *,
        branch: events_pb2.BranchSource | None = None,
        conversation: events_pb2.ConversationSource | None = None,
        after: int | None = None,
        from_now: bool = False,
        kinds: KindName | Sequence[KindName] = (),
        heartbeat: int = 0,
    ) -> None:
        self.after = after
        """Revision (for the whole log: offset) of the last event that it yielded."""
        self.caught_up = False
        """All events that existed at the start were yielded."""
        self._of_log = branch is None and conversation is None
        self._from_now = from_now and after is None
        self._source = (branch, conversation)
        self._kinds = numbers(event_pb2.EventKind, "EVENT_KIND", kinds)
        self._heartbeat = heartbeat
        self._last_id = ""
        self._answers = transport.follow(SUBSCRIBE, self._request)

    def _request(self) -> events_pb2.SubscribeRequest:
        branch, conversation = self._source
        return events_pb2.SubscribeRequest(
            branch=branch,
            conversation=conversation,
            log=events_pb2.LogSource() if self._of_log else None,
            after_revision=0 if self._of_log else self.after or 0,
            after_offset=self.after if self._of_log else None,
            kinds=self._kinds,
            from_now=self._from_now,
            heartbeat_seconds=self._heartbeat,
        )

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            answer = await self._answers.__anext__()
            which = answer.WhichOneof("item")
            if which == "event":
                event = Event.of(answer.event)
                self.after = event.position if self._of_log else event.revision
                self._from_now = False
                return event
            if which == "caught_up":
                self.caught_up = True
            if which in ("caught_up", "heartbeat") and self._of_log:
                self._reach(getattr(answer, which).position.offset)

    def _reach(self, offset: int) -> None:
        """Moves `after` to this offset: no more events come before it, so a restart skips them."""
        if offset and (self._from_now or (self.after or 0) < offset):
            self.after = offset
            self._from_now = False

    async def close(self) -> None:
        """Ends the subscription. Pending iterations stop."""
        await self._answers.aclose()

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncContextWatch:
    """A stream of the keys of a context, then of every change.

    After a broken connection it reads all keys again, and yields only changes.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        conversation_id: str = "",
        branch: str = "",
        keys: Iterable[str] = (),
    ) -> None:
        self.caught_up = False
        """All keys that existed at the start were yielded."""
        self._known: dict[str, bytes] = {}
        self._fresh: set[str] = set()
        self._gone: list[str] = []
        request = context_pb2.WatchContextRequest(
            conversation_id=conversation_id, branch=branch, keys=list(keys)
        )

        def again() -> context_pb2.WatchContextRequest:
            self._fresh = set()
            self._is_fresh = True
            return request

        self._is_fresh = True
        self._answers = transport.follow(WATCH, again)

    def __aiter__(self) -> AsyncIterator[ContextChange]:
        return self

    async def __anext__(self) -> ContextChange:
        while True:
            if self._gone:
                key = self._gone.pop()
                del self._known[key]
                return ContextChange(key=key, value=None, removed=True)
            answer = await self._answers.__anext__()
            which = answer.WhichOneof("item")
            if which == "entry":
                entry = answer.entry
                is_known = self._known.get(entry.key) == entry.value
                if self._is_fresh:
                    self._fresh.add(entry.key)
                self._known[entry.key] = entry.value
                if not (self._is_fresh and is_known):
                    return ContextChange(
                        key=entry.key, value=from_json(entry.value), provider=entry.provider
                    )
            elif which == "removed_key":
                self._known.pop(answer.removed_key, None)
                return ContextChange(key=answer.removed_key, value=None, removed=True)
            elif which == "caught_up":
                self.caught_up = True
                self._is_fresh = False
                self._gone = [key for key in self._known if key not in self._fresh]

    async def close(self) -> None:
        """Ends the watch. Pending iterations stop."""
        await self._answers.aclose()

    async def __aenter__(self) -> AsyncContextWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
