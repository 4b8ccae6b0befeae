"""Parallel tools: a tool that returned before a program was killed is not run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import treering

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai import messages as ai
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.function import AgentInfo, FunctionModel

from treering.pydantic_ai import TreeringConversationStore
from treering.pydantic_ai._returned import RETURNED, returned_event

from ..conftest import Server, run

PROGRAM = """
import asyncio, os, signal, sys, treering
from pathlib import Path
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ToolReturn
from pydantic_ai.models.function import FunctionModel
from tests.adapters.test_pydantic_ai_returned import model
from treering.pydantic_ai import TreeringConversationStore

address, ran, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
db = treering.connect(address)
store = TreeringConversationStore(db)
agent = Agent(FunctionModel(model), capabilities=[store.steps()])

@agent.tool_plain
def fast(step: int) -> str:
    with ran.open("a") as file:
        file.write(f"fast {step}\\n")
    return f"fast has done {step}"

@agent.tool_plain
def told() -> ToolReturn:
    with ran.open("a") as file:
        file.write("told\\n")
    return ToolReturn(["told"], content="Look at this.", metadata={"by": 1})

@agent.tool_plain
async def slow() -> str:
    with ran.open("a") as file:
        file.write("slow\\n")
    if when == "killed":
        conv = store.conversation("job")
        while len([e for e in conv.events(kinds=["custom"])
                   if e.proto.custom.type_name == "pydantic-ai.returned"]) < 2:
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    return "slow has done"

async def main():
    conversation = await store.load("job") or Conversation(conversation_id="job")
    prompt = None if conversation.messages else "Go"
    result = await agent.run(prompt, conversation=conversation)
    print(result.output)

asyncio.run(main())
"""


def model(messages: list[ai.ModelMessage], info: AgentInfo) -> ai.ModelResponse:
    """Calls three tools, and then answers with their results."""
    last = messages[-1]
    returns = [part for part in last.parts if isinstance(part, ai.ToolReturnPart)]
    if returns:
        beside = [part.content for part in last.parts if isinstance(part, ai.UserPromptPart)]
        said = [part.content for part in returns]
        return ai.ModelResponse(parts=[ai.TextPart(f"{said} {beside}")])
    calls = [("fast", {"step": 1}), ("told", {}), ("slow", {})]
    parts = [ai.ToolCallPart(name, args, f"c{n}") for n, (name, args) in enumerate(calls)]
    return ai.ModelResponse(parts=parts)


# A program was killed when one tool had returned and another tool of the same answer still ran.
# The next program ran both, so the first tool ran twice.
@pytest.mark.slow
def test_a_tool_that_has_returned_is_not_run_again(server: Server, tmp_path: Path) -> None:
    def start(when: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, server.address, str(tmp_path / "ran"), when]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    ended = start("killed")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = start("no")
    out = "['fast has done 1', ['told'], 'slow has done'] ['Look at this.']\n"
    assert ended.stdout == out, ended.stderr
    ran = (tmp_path / "ran").read_text().splitlines()
    assert sorted(ran) == ["fast 1", "slow", "slow", "told"]
    with treering.connect(server.address) as db:
        store = TreeringConversationStore(db)
        whole = run(store.load("job"))
        assert whole is not None and len(whole.messages) == 4
        [told] = [
            part
            for part in whole.messages[2].parts
            if isinstance(part, ai.ToolReturnPart) and part.tool_name == "told"
        ]
        assert told.metadata == {"by": 1}
        conv = store.conversation("job")
        assert conv is not None
        assert [call.status for call in conv.tool_calls()] == ["succeeded"] * 3


# A stored result is for the calls of its answer only. Some models repeat call ids: a later call
# with the same id must run.
def test_a_later_call_with_the_same_id_is_run(db: treering.Treering) -> None:
    store = TreeringConversationStore(db)
    ran: list[str] = []
    agent = Agent(FunctionModel(model), capabilities=[store.steps()])

    @agent.tool_plain
    def fast(step: int) -> str:
        ran.append("fast")
        return "fast"

    @agent.tool_plain
    def told() -> str:
        return "told"

    @agent.tool_plain
    def slow() -> str:
        return "slow"

    async def work() -> None:
        for _ in range(2):
            conversation = await store.load("s") or Conversation(conversation_id="s")
            await agent.run("Go", conversation=conversation)

    run(work())
    assert ran == ["fast", "fast"]
    conv = store.conversation("s")
    assert conv is not None
    kept = [event.proto.custom.type_name for event in conv.events(kinds=["custom"])]
    assert kept.count(RETURNED) == 6


# A value that JSON cannot represent is not stored: its tool runs again.
def test_a_value_that_cannot_be_kept() -> None:
    values: list[Any] = [object(), {"x": lambda: os.getpid()}]
    assert [returned_event("t", "c", value) for value in values] == [None] * 2
