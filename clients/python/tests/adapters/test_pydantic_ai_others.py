"""Conversations of Pydantic AI in which people and other programs take part."""

from __future__ import annotations

import json
from typing import Any

import pytest

import treering

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, AgentRunResult, CallDeferred, DeferredToolRequests
from pydantic_ai import messages as ai
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from treering import new
from treering.pydantic_ai import TreeringConversationStore

from ..conftest import run, texts
from .model import Model
from .pydantic_ai_agents import (
    CALL,
    TURN,
    as_json,
    helper,
    kinds,
    loaded,
    makers,
    openai,
    said,
    weather,
)

# ---- approvals ----


# A call that needs approval waits in Treering, where any program can decide it. The next run
# continues with the decision.
@pytest.mark.parametrize("by_steps", [False, True], ids=["save", "steps"])
@pytest.mark.parametrize("is_approved", [False, True], ids=["denied", "approved"])
def test_calls_that_wait_for_approval(
    db: treering.Treering, model: Model, is_approved: bool, by_steps: bool
) -> None:
    store = TreeringConversationStore(db)
    removed: list[str] = []

    def remove(path: str) -> str:
        """Removes a file."""
        removed.append(path)
        return f"{path} is gone"

    agent: Agent[object, str | DeferredToolRequests] = Agent(
        openai(model),
        output_type=[str, DeferredToolRequests],
        capabilities=[store.steps()] if by_steps else [],
    )
    agent.tool_plain(requires_approval=True)(remove)

    async def work() -> AgentRunResult[Any]:
        prompt = 'call remove {"path": "old.txt"}'
        first = await agent.run(prompt, conversation=await loaded(store, "s"))
        if not by_steps:
            await store.save(first)
        conversation = await loaded(TreeringConversationStore(db), "s")
        assert conversation.deferred_tool_requests == first.output
        assert await store.decisions(conversation) is None
        [waiting] = db.pending()
        assert waiting.arguments == {"path": "old.txt"}
        if is_approved:
            db.approve(waiting, by="ada")
        else:
            db.deny(waiting, by="ada", reason="Ada needs it.")
        decided = await store.decisions(conversation)
        result = await agent.run(conversation=conversation, deferred_tool_results=decided)
        if not by_steps:
            await store.save(result)
        return result

    result = run(work())
    assert removed == (["old.txt"] if is_approved else [])
    told = "old.txt is gone" if is_approved else "Ada needs it."
    assert result.output == f"The tool says: {told}"
    kept = run(loaded(store, "s"))
    assert as_json(kept.messages) == as_json(result.all_messages())
    assert kept.deferred_tool_requests is None
    conv = store.conversation("s")
    assert conv is not None and conv.open_calls() == [] and db.pending() == []
    [call] = conv.tool_calls()
    assert call.status == ("succeeded" if is_approved else "failed")
    assert call.proto.decided_by == "ada"
    assert db.verify(deep=True).sound


# A decision that the agent's own program makes is also recorded in Treering.
def test_what_the_program_itself_approves(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)
    agent = Agent(openai(model), output_type=[str, DeferredToolRequests])
    agent.tool_plain(requires_approval=True)(weather)

    async def work() -> None:
        for answer in (True, False):
            first = await agent.run(CALL, conversation=await loaded(store, "s"))
            await store.save(first)
            conversation = await loaded(store, "s")
            waiting = conversation.deferred_tool_requests
            assert waiting is not None and len(db.pending()) == 1
            decided = waiting.build_results(approvals={waiting.approvals[0].tool_call_id: answer})
            await store.save(
                await agent.run(conversation=conversation, deferred_tool_results=decided)
            )

    run(work())
    conv = store.conversation("s")
    assert conv is not None and db.pending() == []
    calls = [(call.status, call.proto.approval) for call in conv.tool_calls()]
    assert [status for status, _ in calls] == ["failed", "succeeded"]
    assert [event.body.decision for event in conv.events(kinds=["approval_decided"])] == [1, 2]


