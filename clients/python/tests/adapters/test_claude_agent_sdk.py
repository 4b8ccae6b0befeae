"""The Claude Agent SDK's `SessionStore`: the SDK's own suite, and tests with real sessions."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

import treering

sdk = pytest.importorskip("claude_agent_sdk")

from claude_agent_sdk import (  # noqa: E402
    ClaudeAgentOptions,
    InMemorySessionStore,
    ResultMessage,
    SessionKey,
    SessionStoreEntry,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    query,
    rename_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance  # noqa: E402

from treering import new  # noqa: E402
from treering._adapters import frames  # noqa: E402
from treering.claude_agent_sdk import FRAME, TreeringSessionStore  # noqa: E402

from ..conftest import Server, run, texts  # noqa: E402
from ..test_real import trajectories  # noqa: E402
from .model import Model, agent_environment, serving  # noqa: E402

KEY: SessionKey = {"project_key": "proj", "session_id": "6a2c8c0e-7e0a-4e0e-9a62-0d5a0c1b2d3e"}

FOLDER = "/home/ada/app"


def line(kind: str, content: Any, **more: Any) -> SessionStoreEntry:
    """A line of a transcript."""
    message: dict[str, Any] = {"role": kind, "content": content, **more.pop("message", {})}
    entry = {
        "type": kind,
        "uuid": str(uuid4()),
        "parentUuid": None,
        "sessionId": KEY["session_id"],
        "timestamp": "2026-03-01T10:00:00.000Z",
        "message": message,
        **more,
    }
    return cast(SessionStoreEntry, entry)


def turn() -> list[SessionStoreEntry]:
    """A question, a call with its result, an answer."""
    return [
        line("user", "Where is the port of the server set, and to what?"),
        line(
            "assistant",
            [
                {"type": "thinking", "thinking": "I should look for it.", "signature": "c2ln"},
                {"type": "text", "text": "I look for it in the configuration."},
                {"type": "tool_use", "id": "toolu_1", "name": "Grep", "input": {"pattern": "PORT"}},
            ],
            message={
                "id": "msg_1",
                "model": "claude-sonnet-4-5",
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 12, "output_tokens": 9},
            },
        ),
        line(
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": "src/config.py:12: PORT = 7171",
                }
            ],
            toolUseResult={"numFiles": 1, "content": "src/config.py:12: PORT = 7171"},
        ),
        line("assistant", [{"type": "text", "text": "In src/config.py, line 12, to 7171."}]),
    ]


def conversation(db: treering.Treering) -> treering.Conversation:
    return db.conversation(f"{KEY['project_key']}/{KEY['session_id']}")


# The SDK defines with this suite what a store must do. No test of it is skipped.
def test_the_suite_of_the_sdk(store: Path) -> None:
    opened = []

    def fresh() -> TreeringSessionStore:
        opened.append(treering.local(store, namespace=f"conformance-{os.urandom(6).hex()}"))
        return TreeringSessionStore(opened[-1])

    run(run_session_store_conformance(fresh))
    assert len(opened) >= 14
    for db in opened:
        db.close()


# A session that is stored only as lines cannot be searched, forked or sent to another model.
def test_lines_are_messages_calls_and_results(db: treering.Treering) -> None:
    entries = turn()
    store = TreeringSessionStore(db)
    run(store.append(KEY, entries))
    assert run(store.load(KEY)) == entries

    conv = conversation(db)
    kinds = [event.kind for event in conv.events() if event.kind != "custom"]
    assert kinds == [
        "conversation_created",
        "message_appended",
        "message_appended",
        "tool_call_requested",
        "tool_result_recorded",
        "message_appended",
    ]
    [hit] = db.search("7171", kinds=["tool_result_recorded"])
    assert (hit.tool, hit.snippet) == ("Grep", "src/config.py:12: PORT = 7171")
    request = conv.request("anthropic", model="claude-sonnet-4-5")
    assert [message["role"] for message in request["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    said = request["messages"][1]["content"]
    assert said[0]["signature"] == "c2ln"
    assert said[2]["input"] == {"pattern": "PORT"}
    # The same for a model of another provider.
    assert conv.request("openai-chat", model="gpt-4o")["messages"][2]["role"] == "tool"


# Long texts must be stored once, in the typed events, to save space.
def test_a_long_text_is_stored_once(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    text = "a line of a log with a word that is not anywhere else\n" * 400
    result = {"type": "tool_result", "tool_use_id": "toolu_9", "content": text}
    call = {"type": "tool_use", "id": "toolu_9", "name": "Bash", "input": {"command": text}}
    entries = [
        line("assistant", [call]),
        line("user", [result], toolUseResult={"stdout": text}),
    ]
    run(store.append(KEY, entries))
    assert run(store.load(KEY)) == entries
    sizes = [event.proto.ByteSize() for event in conversation(db).events()]
    assert sum(sizes) < 2 * len(text) + 3_000


ODD: list[dict[str, Any]] = [
    {"type": "user", "message": {"role": "user", "content": "half of a pair: \ud83d and a \x00"}},
    {"type": "user", "message": {"role": "user", "content": None}},
    {"type": "user", "message": {"role": "user", "content": [{"type": "text"}]}},
    {"type": "user", "message": {"role": "user", "content": [{"type": "later", "x": [1, 1.0]}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "", "name": ""}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": 7, "name": []}]}},
    {
        "type": "assistant",
        "message": {
            "content": [
                {"type": "tool_use", "id": "same", "name": "Bash", "input": {"a": 1.0, "b": 10**30}}
            ]
        },
    },
    {
        "type": "assistant",
        "message": {"content": [{"type": "tool_use", "id": "same", "name": "Bash", "input": []}]},
    },
    {
        "type": "user",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "nobody", "content": "orphan"}],
        },
    },
    {
        "type": "user",
        "message": {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                },
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "no base64!"},
                },
            ],
        },
    },
    {"type": "summary", "summary": "A title", "leafUuid": "x"},
    {"type": "system", "subtype": "compact_boundary", "$treering": "0.p0.text"},
    {"type": "x", "deep": {"$treering": "0.arguments"}, "true": True, "1": 1, "1.0": 1.0},
]


# The SDK's lines are an internal format: a strange or invalid line must come back unchanged.
@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_lines_come_back_as_they_were(db: treering.Treering, number: int) -> None:
    store = TreeringSessionStore(db)
    entry = cast(SessionStoreEntry, ODD[number])
    run(store.append(KEY, [entry]))
    run(store.append(KEY, [entry, *turn()]))
    loaded = run(store.load(KEY))
    assert loaded is not None
    assert json.dumps(loaded[:2]) == json.dumps([entry, entry])
    assert len(loaded) == 6


# A batch that is sent again, by this program or another, must not repeat a line. Lines without an
# id cannot be recognised.
def test_lines_that_are_sent_again(db: treering.Treering) -> None:
    entries = turn()
    title = cast(SessionStoreEntry, {"type": "tag", "tag": "a"})
    first = TreeringSessionStore(db)
    run(first.append(KEY, entries[:3]))
    run(first.append(KEY, entries[:3]))
    second = TreeringSessionStore(db)
    run(second.append(KEY, [*entries, entries[3], title]))
    run(first.append(KEY, [*entries, title]))
    assert run(second.load(KEY)) == [*entries, title, title]


# Two programs write to one session: one resumed it, and one still runs.
def test_two_programs_on_one_session(server: Server) -> None:
    key = json.dumps(KEY)
    program = f"""
