# Made of _async/reading.py by scripts/make_sync.py: change that, and run it again.
"""Reads of many events that continue after a broken connection."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from treering import _methods as m
from treering._methods import Method
from treering._sync.transport import Transport
from treering._wire import SyncStream
from treering.types import Event
from treering.v1 import event_pb2, events_pb2


def read_events(
    transport: Transport, method: Method[Any, Any], request: Any, limit: int = 0
) -> Generator[Event, None, None]:
    """Yields events in the order of the request, each once.

    Events do not change, and a history only grows at its end. So after a break the same
    request returns the same events again, and those up to the last yielded one are skipped.
    """
    last_id = passing_to = ""
    handed_out = 0

    def again() -> Any:
        nonlocal passing_to
        passing_to = last_id
        if last_id and limit:
            # Backward, newer events may come first now.
            request.limit = 0
        return request

    while True:
        stopped_at = None
        answers = transport.read(method, again)
        try:
            for answer in answers:
                for event in answer.events:
                    if passing_to:
                        passing_to = "" if event.id == passing_to else passing_to
                        continue
                    last_id = event.id
                    handed_out += 1
                    yield Event.of(event)
                    if handed_out == limit:
                        return
                if isinstance(answer, events_pb2.ReadResponse) and answer.HasField("stopped_at"):
                    stopped_at = answer.stopped_at
        finally:
            answers.close()
        if stopped_at is None:
            return
        # This read examined the maximum number of events: the next one continues there.
        request.go_on_at.CopyFrom(stopped_at)
        last_id = passing_to = ""


def read_pages(
    transport: Transport,
    request: events_pb2.ReadRequest,
    begun: SyncStream[events_pb2.ReadResponse] | None = None,
) -> Generator[Sequence[event_pb2.Event], None, None]:
    """Yields pages of events: much cheaper than one by one.

    After a break it begins again, so events may come twice. `begun` is the stream of a request
    that was sent already.
    """
    while True:
        stopped_at = None
        answers = transport.read(m.READ, lambda: request, begun=begun)
        begun = None
        try:
            for answer in answers:
                yield answer.events
                if answer.HasField("stopped_at"):
                    stopped_at = answer.stopped_at
        finally:
            answers.close()
        if stopped_at is None:
            return
        request.go_on_at.CopyFrom(stopped_at)
