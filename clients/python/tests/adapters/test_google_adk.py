"""The ADK's session service: the same scenarios on its SQLite service and on ours."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import treering

pytest.importorskip("google.adk")

from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

from treering import new
from treering.google_adk import TreeringSessionService

from ..conftest import Server, run, texts
from .model import Model, serving

ADA: dict[str, Any] = {"app_name": "app", "user_id": "ada"}


def event(
    author: str,
    *parts: types.Part,
    at: float = 0,
    state: dict[str, Any] | None = None,
    id: str = "",
) -> Event:
    made = Event(
        author=author,
        invocation_id="i",
        content=types.Content(role="user" if author == "user" else "model", parts=list(parts)),
        actions=EventActions(state_delta=state or {}),
    )
    made.timestamp = at or made.timestamp
    return made


def text(words: str) -> types.Part:
    return types.Part(text=words)


def turn() -> list[Event]:
    call = types.FunctionCall(id="c1", name="grep", args={"pattern": "PORT", "n": 1.0})
    found = types.FunctionResponse(id="c1", name="grep", response={"result": "PORT = 7171"})
    orphan = types.FunctionResponse(id="c9", name="grep", response={"error": "nobody asked"})
    return [
        event("user", text("Where is the port of the server set?"), at=10),
        event(
            "helper",
            types.Part(text="I should look for it.", thought=True, thought_signature=b"\x00\xff"),
            text("I look."),
            types.Part(function_call=call),
            at=11,
            state={"found": None, "user:asked": 1, "app:asked": [1], "temp:x": 1},
        ),
        event("helper", types.Part(function_response=found), at=12),
        event("helper", types.Part(function_response=orphan), at=12),
        event("helper", types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png"))),
        event("helper", text("In config.py."), state={"found": {"line": 12}, "user:asked": 2}),
    ]


def told(session: Session | None) -> Any:
    if session is None:
        return None
    events = [json.loads(each.model_dump_json(exclude_none=True)) for each in session.events]
    return [session.id, session.user_id, session.state, session.last_update_time, events]


# ---- comparison with SQLite ----


async def one_session(service: BaseSessionService, events: list[Event]) -> Any:
    state = {"a": 1, "app:b": {"c": [1]}, "user:d": "e", "temp:f": 1}
    session = await service.create_session(**ADA, session_id="s", state=state)
    created = [session.id, session.state, session.events]
    for each in events:
        await service.append_event(session, each.model_copy(deep=True))
    answers = [created, session.state, told(await service.get_session(**ADA, session_id="s"))]
    configs = [
        GetSessionConfig(num_recent_events=2),
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(num_recent_events=100),
        GetSessionConfig(after_timestamp=12),
        GetSessionConfig(after_timestamp=11, num_recent_events=1),
    ]
    for config in configs:
        answers.append(told(await service.get_session(**ADA, session_id="s", config=config)))
    partial = event("helper", text("part of"))
    partial.partial = True
    await service.append_event(session, partial)
    answers.append(told(await service.get_session(**ADA, session_id=" s "))[3:])
    return answers


async def several(service: BaseSessionService, events: list[Event]) -> Any:
    for app, user in (("app", "ada"), ("app", "bob"), ("app/ada", "x"), ("app", "ada/x")):
        for name in ("1", "2"):
            session = await service.create_session(
                app_name=app, user_id=user, session_id=name, state={"user:of": user, "app:of": app}
            )
            at = session.last_update_time + 1
            change = {f"app:{user}": name, f"user:{name}": user, "own": name}
            await service.append_event(session, event("user", text(user), at=at, state=change))
    answers: list[Any] = []
    for who in (None, "ada", "bob", "ada/x", "nobody"):
        found = (await service.list_sessions(app_name="app", user_id=who)).sessions
        answers.append(sorted([each.id, each.user_id, each.state, each.events] for each in found))
    await service.delete_session(**ADA, session_id="1")
    await service.delete_session(**ADA, session_id="never")
    answers.append(told(await service.get_session(**ADA, session_id="1")))
    answers.append(len((await service.list_sessions(app_name="app")).sessions))
    again = await service.create_session(**ADA, session_id="1")
    answers.append([again.state, again.events])
    for user in ("ada", "bob", "nobody"):
        answers.append(await service.get_user_state(app_name="app", user_id=user))
    return answers


async def what_is_refused(service: BaseSessionService, events: list[Event]) -> Any:
    session = await service.create_session(**ADA, session_id="s")
    stale = await service.get_session(**ADA, session_id="s")
    assert stale is not None
    refused = []
    at = session.last_update_time + 10
    await service.append_event(session, event("user", text("first"), at=at))
    later = event("user", text("second"), at=at + 1, state={"app:x": 1})
    for work in (
        service.create_session(**ADA, session_id="s"),
        service.append_event(stale, later),
        service.append_event(Session(id="no", app_name="app", user_id="ada"), later),
    ):
        try:
            await work
        except (AlreadyExistsError, SessionNotFoundError, ValueError) as error:
            refused.append(type(error).__name__)
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    return [refused, found.state, len(found.events)]


async def half_a_character(service: BaseSessionService, events: list[Event]) -> Any:
    for name in ("a", "app:a", "user:a"):
        state = {name: "x\ud800", "list": ["\udc00"]}
        await service.create_session(**ADA, session_id=f"of {name}", state=state)
    kept = [await service.get_session(**ADA, session_id=f"of {n}") for n in ("a", "user:a")]
    return [session.state for session in kept if session]


STORIES: list[Callable[[BaseSessionService, list[Event]], Awaitable[Any]]] = [
    one_session,
    several,
    half_a_character,
    what_is_refused,
]


def without_now(value: Any) -> Any:
    """Replaces the times at which sessions were created."""
    if isinstance(value, list):
        return [without_now(each) for each in value]
    return "now" if isinstance(value, float) and value > 1e9 else value


# Our service must behave like the ADK's own service.
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_as_with_sqlite(
    story: Callable[[BaseSessionService, list[Event]], Awaitable[Any]],
    db: treering.Treering,
    tmp_path: Path,
) -> None:
    events = turn()

    async def both() -> tuple[Any, Any]:
        its = SqliteSessionService(str(tmp_path / "its.db"))
        return await story(TreeringSessionService(db), events), await story(its, events)

    ours, its = run(both())
    assert without_now(ours) == without_now(its)
    assert db.verify(deep=True).sound


# A session continues on a fork, with the events and the state up to the fork.
def test_a_session_that_goes_on_from_a_fork(db: treering.Treering) -> None:
    async def work() -> None:
        service = TreeringSessionService(db)
        session = await service.create_session(**ADA, session_id="s", state={"n": 0})
        for number in range(1, 4):
            await service.append_event(
                session, event("user", text(f"Number {number}"), at=number, state={"n": number})
            )
        conv = db.conversation("app/ada/s")
        second = next(each for each in conv.events() if each.text == "Number 2")
        conv.fork(at=second.revision, name="other", activate=True)
        for each in (service, TreeringSessionService(db)):
            found = await each.get_session(**ADA, session_id="s")
            assert found is not None and found.state["n"] == len(found.events) == 2
        session.last_update_time = 2
        await service.append_event(session, event("user", text("Other"), at=5, state={"n": 9}))
        assert texts(conv) == ["Number 1", "Number 2", "Other"]
        await service.delete_session(**ADA, session_id="s")
        assert (await service.list_sessions(app_name="app")).sessions == []

    run(work())


# ---- agents that run ----


class Asking(BaseLlm):
    """The scripted model, over HTTP."""

    url: str = ""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said = []
        for content in llm_request.contents:
            for part in content.parts or ():
                if part.function_response:
                    found = str((part.function_response.response or {}).get("result"))
                    said.append({"role": "tool", "content": found})
                elif part.text:
                    role = "user" if content.role == "user" else "assistant"
                    said.append({"role": role, "content": part.text})
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps({"model": "m", "messages": said}).encode(),
            {"Content-Type": "application/json"},
        )

        def ask() -> Any:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["choices"][0]["message"]

        message = await asyncio.to_thread(ask)
        parts = [text(message["content"])]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            made = types.FunctionCall(
                id=call["id"], name=function["name"], args=json.loads(function["arguments"])
            )
            parts.append(types.Part(function_call=made))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def ask(service: BaseSessionService, model: Model, tool: Any, *prompts: str) -> list[str]:
    helper = LlmAgent(name="helper", model=Asking(model="m", url=model.url), tools=[tool])
    runner = Runner(app_name="app", agent=helper, session_service=service, auto_create_session=True)
    answers = []
    for prompt in prompts:
        content = types.Content(role="user", parts=[text(prompt)])
        async for each in runner.run_async(user_id="ada", session_id="s", new_message=content):
            if each.is_final_response() and each.content and each.content.parts:
                answers.append(str(each.content.parts[0].text))
    return answers


# The server is killed during a run of the ADK's own loop.
@pytest.mark.slow
def test_an_agent_and_a_server_that_is_killed(server: Server) -> None:
    async def weather(city: str) -> str:
        """The weather."""
        await asyncio.to_thread(server.kill)
        asyncio.get_running_loop().call_later(0.3, server.start)
        return f"It rains in {city}."

    with serving() as model, treering.connect(server.address) as db:
        db.stats()
        service = TreeringSessionService(db)
        prompts = ["Hello", 'call weather {"city": "Bergen"}', "And now?"]
        answers = run(ask(service, model, weather, *prompts))
        assert answers[0] == "Answer 1 to: Hello"
        assert "It rains in Bergen." in answers[1]
        session = run(TreeringSessionService(db).get_session(**ADA, session_id="s"))
        assert session is not None and len(session.events) == 8
        conv = db.conversation("app/ada/s")
        assert texts(conv)[0] == "Hello" and texts(conv)[-1].startswith("Answer 3")
        assert conv.tool_calls()[0].status == "succeeded"
        [hit] = db.search("rains", kinds=["tool_result_recorded"])
        assert hit.tool == "weather"
        body = conv.request("anthropic", model="claude-sonnet-4-5")
        assert len(body["messages"]) == 8
        assert db.verify(deep=True).sound


# A program is killed while its tool runs: the prompt and the call are stored, and the next program
# continues the session.
@pytest.mark.slow
def test_a_program_that_is_killed(server: Server) -> None:
    program = f"""
