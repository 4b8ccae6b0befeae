"""Pydantic AI's agents with conversations in Treering: killed, resumed, and concurrent runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import treering

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, AgentRunResult, RunContext
from pydantic_ai import messages as ai
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import ModelMessage

from treering.pydantic_ai import TreeringConversationStore

from ..conftest import Server, run, texts
from .model import Model, agent_environment
from .pydantic_ai_agents import (
    CALL,
    EVENTS_OF_TURN,
    INSTRUCTIONS,
    RAIN,
    TURN,
    as_json,
    helper,
    kinds,
    loaded,
    makers,
    openai,
    said,
    typed_events,
    weather,
)

# ---- stored events ----


# The library's own loop, with each provider's API. Requests and answers must be the same with
# either store, saved at the end or step by step. Each message and call must be stored once.
@pytest.mark.slow
@pytest.mark.parametrize("maker", range(3), ids=["openai-chat", "openai-responses", "anthropic"])
def test_agents_run_the_same(db: treering.Treering, model: Model, maker: int) -> None:
    ours = TreeringConversationStore(db)

    async def turns(store: ConversationStore, id: str, **more: Any) -> Any:
        agent = helper(makers(model)[maker], **more)
        model.requests.clear()
        answers = []
        for prompt in ("Hello", CALL, "And now?"):
            result = await agent.run(prompt, conversation=await loaded(store, id))
            if not more:
                await store.save(result)
            answers.append(result.output)
            kept = await loaded(store, id)
            assert as_json(kept.messages) == as_json(result.all_messages())
            assert kept.usage == result.usage
            assert result.conversation.revision == kept.revision
        return (
            answers,
            [body.get("messages") or body["input"] for body in model.requests],
            said(kept.messages),
        )

    its = run(turns(InMemoryConversationStore(), "s"))
    by_steps = run(turns(ours, "by steps", capabilities=[ours.steps()]))
    at_the_end = run(turns(ours, "at the end"))
    # The ids of calls contain the number of the request.
    assert json.dumps(its) == json.dumps(by_steps) == json.dumps(at_the_end)
    assert its[0][1] == RAIN
    for name in ("by steps", "at the end"):
        conv = ours.conversation(name)
        assert conv is not None
        say = ["message_appended", "message_appended"]
        assert typed_events(conv) == [*say, *EVENTS_OF_TURN, *say]
        prompts = [event.text for event in conv.events(kinds=["system_prompt_set"])]
        assert prompts == [INSTRUCTIONS]
        [hit] = conv.search("rains", kinds=["tool_result_recorded"])
        assert hit.tool == "weather"
        body = conv.request("anthropic", model="claude-sonnet-4-5")
        assert len(body["messages"]) == 8
        assert INSTRUCTIONS in json.dumps(body["system"])
        answer = next(event for event in conv.events() if event.role == "assistant")
        assert answer.proto.message_appended.usage.input_tokens == 10
    assert db.verify(deep=True).sound


# Each text is stored once, even if the library repeats it.
def test_long_texts_are_stored_once(db: treering.Treering) -> None:
    store = TreeringConversationStore(db)
    long = {name: f"{name} {os.urandom(200).hex()}" for name in ("prompt", "user", "tool", "text")}
    picture = os.urandom(999)

    async def work() -> None:
        conversation = Conversation(conversation_id="s")
        for number in range(5):
            request = ai.ModelRequest(
                parts=[
                    ai.UserPromptPart(
                        [long["user"], ai.BinaryImage(picture, media_type="image/png")]
                    )
                ],
                instructions=long["prompt"],
            )
            call = ai.ToolCallPart("look", {"for": long["text"]}, f"c{number}")
            result = ai.ToolReturnPart("look", long["tool"], f"c{number}")
            conversation.messages += [
                request,
                ai.ModelResponse(parts=[ai.TextPart(long["text"]), call]),
                ai.ModelRequest(parts=[result]),
            ]
            await store.save(conversation)
        assert (await loaded(TreeringConversationStore(db), "s")).messages == conversation.messages

    run(work())
    conv = store.conversation("s")
    assert conv is not None
    stored = b"".join(event.proto.SerializeToString() for event in conv.events())
    counts = {name: stored.count(text.encode()) for name, text in long.items()}
    assert counts == {"prompt": 1, "user": 5, "tool": 5, "text": 10}
    assert stored.count(picture) == 5 and len(stored) < 5 * (999 + 6 * 407 + 4_000)


# Retries, reasoning, and calls that the provider ran are stored as the same events as elsewhere.
def test_what_becomes_of_parts(db: treering.Treering) -> None:
    at = datetime(2026, 3, 1, tzinfo=timezone.utc)
    messages: list[ModelMessage] = [
        ai.ModelRequest(
            parts=[
                ai.SystemPromptPart("You are brief.", timestamp=at),
                ai.UserPromptPart(
                    ["Look:", ai.BinaryContent(b"\x89PNG", media_type="image/png")], timestamp=at
                ),
            ]
        ),
        ai.ModelResponse(
            parts=[
                ai.ThinkingPart("I look it up.", signature="c2ln", provider_name="anthropic"),
                ai.NativeToolCallPart("web_search", {"q": "ports"}, "ws_1"),
                ai.NativeToolReturnPart("web_search", {"hits": 3}, "ws_1"),
                ai.TextPart("I found it."),
                ai.ToolCallPart("grep", {"pattern": ""}, "c1"),
                ai.ToolCallPart("rm", {"path": "x"}, "c2"),
                ai.ToolCallPart("ls", {}, "c3"),
            ],
            timestamp=at,
            provider_response_id="msg_1",
            finish_reason="tool_call",
        ),
        ai.ModelRequest(
            parts=[
                ai.ToolReturnPart("grep", "give a pattern", "c1", outcome="retried", timestamp=at),
                ai.ToolReturnPart("rm", "interrupted", "c2", outcome="interrupted", timestamp=at),
                ai.ToolReturnPart("ls", {"files": ["a"]}, "c3", timestamp=at),
                ai.UserPromptPart("And?", timestamp=at),
            ]
        ),
    ]
    store = TreeringConversationStore(db)
    run(store.save(Conversation(conversation_id="s", messages=messages)))
    conv = store.conversation("s")
    assert conv is not None
    events = [event for event in conv.events() if event.kind != "custom"][1:]
    assert [event.kind for event in events] == [
        "message_appended",
        "message_appended",
        "message_appended",
        "tool_call_requested",
        "tool_result_recorded",
        "message_appended",
        "tool_call_requested",
        "tool_call_requested",
        "tool_call_requested",
        "tool_result_recorded",
        "tool_call_cancelled",
        "tool_result_recorded",
        "message_appended",
    ]
    assert [event.role for event in events if event.role] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "user",
    ]
    assert events[0].occurred_at == at
    assert events[1].body.parts[1].image.data == b"\x89PNG"
    assert events[2].body.parts[0].reasoning.signature == b"c2ln"
    assert events[5].body.message_id == "msg_1"
    calls = {call.call_id: call.status for call in conv.tool_calls()}
    assert calls == {"ws_1": "succeeded", "c1": "failed", "c2": "cancelled", "c3": "succeeded"}
    for provider in ("anthropic", "openai-chat", "openai-responses", "gemini"):
        assert conv.request(provider, model="m").tokens > 0


# ---- killed ----

PROGRAM = """
import asyncio, os, signal, sys, treering
from pathlib import Path
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.conversation import Conversation
from treering.pydantic_ai import TreeringConversationStore

