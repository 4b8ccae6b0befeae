"""Calls that the store's API refuses, in the frameworks other than LangGraph."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

import treering
from treering._adapters import odd

from ..conftest import run

CALLS = {
    "an empty id": ("", "f"),
    "a long id": ("c" * 600, "f"),
    "an empty name": ("c1", ""),
    "a long name": ("c2", "f" * 600),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> tuple[str, str]:
    return CALLS[request.param]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of the adapters, without those of the frameworks."""
    return [each.message for each in caplog.records if each.name == "treering.adapters"]


def check(conv: treering.Conversation, caplog: pytest.LogCaptureFixture) -> None:
    """Checks that the call, its result and the messages around it are stored, with one warning."""
    events = conv.events(kinds=["message_appended", "tool_call_requested", "tool_result_recorded"])
    said = [(event.kind.split("_")[1], event.text) for event in events]
    kinds = [kind for kind, _ in said]
    assert kinds == ["appended", "call", "result", "appended"]
    assert (said[0][1], said[-1][1]) == ("Where?", "zebra")
    [asked] = conv.tool_calls()
    assert asked.status == "succeeded"
    assert asked.tool in ("f", "f" * 512, "unnamed")
    [warning] = warned(caplog)
    assert len(warning) > 40 and "c" * 200 not in warning
    body = conv.request("anthropic", model="claude-sonnet-4-5")
    assert len(body["messages"]) == 4


# ---- each framework ----


# A call with too long an id or name was not in the log; a call with an empty id lost its result.
def test_openai_agents(
    db: treering.Treering, call: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("agents")
    from treering.openai_agents import TreeringSession

    id, name = call
    items: list[Any] = [
        {"role": "user", "content": "Where?"},
        {"type": "function_call", "call_id": id, "name": name, "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": id, "output": "out"},
        {"role": "assistant", "content": "zebra"},
    ]
    for item in items:
        # Each by a new session without cached state.
        run(TreeringSession("user-42", db).add_items([item]))
    assert run(TreeringSession("user-42", db).get_items()) == items
    check(db.conversation("user-42"), caplog)
    # All at once.
    caplog.clear()
    run(TreeringSession("user-43", db).add_items(items))
    check(db.conversation("user-43"), caplog)


# A result that a TypeScript program adds must find the call that a Python program recorded. The
# packages derived different ids from a long id, so the call stayed open. The TypeScript package has
# the same test.
def test_a_long_id_has_the_same_stand_in_in_both_packages(db: treering.Treering) -> None:
    pytest.importorskip("agents")
    from treering.openai_agents import TreeringSession

    def asked(id: str) -> Any:
        return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}

    def found(id: str) -> Any:
        return {"type": "function_call_output", "call_id": id, "output": "out"}

    id = "c" * 600
    run(TreeringSession("user-42", db).add_items([asked(id)]))
    conv = db.conversation("user-42")
    assert [call.call_id for call in conv.tool_calls()] == ["call_57fd257874f8d878d660bf59"]
    # The id is used again, after its result and beside an open call with it.
    run(TreeringSession("user-42", db).add_items([found(id), asked(id), asked(id), found(id)]))
    assert len(list(conv.events(kinds=["tool_call_requested"]))) == 3
    assert len(list(conv.events(kinds=["tool_result_recorded"]))) == 2