import asyncio, os, signal, sys, treering
from tests.adapters.model import Model
from tests.adapters.test_google_adk import ask
from treering import new
from treering.google_adk import TreeringSessionService

def weather(city: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)

with treering.connect("{server.address}") as db:
    work = ask(TreeringSessionService(db), Model(sys.argv[1]), weather, sys.argv[2])
    print(asyncio.run(work))
"""
    with serving() as model, treering.connect(server.address) as db:

        def start(prompt: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program, model.url, prompt]
            return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)

        assert start("Hello").stdout == "['Answer 1 to: Hello']\n"
        assert start('call weather {"city": "Bergen"}').returncode == -signal.SIGKILL
        conv = db.conversation("app/ada/s")
        assert [call.tool for call in conv.open_calls()] == ["weather"]
        assert texts(conv)[-2:] == ['call weather {"city": "Bergen"}', "I use weather."]
        assert start("And now?").stdout == "['Answer 3 to: And now?']\n"
        session = run(TreeringSessionService(db).get_session(**ADA, session_id="s"))
        assert session is not None and len(session.events) == 6
        assert conv.request("anthropic", model="claude-sonnet-4-5").tokens > 0
        assert db.verify(deep=True).sound


# Two programs change the state of one user, each from its own session.
def test_two_programs_and_one_user(server: Server) -> None:
    program = f"""
