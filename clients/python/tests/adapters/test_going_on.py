"""Graphs that continue conversations of other frameworks: no message is missing or repeated."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

import treering

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from treering import new
from treering.langgraph import TreeringSaver, messages

from ..conftest import texts
from .model import Model
from .test_langgraph import agent, ask
from .test_odd_langgraph import says

CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread"}}


def others_say(conv: treering.Conversation, name: str) -> None:
    """A turn with a call, as any program may append it."""
    conv.append(
        [
            new.user(f"Question of {name}"),
            new.assistant("I look."),
            new.tool_call(name, "look", {"at": name}),
            new.tool_result(name, f"Found by {name}"),
            new.assistant(f"Answer to {name}"),
        ]
    )


OF_ONE = ["Question of one", "I look.", "Found by one", "Answer to one"]


def kinds(conv: treering.Conversation) -> list[str]:
    spoken: Any = ["message_appended", "tool_call_requested", "tool_result_recorded"]
    return [event.text for event in conv.events(kinds=spoken)]


# The graph's model was sent only the new prompt, and with `messages(conv)` the whole conversation
# was appended again.
def test_a_graph_goes_on_after_others(db: treering.Treering, model: Model) -> None:
    saver = TreeringSaver(db)
    conv = saver.conversation("thread")
    others_say(conv, "one")
    before = kinds(conv)
    graph = agent(saver, model)
    graph.invoke({"messages": [*messages(conv), ("user", "And on")]}, CONFIG)
    sent = [each["content"] for each in model.requests[-1]["messages"]]
    assert sent == [*OF_ONE, "And on"]
    assert kinds(conv) == [*before, "And on", "Answer 2 to: And on"]
    assert len(conv.branches()) == 1
    # Again, with new messages of another program, and a saver without cached state.
    others_say(conv, "two")
    graph = agent(TreeringSaver(db), model)
    graph.invoke({"messages": [*messages(conv), ("user", "Still on")]}, CONFIG)
    said = kinds(conv)
    assert said == [
        *before,
        "And on",
        "Answer 2 to: And on",
        *[text.replace("one", "two") for text in before],
        "Still on",
        "Answer 4 to: Still on",
    ]
    assert len(conv.branches()) == 1
    state = graph.get_state(CONFIG).values["messages"]
    assert state == messages(conv)
    graph.update_state(CONFIG, {"messages": messages(conv)})
    assert kinds(conv) == said
    assert len(conv.request("anthropic", model="claude-sonnet-4-5")["messages"]) == 12
    assert TreeringSaver(db).get_tuple(CONFIG) is not None


# Other programs continued a graph's conversation, and the graph missed their messages. `messages`
# returns the graph's own messages unchanged, with their ids, so the state adds only the others.
def test_a_graph_takes_over_what_it_missed(db: treering.Treering, model: Model) -> None:
    saver = TreeringSaver(db)
    graph = agent(saver, model)
    ask(graph, 'call weather {"city": "Bergen"}')
    own = graph.get_state(CONFIG).values["messages"]
    conv = saver.conversation("thread")
    assert messages(conv) == own
    others_say(conv, "one")
    ask(graph, "Missed?")
    graph.invoke({"messages": messages(conv)}, CONFIG)
    state = graph.get_state(CONFIG).values["messages"]
    assert sorted(message.text for message in state[:-1]) == sorted(
        message.text for message in messages(conv)[:-1]
    )
    assert kinds(conv).count("Found by one") == 1
    # In the order of the conversation.
    every = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages(conv), ("user", "In order")]
    graph.invoke({"messages": every}, CONFIG)
    state = graph.get_state(CONFIG).values["messages"]
    assert [message.text for message in state] == [message.text for message in messages(conv)]
    assert [message.text for message in state][4:8] == OF_ONE


# A message that was changed, or whose event is on another branch, must be appended.
def test_what_is_not_there_is_said(db: treering.Treering, model: Model) -> None:
    saver = TreeringSaver(db)
    graph = agent(saver, model)
    ask(graph, "One")
    past = graph.get_state(CONFIG).config
    conv = saver.conversation("thread")
    others_say(conv, "one")
    taken = messages(conv)
    ask(graph, "Two")
    changed = taken[2].model_copy(update={"content": "Another question"})
    graph.invoke({"messages": [changed, *taken[3:], ("user", "On")]}, past)
    assert len(conv.branches()) == 2
    said = ["Another question", *OF_ONE[1:], "On"]
    assert [message.text for message in messages(conv)][2:-1] == said
    assert texts(conv)[:3] == ["One", "Answer 1 to: One", "Another question"]
    assert "Found by one" in kinds(conv)
    # In another thread, all of them must be appended.
    other: RunnableConfig = {"configurable": {"thread_id": "other"}}
    graph.invoke({"messages": [*taken, ("user", "There")]}, other)
    assert texts(saver.conversation("other"))[-2] == "There"
    assert "Question of one" in texts(saver.conversation("other"))


# Messages that JSON cannot represent are stored as bytes, and must come back unchanged too.
def test_odd_messages_have_their_ids(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    args = {"on": date(2026, 3, 1)}
    call: Any = {"name": "f", "args": args, "id": ""}
    graph = says(saver, [AIMessage("hmm", tool_calls=[call]), AIMessage("giraffe")])
    for number in range(2):
        graph.invoke({"messages": [("user", f"Question {number}")]}, CONFIG)
    conv = saver.conversation("thread")
    found = messages(conv)
    assert found == graph.get_state(CONFIG).values["messages"]
    assert isinstance(found[2], ToolMessage) and found[2].id
    said = kinds(conv)
    graph.update_state(CONFIG, {"messages": found})
    assert kinds(conv) == said


# The ids of other programs' messages name their events, and are the same on each branch.
def test_ids_follow_from_events(db: treering.Treering) -> None:
    conv = db.create("Any")
    others_say(conv, "one")
    ids = [message.id for message in messages(conv)]
    assert ids == [f"{conv.id}#{revision}" for revision in (2, 3, 5, 6)]
    forked = conv.fork(at=5, name="other")
    assert [message.id for message in messages(forked)] == ids[:3]
    assert [message.id for message in messages(conv.on("main"))] == ids


# A program was killed while a tool ran, and a graph continued the conversation. Providers refuse
# calls without results, so every later turn failed.
def test_a_call_without_a_result_has_one_in_messages(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    conv = saver.conversation("thread")
    conv.user("Look")
    conv.assistant("I look.", tool_calls=[("done", "ls", {}), ("open", "cat", {})])
    conv.tool_result("done", "README.md")
    *_, told = messages(conv)
    assert isinstance(told, ToolMessage) and told.tool_call_id == "open"
    assert told.text == "no result yet: the call has not ended"
    before = len(list(conv.events(kinds=["tool_result_recorded"])))

    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("Done.")]})
    builder.add_edge(START, "answer")
    graph: Any = builder.compile(checkpointer=saver)
    for number in range(2):
        graph.invoke({"messages": [*messages(conv), ("user", f"And on {number}")]}, CONFIG)
        state = messages(conv)
        assert [each.type for each in state[:4]] == ["human", "ai", "tool", "tool"]
        assert [each.text for each in state if isinstance(each, ToolMessage)] == [
            "README.md",
            "no result: the call had not ended when the conversation went on",
        ]
    assert len(list(conv.events(kinds=["tool_result_recorded"]))) == before
    assert "no result" not in str(texts(conv))
    assert len(conv.open_calls()) == 1
