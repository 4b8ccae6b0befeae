"""Calls without a result: each adapter describes them as the server's requests do."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

import treering
from treering import new
from treering._adapters.unanswered import Unanswered
from treering._words import CancelReasonName

from ..conftest import run
from .model import Model

REASONS: list[CancelReasonName] = ["denied", "interrupted", "timed_out", "superseded"]


class State(TypedDict):
    """The state of a graph that appends messages, even with equal ids."""

    messages: Annotated[list[Any], operator.add]


def asked(conv: treering.Conversation, db: treering.Treering) -> None:
    """Appends an answer with one call in each stage without a result."""
    conv.user("Go.")
    names = ["plain", "runs", "by", "waits", "yes", "no", "no_more", "silent", "late"]
    names += [*REASONS, *(f"{reason}_why" for reason in REASONS)]
    waiting = ("waits", "yes", "no", "no_more", "silent", "late")
    conv.assistant(
        "I look.",
        tool_calls=[(name, "look", {"at": name}) for name in names],
        needs_approval=lambda _, given: given["at"] in waiting,
    )
    conv.append([new.tool_started("runs"), new.tool_started("by", executor="worker 7")])
    pending = {call.call_id: call for call in conv.pending()}
    db.approve(pending["yes"], by="ada")
    db.deny(pending["no"], by="ada", reason="not there")
    db.deny(pending["no_more"], by="ada", reason="never")
    db.deny(pending["silent"])
    hash = pending["late"].arguments_hash
    conv.append([new.decision("late", "expired", hash, reason="an hour")])
    conv.append([new.tool_cancelled("no_more", "denied", "said so")])
    conv.append([new.tool_cancelled(reason, reason) for reason in REASONS])
    conv.append([new.tool_cancelled(f"{reason}_why", reason, "a reason") for reason in REASONS])


def of_request(conv: treering.Conversation) -> dict[str, str]:
    """The text for each call in a request, by call id. `is_error` is a separate field."""
    blocks = [
        block
        for message in conv.request("anthropic", model="claude-sonnet-4-5")["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert all(block["is_error"] for block in blocks)
    return {block["tool_use_id"]: text_of(block["content"]) for block in blocks}


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(each["text"] for each in content)


def of_openai_request(conv: treering.Conversation) -> dict[str, str]:
    """The same in OpenAI's format, where the text says that the call failed."""
    items = conv.request("openai-responses", model="gpt-5")["input"]
    outputs = [each for each in items if each["type"] == "function_call_output"]
    return {each["call_id"]: text_of(each["output"]) for each in outputs}


# For a denied or cancelled call, one adapter returned `cancelled`, another the detail, and requests
# the server's text. All of them must return the same text.
def test_the_words_are_those_of_requests(db: treering.Treering) -> None:
    conv = db.create()
    asked(conv, db)
    for went_on in (False, True):
        if went_on:
            conv.assistant("Well.")
        expected = of_request(conv)
        assert len(expected) == 17 and len(set(expected.values())) >= 14
        calls = Unanswered()
        for event in conv.events():
            calls.take(event)
        told = {id: calls.told(id, went_on=went_on) for id in expected}
        assert told == expected


def test_langgraph_tells_what_requests_tell(db: treering.Treering) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import ToolMessage

    from treering.langgraph import messages

    conv = db.create()
    asked(conv, db)
    for went_on in (False, True):
        if went_on:
            conv.user("Hurry.")
            conv.assistant("Well.")
        read = messages(conv)
        told = {each.tool_call_id: each.text for each in read if isinstance(each, ToolMessage)}
        assert told == of_request(conv)
        assert [each.type for each in read[:3]] == ["human", "ai", "tool"]
    assert not list(conv.events(kinds=["tool_result_recorded"]))


