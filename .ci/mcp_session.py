"""Runs an agent's session with the official Python SDK, over stdio or HTTP.

Usage: mcp_session.py stdio BINARY DATA | mcp_session.py http URL KEY
"""

import asyncio
import re
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

READING = ["search", "around", "read", "conversations", "branches", "request", "recall"]


def text(result) -> str:
    return result.content[0].text


async def session(client: Client, writes: bool, name: str) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]
    wanted = READING + (["remember", "fork"] if writes else [])
    assert names == wanted, names

    found = await client.call_tool("search", {"query": "error", "limit": 3})
    assert not found.is_error, text(found)
    place = re.search(r"^1\. (\S+)", text(found), re.M)
    assert place, text(found)
    reference = place.group(1)
    around = await client.call_tool("around", {"address": reference})
    assert "here: #" in text(around), text(around)
    read = await client.call_tool("read", {"address": reference})
    assert not read.is_error and "--- recorded " in text(read), text(read)

    conversation, revision = reference.rsplit("#", 1)
    branches = await client.call_tool("branches", {"conversation": conversation})
    # The SDK has validated it against the tool's output schema.
    assert branches.structured_content["branches"][0]["name"] == "main", branches
    templates = (await client.list_resource_templates()).resource_templates
    assert len(templates) == 1, templates
    resource = await client.read_resource(f"treering:{conversation}/{revision}")
    assert resource.contents[0].text, resource
    prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert prompts == ["continue", "what_did_we_try"], prompts
    prompt = await client.get_prompt("continue", {"conversation": conversation})
    assert "Its last events" in prompt.messages[0].content.text, prompt

    wrong = await client.call_tool("read", {"address": "nothing#1"})
    assert wrong.is_error and "What to do" in text(wrong), wrong
    if writes:
        kept = await client.call_tool("remember", {"key": "sdk", "value": {"seen": True}})
        assert kept.structured_content["kept"] is True, kept
        fork = {"address": reference, "name": name}
        forked = await client.call_tool("fork", fork)
        assert not forked.is_error, text(forked)
        recalled = await client.call_tool("recall", {})
        assert "seen" in text(recalled), text(recalled)
    print(f"   {client.protocol_version}: {len(names)} tools, found {reference}")


async def stdio(binary: str, data: str) -> None:
    for mode in ("legacy", "auto"):
        for more in ([], ["--writable"]):
            if more == [] and mode == "auto":
                continue
            server = StdioServerParameters(command=binary, args=["mcp", "--data", data, *more])
            async with Client(server, mode=mode, read_timeout_seconds=60) as client:
                await session(client, writes=bool(more), name=f"stdio-{mode}")


async def http(url: str, key: str) -> None:
    for mode in ("legacy", "auto"):
        headers = {"authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as web:
            transport = streamable_http_client(url, http_client=web)
            async with Client(transport, mode=mode) as client:
                await session(client, writes=True, name=f"http-{mode}")
    async with httpx2.AsyncClient() as web:
        refused = await web.post(url, json={})
        assert refused.status_code == 401, refused
        known = {"authorization": f"Bearer {key}"}
        for wrong in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            refused = await web.post(url, json={}, headers={**known, **wrong})
            assert refused.status_code == 403, refused
        # The inspector is on the same port.
        page = await web.get(url.removesuffix("mcp"), headers=known)
        assert page.status_code == 200 and "Treering" in page.text, page


def main() -> None:
    kind, *arguments = sys.argv[1:]
    asyncio.run({"stdio": stdio, "http": http}[kind](*arguments))


main()
