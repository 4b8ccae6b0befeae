"""LangGraph's checkpointer: its own suite, a comparison with its SQLite saver, and agents."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast
from uuid import UUID

import pytest

import treering

pytest.importorskip("langgraph")

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Interrupt, interrupt
from pydantic import BaseModel

from treering import new
from treering._adapters import frames
from treering.langgraph import TreeringSaver, messages
from treering.langgraph._index import CHECKPOINT, LATEST, MESSAGES, WRITES, packed
from treering.langgraph._places import checkpoint_key, latest_key
from treering.openai_agents import TreeringSession

from ..conftest import Server, run, texts
from .model import Model, serving

Saver = BaseCheckpointSaver[str]
CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread"}}


# LangGraph defines with this suite what a checkpointer must do. The optional parts must pass too.
def test_the_suite_of_langgraph(store: Path) -> None:
    @checkpointer_test(name="TreeringSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        with treering.local(store, namespace=f"suite-{os.urandom(6).hex()}") as db:
            yield TreeringSaver(db)

    report = run(validate(saver))
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failed
    assert all(result.passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) > 70


# ---- graphs ----


def weather(city: str) -> str:
    return f"It rains in {city}."


def agent(saver: Saver, model: Model, tools: dict[str, Callable[..., str]] | None = None) -> Any:
    """An agent of two nodes: one asks the model over HTTP, one runs its tools."""
    known = tools or {"weather": weather}

    def ask(state: MessagesState) -> dict[str, Any]:
        body = {
            "model": "gpt-4o",
            "messages": [in_openai_shape(each) for each in state["messages"]],
        }
        request = urllib.request.Request(
            f"{model.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answered = json.load(answer)["choices"][0]["message"]
        calls = [
            {
                "id": call["id"],
                "name": call["function"]["name"],
                "args": json.loads(call["function"]["arguments"]),
            }
            for call in answered.get("tool_calls") or ()
        ]
        return {"messages": [AIMessage(answered["content"], tool_calls=calls)]}

    def act(state: MessagesState) -> dict[str, Any]:
        last = cast(AIMessage, state["messages"][-1])
        return {
            "messages": [
                ToolMessage(known[call["name"]](**call["args"]), tool_call_id=call["id"])
                for call in last.tool_calls
            ]
        }

    def next_of(state: MessagesState) -> str:
        last = state["messages"][-1:]
        return "act" if any(getattr(each, "tool_calls", None) for each in last) else "__end__"

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("act", act)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", next_of, ["act", "__end__"])
    builder.add_edge("act", "ask")
    return builder.compile(checkpointer=saver)


def in_openai_shape(message: BaseMessage) -> dict[str, Any]:
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    return {"role": role, "content": message.text}


def told(value: Any) -> Any:
    """A value without what differs from run to run: ids, times, versions."""
    if isinstance(value, BaseMessage):
        calls = getattr(value, "tool_calls", None)
        return [value.type, value.content, [(call["name"], call["args"]) for call in calls or ()]]
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [told(each) for each in value]
    return value


async def history(graph: Any, config: RunnableConfig = CONFIG) -> list[Any]:
    """The whole state history of a thread, newest first."""
    steps = []
    async for state in graph.aget_state_history(config):
        metadata = {key: state.metadata.get(key) for key in ("source", "step")}
        tasks = [
            (task.name, task.error is not None, [each.value for each in task.interrupts])
            for task in state.tasks
        ]
        steps.append(
            [told(state.values), list(state.next), metadata, tasks, state.parent_config is None]
        )
    return steps


# ---- comparison with SQLite ----


async def turns(saver: Saver, model: Model) -> Any:
    graph = agent(saver, model)
    for prompt in ("Hello", 'call weather {"city": "Bergen"}', "And now?"):
        await graph.ainvoke({"messages": [("user", prompt)]}, CONFIG)
    return await history(graph)


async def another_past(saver: Saver, model: Model) -> Any:
    graph = agent(saver, model)
    for prompt in ("One", "Two"):
        await graph.ainvoke({"messages": [("user", prompt)]}, CONFIG)
    past = [state async for state in graph.aget_state_history(CONFIG)][3]
    fork = await graph.aupdate_state(
        past.config, {"messages": [("user", "Instead")]}, as_node="ask"
    )
    told = [await history(graph)]
    await graph.ainvoke({"messages": [("user", "In the fork")]}, fork)
    await graph.ainvoke({"messages": [("user", "On from the newest")]}, CONFIG)
    return [*told, await history(graph)]


async def asked_and_answered(saver: Saver, model: Model) -> Any:
    class State(TypedDict):
        said: Annotated[list[str], operator.add]

    def ask(state: State) -> dict[str, Any]:
        return {"said": [f"you said {interrupt('what?')}"]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("then", lambda state: {"said": ["then"]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "then")
    graph = builder.compile(checkpointer=saver, interrupt_before=["then"])
    await graph.ainvoke({"said": ["begin"]}, CONFIG)
    told = [await history(graph)]
    await graph.ainvoke(Command(resume="this"), CONFIG)
    told.append(await history(graph))
    await graph.ainvoke(None, CONFIG)
    return [*told, await history(graph)]


async def a_node_that_fails_once(saver: Saver, model: Model) -> Any:
    class State(TypedDict):
        said: Annotated[list[str], operator.add]

    ran: list[str] = []

    def fails(state: State) -> dict[str, Any]:
        ran.append("fails")
        if len(ran) < 3:
            raise RuntimeError("not yet")
        return {"said": ["at last"]}

    async def works(state: State) -> dict[str, Any]:
        ran.append("works")
        return {"said": ["works"]}

    builder = StateGraph(State)
    builder.add_node("works", works)
    builder.add_node("fails", fails)
    builder.add_edge(START, "works")
    builder.add_edge(START, "fails")
    graph = builder.compile(checkpointer=saver)
    try:
        await graph.ainvoke({"said": ["begin"]}, CONFIG)
    except RuntimeError:
        ran.append("failed")
    told = [await history(graph)]
    ran.extend(["x"] * 3)
    await graph.ainvoke(None, CONFIG)
    return [*told, await history(graph), ran.count("works")]


async def messages_that_go_and_change(saver: Saver, model: Model) -> Any:
    graph = agent(saver, model)
    for number in range(3):
        message = HumanMessage(f"Number {number}", id=f"h{number}")
        await graph.ainvoke({"messages": [message]}, CONFIG)
    changes: list[BaseMessage] = [HumanMessage("Changed", id="h1"), RemoveMessage(id="h2")]
    await graph.aupdate_state(CONFIG, {"messages": changes})
    await graph.ainvoke({"messages": [("user", "After it")]}, CONFIG)
    state = await graph.aget_state(CONFIG)
    drop = [RemoveMessage(id=each.id) for each in state.values["messages"][:3]]
    await graph.aupdate_state(CONFIG, {"messages": drop})
    await graph.ainvoke({"messages": [("user", "The end")]}, CONFIG)
    return await history(graph)


async def graphs_in_graphs(saver: Saver, model: Model) -> Any:
    inner = agent(cast(Saver, None), model)
    inner.checkpointer = True
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph: Any = builder.compile(checkpointer=saver)
    await graph.ainvoke({"messages": [("user", 'call weather {"city": "Oslo"}')]}, CONFIG)
    await graph.ainvoke({"messages": [("user", "Again")]}, CONFIG)
    told = await history(graph)
    spaces = set()
    async for each in saver.alist(CONFIG):
        spaces.add(each.config["configurable"]["checkpoint_ns"].partition(":")[0])
    return [told, sorted(spaces)]


async def odd_values(saver: Saver, model: Model) -> Any:
    values: dict[str, Any] = {
        "none": None,
        "empty": [],
        "numbers": list(range(1000)),
        "mixed": [1, "two", None, {"three": [4]}],
        "bytes": b"\x00\xff",
        "list of bytes": [b"a" * 100, b"b" * 100],
        "time": datetime(2026, 3, 1, tzinfo=timezone.utc),
        "set": {1, 2},
        "tuple": (1, (2,)),
        "nested": {"messages": [HumanMessage("in a dict", id="x")]},
        "messages": [
            SystemMessage("brief", id="s"),
            HumanMessage(
                [{"type": "text", "text": "a text of some length, to be kept once"}], id="h"
            ),
            AIMessage("", id="a", tool_calls=[{"id": "c", "name": "t", "args": {"x": 1.0}}]),
            ToolMessage("result", tool_call_id="c", id="t"),
            ToolMessage("an orphan", tool_call_id="nobody", artifact={"raw": [1]}, id="o"),
            AIMessage(
                "odd", id="b", additional_kwargs={"at": UUID(int=7), "deep": {"$treering": 1}}
            ),
        ],
        "texts": ["the same text", "the same text"],
        "big": "x" * 200_000,
    }
    versions = dict.fromkeys(values, f"{1:032}.0")
    kept: list[Any] = []
    parent: RunnableConfig = {"configurable": {"thread_id": "odd", "checkpoint_ns": ""}}
    for step in range(4):
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["channel_values"] = dict(values)
        checkpoint["channel_versions"] = dict(versions)
        new = versions if step == 0 else {"messages": versions["messages"]}
        metadata: Any = {"source": "loop", "step": step, "odd": [None, {"a": "\u0000"}]}
        parent = await saver.aput(parent, checkpoint, metadata, cast(Any, new))
        await saver.aput_writes(parent, [("a", values), ("__error__", "e")], f"task {step}", "path")
        await saver.aput_writes(parent, [("a", "ignored")], f"task {step}", "path")
        await saver.aput_writes(parent, [("__error__", "replaced")], f"task {step}", "path")
        # Longer, changed in the middle, cut at the front, emptied.
        changed: list[Any] = [
            [*values["messages"], HumanMessage("more", id="m")],
            [HumanMessage("first", id="f"), *values["messages"][1:]],
            values["messages"][2:],
            [],
        ]
        values["messages"] = changed[step]
        versions["messages"] = f"{step + 2:032}.0"
    # The cursor of the SQLite saver must be closed before the next call.
    for each in [each async for each in saver.alist({"configurable": {"thread_id": "odd"}})]:
        one = await saver.aget_tuple(each.config)
        assert one is not None and one.checkpoint == each.checkpoint
        values_of = each.checkpoint["channel_values"]
        kept.append([sorted(values_of), [values_of[name] for name in sorted(values_of)]])
        kept.append([dict(each.metadata), each.pending_writes, each.checkpoint["channel_versions"]])
    latest = await saver.aget_tuple({"configurable": {"thread_id": "odd"}})
    assert latest is not None
    kept.append(latest.checkpoint["channel_values"])
    return kept


async def lists(saver: Saver, model: Model) -> Any:
    graph = agent(saver, model)
    configs: list[RunnableConfig] = [{"configurable": {"thread_id": name}} for name in "ab"]
    for config in configs:
        for number in range(2):
            await graph.ainvoke({"messages": [("user", f"Number {number}")]}, config)
    told: list[Any] = []
    tuples = [each async for each in saver.alist(None)]
    told.append([each.config["configurable"]["thread_id"] for each in tuples])
    filters: list[dict[str, Any] | None] = [
        None,
        {"source": "loop"},
        {"source": "input", "step": -1},
        {"step": 2},
        {"none": None},
        {"source": "nowhere"},
    ]
    for filter in filters:
        for limit in (None, 1, 3):
            for before in (None, tuples[3].config):
                found = saver.alist(configs[0], filter=filter, before=before, limit=limit)
                told.append([each.metadata.get("step") async for each in found])
    await saver.adelete_thread("a")
    told.append([each.metadata.get("step") async for each in saver.alist(configs[0])])
    told.append(await saver.aget_tuple(configs[0]))
    await graph.ainvoke({"messages": [("user", "Anew")]}, configs[0])
    return [*told, await history(graph, configs[0]), await history(graph, configs[1])]


STORIES: list[Callable[[Saver, Model], Awaitable[Any]]] = [
    turns,
    another_past,
    asked_and_answered,
    a_node_that_fails_once,
    messages_that_go_and_change,
    graphs_in_graphs,
    odd_values,
    lists,
]


# Our saver must behave like LangGraph's SQLite saver, with a thread that is cached in memory, and
# with one that every call looks up.
@pytest.mark.parametrize("threads_max", [128, 0], ids=["known", "looked up"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_as_with_sqlite(
    story: Callable[[Saver, Model], Awaitable[Any]],
    threads_max: int,
    db: treering.Treering,
    tmp_path: Path,
) -> None:
    async def both() -> tuple[Any, Any]:
        with serving() as model:
            ours = await story(TreeringSaver(db, threads_max=threads_max), model)
        with serving() as model:
            async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "its.db")) as saver:
                return ours, await story(saver, model)

    ours, its = run(both())
    assert ours == its
    assert db.verify(deep=True).sound


# ---- conversations ----


def said(conv: treering.Conversation) -> list[str]:
    kinds = ("message_appended", "tool_call_requested", "tool_result_recorded")
    return [event.text or event.tool for event in conv.events() if event.kind in kinds]


def ask(graph: Any, prompt: str, config: RunnableConfig = CONFIG) -> RunnableConfig:
    graph.invoke({"messages": [("user", prompt)]}, config)
    return cast(RunnableConfig, graph.get_state(CONFIG).config)


# A state that is stored only as bytes cannot be searched, forked or sent to another model.
def test_messages_are_messages_calls_and_results(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    with serving() as model:
        graph = agent(saver, model)
        ask(graph, 'call weather {"city": "Bergen"}')
        conv = saver.conversation("thread")
        story = [
            'call weather {"city": "Bergen"}',
            "I use weather.",
            "weather",
            "It rains in Bergen.",
            "The tool says: It rains in Bergen.",
        ]
        assert said(conv) == story
        [hit] = db.search("rains", kinds=["tool_result_recorded"])
        assert hit.tool == "weather"
        body = conv.request("anthropic", model="claude-sonnet-4-5")
        assert [each["role"] for each in body["messages"]] == ["user", "assistant"] * 2
        assert conv.tool_calls()[0].status == "succeeded"

        # Another framework continues the conversation, and `messages` returns its messages.
        run(TreeringSession("thread", db).add_items([{"role": "user", "content": "From there"}]))
        last = messages(conv)[-1]
        assert last == HumanMessage("From there", id=last.id)
        ask(graph, "From here")
        assert said(conv)[-3:] == ["From there", "From here", "Answer 2 to: From here"]


# The conversation must have the messages of the state. Continuing from an older checkpoint makes a
# branch without the messages after that checkpoint.
def test_an_older_checkpoint_is_a_branch(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    with serving() as model:
        graph = agent(saver, model)
        first = ask(graph, "One")
        ask(graph, "Two")
        conv = saver.conversation("thread")
        left = ["One", "Answer 1 to: One", "Two", "Answer 2 to: Two"]
        assert said(conv) == left
        ask(graph, "Other", first)
        right = ["One", "Answer 1 to: One", "Other", "Answer 2 to: Other"]
        assert said(conv) == right
        assert said(conv.on("main")) == left
        # Continue on the first branch again, which is found by its messages.
        newest = next(
            state.config
            for state in graph.get_state_history(CONFIG)
            if [each.text for each in state.values.get("messages", ())] == left
        )
        ask(graph, "Three", newest)
        assert said(conv) == said(conv.on("main")) == [*left, "Three", "Answer 3 to: Three"]
        assert len(conv.branches()) == 2
        # A message that is removed from the middle is also removed from the conversation.
        state = graph.get_state(CONFIG)
        gone = state.values["messages"][2]
        graph.update_state(CONFIG, {"messages": [RemoveMessage(id=gone.id)]})
        assert said(conv) == [*left[:2], left[3], "Three", "Answer 3 to: Three"]
        # Messages that are removed at the start are not: requests have their own budget.
        first_two = graph.get_state(CONFIG).values["messages"][:2]
        graph.update_state(CONFIG, {"messages": [RemoveMessage(id=each.id) for each in first_two]})
        assert said(conv) == [*left[:2], left[3], "Three", "Answer 3 to: Three"]
        assert len(conv.branches()) == 3


# If a state drops all its messages, so does the conversation, except for messages and prompts of
# other programs.
def test_a_state_that_is_emptied(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    conv = db.open("thread", system="You are brief.")
    conv.user("From before")
    with serving() as model:
        graph = agent(saver, model)
        ask(graph, "One")
        graph.update_state(CONFIG, {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
        assert graph.get_state(CONFIG).values["messages"] == []
        assert said(conv) == ["From before"]
        ask(graph, "Two")
        assert said(conv) == ["From before", "Two", "Answer 1 to: Two"]
        body = conv.request("anthropic", model="claude-sonnet-4-5")
        assert "You are brief." in json.dumps(body["system"])


# With SQLite, a thread takes space quadratic in its length; here it must be linear.
def test_a_growing_list_is_stored_by_what_is_added(db: treering.Treering) -> None:
    saver = TreeringSaver(db)
    config: RunnableConfig = {"configurable": {"thread_id": "grows", "checkpoint_ns": ""}}
    sizes = []
    said: list[BaseMessage] = []
    docs: list[dict[str, str]] = []
    for step in range(60):
        said = [*said, HumanMessage(f"Message {step} " + "and so on " * 50, id=str(step))]
        docs = [*docs, {"text": f"Document {step} " + "and so on " * 50}]
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["channel_values"] = {"messages": said, "docs": docs, "same": "x" * 5_000}
        versions = {"messages": f"{step + 1:032}.0", "docs": f"{step + 1:032}.0"}
        checkpoint["channel_versions"] = {**versions, "same": f"{1:032}.0"}
        new = checkpoint["channel_versions"] if step == 0 else versions
        config = saver.put(config, checkpoint, {"source": "loop", "step": step}, cast(Any, new))
        events = saver.conversation("grows").events()
        sizes.append(sum(event.proto.ByteSize() for event in events))
    assert sizes[59] - sizes[39] < 1.1 * (sizes[39] - sizes[19])
    assert sizes[59] < 200_000
    for other in (saver, TreeringSaver(db)):
        latest = other.get_tuple({"configurable": {"thread_id": "grows"}})
        assert latest is not None
        assert latest.checkpoint["channel_values"] == checkpoint["channel_values"]


# A JavaScript graph writes values as JSON without their places, different keys for messages, and
# messages that Python would refuse. Its thread must be read, and continue on the same branch.
def test_a_thread_that_javascript_wrote(db: treering.Treering) -> None:
    said = {"class": "AIMessage", "content": "Hello", "id": "a", "usage_metadata": {}}
    key, listed = bytes(range(12)), bytes(12)
    version = f"{1:032}.0.5"
    checkpoint = {
        **empty_checkpoint(),
        "channel_versions": {"messages": version},
        "versions_seen": {},
    }
    row = {
        "ns": "",
        "id": checkpoint["id"],
        "parent": None,
        "type": "json",
        "checkpoint": json.dumps(checkpoint).encode(),
        "metadata": '{"source":"loop","step":0,"parents":{}}',
        "values": {"messages": listed},
        "new": [],
        "lists": [[listed, None, 0, 0, [key]]],
    }
    latest = {"ns": "", "id": checkpoint["id"], "top": None, "seen": 1, "before": 0}
    asked = json.dumps([{"value": "what?", "id": "i"}]).encode()
    writes = [[-3, "__interrupt__", "json", asked]]
    saver = TreeringSaver(db)
    conv = saver.conversation("thread")
    here = checkpoint_key("", str(checkpoint["id"]))
    conv.append(
        [
            new.custom(LATEST, packed(latest), key=latest_key("")),
            new.custom(CHECKPOINT, packed(row), key=here),
            *frames.frame(MESSAGES, [(said, [new.assistant("Hello")])], {"keys": [key.hex()]}),
            new.custom(
                WRITES,
                packed(
                    {"ns": "", "id": checkpoint["id"], "task": "t", "path": "", "writes": writes}
                ),
                key=here,
            ),
        ]
    )
    config: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    config["configurable"]["checkpoint_id"] = checkpoint["id"]
    for each in (saver, TreeringSaver(db)):
        found = each.get_tuple(config)
        assert found is not None
        assert found.pending_writes == [("t", "__interrupt__", [Interrupt("what?", id="i")])]
        kept = found.checkpoint["channel_values"]["messages"]
        assert [message.text for message in kept] == ["Hello"]
        after = empty_checkpoint()
        after["channel_values"] = {"messages": [*kept, HumanMessage("And on", id="b")]}
        after["channel_versions"] = {"messages": f"{2:032}.0"}
        each.put(found.config, after, {"source": "loop", "step": 1}, after["channel_versions"])
        assert texts(conv) == ["Hello", "And on"]
        assert len(conv.branches()) == 1


# If the state is encrypted, its messages must not be stored in plain text beside it.
def test_an_encrypted_thread_is_not_mirrored(db: treering.Treering) -> None:
    class Rot13:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "shift", bytes((each + 13) % 256 for each in plaintext)

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            return bytes((each - 13) % 256 for each in ciphertext)

    saver = TreeringSaver(db, serde=EncryptedSerializer(Rot13()))
    with serving() as model:
        graph = agent(saver, model)
        ask(graph, "A secret word: xylophone")
        ask(graph, "Another")
        assert len(graph.get_state(CONFIG).values["messages"]) == 4
    conv = saver.conversation("thread")
    assert said(conv) == []
    assert not any(b"xylophone" in event.proto.SerializeToString() for event in conv.events())


def reduced(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(each for write in writes for each in write)]


class Logged(TypedDict):
    log: Annotated[list[str], DeltaChannel(reduced, snapshot_frequency=7)]


# A delta channel is stored as its writes, and at intervals in full.
def test_a_delta_channel(db: treering.Treering, tmp_path: Path) -> None:
    async def work(saver: Saver) -> list[Any]:
        builder = StateGraph(Logged)
        builder.add_node("one", lambda state: {"log": [f"{len(state['log'])} of one"]})
        builder.add_node("two", lambda state: {"log": [f"{len(state['log'])} of two"]})
        builder.add_edge(START, "one")
        builder.add_edge("one", "two")
        graph: Any = builder.compile(checkpointer=saver)
        for number in range(10):
            await graph.ainvoke({"log": [f"turn {number}"]}, CONFIG)
        told = [await history(graph)]
        if isinstance(saver, TreeringSaver):
            await saver.aprune(["thread"])
            assert (await graph.aget_state(CONFIG)).values["log"] == told[0][0][0]["log"]
            await graph.ainvoke({"log": ["after"]}, CONFIG)
            assert len((await graph.aget_state(CONFIG)).values["log"]) == 33
        return told

    async def both() -> tuple[Any, Any]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "its.db")) as saver:
            return await work(TreeringSaver(db)), await work(saver)

    ours, its = run(both())
    assert ours == its


# ---- kills and cancellations ----


# The server is killed several times during a run: the run continues, and a new saver reads the
# complete thread.
@pytest.mark.slow
def test_a_run_with_a_server_that_is_killed(server: Server) -> None:
    def dangerous(text: str) -> str:
        server.kill()
        server.start()
        return f"killed for {text}"

    with serving() as model, treering.connect(server.address) as db:
        graph = agent(TreeringSaver(db), model, {"dangerous": dangerous})
        for number in range(4):
            ask(graph, f'call dangerous {{"text": "number {number}"}}')
        other = agent(TreeringSaver(db), model)
        kept = other.get_state(CONFIG).values["messages"]
        assert [each.type for each in kept] == ["human", "ai", "tool", "ai"] * 4
        assert kept == graph.get_state(CONFIG).values["messages"]
        assert len(list(other.get_state_history(CONFIG))) == 4 * 5
        assert len(said(TreeringSaver(db).conversation("thread"))) == 5 * 4
        assert db.verify(deep=True).sound


# A program is killed while a node runs: another program continues there, without running finished
# nodes again.
@pytest.mark.slow
def test_a_program_that_is_killed(server: Server) -> None:
    program = f"""
