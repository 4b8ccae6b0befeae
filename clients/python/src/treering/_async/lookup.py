"""Looks up events by key, type, id or revision, with all their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treering import _methods as m
from treering._async.transport import AsyncTransport
from treering.types import Event
from treering.v1 import events_pb2

NAMES_MAX = 4096
"""Maximum number of events in one call."""


async def latest(
    transport: AsyncTransport, request: events_pb2.LatestRequest
) -> list[Event | None]:
    """The newest event of each conversation with each key, type and kind; None for no event."""
    found = list((await transport.unary(m.LATEST, request)).found)
    bodies = await _left_out(transport, [each for each in found if each.body_left_out])
    return [_event(each, bodies) for each in found]


async def get_many(
    transport: AsyncTransport, names: Iterable[str | tuple[str, int]], headers_only: bool
) -> list[Event | None]:
    """Events by their ids, or by conversation and revision; None for a missing event."""
    asked = [_name(name) for name in names]
    events: list[Event | None] = []
    for start in range(0, len(asked), NAMES_MAX):
        request = events_pb2.GetManyRequest(
            events=asked[start : start + NAMES_MAX], headers_only=headers_only
        )
        got = list((await transport.unary(m.GET_MANY, request)).events)
        bodies = await _left_out(transport, [each for each in got if each.body_left_out])
        events += [_event(each, bodies) for each in got]
    return events


async def _left_out(
    transport: AsyncTransport, left: Sequence[events_pb2.LatestEvent | events_pb2.GotEvent]
) -> dict[str, Event]:
    """Reads the events whose bodies an answer left out, by id. Each answer has one or more."""
    ids = list(dict.fromkeys(each.event.id for each in left))
    whole: dict[str, Event] = {}
    while ids:
        request = events_pb2.GetManyRequest(
            events=[events_pb2.EventName(event_id=id) for id in ids[:NAMES_MAX]]
        )
        for got in (await transport.unary(m.GET_MANY, request)).events:
            if got.HasField("event") and not got.body_left_out:
                whole[got.event.id] = Event.of(got.event)
        missing = [id for id in ids if id not in whole]
        if len(missing) == len(ids):
            break
        ids = missing
    return whole


def _event(
    got: events_pb2.LatestEvent | events_pb2.GotEvent, bodies: dict[str, Event]
) -> Event | None:
    if not got.HasField("event"):
        return None
    return bodies.get(got.event.id) or Event.of(got.event)


def _name(name: str | tuple[str, int]) -> events_pb2.EventName:
    if isinstance(name, str):
        return events_pb2.EventName(event_id=name)
    conversation, revision = name
    place = events_pb2.EventPlace(conversation_id=conversation, revision=revision)
    return events_pb2.EventName(place=place)
