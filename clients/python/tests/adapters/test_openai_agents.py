"""The OpenAI Agents SDK's `Session`: the same scenarios on its SQLite session and on ours."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import treering
from treering import new

pytest.importorskip("agents")

from agents import (
    Agent,
    OpenAIProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.items import TResponseInputItem
from agents.memory import (
    OpenAIResponsesCompactionSession,
    SessionABC,
    SessionSettings,
)
from openai import AsyncOpenAI

from treering.openai_agents import TreeringSession

from ..conftest import Server, run, texts
from .model import Model, agent_environment

Item = TResponseInputItem
Make = Callable[[str], SessionABC]


def items(*given: dict[str, Any]) -> list[Item]:
    return [cast(Item, item) for item in given]


def user(text: str) -> Item:
    return cast(Item, {"role": "user", "content": text})


ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is the port of the server set?"},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "What is in this picture of the office?"},
            {
                "type": "input_image",
                "image_url": "data:image/png;base64,iVBORw0KGgo=",
                "detail": "low",
            },
            {"type": "input_file", "file_id": "file_1"},
        ],
    },
    {"role": "developer", "content": "Answer in one sentence, please, whatever is asked."},
    {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I should look into the configuration."}],
        "encrypted_content": "gAAAAAbm90IHJlYWxseSBlbmNyeXB0ZWQ=",
    },
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": "I look for it in the configuration of the server.",
                "annotations": [],
                "logprobs": [],
            }
        ],
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "grep",
        "arguments": '{"pattern":  "PORT", "n": 1.0}',
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "config.py:12: PORT = 7171"},
    {
        "id": "fc_2",
        "type": "function_call",
        "call_id": "call_2",
        "name": "grep",
        "arguments": '{"pattern": "unterminated',
    },
    {
        "type": "function_call_output",
        "call_id": "call_2",
        "output": [{"type": "input_text", "text": "these are no arguments"}],
    },
    {"type": "function_call_output", "call_id": "call_unknown", "output": "an orphan"},
    {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "what port does a server have"},
    },
    {
        "id": "mcp_1",
        "type": "mcp_call",
        "name": "weather",
        "server_label": "outside",
        "arguments": "{}",
        "output": "rain until the evening, then clear",
        "error": None,
    },
    {
        "id": "ctc_1",
        "type": "custom_tool_call",
        "call_id": "call_3",
        "name": "sql",
        "input": "SELECT port FROM servers",
    },
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "7171"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "opaque"},
    {"type": "item_reference", "id": "msg_0"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "I would rather not say."}]},
    {"role": "user", "content": "half of a pair \ud83d, a \x00, and $treering"},
    {"$treering": "0.p0.text", "role": "nobody"},
    {"role": "user", "content": "what looks like a reference", "x": {"$treering": "0.p0.text"}},
    {"$treering": {"whole": {"role": "user", "content": "what looks like a wrapped item"}}},
    {"id": "fc_1", "type": "function_call", "call_id": "again", "name": "a", "arguments": "{}"},
    {"id": "fc_2", "type": "function_call", "call_id": "again", "name": "b", "arguments": "[]"},
]

# ---- comparison with SQLiteSession ----


async def told(session: SessionABC) -> list[str]:
    return [json.dumps(item) for item in await session.get_items()]


async def empty(make: Make) -> Any:
    session = make("a")
    await session.add_items([])
    await session.clear_session()
    return [await session.pop_item(), await told(session), await session.get_items(3)]


async def every_item(make: Make) -> Any:
    session = make("a")
    for item in items(*ITEMS):
        await session.add_items([item])
    one_by_one = await told(make("a"))
    await make("b").add_items(items(*ITEMS))
    assert one_by_one == await told(make("b")) == [json.dumps(item) for item in ITEMS]
    return one_by_one


async def limits(make: Make) -> Any:
    session = make("a")
    await session.add_items(items(*ITEMS))
    answers = [await session.get_items(limit) for limit in (1, 2, 5, 7, 20, 21, 22, 1000, 0, -1)]
    session.session_settings = SessionSettings(limit=3)
    return [*answers, await session.get_items(), await session.get_items(2)]


async def popped_to_the_end(make: Make) -> Any:
    session, other = make("a"), make("a")
    await session.add_items(items(*ITEMS))
    answers: list[Any] = []
    for number in range(len(ITEMS) + 2):
        answers.append(json.dumps(await (session if number % 2 else other).pop_item()))
        answers.append(len(await session.get_items()))
    await session.add_items([user("anew")])
    return [*answers, await told(other)]


async def cleared(make: Make) -> Any:
    session = make("a")
    answers = []
    for _ in range(3):
        await session.add_items(items(*ITEMS))
        await session.clear_session()
        answers.append(await told(make("a")))
        await session.add_items(items(*ITEMS[:3]))
        answers.append(await told(make("a")))
    return answers


async def apart(make: Make) -> Any:
    names = ["a", "b", "a/b", "ä", "x" * 600, "x" * 601]
    for name in names:
        await make(name).add_items([user(f"in {name}")])
    await make("a").clear_session()
    return [await told(make(name)) for name in names]


async def what_json_changes(make: Make) -> Any:
    session = make("a")
    odd: Any = {"role": "user", "content": ("a", "tuple"), 1: True, None: 1.0, "nan": float("nan")}
    await session.add_items([odd])
    failed = []
    for wrong in ({"role": "user", "content": object()}, {"role": "user", "content": {1, 2}}):
        try:
            await session.add_items([user("not alone"), cast(Item, wrong)])
        except TypeError:
            failed.append(True)
    return [await told(session), failed]


async def at_random(make: Make) -> Any:
    chance = random.Random(7)
    answers: list[Any] = []
    for _ in range(120):
        session = make(chance.choice("ab"))
        what = chance.random()
        if what < 0.5:
            await session.add_items(items(*chance.sample(ITEMS, chance.randrange(4))))
        elif what < 0.75:
            answers.append(json.dumps(await session.pop_item()))
        elif what < 0.97:
            answers.append(json.dumps(await session.get_items(chance.choice([None, 1, 2, 9]))))
        else:
            await session.clear_session()
    return answers


STORIES: list[Callable[[Make], Awaitable[Any]]] = [
    empty,
    every_item,
    limits,
    popped_to_the_end,
    cleared,
    apart,
    what_json_changes,
    at_random,
]


# Our session must behave like the SDK's own session.
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_as_its_own_session(
    story: Callable[[Make], Awaitable[Any]], db: treering.Treering, tmp_path: Path
) -> None:
    opened: dict[str, SQLiteSession] = {}

    def sqlite(name: str) -> SessionABC:
        if name not in opened:
            opened[name] = SQLiteSession(name, tmp_path / "sessions.db")
        return opened[name]

    async def both() -> tuple[Any, Any]:
        return await story(lambda name: TreeringSession(name, db)), await story(sqlite)

    ours, its = run(both())
    for session in opened.values():
        session.close()
    assert ours == its


# ---- agents that run ----


@function_tool
def weather(city: str) -> str:
    """The weather."""
    return f"It rains in {city}."


def agent() -> Agent:
    return Agent("Helper", instructions="Be brief.", model="gpt-4o", tools=[weather])


def asking(model: Model) -> RunConfig:
    """The configuration of one run: the SDK's clients are bound to an event loop."""
    client = AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none")
    return RunConfig(tracing_disabled=True, model_provider=OpenAIProvider(openai_client=client))