address, folder, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
db = treering.connect(address)
store = TreeringConversationStore(db)
agent = Agent("openai-chat:gpt-4o", instructions="Be brief.", capabilities=[store.steps()])

class Killing(AbstractCapability):
    async def prepare_model_request(self, ctx, request_context):
        # What the model is about to be asked is stored.
        if when == "asking" or when == "saved" and (folder / "done").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return request_context

@agent.tool_plain
def work(step: int) -> str:
    with (folder / "done").open("a") as done:
        done.write(f"{step}\\n")
    if when == "tool":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"step {step} is done"

async def main():
    conversation = await store.load("job") or Conversation(conversation_id="job")
    prompt = None if conversation.messages else 'call work {"step": 1}'
    result = await agent.run(prompt, conversation=conversation, capabilities=[Killing()])
    print(result.output)

asyncio.run(main())
"""


class Killed:
    """Starts programs that are killed, and reads what they wrote."""

    def __init__(self, server: Server, model: Model, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.environment = {**os.environ, **agent_environment(model, folder)}

    def start(self, when: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, self.server.address, str(self.folder), when],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def done(self) -> list[str]:
        return (self.folder / "done").read_text().split()


@pytest.fixture
def killed(server: Server, model: Model, tmp_path: Path) -> Killed:
    return Killed(server, model, tmp_path)


# A program is killed twice while its tool runs. The messages are stored, the call is open, and the
# next program runs the call and continues. Then the conversation is forked, and a session of
# another framework continues the fork.
@pytest.mark.slow
def test_a_program_that_is_killed_in_a_tool(killed: Killed, model: Model) -> None:
    with treering.connect(killed.server.address) as db:
        for count in (1, 2):
            assert killed.start("tool").returncode == -signal.SIGKILL
            assert killed.done == ["1"] * count and len(model.requests) == 1
            store = TreeringConversationStore(db)
            assert kinds(run(loaded(store, "job")).messages) == TURN[:3]
            conv = store.conversation("job")
            assert conv is not None
            assert [call.tool for call in conv.open_calls()] == ["work"]
        ended = killed.start("no")
        assert ended.stdout == "The tool says: step 1 is done\n", ended.stderr
        assert killed.done == ["1"] * 3 and len(model.requests) == 2
        whole = run(loaded(store, "job"))
        assert kinds(whole.messages) == TURN and whole.usage.requests == 2
        conv = store.conversation("job")
        assert conv is not None
        assert typed_events(conv) == EVENTS_OF_TURN
        assert [call.status for call in conv.tool_calls()] == ["succeeded"]
        others_go_on(db, store, model)
        assert db.verify(deep=True).sound


def others_go_on(db: treering.Treering, store: TreeringConversationStore, model: Model) -> None:
    """Forks `job` in both ways, and continues one fork with the OpenAI Agents SDK."""
    agents = pytest.importorskip("agents")
    from treering.openai_agents import TreeringSession

    forked = run(store.fork("job", at=2, new_conversation_id="forked"))
    assert kinds(forked.messages) == TURN[:3]
    conv = store.conversation("job")
    assert conv is not None
    other = conv.fork(into="new")
    helper = agents.Agent("Helper", model="gpt-4o")
    client = agents.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none")
    provider = agents.OpenAIProvider(openai_client=client)
    asking = agents.RunConfig(tracing_disabled=True, model_provider=provider)
    session = TreeringSession(other.id, db)
    result = run(agents.Runner.run(helper, "And now?", session=session, run_config=asking))
    assert result.final_output == "Answer 2 to: And now?"
    # Then Pydantic AI continues the same fork.
    conversation = run(store.load(other.id))
    assert conversation is not None
    assert kinds(conversation.messages) == [*TURN, "user-prompt", "text"]
    back = run(Agent(openai(model)).run("And then?", conversation=conversation))
    run(store.save(back))
    assert back.output == "Answer 3 to: And then?"
    assert texts(other)[-2:] == ["And then?", "Answer 3 to: And then?"]
    last: Any = run(session.get_items())[-1]
    assert last["content"] == back.output
    original = run(store.load("job"))
    assert original is not None and kinds(original.messages) == TURN


# A program is killed before it calls the model, with the prompt and with the result: neither is
# lost, and the tool does not run again.
@pytest.mark.slow
def test_a_program_that_is_killed_while_it_asks(killed: Killed, model: Model) -> None:
    with treering.connect(killed.server.address) as db:
        store = TreeringConversationStore(db)
        for when, is_there in (("asking", TURN[:1]), ("saved", TURN[:4]), ("asking", TURN[:4])):
            assert killed.start(when).returncode == -signal.SIGKILL
            assert kinds(run(loaded(store, "job")).messages) == is_there
        ended = killed.start("no")
        assert ended.stdout == "The tool says: step 1 is done\n", ended.stderr
        assert killed.done == ["1"] and len(model.requests) == 2
        assert kinds(run(loaded(store, "job")).messages) == TURN
        conv = store.conversation("job")
        assert conv is not None and typed_events(conv) == EVENTS_OF_TURN
        assert db.verify(deep=True).sound


# The server is killed during a run: the run continues, and no message is lost or repeated.
@pytest.mark.slow
def test_a_run_with_a_server_that_is_killed(server: Server, model: Model) -> None:
    async def dangerous(text: str) -> str:
        """Kills the server that the conversation is on."""
        await asyncio.to_thread(server.kill)
        asyncio.get_running_loop().call_later(0.3, server.start)
        return f"killed for {text}"

    async def work() -> Conversation:
        store = TreeringConversationStore(db)
        agent = Agent(openai(model), tools=[dangerous], capabilities=[store.steps()])
        for number in range(3):
            prompt = f'call dangerous {{"text": "number {number}"}}'
            await agent.run(prompt, conversation=await loaded(store, "s"))
        return await loaded(TreeringConversationStore(db), "s")

    with treering.connect(server.address) as db:
        db.stats()
        assert kinds(run(work()).messages) == TURN * 3
        assert db.verify(deep=True).sound


# A call that a crash left open can also be closed, and the user continues with another message.
def test_calls_that_nobody_will_run(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)

    async def work() -> AgentRunResult[Any]:
        call = ai.ToolCallPart("weather", {"city": "Bergen"}, "c1")
        begun: list[ModelMessage] = [
            ai.ModelRequest(parts=[ai.UserPromptPart("And in Bergen?")]),
            ai.ModelResponse(parts=[call]),
        ]
        await store.save(Conversation(conversation_id="s", messages=begun))
        conversation = await loaded(store, "s")
        conversation.messages = ai.repair_messages(conversation.messages)
        agent = helper(openai(model), capabilities=[store.steps()])
        return await agent.run("In Oslo, I mean.", conversation=conversation)

    result = run(work())
    assert result.output == "Answer 2 to: In Oslo, I mean."
    conv = store.conversation("s")
    assert conv is not None and conv.open_calls() == []
    assert [call.status for call in conv.tool_calls()] == ["cancelled"]
    kept = run(loaded(store, "s"))
    assert as_json(kept.messages) == as_json(result.all_messages())
    assert conv.request("anthropic", model="claude-sonnet-4-5").tokens > 0


# ---- concurrency ----


# Two programs use one conversation: each turn is stored once, without messages of other turns.
@pytest.mark.slow
def test_two_programs_on_one_conversation(server: Server, model: Model, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys, treering
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from treering.pydantic_ai import TreeringConversationStore
name, by_steps = sys.argv[1], sys.argv[2] == "steps"
async def main():
    with treering.connect("{server.address}") as db:
        store = TreeringConversationStore(db)
        agent = Agent("openai-chat:gpt-4o", capabilities=[store.steps()] if by_steps else [])
        for n in range(8):
            while True:
                conversation = await store.load("s") or Conversation(conversation_id="s")
                try:
                    result = await agent.run(f"{{name}} {{n}}", conversation=conversation)
                    if not by_steps:
                        await store.save(result)
                    break
                except ConversationConflict:
                    await asyncio.sleep(0.01)
asyncio.run(main())
"""
    environment = {**os.environ, **agent_environment(model, tmp_path)}
    programs = [
        subprocess.Popen([sys.executable, "-c", program, name, "save"], env=environment)
        for name in "ab"
    ]
    assert [each.wait(100) for each in programs] == [0, 0]
    with treering.connect(server.address) as db:
        kept = run(loaded(TreeringConversationStore(db), "s")).messages
        assert kinds(kept) == ["user-prompt", "text"] * 16
        prompts = [str(part.content) for message in kept[::2] for part in message.parts[:1]]  # type: ignore[union-attr]
        assert sorted(prompts) == sorted(f"{name} {n}" for name in "ab" for n in range(8))
        for name in "ab":
            own = [prompt for prompt in prompts if prompt.startswith(name)]
            assert own == sorted(own)
        assert db.verify(deep=True).sound


