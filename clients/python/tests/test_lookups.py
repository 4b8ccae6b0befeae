"""Keys, attributes, and look-ups by them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

import treering
from treering import errors, new


def there(event: treering.Event | None) -> treering.Event:
    """The event, which must exist."""
    assert event
    return event


def test_events_are_found_by_key_type_and_kind(db: treering.Treering) -> None:
    # A framework resumes from its newest state, which differs between branches.
    conv = db.create("States")
    for number in range(5):
        event = new.custom("state", {"n": number}, key=f"state/{number}", text=f"state no {number}")
        conv.append([new.found_by(event, attributes={"even": str(number % 2 == 0)})])
    other = conv.fork(at=3, name="other")
    other.append([new.custom("state", {"n": 99}, key="state/0")])

    main = conv.on("main")
    assert there(main.latest(key="state/3")).body.type_name == "state"
    assert there(main.latest(type="state")).key == "state/4"
    assert there(other.latest(type="state")).key == "state/0"
    assert other.latest(key="state/3") is None
    assert there(main.latest(kind="conversation_created")).revision == 1
    assert there(main.latest(type="state", as_of=3)).key == "state/1"
    with pytest.raises(ValueError, match="exactly one"):
        conv.latest(key="a", type="b")

    found = db.latest([conv.id], branch="main", keys=["state/1", "no"], types=["state"])
    assert [event and event.revision for event in found] == [3, None, 6]
    even = main.events(attributes={"even": "True"}, types="state", headers_only=True)
    assert [(event.key, event.type_name) for event in even] == [
        ("state/0", "state"),
        ("state/2", "state"),
        ("state/4", "state"),
    ]
    prefix = main.events(key_prefix="state/", backward=True, limit=2)
    assert [event.attributes for event in prefix] == [{"even": "True"}, {"even": "False"}]
    soon = datetime.now(timezone.utc) + timedelta(minutes=1)
    assert not list(conv.events(since=soon, key_prefix="state/"))
    with pytest.raises(TypeError, match="events has no colour"):
        list(conv.events(colour="red"))  # type: ignore[call-arg]
    assert db.search("state no 3", kinds=["custom"])[0].revision == 5


def test_events_come_by_name_with_all_their_bodies(db: treering.Treering) -> None:
    # The client requests bodies again that did not fit into an answer, so no body is missing.
    conv = db.create("Large")
    done = [
        conv.append([new.custom("large", bytes([number]) * (1 << 20), key=f"k{number}")])
        for number in range(6)
    ]
    ids = [receipt.event_ids[0] for receipt in done]
    nowhere = "00000000-0000-7000-8000-000000000001"
    got = db.get_events([*reversed(ids), nowhere, (conv.id, 1), (conv.id, 99), ("no such", 1)])
    assert [event and event.revision for event in got] == [7, 6, 5, 4, 3, 2, None, 1, None, None]
    assert all(len(event.body.data) == 1 << 20 for event in got[:6] if event)
    latest = db.latest([conv.id], keys=[f"k{number}" for number in range(6)])
    assert [event and event.body.data[:1] for event in latest] == [bytes([n]) for n in range(6)]
    headers = conv.get_events([2, 3], headers_only=True)
    assert [event and (event.key, event.body) for event in headers] == [("k0", None), ("k1", None)]


# A datetime without a zone was taken for UTC here, and for local time by everything else.
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process is fixed here")
def test_a_time_without_a_zone_is_local(
    conv: treering.Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC-5")  # five hours ahead
    time.tzset()
    try:
        event = new.happened(new.user("Good morning."), datetime(2026, 1, 31, 8, 0))
        done = conv.append([event])
    finally:
        monkeypatch.undo()
        time.tzset()
    found = next(each for each in conv.events() if each.revision == done.revision)
    assert found.occurred_at == datetime(2026, 1, 31, 3, 0, tzinfo=timezone.utc)


def test_a_context_is_asked_for_by_key(db: treering.Treering) -> None:
    # Values that do not fit into one answer come with the next.
    conv = db.create("Context")
    large = "x" * (2 << 20)
    conv.set_context({"a": 1, "large 1": large, "large 2": large, "b": [2]})
    assert conv.context("b", "none") == {"b": [2]}
    assert conv.context() == {"a": 1, "b": [2], "large 1": large, "large 2": large}


def test_a_key_is_bounded(db: treering.Treering) -> None:
    # An invalid key is refused by name, and nothing is stored.
    conv = db.create("Bounds")
    for key in ["k" * 513, "a\0b"]:
        with pytest.raises(errors.Invalid, match="key"):
            conv.append([new.found_by(new.user("no"), key)])
    assert conv.head() == 1


def test_a_feed_that_is_read_again(db: treering.Treering) -> None:
    # Two queues deliver some events twice, in different batches. Each event is stored once, and
    # both appends return its revision. Other content under a known id is refused.
    conv = db.create("Feed")
    ids = [f"00000000-0000-4000-8000-{n:012}" for n in range(6)]
    feed = [new.with_id(new.user(f"no {n}"), id) for n, id in enumerate(ids)]
    first = conv.append(feed[:3])
    assert first.event_ids == tuple(ids[:3]) and first.known == ()
    again = conv.append(feed[1:], skip_known=True)
    assert again.known == (0, 1) and again.revisions[:2] == first.revisions[1:]
    assert [event and event.text for event in db.get_events(ids)] == [f"no {n}" for n in range(6)]
    with pytest.raises(errors.EventIdTaken):
        conv.append(feed[:1])
    with pytest.raises(errors.EventIdConflict):
        conv.append([new.with_id(new.user("other"), ids[0])], skip_known=True)

    lines = [new.once(new.user(f"line {n}"), f"line/{n}") for n in range(4)]
    conv.append(lines[:2])
    assert conv.append(lines).known == (0, 1)
    assert [receipt.known for receipt in db.append_many([(conv.id, lines)])] == [(0, 1, 2, 3)]  # type: ignore[union-attr]
    with pytest.raises(errors.IdempotencyConflict):
        conv.append([new.once(new.user("other"), "line/0")])


def test_who_was_first_is_told(db: treering.Treering) -> None:
    # Two agents share one plan: an append by an agent that has not read the newest must fail.
    conv = db.create("Plans")

    def plan(text: str) -> new.NewEvent:
        return new.found_by(new.user(text), "plan")

    first = conv.append([plan("one")], expected_keys={"plan": None})
    conv.append([new.user("not about the plan")])
    second = conv.append([plan("two")], expected_keys={"plan": first.revision})
    with pytest.raises(errors.LatestMismatch) as caught:
        conv.append([plan("late")], expected_keys={"plan": first.event_ids[0]})
    assert caught.value.event_id == second.event_ids[0]
    with pytest.raises(errors.LatestMismatch):
        conv.append([plan("late")], expected_keys={"plan": None})
    conv.append([plan("three")], expected_keys={"plan": second.event_ids[0]})
    assert there(conv.latest(key="plan")).text == "three"