async def conversation(session: SessionABC, model: Model) -> list[str]:
    """Turns with and without a tool; the last turn is removed and replaced."""
    answers: list[str] = []
    for prompt in ("Hello", 'call weather {"city": "Bergen"}', "And now?"):
        result = await Runner.run(agent(), prompt, session=session, run_config=asking(model))
        answers.append(result.final_output)
    for _ in range(2):
        await session.pop_item()
    result = await Runner.run(agent(), "What was it?", session=session, run_config=asking(model))
    return [*answers, result.final_output]


# With the SDK's own loop, requests and answers must be the same with either session.
@pytest.mark.slow
def test_agents_run_the_same(db: treering.Treering, model: Model) -> None:
    sessions: list[SessionABC] = [SQLiteSession("s"), TreeringSession("s", db)]
    asked, answers, kept = [], [], []
    for session in sessions:
        model.requests.clear()
        answers.append(run(conversation(session, model)))
        asked.append([body["input"] for body in model.requests])
        kept.append(run(session.get_items()))
    cast(SQLiteSession, sessions[0]).close()
    assert answers[0] == answers[1]
    assert asked[0] == asked[1]
    assert kept[0] == kept[1]
    assert answers[1][1] == "The tool says: It rains in Bergen."

    [hit] = db.search("rains", kinds=["tool_result_recorded"])
    assert hit.tool == "weather"
    body = db.conversation("s").request("anthropic", model="claude-sonnet-4-5")
    assert [message["role"] for message in body["messages"]][:4] == ["user", "assistant"] * 2