# Two concurrent runs of one conversation, stored step by step: the second one fails before it
# calls its model.
def test_two_runs_at_once(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)

    async def work() -> None:
        agent = helper(openai(model), capabilities=[store.steps()])
        first = await agent.run("Hello", conversation=await loaded(store, "s"))
        stale = await loaded(store, "s")
        # Runs can continue from the conversation of a result, also with unsaved messages.
        second = await agent.run(CALL, conversation=first.conversation)
        assert second.output == RAIN
        count = len(model.requests)
        for conversation in (stale, Conversation(conversation_id="s")):
            with pytest.raises(ConversationConflict):
                await agent.run("Hello again", conversation=conversation)
        assert len(model.requests) == count
        waiting = second.conversation
        waiting.messages.append(ai.ModelRequest(parts=[ai.UserPromptPart("not stored yet")]))
        third = await agent.run("And this", conversation=waiting)
        # The result can be saved as usual, which adds nothing.
        assert await store.save(third) == []
        kept = await loaded(store, "s")
        assert as_json(kept.messages) == as_json(third.all_messages())

    run(work())


# A cancelled save must be stored in full or not at all, and not after the cancellation.
def test_saves_that_are_cancelled(db: treering.Treering) -> None:
    async def work() -> None:
        store = TreeringConversationStore(db)
        for number in range(40):
            conversation = await loaded(store, "s")
            before = list(conversation.messages)
            conversation.messages += [
                ai.ModelRequest(parts=[ai.UserPromptPart(f"{number} first")]),
                ai.ModelResponse(parts=[ai.TextPart(f"{number} second")]),
            ]
            task = asyncio.create_task(store.save(conversation))
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            now = (await loaded(store, "s")).messages
            assert now in (before, conversation.messages)
            assert now == (await loaded(store, "s")).messages

    run(work())