import asyncio, sys, treering
from treering.claude_agent_sdk import TreeringSessionStore
with treering.connect("{server.address}") as db:
    store = TreeringSessionStore(db)
    async def work():
        for n in range(40):
            entries = [
                {{"type": "user", "uuid": f"{{who}}-{{n}}",
                 "message": {{"role": "user", "content": f"{{who}} says {{n}}"}}}}
                for who in (sys.argv[1], "both")
            ]
            await store.append({key}, entries)
    asyncio.run(work())
"""
    programs = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("a", "b")]
    assert [each.wait(60) for each in programs] == [0, 0]
    with treering.connect(server.address) as db:
        loaded = run(TreeringSessionStore(db).load(KEY))
        assert loaded is not None
        uuids = [entry["uuid"] for entry in loaded]
        assert len(uuids) == len(set(uuids)) == 120
        for who in ("a", "b", "both"):
            own = [uuid for uuid in uuids if uuid.rsplit("-", 1)[0] == who]
            assert own == [f"{who}-{n}" for n in range(40)]
        assert db.verify(deep=True).sound


# The server is killed while a session is written: each accepted line is stored once, and the
# session continues.
def test_a_server_that_is_killed_while_a_session_is_written(server: Server) -> None:
    async def work(store: TreeringSessionStore, entries: list[SessionStoreEntry]) -> None:
        for number, entry in enumerate(entries):
            if number in (10, 25):
                await asyncio.to_thread(server.kill)
                asyncio.get_running_loop().call_later(0.2, server.start)
            await store.append(KEY, [entry])

    entries = [line("user", f"Line {number}") for number in range(40)]
    with treering.connect(server.address) as db:
        db.stats()
        store = TreeringSessionStore(db)
        run(work(store, entries))
        assert run(store.load(KEY)) == entries
        assert run(TreeringSessionStore(db).load(KEY)) == entries
        assert db.verify(deep=True).sound


# A cancelled write must be stored in full or not at all, and not after the cancellation.
def test_writes_that_are_cancelled(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    entries = [line("user", f"Line {number}") for number in range(30)]

    async def work() -> list[SessionStoreEntry]:
        await store.append(KEY, entries[:1])
        for number in range(1, 30):
            task = asyncio.create_task(store.append(KEY, [entries[number], line("user", "x")]))
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            there = await store.load(KEY)
            assert there is not None
            assert len(there) % 2 == 1
            assert there == await TreeringSessionStore(db).load(KEY)
            # The SDK sends the line again.
            await store.append(KEY, [entries[number]])
        return await store.load(KEY) or []

    loaded = [entry for entry in run(work()) if entry in entries]
    assert loaded == entries


# A deleted session does not exist for the SDK, and the next write starts it again. The old
# messages can still be read on the branches of the conversation.
def test_a_session_that_is_deleted_and_begun_again(db: treering.Treering) -> None:
    store, other = TreeringSessionStore(db), TreeringSessionStore(db)
    entries = turn()
    run(store.append(KEY, entries))
    run(other.append({**KEY, "subpath": "subagents/agent-1"}, entries))
    for _ in range(3):
        run(other.delete(KEY))
        assert run(store.load(KEY)) is None
        assert run(store.list_sessions("proj")) == run(store.list_session_summaries("proj")) == []
        run(store.append(KEY, entries))
        assert run(other.load(KEY)) == entries
        assert len(run(store.list_sessions("proj"))) == 1
        assert run(store.list_subkeys(KEY)) == []
    branches = conversation(db).branches()
    assert [branch.name for branch in branches if not branch.archived] == ["main"]
    for branch in branches:
        assert "7171" in texts(conversation(db).on(branch.name))[-1]


# A fork in the middle of a batch is also a session, with the lines up to the fork.
def test_a_session_that_goes_on_from_a_fork(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    entries = turn()
    run(store.append(KEY, entries))
    conv = conversation(db)
    for kind, count in (("tool_result_recorded", 3), ("tool_call_requested", 2)):
        at = next(event.revision for event in conv.on("main").events() if event.kind == kind)
        conv.on("main").fork(at=at, name=kind, activate=True)
        for each in (store, TreeringSessionStore(db)):
            assert run(each.load(KEY)) == entries[:count]
            assert len(run(each.list_sessions("proj"))) == 1
        run(store.append(KEY, [entries[0], line("user", "In the fork")]))
        loaded = run(TreeringSessionStore(db).load(KEY))
        assert loaded is not None and len(loaded) == count + 1


# The SDK's functions for lists, titles and forks must give the same results as with its own store.
def test_the_functions_of_the_sdk(db: treering.Treering) -> None:
    async def story(store: Any) -> list[Any]:
        key: SessionKey = {**KEY, "project_key": sdk.project_key_for_directory(FOLDER)}
        await store.append(key, entries[:2])
        await store.append(key, entries[2:])
        told: list[Any] = [await get_session_messages_from_store(store, key["session_id"], FOLDER)]
        await rename_session_via_store(store, key["session_id"], "The port", FOLDER)
        fork = await fork_session_via_store(store, key["session_id"], FOLDER)
        listed = await list_sessions_from_store(store, FOLDER)
        told.append(sorted((each.summary, each.first_prompt, each.custom_title) for each in listed))
        again = await get_session_messages_from_store(store, fork.session_id, FOLDER)
        told.append([message.message for message in again])
        await delete_session_via_store(store, key["session_id"], FOLDER)
        told.append(len(await list_sessions_from_store(store, FOLDER)))
        return told

    entries = turn()
    for before, after in itertools.pairwise(entries):
        cast(dict[str, Any], after)["parentUuid"] = before["uuid"]
    ours = run(story(TreeringSessionStore(db)))
    assert ours == run(story(InMemorySessionStore()))
    assert ours[3] == 1


# If the JavaScript SDK wrote last, its summary has another format, and is computed again here.
def test_a_session_that_javascript_wrote(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    run(store.append(KEY, turn()))
    title = {"type": "custom-title", "customTitle": "Ports", "sessionId": KEY["session_id"]}
    beside = {"summaryOfJavaScript": {"customTitle": "Ports"}}
    conversation(db).append(frames.frame(FRAME, [(title, [])], beside))
    for _ in range(2):
        [summary] = run(store.list_session_summaries("proj"))
        assert summary["data"]["custom_title"] == "Ports"
        assert summary["data"]["first_prompt"].startswith("Where is the port")
        run(store.append(KEY, [line("user", "And on")]))


# Requests of a compacted session must not contain the messages that the summary replaces.
def test_a_session_that_was_compacted(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    entries = [
        *turn(),
        cast(SessionStoreEntry, {"type": "system", "subtype": "compact_boundary"}),
        line("user", "This session goes on from: the port is 7171.", isCompactSummary=True),
        line("user", "And the address of the server?"),
    ]
    for entry in entries:
        run(store.append(KEY, [entry]))
    assert run(store.load(KEY)) == entries
    request = conversation(db).request("anthropic", model="claude-sonnet-4-5")
    text = json.dumps(request["messages"])
    assert "goes on from: the port is 7171" in text
    assert "src/config.py:12" not in text
    assert "address of the server" in text


def lines_of(trajectory: dict[str, Any]) -> Iterator[SessionStoreEntry]:
    """A recorded conversation as the SDK would have written it."""
    for message in trajectory["messages"]:
        content = message.get("content") or ""
        extra = {"isCompactSummary": True} if message.get("x", {}).get("compact_summary") else {}
        if message["role"] == "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": content,
            }
            yield line("user", [result], toolUseResult={"stdout": content})
        elif message["role"] == "assistant":
            if content:
                yield line("assistant", [{"type": "text", "text": content}])
            for call in message.get("tool_calls") or ():
                function = call["function"]
                use = {
                    "type": "tool_use",
                    "id": call["id"],
                    "name": function["name"],
                    "input": json.loads(function["arguments"]),
                }
                yield line("assistant", [use])
        else:
            yield line("user", content, **extra)


# The lines of real sessions, also odd ones, must come back unchanged.
@pytest.mark.slow
def test_real_sessions(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    for trajectory in trajectories("claude-code-entire", 12):
        key: SessionKey = {"project_key": "real", "session_id": trajectory["id"]}
        entries = list(lines_of(trajectory))
        for start in range(0, len(entries), 7):
            run(store.append(key, entries[start : start + 7]))
        loaded = run(TreeringSessionStore(db).load(key))
        assert loaded == entries
        conv = db.conversation(f"real/{trajectory['id']}")
        results = sum(event.kind == "tool_result_recorded" for event in conv.events())
        asked = sum(message["role"] == "tool" for message in trajectory["messages"])
        assert results >= asked * 0.9
        body = conv.request("anthropic", model="claude-sonnet-4-5", budget=60_000)
        assert body["messages"]
    assert db.verify(deep=True).sound


# The SDK's agent runs a tool, the server is killed, the agent's files are lost, and it continues
# from the store. A fork before its last turn gives a request for another provider.
@pytest.mark.slow
def test_an_agent_that_goes_on_after_a_kill(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "config.py").write_text("PORT = 7171\n")

    async def turn(store: TreeringSessionStore, model: Model, prompt: str, resume: str) -> str:
        home = tmp_path / str(uuid4())
        options = ClaudeAgentOptions(
            session_store=store,
            resume=resume or None,
            cwd=folder,
            model="claude-sonnet-4-5",
            allowed_tools=["Read"],
            setting_sources=[],
            env=agent_environment(model, home),
        )
        session = ""
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                assert not message.is_error, message
                session = message.session_id
        return session

    asked = f"call Read {json.dumps({'file_path': str(folder / 'config.py')})}"
    with serving() as model, treering.connect(server.address) as db:
        store = TreeringSessionStore(db)
        session = run(turn(store, model, asked, ""))
        server.kill()
        server.start()
        assert run(turn(TreeringSessionStore(db), model, "And the address?", session)) == session
        # The model was sent the messages from before the kill.
        assert "7171" in json.dumps(model.requests[-1]["messages"][:-1])
        [summary] = db.conversations()
        conv = db.conversation(summary.conversation_id)
        assert texts(conv)[-2:] == ["And the address?", "Answer 2 to: And the address?"]
        [call] = conv.tool_calls()
        assert (call.tool, call.status) == ("Read", "succeeded")
        again = next(event for event in conv.events() if event.text == "And the address?")
        other = conv.fork(at=again.revision - 1, name="other")
        other.user("And the protocol?")
        body = other.request("openai-chat", model="gpt-4o")
        assert [message["role"] for message in body["messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]


# A program, and the SDK's own process, are killed while a tool runs. The messages are stored, and
# another program, without the files of the first, continues the session.
@pytest.mark.slow
def test_a_program_that_is_killed(server: Server, tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal, sys, treering
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool
from treering.claude_agent_sdk import TreeringSessionStore

db = treering.connect("{server.address}")

@tool("weather", "The weather.", {{"city": str}})
async def weather(given):
    # The SDK stores in the background.
    ids = lambda: [each.conversation_id for each in db.conversations()]
    while not any(db.conversation(id).open_calls() for id in ids()):
        await asyncio.sleep(0.05)
    os.killpg(0, signal.SIGKILL)

async def main():
    with db:
        options = ClaudeAgentOptions(
            session_store=TreeringSessionStore(db),
            session_id=None if sys.argv[2] else sys.argv[1],
            resume=sys.argv[2] or None,
            session_store_flush="eager",
            cwd="{tmp_path}",
            model="claude-sonnet-4-5",
            mcp_servers={{"sky": create_sdk_mcp_server("sky", tools=[weather])}},
            allowed_tools=["mcp__sky__weather"],
            setting_sources=[],
        )
        async for message in query(prompt=sys.argv[3], options=options):
            if isinstance(message, ResultMessage):
                print(message.result)

asyncio.run(main())
"""
    session = str(uuid4())
    with serving() as model, treering.connect(server.address) as db:

        def start(home: str, resume: str, prompt: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, **agent_environment(model, tmp_path / home)}
            return subprocess.run(
                [sys.executable, "-c", program, session, resume, prompt],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                timeout=100,
                start_new_session=True,
            )

        assert start("one", "", 'call mcp__sky__weather {"city": "Bergen"}').returncode == -9
        [summary] = db.conversations()
        conv = db.conversation(summary.conversation_id)
        assert texts(conv) == [
            'call mcp__sky__weather {"city": "Bergen"}',
            "I use mcp__sky__weather.",
        ]
        assert [call.tool for call in conv.open_calls()] == ["mcp__sky__weather"]
        ended = start("two", session, "And now?")
        assert ended.stdout == "Answer 2 to: And now?\n"
        assert texts(conv)[-1] == "Answer 2 to: And now?"
        assert conv.request("openai-chat", model="gpt-4o").tokens > 0
        assert db.verify(deep=True).sound