# A run that fails before a decision must not change the waiting calls.
def test_a_run_that_fails_while_calls_wait(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)
    agent: Agent[object, str | DeferredToolRequests] = Agent(
        openai(model),
        output_type=[str, DeferredToolRequests],
        capabilities=[store.steps()],
    )
    agent.tool_plain(requires_approval=True)(weather)
    first = run(agent.run(CALL, conversation=run(loaded(store, "s"))))
    with pytest.raises(UserError):
        run(agent.run("Something else.", conversation=run(loaded(store, "s"))))
    waiting = run(loaded(store, "s"))
    assert waiting.deferred_tool_requests == first.output
    assert waiting.revision == first.conversation.revision and len(db.pending()) == 1


# A deferred call runs in another program, which records its result; then the run continues.
def test_calls_that_are_run_elsewhere(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)
    agent: Agent[object, str | DeferredToolRequests] = Agent(
        openai(model),
        output_type=[str, DeferredToolRequests],
        capabilities=[store.steps()],
    )

    @agent.tool_plain
    def measure(what: str) -> str:
        """Starts a measurement whose result comes later."""
        raise CallDeferred

    async def work() -> AgentRunResult[Any]:
        prompt = 'call measure {"what": "the port"}'
        first = await agent.run(prompt, conversation=await loaded(store, "s"))
        assert isinstance(first.output, DeferredToolRequests)
        waiting = await loaded(store, "s")
        assert waiting.deferred_tool_requests == first.output
        conv = store.conversation("s")
        assert conv is not None
        [call] = conv.open_calls()
        call.result("7171")
        conversation = await loaded(store, "s")
        assert conversation.deferred_tool_requests is None
        return await agent.run(conversation=conversation)

    assert run(work()).output == "The tool says: 7171"
    assert kinds(run(loaded(store, "s")).messages) == TURN


# ---- other programs in the same conversation ----


# A conversation that another program began is loaded and continued. Messages that it appends
# between two turns of the agent are among the messages.
def test_a_conversation_that_others_began(db: treering.Treering, model: Model) -> None:
    conv = db.create("Ports", system="You are brief.")
    store = TreeringConversationStore(db)
    assert run(store.load(conv.id)) is None
    conv.user("Where is the port set?", new.image(b"\x89PNG", "image/png"))
    conv.assistant(
        new.reasoning("I look.", signature="c2ln", provider="anthropic"),
        "I look for it.",
        usage=new.usage(input=9, output=3, model="claude-sonnet-4-5"),
        tool_calls=[("c1", "grep", {"pattern": "PORT"}), ("c2", "ls", {})],
    )
    conv.append([new.tool_result("c1", "config.py: PORT = 7171")])
    conv.append([new.tool_result("c2", "no such folder", success=False)])
    conv.assistant("In config.py.")

    loaded_first = run(store.load(conv.id))
    assert loaded_first is not None and said(loaded_first.messages) == [
        (
            "user-prompt",
            ["Where is the port set?", ai.BinaryContent(b"\x89PNG", media_type="image/png")],
        ),
        ("thinking", "I look."),
        ("text", "I look for it."),
        ("tool-call", '{"pattern":"PORT"}'),
        ("tool-call", "{}"),
        ("tool-return", "config.py: PORT = 7171"),
        ("tool-return", "no such folder"),
        ("text", "In config.py."),
    ]
    assert len(loaded_first.messages) == 4
    assert loaded_first.usage.requests == 2 and loaded_first.usage.input_tokens == 9
    tools = [part.tool_name for part in loaded_first.messages[2].parts]  # type: ignore[union-attr]
    assert tools == ["grep", "ls"]
    window = run(store.load(conv.id, limit=2))
    assert window is not None and window.messages == loaded_first.messages[2:]

    agent = helper(openai(model), capabilities=[store.steps()])
    conv.user("By hand again.")
    with pytest.raises(ConversationConflict):
        run(store.save(loaded_first))
    conv.assistant("An answer by hand.")
    current = run(loaded(store, conv.id))
    result = run(agent.run("And the address?", conversation=current))
    assert result.output == "Answer 3 to: And the address?"
    conv.assistant("Said afterwards.")
    last = run(loaded(store, conv.id))
    assert kinds(last.messages[-2:]) == ["text", "text"]
    assert texts(conv)[-3:] == ["And the address?", result.output, "Said afterwards."]
    entries = run(store.load_entries(conv.id))
    assert entries is not None
    assert [entry.parent_id for entry in entries[1:]] == [entry.id for entry in entries[:-1]]
    cut = run(store.branch(conv.id, at=1, expected_revision=last.revision))
    assert len(cut.messages) == 1
    cut.messages.append(ai.ModelRequest(parts=[ai.UserPromptPart("Anew.")]))
    run(store.save(cut))
    assert texts(conv) == ["Where is the port set?", "Anew."]
    assert "You are brief." in json.dumps(conv.request("anthropic", model="claude-sonnet-4-5"))