# Messages that a program leaves out of its requests must stay in the store.
@pytest.mark.parametrize("is_first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_history_that_is_shortened(
    db: treering.Treering, model: Model, count: int, is_first: bool
) -> None:
    store = TreeringConversationStore(db)

    def last(messages: list[ModelMessage]) -> list[ModelMessage]:
        # A result needs its call.
        is_result = any(isinstance(part, ai.ToolReturnPart) for part in messages[-1].parts)
        return messages[-max(count, 3 if is_result else 1) :]

    async def work() -> Conversation:
        shortening, steps = ProcessHistory(last), store.steps()
        order = [shortening, steps] if is_first else [steps, shortening]
        agent = helper(openai(model), capabilities=order)
        for prompt in ("Hello", CALL, "And now?", CALL):
            await agent.run(prompt, conversation=await loaded(store, "s"))
        return await loaded(store, "s")

    kept = run(work())
    assert kinds(kept.messages) == ["user-prompt", "text", *TURN, "user-prompt", "text", *TURN]
    assert len(model.requests[-1]["messages"]) <= 4


# Streamed answers are stored when they are complete.
def test_runs_that_are_streamed(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)

    async def work() -> Conversation:
        agent = helper(makers(model)[2], capabilities=[store.steps()])
        conversation = await loaded(store, "s")
        async with agent.run_stream("Hello", conversation=conversation) as result:
            assert await result.get_output() == "Answer 1 to: Hello"
        async with agent.iter(CALL, conversation=await loaded(store, "s")) as steps:
            async for _ in steps:
                pass
        conversation = await loaded(store, "s")
        async with agent.run_stream_events("And now?", conversation=conversation) as events:
            async for _ in events:
                pass
        return await loaded(store, "s")

    assert kinds(run(work()).messages) == ["user-prompt", "text", *TURN, "user-prompt", "text"]


