"""What LangGraph's checkpointer looks up and reads in a program that has just started."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

import treering

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from treering import new
from treering._sync.transport import Transport
from treering.langgraph import TreeringSaver
from treering.langgraph._index import is_list, list_key
from treering.v1 import events_pb2

from ..conftest import texts

CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}


def put(
    saver: TreeringSaver,
    config: RunnableConfig,
    step: int,
    values: dict[str, Any],
    id: str = "",
    changed: set[str] | None = None,
) -> RunnableConfig:
    """Puts a checkpoint with these values; `changed` names the new ones (None: all)."""
    checkpoint = empty_checkpoint()
    checkpoint["id"] = id or str(uuid6(clock_seq=step))
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, f"{1:032}.0")
    versions = {name: f"{step + 2:032}.0" for name in values if changed is None or name in changed}
    checkpoint["channel_versions"].update(versions)
    return saver.put(config, checkpoint, {"source": "loop", "step": step}, cast(Any, versions))


def message(number: int) -> BaseMessage:
    kind = AIMessage if number % 2 else HumanMessage
    return kind(f"Message {number}", id=f"m{number}")


def values_of(saver: TreeringSaver, config: RunnableConfig) -> dict[str, Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


class Read:
    """Counts the events that come from the server."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events = 0
        read, unary = Transport.read, Transport.unary

        def counted_read(*given: Any, **named: Any) -> Iterator[Any]:
            for answer in read(*given, **named):
                self.events += len(answer.events)
                yield answer

        def counted_unary(*given: Any, **named: Any) -> Any:
            answer: Any = unary(*given, **named)
            if isinstance(answer, events_pb2.GetManyResponse):
                self.events += sum(each.HasField("event") for each in answer.events)
            elif isinstance(answer, events_pb2.LatestResponse):
                self.events += sum(each.HasField("event") for each in answer.found)
            return answer

        patch.setattr(Transport, "read", counted_read)
        patch.setattr(Transport, "unary", counted_unary)

    def since(self) -> int:
        """Returns the count since the last call of this method."""
        count, self.events = self.events, 0
        return count


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    yield Read(monkeypatch)


# The first call of a program read all steps of its thread: 64 ms at 400 steps. The number of events
# that it reads must depend on the size of the state, not of the thread.
def test_what_a_first_call_reads_does_not_grow(db: treering.Treering, read: Read) -> None:
    saver = TreeringSaver(db)
    config, said = CONFIG, list[BaseMessage]()
    counts = []
    for step in range(120):
        said = [*said, message(step)][-6:]
        config = put(saver, config, step, {"messages": said, "step": step})
        saver.put_writes(config, [("messages", step)], f"task {step}")
        if step not in (39, 119):
            continue
        read.since()
        other = TreeringSaver(db)
        assert values_of(other, CONFIG) == {"messages": said, "step": step}
        latest = read.since()
        assert values_of(TreeringSaver(db), config) == {"messages": said, "step": step}
        by_id = read.since()
        kept = values_of(other, CONFIG)["messages"]
        read.since()
        added = [*kept[1:], HumanMessage(f"Another program {step}", id=f"other{step}")]
        config = put(other, config, step, {"messages": added, "step": step})
        said = added
        counts.append((latest, by_id, read.since()))
        assert texts(saver.conversation("thread"))[-1] == f"Another program {step}"
    assert counts[0] == counts[1]
    assert sum(counts[1]) < 60
    assert len(saver.conversation("thread").branches()) == 1
    assert values_of(TreeringSaver(db), CONFIG) == values_of(saver, CONFIG)


# A list of the newest checkpoints read the whole thread: 350 ms at 1,000 steps, where SQLite takes
# 13. It must read only the events that these checkpoints need.
def test_a_list_of_the_newest_reads_no_more_as_the_thread_grows(
    db: treering.Treering, read: Read
) -> None:
    saver = TreeringSaver(db)
    config, said = CONFIG, list[BaseMessage]()
    counts = []
    for step in range(120):
        said = [*said, message(step)][-6:]
        config = put(saver, config, step, {"messages": said, "step": step})
        # Larger than what a connection buffers before its reader reads.
        size = 300_000 if step > 110 else 10
        saver.put_writes(config, [("messages", step), ("text", "x" * size)], f"task {step}")
        if step in (39, 119):
            read.since()
            found = list(TreeringSaver(db).list(CONFIG, limit=5))
            counts.append(read.since())
            assert found == list(saver.list(CONFIG))[:5]
            assert [len(each.pending_writes or ()) for each in found] == [2] * 5
            read.since()
    assert counts[0] == counts[1] < 60
    assert (
        list(
            TreeringSaver(db).list(
                {"configurable": {**CONFIG["configurable"], "thread_id": "no"}}, limit=5
            )
        )
        == []
    )


