"""Values that LangGraph accepts and the store's API refuses: the thread must still be mirrored."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date
from typing import Any, cast

import pytest

import treering

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from treering._adapters import odd
from treering.langgraph import TreeringSaver, messages

from ..conftest import texts
from .test_odd_others import warned

CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread"}}


def calling(id: Any = "c", name: str = "f", args: Any = None) -> AIMessage:
    return AIMessage("hmm", tool_calls=[{"name": name, "args": args or {}, "id": id}])


def says(saver: TreeringSaver, answers: Sequence[BaseMessage]) -> Any:
    """A graph that returns these answers in order."""

    def answer(state: MessagesState) -> dict[str, Any]:
        asked = sum(message.type == "human" for message in state["messages"])
        answer = answers[asked - 1]
        made: list[BaseMessage] = [answer]
        for call in getattr(answer, "tool_calls", None) or ():
            made.append(ToolMessage("the tool's", tool_call_id=call["id"] or ""))
        return {"messages": made}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


ODD = {
    "no id": calling(None),
    "an empty id": calling(""),
    "a long id": calling("c" * 600),
    "no name": calling(name=""),
    "a long name": calling(name="ñ" * 400),
    "a date": calling(args={"on": date(2026, 3, 1)}),
    "no number": calling(args={"x": float("nan")}),
    "half a character": calling(args={"x": "a\ud800"}),
}


# One odd call ended the mirroring of a thread. Later messages were in the state, but never in the
# log, search or requests, and there was no warning.
@pytest.mark.parametrize("name", ODD)
def test_an_odd_call_is_mirrored_and_what_follows_it(
    db: treering.Treering, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    saver = TreeringSaver(db)
    given = ODD[name].model_copy()
    graph = says(saver, [AIMessage("zebra"), given, AIMessage("giraffe"), AIMessage("lion")])
    for number in range(4):
        state = graph.invoke({"messages": [("user", f"Question {number}")]}, CONFIG)
    assert len(warned(caplog)) == 1
    conv = saver.conversation("thread")
    said = ["zebra", "hmm", "giraffe", "lion"]
    assert texts(conv) == [each for n in range(4) for each in (f"Question {n}", said[n])]
    # The call and its result have the same id, also in requests.
    [call] = conv.tool_calls()
    assert call.status == "succeeded"
    assert 0 < len(call.call_id.encode()) <= 512
    assert 0 < len(call.tool.encode()) <= 512
    assert [each.type for each in messages(conv)] == [each.type for each in state["messages"]]
    body = conv.request("openai-chat", model="gpt-4o")
    assert len(body["messages"]) == 9
    json.dumps(body["messages"], allow_nan=False).encode()
    assert db.search("giraffe")
    # The graph gets its own message back unchanged.
    kept = TreeringSaver(db).get_tuple(CONFIG)
    assert kept is not None
    for one in (kept.checkpoint["channel_values"]["messages"][3], state["messages"][3]):
        assert isinstance(one, AIMessage)
        assert repr(one.tool_calls) == repr(given.tool_calls)


# Texts with a lone surrogate were not in the log, and there was no warning.
def test_a_text_with_half_a_character(
    db: treering.Treering, caplog: pytest.LogCaptureFixture
) -> None:
    saver = TreeringSaver(db)
    graph = says(saver, [AIMessage("hm\ud800m"), AIMessage("and on")])
    for number in range(2):
        graph.invoke({"messages": [("user", f"Question {number}")]}, CONFIG)
    conv = saver.conversation("thread")
    assert texts(conv) == ["Question 0", "hm\ufffdm", "Question 1", "and on"]
    assert len(warned(caplog)) == 1
    assert "hm" not in warned(caplog)[0]
    state = says(TreeringSaver(db), []).get_state(CONFIG)
    assert state.values["messages"][1].text == "hm\ud800m"


# Calls without ids must be distinguished. Results belong to the calls in order, even if another
# program puts them in a later step.
def test_results_of_calls_without_ids(db: treering.Treering) -> None:
    calls: list[Any] = [{"name": name, "args": {}, "id": ""} for name in ("one", "two")]
    asked: list[BaseMessage] = [
        HumanMessage("Go", id="h"),
        AIMessage("", id="a", tool_calls=calls),
    ]
    first = ToolMessage("of one", tool_call_id="", id="t1")
    second = ToolMessage("of two", tool_call_id="", id="t2")
    parent: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    for step, said in enumerate(([], [first], [first, second])):
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["channel_values"] = {"messages": [*asked, *said]}
        checkpoint["channel_versions"] = {"messages": f"{step + 1:032}.0"}
        versions = cast(Any, checkpoint["channel_versions"])
        saver = TreeringSaver(db)
        metadata: Any = {"source": "loop", "step": step}
        parent = saver.put(parent, checkpoint, metadata, versions)
    conv = saver.conversation("thread")
    assert {call.tool: call.status for call in conv.tool_calls()} == {
        "one": "succeeded",
        "two": "succeeded",
    }
    results = {event.call_id: event.text for event in conv.events(kinds=["tool_result_recorded"])}
    for call in conv.tool_calls():
        assert results[call.call_id] == f"of {call.tool}"


# The store refuses a message by a rule that this client does not know. The message must be stored
# as text or left out, and the messages with it and after it must be stored.
def test_what_the_store_refuses_alone_is_left_out(
    db: treering.Treering, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(odd, "within", lambda events, seed, standing: (list(events), []))
    saver = TreeringSaver(db)
    graph = says(saver, [calling(name=""), AIMessage("giraffe")])
    mute = AIMessage("", tool_calls=[{"name": "", "args": {}, "id": "m"}])
    graph.invoke({"messages": [("user", "Question 0")]}, CONFIG)
    state = graph.invoke({"messages": [mute, ("user", "Question 1")]}, CONFIG)
    assert len(state["messages"]) == 6
    conv = saver.conversation("thread")
    assert texts(conv) == ["Question 0", "hmm", "the tool's", "Question 1", "giraffe"]
    assert len(conv.branches()) == 1
    assert len(warned(caplog)) == 2


# An older version stopped mirroring a thread at an odd message. The next step must add the rest.
def test_a_thread_whose_mirror_had_ended_goes_on(
    db: treering.Treering, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = TreeringSaver(db)
    answers = [AIMessage("zebra"), calling(""), AIMessage("giraffe"), AIMessage("lion")]
    graph = says(saver, answers)
    graph.invoke({"messages": [("user", "Question 0")]}, CONFIG)
    with monkeypatch.context() as patched:
        patched.setattr("treering.langgraph._thread.GraphThread._turn", lambda *_: None)
        graph.invoke({"messages": [("user", "Question 1")]}, CONFIG)
    assert texts(saver.conversation("thread")) == ["Question 0", "zebra"]
    says(TreeringSaver(db), answers).invoke({"messages": [("user", "Question 2")]}, CONFIG)
    said = texts(saver.conversation("thread"))
    assert said == ["Question 0", "zebra", "Question 1", "hmm", "Question 2", "giraffe"]


# The savers for SQLite and memory accept an empty thread id; this one refused it.
def test_a_thread_without_an_id(db: treering.Treering) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": ""}}
    saver = TreeringSaver(db)
    graph = says(saver, [AIMessage("zebra"), AIMessage("giraffe")])
    for number in range(2):
        graph.invoke({"messages": [("user", f"Question {number}")]}, config)
    again = TreeringSaver(db)
    kept = says(again, []).get_state(config).values["messages"]
    assert [each.text for each in kept] == ["Question 0", "zebra", "Question 1", "giraffe"]
    assert texts(again.conversation("")) == [each.text for each in kept]
    listed = list(again.list(None))
    assert listed and {each.config["configurable"]["thread_id"] for each in listed} == {""}
    again.delete_thread("")
    assert again.get_tuple(config) is None


# In LangGraph's SQLite saver, a name with a dot is a path into the metadata; here it found nothing.
# NaN and infinity in metadata and values must come back unchanged.
def test_filters_with_paths(db: treering.Treering) -> None:
    with SqliteSaver.from_conn_string(":memory:") as theirs:
        for saver in (theirs, TreeringSaver(db)):
            config: Any = {"configurable": {"thread_id": "paths", "checkpoint_ns": ""}}
            checkpoint = {**empty_checkpoint(), "channel_values": {"x": math.inf, "y": [math.nan]}}
            metadata: Any = {"step": 1, "user": {"name": "ada", "at": {"n": 7}}}
            if saver is not theirs:
                metadata["score"] = math.inf
            saver.put(config, cast(Any, checkpoint), metadata, {"x": 1, "y": 1})
            for filter, count in (
                ({"user.name": "ada"}, 1),
                ({"user.at.n": 7, "step": 1}, 1),
                ({"user.name": "bob"}, 0),
                ({"user.name.first": "ada"}, 0),
                ({"nobody.name": "ada"}, 0),
            ):
                assert len(list(saver.list(config, filter=filter))) == count, filter
    found = TreeringSaver(db).get_tuple(config)
    assert found is not None and cast(Any, found.metadata)["score"] == math.inf
    assert repr(found.checkpoint["channel_values"]) == "{'x': inf, 'y': [nan]}"
    # A key that contains a dot.
    again: Any = {**empty_checkpoint(), "channel_values": {"x": 2}}
    TreeringSaver(db).put(found.config, again, cast(Any, {"a.b": 1}))
    [one] = TreeringSaver(db).list(config, filter={"a.b": 1})
    # Without `new_versions`, all values are new.
    assert one.checkpoint["channel_values"] == {"x": 2}