import asyncio, sys, treering
from tests.adapters.test_google_adk import ADA, event, text
from treering import new
from treering.google_adk import TreeringSessionService
async def work(db):
    service = TreeringSessionService(db)
    session = await service.create_session(**ADA, session_id=sys.argv[1])
    for n in range(20):
        change = {{f"user:{{sys.argv[1]}}": n, "app:last": n}}
        await service.append_event(session, event("user", text(str(n)), state=change))
with treering.connect("{server.address}") as db:
    asyncio.run(work(db))
"""
    programs = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "ab"]
    assert [each.wait(100) for each in programs] == [0, 0]
    with treering.connect(server.address) as db:
        service = TreeringSessionService(db)
        assert run(service.get_user_state(app_name="app", user_id="ada")) == {"a": 19, "b": 19}
        found = run(service.get_session(**ADA, session_id="a"))
        assert found is not None and found.state["app:last"] == 19 and len(found.events) == 20
        assert db.verify(deep=True).sound


# If other writers win every attempt, a call fails. Deleting and creating used to return as if done.
def test_a_session_that_others_keep_writing_to(
    db: treering.Treering, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = TreeringSessionService(db)
    run(service.create_session(**ADA, session_id="s"))
    monkeypatch.setattr("treering.google_adk.ATTEMPTS_MAX", 0)
    monkeypatch.setattr("treering._adapters.thread.ATTEMPTS_MAX", 0)
    with pytest.raises(treering.errors.RevisionMismatch, match="other writers kept writing"):
        run(service.delete_session(**ADA, session_id="s"))
    assert run(service.get_session(**ADA, session_id="s")) is not None
    with pytest.raises(treering.errors.RevisionMismatch, match="other writers kept writing"):
        run(service.create_session(**ADA, session_id="t"))


# A cancelled event must be stored in full, with the state of session, user and app, or not at all.
def test_events_that_are_cancelled(db: treering.Treering) -> None:
    async def work() -> None:
        service = TreeringSessionService(db)
        session = await service.create_session(**ADA, session_id="s")
        for number in range(30):
            change = {"n": number, "user:n": number, "app:n": number}
            task = asyncio.create_task(
                service.append_event(session, event("user", text("x"), state=change))
            )
            await asyncio.sleep(0.0004 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = await TreeringSessionService(db).get_session(**ADA, session_id="s")
            assert found is not None
            assert found.state.get("n") == found.state.get("user:n") == found.state.get("app:n")
            # An event that is stored is not appended again.
            session = found

    run(work())


# When another adapter or a plain append continued a session, those messages were silently missing
# from what the ADK's agent was sent.
def test_a_session_that_others_went_on_with(db: treering.Treering) -> None:
    def weather(city: str) -> str:
        """The weather."""
        return f"It rains in {city}."

    with serving() as model:
        service = TreeringSessionService(db)
        run(ask(service, model, weather, "Hello"))
        conv = db.conversation("app/ada/s")
        conv.user("Which port?", new.image(b"\xff\xfe", "image/png"))
        calls = [("c1", "grep", {"pattern": "PORT"}), ("c2", "ls", {})]
        conv.assistant(new.reasoning("Hm."), "I look.", tool_calls=calls)
        conv.tool_result("c1", "PORT = 7171")
        conv.assistant("It is 7171.")
        for each in (service, TreeringSessionService(db)):
            run(ask(each, model, weather, "And on"))
            sent = [said["content"] for said in model.requests[-1]["messages"]]
            start = ["Hello", "Answer 1 to: Hello", "Which port?", "I look.", "PORT = 7171"]
            assert [said for said in sent if said != "None"][: len(start)] == start
            assert "It is 7171." in sent and not any("For context" in said for said in sent)
        own = run(service.get_session(**ADA, session_id="s"))
        again = run(TreeringSessionService(db).get_session(**ADA, session_id="s"))
        assert own == again and own is not None
        parts = [
            part for each in own.events for part in (each.content and each.content.parts) or ()
        ]
        assert [part.inline_data.data for part in parts if part.inline_data] == [b"\xff\xfe"]
        told = [part.function_response.response for part in parts if part.function_response]
        no = "no result: the call had not ended when the conversation went on"
        assert told == [{"error": f"Error: {no}"}, {"result": "PORT = 7171"}]
        # No message is stored twice.
        assert texts(conv).count("Which port?") == 1 and len(conv.open_calls()) == 1


def noted_calls(db: treering.Treering, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which the path of each call is added."""
    called: list[str] = []
    unary = db._transport.unary

    def noted(method: Any, *given: Any, **more: Any) -> Any:
        called.append(method.path)
        return unary(method, *given, **more)

    monkeypatch.setattr(db._transport, "unary", noted)
    return called


