"""Pydantic AI's `ConversationStore`: the same scenarios on its store in memory and on ours."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, get_args

import pytest

import treering

pytest.importorskip("pydantic_ai")

from pydantic_ai import messages as ai
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RequestUsage, RunUsage

from treering.pydantic_ai import TreeringConversationStore

from ..conftest import Server, run

AT = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
PNG = b"\x89PNG\r\n\x1a\n\xff\xfb\xef" * 8


def asked(text: str, **more: Any) -> ai.ModelRequest:
    return ai.ModelRequest(parts=[ai.UserPromptPart(text, timestamp=AT)], **more)


def answered(text: str, **more: Any) -> ai.ModelResponse:
    return ai.ModelResponse(parts=[ai.TextPart(text)], timestamp=AT, **more)


def turns(count: int, name: str = "") -> list[ModelMessage]:
    return [
        message
        for n in range(count)
        for message in (asked(f"question {name}{n}"), answered(f"answer {name}{n}"))
    ]


# ---- every kind of part ----

REQUEST_PARTS: list[Any] = [
    ai.SystemPromptPart("You look things up in the configuration.", timestamp=AT, dynamic_ref="d"),
    ai.UserPromptPart("Where is the port of the server set, please?", timestamp=AT),
    ai.UserPromptPart("", timestamp=AT),
    ai.UserPromptPart(
        [
            "What is in these files of the office?",
            ai.TextContent("It was taken yesterday, by somebody else.", metadata={"by": None}),
            ai.StructuredContent({"screen": [1, 2.5, None]}),
            ai.BinaryContent(PNG, media_type="image/png", vendor_metadata={"detail": "low"}),
            ai.BinaryContent(b"RIFF\xff\xfe" * 9, media_type="audio/wav", identifier="call"),
            ai.BinaryContent(b"%PDF-1.7", media_type="application/pdf"),
            ai.ImageUrl("https://example.com/a/picture.png", force_download=True),
            ai.AudioUrl("https://example.com/a/sound.mp3"),
            ai.VideoUrl("https://example.com/a/video.mp4"),
            ai.DocumentUrl("https://example.com/a/document.pdf", media_type="application/pdf"),
            ai.UploadedFile("file-1", "openai"),
            ai.CachePoint(),
        ],
        timestamp=AT,
    ),
    ai.ToolReturnPart("grep", "config.py:12: PORT = 7171", "call_1", timestamp=AT),
    ai.ToolReturnPart("grep", {"found": [1, None, "x"], "": {}}, "call_2", timestamp=AT),
    ai.ToolReturnPart(
        "look",
        ["a picture of it", ai.BinaryContent(PNG, media_type="image/png")],
        "call_3",
        metadata={"cost": 1},
        timestamp=AT,
    ),
    ai.ToolReturnPart("grep", None, "call_4", timestamp=AT),
    ai.ToolReturnPart(
        "grep", "no such file or directory", "call_5", outcome="failed", timestamp=AT
    ),
    ai.ToolReturnPart("rm", "not on my watch, says Ada", "call_6", outcome="denied", timestamp=AT),
    ai.ToolReturnPart(
        "rm", "the run was interrupted", "call_7", outcome="interrupted", timestamp=AT
    ),
    ai.ToolReturnPart("grep", "give a pattern", "call_8", outcome="retried", timestamp=AT),
    ai.RetryFeedbackPart(
        "Please return text.", retry=ai.RetryInfo(cause="no_output", attempt=1), timestamp=AT
    ),
    ai.CompactionPart("They spoke about ports and addresses, at length.", metadata={"by": "us"}),
    ai.SpeechPart(speaker="user", transcript="What is the weather in Bergen today?"),
    ai.ToolAvailabilityDeltaPart(tools_added=["grep"]),
    ai.CapabilityLoadDeltaPart(loaded=["files"], tool_call_id="call_1"),
    ai.ModelSettingsDeltaPart(settings={"thinking": "high"}, top_level=True),
    ai.InstructionDeltaPart(
        id=ai.InstructionId(source=ai.AgentInstructionSource()),
        content="Be brief, from now on, whatever else was said.",
    ),
    ai.InstructionBaselinePart(instructions=[ai.InstructionPart("Be brief, and be polite.")]),
]
RESPONSE_PARTS: list[Any] = [
    ai.TextPart("I look for it in the configuration.", id="msg_1", provider_name="openai"),
    ai.TextPart("", provider_name="openai", provider_details={"empty": None}),
    ai.ThinkingPart(
        "The port might be set in the configuration.",
        id="rs_1",
        signature="c2lnbmVkIGJ5IHRoZSBwcm92aWRlcg==",
        provider_name="anthropic",
        provider_details={"raw": ["x"]},
    ),
    ai.ThinkingPart("", id="redacted_thinking", signature="opaque", provider_name="anthropic"),
    ai.ToolCallPart("grep", {"pattern": "PORT", "n": 1.0, "none": None}, "call_1"),
    ai.ToolCallPart("grep", '{"pattern":  "PORT"}', "call_2"),
    ai.ToolCallPart("look", '{"unterminated', "call_3"),
    ai.ToolCallPart("grep", None, "call_4"),
    ai.ToolCallPart("grep", {}, "call_5"),
    ai.ToolCallPart(
        "rm", {"path": "/"}, "call_6", provider_details={"x": 1}, provider_name="openai"
    ),
    ai.ToolCallPart("rm", {}, "call_7"),
    ai.ToolCallPart("grep", {}, "call_8"),
    ai.NativeToolCallPart("web_search", {"query": "ports"}, "ws_1", provider_name="openai"),
    ai.NativeToolReturnPart(
        "web_search",
        {"results": ["a page about ports"]},
        "ws_1",
        provider_name="openai",
        timestamp=AT,
    ),
    ai.FilePart(ai.BinaryContent(PNG, media_type="image/png"), id="ig_1", provider_name="openai"),
    ai.CompactionPart("All that was said before, in short.", provider_name="anthropic"),
    ai.CompactionPart(None, id="cmp_1", provider_name="openai", provider_details={"enc": "z" * 40}),
    ai.SpeechPart(
        speaker="assistant",
        transcript="It rains.",
        audio=ai.BinaryContent(b"\x00", media_type="audio/wav"),
    ),
]
USAGE = RequestUsage(
    input_tokens=120,
    output_tokens=30,
    cache_read_tokens=80,
    cache_write_tokens=7,
    details={"reasoning_tokens": 12},
    cost=Decimal("0.00042"),
)
RESPONSE: dict[str, Any] = {
    "usage": USAGE,
    "model_name": "gpt-4o-2024-08-06",
    "model_id": "openai:gpt-4o",
    "timestamp": AT,
    "provider_name": "openai",
    "provider_url": "https://example.com/v1",
    "provider_details": {"finish_reason": "stop", "nothing": None},
    "provider_response_id": "resp_1",
    "finish_reason": "stop",
    "metadata": {"note": None},
}


def as_json(messages: list[ModelMessage]) -> bytes:
    return ModelMessagesTypeAdapter.dump_json(messages)


def through_json(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The messages after the library has written and read them as JSON."""
    return ModelMessagesTypeAdapter.validate_json(as_json(messages))