# The same. A call with an empty name was lost too.
def test_google_adk(
    db: treering.Treering, call: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("google.adk")
    from google.adk.events.event import Event
    from google.genai import types

    from treering.google_adk import TreeringSessionService

    id, name = call
    asked = types.FunctionCall(id=id, name=name, args={})
    found = types.FunctionResponse(id=id, name=name, response={"result": "out"})
    said = [
        ("user", types.Part(text="Where?")),
        ("helper", types.Part(function_call=asked)),
        ("helper", types.Part(function_response=found)),
        ("helper", types.Part(text="zebra")),
    ]

    async def work() -> None:
        service = TreeringSessionService(db)
        await service.create_session(app_name="app", user_id="ada", session_id="s")
        for author, part in said:
            service = TreeringSessionService(db)
            session = await service.get_session(app_name="app", user_id="ada", session_id="s")
            assert session is not None
            content = types.Content(role="user" if author == "user" else "model", parts=[part])
            await service.append_event(session, Event(author=author, content=content))
        kept = await service.get_session(app_name="app", user_id="ada", session_id="s")
        assert kept is not None
        parts = [event.content.parts for event in kept.events if event.content]
        assert parts == [[part] for _, part in said]

    run(work())
    check(db.conversation("app/ada/s"), caplog)


def test_claude_agent_sdk(
    db: treering.Treering, call: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("claude_agent_sdk")
    from claude_agent_sdk import SessionKey

    from treering.claude_agent_sdk import TreeringSessionStore

    id, name = call
    key: SessionKey = {"project_key": "p", "session_id": "s"}
    use = {"type": "tool_use", "id": id, "name": name, "input": {}}
    said: list[tuple[str, Any]] = [
        ("user", "Where?"),
        ("assistant", [use]),
        ("user", [{"type": "tool_result", "tool_use_id": id, "content": "out"}]),
        ("assistant", [{"type": "text", "text": "zebra"}]),
    ]
    lines: list[Any] = [
        {"type": role, "uuid": str(n), "message": {"role": role, "content": content}}
        for n, (role, content) in enumerate(said)
    ]
    for line in lines:
        run(TreeringSessionStore(db).append(key, [line]))
    assert run(TreeringSessionStore(db).load(key)) == lines
    check(db.conversation("p/s"), caplog)


# A save with such a call was not in the log at all, including the question and the answer.
def test_pydantic_ai(
    db: treering.Treering, call: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import messages as ai
    from pydantic_ai.conversation import Conversation

    from treering.pydantic_ai import TreeringConversationStore

    id, name = call
    history: list[ai.ModelMessage] = [
        ai.ModelRequest(parts=[ai.UserPromptPart("Where?")]),
        ai.ModelResponse(parts=[ai.ToolCallPart(name, {}, id)]),
        ai.ModelRequest(parts=[ai.ToolReturnPart(name, "out", id)]),
        ai.ModelResponse(parts=[ai.TextPart("zebra")]),
    ]

    async def work(id: str, counts: list[int]) -> None:
        conversation = Conversation(conversation_id=id)
        for count in counts:
            store = TreeringConversationStore(db)
            conversation = await store.load(id) or conversation
            conversation.messages = history[:count]
            await store.save(conversation)
        kept = await TreeringConversationStore(db).load(id)
        assert kept is not None and kept.messages == history

    run(work("steps", [1, 2, 3, 4]))
    check(db.conversation("steps"), caplog)
    caplog.clear()
    run(work("whole", [4]))
    check(db.conversation("whole"), caplog)


# If the store refuses one item by a rule that this client does not know, the others are stored.
def test_what_the_store_refuses_alone_is_left_out(
    db: treering.Treering, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("agents")
    from treering.openai_agents import TreeringSession

    monkeypatch.setattr(odd, "within", lambda events, seed, standing: (list(events), []))
    items: list[Any] = [
        {"role": "user", "content": "Where?"},
        {"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "out"},
        {"role": "assistant", "content": "zebra"},
    ]
    run(TreeringSession("user-42", db).add_items(items))
    events = db.conversation("user-42").events(kinds=["message_appended"])
    assert [event.text for event in events] == ["Where?", "out", "zebra"]
    assert run(TreeringSession("user-42", db).get_items()) == items
    assert len(warned(caplog)) == 1


# ---- values ----


# No value of a program may prevent a message from being stored.
def test_values_are_said_as_text_where_json_has_no_form() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd \ud800"

    halves = "\ud83d" + "\ude00"
    value = {1: float("nan"), "a": [float("-inf"), {2}, (b"\xff",)], "b": Odd(), "c": halves}
    said = odd.plainly(value)
    assert json.loads(odd.strict_json(said)) == {
        "1": "NaN",
        "a": ["-Infinity", [2], ["/w=="]],
        "b": "odd \ufffd",
        "c": "\U0001f600",
    }
    with pytest.raises(ValueError):
        odd.strict_json(cast(Any, value["a"]))