# A tool that fails ends the run: the earlier messages are stored, and another run can continue.
def test_a_run_that_fails(db: treering.Treering, model: Model) -> None:
    store = TreeringConversationStore(db)
    is_broken = True

    def breaking(ctx: RunContext[object], city: str) -> str:
        """Breaks."""
        if is_broken:
            raise RuntimeError("broken")
        return weather(city)

    agent = Agent(openai(model), tools=[breaking], capabilities=[store.steps()])
    prompt = 'call breaking {"city": "Bergen"}'
    with pytest.raises(RuntimeError):
        run(agent.run(prompt, conversation=run(loaded(store, "s"))))
    left = run(loaded(store, "s"))
    assert kinds(left.messages) == TURN[:3]
    is_broken = False
    result = run(
        Agent(openai(model), tools=[breaking], capabilities=[store.steps()]).run(conversation=left)
    )
    assert result.output == RAIN


# A history with more messages than one step can store.
@pytest.mark.slow
def test_a_long_conversation(db: treering.Treering) -> None:
    store = TreeringConversationStore(db)
    messages: list[ModelMessage] = []
    for number in range(1_250):
        messages.append(ai.ModelRequest(parts=[ai.UserPromptPart(f"question {number}")]))
        messages.append(ai.ModelResponse(parts=[ai.TextPart(f"answer {number}")]))
    run(store.save(Conversation(conversation_id="s", messages=messages)))
    kept = run(loaded(TreeringConversationStore(db), "s"))
    assert kept.messages == messages
    kept.messages += messages[:3]
    assert len(run(store.save(kept))) == 3
    window = run(store.load("s", limit=5))
    assert window is not None and window.messages == [*messages[-2:], *messages[:3]]