# A list of 300 sessions took 1,500 calls, because each session was read with its user and app.
def test_a_list_reads_pages(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(service: BaseSessionService) -> None:
        for number in range(12):
            at = {"app_name": "app", "user_id": f"u{number % 2}", "session_id": f"s{number}"}
            state = {"n": number, "app:a": number, f"user:x{number}": [number]}
            session = await service.create_session(**at, state=state)
            for step in range(number % 3):
                changed = {"step": step, "n": None, "app:b": step, "long": "x" * 5_000}
                actions = EventActions(state_delta=changed if step == 0 else {"step": step})
                await service.append_event(session, Event(author="user", actions=actions))
                await service.append_event(session, Event(author="agent"))
        await service.delete_session(app_name="app", user_id="u1", session_id="s1")
        await service.delete_session(app_name="app", user_id="u1", session_id="s3")
        await service.create_session(app_name="app", user_id="u1", session_id="s3")

    def told(service: BaseSessionService, user: str | None) -> Any:
        listed = run(service.list_sessions(app_name="app", user_id=user))
        return sorted((each.user_id, each.id, each.state, each.events) for each in listed.sessions)

    theirs = SqliteSessionService(str(tmp_path / "its.db"))
    run(fill(theirs))
    with treering.connect(server.address) as db:
        run(fill(TreeringSessionService(db)))
        for user in (None, "u0", "u1", "nobody"):
            assert told(TreeringSessionService(db), user) == told(theirs, user)
        service = TreeringSessionService(db)
        for each in run(service.list_sessions(app_name="app")).sessions:
            got = run(
                TreeringSessionService(db).get_session(
                    app_name="app", user_id=each.user_id, session_id=each.id
                )
            )
            assert got is not None and got.last_update_time == each.last_update_time
        called = noted_calls(db, monkeypatch)
        told(TreeringSessionService(db), "u0")
        names = [path.rpartition("/")[2] for path in called]
        assert sorted(names) == ["Get", "Get", "Get", "Latest", "List"]


# A list of all users' sessions read each user, so that 300 users cost 300 calls.
def test_a_list_of_all_users_reads_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(service: BaseSessionService) -> dict[str, Any]:
        listed = run(service.list_sessions(app_name="many"))
        return {each.user_id: each.state for each in listed.sessions}

    wanted: dict[str, Any] = {}
    with treering.connect(server.address) as db:
        service = TreeringSessionService(db)
        for number in range(12):
            state = {"n": number, **({"user:name": f"User {number}"} if number % 3 else {})}
            at = {"app_name": "many", "user_id": f"u{number}", "session_id": "s"}
            session = run(service.create_session(**at, state=state))
            if number == 7:
                changed = {"user:name": "Changed", "user:more": [1]}
                actions = EventActions(state_delta=changed)
                run(service.append_event(session, Event(author="user", actions=actions)))
                state.update(changed)
            wanted[f"u{number}"] = state
        called = noted_calls(db, monkeypatch)
        assert states(TreeringSessionService(db)) == wanted
    # The app and one user, whose state changed after it was created, are read; the others are not.
    assert len(called) == 5, called