async def stored(db: treering.Treering, id: str, messages: list[ModelMessage]) -> Conversation:
    await TreeringConversationStore(db).save(Conversation(messages=messages, conversation_id=id))
    loaded = await TreeringConversationStore(db).load(id)
    assert loaded is not None
    return loaded


# ---- round trips ----


# Fails if the library has a kind of part that these tests do not cover.
def test_every_kind_of_part_is_here() -> None:
    def kinds(union: Any) -> set[str]:
        # `Annotated[Annotated[TextPart, Tag] | ..., Discriminator]`
        classes = [get_args(each)[0] for each in get_args(get_args(union)[0])]
        return {each.part_kind for each in classes if hasattr(each, "part_kind")}

    here = {part.part_kind for part in REQUEST_PARTS}
    # The library writes this kind as one of two other kinds, which are covered.
    assert kinds(ai.ModelRequestPart) - here == {"retry-prompt"}
    assert kinds(ai.ModelResponsePart) == {part.part_kind for part in RESPONSE_PARTS}


# The store must return unchanged whatever the library can write and read: every part and every
# field of a message, in any order, also invalid sequences.
@pytest.mark.parametrize("seed", range(20))
def test_messages_come_back_equal(db: treering.Treering, seed: int) -> None:
    chance = random.Random(seed)

    def message() -> ModelMessage:
        metadata: Any = chance.choice([None, {"a": None}, {"$treering": "0.p0.text"}])
        if chance.random() < 0.5:
            return ai.ModelRequest(
                parts=chance.sample(REQUEST_PARTS, chance.randrange(5)),
                timestamp=chance.choice([None, AT]),
                instructions=chance.choice([None, "Be brief.", "Be brief and polite, " * 9]),
                run_id=chance.choice([None, "run"]),
                metadata=metadata,
                state=chance.choice(["complete", "interrupted"]),
            )
        more = RESPONSE if chance.random() < 0.5 else {"timestamp": AT}
        return ai.ModelResponse(
            parts=chance.sample(RESPONSE_PARTS, chance.randrange(6)),
            **{**more, "state": chance.choice(["complete", "interrupted"])},
        )

    async def work() -> None:
        store = TreeringConversationStore(db)
        conversation = Conversation(conversation_id="all")
        for _ in range(10):
            conversation.messages += [message() for _ in range(chance.randrange(1, 6))]
            await store.save(conversation)
            loaded = await TreeringConversationStore(db).load("all")
            assert loaded is not None
            assert loaded.messages == through_json(conversation.messages)
            assert as_json(loaded.messages) == as_json(conversation.messages)
            limit = chance.randrange(1, len(conversation.messages) + 1)
            window = await TreeringConversationStore(db).load("all", limit=limit)
            assert window is not None and window.messages == loaded.messages[-limit:]

    run(work())
    assert db.verify(deep=True).sound


