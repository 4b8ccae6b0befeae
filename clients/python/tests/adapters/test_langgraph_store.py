"""LangGraph's store: the same scenarios on its SQLite store and on ours, and further tests."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treering

pytest.importorskip("langgraph")

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.sqlite import SqliteStore

from treering.langgraph import TreeringStore

from ..conftest import Server, run

USERS = ("users", "ada")
VALUES: list[dict[str, Any]] = [
    {"text": "likes short answers", "score": 3, "on": True, "tags": ["a", "b"], "of": None},
    {"text": "ä \x00 \u2028", "score": 4.5, "on": False, "deep": {"er": {"n": 1}}},
    {"text": "", "score": -1, "big": "x" * 100_000},
    {},
]


def told(found: Any) -> Any:
    """Items without their times."""
    if isinstance(found, list):
        return sorted((told(each) for each in found), key=str)
    return None if found is None else (found.namespace, found.key, found.value)


def items(store: BaseStore) -> Any:
    store.put(USERS, "a", VALUES[0])
    store.put(USERS, "b", VALUES[1])
    store.put((*USERS, "more"), "a", VALUES[2])
    store.put(("users",), "a", VALUES[3])
    store.put(USERS, "b", VALUES[2])
    store.put(USERS, "gone", VALUES[0])
    store.delete(USERS, "gone")
    store.delete(USERS, "never")
    places = [(USERS, "a"), (USERS, "b"), ((*USERS, "more"), "a"), (("users",), "a")]
    found = [store.get(*place) for place in [*places, (USERS, "gone"), (("x",), "a")]]
    assert all(each is None or each.created_at <= each.updated_at for each in found)
    return [told(each) for each in found]


def searches(store: BaseStore) -> Any:
    for number in range(40):
        namespace = ("docs", f"of {number % 3}") if number % 4 else ("docs",)
        value = {"n": number, "kind": "odd" if number % 2 else "even", "on": number > 20}
        store.put(namespace, f"key {number}", value)
    filters: list[dict[str, Any] | None] = [
        None,
        {"kind": "odd"},
        {"kind": "odd", "n": 7},
        {"n": {"$gt": 30}},
        {"n": {"$gte": 30, "$lt": 33}},
        {"n": {"$lte": 2}},
        {"kind": {"$ne": "odd"}},
        {"kind": {"$eq": "even"}},
        {"on": True},
        {"nothing": 1},
    ]
    answers = [
        told(store.search(prefix, filter=filter, limit=100))
        for prefix in (("docs",), ("docs", "of 1"), ("doc",), ())
        for filter in filters
    ]
    pages = [store.search(("docs",), limit=7, offset=offset) for offset in range(0, 42, 7)]
    assert len({(each.namespace, each.key) for page in pages for each in page}) == 40
    return [answers, [len(page) for page in pages]]


def namespaces(store: BaseStore) -> Any:
    for path in ("a", "a.b", "a.b.c", "a.x.c", "b", "b.c", "b.c.d.e", "ab"):
        store.put(tuple(path.split(".")), "key", {"path": path})
    store.delete(("b",), "key")
    return [
        store.list_namespaces(),
        store.list_namespaces(prefix=("a",)),
        store.list_namespaces(suffix=("c",)),
        store.list_namespaces(prefix=("a", "*", "c")),
        store.list_namespaces(prefix=("a",), suffix=("c",)),
        store.list_namespaces(max_depth=2),
        store.list_namespaces(max_depth=1, limit=2),
        store.list_namespaces(limit=2, offset=3),
    ]


def batches(store: BaseStore) -> Any:
    """Reads of a batch return the state before it; of two writes to a key, the last one counts."""
    store.put(USERS, "a", {"n": 0})
    answers = store.batch(
        [
            PutOp(USERS, "a", {"n": 1}),
            GetOp(USERS, "a"),
            PutOp(USERS, "b", {"n": 2}),
            PutOp(USERS, "b", {"n": 3}),
            PutOp(USERS, "c", {"n": 4}),
            PutOp(USERS, "c", None),
            SearchOp(USERS),
            ListNamespacesOp((MatchCondition("prefix", ("users",)),)),
        ]
    )
    return [
        told(answers[1]),
        told(answers[6]),
        answers[7],
        [answers[number] for number in (0, 2, 3, 4, 5)],
        told(store.search(USERS)),
    ]


def wrong(store: BaseStore) -> Any:
    failed = []
    for namespace in ((), ("",), ("a.b",), ("langgraph", "x"), (1,)):
        try:
            store.put(namespace, "key", {"a": 1})  # type: ignore[arg-type]
        except InvalidNamespaceError:
            failed.append(namespace)
    try:
        store.put(USERS, "not alone", {"a": object()})
    except TypeError:
        failed.append(())
    return [failed, told(store.search(()))]


def at_random(store: BaseStore) -> Any:
    chance = random.Random(3)
    answers: list[Any] = []
    for _ in range(150):
        namespace = tuple(chance.choices("ab", k=chance.randrange(1, 4)))
        key = chance.choice("xyz")
        what = chance.random()
        if what < 0.5:
            store.put(namespace, key, {"n": chance.randrange(5)})
        elif what < 0.65:
            store.delete(namespace, key)
        elif what < 0.85:
            answers.append(told(store.get(namespace, key)))
        else:
            answers.append(told(store.search(namespace, filter={"n": 2}, limit=50)))
    return answers


STORIES: list[Callable[[BaseStore], Any]] = [
    items,
    searches,
    namespaces,
    batches,
    wrong,
    at_random,
]


# Our store must behave like LangGraph's SQLite store, also when another program reads it.
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_as_with_sqlite(
    story: Callable[[BaseStore], Any], db: treering.Treering, tmp_path: Path
) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "its.db")) as its:
        its.setup()
        ours = TreeringStore(db)
        assert story(ours) == story(its)
        for store in (ours, TreeringStore(db)):
            assert told(store.search((), limit=200)) == told(its.search((), limit=200))


# Uses the store with asyncio, in the nodes of a graph.
def test_a_graph_that_remembers(db: treering.Treering) -> None:
    store = TreeringStore(db)

    async def remember(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        known = await store.asearch(USERS)
        await store.aput(USERS, str(len(known)), {"said": state["messages"][-1].text})
        return {"messages": [("ai", f"I know {len(known)} things")]}

    builder = StateGraph(MessagesState)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    graph: Any = builder.compile(store=store)

    async def work() -> list[str]:
        said = []
        for number in range(3):
            state = await graph.ainvoke({"messages": [("user", f"Thing {number}")]})
            said.append(state["messages"][-1].text)
        await store.adelete(USERS, "0")
        return said

    assert run(work()) == [f"I know {number} things" for number in range(3)]
    assert [each.value["said"] for each in store.search(USERS)] == ["Thing 2", "Thing 1"]
    # Every change is an event.
    [item, _] = db.items.search((store.name, *USERS))
    kinds = [event.kind for event in db.conversation(item.proto.conversation_id).events()]
    assert kinds.count("custom") == 4


# An expired item is not returned, also not to another program. With `refresh_on_read`, reading an
# item extends its life.
def test_items_with_a_life(db: treering.Treering) -> None:
    store = TreeringStore(db, ttl={"refresh_on_read": True})
    # In minutes. A busy machine takes a second for these calls.
    store.put(USERS, "read", {"n": 2}, ttl=0.06)
    store.put(USERS, "short", {"n": 1}, ttl=0.07)
    store.put(USERS, "long", {"n": 3}, ttl=10)
    store.put(("over",), "x", {"n": 4}, ttl=0.06)
    assert len(store.search(())) == 4
    deadline = time.monotonic() + 30
    while store.get(USERS, "short", refresh_ttl=False) and time.monotonic() < deadline:
        assert store.get(USERS, "read") is not None
        time.sleep(0.05)
    for each in (store, TreeringStore(db)):
        assert sorted(item.key for item in each.search((), refresh_ttl=False)) == ["long", "read"]
        assert each.list_namespaces() == [USERS]
    # Expired items need no sweep.
    assert store.sweep_ttl() == 0
    # Programs that start and stop the sweeper of another store must run with this one.
    assert store.start_ttl_sweeper().result(1) is None and store.stop_ttl_sweeper(1)


# A query finds words in the texts of a value, or only in the fields that `index` names.
def test_words_are_found(db: treering.Treering) -> None:
    store = TreeringStore(db)
    store.put(USERS, "a", {"says": "the lighthouse", "more": "a harbour"})
    store.put(USERS, "b", {"says": "a lighthouse", "more": "a forest"}, index=["more"])
    store.put(USERS, "c", {"says": "no lighthouse"}, index=False)
    found = store.search(("users",), query="lighthouse")
    assert [each.key for each in found] == ["a"] and found[0].score
    assert [each.key for each in store.search((), query="forest")] == ["b"]
    assert store.search((), query="forest", filter={"more": "a harbour"}) == []
    other = TreeringStore(db, "another")
    assert other.search((), query="forest") == [] and other.list_namespaces() == []


# Two programs write to one store while the server is killed: each sees the other's items, and no
# item is lost.
def test_two_programs_and_a_kill(server: Server) -> None:
    program = f"""
import sys, treering
from treering.langgraph import TreeringStore
with treering.connect("{server.address}") as db:
    store = TreeringStore(db)
    for number in range(40):
        store.put(("of", sys.argv[1]), str(number), {{"n": number}})
        store.put(("shared",), "last", {{"who": sys.argv[1], "n": number}})
"""
    programs = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    with treering.connect(server.address) as db:
        store = TreeringStore(db)
        while len(store.search(("of",), limit=100)) < 20:
            time.sleep(0.01)
        server.kill()
        server.start()
        assert [each.wait(100) for each in programs] == [0, 0]
        for each in (store, TreeringStore(db)):
            assert len(each.search(("of",), limit=100)) == 80
            last = each.get(("shared",), "last")
            assert last is not None and last.value["n"] == 39
        assert db.verify(deep=True).sound


# A cancelled write must not be stored after the cancellation.
def test_writes_that_are_cancelled(db: treering.Treering) -> None:
    async def work() -> None:
        store = TreeringStore(db)
        for number in range(30):
            task = asyncio.create_task(store.aput(USERS, str(number), {"n": number}))
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            first = told(await store.asearch(USERS, limit=100))
            assert first == told(await TreeringStore(db).asearch(USERS, limit=100))

    run(work())