# Some servers have only a thousand ids. The second answer with an id was left out, and a call with
# the id of an earlier call got the earlier result.
def test_ids_that_come_again_are_of_other_messages(db: treering.Treering) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, StateGraph

    from treering.langgraph import TreeringSaver, messages

    saver = TreeringSaver(db)
    builder = StateGraph(State)
    said = iter([AIMessage("One.", id="chatcmpl-7"), AIMessage("Two.", id="chatcmpl-7")])
    builder.add_node("say", lambda state: {"messages": [next(said)]})
    builder.add_edge(START, "say")
    graph: Any = builder.compile(checkpointer=saver)
    for _ in range(2):
        graph.invoke({"messages": []}, {"configurable": {"thread_id": "thread"}})
    assert [each.text for each in messages(saver.conversation("thread"))] == ["One.", "Two."]

    conv = db.create()
    conv.user("Go.")
    conv.assistant("One.", tool_calls=[("call_0", "look", {})], message_id="chatcmpl-7")
    conv.tool_result("call_0", "found")
    conv.assistant("Two.", tool_calls=[("call_0", "look", {})], message_id="chatcmpl-7")
    read = [each.text for each in messages(conv)]
    open = "no result yet: the call has not ended"
    assert read == ["Go.", "One.", "found", "Two.", open]
    roles = [each["role"] for each in conv.request("openai-chat", model="gpt-5")["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


# A program was killed while a tool ran. The SDK left the call out of its requests, so the model
# called the tool again.
def test_openai_agents_tells_what_requests_tell(db: treering.Treering, model: Model) -> None:
    pytest.importorskip("agents")
    from agents import Runner

    from treering.openai_agents import TreeringSession

    from .test_openai_agents import agent, asking

    conv = db.open("session")
    asked(conv, db)
    session = TreeringSession("session", db)

    def told() -> dict[str, Any]:
        items: list[Any] = run(session.get_items())
        outputs = [each for each in items if each.get("type") == "function_call_output"]
        assert len({each["call_id"] for each in outputs}) == len(outputs)
        return {each["call_id"]: each["output"] for each in outputs}

    assert told() == of_openai_request(conv)
    before = len(list(conv.events()))
    run(Runner.run(agent(), "And on?", session=session, run_config=asking(model)))
    sent = [each for each in model.requests[-1]["input"] if "call_id" in each]
    results = {each["call_id"]: each["output"] for each in sent if "output" in each}
    assert len(sent) == 34
    assert results["plain"] == "Error: no result yet: the call has not ended"
    # None of these results was stored, and `pop_item` removes only stored items.
    assert len(list(conv.events(kinds=["tool_result_recorded"]))) == 0
    assert len(list(conv.events())) > before
    assert told() == of_openai_request(conv)
    newest: list[Any] = run(session.get_items(3))
    assert newest[0]["type"] == "function_call_output" and newest[1]["role"] == "user"
    assert newest[0]["output"] == "Error: superseded by another call: a reason"
    assert run(session.pop_item()) == newest[-1]
    assert run(session.pop_item()) == newest[-2]


# A call that was denied and then cancelled must name who denied it, even if only the newest items
# are read.
def test_the_newest_items_say_who_denied(db: treering.Treering) -> None:
    pytest.importorskip("agents")
    from treering.openai_agents import TreeringSession

    conv = db.open("session")
    conv.user("Go.")
    conv.assistant(tool_calls=[("a", "look", {})], needs_approval=True)
    [waiting] = conv.pending()
    db.deny(waiting, by="ada", reason="not there")
    for _ in range(12):
        conv.annotate(0, label="seen")
    conv.append([new.tool_cancelled("a", "denied")])
    session = TreeringSession("session", db)
    newest: list[Any] = run(session.get_items(1))
    assert newest[0]["output"] == of_openai_request(conv)["a"]
    assert newest[0]["output"] == "Error: denied by ada: not there"


def test_pydantic_ai_tells_what_requests_tell(db: treering.Treering) -> None:
    pytest.importorskip("pydantic_ai")
    from treering.pydantic_ai import TreeringConversationStore

    conv = db.open("thread")
    asked(conv, db)
    store = TreeringConversationStore(db)
    loaded: Any = run(store.load("thread"))
    parts = [part for message in loaded.messages for part in message.parts]
    told = {part.tool_call_id: part.content for part in parts if part.part_kind == "tool-return"}
    expected = of_request(conv)
    ended = ["no_more", *REASONS, *(f"{reason}_why" for reason in REASONS)]
    # The adapter leaves a call that has not ended to the library, which runs or reports it.
    assert told == {id: expected[id] for id in ended}
