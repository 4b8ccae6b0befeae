"""Agents search the store that records them, with the tools of `treering mcp`.

Each framework records the tool's answer in its own shape. A later search must find the original
first, and no answer.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import treering
from treering._binary import find_binary

from ..conftest import run
from .model import Model, agent_environment

LINE = "the deployment failed because the disk of the builder was full"
ARGUMENTS = json.dumps({"query": LINE})
PROMPT = f"call search {ARGUMENTS}"

Program = list[str]


async def openai_agents(db: treering.Treering, model: Model, program: Program) -> None:
    pytest.importorskip("agents")
    from agents import Agent, Runner
    from agents.mcp import MCPServerStdio

    from treering.openai_agents import TreeringSession

    from .test_openai_agents import asking

    async with MCPServerStdio({"command": program[0], "args": program[1:]}) as server:
        agent = Agent("Helper", model="gpt-4o", mcp_servers=[server])
        session = TreeringSession("s", db)
        await Runner.run(agent, PROMPT, session=session, run_config=asking(model))


async def google_adk(db: treering.Treering, model: Model, program: Program) -> None:
    pytest.importorskip("google.adk")
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from mcp import StdioServerParameters

    from treering.google_adk import TreeringSessionService

    from .test_google_adk import ask

    server = StdioServerParameters(command=program[0], args=program[1:])
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=server))
    await ask(TreeringSessionService(db), model, tools, PROMPT)
    await tools.close()


async def claude_agent_sdk(db: treering.Treering, model: Model, program: Program) -> None:
    pytest.importorskip("claude_agent_sdk")
    from claude_agent_sdk import ClaudeAgentOptions, query

    from treering.claude_agent_sdk import TreeringSessionStore

    with tempfile.TemporaryDirectory() as folder:
        options = ClaudeAgentOptions(
            session_store=TreeringSessionStore(db),
            cwd=folder,
            model="claude-sonnet-4-5",
            mcp_servers={"notes": {"command": program[0], "args": program[1:]}},
            allowed_tools=["mcp__notes__search"],
            setting_sources=[],
            env=agent_environment(model, Path(folder)),
        )
        async for _ in query(prompt=f"call mcp__notes__search {ARGUMENTS}", options=options):
            pass


async def pydantic_ai(db: treering.Treering, model: Model, program: Program) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent

    from treering.pydantic_ai import TreeringConversationStore

    from .pydantic_ai_agents import loaded, openai

    store = TreeringConversationStore(db)
    agent = Agent(openai(model), tools=[asked_directly(program)])
    await store.save(await agent.run(PROMPT, conversation=await loaded(store, "p")))


async def langgraph(db: treering.Treering, model: Model, program: Program) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import HumanMessage

    from treering.langgraph import TreeringSaver

    from .test_langgraph import CONFIG, agent

    graph = agent(TreeringSaver(db), model, {"search": asked_directly(program)})
    await graph.ainvoke({"messages": [HumanMessage(PROMPT)]}, CONFIG)


def asked_directly(program: Program) -> Callable[..., str]:
    """The tool `search`, for frameworks whose MCP client is another package."""

    def search(query: str) -> str:
        """Searches the memory."""
        client = {"name": "test", "version": "1"}
        begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        call = {"name": "search", "arguments": {"query": query}}
        lines: list[dict[str, Any]] = [
            {"id": 1, "method": "initialize", "params": begin},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ]
        given = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in lines)
        said = subprocess.run(program, input=given, capture_output=True, text=True, check=True)
        [text] = json.loads(said.stdout.splitlines()[-1])["result"]["content"]
        return str(text["text"])

    return search


@pytest.mark.parametrize(
    "agent", [openai_agents, google_adk, claude_agent_sdk, pydantic_ai, langgraph]
)
def test_the_original_is_found_first(
    agent: Callable[[treering.Treering, Model, Program], Coroutine[Any, Any, None]],
    db: treering.Treering,
    store: Path,
    model: Model,
) -> None:
    conv = db.create("The original")
    with conv.tool_call("bash", {"command": "make deploy"}) as call:
        result = call.result(f"$ make deploy\n{LINE}\n$")
    program = [find_binary(), "mcp", "--data", str(store), "--namespace", db.namespace]

    run(agent(db, model, program))
    hits = db.search(LINE)
    assert (hits[0].conversation_id, hits[0].revision) == (conv.id, result.revision)
    assert not any(hit.proto.recalled for hit in hits)
    results = db.search(LINE, every_copy=True, kinds=["tool_result_recorded"])
    [answer] = [hit.proto for hit in results if hit.proto.recalled]
    assert answer.quotes == f"{conv.id[:8]}#{result.revision}"