# The server is killed during a run: the run continues, and no item is lost or repeated.
@pytest.mark.slow
def test_a_run_with_a_server_that_is_killed(server: Server, model: Model) -> None:
    @function_tool
    async def dangerous(text: str) -> str:
        """Kills the server that the session is on."""
        await asyncio.to_thread(server.kill)
        asyncio.get_running_loop().call_later(0.3, server.start)
        return f"killed for {text}"

    async def work() -> list[Item]:
        helper = Agent("Helper", model="gpt-4o", tools=[dangerous])
        session = TreeringSession("through a kill", db)
        for number in range(3):
            prompt = f'call dangerous {{"text": "number {number}"}}'
            await Runner.run(helper, prompt, session=session, run_config=asking(model))
        return await TreeringSession("through a kill", db).get_items()

    with treering.connect(server.address) as db:
        db.stats()
        kept = run(work())
        kinds = [cast(dict[str, Any], item).get("type", "message") for item in kept]
        turn = ["message", "message", "function_call", "function_call_output", "message"]
        assert kinds == turn * 3
        assert db.verify(deep=True).sound


# A program is killed while its tool runs: the earlier messages are stored, and the next program
# continues the session.
@pytest.mark.slow
def test_a_program_that_is_killed(server: Server, model: Model, tmp_path: Path) -> None:
    program = f"""
import os, signal, sys, treering
from agents import Agent, Runner, function_tool
from treering.openai_agents import TreeringSession

@function_tool
def weather(city: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

with treering.connect("{server.address}") as db:
    helper = Agent("Helper", model="gpt-4o", tools=[weather])
    session = TreeringSession("s", db)
    print(Runner.run_sync(helper, sys.argv[1], session=session).final_output)
"""
    environment = {**os.environ, **agent_environment(model, tmp_path)}

    def start(prompt: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, prompt]
        return subprocess.run(command, env=environment, stdout=-1, text=True, timeout=60)

    with treering.connect(server.address) as db:
        conv = TreeringSession("s", db).conversation
        assert start("Hello").stdout == "Answer 1 to: Hello\n"
        assert start('call weather {"city": "Bergen"}').returncode == -signal.SIGKILL
        assert texts(conv)[:3] == ["Hello", "Answer 1 to: Hello", 'call weather {"city": "Bergen"}']
        assert start("And now?").stdout == "Answer 3 to: And now?\n"
        assert texts(conv)[-2:] == ["And now?", "Answer 3 to: And now?"]
        assert conv.request("anthropic", model="claude-sonnet-4-5").tokens > 0
        assert db.verify(deep=True).sound