@pytest.mark.parametrize("part", [*REQUEST_PARTS, *RESPONSE_PARTS], ids=lambda part: part.part_kind)
def test_a_part_comes_back_equal(db: treering.Treering, part: Any) -> None:
    message: ModelMessage
    if part in REQUEST_PARTS:
        message = ai.ModelRequest(parts=[part])
    else:
        message = ai.ModelResponse(parts=[part], **RESPONSE)
    loaded = run(stored(db, "one", [message]))
    assert loaded.messages == through_json([message])
    assert as_json(loaded.messages) == as_json([message])


# The fields of a conversation other than its messages must come back too.
def test_usage_and_calls_that_wait_come_back(db: treering.Treering) -> None:
    call = ai.ToolCallPart("rm", {"path": "/"}, "call_1")
    question = ai.ToolCallPart("ask", {}, "call_2")
    given = Conversation(
        conversation_id="all",
        messages=[asked("Clean up"), ai.ModelResponse(parts=[call, question], timestamp=AT)],
        usage=RunUsage(requests=3, tool_calls=2, input_tokens=9, details={"x": 1}),
        deferred_tool_requests=DeferredToolRequests(
            calls=[question],
            approvals=[call],
            metadata={"call_1": {"why": None}},
            _kinds={"call_2": "question"},
        ),
    )
    run(TreeringConversationStore(db).save(given))
    loaded = run(TreeringConversationStore(db).load("all"))
    assert loaded == given
    assert loaded and loaded.deferred_tool_requests
    assert loaded.deferred_tool_requests.kind("call_2") == "question"


# ---- comparison with the store in memory ----


def said(messages: list[ModelMessage]) -> list[str]:
    return [str(part.content) for message in messages for part in message.parts]  # type: ignore[union-attr]


async def refused(work: Awaitable[Any]) -> str:
    try:
        await work
    except (UserError, LookupError) as error:
        return type(error).__name__
    return "taken"


async def nothing(store: ConversationStore) -> Any:
    return [
        await store.load("a"),
        await store.load_entries("a"),
        await store.list_conversations(),
        await store.read_history(None),
        await refused(store.delete("a")),
        await refused(store.fork("a")),
        await refused(store.branch("a", at=0, expected_revision=None)),
        await refused(store.read_entry("no")),
        await refused(store.load("a", limit=-1)),
    ]


async def saved_bit_by_bit(store: ConversationStore) -> Any:
    conversation = Conversation(conversation_id="a")
    answers: list[Any] = [len(await store.save(conversation, scope="ada"))]
    for n in range(4):
        conversation.messages += turns(1, str(n))
        answers.append(len(await store.save(conversation, scope="ada")))
        answers.append(len(await store.save(conversation)))
        loaded = await store.load("a")
        assert loaded is not None and loaded == conversation
        answers.append(said(loaded.messages))
    for limit in (0, 1, 3, 8, 100):
        window = await store.load("a", limit=limit)
        assert window is not None
        answers.append(said(window.messages))
        window.messages.append(asked(f"after {limit}"))
        answers.append(len(await store.save(window)))
    entries = await store.load_entries("a") or []
    assert [each.parent_id for each in entries[1:]] == [each.id for each in entries[:-1]]
    assert entries[0].parent_id is None
    assert await store.read_entry(entries[3].id) == entries[3]
    assert await store.read_history(entries[5].id, limit=2) == entries[4:6]
    return [*answers, said([entry.message for entry in entries])]