# The SDK also runs with Trio, where the store raised "no running event loop".
def test_with_trio(db: treering.Treering) -> None:
    trio = pytest.importorskip("trio")
    store = TreeringSessionStore(db)
    entries = turn()

    async def work() -> Any:
        await store.append(KEY, entries)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.append(KEY, [line("user", "Cancelled")])
        listed = await store.list_sessions(KEY["project_key"])
        summaries = await store.list_session_summaries(KEY["project_key"])
        assert [each["session_id"] for each in (*listed, *summaries)] == [KEY["session_id"]] * 2
        loaded = await store.load(KEY)
        await store.delete(KEY)
        return loaded, await store.load(KEY)

    loaded, after = trio.run(work)
    assert loaded[: len(entries)] == entries and after is None


def others_say(conv: treering.Conversation) -> None:
    """A turn with calls, as any program may append it."""
    conv.user("Which port?", new.image(b"\xff\xfe", "image/png"))
    calls = [("c1", "grep", {"pattern": "PORT"}), ("c2", "ls", {})]
    conv.assistant(new.reasoning("Hm."), "I look.", tool_calls=calls)
    conv.tool_result("c1", "PORT = 7171")
    conv.assistant("It is 7171.")


NO_RESULT = "Error: no result: the call had not ended when the conversation went on"