# Two programs add items to one session and pop some: every item is stored once, and each pop
# returns a different item.
def test_two_programs_on_one_session(server: Server) -> None:
    program = f"""
import asyncio, json, sys, treering
from treering.openai_agents import TreeringSession
with treering.connect("{server.address}") as db:
    session = TreeringSession("shared", db)
    async def work():
        taken = []
        for n in range(30):
            await session.add_items([{{"role": "user", "content": f"{{sys.argv[1]}} {{n}}"}}])
            if n % 3 == 2:
                taken.append((await session.pop_item())["content"])
        print(json.dumps(taken))
    asyncio.run(work())
"""
    programs = [
        subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    taken = [text for each in programs for text in json.loads(each.communicate(timeout=60)[0])]
    with treering.connect(server.address) as db:
        kept = [
            cast(dict[str, str], item)["content"]
            for item in run(TreeringSession("shared", db).get_items())
        ]
        assert len(taken) == 20
        assert sorted(kept + taken) == sorted(f"{name} {n}" for name in "ab" for n in range(30))
        for name in "ab":
            own = [int(text.split()[1]) for text in kept if text.startswith(name)]
            assert own == sorted(own)


# A cancelled `add_items` must be stored in full or not at all, and not after the cancellation.
def test_calls_that_are_cancelled(db: treering.Treering) -> None:
    async def work() -> None:
        session = TreeringSession("cancelled", db)
        before: list[Item] = []
        for number in range(40):
            pair = [user(f"{number} first"), user(f"{number} second")]
            task = asyncio.create_task(session.add_items(pair))
            await asyncio.sleep(0.0001 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            now = await session.get_items()
            assert now in (before, [*before, *pair])
            assert now == await session.get_items()
            before = now

    run(work())


# ---- other programs in the same conversation ----


# A session that another program began is read and continued. Clearing removes the messages, but
# not the system prompt.
def test_a_conversation_that_others_began(db: treering.Treering, model: Model) -> None:
    conv = db.create("Ports", system="You are brief.")
    conv.user("Where is the port set?")
    with conv.tool_call("grep", {"pattern": "PORT"}, call_id="c1") as call:
        call.result("config.py: PORT = 7171")
    conv.assistant("In config.py.")
    session = TreeringSession(conv.id, db)
    assert run(session.get_items()) == [
        {"role": "user", "content": "Where is the port set?"},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "grep",
            "arguments": '{"pattern":"PORT"}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "config.py: PORT = 7171"},
        {"role": "assistant", "content": "In config.py."},
    ]
    assert len(run(session.get_items(2))) == 2
    result = run(Runner.run(agent(), "And the address?", session=session, run_config=asking(model)))
    assert result.final_output == "Answer 2 to: And the address?"
    assert texts(conv)[-2:] == ["And the address?", "Answer 2 to: And the address?"]
    conv.user("By hand again.")
    assert run(session.get_items(1)) == [user("By hand again.")]
    assert run(session.pop_item()) == user("By hand again.")
    run(session.clear_session())
    assert run(session.get_items()) == []
    conv.append([new.user("Anew.")])
    body = conv.request("anthropic", model="claude-sonnet-4-5")
    assert len(body["messages"]) == 1 and "You are brief." in json.dumps(body["system"])


# Two branches of one session continue independently.
def test_a_branch_of_a_session(db: treering.Treering) -> None:
    first = TreeringSession("branched", db)
    run(first.add_items([user("one"), user("two"), user("three")]))
    two = next(event for event in first.conversation.events() if event.text == "two")
    first.conversation.fork(at=two.revision, name="other")
    other = TreeringSession("branched", db, branch="other")
    run(other.add_items([user("four")]))
    assert run(other.get_items()) == [user("one"), user("two"), user("four")]
    for expected in ("four", "two", "one"):
        assert run(other.pop_item()) == user(expected)
    run(other.add_items([user("five")]))
    assert run(other.get_items()) == [user("five")]
    assert run(first.get_items()) == [user("one"), user("two"), user("three")]


# The SDK's compaction must work with this session as with its own.
def test_a_session_that_is_compacted(db: treering.Treering, tmp_path: Path) -> None:
    class Compacting:
        """Replaces the provider's endpoint for compaction."""

        class responses:
            @staticmethod
            async def compact(**request: Any) -> Any:
                class Answer:
                    id, usage = "resp_c", None
                    output = [{"type": "compaction", "encrypted_content": "all of it"}]

                return Answer()

    async def story(session: SessionABC) -> list[Item]:
        client = cast(AsyncOpenAI, Compacting())
        over = OpenAIResponsesCompactionSession("c", session, client=client)
        await over.add_items(items(*ITEMS[:7]))
        await over.run_compaction({"force": True, "compaction_mode": "input"})
        await over.add_items([user("and on")])
        return await session.get_items()

    its = SQLiteSession("c")
    assert run(story(TreeringSession("c", db))) == run(story(its))
    its.close()


# Settings as a dict, which the SDK's own sessions accept, raised "'dict' object has no attribute
# 'limit'" at the first turn.
def test_settings_as_a_dict(db: treering.Treering) -> None:
    session = TreeringSession("settings", db, session_settings={"limit": 2})
    items: Any = [{"role": "user", "content": f"Number {number}"} for number in range(5)]
    run(session.add_items(items))
    assert run(session.get_items()) == items[-2:]
    assert run(session.get_items(3)) == items[-3:]
    session.session_settings = cast(Any, {"limit": 1})
    assert run(session.get_items()) == items[-1:]
    with pytest.raises(Exception, match="limits"):
        TreeringSession("settings", db, session_settings={"limits": 2})


# A new session for each request looked up its conversation, and before each call or result the
# open calls: two or three calls to the server instead of one.
def test_a_turn_takes_one_call_each(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with treering.connect(server.address) as db:
        called: list[str] = []
        wire = type(db._transport.wire)
        unary, stream = wire.unary, wire.stream

        def asks(self: Any, method: Any, *given: Any, **more: Any) -> Any:
            called.append(method.path.rpartition("/")[2])
            return unary(self, method, *given, **more)

        def reads(self: Any, method: Any, *given: Any, **more: Any) -> Any:
            called.append(method.path.rpartition("/")[2])
            return stream(self, method, *given, **more)

        assert run(TreeringSession("s", db).get_items(20)) == []
        call: Any = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"}
        result: Any = {"type": "function_call_output", "call_id": "c", "output": "README.md"}
        said: list[Any] = [{"role": "user", "content": "Hello"}, call]
        run(TreeringSession("s", db).add_items(said))
        monkeypatch.setattr(wire, "unary", asks)
        monkeypatch.setattr(wire, "stream", reads)
        run(TreeringSession("s", db).add_items([result]))
        assert called == ["Append"]
        assert run(TreeringSession("s", db).get_items(20)) == [*said, result]
        assert called[1:] == ["Read"]
        # Items that are invalid after the stored ones are stored too.
        again = TreeringSession("s", db)
        run(again.add_items([result]))
        run(again.add_items([call]))
        run(again.add_items([call, result]))
        items = run(again.get_items(20))
        assert items == [*said, result, result, call, call, result]
        assert db.conversation("s").open_calls() == []
        assert db.verify(deep=True).sound