# The messages of a state are read as one range, with the number of its events as limit. Messages
# of other programs count towards the limit, so missing events are read afterwards.
@pytest.mark.parametrize("others", [1, 4])
def test_what_others_say_between_messages_of_a_state(
    db: treering.Treering, read: Read, others: int
) -> None:
    saver = TreeringSaver(db)
    conv = saver.conversation("thread")
    config, said = CONFIG, list[BaseMessage]()
    for step in range(40):
        said = [*said, message(2 * step), message(2 * step + 1)]
        config = put(saver, config, step, {"messages": said})
        conv.append([new.message("user", f"Another program {step}") for _ in range(others)])
    read.since()
    for asked in (CONFIG, config):
        assert values_of(TreeringSaver(db), asked) == {"messages": said}
        # 40 frames, their 80 messages and most of the others'; not the 80 rows of the steps.
        assert 120 <= read.since() <= 150 + 40 * others
    assert values_of(TreeringSaver(db), CONFIG) == values_of(saver, CONFIG)


# A row records a list as runs of elements in other rows, relative to a row that records the list in
# full. However a list changes, each checkpoint must come back as it was put, with and without a
# cached thread, also after other checkpoints were put.
@pytest.mark.parametrize("seed", range(3))
def test_lists_that_change_at_random(db: treering.Treering, seed: int) -> None:
    chance = random.Random(seed)
    saver, reader = TreeringSaver(db), TreeringSaver(db, threads_max=0)
    said: list[Any] = []
    notes: list[Any] = [{"note": -1}]
    held: list[tuple[RunnableConfig, dict[str, Any]]] = []
    config = CONFIG
    for step in range(90):
        writer = chance.choice([saver, saver, saver, reader])
        which = chance.random()
        if which < 0.75 or not said:
            said = [*said, *(message(step * 3 + at) for at in range(chance.randint(1, 2)))]
            notes = [*notes, {"note": step, "text": "the same" * 5}]
        elif which < 0.85:
            said, notes = said[chance.randint(1, 2) :], notes[1:] or notes
        elif which < 0.92:
            at = chance.randrange(len(said))
            said = [*said[:at], HumanMessage(f"Instead {step}", id=f"i{step}"), *said[at + 1 :]]
        else:
            config, values = chance.choice(held)
            said, notes = values["messages"], values["notes"]
        changed = {"messages", "notes"} if which < 0.92 else set[str]()
        values = {"messages": said, "notes": notes, "same": "x" * 100}
        config = put(writer, config, step, values, changed=changed)
        held.append((config, values))
        assert values_of(reader, CONFIG) == values
    for each in (saver, reader, TreeringSaver(db)):
        for config, values in held[::4]:
            assert values_of(each, config) == values
    listed = list(saver.list(CONFIG))
    assert len(listed) == 90
    for limit in (1, 7, 16, 17):
        assert list(TreeringSaver(db).list(CONFIG, limit=limit)) == listed[:limit]
    assert db.verify(deep=True).sound