# A history with more bytes than one step can store.
@pytest.mark.slow
def test_a_conversation_of_pictures(db: treering.Treering) -> None:
    store = TreeringConversationStore(db)
    messages: list[ModelMessage] = []
    for number in range(9):
        picture = ai.BinaryImage(os.urandom(8 << 20), media_type="image/png")
        messages.append(ai.ModelRequest(parts=[ai.UserPromptPart([f"picture {number}", picture])]))
        messages.append(ai.ModelResponse(parts=[ai.TextPart(f"I see it {number} times")]))
    run(store.save(Conversation(conversation_id="s", messages=messages)))
    assert run(loaded(TreeringConversationStore(db), "s")).messages == messages


# A conversation that was edited many times: going back to a branch reads each branch once.
@pytest.mark.slow
def test_many_branches(db: treering.Treering) -> None:
    store = TreeringConversationStore(db)

    async def work() -> None:
        conversation = await loaded(store, "s")
        for number in range(40):
            conversation.messages.append(ai.ModelRequest(parts=[ai.UserPromptPart(f"n {number}")]))
            conversation.messages.append(ai.ModelResponse(parts=[ai.TextPart(f"a {number}")]))
        await store.save(conversation)
        for number in range(30):
            edited = await store.branch("s", at=40, expected_revision=conversation.revision)
            edited.messages.append(ai.ModelResponse(parts=[ai.TextPart(f"edited {number}")]))
            await store.save(edited)
            conversation = edited
        record = await store.read_record("s")
        assert record is not None and len(record.branches) == 30
        for store_of in (store, TreeringConversationStore(db)):
            lines = [await store_of.read_history(tip) for tip in record.branches]
            assert [len(line) for line in lines] == [80, *[41] * 29]
        first = await TreeringConversationStore(db).branch(
            "s", from_entry=record.branches[0], expected_revision=record.revision
        )
        assert len(first.messages) == 80

    run(work())