import os, signal, sys, treering
from treering.langgraph import TreeringSaver
from tests.adapters.test_langgraph import CONFIG, agent
from tests.adapters.model import Model
def dies(text):
    if sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return "lived through " + text
with treering.connect("{server.address}") as db:
    graph = agent(TreeringSaver(db), Model(sys.argv[1]), {{"dies": dies}})
    prompt = {{"messages": [("user", 'call dies {{"text": "it"}}')]}}
    graph.invoke(prompt if sys.argv[2] == "dies" else None, CONFIG, durability="sync")
"""
    with serving() as model, treering.connect(server.address) as db:
        for how, code in (("dies", -9), ("goes on", 0)):
            command = [sys.executable, "-c", program, model.url, how]
            assert subprocess.run(command, timeout=60).returncode == code
        kept = agent(TreeringSaver(db), model).get_state(CONFIG).values["messages"]
        assert [each.text for each in kept][2:] == [
            "lived through it",
            "The tool says: lived through it",
        ]
        assert len(model.requests) == 2
        assert said(TreeringSaver(db).conversation("thread"))[3] == "lived through it"


# Two programs use one thread, which LangGraph does not order. All checkpoints must be stored, and
# the conversation must have the messages of one of them.
def test_two_programs_on_one_thread(server: Server) -> None:
    program = f"""
