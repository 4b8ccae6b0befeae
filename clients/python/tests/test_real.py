"""Real conversations must come back from the store unchanged."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treering
from treering import new

HERE = Path(__file__).resolve()
DATA = Path(os.environ.get("TREERING_TEST_DATA", HERE.parents[4] / "shared" / "data"))


def trajectories(source: str, count: int) -> Iterator[dict[str, Any]]:
    import zstandard

    path = DATA / "trajectories" / f"{source}.jsonl.zst"
    if not path.exists():
        pytest.skip(f"there is no {path.name} in TREERING_TEST_DATA")
    with path.open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
        for line, _ in zip(text, range(count), strict=False):
            yield json.loads(line)


def drive(db: treering.Treering, trajectory: dict[str, Any]) -> tuple[treering.Conversation, int]:
    """Appends the messages and calls of the agent, step by step."""
    conv = db.create(trajectory["id"], model="gpt-4o")
    recorded = 0
    for message in trajectory["messages"]:
        content = message.get("content") or ""
        if message["role"] == "tool":
            open_calls = {call.call_id: call for call in conv.open_calls()}
            if call := open_calls.get(message["tool_call_id"]):
                with call:
                    call.result(content)
                recorded += 1
            continue
        if message["role"] == "assistant":
            calls = [
                (call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ]
            conv.assistant(*([content] if content else []), tool_calls=calls)
        else:
            conv.append([new.message(message["role"], content)])
    return conv, recorded


# The steps of real agents must be stored unchanged, give requests within the budget, and be found
# by search.
@pytest.mark.slow
@pytest.mark.parametrize("source", ["swe-agent", "tau-bench", "claude-code-entire"])
def test_a_real_trajectory(db: treering.Treering, source: str) -> None:
    for trajectory in trajectories(source, 3):
        if sum(message["role"] == "tool" for message in trajectory["messages"]) < 6:
            continue
        conv, recorded = drive(db, trajectory)
        results = [
            message.get("content") or ""
            for message in trajectory["messages"]
            if message["role"] == "tool"
        ]
        stored = [event.text for event in conv.events(kinds=["tool_result_recorded"])]
        assert recorded == len(stored) > 5
        assert stored == [text for text in results if text in stored]
        said = [
            message["content"]
            for message in trajectory["messages"]
            if message["role"] == "user" and message["content"]
        ]
        assert [event.text for event in conv.events() if event.role == "user"] == said
        for provider in ("openai-chat", "anthropic", "gemini", "openai-responses"):
            request = conv.request(provider, budget=8_000)
            assert request.tokens <= 8_000 or request.over_budget
        words = max(stored, key=len).split()
        assert db.search(" ".join(words[:6]), conversation=conv.id, mode="plain")
        fork = conv.fork(at=conv.head() // 2)
        fork.user("Try another way.")
        assert len([*fork.events()]) == conv.on("main").head() // 2 + 2
        conv.compact(keep_turns=1)
    assert db.verify(deep=True).sound