async def scopes(store: ConversationStore) -> Any:
    answers: list[Any] = []
    for name, scope in (("a", "ada"), ("b", None), ("c", "bob")):
        await store.save(Conversation(conversation_id=name, messages=turns(1)), scope=scope)
    for scope in (None, "ada", "bob", "nobody"):
        records = await store.list_conversations(scope=scope)
        answers.append([(record.conversation_id, record.scope) for record in records])
        answers.append([await store.load(name, scope=scope) is not None for name in "abc"])
    answers.append([each.conversation_id for each in await store.list_conversations(limit=2)])
    loaded = await store.load("a")
    assert loaded is not None
    answers.append(await refused(store.save(loaded, scope="bob")))
    await store.delete("a", scope="bob")
    answers.append(await store.load("a") is not None)
    await store.delete("a", scope="ada")
    return [*answers, await store.load("a"), len(await store.list_conversations())]


async def conflicts(store: ConversationStore) -> Any:
    first = Conversation(conversation_id="a", messages=turns(1))
    other = Conversation(conversation_id="a", messages=turns(2))
    answers: list[Any] = [await refused(store.save(each)) for each in (first, other)]
    stale, current = await store.load("a"), await store.load("a")
    assert stale is not None and current is not None
    current.messages.append(asked("current"))
    stale.messages.append(asked("stale"))
    answers += [await refused(store.save(each)) for each in (current, stale, current)]
    answers.append(await refused(store.branch("a", at=1, expected_revision=stale.revision)))
    await store.delete("a")
    answers.append(await refused(store.save(current)))
    again = Conversation(conversation_id="a", messages=turns(1, "again"))
    answers.append(await refused(store.save(again)))
    answers.append(await refused(store.save(current)))
    loaded = await store.load("a")
    assert loaded is not None
    return [*answers, said(loaded.messages)]


async def branches(store: ConversationStore) -> Any:
    answers: list[Any] = []
    await store.save(Conversation(conversation_id="a", messages=turns(3)))

    async def look() -> None:
        loaded = await store.load("a")
        record = await store.read_record("a")
        assert loaded is not None and record is not None
        lines = [await store.read_history(tip) for tip in record.branches]
        answers.append([said(loaded.messages), *(said([e.message for e in li]) for li in lines)])

    async def branch(text: str, **where: Any) -> Conversation:
        record = await store.read_record("a")
        assert record is not None
        conversation = await store.branch("a", expected_revision=record.revision, **where)
        await look()
        conversation.messages.append(asked(text))
        await store.save(conversation)
        await look()
        return conversation

    for text, at in (("other 2", 2), ("other 0", 0), ("first again", 1), ("at the end", 2)):
        await branch(text, at=at)
    for number in range(2):
        record = await store.read_record("a")
        assert record is not None
        await branch(f"back {number}", from_entry=record.branches[number])
    rewritten = await store.load("a")
    assert rewritten is not None
    for kept in (1, 0):
        rewritten.messages[kept:] = [answered(f"rewritten after {kept}")]
        await store.save(rewritten)
        await look()
    for where in ({"at": 99}, {"from_entry": "no"}, {}, {"at": 0, "from_entry": "x"}):
        record = await store.read_record("a")
        assert record is not None
        answers.append(await refused(store.branch("a", expected_revision=record.revision, **where)))
    return answers


async def forks(store: ConversationStore) -> Any:
    first = Conversation(
        conversation_id="a", messages=turns(3), usage=RunUsage(requests=3, input_tokens=7)
    )
    entries = await store.save(first, scope="ada")
    answers: list[Any] = []

    async def look(name: str) -> None:
        loaded, record = await store.load(name), await store.read_record(name)
        if loaded is None or record is None:
            answers.append([loaded, record])
            return
        answers.append([said(loaded.messages), loaded.usage, record.scope, record.forked_from])
        answers.append([record.forked_at is None, record.head_id is None])

    await store.fork("a", new_conversation_id="whole")
    await store.fork("a", new_conversation_id="half", at=3, scope="bob")
    await store.fork("a", new_conversation_id="empty", at=0)
    await store.fork("a", new_conversation_id="one", from_entry=entries[0].id)
    answers.append(await refused(store.fork("a", new_conversation_id="half")))
    answers.append(await refused(store.fork("a", source_scope="nobody")))
    unnamed = await store.fork("half", at=2)
    answers.append(said(unnamed.messages))
    for name in ("a", "whole", "half", "empty", "one"):
        loaded = await store.load(name)
        assert loaded is not None
        loaded.messages += turns(1, name)
        await store.save(loaded)
    await store.fork("half", new_conversation_id="of the half", at=4)
    half = await store.read_record("half")
    assert half is not None
    # First branch within the shared history, then go back to the newest entry.
    early = await store.branch("half", at=1, expected_revision=half.revision)
    early.messages.append(asked("early"))
    await store.save(early)
    await look("half")
    [left] = (await store.read_record("half")).branches  # type: ignore[union-attr]
    back = await store.branch("half", from_entry=left, expected_revision=early.revision)
    back.messages.append(asked("back"))
    await store.save(back)
    await store.delete("a")
    for name in ("a", "whole", "half", "empty", "one", "of the half"):
        await look(name)
    await store.delete("half")
    await store.save(Conversation(conversation_id="half", messages=turns(1, "anew")))
    for name in ("half", "of the half"):
        await look(name)
    return [*answers, len(await store.list_conversations())]