def chained(entries: list[Any]) -> list[Any]:
    """The lines that the SDK sends: it follows `parentUuid` back from the last line."""
    by_id = {entry["uuid"]: entry for entry in entries if "uuid" in entry}
    assert len(by_id) == len([entry for entry in entries if "uuid" in entry])
    chain, at = [], entries[-1]["uuid"]
    while at is not None:
        chain.append(by_id.pop(at))
        at = chain[-1]["parentUuid"]
    return chain[::-1]


def told(entry: Any) -> list[Any]:
    """The blocks of a line, in a short form."""
    content = entry["message"]["content"]
    blocks = [content] if isinstance(content, str) else content
    return [
        block
        if isinstance(block, str)
        else block.get("text") or block.get("id") or block.get("content") or block["type"]
        for block in blocks
    ]


OTHERS = [
    ["Which port?", "image"],
    ["I look."],
    ["c1"],
    ["c2"],
    ["PORT = 7171"],
    [NO_RESULT],
    ["It is 7171."],
]


# Messages of another adapter, program or person were silently left out when the SDK continued a
# session. They must be in the chain of the SDK's lines, always the same, and not be stored again
# when all lines are sent back.
def test_a_session_that_others_went_on_with(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    own = linked(turn(), None)
    run(store.append(KEY, own))
    conv = conversation(db)
    others_say(conv)
    loaded: Any = run(store.load(KEY))
    assert loaded[: len(own)] == own and chained(loaded) == loaded
    assert [told(entry) for entry in loaded[len(own) :]] == OTHERS
    assert run(TreeringSessionStore(db).load(KEY)) == loaded
    head = conv.head()
    for each in (store, TreeringSessionStore(db)):
        run(each.append(KEY, loaded))
        run(each.append(KEY, loaded[-3:]))
    assert conv.head() == head
    # The SDK continues after them, and another program ends the call meanwhile: no link breaks.
    more = linked(turn(), loaded[-1]["uuid"])
    run(store.append(KEY, more))
    conv.tool_result("c2", "README.md")
    again: Any = run(store.load(KEY))
    assert chained(again) == again
    assert [each for each in again if each["uuid"] not in {e["uuid"] for e in loaded}] == more
    assert [told(entry) for entry in again[len(own) : -len(more)]] == [
        ["README.md"] if each == [NO_RESULT] else each for each in OTHERS
    ]
    # A running agent that does not know of them continues after its own last line.
    conv.user("And a person asks.")
    unaware = linked(turn(), more[-1]["uuid"])
    run(store.append(KEY, unaware))
    last: Any = run(TreeringSessionStore(db).load(KEY))
    assert chained(last) == last
    assert [told(entry) for entry in last[-5:-4]] == [["And a person asks."]]
    assert {**last[-4], "parentUuid": more[-1]["uuid"]} == unaware[0]
    assert last[-3:] == unaware[1:]
    run(store.append(KEY, last))
    assert texts(conv).count("Which port?") == texts(conv).count("And a person asks.") == 1


# Providers refuse another program's message between a call of the SDK and its result.
def test_nothing_comes_between_a_call_and_its_result(db: treering.Treering) -> None:
    store = TreeringSessionStore(db)
    own = linked(turn(), None)
    run(store.append(KEY, own[:2]))
    conv = conversation(db)
    conv.user("Meanwhile")
    loaded: Any = run(store.load(KEY))
    assert chained(loaded) == loaded and told(loaded[-1]) == ["Meanwhile"]
    run(store.append(KEY, own[2:]))
    again: Any = run(store.load(KEY))
    assert chained(again) == again
    assert [told(entry)[0] for entry in again[2:]] == [
        "src/config.py:12: PORT = 7171",
        "Meanwhile",
        "In src/config.py, line 12, to 7171.",
    ]


def linked(entries: list[SessionStoreEntry], parent: str | None) -> list[SessionStoreEntry]:
    """Chains the entries by `parentUuid`."""
    for entry in entries:
        cast(Any, entry)["parentUuid"] = parent
        parent = cast(Any, entry)["uuid"]
    return entries


# The SDK's agent continues twice after other programs: its model is sent each message once.
@pytest.mark.slow
def test_an_agent_that_goes_on_after_others(server: Server, tmp_path: Path) -> None:
    async def ask(store: TreeringSessionStore, model: Model, prompt: str, resume: str) -> str:
        options = ClaudeAgentOptions(
            session_store=store,
            resume=resume or None,
            cwd=tmp_path,
            model="claude-sonnet-4-5",
            setting_sources=[],
            env=agent_environment(model, tmp_path / str(uuid4())),
        )
        session = ""
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                assert not message.is_error, message
                session = message.session_id
        return session

    with serving() as model, treering.connect(server.address) as db:
        store = TreeringSessionStore(db)
        session = run(ask(store, model, "Hello", ""))
        [summary] = db.conversations()
        conv = db.conversation(summary.conversation_id)
        others_say(conv)
        for prompt in ("And on", "Still on"):
            session = run(ask(TreeringSessionStore(db), model, prompt, session))
            sent = json.dumps(model.requests[-1]["messages"])
            for said in ("Hello", "Which port?", "I look.", "PORT = 7171", "It is 7171.", prompt):
                assert sent.count(json.dumps(said)) == 1, said
            uses = [block["id"] for block in _blocks(model, "tool_use")]
            results = [block["tool_use_id"] for block in _blocks(model, "tool_result")]
            assert uses == results == ["c1", "c2"]
        spoken = texts(conv)
        assert all(spoken.count(text) == 1 for text in ("Which port?", "It is 7171.", "And on"))
        assert len(conv.open_calls()) == 1


def _blocks(model: Model, kind: str) -> Iterator[Any]:
    for message in model.requests[-1]["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == kind:
                yield block