# After a fork in Treering in the middle of an answer, the conversation continues on the fork.
def test_a_fork_by_hand(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)

    async def work() -> None:
        agent = helper(openai(model), capabilities=[store.steps(scope="ada")])
        for prompt in ("Hello", CALL):
            await agent.run(prompt, conversation=await loaded(store, "s"))

    run(work())
    conv = store.conversation("s")
    assert conv is not None
    whole = run(loaded(store, "s"))
    events = list(conv.events())
    for event in events:
        into = conv.fork(at=event.revision, into="new")
        conv.fork(at=event.revision, name=f"at {event.revision}", activate=True)
        for name in ("s", into.id):
            found = run(TreeringConversationStore(db).load(name))
            if found is None:
                assert event.kind in ("conversation_created", "custom", "system_prompt_set")
                continue
            both = [said(found.messages), said(whole.messages)]
            assert both[0] == both[1][: len(both[0])]
            assert run(store.load(name, scope="nobody")) is None
            found.messages += [ai.ModelResponse(parts=[ai.TextPart("Otherwise.")])]
            run(store.save(found, scope="ada"))
            again = run(TreeringConversationStore(db).load(name))
            assert again is not None and said(again.messages) == said(found.messages)
        conv.on("main").activate()
        assert as_json(run(loaded(store, "s")).messages) == as_json(whole.messages)
    assert db.verify(deep=True).sound


# The library's adapter for user interfaces must work as with its own store: turns, a tool, and a
# regenerated answer, which leaves the first answer on a branch.
def test_chats_of_a_user_interface(db: treering.Treering, model: Model) -> None:
    ours = TreeringConversationStore(db)
    # This model streams its answers.
    maker = makers(model)[2]

    async def turns(store: ConversationStore) -> Any:
        model.requests.clear()
        messages: list[dict[str, Any]] = []
        agent = helper(maker)
        for trigger, prompt in (
            ("submit-message", "Hello"),
            ("submit-message", CALL),
            ("submit-message", "And now?"),
            ("regenerate-message", ""),
        ):
            if prompt:
                part = {"type": "text", "text": prompt}
                messages = [{"id": f"user-{prompt}", "role": "user", "parts": [part]}]
            body = json.dumps({"trigger": trigger, "id": "chat", "messages": messages})
            chat = VercelAIAdapter(
                agent,
                VercelAIAdapter.build_run_input(body.encode()),
                conversation_store=store,
                conversation_scope="ada",
            )
            lines = [line async for line in chat.encode_stream(chat.run_stream())]
            assert not any('"type":"error"' in line for line in lines), lines
        kept = await store.load("chat", scope="ada")
        record = await store.read_record("chat")
        assert kept is not None and record is not None
        left = [await store.read_history(tip) for tip in record.branches]
        return [
            said(kept.messages),
            [said([entry.message for entry in line]) for line in left],
            await store.load("chat", scope="bob"),
        ]

    its = run(turns(InMemoryConversationStore()))
    assert json.dumps(run(turns(ours))) == json.dumps(its)
    conv = ours.conversation("chat")
    assert conv is not None
    assert texts(conv)[-1] == "Answer 3 to: And now?"
    assert db.verify(deep=True).sound