async def at_random(store: ConversationStore) -> Any:
    chance = random.Random(11)
    answers: list[Any] = []
    for step in range(100):
        name = chance.choice("abc")
        what = chance.random()
        loaded = await store.load(name, limit=chance.choice([None, None, 1, 3]))
        record = await store.read_record(name)
        if what < 0.5:
            loaded = loaded or Conversation(conversation_id=name)
            loaded.messages += turns(chance.randrange(3), f"{step} ")
            loaded.usage.incr(RunUsage(requests=1))
            answers.append(len(await store.save(loaded)))
        elif what < 0.6 and loaded:
            loaded.messages = [*loaded.messages[: chance.randrange(4)], asked(f"rewritten {step}")]
            answers.append(len(await store.save(loaded)))
        elif what < 0.75 and loaded and record:
            whole = await store.load_entries(name) or []
            branched = await store.branch(
                name, at=chance.randrange(len(whole) + 1), expected_revision=record.revision
            )
            answers.append(said(branched.messages))
        elif what < 0.85 and record and record.branches:
            branched = await store.branch(
                name,
                from_entry=chance.choice(record.branches),
                expected_revision=record.revision,
            )
            answers.append(said(branched.messages))
        elif what < 0.95 and record:
            other = chance.choice("abc")
            answers.append(await refused(store.fork(name, new_conversation_id=other)))
        elif what >= 0.95:
            await store.delete(name)
        loaded = await store.load(name)
        record = await store.read_record(name)
        answers.append(
            [said(loaded.messages), loaded.usage, len(record.branches)]
            if loaded and record
            else None
        )
    return answers


STORIES: list[Callable[[ConversationStore], Awaitable[Any]]] = [
    nothing,
    saved_bit_by_bit,
    scopes,
    conflicts,
    branches,
    forks,
    at_random,
]


# Our store must behave like the library's own store, also if each call comes from a new program
# without cached state.
@pytest.mark.parametrize("is_forgetful", [False, True], ids=["one", "anew"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_same_as_its_own_store(
    story: Callable[[ConversationStore], Awaitable[Any]],
    is_forgetful: bool,
    db: treering.Treering,
) -> None:
    class Forgetful(TreeringConversationStore):
        def __getattribute__(self, name: str) -> Any:
            if name == "_log":
                return type(object.__getattribute__(self, name))(db)
            return object.__getattribute__(self, name)

    store = Forgetful(db) if is_forgetful else TreeringConversationStore(db)

    async def both() -> tuple[Any, Any]:
        return await story(store), await story(InMemoryConversationStore())

    ours, its = run(both())
    assert ours == its
    assert db.verify(deep=True).sound


# A list read each conversation with two or three calls. Now it reads a conversation only if events
# follow its saved record.
def test_a_list_reads_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with treering.connect(server.address) as db:
        store = TreeringConversationStore(db)
        for name in "abcdef":
            conversation = Conversation(conversation_id=name)
            for number in range(2):
                conversation.messages += turns(1, f"{name}{number}")
                run(store.save(conversation, scope="ada"))
        run(store.delete("b", scope="ada"))
        db.conversation("d").user("And another program?")
        db.conversation("e").fork(at=4, name="earlier", activate=True)
        run(store.save(Conversation(conversation_id="g")))

        def told() -> Any:
            return run(TreeringConversationStore(db).list_conversations())

        called: list[str] = []
        unary, read = db._transport.unary, db._transport.read

        def asks(method: Any, *given: Any, **more: Any) -> Any:
            called.append(method.path.rpartition("/")[2])
            return unary(method, *given, **more)

        def reads(method: Any, *given: Any, **more: Any) -> Any:
            called.append(method.path.rpartition("/")[2])
            return read(method, *given, **more)

        monkeypatch.setattr(db._transport, "unary", asks)
        monkeypatch.setattr(db._transport, "read", reads)
        records = told()
        assert called[:2] == ["List", "Latest"] and called.count("Get") <= 4, called
        monkeypatch.setattr("treering.pydantic_ai._log.as_saved", lambda *_: None)
        assert told() == records
        assert {"a", "c", "d", "f"} <= {each.conversation_id for each in records}
