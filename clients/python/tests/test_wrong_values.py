"""Wrong values: the error names the program's own parameter, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import treering
from treering import items, new
from treering._words import ProviderName

from .conftest import texts

NAN = float("nan")


# NaN in arguments was stored and sent in requests as invalid JSON. In a context or an item the
# server refused it, but did not name the value.
def test_numbers_that_json_has_not(db: treering.Treering, conv: treering.Conversation) -> None:
    said: list[tuple[Callable[[], Any], str]] = [
        (lambda: conv.tool_call("f", {"x": NAN}), r"arguments\['x'\] is NaN"),
        (lambda: conv.assistant(tool_calls=[("c", "f", {"x": [1, NAN]})]), r"\['x'\]\[1\] is NaN"),
        (lambda: new.tool_call("c", "f", {"x": -float("inf")}), r"\['x'\] is -Infinity"),
        (lambda: conv.set_context({"fine": 1, "odd": NAN}), "the value of 'odd' is NaN"),
        (lambda: db.items.put(("a",), "k", {"n": {"m": NAN}}), r"of 'k'\['n'\]\['m'\] is NaN"),
        (lambda: items.conditions([("n", "=", NAN)]), "the value for 'n' is NaN"),
        (lambda: conv.tool_result("c", structured={NAN: 1}), "a key of structured is NaN"),
        (lambda: db.create(parameters={"temperature": NAN}), r"parameters\['temperature'\] is NaN"),
        (lambda: conv.change(metadata={"m": NAN}), r"metadata\['m'\] is NaN"),
        (lambda: conv.request("anthropic", policy={"p": NAN}), r"policy\['p'\] is NaN"),
    ]
    before = conv.head()
    for give, what in said:
        with pytest.raises(ValueError, match=what + ".*use None or a string"):
            give()
    assert conv.head() == before
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ValueError, match="Circular"):
        new.tool_call("c", "f", ring)
    # NaN is allowed in results, which are text for the model, and in arguments written by a model.
    asked = conv.assistant(tool_calls=[("c", "f", '{"x": NaN}')]).calls[0]
    asked.run(lambda x: {"loss": x})
    assert conv.result("c").text == '{"loss":NaN}'


# A body that was no answer (an error, a chunk of a stream, another provider's format) was stored as
# an empty answer, and the agent continued.
def test_what_is_no_answer(conv: treering.Conversation) -> None:
    error = {"error": {"type": "overloaded_error", "message": "secret"}}
    piece = {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    chat = {"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}
    said: list[tuple[ProviderName, Any, str]] = [
        ("anthropic", {"foo": 1}, "not an answer of anthropic: it has no list .*its fields: foo"),
        ("anthropic", {"type": "error", **error}, "it is an error"),
        ("anthropic", chat, "its fields: choices"),
        ("anthropic", {"content": "Hello"}, "no list `content`"),
        ("anthropic", {"content": [{"type": "tool_use", "name": "ls"}]}, "`id` is missing"),
        ("anthropic", {"content": ["Hello"]}, "not an answer of anthropic"),
        ("openai-chat", error, "it is an error"),
        ("openai-chat", piece, "no `message`: for a stream"),
        ("openai-chat", {"choices": []}, "no list `choices`"),
        ("openai-responses", {**error, "output": None}, "it is an error"),
        ("openai-responses", {**error, "output": [], "status": "failed"}, "it is an error"),
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, "its fields: promptFeedback"),
        ("gemini", {}, "its fields: nothing"),
    ]
    before = conv.head()
    for provider, response, what in said:
        with pytest.raises(ValueError, match=what) as refused:
            conv.record(provider, response)
        assert "secret" not in str(refused.value)
    assert conv.head() == before
    # Answers of models may be empty.
    conv.record("anthropic", {"content": [], "stop_reason": "end_turn"})
    conv.record("gemini", {"candidates": [{"finishReason": "SAFETY"}]})
    conv.record("openai-responses", {"output": [], "status": "incomplete"})
    conv.record("openai-chat", chat)
    assert texts(conv) == ["", "", "", "Hello"]


# A list with one bad message raised `KeyError: 'role'`, without the index of the message.
def test_a_message_of_a_list_that_is_none(conv: treering.Conversation) -> None:
    fine = {"role": "user", "content": "Hello"}
    said: list[tuple[ProviderName, Any, str]] = [
        (
            "openai-chat",
            {"content": "x"},
            "message 1 is not a message of openai-chat: `role` is missing",
        ),
        (
            "openai-chat",
            {"role": "robot", "content": "x"},
            "message 1 .*`robot` is not allowed here: use one of",
        ),
        ("openai-chat", "x", "message 1 .*not a dict"),
        ("openai-chat", {"role": "user", "content": ["x"]}, "message 1"),
        (
            "anthropic",
            {"role": "user"},
            "message 1 is not a message of anthropic: `content` is missing",
        ),
    ]
    before = conv.head()
    for provider, message, what in said:
        with pytest.raises(ValueError, match=what):
            conv.extend(provider, [fine, message])
    assert conv.head() == before


# `openai_chat`, a spelling of other programs, worked in `request` but not in `record`.
def test_names_of_providers(conv: treering.Conversation) -> None:
    chat = {"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}
    for name in ("openai-chat", "openai_chat", "OpenAI-Chat"):
        provider: Any = name
        conv.extend(provider, [{"role": "user", "content": "Hello"}])
        conv.record(provider, chat)
        assert conv.request(provider, model="gpt-4o")["messages"]
    unknown: Any = "openai_chats"
    for call in (conv.request, lambda name: conv.record(name, chat)):
        with pytest.raises(
            ValueError, match=r"`openai_chats` is not allowed here: use one of .*openai-chat"
        ):
            call(unknown)


# Bytes, None and numbers instead of text raised errors about protobuf classes. A lone surrogate
# (from text that was cut within a character) raised an error of a Python codec.
def test_what_is_no_text(db: treering.Treering, conv: treering.Conversation) -> None:
    given: Any
    for given, what in [(b"Hi", "bytes: decode them"), (None, "NoneType"), (5, "int")]:
        for say in (conv.user, conv.assistant, conv.tool_call("f").result):
            with pytest.raises(TypeError, match=f"content is {what}.*use str"):
                say(given)
        with pytest.raises(TypeError, match=r"the prompt is .*, expected str"):
            conv.system(given)
    half = "a\ud800b"
    said: list[tuple[Callable[[], Any], str]] = [
        (lambda: conv.user(half), "the text has half of a surrogate pair at character 1"),
        (lambda: conv.system(half), "the prompt has half"),
        (lambda: conv.tool_call("f", {"x": half}), "the JSON of arguments has half"),
        (lambda: conv.tool_call("f", half), "arguments has half"),
        (lambda: conv.set_context({"k": half}), "the JSON of the value of 'k' has half"),
        (lambda: db.items.put(("a",), "k", half), "the JSON of the value of 'k' has half"),
        (lambda: db.create(half), "the title has half"),
        (lambda: db.search(half), "the query has half"),
    ]
    for give, what in said:
        with pytest.raises(ValueError, match=what) as refused:
            give()
        assert type(refused.value) is ValueError
    conv.user("a\U0001f333b", half.encode(errors="replace").decode())
    assert texts(conv) == ["a\U0001f333ba?b"]
    assert conv.tool_calls() == []


# An invalid address was tried as long as a server that is down, or raised gRPC's own error. For a
# key with a newline, the error pointed to the log of the server.
def test_where_no_server_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    none = ["", " ", "not an address", "http://", "127.0.0.1:x", "127.0.0.1:99999", ":7171"]
    for address in [*none, "ftp://127.0.0.1:7171", "http://127.0.0.1:7171/v1", "a:7171\n"]:
        for connect in (treering.connect, treering.aio.connect):
            with pytest.raises(ValueError, match="not an address: use host:port"):
                connect(address)
    nothing: Any = None
    with pytest.raises(TypeError, match="an address is a str"):
        treering.connect(nothing)
    for address in ["localhost", "[::1]:7171", "::1", "https://a.example/", "unix:/run/x", "ä:1"]:
        treering.connect(address).close()
    for token in ("secret\n", "s\u00e4cret"):
        with pytest.raises(ValueError, match="`token` has a character that cannot be sent") as said:
            treering.connect(token=token)
        assert "cret" not in str(said.value)
    with pytest.raises(ValueError, match="`namespace` has"):
        treering.connect(namespace="s\u00e4cret")
    monkeypatch.setenv("TREERING_TOKEN", "secret\n")
    with pytest.raises(ValueError, match="TREERING_TOKEN has a character"):
        treering.connect()


# A result that is too large for an event was sent up to the limit and refused with the limit as its
# size, and with wrong advice. A call that had not started was recorded meanwhile.
def test_a_result_that_no_event_holds(conv: treering.Conversation) -> None:
    size = (64 << 20) - (64 << 10) + 1
    conv.assistant(tool_calls=[("c", "f", {})])
    before = conv.head()
    for give in (conv.tool_call("g").result, lambda *content: conv.tool_result("c", *content)):
        for content in (["y" * size], ["y" * (size - 4), "\u00e9\u00e9"], [new.file(b"y" * size)]):
            with pytest.raises(treering.TooLarge, match=r"event is 67043328.*in a file") as refused:
                give(*content)
            assert (refused.value.max, refused.value.reason) == (size - 1, "TOO_LARGE")
            if len(content) == 1 and isinstance(content[0], str):
                assert f"the result has {size} bytes" in str(refused.value)
    assert conv.head() == before


# A single kind as a string was split into letters: "`m` is none of conversation_created, …".
def test_one_word_in_the_place_of_several(db: treering.Treering) -> None:
    conv = db.create("One")
    said = conv.append([new.user("Hello"), new.custom("note", {}, key="a")])
    found = [
        *conv.events(kinds="message_appended"),
        *db.events(kinds="message_appended"),
        *db.latest([conv.id], kinds="message_appended"),
        *db.search("Hello", kinds="message_appended", roles="user"),
    ]
    assert [each and each.revision for each in found] == [said.revisions[0]] * 4
    with conv.subscribe(kinds="message_appended") as events:
        assert next(iter(events)).text == "Hello"
    found = db.latest([conv.id], keys="a", types="note")
    assert [each and each.key for each in found] == ["a", "a"]
    with pytest.raises(
        ValueError, match="`note` is not allowed here: use one of conversation_created"
    ):
        list(conv.events(kinds="note"))  # type: ignore[arg-type]


# `since="2 days"`, which the command line accepts, raised "'str' object has no attribute".
def test_times_as_text(db: treering.Treering) -> None:
    conv = db.create("Times")
    conv.user("Hello")
    for past in ("2 days", "3h ago", "1 week", "2026-01-31", "2026-01-31 08:00Z", timedelta(1)):
        assert [hit.snippet for hit in db.search("Hello", since=past)] == ["Hello"], past
        assert db.search("Hello", until=past, happened_until=past) == []
        assert len(list(conv.events(since=past))) == 2
        assert list(db.events(until=past)) == []
        assert [found.title for found in db.conversations(updated_since=past)] == ["Times"]
        assert list(db.conversations(updated_until=past)) == []
    bad: Any
    for bad in ("soon", "", "two days", "99999999999 days", "2026-13-01"):
        with pytest.raises(ValueError, match="since is not a time: use a datetime"):
            db.search("Hello", since=bad)
    with pytest.raises(TypeError, match="updated_until is int, expected a datetime"):
        bad = 5
        next(db.conversations(updated_until=bad))


# A result that is a dict was refused, although `call.run` accepts it.
def test_a_result_that_is_a_dict(conv: treering.Conversation) -> None:
    value = {"rows": [1, None], "name": "b\u00e4r", "loss": NAN}
    conv.tool_call("f", call_id="ran").run(lambda: value)
    conv.tool_call("f", call_id="one").result(value)
    conv.tool_call("f", call_id="two").request()
    conv.tool_result("two", value)
    conv.tool_call("f", call_id="three").request()
    conv.append([new.tool_result("three", value)])
    said = {conv.result(id).text for id in ("ran", "one", "two", "three")}
    assert said == {'{"rows":[1,null],"name":"b\u00e4r","loss":NaN}'}
    conv.tool_call("f", call_id="four").fail("no", [{"at": 1}])
    assert conv.result("four").text.splitlines() == ['[{"at":1}]', "no"]