import sys, treering
from treering.langgraph import TreeringSaver
from tests.adapters.test_langgraph import CONFIG, agent, ask
from tests.adapters.model import Model
with treering.connect("{server.address}") as db:
    graph = agent(TreeringSaver(db), Model(sys.argv[1]))
    for number in range(12):
        ask(graph, f"{{sys.argv[2]}} {{number}}")
"""
    with serving() as model, treering.connect(server.address) as db:
        programs = [
            subprocess.Popen([sys.executable, "-c", program, model.url, name]) for name in "ab"
        ]
        assert [each.wait(100) for each in programs] == [0, 0]
        saver = TreeringSaver(db)
        tuples = list(saver.list(CONFIG))
        inputs = [each for each in tuples if each.metadata.get("source") == "input"]
        assert len(inputs) == 24
        for each in tuples:
            again = saver.get_tuple(each.config)
            assert again is not None and again.checkpoint == each.checkpoint
        states = [
            [message.text for message in each.checkpoint["channel_values"].get("messages", ())]
            for each in tuples
        ]
        assert said(saver.conversation("thread")) in states
        assert db.verify(deep=True).sound


# A cancelled checkpoint must be stored in full or not at all, and not after the cancellation.
def test_writes_that_are_cancelled(db: treering.Treering) -> None:
    async def work() -> None:
        saver = TreeringSaver(db)
        parent: RunnableConfig = {"configurable": {"thread_id": "c", "checkpoint_ns": ""}}
        for step in range(30):
            checkpoint = empty_checkpoint()
            checkpoint["id"] = str(uuid6(clock_seq=step))
            kept = [HumanMessage(f"{step} {number}", id=f"{step} {number}") for number in range(5)]
            checkpoint["channel_values"] = {"messages": kept}
            checkpoint["channel_versions"] = {"messages": f"{step + 1:032}.0"}
            versions = cast(Any, checkpoint["channel_versions"])
            metadata: Any = {"source": "loop", "step": step}
            task = asyncio.create_task(saver.aput(parent, checkpoint, metadata, versions))
            await asyncio.sleep(0.0003 * step)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            first = [each.checkpoint async for each in TreeringSaver(db).alist(parent)]
            assert first == [each.checkpoint async for each in saver.alist(parent)]
            if any(each["id"] == checkpoint["id"] for each in first):
                assert texts(saver.conversation("c"))[-1] == f"{step} 4"

    run(work())


# If other writers win every attempt, deleting fails. It used to return as if done.
def test_deleting_a_thread_that_others_keep_writing_to(
    db: treering.Treering, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = TreeringSaver(db)
    config: RunnableConfig = {"configurable": {"thread_id": "d", "checkpoint_ns": ""}}
    saver.put(config, empty_checkpoint(), {"source": "input", "step": -1}, {})
    monkeypatch.setattr("treering._adapters.thread.ATTEMPTS_MAX", 0)
    with pytest.raises(treering.errors.RevisionMismatch, match="other writers kept writing"):
        saver.delete_thread("d")


class Plan(BaseModel):
    steps: list[str]


# A graph with a schema reads its states through a copy of the saver that may load the classes of
# the schema. The first of the two savers to read a thread decided for both: a state came back as a
# dict, or a saver loaded a class that it may not load.
@pytest.mark.parametrize("is_first", [False, True])
def test_a_saver_with_other_classes(db: treering.Treering, is_first: bool) -> None:
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    saver = TreeringSaver(db, serde=strict)
    allowed = cast(TreeringSaver, saver.with_allowlist([(Plan.__module__, "Plan")]))
    assert allowed is not saver
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"plan": Plan(steps=["look"])}
    checkpoint["channel_versions"] = {"plan": "1"}
    config: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    TreeringSaver(db).put(config, checkpoint, {}, {"plan": "1"})
    read: dict[bool, Any] = {}
    for each in (is_first, not is_first):
        found = (allowed if each else saver).get_tuple(config)
        assert found
        read[each] = found.checkpoint["channel_values"]["plan"]
    assert read[True] == Plan(steps=["look"])
    assert not isinstance(read[False], Plan)