# A list that became equal to one in an older row was searched in the rows before that row. After a
# look-up these are not in the index, so the put failed.
def test_a_list_that_is_as_it_was_before(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    notes = [{"note": note} for note in range(20)]
    # First the list drops elements at its start, then it only grows.
    states = [{"notes": notes[max(0, step - 5) : step + 1]} for step in range(16)]
    states += [{"notes": notes[10 : step + 1]} for step in range(16, 20)]
    config = CONFIG
    for step, values in enumerate(states):
        config = put(saver, config, step, values)
    for step, values in enumerate(reversed(states), start=len(states)):
        other = TreeringSaver(db)
        values_of(other, CONFIG)
        config = put(other, config, step, values)
        for each in (other, TreeringSaver(db), saver):
            assert values_of(each, CONFIG) == values


# Keys of lists from JavaScript never matched, so its threads were always read in full. The test
# uses a key that the JavaScript client computed.
def test_the_key_of_a_list_of_javascript() -> None:
    keys = [bytes(12), bytes([0xAB] * 12)]
    assert is_list(bytes.fromhex("cb6131b69d13236346315061"), keys)
    assert is_list(list_key(keys), keys)
    assert not is_list(list_key(keys), keys[:1])


# The latest checkpoint is the one with the highest id, as in LangGraph, even if a program with a
# slow clock put another later, or a program switched branches.
def test_the_latest_is_not_always_the_newest(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    early, late = str(uuid6(clock_seq=1)), str(uuid6(clock_seq=2))
    first = put(saver, CONFIG, 0, {"messages": [message(0)]}, early[:-1] + "0")
    put(saver, first, 1, {"messages": [message(0), message(1)]}, late)
    put(saver, first, 2, {"messages": [message(0), message(2)]}, early[:-1] + "f")
    other = TreeringSaver(db)
    assert values_of(other, CONFIG) == {"messages": [message(0), message(1)]}
    conv = saver.conversation("thread")
    assert [branch.name for branch in conv.branches() if branch.active] != ["main"]
    conv.on("main").append([new.branch_activated()])
    for each in (TreeringSaver(db), other, saver):
        assert values_of(each, CONFIG) == {"messages": [message(0), message(1)]}
        for limit in (1, 2, 3):
            found = [made.checkpoint["id"] for made in TreeringSaver(db).list(CONFIG, limit=limit)]
            assert found == [late, early[:-1] + "f", early[:-1] + "0"][:limit]
    last = [message(0), message(1), message(3)]
    put(TreeringSaver(db), first, 3, {"messages": last})
    for each in (TreeringSaver(db), other, saver):
        assert values_of(each, CONFIG) == {"messages": last}
    assert texts(conv) == ["Message 0", "Message 1", "Message 3"]


# Deleted checkpoints must not be found by key; the latest is one of those that are left.
def test_what_was_deleted_is_not_looked_up(db: treering.Treering) -> None:
    saver, open = TreeringSaver(db), TreeringSaver(db)
    configs = [CONFIG]
    for step in range(6):
        said = [message(number) for number in range(step + 1)]
        configs.append(put(saver, configs[-1], step, {"messages": said}))
    assert values_of(open, CONFIG)["messages"] == said
    saver.prune(["thread"])
    for each in (TreeringSaver(db), open):
        assert [made.config for made in each.list(CONFIG, limit=3)] == configs[-1:]
        assert each.get_tuple(configs[3]) is None
        assert values_of(each, CONFIG) == values_of(each, configs[-1]) == {"messages": said}
    saver.delete_thread("thread")
    for each in (TreeringSaver(db), open):
        assert each.get_tuple(configs[-1]) is None
        assert each.get_tuple(CONFIG) is None
    anew = put(TreeringSaver(db), CONFIG, 7, {"messages": [message(7)]})
    for each in (TreeringSaver(db), open, saver):
        assert values_of(each, CONFIG) == values_of(each, anew) == {"messages": [message(7)]}
        assert each.get_tuple(configs[-1]) is None
    assert TreeringSaver(db).get_tuple({"configurable": {"thread_id": "no such thread"}}) is None


# A graph puts the message objects that it read. A message that was changed in place is stored as a
# new one, and unchanged messages are not stored again.
def test_messages_that_are_changed_in_place(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    said: list[BaseMessage] = [
        HumanMessage("One", id="1"),
        AIMessage("Two", id="2", additional_kwargs={"a": 1}),
        HumanMessage("Three", id="3"),
        AIMessage("Four", id="4"),
    ]
    config = put(saver, CONFIG, 0, {"messages": said})
    other = TreeringSaver(db)
    read = values_of(other, CONFIG)["messages"]
    assert read == said and all(one is not two for one, two in zip(read, said, strict=True))
    read[1].additional_kwargs.clear()
    read[2].content = "Changed"
    read[3].response_metadata["model"] = "m"
    expected = [each.model_copy(deep=True) for each in read]
    put(other, config, 1, {"messages": read})
    for each in (TreeringSaver(db), other, saver):
        assert values_of(each, CONFIG)["messages"] == expected
        assert values_of(each, config)["messages"] == said
    assert texts(saver.conversation("thread")) == ["One", "Two", "Changed", "Four"]
